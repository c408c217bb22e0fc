/* Task callbacks: see nn/train.h for the contract. */
#include "tools/train_task.h"

#include <string.h>

#include "core/memory.h"
#include "datasets/mix.h"
#include "tools/cli.h"
#include "tools/ranks.h"

/* ---- scoring ---- */

static double top1_of(const Score *s) {
    return 100.0 * (double)s->top1 / (double)s->scored;
}

static Status score_weights(TrainerTask *t, Score *score) {
    return score_all(&t->predictor, t->data->val_loader, dataset_count(t->data->val), t->logits,
                     score, NULL, NULL);
}

/* With the averaged weights in place of the others, which come back whatever happens. */
static Status score_average(TrainerTask *t) {
    char message[1024];
    TRY(ema_swap(t->ema));
    Status s = score_weights(t, &t->ema_score);
    snprintf(message, sizeof message, "%s", status_message());
    TRY(ema_swap(t->ema));
    return s == STATUS_OK ? s : status_set(s, "%s", message);
}

static void record_average(TrainerTask *t, double *metric, JsonWriter *record) {
    const Score *s = &t->ema_score;
    const double top1 = top1_of(s);
    json_pair_number(record, "ema_loss", s->loss_sum / (double)s->scored);
    json_pair_number(record, "ema_top1", top1);
    json_pair_number(record, "ema_top5", 100.0 * (double)s->top5 / (double)s->scored);
    snprintf(t->top1_raw, sizeof t->top1_raw, "%.6f", *metric);
    snprintf(t->top1_ema, sizeof t->top1_ema, "%.6f", top1);
    if (top1 > *metric) *metric = top1;
}

static Status validate(void *user, int64_t step, double *metric, JsonWriter *record) {
    TrainerTask *t = user;
    TRY(score_weights(t, &t->score));
    if (t->ema) TRY(score_average(t));
    t->scored_step = step;
    const Score *s = &t->score;
    double n = (double)s->scored;
    *metric = top1_of(s);
    json_pair_number(record, "val_loss", s->loss_sum / n);
    json_pair_number(record, "top1", *metric);
    json_pair_number(record, "top5", 100.0 * (double)s->top5 / n);
    json_pair_int(record, "scored", s->scored);
    json_pair_int(record, "left_out", s->left_out);
    if (t->ema) record_average(t, metric, record);
    return STATUS_OK;
}

/* ---- batches ---- */

static Status begin_epoch(void *user, int64_t epoch, int64_t cursor) {
    TrainerTask *t = user;
    t->epoch = epoch;
    t->batch_index = cursor / settings.loader.batch_size - 1;
    if (t->fixed_pixels) {
        t->fixed_served = cursor / settings.loader.batch_size;
        return STATUS_OK;
    }
    return loader_begin(t->data->train_loader, epoch, cursor);
}

static Status next_batch(void *user, int64_t *samples) {
    TrainerTask *t = user;
    if (!t->fixed_pixels)
        TRY(loader_next(t->data->train_loader, &t->batch));
    else if (t->fixed_served++ >= loader_batches(t->data->train_loader))
        return STATUS_END;
    *samples += t->batch.count;
    t->batch_index++;
    return STATUS_OK;
}

/* What is done on the device in this epoch. --no-aug: pictures as evaluation sees them. */
static Augment device_augment(const TrainerTask *t) {
    if (!settings.train.augment) return (Augment){0};
    Augment a = settings.augment;
    if (augment_flips_first(&a)) a.flip = 0; /* the loader did */
    if (a.mixup_off_epoch > 0 && t->epoch >= a.mixup_off_epoch) a.mixup_prob = 0;
    return a;
}

/* What happens to the pictures of the batch, and the targets that follow from it. */
static void draw_batch(const TrainerTask *t, float mix[MIX_NUMBERS]) {
    const int64_t size = t->model->preprocess.image_size;
    const uint64_t seed = (uint64_t)settings.train.seed, epoch = (uint64_t)t->epoch;
    const HostBatch *b = &t->batch;
    const Augment a = device_augment(t);
    Rng rng = rng_stream(seed, RNG_MIX, epoch, (uint64_t)t->batch_index);
    const BatchMix batch = batch_mix_draw(&a, size, &rng);
    batch_mix_write(&batch, mix);
    mix_targets(t->target_rows, b->labels, b->count, t->model->config.classes,
                settings.train.smoothing, batch.target);
    for (int64_t i = 0; i < b->count; i++) {
        rng = rng_stream(seed, RNG_PREPARE, epoch, (uint64_t)b->samples[i]);
        const SampleMix sample = sample_mix_draw(&a, size, &rng);
        sample_mix_write(&sample, t->sample_rows + i * MIX_NUMBERS);
    }
}

static Tensor pixels_of(const TrainerTask *t, int64_t count) {
    const int64_t size = t->model->preprocess.image_size;
    return tensor_4d(t->pixels.data, DTYPE_U8, count, size, size, 3);
}

static Tensor targets_of(const TrainerTask *t, int64_t count) {
    return tensor_2d(t->targets.data, DTYPE_F32, count, t->model->config.classes);
}

static Tensor samples_of(const TrainerTask *t, int64_t count) {
    return tensor_2d(t->samples.data, DTYPE_I32, count, MIX_NUMBERS);
}

static Status push_batch(void *user, int64_t step, int64_t micro) {
    TrainerTask *t = user;
    Model *m = t->model;
    const int64_t count = t->batch.count;
    float mix[MIX_NUMBERS];
    if (t->on_micro_step) t->on_micro_step(t->on_micro_step_user, step);
    draw_batch(t, mix);
    TRY(device_stage(m->device, pixels_of(t, count), t->batch.pixels));
    TRY(device_stage(m->device, samples_of(t, count), t->sample_rows));
    TRY(device_stage(m->device, t->mix, mix));
    TRY(device_stage(m->device, targets_of(t, count), t->target_rows));
    return vittt_stage_drop_path(m->vittt, m->device, (uint64_t)settings.train.seed, step, micro,
                                 count);
}

/* Whether this epoch's steps have a teacher. */
static int64_t loss_form(void *user) {
    const TrainerTask *t = user;
    return t->teacher && t->epoch >= t->teacher->from_epoch;
}

static Var *loss(void *user, Tape *tape, int64_t batch) {
    TrainerTask *t = user;
    float mean[3], std[3];
    for (int i = 0; i < 3; i++) {
        mean[i] = (float)t->model->preprocess.mean[i];
        std[i] = (float)t->model->preprocess.std[i];
    }
    const int64_t patch = vittt_input_patch(&t->model->config);
    const int64_t side = t->model->preprocess.image_size / t->model->config.patch;
    Var *patches =
        op_image_prepare(tape, pixels_of(t, batch), samples_of(t, batch), t->mix, mean, std, patch);
    Var *logits = vittt_forward_patches(t->model->vittt, tape, patches, side, side, true);
    Tensor targets = targets_of(t, batch);
    /* A plan is of the most that a step may take. */
    if (t->teacher && (loss_form(t) > 0 || tape_device(tape)->kind == DEVICE_DRY))
        targets = teacher_targets(t->teacher, tape, patches, side, targets);
    return op_cross_entropy(tape, logits, targets);
}

static const char *batch_name(void *user, int64_t i) {
    TrainerTask *t = user;
    return i < t->batch.count ? dataset_name(t->data->train, t->batch.samples[i]) : NULL;
}

static double wait_seconds(void *user) {
    TrainerTask *t = user;
    return loader_wait_seconds(t->data->train_loader);
}

TrainTask trainer_task_callbacks(TrainerTask *t) {
    return (TrainTask){.user = t,
                       .begin_epoch = begin_epoch,
                       .next = next_batch,
                       .push = push_batch,
                       .loss = loss,
                       .loss_form = loss_form,
                       .validate = t->data->val ? validate : NULL,
                       .batch_name = batch_name,
                       .wait_seconds = wait_seconds};
}

/* ---- set-up ---- */

static Status copy_block(void **out, const void *src, int64_t count, size_t size) {
    TRY(mem_alloc(out, count, size, "the batch to overfit"));
    memcpy(*out, src, (size_t)count * size);
    return STATUS_OK;
}

static Status fix_first_batch(TrainerTask *t) {
    const int64_t size = t->model->preprocess.image_size;
    HostBatch b;
    void *block;
    TRY(loader_begin(t->data->train_loader, 0, 0));
    TRY(loader_next(t->data->train_loader, &b));
    TRY(copy_block(&block, b.labels, b.count, sizeof(int64_t)));
    t->fixed_labels = block;
    TRY(copy_block(&block, b.samples, b.count, sizeof(int64_t)));
    t->fixed_samples = block;
    TRY(copy_block(&block, b.valid, b.count, 1));
    t->fixed_valid = block;
    TRY(copy_block(&block, b.pixels, b.count * size * size * 3, 1));
    t->fixed_pixels = block;
    t->batch =
        (HostBatch){t->fixed_pixels, t->fixed_labels, t->fixed_samples, t->fixed_valid, b.count};
    return STATUS_OK;
}

static Status init(TrainerTask *t) {
    Device *d = t->model->device;
    const int64_t batch = ranks_batch_of(settings.loader.batch_size);
    const int64_t size = t->model->preprocess.image_size;
    const int64_t classes = t->model->config.classes;
    void *block;
    TRY(arena_tensor(&d->weights, DTYPE_U8, 4, (int64_t[]){batch, size, size, 3}, &t->pixels));
    TRY(arena_tensor(&d->weights, DTYPE_F32, 2, (int64_t[]){batch, classes}, &t->targets));
    TRY(arena_tensor(&d->weights, DTYPE_I32, 2, (int64_t[]){batch, MIX_NUMBERS}, &t->samples));
    TRY(arena_tensor(&d->weights, DTYPE_F32, 1, (int64_t[]){MIX_NUMBERS}, &t->mix));
    TRY(mem_alloc(&block, batch * MIX_NUMBERS, sizeof(int32_t), "draws of a batch"));
    t->sample_rows = block;
    TRY(mem_alloc(&block, batch * classes, sizeof(float), "targets"));
    t->target_rows = block;
    TRY(mem_alloc(&block, batch * classes, sizeof(float), "logits"));
    t->logits = block;
    if (t->data->val) TRY(predictor_open(&t->predictor, t->model, batch));
    return settings.train.overfit_batch ? fix_first_batch(t) : STATUS_OK;
}

Status trainer_task_init(TrainerTask *t, Model *m, TrainData *d) {
    *t = (TrainerTask){.model = m, .data = d, .scored_step = -1};
    m->vittt->shard = ranks_shard();
    strcpy(t->top1_raw, "nan");
    strcpy(t->top1_ema, "nan");
    Status s = init(t);
    if (s != STATUS_OK) trainer_task_free(t);
    return s;
}

void trainer_task_free(TrainerTask *t) {
    predictor_close(&t->predictor);
    mem_free(t->target_rows);
    mem_free(t->sample_rows);
    mem_free(t->logits);
    mem_free(t->fixed_pixels);
    mem_free(t->fixed_labels);
    mem_free(t->fixed_samples);
    mem_free(t->fixed_valid);
    *t = (TrainerTask){0};
}
