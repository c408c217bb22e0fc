#include "tools/nvs_eval.h"

#include <math.h>
#include <string.h>

#include "core/memory.h"
#include "tools/cli.h"

static int64_t picture_size(const NvsEval *e) {
    return e->view.width * e->view.height * 3;
}

/* ---- LPIPS ---- */

static Status add_lpips(NvsEval *e, const uint8_t *truth, const uint8_t *guess, Score *out) {
    const int64_t size = picture_size(e);
    if (!e->network || e->view.height < LPIPS_SIDE || e->view.width < LPIPS_SIDE) return STATUS_OK;
    for (int64_t i = 0; i < size; i++) {
        e->planes[i] = (float)truth[i] / 255.0f;
        e->planes[size + i] = (float)guess[i] / 255.0f;
    }
    return lpips_distance(e->network, e->planes, e->planes + size, e->view.height, e->view.width,
                          &out->lpips);
}

/* ---- one scene ---- */

/* Every method's score of target t, of `targets`. */
static Status score_target(NvsEval *e, const NvsViews *v, int64_t t, Score *scores) {
    const int64_t size = picture_size(e);
    const uint8_t *truth = v->pixels + (v->inputs + t) * size;
    uint8_t *const guesses[NVS_METHODS] = {e->rendered + t * size, nvs_nearest_input(v, t),
                                           e->baseline};
    for (int m = 0; m < NVS_METHODS; m++) {
        Score *out = &scores[m * v->targets + t];
        TRY(nvs_score_view(v, t, guesses[m], true, out));
        TRY(add_lpips(e, truth, guesses[m], out));
    }
    return STATUS_OK;
}

static Status score_scene(NvsEval *e, const ViewSample *s, const ViewCamera *cameras, Score *scores,
                          ScoreSummary out[NVS_METHODS]) {
    const NvsViews v = {e->pixels, cameras, s->inputs, s->targets, e->view.width, e->view.height};
    nvs_mean_input(&v, e->baseline);
    for (int64_t t = 0; t < s->targets; t++) TRY(score_target(e, &v, t, scores));
    for (int m = 0; m < NVS_METHODS; m++)
        TRY(score_summarise(scores + m * s->targets, s->targets, &out[m]));
    return STATUS_OK;
}

static Status eval_scene(NvsEval *e, int64_t entry) {
    const ViewSample *s = &e->index.entries[entry].sample;
    ViewCamera cameras[VIEW_MAX];
    void *block;
    TRY(view_load_sample(e->set, s, &e->view, &e->scratch, e->pixels, cameras));
    TRY(nvs_render_sample(&e->model, e->pixels, cameras, s->inputs, s->inputs + s->targets,
                          e->rendered));
    TRY(mem_alloc(&block, NVS_METHODS * s->targets, sizeof(Score), "scores"));
    e->scores[entry] = block;
    return score_scene(e, s, cameras, e->scores[entry], e->scenes[entry]);
}

/* Means over scenes; a scene whose views are all identical has no finite PSNR and is left out. */
static void summarise(NvsEval *e) {
    for (int m = 0; m < NVS_METHODS; m++) {
        double psnr = 0, ssim = 0, lpips = 0;
        int64_t n_psnr = 0, n_ssim = 0, n_lpips = 0;
        for (int64_t i = 0; i < e->index.count; i++) {
            const ScoreSummary *s = &e->scenes[i][m];
            if (s->n == 0) continue;
            if (isfinite(s->psnr_mean)) psnr += s->psnr_mean, n_psnr++;
            if (s->n_ssim > 0) ssim += s->ssim_mean, n_ssim++;
            if (s->n_lpips > 0) lpips += s->lpips_mean, n_lpips++;
        }
        e->psnr[m] = n_psnr > 0 ? psnr / (double)n_psnr : NAN;
        e->lpips[m] = n_lpips > 0 ? lpips / (double)n_lpips : NAN;
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
    TRY(mem_alloc(&block, e->index.count, sizeof *e->scores, "scores"));
    e->scores = block;
    TRY(mem_alloc(&block, 2 * picture_size(e), sizeof *e->planes, "views for LPIPS"));
    e->planes = block;
    return STATUS_OK;
}

Status nvs_eval_run(NvsEval *e) {
    TRY(prepare(e));
    for (int64_t i = 0; i < e->index.count; i++) {
        EvalEntry *entry = &e->index.entries[i];
        if (entry->state != EVAL_READY) continue;
        Status s = eval_scene(e, i);
        if (s == STATUS_DATA || s == STATUS_IO) {
            memset(e->scenes[i], 0, sizeof e->scenes[i]);
            mem_free(e->scores[i]);
            e->scores[i] = NULL;
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

void nvs_eval_free(NvsEval *e) {
    for (int64_t i = 0; e->scores && i < e->index.count; i++) mem_free(e->scores[i]);
    eval_index_free(&e->index);
    if (e->set) scene_set_close(e->set);
    nvs_model_close(&e->model);
    view_scratch_free(&e->scratch);
    lpips_close(e->network);
    void *const owned[] = {e->pixels, e->rendered, e->baseline, e->scenes, e->scores, e->planes};
    for (int i = 0; i < 6; i++) mem_free(owned[i]);
}
