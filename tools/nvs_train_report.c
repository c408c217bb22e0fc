/* What a run of `ttv nvs train` tells while it goes on and at its end. */
#include <math.h>
#include <string.h>

#include "tools/cli.h"
#include "tools/nvs_trainer.h"

enum { VALIDATED = 6 };
static const char *const validated_names[VALIDATED + 1] = {"val_psnr",     "val_loss",  "ema_psnr",
                                                           "nearest_psnr", "mean_psnr", "seconds"};
const RunColumns nvs_trainer_columns = {"samples_per_s", validated_names};

static void tell_validation(const NvsTrainer *t, const TrainEvent *e) {
    const NvsScores *s = &t->task.scores;
    char averaged[64] = "";
    if (t->task.ema) snprintf(averaged, sizeof averaged, ", averaged weights %.3f", s->ema_psnr);
    note("step %lld: PSNR %.3f dB%s (nearest input %.3f, mean of inputs %.3f) on %lld scenes%s",
         (long long)e->state.step, s->psnr, averaged, s->nearest, s->mean, (long long)s->scenes,
         s->failed ? " (some failed)" : "");
}

static void show_progress(const TrainEvent *e) {
    const NvsTrainConfig *c = &nvs_settings.train;
    const int64_t last = c->max_steps > 0 && c->max_steps < c->steps ? c->max_steps : c->steps;
    char eta[32];
    progress_eta((double)(last - e->state.step) * e->step_ms / 1000, eta, sizeof eta);
    progress_line(0, "step %lld/%lld loss %.5f lr %.2e %.1f samples/s wait %.0f%% ETA %s",
                  (long long)e->state.step, (long long)last, e->loss, e->lr, e->samples_per_s,
                  100 * e->wait_share, eta);
}

void nvs_trainer_event(void *trainer, const TrainEvent *e) {
    NvsTrainer *t = trainer;
    const NvsScores *s = &t->task.scores;
    const bool validation = strcmp(e->kind, "validate") == 0;
    const double values[VALIDATED] = {s->psnr, s->loss, s->ema_psnr, s->nearest, s->mean, 0};
    run_folder_event(&t->run, e, validation ? values : NULL);
    if (strcmp(e->kind, "train") == 0 && !output_is_json()) /* the record says it */
        show_progress(e);
    if (validation) tell_validation(t, e);
}

/* ---- the end ---- */

static Status print_json(const NvsTrainer *t) {
    const NvsScores *s = &t->task.scores;
    JsonWriter w;
    json_writer_init(&w);
    json_begin_object(&w);
    json_pair_string(&w, "run", t->run.path);
    json_pair_int(&w, "step", t->state.step);
    json_pair_int(&w, "skipped", t->state.skipped);
    json_pair_number(&w, "best_psnr", t->state.best_metric);
    json_pair_int(&w, "best_step", t->state.best_step);
    if (s->scenes > 0) {
        json_pair_number(&w, "psnr", s->psnr);
        if (t->task.ema) json_pair_number(&w, "ema_psnr", s->ema_psnr);
        json_pair_number(&w, "nearest_psnr", s->nearest);
        json_pair_number(&w, "mean_psnr", s->mean);
        json_pair_int(&w, "scenes", s->scenes);
    }
    json_end_object(&w);
    return out_json(&w, STATUS_OK);
}

Status nvs_trainer_print_result(const NvsTrainer *t) {
    const NvsScores *s = &t->task.scores;
    if (common.json) return print_json(t);
    out_printf("trained to step %lld", (long long)t->state.step);
    if (t->state.skipped > 0) out_printf(" (%lld skipped)", (long long)t->state.skipped);
    if (s->scenes > 0) out_printf(", PSNR %.3f dB on %lld scenes", s->psnr, (long long)s->scenes);
    if (s->scenes > 0 && t->task.ema) out_printf(", averaged weights %.3f dB", s->ema_psnr);
    if (isfinite(t->state.best_metric) && t->state.best_step > 0)
        out_printf("; best %.3f dB at step %lld", t->state.best_metric,
                   (long long)t->state.best_step);
    out_text("; run folder ");
    out_path(t->run.path);
    out_text("\n");
    return STATUS_OK;
}
