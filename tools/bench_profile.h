/* Where the time of a pass goes: a kernel table that times each slot of another one. */
#ifndef TTV_TOOLS_BENCH_PROFILE_H
#define TTV_TOOLS_BENCH_PROFILE_H

#include "tools/bench.h"

enum { PROFILE_SLOTS = 128 };

typedef struct Profile {
    double seconds[PROFILE_SLOTS]; /* per call of the pass, by kernel slot */
    double calls[PROFILE_SLOTS];
    double total; /* of the pass, time outside the kernels included */
} Profile;

/* Runs f a few times with the device's kernels timed one by one (on a card, waiting after each: the
 * sum is larger than a pass takes otherwise). Not reentrant. */
Status profile_run(Device *d, BenchCall f, void *user, Profile *out);

/* The largest contributors, one line; or an array under `key`. */
void profile_report(const Bench *b, const char *key, const Profile *p);

#endif
