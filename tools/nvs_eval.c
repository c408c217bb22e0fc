#include "tools/nvs_eval.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

#include "core/memory.h"
#include "tools/cli.h"
#include "tools/ranks.h"

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

static Status score_scene(NvsEval *e, const ViewSample *s, const ViewCamera *cameras) {
    const NvsViews v = {e->pixels, cameras, s->inputs, s->targets, e->view.width, e->view.height};
    nvs_mean_input(&v, e->baseline);
    for (int64_t t = 0; t < s->targets; t++) TRY(score_target(e, &v, t, e->mine->scores));
    return STATUS_OK;
}

static Status eval_scene(NvsEval *e, const ViewSample *s) {
    ViewCamera cameras[VIEW_MAX];
    TRY(view_load_sample(e->set, s, &e->view, &e->scratch, e->pixels, cameras));
    TRY(nvs_render_sample(&e->model, e->pixels, cameras, s->inputs, s->inputs + s->targets,
                          e->rendered));
    return score_scene(e, s, cameras);
}

/* ---- rounds: each rank scores a scene, in the order of the index ---- */

static void score_own(NvsEval *e, const EvalEntry *entry) {
    NvsEvalReport *r = e->mine;
    Status s = eval_scene(e, &entry->sample);
    r->fatal = s != STATUS_DATA && s != STATUS_IO;
    if (s == STATUS_OK && e->save[0]) s = nvs_eval_save(e, &entry->sample);
    r->status = s;
    if (s != STATUS_OK) snprintf(r->message, sizeof r->message, "%s", status_message());
}

/* The scores of an entry as rank `rank` told them. */
static Status take(NvsEval *e, int64_t i, int rank) {
    EvalEntry *entry = &e->index.entries[i];
    NvsEvalReport *r = &e->all[rank];
    const int64_t targets = entry->sample.targets;
    const Status s = (Status)r->status;
    void *block;
    if (s != STATUS_OK) {
        r->message[sizeof r->message - 1] = '\0';
        status_set(s, "%s", r->message);
        if (!r->fatal) return eval_entry_failed(entry);
        return status_context(s, "scene %s", entry->scene);
    }
    TRY(mem_alloc(&block, NVS_METHODS * targets, sizeof(Score), "scores"));
    e->scores[i] = block;
    memcpy(e->scores[i], r->scores, (size_t)(NVS_METHODS * targets) * sizeof(Score));
    for (int m = 0; m < NVS_METHODS; m++)
        TRY(score_summarise(e->scores[i] + m * targets, targets, &e->scenes[i][m]));
    e->evaluated++;
    e->views += targets;
    return STATUS_OK;
}

static Status one_round(NvsEval *e, const int64_t *chosen, int n) {
    Peers *p = ranks_peers();
    Status s = STATUS_OK;
    memset(e->mine, 0, sizeof *e->mine);
    if (ranks_rank() < n) score_own(e, &e->index.entries[chosen[ranks_rank()]]);
    TRY(peers_gather(p, e->mine, e->all, sizeof *e->mine));
    for (int i = 0; i < n && s == STATUS_OK; i++) s = take(e, chosen[i], i);
    if (output_is_mine()) progress_line(10, "%lld scenes scored", (long long)e->evaluated);
    return peers_agree(p, s);
}

static Status all_rounds(NvsEval *e) {
    int64_t chosen[PEERS_MAX], next = 0;
    int n;
    do {
        for (n = 0; next < e->index.count && n < ranks_count(); next++)
            if (e->index.entries[next].state == EVAL_READY) chosen[n++] = next;
        if (n > 0) TRY(one_round(e, chosen, n));
    } while (n > 0);
    return STATUS_OK;
}

/* ---- all ---- */

/* Of the mean PSNR: how far another choice of so many scenes would move it. */
static double standard_error(const NvsEval *e, int method, int64_t n) {
    double squares = 0;
    for (int64_t i = 0; i < e->index.count; i++) {
        const ScoreSummary *s = &e->scenes[i][method];
        if (s->n == 0 || !isfinite(s->psnr_mean)) continue;
        squares += (s->psnr_mean - e->psnr[method]) * (s->psnr_mean - e->psnr[method]);
    }
    return n > 1 ? sqrt(squares / (double)(n - 1) / (double)n) : NAN;
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
        e->psnr_error[m] = standard_error(e, m, n_psnr);
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
    TRY(mem_alloc(&block, 1, sizeof *e->mine, "scores of a scene"));
    e->mine = block;
    TRY(mem_alloc(&block, ranks_count(), sizeof *e->all, "scores of the ranks"));
    e->all = block;
    return STATUS_OK;
}

Status nvs_eval_run(NvsEval *e) {
    TRY(peers_agree(ranks_peers(), prepare(e)));
    TRY(all_rounds(e));
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
    void *const owned[] = {e->pixels, e->rendered, e->baseline, e->scenes,
                           e->scores, e->planes,   e->mine,     e->all};
    for (size_t i = 0; i < sizeof owned / sizeof owned[0]; i++) mem_free(owned[i]);
}
