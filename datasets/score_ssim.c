/* SSIM with scikit-image's Gaussian settings. Only pixels whose whole window lies inside count, so
 * the edges of the filter never matter. */
#include <math.h>

#include "core/memory.h"
#include "datasets/score_internal.h"

enum { RADIUS = SSIM_WINDOW / 2, MAPS = 5 }; /* a, b, a^2, b^2, ab */

typedef struct Ssim {
    double weights[SSIM_WINDOW];
    double *rows; /* [SSIM_WINDOW, MAPS, width]: rows filtered along x, a ring by y */
    int64_t width, height;
    double c1, c2, covariance;
} Ssim;

static void gaussian(double *weights) {
    const double sigma = 1.5;
    double sum = 0;
    for (int i = 0; i < SSIM_WINDOW; i++) {
        double x = i - RADIUS;
        weights[i] = exp(-0.5 * x * x / (sigma * sigma));
        sum += weights[i];
    }
    for (int i = 0; i < SSIM_WINDOW; i++) weights[i] /= sum;
}

/* One row of products into the ring, filtered along x. `line` is [MAPS, width]. */
static void filter_row(const Ssim *s, const double *line, int64_t y) {
    double *to = s->rows + (y % SSIM_WINDOW) * MAPS * s->width;
    for (int m = 0; m < MAPS; m++) {
        const double *from = line + m * s->width;
        for (int64_t x = 0; x + SSIM_WINDOW <= s->width; x++) {
            double sum = 0;
            for (int i = 0; i < SSIM_WINDOW; i++) sum += s->weights[i] * from[x + i];
            to[m * s->width + x] = sum;
        }
    }
}

/* Sum of SSIM over the row of windows whose last row is y. */
static double window_row(const Ssim *s, int64_t y) {
    double total = 0;
    for (int64_t x = 0; x + SSIM_WINDOW <= s->width; x++) {
        double mean[MAPS] = {0};
        for (int i = 0; i < SSIM_WINDOW; i++) {
            const double *row =
                s->rows + ((y - SSIM_WINDOW + 1 + i) % SSIM_WINDOW) * MAPS * s->width;
            for (int m = 0; m < MAPS; m++) mean[m] += s->weights[i] * row[m * s->width + x];
        }
        double ua = mean[0], ub = mean[1];
        double va = s->covariance * (mean[2] - ua * ua);
        double vb = s->covariance * (mean[3] - ub * ub);
        double vab = s->covariance * (mean[4] - ua * ub);
        total += (2 * ua * ub + s->c1) * (2 * vab + s->c2) /
                 ((ua * ua + ub * ub + s->c1) * (va + vb + s->c2));
    }
    return total;
}

static void fill_line(const Picture *a, const Picture *b, const ScoreOptions *o, int64_t y, int c,
                      int64_t width, double *line) {
    for (int64_t x = 0; x < width; x++) {
        double va = picture_sample(a, o->alpha, x + o->border, y + o->border, c);
        double vb = picture_sample(b, o->alpha, x + o->border, y + o->border, c);
        line[x] = va;
        line[width + x] = vb;
        line[2 * width + x] = va * va;
        line[3 * width + x] = vb * vb;
        line[4 * width + x] = va * vb;
    }
}

Status ssim_of(const Picture *a, const Picture *b, const ScoreOptions *o, double range,
               double *out) {
    const double n = SSIM_WINDOW * SSIM_WINDOW;
    Ssim s = {.width = a->width - 2 * o->border,
              .height = a->height - 2 * o->border,
              .c1 = 0.01 * range * 0.01 * range,
              .c2 = 0.03 * range * 0.03 * range,
              .covariance = o->population_covariance ? 1 : n / (n - 1)};
    void *memory;
    TRY(mem_alloc(&memory, (SSIM_WINDOW + 1) * MAPS, (size_t)s.width * sizeof(double),
                  "rows for SSIM"));
    gaussian(s.weights);
    s.rows = memory;
    double *line = s.rows + SSIM_WINDOW * MAPS * s.width, total = 0;
    for (int c = 0; c < a->colors; c++) {
        for (int64_t y = 0; y < s.height; y++) {
            fill_line(a, b, o, y, c, s.width, line);
            filter_row(&s, line, y);
            if (y + 1 >= SSIM_WINDOW) total += window_row(&s, y);
        }
    }
    int64_t windows = (s.width - SSIM_WINDOW + 1) * (s.height - SSIM_WINDOW + 1) * a->colors;
    *out = total / (double)windows;
    mem_free(memory);
    return STATUS_OK;
}
