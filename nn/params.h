/* Parameters: registered once by name, then kept in flat blocks.
 *
 * Master weights are F32. Decayed parameters come first in the flat block, so that AdamW is two
 * calls. Parameters flagged PARAM_MATMUL have a BF16 shadow that models see when the tape's
 * activations are BF16; everything else stays F32. Checkpoint order is registration order.
 */
#ifndef TTV_NN_PARAMS_H
#define TTV_NN_PARAMS_H

#include "core/safetensors.h"
#include "nn/tape.h"

/* ROTATIONS: (cos, sin) of rotary positions, shape [H, W, C/2, 2] (vittt.md 4.3). */
typedef enum InitKind { INIT_ZERO, INIT_ONE, INIT_NORMAL, INIT_UNIFORM, INIT_ROTATIONS } InitKind;
typedef struct Init {
    InitKind kind;
    float scale; /* NORMAL: standard deviation; UNIFORM: bound */
} Init;

/* BUFFER: no gradient, and not counted as a parameter; saved, loaded and averaged like one. */
enum { PARAM_MATMUL = 1, PARAM_DECAY = 2, PARAM_BUFFER = 4 };

typedef struct Param {
    char *name;
    Var var;        /* value: master or shadow; grad: slice of the flat gradient block */
    Tensor master;  /* F32 */
    int64_t offset; /* in the flat block, elements */
    Init init;
    int flags;
} Param;

typedef struct Params {
    Device *device;
    Param **items; /* registration order; addresses are stable */
    int64_t count, capacity;
    int64_t total;   /* elements of all parameters but buffers (the published count) */
    int64_t flat;    /* elements of the flat block, padding included */
    int64_t decayed; /* elements of its decayed front part */
    bool has_buffers;
    Tensor master, shadow, grad; /* flat blocks; shadow and grad none until needed */
    Status status;               /* sticky over params_add */
    uint64_t changes;            /* of the weights, counted by params_refresh and the optimiser */
} Params;

void params_init(Params *p, Device *d);
void params_free(Params *p);

/* Registers a parameter; returns its Var (valid after params_build). Decay follows vittt.md 7 when
 * flags has PARAM_DECAY: the caller decides; helper params_decays() implements the rule "not 1-D
 * and not *.bias". */
Var *params_add(Params *p, const char *name, int rank, const int64_t *shape, Init init, int flags);
bool params_decays(const char *name, int rank);

/* Lays out and takes memory: master (+ shadow when act is BF16, + gradients when training). */
Status params_build(Params *p, DType act, bool training);
/* As params_build without gradients, over a master block of p->flat elements that is another's: the
 * same parameters with other values (averaged ones). The shadow is this one's own; refresh it. */
Status params_build_over(Params *p, Tensor master, DType act);
/* Random values from (seed, RNG_INIT, parameter index). */
Status params_initialise(Params *p, uint64_t seed);
/* Shadow = rounded master. Call after any change of master outside adamw. */
Status params_refresh(Params *p);

/* Fills from a checkpoint: every parameter must be there with its shape in F32, BF16, F16 or F64;
 * names that the model does not know are an error unless `ignore` (a '*' glob list separated by
 * commas) matches. The message lists what is missing, unknown and ill-shaped (up to 8 of each). */
Status params_load(Params *p, const SafeFile *f, const char *ignore);
/* Writes F32 tensors under their names. */
Status params_save(Params *p, const char *path, const SafeMeta *meta, int64_t meta_count);

Param *params_find(Params *p, const char *name); /* NULL: no such parameter */
/* STATUS_NUMERIC, naming the first parameter with a value that is not finite. */
Status params_check_finite(Params *p);
int64_t params_largest(const Params *p); /* elements of the largest parameter */

/* Before the first micro-step of an optimiser step. */
void params_begin_step(Params *p);
/* After the last backward: zero the gradients of parameters that none reached. */
Status params_finish_grads(Params *p);

#endif
