/* Will the run fit? Worked out on a dry device before anything of the batch's size is taken. */
#include "tools/trainer.h"

#include "tools/cli.h"

#define MB 1e6
/* Share of the free memory that the advice leaves alone: blocks of arenas double, libraries load
 * code, graphs take room. */
#define SPARE_SHARE 32

/* Where nothing lies: ops of a dry pass ask only whether there is a tensor. */
static char nowhere[1];

/* Bytes on the device for each sample of a batch, besides the step: the batch itself, its copy that
 * waits for the step to end (on a card), that of the validation. On the CPU the loader's batches
 * lie in the same memory. */
static size_t sample_bytes(const Trainer *t) {
    const Model *m = &t->model;
    const size_t side = (size_t)m->preprocess.image_size, picture = side * side * 3;
    size_t own = picture + (size_t)m->config.classes * sizeof(float) + 8 * sizeof(int32_t);
    if (m->config.drop_path > 0) own += 2 * (size_t)m->config.depth * sizeof(float);
    const size_t splits = t->data.val ? 2 : 1;
    size_t all = own + (t->data.val ? picture : 0);
    if (device_is_async(m->device)) all += own;
    if (m->device->kind == DEVICE_CPU) all += splits * (size_t)settings.loader.prefetch * picture;
    return all;
}

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

static Status plan_all(Trainer *t, const PlanTask *task) {
    MemoryPlan *p = &t->memory;
    const int64_t batch = settings.loader.batch_size;
    TRY(plan_step(task, batch, &p->step));
    p->sample_bytes = sample_bytes(t);
    p->need = plan_need(&p->step) + (size_t)batch * p->sample_bytes;
    const size_t available = p->step.available;
    return find_largest(task, p, available - available / SPARE_SHARE);
}

static Status refuse(const Trainer *t) {
    const MemoryPlan *p = &t->memory;
    const Device *d = t->model.device;
    char advice[160] = "not even one image fits";
    if (p->largest > 0)
        snprintf(advice, sizeof advice,
                 "the largest batch that fits is %lld%s; --grad-accum-steps makes up for it",
                 (long long)p->largest,
                 t->model.config.recompute ? "" : " (more with --grad-checkpointing)");
    return status_set(
        STATUS_MEMORY,
        "--batch-size %lld does not fit on %s: a step needs %.1f MB (activations and "
        "gradients %.1f MB, kernels about %.1f MB, batches %.1f MB) beside weights "
        "and optimiser of %.1f MB; %.1f MB are free: %s",
        (long long)p->step.batch, d->name, (double)p->need / MB, (double)p->step.step / MB,
        (double)p->step.scratch / MB, (double)(p->need - plan_need(&p->step)) / MB,
        (double)(p->step.weights + p->step.state) / MB, (double)p->step.available / MB, advice);
}

Status trainer_plan_memory(Trainer *t) {
    Vittt *v = t->model.vittt;
    const Tensor drop_scale = v->drop_scale;
    TrainerTask dry = {.model = &t->model, .data = &t->data};
    dry.pixels.data = dry.targets.data = dry.samples.data = nowhere;
    dry.mix = tensor_1d(nowhere, DTYPE_F32, 8);
    const TrainTask callbacks = trainer_task_callbacks(&dry);
    const PlanTask task = {&t->model.params, t->model.act, &dry, callbacks.loss};
    /* Stochastic depth is on, though nothing was drawn yet. */
    v->drop_scale.data = nowhere;
    const Status s = plan_all(t, &task);
    v->drop_scale = drop_scale;
    TRY(s);
    return t->memory.need > t->memory.step.available ? refuse(t) : STATUS_OK;
}

void trainer_print_memory(const Trainer *t) {
    const MemoryPlan *p = &t->memory;
    const size_t average = t->optim.ema ? tensor_bytes(t->ema.average) : 0;
    char averaged[64] = "";
    if (average > 0)
        snprintf(averaged, sizeof averaged, ", their average %.1f MB", (double)average / MB);
    note("memory: weights %.1f MB, gradients and moments %.1f MB%s, activations %.1f MB%s, kernels "
         "about %.1f MB, batches %.1f MB; %.1f MB are free beside weights and moments; the largest "
         "batch that fits is %lld",
         (double)p->step.weights / MB, (double)(p->step.state - average) / MB, averaged,
         (double)p->step.step / MB, t->model.config.recompute ? " (blocks are computed again)" : "",
         (double)p->step.scratch / MB, (double)(p->need - plan_need(&p->step)) / MB,
         (double)p->step.available / MB, (long long)p->largest);
}
