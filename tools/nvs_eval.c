#include "tools/nvs_eval.h"

#include <math.h>
#include <string.h>

#include "core/memory.h"
#include "tools/cli.h"

static int64_t picture_size(const NvsEval *e) {
    return e->view.width * e->view.height * 3;
}

static Status score_scene(NvsEval *e, const ViewSample *s, const ViewCamera *cameras,
                          ScoreSummary out[NVS_METHODS]) {
    Score scores[NVS_METHODS][VIEW_MAX];
    const NvsViews v = {e->pixels, cameras, s->inputs, s->targets, e->view.width, e->view.height};
    for (int64_t t = 0; t < s->targets; t++)
        TRY(nvs_score_view(&v, t, e->rendered + t * picture_size(e), true, &scores[NVS_MODEL][t]));
    TRY(nvs_score_baselines(&v, true, e->baseline, scores[NVS_NEAREST], scores[NVS_MEAN]));
    for (int m = 0; m < NVS_METHODS; m++) TRY(score_summarise(scores[m], s->targets, &out[m]));
    return STATUS_OK;
}

static Status eval_scene(NvsEval *e, const ViewSample *s, ScoreSummary out[NVS_METHODS]) {
    ViewCamera cameras[VIEW_MAX];
    TRY(view_load_sample(e->set, s, &e->view, &e->scratch, e->pixels, cameras));
    TRY(nvs_render_sample(&e->model, e->pixels, cameras, s->inputs, s->inputs + s->targets,
                          e->rendered));
    return score_scene(e, s, cameras, out);
}

/* Means over scenes; a scene whose views are all identical has no finite PSNR and is left out. */
static void summarise(NvsEval *e) {
    for (int m = 0; m < NVS_METHODS; m++) {
        double psnr = 0, ssim = 0;
        int64_t n_psnr = 0, n_ssim = 0;
        for (int64_t i = 0; i < e->index.count; i++) {
            const ScoreSummary *s = &e->scenes[i][m];
            if (s->n == 0) continue;
            if (isfinite(s->psnr_mean)) psnr += s->psnr_mean, n_psnr++;
            if (s->n_ssim > 0) ssim += s->ssim_mean, n_ssim++;
        }
        e->psnr[m] = n_psnr > 0 ? psnr / (double)n_psnr : NAN;
        e->ssim[m] = n_ssim > 0 ? ssim / (double)n_ssim : NAN;
    }
}

static Status prepare(NvsEval *e) {
    void *block;
    e->view = view_options_default(e->model.config.view_width, e->model.config.height);
    TRY(mem_alloc(&block, VIEW_MAX * picture_size(e), 1, "views"));
    e->pixels = block;
    TRY(mem_alloc(&block, VIEW_MAX * picture_size(e), 1, "rendered views"));
    e->rendered = block;
    TRY(mem_alloc(&block, picture_size(e), 1, "a view"));
    e->baseline = block;
    TRY(mem_alloc(&block, e->index.count, sizeof *e->scenes, "scores"));
    e->scenes = block;
    return STATUS_OK;
}

Status nvs_eval_run(NvsEval *e) {
    TRY(prepare(e));
    for (int64_t i = 0; i < e->index.count; i++) {
        EvalEntry *entry = &e->index.entries[i];
        if (entry->state != EVAL_READY) continue;
        Status s = eval_scene(e, &entry->sample, e->scenes[i]);
        if (s == STATUS_DATA || s == STATUS_IO) {
            memset(e->scenes[i], 0, sizeof e->scenes[i]);
            TRY(eval_entry_failed(entry));
            continue;
        }
        TRY(status_context(s, "scene %s", entry->scene));
        if (e->save[0]) TRY(nvs_eval_save(e, &entry->sample));
        e->evaluated++;
        e->views += entry->sample.targets;
        progress_line(10, "%lld scenes scored", (long long)e->evaluated);
    }
    progress_end();
    summarise(e);
    return STATUS_OK;
}
