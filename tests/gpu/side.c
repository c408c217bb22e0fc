#include "side.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "core/rng.h"

enum { SEED = 17 };

void must(Status s, const char *doing) {
    if (s == STATUS_OK) return;
    printf("FAIL %s: %s: %s\n", doing, status_name(s), status_message());
    exit(1);
}

static void *take(int64_t count, size_t size) {
    void *block = calloc((size_t)count, size);
    if (block) return block;
    printf("FAIL out of memory\n");
    exit(1);
}

/* ---- values ----------------------------------------------------------------------------- */

Values side_pull(Side *s, Tensor block) {
    Values out = {tensor_count(block), NULL};
    out.v = take(out.count, sizeof(float));
    must(device_pull(s->d, out.v, block), "reading values");
    return out;
}

void values_free(Values *v) {
    free(v->v);
    *v = (Values){0};
}

double values_norm(const float *v, int64_t count) {
    double sum = 0;
    for (int64_t i = 0; i < count; i++) sum += (double)v[i] * v[i];
    return sqrt(sum);
}

double values_distance(const float *got, const float *want, int64_t count, double floor) {
    double sum = 0, scale = fmax(values_norm(want, count), floor);
    for (int64_t i = 0; i < count; i++) {
        if (!isfinite(got[i]) || !isfinite(want[i])) return INFINITY;
        sum += ((double)got[i] - want[i]) * ((double)got[i] - want[i]);
    }
    return sum == 0 ? 0 : sqrt(sum) / scale;
}

/* ---- pictures of one step, the same on every side ---------------------------------------- */

/* Waves of random direction and colour with noise on top: patches differ, but have structure. */
static void draw_picture(uint8_t *out, int64_t size, Rng *r) {
    double wave[3][3];
    for (int c = 0; c < 3; c++) {
        wave[c][0] = rng_range(r, -0.3, 0.3);
        wave[c][1] = rng_range(r, -0.3, 0.3);
        wave[c][2] = rng_range(r, 0, 6.3);
    }
    for (int64_t y = 0; y < size; y++)
        for (int64_t x = 0; x < size; x++)
            for (int c = 0; c < 3; c++) {
                double phase = wave[c][0] * (double)x + wave[c][1] * (double)y + wave[c][2];
                double noise = (double)(rng_u32(r) >> 24) / 255 - 0.5;
                out[(y * size + x) * 3 + c] = (uint8_t)(127 + 90 * sin(phase) + 60 * noise);
            }
}

static void draw_step(Side *s, int64_t step, float mix[MIX_NUMBERS]) {
    const Augment a = {.flip = 0.5,
                       .mixup = 0.8,
                       .cutmix = 1.0,
                       .mixup_prob = 1.0,
                       .mixup_switch_prob = 0.5,
                       .reprob = 0.25};
    const int64_t size = s->model->config.image_size, classes = s->model->config.classes;
    int64_t labels[16];
    Rng r = rng_stream(SEED, RNG_TEST, (uint64_t)step, 0);
    const BatchMix batch = batch_mix_draw(&a, size, &r);
    batch_mix_write(&batch, mix);
    for (int64_t i = 0; i < s->batch; i++) {
        r = rng_stream(SEED, RNG_TEST, (uint64_t)step, (uint64_t)i + 1);
        labels[i] = (int64_t)rng_below(&r, (uint64_t)classes);
        const SampleMix sample = sample_mix_draw(&a, size, &r);
        sample_mix_write(&sample, s->host_samples + i * MIX_NUMBERS);
        draw_picture(s->host_pixels + i * size * size * 3, size, &r);
    }
    mix_targets(s->host_targets, labels, s->batch, classes, 0.1, batch.target);
}

/* ---- the task --------------------------------------------------------------------------- */

static Status begin_epoch(void *user, int64_t epoch, int64_t cursor) {
    Side *s = user;
    (void)epoch;
    s->next = cursor;
    return STATUS_OK;
}

static Status next(void *user, int64_t *samples) {
    Side *s = user;
    if (s->next == s->steps * s->batch) return STATUS_END;
    s->next += s->batch;
    *samples += s->batch;
    return STATUS_OK;
}

static Status push(void *user, int64_t step, int64_t micro) {
    Side *s = user;
    float mix[MIX_NUMBERS];
    draw_step(s, step, mix);
    TRY(device_stage(s->d, s->pixels, s->host_pixels));
    TRY(device_stage(s->d, s->samples, s->host_samples));
    TRY(device_stage(s->d, s->mix, mix));
    TRY(device_stage(s->d, s->targets, s->host_targets));
    return vittt_stage_drop_path(s->model, s->d, SEED, step, micro, s->batch);
}

static Var *forward(Side *s, Tape *t, int64_t batch) {
    static const float mean[3] = {0.485f, 0.456f, 0.406f}, std[3] = {0.229f, 0.224f, 0.225f};
    const int64_t size = s->model->config.image_size;
    Tensor pixels = tensor_4d(s->pixels.data, DTYPE_U8, batch, size, size, 3);
    Tensor samples = tensor_2d(s->samples.data, DTYPE_I32, batch, MIX_NUMBERS);
    const int64_t patch = vittt_input_patch(&s->model->config),
                  grid = size / s->model->config.patch;
    Var *patches = op_image_prepare(t, pixels, samples, s->mix, mean, std, patch);
    return vittt_forward_patches(s->model, t, patches, grid, grid, true);
}

static Var *cross_entropy(Side *s, Tape *t, Var *logits, int64_t batch) {
    const int64_t classes = s->model->config.classes;
    return op_cross_entropy(t, logits, tensor_2d(s->targets.data, DTYPE_F32, batch, classes));
}

static Var *loss(void *user, Tape *t, int64_t batch) {
    return cross_entropy(user, t, forward(user, t, batch), batch);
}

/* ---- opening ---------------------------------------------------------------------------- */

/* Weights as large as in a trained network, so that every branch matters: the published initial
 * values leave the residual stream almost alone. Biases start as zeros, gains as ones. */
static void draw_weights(const Param *p, float *w, uint64_t index) {
    const Tensor t = p->master;
    const int64_t n = tensor_count(t);
    /* The fast weights are [1, heads, d, d]. */
    const int64_t inputs = t.rank == 4 && t.shape[0] == 1 ? tensor_last(t) : n / t.shape[0];
    Rng r = rng_stream(SEED, RNG_TEST, 1000, index);
    for (int64_t i = 0; i < n; i++)
        if (t.rank > 1)
            w[i] = (float)(0.8 / sqrt((double)inputs) * rng_normal(&r));
        else
            w[i] += (float)(0.1 * rng_normal(&r));
}

static Values drawn_weights(Side *s) {
    Values all = side_pull(s, s->params.master);
    for (int64_t i = 0; i < s->params.count; i++) {
        const Param *p = s->params.items[i];
        if (!(p->flags & PARAM_BUFFER)) draw_weights(p, all.v + p->offset, (uint64_t)i);
    }
    return all;
}

static bool is_spoilt(const char *name, const char *weight) {
    if (weight) return strcmp(name, weight) == 0;
    return strcmp(name, "blocks.1.mlp.fc2.weight") == 0 ||
           strcmp(name, "layers.1.blocks.1.mlp.fc2.weight") == 0; /* hierarchical */
}

static void spoil_weight(const Params *params, float *all, const SideOptions *o) {
    int64_t found = 0;
    for (int64_t i = 0; i < params->count; i++) {
        const Param *p = params->items[i];
        if (!is_spoilt(p->name, o->weight)) continue;
        for (int64_t j = 0; j < tensor_count(p->master); j++) all[p->offset + j] *= (float)o->spoil;
        found++;
    }
    if (found == 0 && o->spoil != 1)
        must(status_set(STATUS_USAGE, "no weight %s", o->weight ? o->weight : "to spoil"),
             "spoiling a weight");
}

/* Drawing 90 million weights takes seconds: once per model, the other sides are given them. */
static Status set_weights(Side *s, const SideOptions *o) {
    Values all;
    if (o->weights) {
        all = (Values){o->weights->count, take(o->weights->count, sizeof(float))};
        memcpy(all.v, o->weights->v, (size_t)all.count * sizeof(float));
    } else {
        TRY(params_initialise(&s->params, SEED));
        all = drawn_weights(s);
    }
    spoil_weight(&s->params, all.v, o);
    Status status = device_push(s->d, s->params.master, all.v);
    if (status == STATUS_OK) status = device_sync(s->d);
    values_free(&all);
    return status == STATUS_OK ? params_refresh(&s->params) : status;
}

static Status open_model(Side *s, const VitttConfig *c, const SideOptions *o) {
    const AdamWOptions recipe = {0.9f, 0.999f, 1e-8f, 0.05f, 5.0f, 0};
    VitttConfig config = *c;
    config.form = o->form;
    params_init(&s->params, s->d);
    TRY(vittt_new(&config, &s->params, &s->model));
    TRY(params_build(&s->params, o->act, true));
    TRY(set_weights(s, o));
    TRY(adamw_init(&s->optim, &s->params, recipe));
    TRY(ema_init(&s->ema, &s->params, 0.9f));
    s->optim.ema = &s->ema;
    TRY(tape_new(s->d, &s->tape));
    tape_set_act(s->tape, o->act);
    return STATUS_OK;
}

static Status open_batch(Side *s) {
    const int64_t b = s->batch, size = s->model->config.image_size,
                  classes = s->model->config.classes;
    Arena *a = &s->d->state;
    TRY(arena_tensor(a, DTYPE_U8, 4, (int64_t[]){b, size, size, 3}, &s->pixels));
    TRY(arena_tensor(a, DTYPE_I32, 2, (int64_t[]){b, MIX_NUMBERS}, &s->samples));
    TRY(arena_tensor(a, DTYPE_F32, 1, (int64_t[]){MIX_NUMBERS}, &s->mix));
    TRY(arena_tensor(a, DTYPE_F32, 2, (int64_t[]){b, classes}, &s->targets));
    s->host_pixels = take(b * size * size * 3, 1);
    s->host_samples = take(b * MIX_NUMBERS, sizeof(int32_t));
    s->host_targets = take(b * classes, sizeof(float));
    s->losses = take(s->steps, sizeof(double));
    return STATUS_OK;
}

Side *side_open(const VitttConfig *c, int64_t batch, int64_t steps, const SideOptions *o) {
    Side *s = take(1, sizeof *s);
    s->batch = batch;
    s->steps = steps;
    must(device_open(o->device, &s->d), "opening the device");
    s->d->allow_tf32 = o->tf32;
    must(open_model(s, c, o), "building the model");
    must(open_batch(s), "taking a batch");
    return s;
}

void side_close(Side *s) {
    tape_free(s->tape);
    vittt_free(s->model);
    params_free(&s->params);
    device_close(s->d);
    free(s->host_pixels);
    free(s->host_samples);
    free(s->host_targets);
    free(s->losses);
    free(s);
}

/* ---- running ---------------------------------------------------------------------------- */

/* A pass moves the statistics of batch norms; they are put back. */
void side_pass(Side *s, Values *logits, Values *gradients, double *value) {
    float host;
    Values before = side_pull(s, s->params.master);
    must(push(s, 0, 0), "pushing a batch");
    must(device_commit(s->d), "pushing a batch");
    params_begin_step(&s->params);
    tape_reset(s->tape, true);
    Var *out = forward(s, s->tape, s->batch), *l = cross_entropy(s, s->tape, out, s->batch);
    must(tape_status(s->tape), "forward");
    *logits = side_pull(s, out->value);
    must(device_pull(s->d, &host, l->value), "reading the loss");
    *value = host;
    must(tape_backward(s->tape, l, 1.0f), "backward");
    must(params_finish_grads(&s->params), "backward");
    *gradients = side_pull(s, s->params.grad);
    must(device_push(s->d, s->params.master, before.v), "putting statistics back");
    must(device_sync(s->d), "putting statistics back");
    values_free(&before);
}

/* Pictures beyond the first few are those again. */
static Tensor side_pictures(Side *s, int64_t batch) {
    enum { DRAWN = 8 };
    const int64_t size = s->model->config.image_size, picture = size * size * 3;
    uint8_t *host = take(batch * picture, 1);
    Tensor out;
    for (int64_t i = 0; i < batch; i++) {
        Rng r = rng_stream(SEED, RNG_TEST, 5000, (uint64_t)i);
        if (i < DRAWN)
            draw_picture(host + i * picture, size, &r);
        else
            memcpy(host + i * picture, host + i % DRAWN * picture, (size_t)picture);
    }
    must(arena_tensor(&s->d->state, DTYPE_U8, 4, (int64_t[]){batch, size, size, 3}, &out),
         "taking pictures");
    must(device_push(s->d, out, host), "pushing pictures");
    must(device_sync(s->d), "pushing pictures");
    free(host);
    return out;
}

/* Layer norms of the model within products, and those that the device promises for so many rows. */
static Folds folds_of(const Side *s, int64_t rows) {
    Folds f = {0, 0};
    for (int64_t i = 0; i < s->model->config.depth; i++) {
        const VitttBlock *b = &s->model->blocks[i];
        const Tensor qkv = b->mixer.qkv_w->value, fc1 = b->fc1_w->value;
        f.done += !tensor_is_none(b->fold1.w) + !tensor_is_none(b->fold2.w);
        if (qkv.dtype != DTYPE_BF16) continue;
        f.promised += device_folds_norms(s->d, rows, qkv.shape[0], qkv.shape[1]) +
                      device_folds_norms(s->d, rows, fc1.shape[0], fc1.shape[1]);
    }
    return f;
}

Values side_scores(Side *s, int64_t batch, bool fold, Folds *folds) {
    static const float mean[3] = {0.485f, 0.456f, 0.406f}, std[3] = {0.229f, 0.224f, 0.225f};
    const Tensor pixels = side_pictures(s, batch);
    const int64_t grid = s->model->config.image_size / s->model->config.patch;
    if (fold) must(vittt_fold(s->model, s->d, batch), "folding norms");
    *folds = folds_of(s, batch * grid * grid);
    tape_reset(s->tape, false);
    Var *patches =
        op_image_normalise(s->tape, pixels, mean, std, vittt_input_patch(&s->model->config));
    Var *out = vittt_forward_patches(s->model, s->tape, patches, grid, grid, false);
    must(tape_status(s->tape), "scoring");
    Values logits = side_pull(s, out->value);
    arena_give(&s->d->state, pixels.data, tensor_bytes(pixels));
    return logits;
}

static void hear(void *user, const TrainEvent *e) {
    Side *s = user;
    if (strcmp(e->kind, "train") == 0) s->losses[e->state.step - 1] = e->loss;
    if (strcmp(e->kind, "skip") == 0) s->losses[e->state.step - 1] = NAN;
}

void side_train(Side *s, const char *folder, int64_t until, bool resume, bool no_graphs) {
    const TrainTask task = {
        .user = s, .begin_epoch = begin_epoch, .next = next, .push = push, .loss = loss};
    const TrainOptions o = {.run_folder = folder,
                            .epochs = 1,
                            .accumulate = 1,
                            .steps_per_epoch = s->steps,
                            .max_steps = until,
                            .schedule = {5e-4, 1e-4, 1e-5, 4, s->steps},
                            .log_interval = 1,
                            .save_interval = 1000,
                            .give_up_after = 1,
                            .no_graphs = no_graphs};
    s->state.seed = SEED;
    if (resume)
        must(checkpoint_resume(folder, "last", &s->params, &s->optim, &s->state), "resuming");
    must(train_run(&task, &o, s->tape, &s->optim, &s->state, hear, s), "training");
}
