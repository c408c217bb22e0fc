/* What a run will do, worked out and printed before its first step. */
#include "tools/trainer.h"

#include <math.h>
#include <stdio.h>

#include "tools/cli.h"
#include "tools/ranks.h"

/* Learning rates of vittt.md 7: proportional to the images per step. */
static Status plan_schedule(Schedule *s, const Config *config, int64_t steps_per_epoch) {
    const OptimConfig *o = &settings.optim;
    const TrainConfig *c = &settings.train;
    double images = (double)settings.loader.batch_size * (double)c->grad_accum_steps;
    if (o->warmup_epochs >= (double)c->epochs)
        return status_set(
            STATUS_USAGE, "--warmup-epochs %g%s must be less than --epochs %lld", o->warmup_epochs,
            config_is_set(config, "optim", "warmup_epochs") ? "" : " (the default; set it, too)",
            (long long)c->epochs);
    s->base = o->lr > 0 ? o->lr : o->lr_base * images / o->lr_base_size;
    double scale = o->lr_base > 0 ? s->base / o->lr_base : 1;
    s->warmup_start = o->warmup_lr * scale;
    s->floor = o->min_lr * scale;
    s->warmup_steps = (int64_t)llround(o->warmup_epochs * (double)steps_per_epoch);
    s->total_steps = c->epochs * steps_per_epoch;
    return STATUS_OK;
}

/* Steps of so many validations that lie `interval` steps apart. */
static Status patience_in_steps(int64_t patience, double interval, bool validated, int64_t *out) {
    if (patience > 0 && !(validated && interval > 0))
        return status_set(STATUS_USAGE, "--patience needs validations: --val-split, and a "
                                        "--val-interval above 0");
    *out = patience * (int64_t)fmax(1, llround(interval));
    return STATUS_OK;
}

Status trainer_plan(Trainer *t) {
    const TrainConfig *c = &settings.train;
    TrainOptions *o = &t->options;
    o->run_folder = t->run.path;
    o->epochs = c->epochs;
    o->accumulate = c->grad_accum_steps;
    o->steps_per_epoch = loader_batches(t->data.train_loader) / c->grad_accum_steps;
    o->max_steps = c->max_steps;
    o->time_limit_s = c->time_limit_s;
    o->log_interval = c->log_interval;
    o->validate_interval = c->val_interval;
    TRY(patience_in_steps(c->patience, c->val_interval * (double)o->steps_per_epoch,
                          t->data.val != NULL, &o->patience_steps));
    o->save_interval = settings.run.save_every;
    o->save_minutes = settings.run.save_minutes;
    o->keep = (int)settings.run.checkpoint_hist;
    o->give_up_after = (int)c->give_up_after;
    return plan_schedule(&o->schedule, t->config, o->steps_per_epoch);
}

Status trainer_check_disk(const Trainer *t) {
    return run_check_disk(t->run.path ? t->run.path : settings.run.output, &t->model.params,
                          t->optim.ema != NULL);
}

static void print_model(const Trainer *t) {
    const VitttConfig *c = &t->model.config;
    char stem[64] = "";
    if (c->stem_depth > 0)
        snprintf(stem, sizeof stem, "stem %lld x %lld, ", (long long)c->stem_depth,
                 (long long)c->stem_width);
    note("model %s: image %lld, patch %lld, %swidth %lld, depth %lld, heads %lld, mixer %s; %lld "
         "parameters, %.3f GMAC an image",
         c->preset, (long long)c->image_size, (long long)c->patch, stem, (long long)c->width,
         (long long)c->depth, (long long)c->heads, c->mixer, (long long)t->model.params.total,
         (double)vittt_macs(c) / 1e9);
}

static void print_data(const Trainer *t) {
    char text[512];
    preprocess_text(&t->model.preprocess, text, sizeof text);
    note("data %s: %lld training images, %lld classes%s", settings.data.root,
         (long long)dataset_count(t->data.train), (long long)t->data.classes.count,
         t->data.val ? "" : ", no validation");
    if (t->data.val)
        note("validation: %lld images, %s", (long long)dataset_count(t->data.val), text);
}

void trainer_print_plan(const Trainer *t) {
    const TrainOptions *o = &t->options;
    const Device *d = t->model.device;
    print_model(t);
    print_data(t);
    note("plan: %lld epochs of %lld steps, %lld x %lld images a step, lr %.3g after %lld warm-up "
         "steps, "
         "seed %lld",
         (long long)o->epochs, (long long)o->steps_per_epoch, (long long)o->accumulate,
         (long long)settings.loader.batch_size, o->schedule.base,
         (long long)o->schedule.warmup_steps, (long long)settings.train.seed);
    if (ranks_count() > 1)
        note("ranks: %d, %lld images of each micro-step on every one", ranks_count(),
             (long long)ranks_batch_of(settings.loader.batch_size));
    note("device %s (%s), activations %s; a checkpoint takes %.1f MB", common.device, d->name,
         dtype_name(t->model.act),
         (double)run_checkpoint_bytes(&t->model.params, t->optim.ema != NULL) / 1e6);
    trainer_print_memory(t);
}

Status trainer_plan_json(const Trainer *t) {
    const TrainOptions *o = &t->options;
    JsonWriter w;
    json_writer_init(&w);
    json_begin_object(&w);
    json_pair_bool(&w, "dry_run", true);
    json_pair_int(&w, "parameters", t->model.params.total);
    json_pair_int(&w, "macs", vittt_macs(&t->model.config));
    json_pair_int(&w, "training_images", dataset_count(t->data.train));
    json_pair_int(&w, "validation_images", t->data.val ? dataset_count(t->data.val) : 0);
    json_pair_int(&w, "classes", t->data.classes.count);
    json_pair_int(&w, "epochs", o->epochs);
    json_pair_int(&w, "steps_per_epoch", o->steps_per_epoch);
    json_pair_int(&w, "batch_size", settings.loader.batch_size);
    json_pair_int(&w, "grad_accum_steps", o->accumulate);
    json_pair_int(&w, "ranks", ranks_count());
    json_pair_number(&w, "lr", o->schedule.base);
    json_pair_int(&w, "warmup_steps", o->schedule.warmup_steps);
    memory_plan_json(&t->memory, &t->model.params, t->model.device, t->model.act,
                     t->optim.ema ? tensor_bytes(t->ema.average) : 0, &w);
    json_end_object(&w);
    return out_json(&w, STATUS_OK);
}
