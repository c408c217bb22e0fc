/* ttv nvs train: LaCT-NVS on posed scenes by the recipe of lact_nvs.md 7. */
#include <math.h>

#include "core/file.h"
#include "core/memory.h"
#include "tools/cli.h"
#include "tools/nvs_trainer.h"
#include "tools/ranks.h"
#include "tools/run_resume.h"

/* What a resumed run takes over from its config.ini. */
static const char inherited[] =
    "nvs_model scenes nvs_train run common.device common.precision -nvs_train.max_steps "
    "-nvs_train.time_limit_s -run.output -run.resume -run.exist_ok -run.dry_run";

static const Section *sections(int *count) {
    static Section list[5];
    *count = sections_fill(list, 5, "nvs_model scenes nvs_train run dist");
    return list;
}

/* The data comes before the large allocations: it is the likeliest to be wrong. */
static Status open_data_and_model(NvsTrainer *t) {
    const NvsTrainConfig *c = &nvs_settings.train;
    TRY(lact_nvs_config_resolve(&nvs_settings.model, t->config));
    TRY(run_data_context(
        nvs_data_open(&t->data, nvs_settings.model.height, nvs_settings.model.view_width)));
    return nvs_model_create(&t->model, t->config, (uint64_t)c->seed);
}

static Status prepare(NvsTrainer *t) {
    const NvsTrainConfig *c = &nvs_settings.train;
    TRY(adamw_init(&t->optim, &t->model.params,
                   (AdamWOptions){(float)c->beta1, (float)c->beta2, (float)c->eps,
                                  (float)c->weight_decay, (float)c->clip_grad,
                                  (float)c->skip_norm}));
    if (*c->initial_checkpoint && !t->resuming)
        TRY(nvs_model_load(&t->model, c->initial_checkpoint));
    if (c->model_ema) {
        TRY(ema_init(&t->ema, &t->model.params, (float)c->model_ema_decay));
        t->optim.ema = &t->ema;
    }
    TRY(nvs_trainer_check_memory(t));
    TRY(nvs_task_init(&t->task, &t->model, &t->data));
    t->task.ema = t->optim.ema;
    TRY(nvs_model_config_text(&t->model, &t->config_text));
    TRY(nvs_trainer_plan(t));
    return output_is_mine() ? nvs_trainer_check_disk(t) : STATUS_OK;
}

/* All ranks fail together: none waits for one that is not there any more. */
static Status prepare_all(NvsTrainer *t) {
    TRY(ranks_agree_all(run_resume_find(&t->run, t->config, inherited, &t->resuming)));
    TRY(ranks_agree_all(open_data_and_model(t)));
    if (ranks_count() > 1) TRY(comm_open(t->model.device, ranks_peers(), &t->comm));
    return ranks_agree_all(prepare(t));
}

static Status resume(NvsTrainer *t) {
    const NvsTrainConfig *c = &nvs_settings.train;
    TrainState *s = &t->state;
    const uint64_t seed = s->seed;
    TRY(checkpoint_resume(t->run.path, t->run.resumed, &t->model.params, &t->optim, s));
    if (s->seed != seed)
        return status_set(STATUS_USAGE, "%s began with seed %llu: it cannot go on with --seed %llu",
                          t->run.path, (unsigned long long)s->seed, (unsigned long long)seed);
    if (s->step > c->steps)
        return status_set(STATUS_USAGE, "%s stands at step %lld already: --steps is %lld",
                          t->run.path, (long long)s->step, (long long)c->steps);
    if (s->epoch > 0 && s->step < c->steps) { /* it had ended; all of a run is one epoch */
        s->epoch = 0;
        s->cursor = s->step * c->batch_size * c->grad_accum_steps;
    }
    return run_resume_check(&t->options, s, c->batch_size, c->grad_accum_steps);
}

/* The folder comes last, so that a mistake leaves no empty one behind. */
static Status open_folder(NvsTrainer *t) {
    t->state.seed = (uint64_t)nvs_settings.train.seed;
    t->state.best_metric = NAN;
    if (t->resuming) {
        TRY(resume(t));
    } else if (!output_is_mine()) {
        TRY(mem_string(&t->run.path, settings.run.output));
    } else {
        TRY(run_folder_check_events(settings.run.tensorboard));
        TRY(run_folder_create(&t->run, settings.run.output, settings.run.exist_ok));
    }
    t->options.run_folder = t->run.path;
    if (!output_is_mine()) return STATUS_OK;
    TRY(path_join(&t->pictures, t->run.path, "pictures"));
    t->task.pictures = t->pictures;
    t->run.columns = nvs_trainer_columns;
    t->run.tensorboard = settings.run.tensorboard;
    TRY(run_folder_start(&t->run, t->resuming ? t->state.step : -1));
    return run_folder_write_config(&t->run, t->config);
}

static Status train(NvsTrainer *t) {
    TRY(tape_new(t->model.device, &t->tape));
    tape_set_act(t->tape, t->model.act);
    nvs_trainer_print_plan(t);
    if (t->resuming)
        note("continuing %s at step %lld", t->run.path, (long long)t->state.step);
    else
        note("run folder %s", t->run.path);
    TrainTask task = nvs_task_callbacks(&t->task);
    signals_catch(train_request_stop);
    Status s = train_run(&task, &t->options, t->tape, &t->optim, &t->state,
                         output_is_mine() ? nvs_trainer_event : NULL, t);
    if (s == STATUS_OK || s == STATUS_STOPPED) ranks_wait_saved();
    progress_end();
    nvs_data_print_failures(&t->data);
    if (t->state.skipped > 0)
        note("%lld steps were skipped: gradient norm too large or not finite",
             (long long)t->state.skipped);
    return s;
}

static int finish(NvsTrainer *t, Status s) {
    const int signal_code = signals_exit_code();
    if (s == STATUS_STOPPED || (s == STATUS_OK && signal_code != 0)) {
        note("stopped and saved at step %lld; continue with: ttv nvs train --resume '%s'",
             (long long)t->state.step, t->run.path);
        return signal_code ? signal_code : status_exit_code(STATUS_STOPPED);
    }
    if (s == STATUS_MEMORY && t->run.path) /* the plan was wrong */
        s = status_context(s,
                           "--batch-size %lld does not fit; try a smaller one with "
                           "--grad-accum-steps",
                           (long long)nvs_settings.train.batch_size);
    if (s != STATUS_OK) return cli_fail(s);
    s = nvs_trainer_print_result(t);
    if (s != STATUS_OK) return cli_fail(s);
    if (t->run.status == STATUS_OK) return 0;
    complain("%s: the metrics files are incomplete", t->run.path);
    return status_exit_code(t->run.status);
}

static void trainer_free(NvsTrainer *t, bool well) {
    nvs_task_free(&t->task);
    if (t->tape) tape_free(t->tape);
    nvs_data_close(&t->data);
    comm_close(t->comm, well);
    nvs_model_close(&t->model);
    run_folder_close(&t->run);
    mem_free(t->config_text);
    mem_free(t->pictures);
}

static int run(Config *config, int argc, char **argv) {
    if (argc > 0) return cli_usage(&command_nvs_train, "unexpected argument '%s'", argv[0]);
    NvsTrainer t = {.config = config, .run = {.lock = -1}};
    int code = 0;
    if (ranks_launch(&code)) return code;
    Status s = ranks_join();
    if (s == STATUS_OK) s = prepare_all(&t);
    if (s == STATUS_OK && settings.run.dry_run) {
        nvs_trainer_print_plan(&t);
        note("dry run: nothing was written");
        if (common.json) s = nvs_trainer_plan_json(&t);
        code = s == STATUS_OK ? 0 : cli_fail(s);
    } else {
        if (s == STATUS_OK) s = ranks_agree_all(open_folder(&t));
        if (s == STATUS_OK) s = train(&t);
        code = finish(&t, s);
    }
    const bool well = s == STATUS_OK || s == STATUS_STOPPED;
    trainer_free(&t, well);
    ranks_leave(well);
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
