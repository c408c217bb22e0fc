/* How far two pictures are apart: PSNR, SSIM, MSE. The one place that computes them, for `ttv
 * psnr`, for evaluation and for training's log, so that their numbers cannot differ.
 *
 * PSNR = 10 log10(range^2 / MSE) over all samples of all channels, in double precision; sums of
 * squared differences are whole numbers. SSIM as novel-view papers take it from scikit-image: 11x11
 * Gaussian of sigma 1.5, K1 .01, K2 .03, sample covariance (121/120), mean over the pixels whose
 * window lies inside, then over channels. The range is that of the sample type (255, 65535) or
 * given; it is never guessed from the content, and nothing is clamped or resized.
 */
#ifndef TTV_DATASETS_SCORE_H
#define TTV_DATASETS_SCORE_H

#include <stdbool.h>
#include <stdint.h>

#include "datasets/image.h"

/* A picture to score: a borrowed view of 8- or 16-bit samples. */
typedef struct Picture {
    const char *name;      /* for messages */
    const uint8_t *bytes;  /* [height, width, colors + alpha], or NULL */
    const uint16_t *words; /* the same, when bytes is NULL */
    int64_t width, height;
    int colors; /* 1 or 3 */
    bool alpha;
    int bits; /* 8 or 16 */
} Picture;
Picture picture_of_image(const Image *image, const char *name);
Picture picture_of_deep(const DeepImage *image, const char *name);

typedef enum ScoreAlpha {
    SCORE_ALPHA_ERROR,           /* a picture with alpha is refused */
    SCORE_ALPHA_IGNORE,          /* its colours count, whatever alpha says */
    SCORE_ALPHA_COMPOSITE,       /* over black, rounded to the sample type */
    SCORE_ALPHA_COMPOSITE_WHITE, /* over white */
} ScoreAlpha;

typedef struct ScoreOptions {
    double range;   /* in sample units; 0: 255 or 65535; 1: the same, with samples scaled to 0..1 */
    int64_t border; /* pixels cut off at each side first */
    ScoreAlpha alpha;
    bool luma;                  /* of RGB only BT.601's luma counts, see below */
    bool ssim;                  /* compute it, too */
    bool population_covariance; /* SSIM with 121/121 instead of 121/120 */
} ScoreOptions;

enum { SSIM_WINDOW = 11 };

typedef struct Score {
    double psnr;          /* dB; INFINITY when identical */
    double mse;           /* in the unit of the range */
    double ssim;          /* NAN when not computed: not asked for, or a side is below SSIM_WINDOW */
    double lpips;         /* NAN: others fill it in */
    double squared_error; /* sum, in units of (range)^2: squared_error / samples = MSE / range^2 */
    double range;         /* 255, 65535, 1, or as given */
    int64_t samples;
    int64_t width, height; /* what was scored, borders cut */
    int colors, bits;
    bool identical;
    int largest_a, largest_b; /* largest sample: 0 is all black, see score_alarm() */
} Score;

/* luma: Y = 16 + 65.481 R + 128.553 G + 24.966 B for R, G, B in 0..1, in units of 255: studio swing
 * (16 to 235), not rounded, as super-resolution papers have it from MATLAB's rgb2ycbcr. Grey
 * pictures are taken as they are.
 *
 * STATUS_DATA, naming `b`, when sizes, colours or depths differ, alpha is refused, or the border
 * leaves nothing. */
Status score_pictures(const Picture *a, const Picture *b, const ScoreOptions *o, Score *out);
/* The picture as RGB in 0..1, [height - 2 border, width - 2 border, 3], alpha dealt with, grey
 * repeated: what learned metrics read. It must have been scored, which checks it. */
void score_values(const Picture *p, const ScoreOptions *o, float *out);
/* What a largest sample gives away: "is all black", "holds no sample above 1: ...", or NULL. */
const char *score_alarm(int largest, int bits);

/* Over n pictures. mean: over the n - n_infinite finite ones; all infinite: INFINITY. min and
 * median count infinities. pooled: of the mean of MSE / range^2 over all samples. n = 0: all NAN.
 */
typedef struct ScoreSummary {
    int64_t n, n_infinite;
    double psnr_mean, psnr_min, psnr_median, psnr_pooled;
    double mse_mean, mse_pooled; /* pooled: weighted by samples */
    int64_t n_ssim;
    double ssim_mean, ssim_min; /* over the n_ssim pictures that have one; NAN when none has */
    int64_t n_lpips;
    double lpips_mean, lpips_max; /* likewise */
    /* Of groups, when they were given: means over groups of each group's means. */
    int64_t groups;
    double psnr_groups, ssim_groups, lpips_groups;
} ScoreSummary;
Status score_summarise(const Score *scores, int64_t n, ScoreSummary *out);
/* The same with pictures in groups (scenes): group[i] is that of score i, equal ones stand
 * together. A group whose pictures are all identical counts as infinite, left out likewise. */
Status score_summarise_groups(const Score *scores, const int64_t *group, int64_t n,
                              ScoreSummary *out);

/* Absolute difference, mean over channels, as a picture: black (none) over red and yellow to white
 * (`full` of the sample type's range and more). Fixed scale, so that maps compare. Same refusals as
 * score_pictures(); options' border is ignored. */
Status score_error_map(const Picture *a, const Picture *b, const ScoreOptions *o, double full,
                       Image *out);

#endif
