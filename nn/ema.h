/* A moving average of the weights: average = decay average + (1 - decay) weights after every step,
 * formed as weights + decay (average - weights): what never changes (tables) keeps its bits.
 *
 * It starts as a copy of the weights. A step that was skipped as non-finite leaves the weights as
 * they are, and the average moves towards them. Set as AdamW.ema it is part of the update, of
 * checkpoints (checkpoint.h) and of a resume.
 */
#ifndef TTV_NN_EMA_H
#define TTV_NN_EMA_H

#include "nn/params.h"

typedef struct Ema {
    Params *params;
    Tensor average; /* F32 flat block in the state arena */
    float decay;
    bool swapped;
} Ema;

/* 0 <= decay < 1. */
Status ema_init(Ema *e, Params *p, float decay);
/* Average = the weights of now: after weights were loaded. */
Status ema_restart(Ema *e);
Status ema_update(Ema *e);
/* Exchanges average and weights, between steps: once for a validation, once more to go on. While
 * they are exchanged, nothing may be trained or saved. */
Status ema_swap(Ema *e);

#endif
