#include "tools/memory_plan.h"

#include <stdio.h>

#include "tools/cli.h"
#include "tools/ranks.h"
#include "tools/run_folder.h"

#define MB 1e6
/* Share of the free memory that the advice leaves alone: blocks of arenas double, libraries load
 * code, graphs take room. */
#define SPARE_SHARE 32

/* What is held for each sample grows with the batch, too. One that is larger than the first answer
 * is not looked for: the second answer is a little too small at worst. */
static Status find_largest(const PlanTask *task, MemoryPlan *p, size_t bytes) {
    int64_t first;
    p->largest = 0;
    TRY(plan_largest_batch(task, bytes, &first));
    const size_t held = (size_t)first * p->sample_bytes;
    if (held < bytes) TRY(plan_largest_batch(task, bytes - held, &p->largest));
    /* The fewer the samples, the less is held: halve what is left of the gap a few times. */
    for (int64_t step = (first - p->largest) / 2; step > 0; step /= 2) {
        StepPlan plan;
        const int64_t batch = p->largest + step;
        TRY(plan_step(task, batch, &plan));
        if (plan_need(&plan) + (size_t)batch * p->sample_bytes <= bytes) p->largest = batch;
    }
    return STATUS_OK;
}

/* As --batch-size has it. */
static long long of_all_ranks(int64_t batch) {
    return (long long)batch * ranks_count();
}

Status memory_plan(const PlanTask *task, int64_t batch, size_t sample_bytes, MemoryPlan *out) {
    MemoryPlan *p = out;
    TRY(plan_step(task, batch, &p->step));
    p->sample_bytes = sample_bytes;
    p->need = plan_need(&p->step) + (size_t)batch * p->sample_bytes;
    /* Ranks on the CPU share its memory. */
    if (task->params->device->kind == DEVICE_CPU) p->step.available /= (size_t)ranks_on_host();
    const size_t available = p->step.available;
    return find_largest(task, p, available - available / SPARE_SHARE);
}

Status memory_plan_check(const MemoryPlan *p, const Device *d, const char *more) {
    char advice[160] = "not even one sample fits";
    if (p->need <= p->step.available) return STATUS_OK;
    if (p->largest > 0)
        snprintf(advice, sizeof advice,
                 "the largest batch that fits is %lld%s; --grad-accum-steps makes up for it",
                 of_all_ranks(p->largest), more);
    return status_set(
        STATUS_MEMORY,
        "--batch-size %lld does not fit on %s: a step needs %.1f MB (activations and "
        "gradients %.1f MB, kernels about %.1f MB, batches %.1f MB) beside weights "
        "and optimiser of %.1f MB; %.1f MB are free: %s",
        of_all_ranks(p->step.batch), d->name, (double)p->need / MB, (double)p->step.step / MB,
        (double)p->step.scratch / MB, (double)(p->need - plan_need(&p->step)) / MB,
        (double)(p->step.weights + p->step.state) / MB, (double)p->step.available / MB, advice);
}

void memory_plan_print(const MemoryPlan *p, size_t average, bool recompute) {
    char averaged[64] = "";
    if (average > 0)
        snprintf(averaged, sizeof averaged, ", their average %.1f MB", (double)average / MB);
    note("memory: weights %.1f MB, gradients and moments %.1f MB%s, activations %.1f MB%s, kernels "
         "about %.1f MB, batches %.1f MB; %.1f MB are free beside weights and moments; the largest "
         "batch that fits is %lld",
         (double)p->step.weights / MB, (double)(p->step.state - average) / MB, averaged,
         (double)p->step.step / MB, recompute ? " (blocks are computed again)" : "",
         (double)p->step.scratch / MB, (double)(p->need - plan_need(&p->step)) / MB,
         (double)p->step.available / MB, of_all_ranks(p->largest));
}

void memory_plan_json(const MemoryPlan *p, const Params *params, const Device *d, DType act,
                      size_t average, JsonWriter *w) {
    json_pair_string(w, "device", d->name);
    json_pair_string(w, "activations", dtype_name(act));
    json_pair_int(w, "checkpoint_bytes", (int64_t)run_checkpoint_bytes(params, average > 0));
    json_key(w, "memory");
    json_begin_object(w);
    json_pair_int(w, "weights", (int64_t)p->step.weights);
    json_pair_int(w, "state", (int64_t)(p->step.state - average));
    json_pair_int(w, "average", (int64_t)average);
    json_pair_int(w, "activations", (int64_t)p->step.step);
    json_pair_int(w, "scratch", (int64_t)p->step.scratch);
    json_pair_int(w, "batches", (int64_t)(p->need - plan_need(&p->step)));
    json_pair_int(w, "available", (int64_t)p->step.available);
    json_pair_int(w, "largest_batch", of_all_ranks(p->largest));
    json_end_object(w);
}
