/* What needs no model: the views that a render is compared with. */
#ifndef TTV_TOOLS_NVS_BASELINES_H
#define TTV_TOOLS_NVS_BASELINES_H

#include "datasets/score.h"
#include "datasets/view.h"

/* The model, the nearest input view (by camera position; the first of equals), and the mean of the
 * input views, rounded. */
typedef enum NvsMethod { NVS_MODEL, NVS_NEAREST, NVS_MEAN, NVS_METHODS } NvsMethod;
const char *nvs_method_name(NvsMethod m);

/* One sample: its first `inputs` views are input views. */
typedef struct NvsViews {
    uint8_t *pixels; /* [inputs + targets, height, width, 3] */
    const ViewCamera *cameras;
    int64_t inputs, targets, width, height;
} NvsViews;

/* The baselines' pictures for target t: an input view of v->pixels; the mean, for every target. */
uint8_t *nvs_nearest_input(const NvsViews *v, int64_t t);
void nvs_mean_input(const NvsViews *v, uint8_t *out);

/* PSNR (and SSIM) of a picture that stands for target t. */
Status nvs_score_view(const NvsViews *v, int64_t t, uint8_t *guess, bool ssim, Score *out);
/* Scores of both baselines for all targets; `room` holds one view. */
Status nvs_score_baselines(const NvsViews *v, bool ssim, uint8_t *room, Score *nearest,
                           Score *mean);

#endif
