/* Independent pieces of work on threads. */
#ifndef TTV_TOOLS_PARALLEL_H
#define TTV_TOOLS_PARALLEL_H

#include <stdint.h>

#include "core/status.h"

/* Calls work(user, i) once for every i in [0, count), on up to `threads` threads (0: one per
 * processor), in no fixed order: each call must write to its own place only. The first call that
 * fails (lowest index of those that ran) ends the walk; its status and message are handed back to
 * the caller's thread. watch(user, done) is called on the caller's thread a few times a second; may
 * be NULL. */
typedef Status (*ParallelWork)(void *user, int64_t i);
typedef void (*ParallelWatch)(void *user, int64_t done);
Status parallel_for(int64_t count, int threads, ParallelWork work, ParallelWatch watch, void *user);

#endif
