#include "tools/nvs_eval.h"

#include <math.h>
#include <string.h>

#include "core/memory.h"
#include "tools/cli.h"

const char *nvs_method_name(NvsMethod m) {
    static const char *const names[NVS_METHODS] = {"model", "nearest", "mean"};
    return names[m];
}

static int64_t picture_size(const NvsEval *e) {
    return e->view.width * e->view.height * 3;
}

static int64_t nearest_input(const ViewCamera *cameras, int64_t inputs, int64_t target) {
    int64_t best = 0;
    double least = INFINITY;
    for (int64_t i = 0; i < inputs; i++) {
        double sum = 0;
        for (int k = 3; k < 12; k += 4) {
            const double gap = cameras[i].c2w[k] - cameras[target].c2w[k];
            sum += gap * gap;
        }
        if (sum < least) {
            least = sum;
            best = i;
        }
    }
    return best;
}

static void mean_of_inputs(const NvsEval *e, int64_t inputs) {
    const int64_t size = picture_size(e);
    for (int64_t k = 0; k < size; k++) {
        int64_t sum = 0;
        for (int64_t i = 0; i < inputs; i++) sum += e->pixels[i * size + k];
        e->baseline[k] = (uint8_t)((sum + inputs / 2) / inputs);
    }
}

static Status score_view(const NvsEval *e, uint8_t *truth, uint8_t *guess, Score *out) {
    const ScoreOptions options = {.ssim = true};
    const Image x = {truth, e->view.width, e->view.height};
    const Image y = {guess, e->view.width, e->view.height};
    Picture a = picture_of_image(&x, "truth"), b = picture_of_image(&y, "render");
    return score_pictures(&a, &b, &options, out);
}

static Status score_scene(NvsEval *e, const ViewSample *s, const ViewCamera *cameras,
                          ScoreSummary out[NVS_METHODS]) {
    Score scores[NVS_METHODS][VIEW_MAX];
    const int64_t size = picture_size(e);
    mean_of_inputs(e, s->inputs);
    for (int64_t t = 0; t < s->targets; t++) {
        const int64_t near = nearest_input(cameras, s->inputs, s->inputs + t);
        uint8_t *truth = e->pixels + (s->inputs + t) * size;
        TRY(score_view(e, truth, e->rendered + t * size, &scores[NVS_MODEL][t]));
        TRY(score_view(e, truth, e->pixels + near * size, &scores[NVS_NEAREST][t]));
        TRY(score_view(e, truth, e->baseline, &scores[NVS_MEAN][t]));
    }
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
        e->evaluated++;
        e->views += entry->sample.targets;
        progress_line(10, "%lld scenes scored", (long long)e->evaluated);
    }
    progress_end();
    summarise(e);
    return STATUS_OK;
}
