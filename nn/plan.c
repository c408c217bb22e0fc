#include "nn/plan.h"

#include <stdio.h>

#define LARGEST_BATCH ((int64_t)1 << 20)
#define BLOCK         ((size_t)1 << 44) /* more than any step takes: placement as in one block */

static Status dry_pass(const PlanTask *task, Tape *t, int64_t batch) {
    TRY(arena_reserve(&tape_device(t)->step, BLOCK));
    tape_set_act(t, task->act);
    tape_reset(t, true);
    params_begin_step(task->params);
    Var *loss = task->loss(task->user, t, batch);
    TRY(tape_status(t));
    return tape_backward(t, loss, 1.0f);
}

Status plan_step(const PlanTask *task, int64_t batch, StepPlan *out) {
    Device *d = task->params->device, *dry;
    Tape *t = NULL;
    size_t total;
    *out = (StepPlan){.batch = batch, .weights = d->weights.used, .state = d->state.used};
    TRY(device_memory(d, &out->available, &total));
    out->available += d->step.reserved + d->scratch.reserved;
    TRY(device_open_dry(&dry));
    Status s = tape_new(dry, &t);
    if (s == STATUS_OK) s = dry_pass(task, t, batch);
    params_begin_step(task->params);
    out->step = dry->step.extent;
    out->scratch = dry->step.largest;
    tape_free(t);
    device_close(dry);
    return status_context(s, "planning a step of %lld samples", (long long)batch);
}

static Status fits(const PlanTask *task, int64_t batch, size_t bytes, bool *yes) {
    StepPlan plan;
    TRY(plan_step(task, batch, &plan));
    *yes = plan_need(&plan) <= bytes;
    return STATUS_OK;
}

/* Memory grows with the batch: doubling, then halving the interval. */
Status plan_largest_batch(const PlanTask *task, size_t bytes, int64_t *batch) {
    int64_t good = 0, bad = 1;
    bool yes = true;
    while (yes && bad <= LARGEST_BATCH) {
        TRY(fits(task, bad, bytes, &yes));
        if (yes) {
            good = bad;
            bad *= 2;
        }
    }
    while (bad - good > 1) {
        const int64_t middle = good + (bad - good) / 2;
        TRY(fits(task, middle, bytes, &yes));
        if (yes)
            good = middle;
        else
            bad = middle;
    }
    *batch = good;
    return STATUS_OK;
}

static Status refuse(const PlanTask *task, const StepPlan *p) {
    const double mb = 1e6;
    int64_t largest;
    char advice[96] = "not even one sample fits";
    TRY(plan_largest_batch(task, p->available, &largest));
    if (largest > 0)
        snprintf(advice, sizeof advice, "the largest batch that fits is %lld", (long long)largest);
    return status_set(
        STATUS_MEMORY,
        "a step of %lld samples needs %.1f MB (activations and gradients %.1f MB, "
        "scratch about %.1f MB) beside weights and state of %.1f MB; %.1f MB are free "
        "on %s: %s",
        (long long)p->batch, (double)plan_need(p) / mb, (double)p->step / mb,
        (double)p->scratch / mb, (double)(p->weights + p->state) / mb, (double)p->available / mb,
        task->params->device->name, advice);
}

Status plan_reserve(const PlanTask *task, int64_t batch, StepPlan *out) {
    Arena *step = &task->params->device->step;
    TRY(plan_step(task, batch, out));
    if (plan_need(out) > out->available) return refuse(task, out);
    arena_reset(step);
    const Status s = arena_reserve(step, out->step);
    return s == STATUS_MEMORY ? refuse(task, out) : s;
}
