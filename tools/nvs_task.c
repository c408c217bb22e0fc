/* Task callbacks: see nn/train.h for the contract. */
#include "tools/nvs_task.h"

#include <string.h>

#include "core/clock.h"
#include "core/memory.h"
#include "nn/ops.h"
#include "tools/parallel.h"
#include "tools/ranks.h"

static int64_t views_of(void) {
    return nvs_settings.scenes.inputs + nvs_settings.scenes.targets;
}

static Status begin_epoch(void *user, int64_t epoch, int64_t cursor) {
    NvsTask *t = user;
    const NvsTrainConfig *c = &nvs_settings.train;
    const int64_t all = c->steps * c->grad_accum_steps * c->batch_size;
    (void)epoch; /* there is one */
    return nvs_data_begin(t->data, cursor, all - cursor);
}

static const char *sample_name(const NvsTask *t, int64_t i, char *out, size_t size) {
    const ViewSample *s = &t->batch.samples[i];
    snprintf(out, size, "%s frames %lld to %lld", scene_set_at(t->data->train, s->scene)->name,
             (long long)s->frames[0], (long long)s->frames[s->inputs - 1]);
    return out;
}

static const char *batch_name(void *user, int64_t i) {
    NvsTask *t = user;
    return i < t->batch.count ? sample_name(t, i, t->name, sizeof t->name) : NULL;
}

/* Cameras, colours and patches of sample i of the batch. */
static Status make_sample(void *user, int64_t i) {
    NvsTask *t = user;
    const NvsModel *m = t->model;
    const int64_t views = views_of(), inputs = nvs_settings.scenes.inputs;
    const int64_t picture = m->config.height * m->config.view_width * 3;
    const uint8_t *pixels = t->batch.pixels + i * views * picture;
    memcpy(t->host_rgb + i * inputs * picture, pixels, (size_t)(inputs * picture));
    TRY(nvs_sample_cameras(m, t->batch.cameras + i * views, inputs, views,
                           t->host_cameras + i * views * NVS_CAMERA));
    return nvs_sample_patches(m, pixels + inputs * picture, views - inputs,
                              t->host_patches + i * (views - inputs) * picture);
}

static Status make_named(void *user, int64_t i) {
    char name[CONFIG_TEXT];
    const Status s = make_sample(user, i);
    return s == STATUS_OK ? s : status_context(s, "%s", sample_name(user, i, name, sizeof name));
}

/* While the step before runs, where the device is asynchronous. */
static Status next_batch(void *user, int64_t *samples) {
    NvsTask *t = user;
    const double start = seconds_now();
    TRY(view_loader_next(t->data->loader, &t->batch));
    TRY(parallel_for(t->batch.count, t->threads, make_named, NULL, t));
    t->waited_s += seconds_now() - start;
    *samples += t->batch.count;
    return STATUS_OK;
}

/* What loading and making of patches kept the training thread from: on a card that is seldom what
 * the card waited for. */
static double wait_seconds(void *user) {
    NvsTask *t = user;
    const double waited = t->waited_s;
    t->waited_s = 0;
    return waited;
}

static Status push_batch(void *user, int64_t step, int64_t micro) {
    NvsTask *t = user;
    (void)step;
    (void)micro;
    TRY(device_stage(t->model->device, t->cameras, t->host_cameras));
    TRY(device_stage(t->model->device, t->rgb, t->host_rgb));
    return device_stage(t->model->device, t->patches, t->host_patches);
}

/* The first `batch` samples of a tensor of a whole batch. */
static Tensor first_samples(Tensor t, int64_t batch) {
    t.shape[0] = batch;
    return t;
}

static Var *loss_of(void *user, Tape *tape, int64_t batch) {
    NvsTask *t = user;
    const LactNvsConfig *c = &t->model->config;
    Var *tokens = op_view_tokens(tape, first_samples(t->cameras, batch),
                                 first_samples(t->rgb, batch), c->height, c->view_width, c->patch);
    Var *rgb = lact_nvs_forward(t->model->nvs, tape, tokens, nvs_settings.scenes.inputs, NULL);
    return op_mse(tape, rgb, first_samples(t->patches, batch));
}

/* Where nothing lies: ops of a dry pass ask only whether there is a tensor. */
static char nowhere[1];

/* Of a batch, lying nowhere. */
static void shapes(const NvsModel *m, int64_t batch, NvsTask *t) {
    const LactNvsConfig *c = &m->config;
    const ScenesConfig *s = &nvs_settings.scenes;
    t->cameras = tensor_3d(nowhere, DTYPE_F32, batch, views_of(), NVS_CAMERA);
    t->rgb = tensor_4d(nowhere, DTYPE_U8, batch, s->inputs, c->height * c->view_width, 3);
    t->patches = tensor_3d(nowhere, DTYPE_F32, batch, s->targets * lact_nvs_view_tokens(m->nvs),
                           3 * c->patch * c->patch);
}

static Status init(NvsTask *t) {
    const NvsModel *m = t->model;
    Arena *arena = &m->device->weights;
    void *block;
    NvsTask sized;
    shapes(m, ranks_batch_of(nvs_settings.train.batch_size), &sized);
    TRY(arena_tensor(arena, DTYPE_F32, 3, sized.cameras.shape, &t->cameras));
    TRY(arena_tensor(arena, DTYPE_U8, 4, sized.rgb.shape, &t->rgb));
    TRY(arena_tensor(arena, DTYPE_F32, 3, sized.patches.shape, &t->patches));
    TRY(mem_alloc(&block, tensor_count(t->cameras), sizeof(float), "cameras of a batch"));
    t->host_cameras = block;
    TRY(mem_alloc(&block, tensor_count(t->rgb), 1, "input views of a batch"));
    t->host_rgb = block;
    TRY(mem_alloc(&block, tensor_count(t->patches), sizeof(float), "targets of a batch"));
    t->host_patches = block;
    /* On the CPU a step uses all processors itself, but not while it waits for a batch. */
    t->threads = nvs_data_threads();
    return STATUS_OK;
}

Status nvs_task_plan(NvsModel *m, MemoryPlan *out) {
    NvsTask dry = {.model = m};
    shapes(m, 1, &dry);
    const PlanTask task = {&m->params, m->act, &dry, loss_of};
    const size_t own =
        tensor_bytes(dry.cameras) + tensor_bytes(dry.rgb) + tensor_bytes(dry.patches);
    /* On a card: the batch, its copy that waits for the step to end. On the CPU: the batch in two
     * places, and the loader's pictures. */
    const size_t pictures = (size_t)(views_of() * m->config.height * m->config.view_width * 3);
    const size_t held = 2 * own + (m->device->kind == DEVICE_CPU ? NVS_PREFETCH * pictures : 0);
    return memory_plan(&task, ranks_batch_of(nvs_settings.train.batch_size), held, out);
}

Status nvs_task_init(NvsTask *t, NvsModel *m, NvsData *d) {
    *t = (NvsTask){.model = m, .data = d, .psnr_raw = "nan", .psnr_ema = "nan"};
    Status s = init(t);
    if (s != STATUS_OK) nvs_task_free(t);
    return s;
}

void nvs_task_free(NvsTask *t) {
    mem_free(t->host_cameras);
    mem_free(t->host_rgb);
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
                       .batch_name = batch_name,
                       .wait_seconds = wait_seconds};
}
