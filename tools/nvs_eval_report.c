/* What `ttv nvs eval` says. */
#include <math.h>

#include "core/json.h"
#include "tools/cli.h"
#include "tools/nvs_eval.h"

enum { REASONS = 20 };

void nvs_eval_print_reasons(const NvsEval *e) {
    int64_t told = 0, more = 0;
    for (int64_t i = 0; i < e->index.count; i++) {
        const EvalEntry *entry = &e->index.entries[i];
        if (entry->state == EVAL_READY || !entry->reason) continue;
        if (told++ < REASONS)
            note("%s: %s: %s", entry->scene, eval_state_name(entry->state), entry->reason);
        else
            more++;
    }
    if (more > 0)
        note("and %lld more scenes that were not evaluated (see --json)", (long long)more);
}

/* ---- text ---- */

static void print_numbers(const char *name, int64_t views, const double *psnr, const double *ssim) {
    out_printf("%-24s %5lld", name, (long long)views);
    for (int m = 0; m < NVS_METHODS; m++) out_printf("  %8.4f %7.5f", psnr[m], ssim[m]);
    out_text("\n");
}

void nvs_eval_print_text(const NvsEval *e) {
    out_printf("%-24s %5s", "scene", "views");
    for (int m = 0; m < NVS_METHODS; m++)
        out_printf("  %8s %7s", nvs_method_name((NvsMethod)m), "ssim");
    out_text("\n");
    for (int64_t i = 0; i < e->index.count && !out_failed(); i++) {
        const ScoreSummary *s = e->scenes[i];
        const double psnr[] = {s[0].psnr_mean, s[1].psnr_mean, s[2].psnr_mean};
        const double ssim[] = {s[0].ssim_mean, s[1].ssim_mean, s[2].ssim_mean};
        if (s[0].n > 0) print_numbers(e->index.entries[i].scene, s[0].n, psnr, ssim);
    }
    if (e->evaluated > 0) print_numbers("mean over scenes", e->views, e->psnr, e->ssim);
    const EvalCounts n = eval_index_counts(&e->index);
    out_printf("%lld evaluated, %lld null, %lld missing, %lld faulty, %lld failed\n",
               (long long)e->evaluated, (long long)n.null, (long long)n.missing,
               (long long)n.faulty, (long long)n.failed);
}

/* ---- JSON ---- */

static void json_methods(JsonWriter *w, const double *psnr, const double *ssim) {
    for (int m = 0; m < NVS_METHODS; m++) {
        json_key(w, nvs_method_name((NvsMethod)m));
        json_begin_object(w);
        json_pair_number(w, "psnr", psnr[m]);
        json_pair_number(w, "ssim", ssim[m]);
        json_end_object(w);
    }
}

static void json_entry(JsonWriter *w, const NvsEval *e, int64_t i) {
    const EvalEntry *entry = &e->index.entries[i];
    const ScoreSummary *s = e->scenes[i];
    const double psnr[] = {s[0].psnr_mean, s[1].psnr_mean, s[2].psnr_mean};
    const double ssim[] = {s[0].ssim_mean, s[1].ssim_mean, s[2].ssim_mean};
    json_begin_object(w);
    json_pair_string(w, "scene", entry->scene);
    json_pair_string(w, "state",
                     entry->state == EVAL_READY ? "evaluated" : eval_state_name(entry->state));
    if (entry->reason) json_pair_string(w, "reason", entry->reason);
    if (s[0].n > 0) {
        json_pair_int(w, "views", s[0].n);
        json_methods(w, psnr, ssim);
    }
    json_end_object(w);
}

Status nvs_eval_print_json(const NvsEval *e) {
    const EvalCounts n = eval_index_counts(&e->index);
    JsonWriter w;
    json_writer_init(&w);
    json_begin_object(&w);
    json_pair_int(&w, "evaluated", e->evaluated);
    json_pair_int(&w, "views", e->views);
    json_pair_int(&w, "null", n.null);
    json_pair_int(&w, "missing", n.missing);
    json_pair_int(&w, "faulty", n.faulty);
    json_pair_int(&w, "failed", n.failed);
    json_methods(&w, e->psnr, e->ssim);
    json_key(&w, "scenes");
    json_begin_array(&w);
    for (int64_t i = 0; i < e->index.count; i++) json_entry(&w, e, i);
    json_end_array(&w);
    json_end_object(&w);
    Status s = w.status;
    if (s == STATUS_OK) out_printf("%s\n", w.text);
    json_writer_free(&w);
    return s;
}
