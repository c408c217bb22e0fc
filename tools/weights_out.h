/* A weights file in the making: tensors as F32 or, with two axes or more, rounded to BF16. */
#ifndef TTV_TOOLS_WEIGHTS_OUT_H
#define TTV_TOOLS_WEIGHTS_OUT_H

#include <stdbool.h>

#include "core/safetensors.h"

#define WEIGHTS_DTYPES "bf16|f32"
enum { WEIGHTS_BF16, WEIGHTS_F32 };
#define WEIGHTS_DTYPE_HELP                                                                         \
    "bf16: tensors with two axes or more, rounded to nearest; vectors and rotary tables stay f32"

typedef struct WeightsOut {
    SafeItem *items;
    SafeMeta *meta;
    int64_t count, meta_count, bytes;
} WeightsOut;

/* Room for the tensors of `like` and for its metadata and `more` further entries. */
Status weights_out_begin(WeightsOut *w, const SafeFile *like, int64_t more);
/* What published checkpoints hold beside weights and no program of ours reads: batch norms'
 * counters of batches. */
bool weights_out_skips(const SafeEntry *e);
/* Memory for a tensor like `e`, F32, to be filled before the next call. STATUS_DATA when it has no
 * axis or more than four. */
Status weights_out_take(WeightsOut *w, const SafeEntry *e, Tensor *out);
/* The tensor that was taken is complete: rounds it where `dtype` is WEIGHTS_BF16. */
Status weights_out_done(WeightsOut *w, int dtype);
/* Keys and values are borrowed. */
void weights_out_meta(WeightsOut *w, const char *key, const char *value);

/* Writes the file (atomically) and tells so on stdout: a line, or with --json an object. */
Status weights_out_write(const WeightsOut *w, const char *path);
void weights_out_free(WeightsOut *w);

/* STATUS_USAGE when there is a file already, unless `overwrite`. */
Status weights_out_check(const char *path, bool overwrite);

#endif
