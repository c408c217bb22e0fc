/* What the training loop tells the outside. */
#include <math.h>
#include <stdio.h>
#include <string.h>

#include "core/clock.h"
#include "core/json.h"
#include "core/memory.h"
#include "nn/train_loop.h"

void window_reset(Loop *l) {
    memset(&l->window, 0, sizeof l->window);
    l->window.start_s = seconds_now();
    if (l->task->wait_seconds)
        l->task->wait_seconds(l->task->user); /* forget waits outside of it */
}

static double mean(double sum, int64_t count) {
    return count > 0 ? sum / (double)count : NAN;
}

static TrainEvent event_new(const Loop *l, const char *kind) {
    TrainEvent e = {.kind = kind, .state = *l->state, .total_steps = l->total_steps};
    e.loss = l->loss;
    e.lr = l->lr;
    e.grad_norm = l->grad_norm;
    e.metric = l->metric;
    e.seconds = seconds_now() - l->start_s;
    return e;
}

static void record_begin(JsonWriter *w, const TrainEvent *e) {
    json_writer_init(w);
    json_begin_object(w);
    json_pair_string(w, "kind", e->kind);
    json_pair_int(w, "step", e->state.step);
    json_pair_int(w, "epoch", e->state.epoch);
}

static Status record_finish(Loop *l, JsonWriter *w, TrainEvent *e) {
    json_pair_number(w, "seconds", e->seconds);
    json_end_object(w);
    Status s = w->status;
    e->record = w->text;
    if (s == STATUS_OK && l->listener) l->listener(l->listener_user, e);
    json_writer_free(w);
    return s;
}

Status record_train(Loop *l) {
    TrainEvent e = event_new(l, "train");
    const Window *window = &l->window;
    double wait = l->task->wait_seconds ? l->task->wait_seconds(l->task->user) : 0.0;
    double span = seconds_now() - window->start_s;
    e.loss = mean(window->loss_sum, window->losses);
    e.samples_per_s = span > 0.0 ? (double)window->samples / span : 0.0;
    e.wait_share = span > 0.0 ? wait / span : 0.0;
    e.step_ms = 1e3 * mean(span, window->steps);
    JsonWriter w;
    record_begin(&w, &e);
    json_pair_number(&w, "loss", e.loss);
    json_pair_number(&w, "step_loss", l->loss);
    json_pair_number(&w, "epoch_loss", mean(e.state.loss_sum, e.state.loss_count));
    json_pair_number(&w, "lr", e.lr);
    json_pair_number(&w, "grad_norm", e.grad_norm);
    json_pair_number(&w, "samples_per_s", e.samples_per_s);
    json_pair_number(&w, "wait_share", e.wait_share);
    json_pair_number(&w, "step_ms", e.step_ms);
    json_pair_int(&w, "skipped", e.state.skipped);
    json_pair_int(&w, "growths", tape_growths(l->tape));
    json_pair_int(&w, "step_memory_bytes", (int64_t)tape_device(l->tape)->step.peak);
    Status s = record_finish(l, &w, &e);
    window_reset(l);
    return s;
}

Status record_skip(Loop *l) {
    TrainEvent e = event_new(l, "skip");
    JsonWriter w;
    record_begin(&w, &e);
    json_pair_number(&w, "loss", e.loss);
    json_pair_number(&w, "grad_norm", e.grad_norm);
    json_pair_int(&w, "skipped", e.state.skipped);
    json_pair_int(&w, "skipped_row", e.state.skipped_row);
    json_key(&w, "names");
    json_begin_array(&w);
    const char *name = l->names.text;
    for (int64_t i = 0; i < l->names.count; i++, name += strlen(name) + 1) json_string(&w, name);
    json_end_array(&w);
    return record_finish(l, &w, &e);
}

Status record_save(Loop *l, double seconds) {
    TrainEvent e = event_new(l, "save");
    JsonWriter w;
    record_begin(&w, &e);
    json_pair_number(&w, "metric", e.metric);
    json_pair_number(&w, "save_seconds", seconds);
    return record_finish(l, &w, &e);
}

Status record_end(Loop *l, const char *reason) {
    TrainEvent e = event_new(l, "end");
    JsonWriter w;
    record_begin(&w, &e);
    json_pair_string(&w, "reason", reason);
    json_pair_number(&w, "best_metric", e.state.best_metric);
    json_pair_int(&w, "best_step", e.state.best_step);
    json_pair_int(&w, "skipped", e.state.skipped);
    return record_finish(l, &w, &e);
}

/* With averaged weights in place of the trained ones, when that is asked for. */
static Status task_validate(Loop *l, double *metric, JsonWriter *w) {
    const TrainTask *task = l->task;
    Ema *ema = l->options->validate_ema ? l->optim->ema : NULL;
    if (!ema) return task->validate(task->user, l->state->step, metric, w);
    TRY(ema_swap(ema));
    Status s = task->validate(task->user, l->state->step, metric, w);
    char message[1024];
    snprintf(message, sizeof message, "%s", status_message());
    TRY(ema_swap(ema));
    return s == STATUS_OK ? s : status_set(s, "%s", message);
}

Status record_validate(Loop *l) {
    TrainEvent e = event_new(l, "validate");
    double metric = NAN, start = seconds_now();
    JsonWriter w;
    record_begin(&w, &e);
    Status s = task_validate(l, &metric, &w);
    if (s != STATUS_OK) {
        json_writer_free(&w);
        return s;
    }
    TrainState *state = l->state;
    l->metric = metric;
    l->is_best = !isnan(metric) && (isnan(state->best_metric) || metric > state->best_metric);
    l->older_best_metric = state->best_metric;
    l->older_best_step = state->best_step;
    state->validated_step = state->step;
    if (l->is_best) {
        state->best_metric = metric;
        state->best_step = state->step;
    }
    e.state = *state;
    e.metric = metric;
    e.seconds = seconds_now() - l->start_s;
    json_pair_number(&w, "metric", metric);
    json_pair_bool(&w, "best", l->is_best);
    json_pair_number(&w, "validate_seconds", seconds_now() - start);
    return record_finish(l, &w, &e);
}
