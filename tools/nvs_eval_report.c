/* What `ttv nvs eval` says. */
#include <stdio.h>

#include "core/json.h"
#include "tools/cli.h"
#include "tools/nvs_eval.h"

void eval_index_print_reasons(const EvalIndex *x, int64_t most, const char *where) {
    int64_t told = 0, more = 0;
    for (int64_t i = 0; i < x->count; i++) {
        const EvalEntry *entry = &x->entries[i];
        if (entry->state == EVAL_READY || !entry->reason) continue;
        if (told++ < most)
            note("%s: %s: %s", entry->scene, eval_state_name(entry->state), entry->reason);
        else
            more++;
    }
    if (more > 0)
        note("and %lld more scenes that cannot be evaluated (see %s)", (long long)more, where);
}

/* What a table or a list shows of each method. */
typedef struct Numbers {
    double psnr[NVS_METHODS], ssim[NVS_METHODS], lpips[NVS_METHODS];
} Numbers;

static Numbers numbers_of_scene(const ScoreSummary s[NVS_METHODS]) {
    Numbers n;
    for (int m = 0; m < NVS_METHODS; m++) {
        n.psnr[m] = s[m].psnr_mean;
        n.ssim[m] = s[m].ssim_mean;
        n.lpips[m] = s[m].lpips_mean;
    }
    return n;
}

static Numbers numbers_of_view(const Score *scores, int64_t targets, int64_t t) {
    Numbers n;
    for (int m = 0; m < NVS_METHODS; m++) {
        n.psnr[m] = scores[m * targets + t].psnr;
        n.ssim[m] = scores[m * targets + t].ssim;
        n.lpips[m] = scores[m * targets + t].lpips;
    }
    return n;
}

static Numbers numbers_of_all(const NvsEval *e) {
    Numbers n;
    for (int m = 0; m < NVS_METHODS; m++) {
        n.psnr[m] = e->psnr[m];
        n.ssim[m] = e->ssim[m];
        n.lpips[m] = e->lpips[m];
    }
    return n;
}

/* ---- text ---- */

static void print_numbers(const NvsEval *e, const char *name, int64_t views, Numbers n) {
    out_printf("%-24s %5lld", name, (long long)views);
    for (int m = 0; m < NVS_METHODS; m++) {
        out_printf("  %8.4f %7.5f", n.psnr[m], n.ssim[m]);
        if (e->network) out_printf(" %7.5f", n.lpips[m]);
    }
    out_text("\n");
}

static void print_views(const NvsEval *e, int64_t i) {
    const ViewSample *s = &e->index.entries[i].sample;
    char name[48];
    for (int64_t t = 0; t < s->targets; t++) {
        snprintf(name, sizeof name, "  frame %lld", (long long)s->frames[s->inputs + t]);
        print_numbers(e, name, 1, numbers_of_view(e->scores[i], s->targets, t));
    }
}

static void print_lpips_note(const NvsEval *e) {
    if (!e->network)
        note("LPIPS was not computed: no weights were given (--lpips-weights)");
    else if (e->view.width < LPIPS_SIDE || e->view.height < LPIPS_SIDE)
        note("LPIPS was not computed: views have a side below %d pixels", LPIPS_SIDE);
}

/* As --poses has it. */
static const char *poses_name(int rule) {
    return rule == POSES_ALL ? "all" : rule == POSES_INPUTS ? "inputs" : "none";
}

/* What the numbers are of: without it they cannot be compared with others. */
static void print_protocol(const NvsEval *e) {
    const LactNvsConfig *c = &e->model.config;
    note("views of %lldx%lld, activations %s, frame of the poses: %s; index: %s",
         (long long)c->view_width, (long long)c->height, dtype_name(e->model.act),
         poses_name(c->poses), e->index_file[0] ? e->index_file : "generated");
    if (e->evaluated > 1)
        note("standard error of the model's mean PSNR over %lld scenes: %.2f dB",
             (long long)e->evaluated, e->psnr_error[0]);
}

void nvs_eval_print_text(const NvsEval *e) {
    out_printf("%-24s %5s", "scene", "views");
    for (int m = 0; m < NVS_METHODS; m++) {
        out_printf("  %8s %7s", nvs_method_name((NvsMethod)m), "ssim");
        if (e->network) out_printf(" %7s", "lpips");
    }
    out_text("\n");
    for (int64_t i = 0; i < e->index.count && !out_failed(); i++) {
        const ScoreSummary *s = e->scenes[i];
        if (s[0].n == 0) continue;
        if (e->per_view) print_views(e, i);
        print_numbers(e, e->index.entries[i].scene, s[0].n, numbers_of_scene(s));
    }
    if (e->evaluated > 0) print_numbers(e, "mean over scenes", e->views, numbers_of_all(e));
    const EvalCounts n = eval_index_counts(&e->index);
    out_printf("%lld evaluated, %lld null, %lld missing, %lld faulty, %lld failed\n",
               (long long)e->evaluated, (long long)n.null, (long long)n.missing,
               (long long)n.faulty, (long long)n.failed);
    print_protocol(e);
    print_lpips_note(e);
}

/* ---- JSON ---- */

static void json_methods(JsonWriter *w, const NvsEval *e, Numbers n) {
    for (int m = 0; m < NVS_METHODS; m++) {
        json_key(w, nvs_method_name((NvsMethod)m));
        json_begin_object(w);
        json_pair_number(w, "psnr", n.psnr[m]);
        json_pair_number(w, "ssim", n.ssim[m]);
        if (e->network) json_pair_number(w, "lpips", n.lpips[m]);
        json_end_object(w);
    }
}

static void json_views(JsonWriter *w, const NvsEval *e, int64_t i) {
    const ViewSample *s = &e->index.entries[i].sample;
    json_key(w, "targets");
    json_begin_array(w);
    for (int64_t t = 0; t < s->targets; t++) {
        json_begin_object(w);
        json_pair_int(w, "frame", s->frames[s->inputs + t]);
        json_methods(w, e, numbers_of_view(e->scores[i], s->targets, t));
        json_end_object(w);
    }
    json_end_array(w);
}

static void json_entry(JsonWriter *w, const NvsEval *e, int64_t i) {
    const EvalEntry *entry = &e->index.entries[i];
    const ScoreSummary *s = e->scenes[i];
    json_begin_object(w);
    json_pair_string(w, "scene", entry->scene);
    json_pair_string(w, "state",
                     entry->state == EVAL_READY ? "evaluated" : eval_state_name(entry->state));
    if (entry->reason) json_pair_string(w, "reason", entry->reason);
    if (s[0].n > 0) {
        json_pair_int(w, "views", s[0].n);
        json_methods(w, e, numbers_of_scene(s));
        json_views(w, e, i);
    }
    json_end_object(w);
}

Status nvs_eval_print_json(const NvsEval *e) {
    const EvalCounts n = eval_index_counts(&e->index);
    const LactNvsConfig *c = &e->model.config;
    JsonWriter w;
    json_writer_init(&w);
    char decoders[96];
    image_decoders(decoders, sizeof decoders);
    json_begin_object(&w);
    json_pair_string(&w, "checkpoint", e->checkpoint);
    json_pair_string(&w, "data", e->root);
    json_pair_string(&w, "split", e->split);
    json_pair_string(&w, "index", e->index_file[0] ? e->index_file : "generated");
    json_pair_string(&w, "poses", poses_name(c->poses));
    json_pair_int(&w, "width", c->view_width);
    json_pair_int(&w, "height", c->height);
    json_pair_string(&w, "precision", dtype_name(e->model.act));
    json_pair_string(&w, "decoders", decoders);
    json_pair_int(&w, "evaluated", e->evaluated);
    json_pair_int(&w, "views", e->views);
    json_pair_int(&w, "null", n.null);
    json_pair_int(&w, "missing", n.missing);
    json_pair_int(&w, "faulty", n.faulty);
    json_pair_int(&w, "failed", n.failed);
    json_methods(&w, e, numbers_of_all(e));
    json_pair_number(&w, "psnr_standard_error", e->psnr_error[0]);
    if (!e->network) json_pair_string(&w, "lpips_note", "not computed: no weights were given");
    json_key(&w, "scenes");
    json_begin_array(&w);
    for (int64_t i = 0; i < e->index.count; i++) json_entry(&w, e, i);
    json_end_array(&w);
    json_end_object(&w);
    return out_json(&w, STATUS_OK);
}
