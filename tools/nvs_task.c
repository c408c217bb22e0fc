/* Task callbacks: see nn/train.h for the contract. */
#include "tools/nvs_task.h"

#include "core/memory.h"
#include "nn/ops.h"

static int64_t views_of(void) {
    return nvs_settings.scenes.inputs + nvs_settings.scenes.targets;
}

static Status begin_epoch(void *user, int64_t epoch, int64_t cursor) {
    NvsTask *t = user;
    const NvsTrainConfig *c = &nvs_settings.train;
    const int64_t all = c->steps * c->grad_accum_steps * c->batch_size;
    (void)epoch; /* there is one */
    if (cursor % (c->batch_size * c->grad_accum_steps) != 0)
        return status_set(
            STATUS_USAGE,
            "the run stopped after %lld samples, which is no multiple of --batch-size "
            "%lld times --grad-accum-steps %lld",
            (long long)cursor, (long long)c->batch_size, (long long)c->grad_accum_steps);
    return nvs_data_begin(t->data, cursor, all - cursor);
}

static const char *batch_name(void *user, int64_t i) {
    NvsTask *t = user;
    if (i >= t->batch.count) return NULL;
    const ViewSample *s = &t->batch.samples[i];
    snprintf(t->name, sizeof t->name, "%s frames %lld to %lld",
             scene_set_at(t->data->train, s->scene)->name, (long long)s->frames[0],
             (long long)s->frames[s->inputs - 1]);
    return t->name;
}

/* Tokens are made while the step before runs, where the device is asynchronous. */
static Status next_batch(void *user, int64_t *samples) {
    NvsTask *t = user;
    const NvsModel *m = t->model;
    const int64_t views = views_of(), inputs = nvs_settings.scenes.inputs;
    const int64_t picture = m->config.height * m->config.view_width * 3;
    const int64_t tokens = views * lact_nvs_view_tokens(m->nvs) * lact_nvs_token_size(m->nvs);
    TRY(view_loader_next(t->data->loader, &t->batch));
    for (int64_t i = 0; i < t->batch.count; i++) {
        const uint8_t *pixels = t->batch.pixels + i * views * picture;
        Status s = nvs_sample_tokens(m, pixels, t->batch.cameras + i * views, inputs, views,
                                     t->host_tokens + i * tokens);
        if (s != STATUS_OK) return status_context(s, "%s", batch_name(t, i));
        TRY(nvs_sample_patches(m, pixels + inputs * picture, views - inputs,
                               t->host_patches + i * (views - inputs) * picture));
    }
    *samples += t->batch.count;
    return STATUS_OK;
}

static Status push_batch(void *user, int64_t step, int64_t micro) {
    NvsTask *t = user;
    (void)step;
    (void)micro;
    TRY(device_stage(t->model->device, t->tokens, t->host_tokens));
    return device_stage(t->model->device, t->patches, t->host_patches);
}

static Var *loss_of(void *user, Tape *tape, int64_t batch) {
    NvsTask *t = user;
    const Tensor x = t->tokens, y = t->patches;
    Var *tokens =
        tape_input(tape, tensor_3d(x.data, DTYPE_F32, batch, x.shape[1], x.shape[2]), "tokens");
    Var *rgb = lact_nvs_forward(t->model->nvs, tape, tokens, nvs_settings.scenes.inputs, NULL);
    return op_mse(tape, rgb, tensor_3d(y.data, DTYPE_F32, batch, y.shape[1], y.shape[2]));
}

static Status init(NvsTask *t) {
    const NvsModel *m = t->model;
    Arena *arena = &m->device->weights;
    const int64_t batch = nvs_settings.train.batch_size, targets = nvs_settings.scenes.targets;
    const int64_t view = lact_nvs_view_tokens(m->nvs), patch = m->config.patch;
    void *block;
    TRY(arena_tensor(arena, DTYPE_F32, 3,
                     (int64_t[]){batch, views_of() * view, lact_nvs_token_size(m->nvs)},
                     &t->tokens));
    TRY(arena_tensor(arena, DTYPE_F32, 3, (int64_t[]){batch, targets * view, 3 * patch * patch},
                     &t->patches));
    TRY(mem_alloc(&block, tensor_count(t->tokens), sizeof(float), "tokens of a batch"));
    t->host_tokens = block;
    TRY(mem_alloc(&block, tensor_count(t->patches), sizeof(float), "targets of a batch"));
    t->host_patches = block;
    return STATUS_OK;
}

Status nvs_task_init(NvsTask *t, NvsModel *m, NvsData *d) {
    *t = (NvsTask){.model = m, .data = d};
    Status s = init(t);
    if (s != STATUS_OK) nvs_task_free(t);
    return s;
}

void nvs_task_free(NvsTask *t) {
    mem_free(t->host_tokens);
    mem_free(t->host_patches);
    *t = (NvsTask){0};
}

TrainTask nvs_task_callbacks(NvsTask *t) {
    return (TrainTask){.user = t,
                       .begin_epoch = begin_epoch,
                       .next = next_batch,
                       .push = push_batch,
                       .loss = loss_of,
                       .validate = t->data->val ? nvs_validate : NULL,
                       .batch_name = batch_name};
}
