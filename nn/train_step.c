/* One optimiser step: micro-steps, the guard against values that are not finite, AdamW. */
#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <string.h>

#include "core/log.h"
#include "core/memory.h"
#include "nn/train_loop.h"

#define NAMES_SHOWN 8

/* ---- names of the samples, for the guard's message -------------------------------------- */

static Status names_add(NameBuffer *b, const char *name) {
    int64_t size = (int64_t)strlen(name) + 1;
    if (b->used + size > b->capacity) {
        int64_t capacity = 2 * (b->used + size);
        void *text = b->text;
        TRY(mem_grow(&text, capacity, 1, "sample names"));
        b->text = text;
        b->capacity = capacity;
    }
    memcpy(b->text + b->used, name, (size_t)size);
    b->used += size;
    b->count++;
    return STATUS_OK;
}

/* Names are copied for every micro-step: a norm that is not finite shows itself after the last one.
 */
static Status names_collect(Loop *l) {
    const TrainTask *task = l->task;
    if (!task->batch_name) return STATUS_OK;
    const char *name;
    for (int64_t i = 0; (name = task->batch_name(task->user, i)); i++)
        TRY(names_add(&l->names, name));
    return STATUS_OK;
}

static void names_text(const NameBuffer *b, char *out, size_t size) {
    const char *name = b->text;
    size_t used = 0;
    out[0] = '\0';
    for (int64_t i = 0; i < b->count && i < NAMES_SHOWN && used < size; i++) {
        used += (size_t)snprintf(out + used, size - used, "%s%s", i ? ", " : " Samples: ", name);
        name += strlen(name) + 1;
    }
    if (b->count > NAMES_SHOWN && used < size)
        snprintf(out + used, size - used, " and %" PRId64 " more", b->count - NAMES_SHOWN);
}

/* ---- the step --------------------------------------------------------------------------- */

/* Forward and backward of one micro-batch; the loss comes back to the host. */
static Status micro_step(Loop *l, int64_t micro, float *loss) {
    Tape *t = l->tape;
    tape_reset(t, true);
    Var *v = l->task->loss(l->task->user, t, l->state->step, micro);
    TRY(tape_status(t));
    if (!v || tensor_is_none(v->value) || v->value.dtype != DTYPE_F32 ||
        tensor_count(v->value) != 1)
        return status_set(STATUS_INTERNAL, "the task's loss is no F32 scalar");
    TRY(tape_backward(t, v, 1.0f / (float)l->options->accumulate));
    return device_pull(tape_device(t), loss, v->value);
}

/* All micro-steps; `samples` counts what next() gave. */
static Status accumulate(Loop *l, int64_t *samples, double *loss) {
    int64_t micros = l->options->accumulate;
    double sum = 0.0;
    *samples = 0;
    l->names.used = l->names.count = 0;
    params_begin_step(l->optim->params);
    for (int64_t micro = 0; micro < micros; micro++) {
        float value = NAN;
        TRY(l->task->next(l->task->user, samples));
        TRY(names_collect(l));
        TRY(micro_step(l, micro, &value));
        sum += value;
    }
    *loss = sum / (double)micros;
    return params_finish_grads(l->optim->params);
}

static Status skip(Loop *l) {
    TrainState *s = l->state;
    char names[512];
    s->skipped++;
    s->skipped_row++;
    names_text(&l->names, names, sizeof names);
    log_warn("step %" PRId64 " skipped: loss %g, gradient norm %g.%s", s->step, l->loss,
             l->grad_norm, names);
    TRY(record_skip(l));
    int limit = l->options->give_up_after;
    if (limit <= 0 || s->skipped_row < limit) return STATUS_OK;
    return status_set(STATUS_NUMERIC,
                      "step %" PRId64 ": loss or gradient norm was not finite in %" PRId64
                      " steps in a row; the last good checkpoint is kept.%s",
                      s->step, s->skipped_row, names);
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

Status step_run(Loop *l) {
    TrainState *s = l->state;
    int64_t samples;
    l->epoch_ended = false;
    TRY(accumulate(l, &samples, &l->loss));
    l->lr = schedule_lr(&l->options->schedule, s->step);
    l->grad_norm = NAN;
    if (isfinite(l->loss)) {
        float norm, clip;
        TRY(adamw_step(l->optim, l->lr));
        TRY(adamw_report(l->optim, &norm, &clip));
        l->grad_norm = norm;
    }
    advance(l, samples);
    /* With a norm that is not finite, adamw_step() has changed nothing. */
    if (!isfinite(l->grad_norm)) return skip(l);
    s->skipped_row = 0;
    s->loss_sum += l->loss;
    s->loss_count++;
    l->window.loss_sum += l->loss;
    l->window.losses++;
    return STATUS_OK;
}
