/* Will the run fit? Worked out on a dry device before anything of the batch's size is taken. */
#include "tools/trainer.h"

#include "tools/cli.h"
#include "tools/ranks.h"

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

Status trainer_plan_memory(Trainer *t) {
    Vittt *v = t->model.vittt;
    const Tensor drop_scale = v->drop_scale;
    TrainerTask dry = {.model = &t->model, .data = &t->data, .teacher = trainer_teacher(t)};
    dry.pixels.data = dry.targets.data = dry.samples.data = nowhere;
    dry.mix = tensor_1d(nowhere, DTYPE_F32, 8);
    const TrainTask callbacks = trainer_task_callbacks(&dry);
    const PlanTask task = {&t->model.params, t->model.act, &dry, callbacks.loss};
    /* Stochastic depth is on, though nothing was drawn yet. */
    v->drop_scale.data = nowhere;
    const int64_t batch = settings.loader.batch_size / ranks_count();
    const Status s = memory_plan(&task, batch > 0 ? batch : 1, sample_bytes(t), &t->memory);
    v->drop_scale = drop_scale;
    TRY(s);
    const Status fits =
        memory_plan_check(&t->memory, t->model.device,
                          t->model.config.recompute ? "" : " (more with --grad-checkpointing)");
    if (ranks_count() < 2) return fits;
    return status_context(fits, "a rank's part of the batch (batches are divided among %d ranks)",
                          ranks_count());
}

void trainer_print_memory(const Trainer *t) {
    memory_plan_print(&t->memory, t->optim.ema ? tensor_bytes(t->ema.average) : 0,
                      t->model.config.recompute);
}
