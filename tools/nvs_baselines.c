#include "tools/nvs_baselines.h"

#include <math.h>

const char *nvs_method_name(NvsMethod m) {
    static const char *const names[NVS_METHODS] = {"model", "nearest", "mean"};
    return names[m];
}

static int64_t nearest_input(const NvsViews *v, int64_t target) {
    int64_t best = 0;
    double least = INFINITY;
    for (int64_t i = 0; i < v->inputs; i++) {
        double sum = 0;
        for (int k = 3; k < 12; k += 4) {
            const double gap = v->cameras[i].c2w[k] - v->cameras[v->inputs + target].c2w[k];
            sum += gap * gap;
        }
        if (sum < least) {
            least = sum;
            best = i;
        }
    }
    return best;
}

uint8_t *nvs_nearest_input(const NvsViews *v, int64_t t) {
    return v->pixels + nearest_input(v, t) * v->width * v->height * 3;
}

void nvs_mean_input(const NvsViews *v, uint8_t *out) {
    const int64_t size = v->width * v->height * 3;
    for (int64_t k = 0; k < size; k++) {
        int64_t sum = 0;
        for (int64_t i = 0; i < v->inputs; i++) sum += v->pixels[i * size + k];
        out[k] = (uint8_t)((sum + v->inputs / 2) / v->inputs);
    }
}

Status nvs_score_view(const NvsViews *v, int64_t t, uint8_t *guess, bool ssim, Score *out) {
    const ScoreOptions options = {.ssim = ssim};
    const Image x = {v->pixels + (v->inputs + t) * v->width * v->height * 3, v->width, v->height};
    const Image y = {guess, v->width, v->height};
    Picture a = picture_of_image(&x, "truth"), b = picture_of_image(&y, "render");
    return score_pictures(&a, &b, &options, out);
}

Status nvs_score_baselines(const NvsViews *v, bool ssim, uint8_t *room, Score *nearest,
                           Score *mean) {
    nvs_mean_input(v, room);
    for (int64_t t = 0; t < v->targets; t++) {
        TRY(nvs_score_view(v, t, nvs_nearest_input(v, t), ssim, &nearest[t]));
        TRY(nvs_score_view(v, t, room, ssim, &mean[t]));
    }
    return STATUS_OK;
}
