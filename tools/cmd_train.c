/* ttv train: everything that can be wrong with data, labels, sizes and disk is found before step 1;
 * then the loop of nn/train.h runs with the task of train_task.h. */
#include "tools/trainer.h"

#include <math.h>
#include <string.h>

#include "core/memory.h"
#include "tools/cli.h"
#include "tools/ranks.h"
#include "tools/run_resume.h"

static const Section *train_sections(int *count) {
    static Section list[9];
    *count = sections_fill(list, 9, "model data preprocess augment loader optim train run dist");
    return list;
}

/* The image count is compared at a resume. The scores of weights and average are what they are when
 * a checkpoint is written: --weights auto reads them (model_io.h). */
static Status add_run_meta(Trainer *t) {
    char number[32], *copy;
    ModelMeta *m = &t->meta;
    snprintf(number, sizeof number, "%lld", (long long)dataset_count(t->data.train));
    TRY(mem_string(&copy, number));
    m->items[m->count] = (SafeMeta){"ttv.train_images", copy};
    m->owned[m->count++] = copy;
    if (!t->optim.ema) return STATUS_OK;
    m->items[m->count++] = (SafeMeta){"ttv.top1_raw", t->task.top1_raw};
    m->items[m->count++] = (SafeMeta){"ttv.top1_ema", t->task.top1_ema};
    return STATUS_OK;
}

static AdamWOptions adamw_options(void) {
    const OptimConfig *o = &settings.optim;
    return (AdamWOptions){(float)o->beta1,        (float)o->beta2,     (float)o->eps,
                          (float)o->weight_decay, (float)o->clip_grad, 0.0f};
}

/* --matrices muon */
static Status choose_muon(Trainer *t) {
    if (settings.optim.matrices != 1) return STATUS_OK;
    TRY(muon_init(&t->muon, &t->model.params, (float)settings.optim.muon_momentum));
    t->optim.muon = &t->muon;
    return STATUS_OK;
}

/* --model-ema: starts from the weights of now. */
static Status average_weights(Trainer *t) {
    if (!settings.train.model_ema) return STATUS_OK;
    TRY(ema_init(&t->ema, &t->model.params, (float)settings.train.model_ema_decay));
    t->optim.ema = &t->ema;
    return STATUS_OK;
}

/* --mesa */
static Status open_teacher(Trainer *t) {
    const TrainConfig *c = &settings.train;
    if (c->mesa <= 0) return STATUS_OK;
    if (!t->optim.ema)
        return status_set(STATUS_USAGE,
                          "--mesa learns from averaged weights: it needs --model-ema");
    const int64_t from = (int64_t)(c->mesa_start * (double)c->epochs);
    return teacher_open(&t->teacher, &t->model, &t->ema, c->mesa, from);
}

/* Data first: it is the likeliest to be wrong and tells the number of classes. */
static Status open_data_and_model(Trainer *t) {
    TRY(run_data_context(train_data_open(&t->data)));
    const int64_t classes = t->data.classes.count;
    if (config_is_set(t->config, "model", "classes") && settings.model.classes != classes)
        return status_set(STATUS_DATA, "%s has %lld classes, the model is configured for %lld",
                          settings.data.root, (long long)classes,
                          (long long)settings.model.classes);
    TRY(model_create(&t->model, t->config, classes, true, (uint64_t)settings.train.seed));
    settings.model = t->model.config;
    return class_list_copy(&t->model.classes, &t->data.classes);
}

static Status prepare(Trainer *t) {
    TRY(adamw_init(&t->optim, &t->model.params, adamw_options()));
    TRY(choose_muon(t));
    TRY(trainer_load_initial(t));
    TRY(average_weights(t));
    TRY(open_teacher(t));
    TRY(trainer_plan_memory(t));
    TRY(train_data_load(&t->data, &t->model.preprocess));
    TRY(model_meta(&t->model, &t->meta));
    TRY(add_run_meta(t));
    t->options.meta = t->meta.items;
    t->options.meta_count = t->meta.count;
    TRY(trainer_plan(t));
    return output_is_mine() ? trainer_check_disk(t) : STATUS_OK;
}

/* All ranks fail together: none waits for one that is not there any more. */
static Status prepare_all(Trainer *t) {
    TRY(ranks_agree_all(trainer_find_run(t)));
    TRY(ranks_agree_all(open_data_and_model(t)));
    if (ranks_count() > 1) TRY(comm_open(t->model.device, ranks_peers(), &t->comm));
    t->options.comm = t->comm;
    return ranks_agree_all(prepare(t));
}

/* The folder comes last, so that a mistake leaves no empty one behind. */
static Status open_folder(Trainer *t) {
    t->state.seed = (uint64_t)settings.train.seed;
    t->state.best_metric = NAN;
    if (t->resuming) {
        TRY(trainer_resume(t));
        const int64_t batch = settings.train.overfit_batch ? 1 : settings.loader.batch_size;
        TRY(run_resume_check(&t->options, &t->state, batch, 1));
    } else if (output_is_mine()) {
        TRY(run_folder_check_events(settings.run.tensorboard));
        TRY(run_folder_create(&t->run, settings.run.output, settings.run.exist_ok));
    } else {
        TRY(mem_string(&t->run.path, settings.run.output));
    }
    t->options.run_folder = t->run.path;
    t->run.columns = trainer_columns;
    t->run.tensorboard = settings.run.tensorboard;
    if (!output_is_mine()) return STATUS_OK;
    TRY(run_folder_start(&t->run, t->resuming ? t->state.step : -1));
    return run_folder_write_config(&t->run, t->config);
}

static Status start(Trainer *t) {
    TRY(tape_new(t->model.device, &t->tape));
    tape_set_act(t->tape, t->model.act);
    TRY(trainer_task_init(&t->task, &t->model, &t->data));
    t->task.on_micro_step = trainer_micro_step;
    t->task.on_micro_step_user = t;
    t->task.ema = t->optim.ema;
    t->task.teacher = trainer_teacher(t);
    t->first_step = t->state.step;
    trainer_print_plan(t);
    if (t->resuming)
        note("continuing %s at step %lld (epoch %lld)", t->run.path, (long long)t->state.step,
             (long long)t->state.epoch);
    else
        note("run folder %s", t->run.path);
    return STATUS_OK;
}

static Status train(Trainer *t) {
    TRY(ranks_agree_all(start(t)));
    TrainTask task = trainer_task_callbacks(&t->task);
    signals_catch(train_request_stop);
    Status s = train_run(&task, &t->options, t->tape, &t->optim, &t->state,
                         output_is_mine() ? trainer_event : NULL, t);
    if (s == STATUS_OK || s == STATUS_STOPPED) ranks_wait_saved();
    progress_end();
    report_corrupt("training", t->data.train, t->data.train_loader);
    report_corrupt("validation", t->data.val, t->data.val_loader);
    if (t->state.skipped > 0)
        note("%lld steps were skipped as non-finite", (long long)t->state.skipped);
    return s;
}

static void trainer_free(Trainer *t, bool well) {
    trainer_task_free(&t->task);
    if (t->tape) tape_free(t->tape);
    train_data_close(&t->data); /* its loaders use the model's preprocessing */
    model_meta_free(&t->meta);
    muon_free(&t->muon);
    comm_close(t->comm, well);
    teacher_close(&t->teacher);
    model_close(&t->model);
    run_folder_close(&t->run);
}

static int finish(Trainer *t, Status s) {
    int signal_code = signals_exit_code();
    if (s == STATUS_STOPPED || (s == STATUS_OK && signal_code != 0)) {
        note("stopped and saved at step %lld; continue with: ttv train --resume '%s'",
             (long long)t->state.step, t->run.path);
        return signal_code ? signal_code : status_exit_code(STATUS_STOPPED);
    }
    if (s == STATUS_MEMORY && t->run.path) /* the plan was wrong */
        s = status_context(s,
                           "--batch-size %lld does not fit; try a smaller one with "
                           "--grad-accum-steps",
                           (long long)settings.loader.batch_size);
    if (s != STATUS_OK) return cli_fail(s);
    s = trainer_print_result(t);
    if (s != STATUS_OK) return cli_fail(s);
    if (t->run.status != STATUS_OK) complain("%s: the metrics files are incomplete", t->run.path);
    return status_exit_code(t->run.status);
}

static int run(Config *config, int argc, char **argv) {
    if (argc > 0) return cli_usage(&command_train, "unexpected argument '%s'", argv[0]);
    Trainer t = {.config = config, .run = {.lock = -1}};
    int code;
    if (ranks_launch(&code)) return code;
    Status s = ranks_join();
    if (s == STATUS_OK) s = prepare_all(&t);
    if (s == STATUS_OK && settings.run.dry_run) {
        trainer_print_plan(&t);
        note("dry run: nothing was written");
        if (common.json) s = trainer_plan_json(&t);
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

const Command command_train = {
    .name = "train",
    .aliases = "cls train|vittt train",
    .summary = "train a ViTTT classifier on class folders",
    .synopsis = "ttv train [flags]",
    .examples = "  ttv train -c configs/digits.ini\n"
                "  ttv train -c configs/cifar10.ini -o runs/first --batch-size 256 --epochs 20\n"
                "  ttv train -c configs/cifar10.ini --device cuda:0,1 --batch-size 512\n"
                "  ttv train --resume runs/first\n",
    .letters = "b=batch-size j=workers o=output m=model",
    .sections = train_sections,
    .run = run,
};
