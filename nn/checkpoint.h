/* Checkpoints in a run folder.
 *
 *   checkpoints/step-00001200.safetensors        weights, published names, F32
 *   checkpoints/step-00001200.state.safetensors  optim.m.<name>, optim.v.<name>; counters
 *   checkpoints/step-00001200.ema.safetensors    averaged weights, when AdamW.ema is set; then the
 *                                                state has optim.ema.<name> too
 *   last.json, best.json                         manifests, written last
 *   last.safetensors, best.safetensors           links to the weights, for people
 *
 * A manifest says file names, bytes, CRC-32C, step, epoch and metric. A save writes weights and
 * state (atomic each), then the manifest, then prunes. Whatever dies in between, the manifest names
 * complete files: a second save of a step is called step-00001200-2, so that no file that a
 * manifest names is ever written again. A manifest whose files do not match in size or CRC is
 * refused. Weights carry the metadata ttv.format, ttv.step, ttv.epoch, ttv.metric, ttv.weights and
 * the caller's own; the state carries the counters of TrainState as text.
 */
#ifndef TTV_NN_CHECKPOINT_H
#define TTV_NN_CHECKPOINT_H

#include "nn/optim.h"

/* Where training stands. */
typedef struct TrainState {
    int64_t step; /* optimiser steps attempted, skipped ones included: drives the schedule */
    int64_t epoch;
    int64_t cursor;      /* samples of this epoch already consumed */
    int64_t skipped;     /* steps skipped as non-finite, in all */
    int64_t skipped_row; /* in a row, now */
    double best_metric;  /* NAN: none yet */
    int64_t best_step;
    int64_t validated_step; /* the last one; a resume makes up for a validation cut off */
    uint64_t seed;
    double loss_sum; /* running epoch loss, so that a resumed epoch reports the same mean */
    int64_t loss_count;
} TrainState;

/* Saves and, when `is_best`, points best.json here too; keeps the newest `keep` step files besides
 * last and best (0: only those). `meta`: model config, class names, preprocessing... stored with
 * the weights. Weights that are not finite are refused (STATUS_NUMERIC). */
Status checkpoint_save(const char *run_folder, Params *p, AdamW *o, const TrainState *s,
                       double metric, bool is_best, int keep, const SafeMeta *meta,
                       int64_t meta_count);

/* Paths behind a manifest ("last" or "best") after checking sizes and CRCs (mem_free both). */
Status checkpoint_find(const char *run_folder, const char *which, char **weights, char **state);

/* Path of the averaged weights behind a manifest (mem_free); STATUS_DATA when it has none. */
Status checkpoint_find_ema(const char *run_folder, const char *which, char **weights);

/* Restores weights, moments, average and counters; everything must match the Params. */
Status checkpoint_resume(const char *run_folder, const char *which, Params *p, AdamW *o,
                         TrainState *s);

/* `path` may be a .safetensors file, a shard index, or a run folder (its best, else its last): the
 * weights' path (mem_free). */
Status checkpoint_resolve(const char *path, char **weights);

/* A saved step of a run folder. */
typedef struct SavedStep {
    int64_t step;
    int revision;            /* 2 and up: the step was saved again */
    bool last, best;         /* named by that manifest */
    bool has_state, has_ema; /* files beside the weights */
    uint64_t bytes;          /* of its files */
    uint64_t state_bytes;
} SavedStep;

/* All of them, newest first (mem_free). STATUS_IO or STATUS_DATA when a manifest that exists cannot
 * be read: any file may be in use then; STATUS_DATA when the folder holds no checkpoint. */
Status checkpoint_steps(const char *run_folder, SavedStep **out, int64_t *count);

/* Path of its weights, or of their average (mem_free). */
Status checkpoint_step_path(const char *run_folder, const SavedStep *s, bool average, char **path);

/* Removes its files, or the training state alone. STATUS_INTERNAL for one that a manifest names. */
Status checkpoint_step_remove(const char *run_folder, const SavedStep *s, bool state_only);

#endif
