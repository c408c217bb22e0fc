/* The files of a run folder; for nn/checkpoint*.c only. */
#ifndef TTV_NN_CHECKPOINT_FILES_H
#define TTV_NN_CHECKPOINT_FILES_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "core/status.h"

#define CHECKPOINT_NAME 96

/* One saved step: names are relative to the run folder ("checkpoints/step-00000012.safetensors").
 */
typedef struct Manifest {
    int64_t step, epoch;
    double metric; /* NAN: none */
    char weights[CHECKPOINT_NAME], state[CHECKPOINT_NAME];
    int64_t weights_bytes, state_bytes;
    int64_t weights_crc32c, state_crc32c;
    bool has_ema; /* averaged weights, a file of their own */
    char ema[CHECKPOINT_NAME];
    int64_t ema_bytes, ema_crc32c;
} Manifest;

/* Reads <run_folder>/<which>.json: STATUS_IO when it cannot be read, STATUS_DATA when it is
 * malformed or names a file outside of checkpoints/. */
Status manifest_read(const char *run_folder, const char *which, Manifest *m);
/* Atomic; then the link <which>.safetensors, whose failure is only logged. */
Status manifest_write(const char *run_folder, const char *which, const Manifest *m);
Status manifest_exists(const char *run_folder, const char *which, bool *exists);
/* Fills sizes and CRCs from the files. */
Status manifest_measure(const char *run_folder, Manifest *m);
/* STATUS_DATA when a file differs in size or CRC from what the manifest says. */
Status manifest_check(const char *run_folder, const Manifest *m);

/* Names for a new save of m->step: no file that last.json or best.json still needs is ever
 * overwritten; a second save of a step is called step-00000012-2. */
Status manifest_choose_names(const char *run_folder, Manifest *m);

/* Removes step files but those of last, best and the newest `keep` others. Failures are logged. */
void checkpoint_prune(const char *run_folder, int keep);

#endif
