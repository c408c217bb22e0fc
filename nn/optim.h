/* AdamW over the flat block, global-norm clipping, warm-up + cosine (vittt.md 7). */
#ifndef TTV_NN_OPTIM_H
#define TTV_NN_OPTIM_H

#include "nn/ema.h"
#include "nn/muon.h"

typedef struct AdamWOptions {
    float beta1, beta2, eps, weight_decay;
    float clip_norm; /* <= 0: no clipping */
    float skip_norm; /* a step whose norm is above it changes nothing; <= 0: none */
} AdamWOptions;

typedef struct AdamW {
    Params *params;
    AdamWOptions options;
    Tensor m, v;        /* F32 flat blocks in the state arena */
    Tensor lr, control; /* F32 [1], [4] on the device (kernels.h) */
    Tensor taken;       /* I64 [1]: optimiser steps really taken (k of the bias correction) */
    Ema *ema;           /* updated with the weights; NULL: none (the caller's) */
    Muon *muon;         /* takes the matrices; NULL: none (the caller's) */
} AdamW;

Status adamw_init(AdamW *o, Params *p, AdamWOptions options);
/* One step with the gradients in params. Nothing changes when the norm is not finite or above
 * skip_norm. The two
 * halves: the rate goes to the device, kernels alone do the rest (so that they can be recorded). */
Status adamw_step(AdamW *o, double lr);
Status adamw_set_lr(AdamW *o, double lr);
Status adamw_apply(AdamW *o);
/* Norm and clip coefficient of the last step (waits for the device). */
Status adamw_report(AdamW *o, float *norm, float *clip);
/* Whether a step with that norm changed nothing: what grad_norm decided on the device. */
bool adamw_skips(const AdamW *o, float norm);
Status adamw_taken(AdamW *o, int64_t *taken);
Status adamw_set_taken(AdamW *o, int64_t taken);

/* Learning rate of optimiser step t, 0-based (vittt.md 7.1): warm-up in steps `warmup_steps`, total
 * `total_steps`; the cosine is not shifted by the warm-up. Without warm-up step 0 has the base
 * rate; past the end the floor. */
typedef struct Schedule {
    double base, warmup_start, floor;
    int64_t warmup_steps, total_steps;
    bool after_warmup; /* lact_nvs.md 7 instead: step 0 has warmup_start, the cosine begins where
                          the warm-up ends */
} Schedule;
double schedule_lr(const Schedule *s, int64_t step);

#endif
