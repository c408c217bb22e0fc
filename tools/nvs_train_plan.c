/* What a run of `ttv nvs train` will do, worked out and printed before its first step. */
#include <math.h>

#include "tools/cli.h"
#include "tools/nvs_trainer.h"
#include "tools/ranks.h"

enum { SAVE_STEPS = 1000 }; /* between checkpoints when nobody said how many */

static int64_t add_meta(NvsTrainer *t, int64_t count, const char *key, const char *value) {
    t->meta[count] = (SafeMeta){key, value};
    return count + 1;
}

/* The scores of weights and average are what they are when a checkpoint is written: --weights auto
 * reads them (model_io.h). */
static void describe_checkpoints(NvsTrainer *t) {
    int64_t n = add_meta(t, 0, "format", "pt"); /* what loaders of other tools look for */
    n = add_meta(t, n, "ttv.model", "lact_nvs");
    n = add_meta(t, n, "ttv.config", t->config_text);
    if (t->optim.ema) {
        n = add_meta(t, n, "ttv.psnr_raw", t->task.psnr_raw);
        n = add_meta(t, n, "ttv.psnr_ema", t->task.psnr_ema);
    }
    t->options.meta = t->meta;
    t->options.meta_count = n;
}

/* The whole run is one epoch, so "every epoch" would lose all of a run that is killed. */
static int64_t save_interval(void) {
    const int64_t validation = nvs_settings.train.val_interval;
    if (settings.run.save_every > 0) return settings.run.save_every;
    return validation > 0 ? validation : SAVE_STEPS;
}

Status nvs_trainer_plan(NvsTrainer *t) {
    const NvsTrainConfig *c = &nvs_settings.train;
    if (c->warmup_steps >= c->steps)
        return status_set(STATUS_USAGE, "--warmup-steps %lld%s must be less than --steps %lld",
                          (long long)c->warmup_steps,
                          config_is_set(t->config, "nvs_train", "warmup_steps")
                              ? ""
                              : " (the default; set it, too)",
                          (long long)c->steps);
    if (c->patience > 0 && (c->val_interval == 0 || !t->data.val))
        return status_set(STATUS_USAGE, "--patience needs validations: --val-split, and a "
                                        "--val-interval above 0");
    t->options = (TrainOptions){.epochs = 1,
                                .accumulate = c->grad_accum_steps,
                                .steps_per_epoch = c->steps,
                                .max_steps = c->max_steps,
                                .time_limit_s = c->time_limit_s,
                                .schedule = {.base = c->lr,
                                             .warmup_steps = c->warmup_steps,
                                             .total_steps = c->steps,
                                             .after_warmup = true},
                                .log_interval = c->log_interval,
                                .validate_interval = (double)c->val_interval / (double)c->steps,
                                .patience_steps = c->patience * c->val_interval,
                                .save_interval = save_interval(),
                                .save_minutes = settings.run.save_minutes,
                                .keep = (int)settings.run.checkpoint_hist,
                                .give_up_after = (int)c->give_up_after,
                                .comm = t->comm};
    describe_checkpoints(t);
    return STATUS_OK;
}

Status nvs_trainer_check_memory(NvsTrainer *t) {
    int64_t own;
    TRY(ranks_batch(nvs_settings.train.batch_size, false, &own));
    TRY(nvs_task_plan(&t->model, &t->memory));
    return memory_plan_check(&t->memory, t->model.device,
                             t->model.config.recompute ? "" : " (more with --recompute)");
}

Status nvs_trainer_check_disk(const NvsTrainer *t) {
    return run_check_disk(t->run.path ? t->run.path : settings.run.output, &t->model.params,
                          t->optim.ema != NULL);
}

void nvs_trainer_print_plan(const NvsTrainer *t) {
    const LactNvsConfig *m = &t->model.config;
    const NvsTrainConfig *c = &nvs_settings.train;
    note("model %s: views %lldx%lld, patch %lld, width %lld, layers %lld, variant %s; %lld "
         "parameters (%.2f MiB as bf16)",
         m->preset, (long long)m->view_width, (long long)m->height, (long long)m->patch,
         (long long)m->width, (long long)m->layers, m->variant, (long long)t->model.params.total,
         (double)t->model.params.total / 524288.0);
    nvs_data_print(&t->data);
    note("plan: %lld steps of %lld x %lld samples, %lld + %lld views, lr %.3g after %lld warm-up "
         "steps, cosine to 0, seed %lld",
         (long long)c->steps, (long long)c->grad_accum_steps, (long long)c->batch_size,
         (long long)nvs_settings.scenes.inputs, (long long)nvs_settings.scenes.targets, c->lr,
         (long long)c->warmup_steps, (long long)c->seed);
    note("gradients are clipped to norm %g; steps are skipped when their norm is above %g or not "
         "finite",
         c->clip_grad, c->skip_norm > 0 ? c->skip_norm : INFINITY);
    if (ranks_count() > 1)
        note("ranks: %d, %lld samples of each micro-step on every one", ranks_count(),
             (long long)ranks_batch_of(c->batch_size));
    note("device %s (%s), activations %s; a checkpoint takes %.1f MB", common.device,
         t->model.device->name, dtype_name(t->model.act),
         (double)run_checkpoint_bytes(&t->model.params, t->optim.ema != NULL) / 1e6);
    memory_plan_print(&t->memory, t->optim.ema ? tensor_bytes(t->ema.average) : 0, m->recompute);
}

Status nvs_trainer_plan_json(const NvsTrainer *t) {
    const NvsTrainConfig *c = &nvs_settings.train;
    JsonWriter w;
    json_writer_init(&w);
    json_begin_object(&w);
    json_pair_bool(&w, "dry_run", true);
    json_pair_int(&w, "parameters", t->model.params.total);
    json_pair_int(&w, "steps", c->steps);
    json_pair_int(&w, "batch_size", c->batch_size);
    json_pair_int(&w, "grad_accum_steps", c->grad_accum_steps);
    json_pair_int(&w, "inputs", nvs_settings.scenes.inputs);
    json_pair_int(&w, "targets", nvs_settings.scenes.targets);
    json_pair_number(&w, "lr", c->lr);
    json_pair_int(&w, "warmup_steps", c->warmup_steps);
    json_pair_int(&w, "save_interval", t->options.save_interval);
    memory_plan_json(&t->memory, &t->model.params, t->model.device, t->model.act,
                     t->optim.ema ? tensor_bytes(t->ema.average) : 0, &w);
    json_end_object(&w);
    return out_json(&w, STATUS_OK);
}
