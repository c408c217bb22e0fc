/* Private to datasets/score*.c. */
#ifndef TTV_DATASETS_SCORE_INTERNAL_H
#define TTV_DATASETS_SCORE_INTERNAL_H

#include "datasets/score.h"

/* Sizes, colours, depths, alpha. */
Status score_check_pair(const Picture *a, const Picture *b, const ScoreOptions *o);

static inline int picture_full(const Picture *p) {
    return p->bits == 16 ? 65535 : 255;
}

/* Sample of channel c, alpha dealt with. */
static inline int picture_sample(const Picture *p, ScoreAlpha alpha, int64_t x, int64_t y, int c) {
    int64_t at = (y * p->width + x) * (p->colors + (p->alpha ? 1 : 0));
    int value = p->bytes ? p->bytes[at + c] : p->words[at + c];
    if (!p->alpha || alpha < SCORE_ALPHA_COMPOSITE) return value;
    int64_t full = picture_full(p), back = alpha == SCORE_ALPHA_COMPOSITE_WHITE ? full : 0;
    int64_t cover = p->bytes ? p->bytes[at + p->colors] : p->words[at + p->colors];
    return (int)((value * cover + back * (full - cover) + full / 2) / full);
}

/* BT.601's luma of a pixel, in sample units (score.h). */
static inline double picture_luma(const Picture *p, ScoreAlpha alpha, int64_t x, int64_t y) {
    const double full = picture_full(p);
    return (16 * full + 65.481 * picture_sample(p, alpha, x, y, 0) +
            128.553 * picture_sample(p, alpha, x, y, 1) +
            24.966 * picture_sample(p, alpha, x, y, 2)) /
           255;
}

/* Channels that count. */
static inline int score_channels(const Picture *p, const ScoreOptions *o) {
    return o->luma ? 1 : p->colors;
}

/* Sample c of those. */
static inline double score_sample(const Picture *p, const ScoreOptions *o, int64_t x, int64_t y,
                                  int c) {
    return o->luma && p->colors == 3 ? picture_luma(p, o->alpha, x, y)
                                     : picture_sample(p, o->alpha, x, y, c);
}

/* Mean SSIM over channels of the pictures without `border` pixels at each side; range in sample
 * units. Both sides must be SSIM_WINDOW at least. */
Status ssim_of(const Picture *a, const Picture *b, const ScoreOptions *o, double range,
               double *out);

#endif
