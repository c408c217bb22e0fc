/* One optimiser step: micro-steps, update, the guard against values that are not finite. The host
 * looks at a step's numbers before the next one starts; what it has to prepare for that one is done
 * by then.
 */
#include <inttypes.h>
#include <math.h>

#include "core/log.h"
#include "nn/train_loop.h"

/* The next batch may well have a smaller gradient; values that are not finite seldom heal. */
#define LARGE_NORM_PATIENCE 10

/* All micro-steps; `samples` counts what next() gave. While the device works on one, the next is
 * fetched. */
static Status accumulate(Loop *l, int64_t *samples) {
    int64_t micros = l->options->accumulate;
    *samples = 0;
    l->names.used = l->names.count = 0;
    for (int64_t micro = 0; micro < micros; micro++) {
        int64_t count;
        TRY(batch_take(l, micro, &count));
        if (micro == 0) {
            TRY(passes_plan(l, count));
            passes_begin(l);
        }
        TRY(pass_micro(l, micro, count));
        if (micro + 1 < micros) batch_ahead(l, l->state->step, micro + 1);
        *samples += count;
    }
    return STATUS_OK;
}

/* Waits for the device. */
static Status read_numbers(Loop *l) {
    int64_t micros = l->options->accumulate;
    float norm, clip;
    double sum = 0.0;
    TRY(device_pull(tape_device(l->tape), l->host_losses, l->losses));
    TRY(adamw_report(l->optim, &norm, &clip));
    for (int64_t i = 0; i < micros; i++) sum += l->host_losses[i];
    l->loss = sum / (double)(micros * comm_ranks(l->options->comm));
    l->grad_norm = norm;
    return STATUS_OK;
}

static Status skip(Loop *l) {
    TrainState *s = l->state;
    char names[512];
    s->skipped++;
    s->skipped_row++;
    names_text(&l->names, names, sizeof names);
    if (saves_files(l))
        log_warn("step %" PRId64 " skipped: loss %g, gradient norm %g.%s", s->step, l->loss,
                 l->grad_norm, names);
    TRY(record_skip(l));
    const bool finite = isfinite(l->grad_norm);
    const int64_t limit = (int64_t)l->options->give_up_after * (finite ? LARGE_NORM_PATIENCE : 1);
    if (limit <= 0 || s->skipped_row < limit) return STATUS_OK;
    return status_set(/* the caller names the step */
                      STATUS_NUMERIC,
                      "%s in %" PRId64 " steps in a row; the last good checkpoint is kept.%s",
                      finite ? "the gradient norm was too large"
                             : "loss or gradient norm was not finite",
                      s->skipped_row, names);
}

/* Counts the step as attempted and moves on in the epoch. */
static void advance(Loop *l, int64_t samples) {
    TrainState *s = l->state;
    s->step++;
    s->cursor += samples;
    l->window.steps++;
    l->window.samples += samples;
    l->epoch_ended = s->step == (s->epoch + 1) * l->options->steps_per_epoch;
}

static bool is_last_step(const Loop *l) {
    const TrainState *s = l->state;
    int64_t done = s->step + 1;
    return done == (s->epoch + 1) * l->options->steps_per_epoch || done >= l->total_steps;
}

Status step_run(Loop *l) {
    TrainState *s = l->state;
    int64_t samples;
    l->epoch_ended = false;
    TRY(ranks_agree(l, accumulate(l, &samples)));
    l->lr = schedule_lr(&l->options->schedule, s->step);
    TRY(adamw_set_lr(l->optim, l->lr));
    ranks_wait_begin(l);
    TRY(pass_update(l));
    if (!is_last_step(l)) batch_ahead(l, s->step + 1, 0);
    TRY(read_numbers(l));
    ranks_wait_end(l);
    advance(l, samples * comm_ranks(l->options->comm));
    /* The update has then changed nothing; the schedule goes on. */
    if (adamw_skips(l->optim, (float)l->grad_norm)) return skip(l);
    s->skipped_row = 0;
    s->loss_sum += l->loss;
    s->loss_count++;
    l->window.loss_sum += l->loss;
    l->window.losses++;
    return STATUS_OK;
}
