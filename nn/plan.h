/* The memory of a training step, known before the first one: the pass is run on a dry device, with
 * any batch.
 */
#ifndef TTV_NN_PLAN_H
#define TTV_NN_PLAN_H

#include "nn/params.h"

/* What is planned: forward and backward of a loss over `batch` samples (TrainTask.loss). The
 * weights and the optimiser's state exist already. */
typedef struct PlanTask {
    Params *params; /* built for training; marks of a step in progress are lost */
    DType act;
    void *user;
    Var *(*loss)(void *user, Tape *t, int64_t batch);
} PlanTask;

/* Bytes. */
typedef struct StepPlan {
    int64_t batch;
    size_t weights, state; /* taken already */
    size_t step;           /* activations and gradients: one block of exactly this holds them */
    size_t scratch;        /* of the kernels: an estimate, the largest tensor of the step */
    size_t available;      /* free on the device now, with what `step` and `scratch` hold already */
} StepPlan;

Status plan_step(const PlanTask *task, int64_t batch, StepPlan *out);
static inline size_t plan_need(const StepPlan *p) {
    return p->step + p->scratch;
}

/* The largest batch whose step and scratch fit into `bytes`; 0: not even one sample does. */
Status plan_largest_batch(const PlanTask *task, size_t bytes, int64_t *batch);

/* Plans and takes the step arena in one block. STATUS_MEMORY says what a step of this batch needs,
 * what is free, and the largest batch that fits. */
Status plan_reserve(const PlanTask *task, int64_t batch, StepPlan *out);

#endif
