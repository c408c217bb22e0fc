#include "nn/train.h"

#include <inttypes.h>
#include <math.h>
#include <stdatomic.h>
#include <stdio.h>

#include "core/clock.h"
#include "core/file.h"
#include "core/log.h"
#include "core/memory.h"
#include "nn/train_loop.h"

#define SAVE_RETRY_S 60.0

/* ---- stop requests ---------------------------------------------------------------------- */

static atomic_bool stop; /* lock-free, hence safe in a signal handler */

void train_request_stop(void) {
    atomic_store(&stop, true);
}
bool train_stop_requested(void) {
    return atomic_load(&stop);
}
void train_clear_stop(void) {
    atomic_store(&stop, false);
}

/* ---- saving ----------------------------------------------------------------------------- */

static Status save(Loop *l) {
    const TrainOptions *o = l->options;
    double start = seconds_now();
    if (!saves_files(l)) {
        l->saved_step = l->state->step;
        l->saved_s = start;
        l->save_pending = l->is_best = false;
        return STATUS_OK;
    }
    double metric = l->state->validated_step == l->state->step ? l->metric : NAN;
    TRY(checkpoint_save(o->run_folder, l->optim->params, l->optim, l->state, metric, l->is_best,
                        o->keep, o->meta, o->meta_count));
    l->saved_step = l->state->step;
    l->saved_s = seconds_now();
    l->save_pending = l->is_best = false;
    return record_save(l, l->saved_s - start);
}

/* A save in the middle of a run that the disk refuses is no reason to lose the run: it is tried
 * again. The best weights will be gone by then, so they are best no more. */
static Status save_or_retry(Loop *l) {
    Status s = save(l);
    if (s != STATUS_IO) return s;
    log_error("step %" PRId64 " could not be saved, training goes on: %s", l->state->step,
              status_message());
    if (l->is_best) {
        l->state->best_metric = l->older_best_metric;
        l->state->best_step = l->older_best_step;
        l->is_best = false;
    }
    l->save_pending = true;
    l->retry_s = seconds_now() + SAVE_RETRY_S;
    return STATUS_OK;
}

static bool save_is_due(Loop *l) {
    const TrainOptions *o = l->options;
    const TrainState *s = l->state;
    if (l->is_best) return true;
    if (l->saved_step == s->step) return false;
    bool interval = o->save_interval > 0 ? s->step % o->save_interval == 0 : l->epoch_ended;
    bool minutes = o->save_minutes > 0.0 && seconds_now() - l->saved_s >= 60.0 * o->save_minutes;
    if (interval || minutes) l->save_pending = true;
    /* Amid skipped steps the last checkpoint is the better one. */
    return l->save_pending && s->skipped_row == 0 && seconds_now() >= l->retry_s;
}

/* ---- validation ------------------------------------------------------------------------- */

static bool validation_is_due(const Loop *l) {
    const TrainOptions *o = l->options;
    if (o->validate_interval <= 0.0) return false;
    int64_t steps = llround(o->validate_interval * (double)o->steps_per_epoch);
    return l->state->step % (steps > 0 ? steps : 1) == 0;
}

static Status validate(Loop *l) {
    if (!l->task->validate || l->state->validated_step == l->state->step) return STATUS_OK;
    TRY(ranks_share_buffers(l));
    TRY(status_context(record_validate(l), "validation"));
    window_reset(l);
    return STATUS_OK;
}

/* ---- the loop --------------------------------------------------------------------------- */

/* Judged by steps that were validated, so that a resumed run decides alike. */
static bool out_of_patience(const Loop *l) {
    const TrainState *s = l->state;
    const int64_t patience = l->options->patience_steps;
    return patience > 0 && s->best_step > 0 && s->validated_step - s->best_step >= patience;
}

static bool is_finished(const Loop *l) {
    const TrainOptions *o = l->options;
    return l->state->epoch >= o->epochs || (o->max_steps > 0 && l->state->step >= o->max_steps) ||
           out_of_patience(l);
}

/* Between two steps: validation and checkpoint, when due. The end and a stop have their own. */
static Status step_edge(Loop *l) {
    if (is_finished(l) || stop_wanted(l)) return STATUS_OK;
    if (validation_is_due(l)) TRY(validate(l));
    return save_is_due(l) ? save_or_retry(l) : STATUS_OK;
}

static Status after_step(Loop *l) {
    TrainState *s = l->state;
    const TrainOptions *o = l->options;
    bool log = o->log_interval > 0 && s->step % o->log_interval == 0;
    if (log || l->epoch_ended) TRY(record_train(l));
    if (l->epoch_ended) {
        s->epoch++;
        s->cursor = 0;
        s->loss_sum = 0.0;
        s->loss_count = 0;
    }
    return step_edge(l);
}

/* The rest of the epoch. STATUS_STOPPED: a stop was asked for; STATUS_END: finished or out of time.
 */
static Status run_epoch(Loop *l) {
    const TrainTask *task = l->task;
    TrainState *s = l->state;
    int64_t epoch = s->epoch;
    batch_forget(l);
    Status begun =
        status_context(task->begin_epoch(task->user, epoch, s->cursor), "epoch %" PRId64, epoch);
    TRY(peers_agree(comm_peers(l->options->comm), begun));
    while (s->epoch == epoch) {
        if (stop_wanted(l)) return STATUS_STOPPED;
        if (is_finished(l) || time_is_up(l)) return STATUS_END;
        Status e = step_run(l);
        if (e == STATUS_END)
            return status_set(STATUS_DATA,
                              "epoch %" PRId64 " ended after %" PRId64 " of %" PRId64
                              " steps: the data and steps_per_epoch do not agree",
                              epoch, s->step - epoch * l->options->steps_per_epoch,
                              l->options->steps_per_epoch);
        if (e != STATUS_STOPPED) TRY(status_context(e, "step %" PRId64, s->step));
        if (e == STATUS_STOPPED) return e; /* next() gave up its wait: the step did not happen */
        TRY(after_step(l));
    }
    return STATUS_OK;
}

Status train_check(const TrainOptions *o, const TrainState *s) {
    if (o->epochs < 1 || o->steps_per_epoch < 1 || o->accumulate < 1)
        return status_set(STATUS_USAGE,
                          "epochs, steps per epoch and accumulate must be at least 1, not %" PRId64
                          ", %" PRId64 " and %" PRId64,
                          o->epochs, o->steps_per_epoch, o->accumulate);
    int64_t in_epoch = s->step - s->epoch * o->steps_per_epoch;
    if (in_epoch < 0 || in_epoch >= o->steps_per_epoch)
        return status_set(STATUS_USAGE,
                          "the checkpoint stands at step %" PRId64 " in epoch %" PRId64
                          ": with %" PRId64 " steps per epoch that cannot be (another batch size, "
                          "accumulation or data set?)",
                          s->step, s->epoch, o->steps_per_epoch);
    return STATUS_OK;
}

/* Left-overs of processes that were killed. */
static Status clean_folder(const char *run_folder) {
    char *folder;
    int removed, more;
    TRY(path_join(&folder, run_folder, "checkpoints"));
    Status s = file_make_folder(folder);
    if (s == STATUS_OK) s = file_clean_temporaries(run_folder, &removed);
    if (s == STATUS_OK) s = file_clean_temporaries(folder, &more);
    if (s == STATUS_OK && removed + more > 0)
        log_info("%d unfinished files of a killed run were removed", removed + more);
    mem_free(folder);
    return s;
}

static Status start(Loop *l) {
    TrainState *s = l->state;
    TRY(train_check(l->options, s));
    TRY(ranks_init(l));
    if (saves_files(l)) TRY(clean_folder(l->options->run_folder));
    if (s->step == 0) s->best_metric = NAN;
    l->total_steps = l->options->epochs * l->options->steps_per_epoch;
    int64_t max_steps = l->options->max_steps;
    if (max_steps > 0 && max_steps < l->total_steps) l->total_steps = max_steps;
    l->saved_step = s->step > 0 ? s->step : -1;
    l->start_s = l->saved_s = seconds_now();
    l->loss = l->grad_norm = l->metric = NAN;
    window_reset(l);
    return passes_init(l);
}

/* Steps until the run is finished (OK), out of time (END), stopped, or failed. */
static Status run_steps(Loop *l) {
    Status s = l->state->step > 0 ? step_edge(l) : STATUS_OK; /* a validation that a stop cut off */
    while (s == STATUS_OK && !is_finished(l)) s = stop_wanted(l) ? STATUS_STOPPED : run_epoch(l);
    return s;
}

/* The data or the task failed between two steps: what was learnt so far is kept. */
static Status rescue(Loop *l, Status s) {
    char message[1024];
    snprintf(message, sizeof message, "%s", status_message());
    bool intact = s == STATUS_DATA || s == STATUS_IO || s == STATUS_USAGE;
    if (intact && l->saved_step != l->state->step && l->state->skipped_row == 0)
        if (save(l) != STATUS_OK) log_error("the last steps are lost: %s", status_message());
    return status_set(s, "%s", message);
}

static Status run(Loop *l) {
    Status s = run_steps(l);
    if (s != STATUS_OK && s != STATUS_END && s != STATUS_STOPPED) return rescue(l, s);
    if (l->window.steps > 0) TRY(record_train(l));
    if (s != STATUS_STOPPED) s = validate(l);
    if (s != STATUS_OK && s != STATUS_STOPPED) return s;
    if (l->saved_step != l->state->step || l->is_best) TRY(save(l));
    bool stopped = s == STATUS_STOPPED;
    TRY(record_end(l, stopped              ? "stopped"
                      : out_of_patience(l) ? "patience"
                      : is_finished(l)     ? "finished"
                                           : "time limit"));
    if (!stopped) return STATUS_OK;
    return status_set(STATUS_STOPPED, "stopped at step %" PRId64 "; the state is saved in %s",
                      l->state->step, l->options->run_folder);
}

Status train_run(const TrainTask *task, const TrainOptions *o, Tape *t, AdamW *optim,
                 TrainState *state, TrainListener listener, void *listener_user) {
    Loop l = {.task = task,
              .options = o,
              .tape = t,
              .optim = optim,
              .state = state,
              .listener = listener,
              .listener_user = listener_user};
    Status s = start(&l);
    if (s == STATUS_OK) s = run(&l);
    ranks_free(&l);
    passes_free(&l);
    mem_free(l.batch.names.text);
    mem_free(l.names.text);
    return s;
}
