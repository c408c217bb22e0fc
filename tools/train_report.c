/* What a training run tells while it goes on and at its end. */
#include "tools/trainer.h"

#include <math.h>
#include <string.h>
#include <unistd.h>

#include "tools/cli.h"

static int64_t last_step(const Trainer *t) {
    const TrainOptions *o = &t->options;
    int64_t total = o->epochs * o->steps_per_epoch;
    return o->max_steps > 0 && o->max_steps < total ? o->max_steps : total;
}

static void show_progress(const Trainer *t, int64_t step, double every_s) {
    char eta[32];
    const TrainOptions *o = &t->options;
    progress_eta((double)(last_step(t) - step) * t->step_ms / 1000, eta, sizeof eta);
    progress_line(every_s,
                  "epoch %lld/%lld step %lld/%lld loss %.4f lr %.2e %.0f img/s wait %.0f%% ETA %s",
                  (long long)(step / o->steps_per_epoch + (step % o->steps_per_epoch != 0)),
                  (long long)o->epochs, (long long)step, (long long)last_step(t), t->loss, t->lr,
                  t->images_per_s, 100 * t->wait_share, eta);
}

void trainer_micro_step(void *trainer, int64_t step) {
    Trainer *t = trainer;
    if (step > t->first_step && !t->step_memory_told) {
        t->step_memory_told = true;
        const Device *d = t->model.device;
        note("memory of a step: %.1f MB activations and gradients, %.1f MB scratch",
             (double)d->step.peak / 1e6, (double)d->scratch.peak / 1e6);
    }
    /* Between two records the numbers of the last one stand; in a log file only records count. */
    if (t->step_ms > 0 && isatty(STDERR_FILENO) && !output_is_json()) show_progress(t, step, 0);
}

static void tell_validation(const Trainer *t, const TrainEvent *e) {
    const Score *s = &t->task.score, *average = &t->task.ema_score;
    double n = (double)s->scored;
    char averaged[80] = "";
    if (t->task.ema)
        snprintf(averaged, sizeof averaged, "; averaged weights: top-1 %.2f %%, loss %.4f",
                 100 * (double)average->top1 / n, average->loss_sum / n);
    note("step %lld: top-1 %.2f %%, top-5 %.2f %%, loss %.4f on %lld images%s%s",
         (long long)e->state.step, 100 * (double)s->top1 / n, 100 * (double)s->top5 / n,
         s->loss_sum / n, (long long)s->scored, s->left_out ? " (some were left out)" : "",
         averaged);
    if (s->not_finite + average->not_finite > 0)
        complain("step %lld: scores of %lld images are not finite (averaged weights: of %lld)",
                 (long long)e->state.step, (long long)s->not_finite,
                 (long long)average->not_finite);
}

enum { VALIDATED = 6 };
static const char *const validated_names[VALIDATED + 1] = {"val_loss", "top1",     "top5",
                                                           "seconds",  "ema_loss", "ema_top1"};
const RunColumns trainer_columns = {"images_per_s", validated_names};

static void validated(const Trainer *t, double values[VALIDATED]) {
    const Score *s = &t->task.score, *average = &t->task.ema_score;
    const double n = (double)s->scored, m = t->task.ema ? (double)average->scored : 0;
    for (int i = 0; i < VALIDATED; i++) values[i] = NAN;
    if (n > 0) {
        values[0] = s->loss_sum / n;
        values[1] = 100.0 * (double)s->top1 / n;
        values[2] = 100.0 * (double)s->top5 / n;
    }
    if (m > 0) {
        values[4] = average->loss_sum / m;
        values[5] = 100.0 * (double)average->top1 / m;
    }
}

void trainer_event(void *trainer, const TrainEvent *e) {
    Trainer *t = trainer;
    bool validation = strcmp(e->kind, "validate") == 0 && t->task.score.scored > 0;
    double values[VALIDATED];
    validated(t, values);
    run_folder_event(&t->run, e, validation ? values : NULL);
    if (strcmp(e->kind, "train") == 0) {
        t->loss = e->loss;
        t->lr = e->lr;
        t->images_per_s = e->samples_per_s;
        t->wait_share = e->wait_share;
        t->step_ms = e->step_ms;
        if (!output_is_json()) show_progress(t, e->state.step, 0); /* the record says it */
    }
    if (validation) tell_validation(t, e);
}

/* ---- the end ---- */

static Status print_json(const Trainer *t) {
    const Score *s = &t->task.score;
    JsonWriter w;
    json_writer_init(&w);
    json_begin_object(&w);
    json_pair_string(&w, "run", t->run.path);
    json_pair_int(&w, "step", t->state.step);
    json_pair_int(&w, "epoch", t->state.epoch);
    json_pair_int(&w, "skipped", t->state.skipped);
    json_pair_number(&w, "best_top1", t->state.best_metric);
    json_pair_int(&w, "best_step", t->state.best_step);
    if (s->scored > 0) {
        json_pair_number(&w, "top1", 100.0 * (double)s->top1 / (double)s->scored);
        json_pair_number(&w, "top5", 100.0 * (double)s->top5 / (double)s->scored);
        json_pair_number(&w, "val_loss", s->loss_sum / (double)s->scored);
        json_pair_int(&w, "scored", s->scored);
        if (t->task.ema) {
            const Score *average = &t->task.ema_score;
            double n = (double)average->scored;
            json_pair_number(&w, "ema_top1", 100.0 * (double)average->top1 / n);
            json_pair_number(&w, "ema_top5", 100.0 * (double)average->top5 / n);
            json_pair_number(&w, "ema_loss", average->loss_sum / n);
        }
    }
    json_end_object(&w);
    return out_json(&w, STATUS_OK);
}

Status trainer_print_result(const Trainer *t) {
    const Score *s = &t->task.score;
    if (common.json) return print_json(t);
    out_printf("trained to step %lld (epoch %lld)", (long long)t->state.step,
               (long long)t->state.epoch);
    if (s->scored > 0)
        out_printf(", top-1 %.2f %%, top-5 %.2f %% on %lld images",
                   100.0 * (double)s->top1 / (double)s->scored,
                   100.0 * (double)s->top5 / (double)s->scored, (long long)s->scored);
    if (s->scored > 0 && t->task.ema)
        out_printf(", averaged weights top-1 %.2f %%",
                   100.0 * (double)t->task.ema_score.top1 / (double)t->task.ema_score.scored);
    if (isfinite(t->state.best_metric) && t->state.best_step > 0)
        out_printf("; best top-1 %.2f %% at step %lld", t->state.best_metric,
                   (long long)t->state.best_step);
    out_text("; run folder ");
    out_path(t->run.path);
    out_text("\n");
    return STATUS_OK;
}
