/* ttv nvs train: LaCT-NVS on posed scenes by the recipe of lact_nvs.md 7. */
#include <math.h>
#include <stdio.h>
#include <string.h>

#include "core/file.h"
#include "core/memory.h"
#include "tools/cli.h"
#include "tools/nvs_task.h"
#include "tools/run_resume.h"

/* What a resumed run takes over from its config.ini. */
static const char inherited[] =
    "nvs_model scenes nvs_train run common.device common.precision -nvs_train.max_steps "
    "-nvs_train.time_limit_s -run.output -run.resume -run.exist_ok -run.dry_run";

static const Section *sections(int *count) {
    static Section list[4];
    *count = sections_fill(list, 4, "nvs_model scenes nvs_train run");
    return list;
}

typedef struct NvsTrainer {
    Config *config;
    NvsModel model;
    NvsData data;
    NvsTask task;
    AdamW optim;
    Tape *tape;
    RunFolder run;
    TrainState state;
    TrainOptions options;
    SafeMeta meta[3];
    char *config_text, *pictures;
    bool resuming;
} NvsTrainer;

static Status plan(NvsTrainer *t) {
    const NvsTrainConfig *c = &nvs_settings.train;
    TrainOptions *o = &t->options;
    if (c->warmup_steps >= c->steps)
        return status_set(STATUS_USAGE, "--warmup-steps %lld must be less than --steps %lld",
                          (long long)c->warmup_steps, (long long)c->steps);
    *o = (TrainOptions){.epochs = 1,
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
                        .save_interval = settings.run.save_every,
                        .save_minutes = settings.run.save_minutes,
                        .keep = (int)settings.run.checkpoint_hist,
                        .give_up_after = (int)c->give_up_after};
    t->meta[0] = (SafeMeta){"format", "pt"}; /* what loaders of other tools look for */
    t->meta[1] = (SafeMeta){"ttv.model", "lact_nvs"};
    t->meta[2] = (SafeMeta){"ttv.config", t->config_text};
    o->meta = t->meta;
    o->meta_count = 3;
    return STATUS_OK;
}

/* The data comes before the large allocations: it is the likeliest to be wrong. */
static Status prepare(NvsTrainer *t) {
    const NvsTrainConfig *c = &nvs_settings.train;
    TRY(lact_nvs_config_resolve(&nvs_settings.model, t->config));
    TRY(nvs_data_open(&t->data, nvs_settings.model.height, nvs_settings.model.view_width));
    TRY(nvs_model_create(&t->model, t->config, (uint64_t)c->seed));
    TRY(adamw_init(&t->optim, &t->model.params,
                   (AdamWOptions){(float)c->beta1, (float)c->beta2, (float)c->eps,
                                  (float)c->weight_decay, (float)c->clip_grad,
                                  (float)c->skip_norm}));
    TRY(nvs_task_init(&t->task, &t->model, &t->data));
    TRY(nvs_model_config_text(&t->model, &t->config_text));
    return plan(t);
}

static void print_plan(const NvsTrainer *t) {
    const LactNvsConfig *m = &t->model.config;
    const NvsTrainConfig *c = &nvs_settings.train;
    note("model %s: views %lldx%lld, patch %lld, width %lld, layers %lld, variant %s; %lld "
         "parameters",
         m->preset, (long long)m->view_width, (long long)m->height, (long long)m->patch,
         (long long)m->width, (long long)m->layers, m->variant, (long long)t->model.params.total);
    nvs_data_print(&t->data);
    note("plan: %lld steps of %lld x %lld samples, %lld + %lld views, lr %.3g after %lld warm-up "
         "steps, cosine to 0, seed %lld",
         (long long)c->steps, (long long)c->grad_accum_steps, (long long)c->batch_size,
         (long long)nvs_settings.scenes.inputs, (long long)nvs_settings.scenes.targets, c->lr,
         (long long)c->warmup_steps, (long long)c->seed);
    note("gradients are clipped to norm %g; steps are skipped when their norm is above %g or not "
         "finite",
         c->clip_grad, c->skip_norm > 0 ? c->skip_norm : INFINITY);
    note("device %s (%s), activations %s", common.device, t->model.device->name,
         dtype_name(t->model.act));
}

/* The folder comes last, so that a mistake leaves no empty one behind. */
static Status open_folder(NvsTrainer *t) {
    const uint64_t seed = (uint64_t)nvs_settings.train.seed;
    t->state.seed = seed;
    t->state.best_metric = NAN;
    if (t->resuming) {
        TRY(checkpoint_resume(t->run.path, "last", &t->model.params, &t->optim, &t->state));
        if (t->state.seed != seed)
            return status_set(
                STATUS_USAGE, "%s began with seed %llu: it cannot go on with --seed %llu",
                t->run.path, (unsigned long long)t->state.seed, (unsigned long long)seed);
    } else {
        TRY(run_folder_create(&t->run, settings.run.output, settings.run.exist_ok));
    }
    t->options.run_folder = t->run.path;
    TRY(path_join(&t->pictures, t->run.path, "pictures"));
    t->task.pictures = t->pictures;
    TRY(run_folder_start(&t->run, t->resuming ? t->state.step : -1));
    return run_folder_write_config(&t->run, t->config);
}

static void on_event(void *user, const TrainEvent *e) {
    NvsTrainer *t = user;
    run_folder_event(&t->run, e, NULL, NULL);
    if (strcmp(e->kind, "train") == 0)
        progress_line(0, "step %lld/%lld loss %.5f lr %.2e %.1f samples/s",
                      (long long)e->state.step, (long long)nvs_settings.train.steps, e->loss, e->lr,
                      e->samples_per_s);
    if (strcmp(e->kind, "validate") == 0)
        note("step %lld: PSNR %.3f dB on %lld scenes%s", (long long)e->state.step, t->task.psnr,
             (long long)t->task.scored, t->task.failed ? " (some failed)" : "");
}

static Status train(NvsTrainer *t) {
    TRY(tape_new(t->model.device, &t->tape));
    tape_set_act(t->tape, t->model.act);
    print_plan(t);
    if (t->resuming)
        note("continuing %s at step %lld", t->run.path, (long long)t->state.step);
    else
        note("run folder %s", t->run.path);
    TrainTask task = nvs_task_callbacks(&t->task);
    signals_catch(train_request_stop);
    Status s = train_run(&task, &t->options, t->tape, &t->optim, &t->state, on_event, t);
    progress_end();
    nvs_data_print_failures(&t->data);
    if (t->state.skipped > 0)
        note("%lld steps were skipped: gradient norm too large or not finite",
             (long long)t->state.skipped);
    return s;
}

static int print_json(const NvsTrainer *t) {
    JsonWriter w;
    json_writer_init(&w);
    json_begin_object(&w);
    json_pair_string(&w, "run", t->run.path);
    json_pair_int(&w, "step", t->state.step);
    json_pair_int(&w, "skipped", t->state.skipped);
    json_pair_number(&w, "best_psnr", t->state.best_metric);
    json_pair_int(&w, "best_step", t->state.best_step);
    if (t->task.scored > 0) json_pair_number(&w, "psnr", t->task.psnr);
    json_end_object(&w);
    Status s = w.status;
    if (s == STATUS_OK) out_printf("%s\n", w.text);
    json_writer_free(&w);
    return s == STATUS_OK ? 0 : cli_fail(s);
}

static int print_result(const NvsTrainer *t) {
    if (common.json) return print_json(t);
    out_printf("trained to step %lld", (long long)t->state.step);
    if (t->task.scored > 0)
        out_printf(", PSNR %.3f dB on %lld scenes", t->task.psnr, (long long)t->task.scored);
    if (isfinite(t->state.best_metric) && t->state.best_step > 0)
        out_printf("; best %.3f dB at step %lld", t->state.best_metric,
                   (long long)t->state.best_step);
    out_text("; run folder ");
    out_path(t->run.path);
    out_text("\n");
    return 0;
}

static int finish(NvsTrainer *t, Status s) {
    const int signal_code = signals_exit_code();
    if (s == STATUS_STOPPED || (s == STATUS_OK && signal_code != 0)) {
        note("stopped and saved at step %lld; continue with: ttv nvs train --resume '%s'",
             (long long)t->state.step, t->run.path);
        return signal_code ? signal_code : status_exit_code(STATUS_STOPPED);
    }
    if (s != STATUS_OK) return cli_fail(s);
    const int code = print_result(t);
    if (t->run.status == STATUS_OK) return code;
    complain("%s: the metrics files are incomplete", t->run.path);
    return status_exit_code(t->run.status);
}

static void trainer_free(NvsTrainer *t) {
    nvs_task_free(&t->task);
    if (t->tape) tape_free(t->tape);
    nvs_data_close(&t->data);
    nvs_model_close(&t->model);
    run_folder_close(&t->run);
    mem_free(t->config_text);
    mem_free(t->pictures);
}

static int run(Config *config, int argc, char **argv) {
    if (argc > 0) return cli_usage(&command_nvs_train, "unexpected argument '%s'", argv[0]);
    NvsTrainer t = {.config = config, .run = {.lock = -1}};
    int code = 0;
    Status s = run_resume_find(&t.run, config, inherited, &t.resuming);
    if (s == STATUS_OK) s = prepare(&t);
    if (s == STATUS_OK && settings.run.dry_run) {
        print_plan(&t);
        note("dry run: nothing was written");
    } else {
        if (s == STATUS_OK) s = open_folder(&t);
        if (s == STATUS_OK) s = train(&t);
        code = finish(&t, s);
    }
    trainer_free(&t);
    return code;
}

const Command command_nvs_train = {
    .name = "nvs train",
    .summary = "train LaCT-NVS: new views of posed scenes",
    .synopsis = "ttv nvs train [flags]",
    .examples = "  ttv nvs train --data-dir re10k -o runs/re10k\n"
                "  ttv nvs train --resume runs/re10k\n",
    .letters = "b=batch-size j=workers o=output m=nvs-model",
    .sections = sections,
    .run = run,
};
