/* SSIM with scikit-image's Gaussian settings. Only pixels whose whole window lies inside count, so
 * the edges of the filter never matter. */
#include <math.h>
#include <string.h>

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

/* to[x] = sum over i of weights[i] * from[i][x]: tap by tap over all of the row, which vectorises.
 */
static void add_taps(const double *weights, const double *const *from, int64_t n, double *to) {
    memset(to, 0, (size_t)n * sizeof *to);
    for (int i = 0; i < SSIM_WINDOW; i++) {
        const double weight = weights[i], *tap = from[i];
        for (int64_t x = 0; x < n; x++) to[x] += weight * tap[x];
    }
}

static double *ring_row(const Ssim *s, int64_t y, int map) {
    return s->rows + ((y % SSIM_WINDOW) * MAPS + map) * s->width;
}

/* One row of products into the ring, filtered along x. `line` is [MAPS, width]. */
static void filter_row(const Ssim *s, const double *line, int64_t y) {
    for (int m = 0; m < MAPS; m++) {
        const double *taps[SSIM_WINDOW];
        for (int i = 0; i < SSIM_WINDOW; i++) taps[i] = line + m * s->width + i;
        add_taps(s->weights, taps, s->width - SSIM_WINDOW + 1, ring_row(s, y, m));
    }
}

/* Sum of SSIM over the row of windows whose last row is y. `line` is overwritten with the means. */
static double window_row(const Ssim *s, int64_t y, double *line) {
    const int64_t n = s->width - SSIM_WINDOW + 1;
    for (int m = 0; m < MAPS; m++) {
        const double *taps[SSIM_WINDOW];
        for (int i = 0; i < SSIM_WINDOW; i++) taps[i] = ring_row(s, y - SSIM_WINDOW + 1 + i, m);
        add_taps(s->weights, taps, n, line + m * s->width);
    }
    double total = 0;
    for (int64_t x = 0; x < n; x++) {
        double ua = line[x], ub = line[s->width + x];
        double va = s->covariance * (line[2 * s->width + x] - ua * ua);
        double vb = s->covariance * (line[3 * s->width + x] - ub * ub);
        double vab = s->covariance * (line[4 * s->width + x] - ua * ub);
        total += (2 * ua * ub + s->c1) * (2 * vab + s->c2) /
                 ((ua * ua + ub * ub + s->c1) * (va + vb + s->c2));
    }
    return total;
}

static void fill_line(const Picture *a, const Picture *b, const ScoreOptions *o, int64_t y, int c,
                      int64_t width, double *line) {
    for (int64_t x = 0; x < width; x++) {
        double va = score_sample(a, o, x + o->border, y + o->border, c);
        double vb = score_sample(b, o, x + o->border, y + o->border, c);
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
    for (int c = 0; c < score_channels(a, o); c++) {
        for (int64_t y = 0; y < s.height; y++) {
            fill_line(a, b, o, y, c, s.width, line);
            filter_row(&s, line, y);
            if (y + 1 >= SSIM_WINDOW) total += window_row(&s, y, line);
        }
    }
    int64_t windows =
        (s.width - SSIM_WINDOW + 1) * (s.height - SSIM_WINDOW + 1) * score_channels(a, o);
    *out = total / (double)windows;
    mem_free(memory);
    return STATUS_OK;
}
