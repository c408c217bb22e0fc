/* Flat blocks laid out like the parameters (weights, moments) from and to files; for nn/ only. */
#ifndef TTV_NN_PARAMS_BLOCKS_H
#define TTV_NN_PARAMS_BLOCKS_H

#include "nn/params.h"

typedef struct FlatBlock {
    const char *prefix; /* in front of every parameter's name in the file */
    Tensor block;       /* F32 [flat] on the device */
} FlatBlock;

#define FLAT_BLOCKS 4

/* Atomic; at most FLAT_BLOCKS blocks, one after the other in the file. */
Status params_write_blocks(Params *p, const char *path, const FlatBlock *blocks, int count,
                           const SafeMeta *meta, int64_t meta_count);

/* Checks that the file holds exactly these blocks in F32, then fills them. */
Status params_check_blocks(Params *p, const SafeFile *f, const FlatBlock *blocks, int count);
Status params_read_blocks(Params *p, const SafeFile *f, const FlatBlock *blocks, int count);

#endif
