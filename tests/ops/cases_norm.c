#include <math.h>

#include "op_case.h"

#define EPS 1e-6

static void row_moments(const double *x, int64_t width, double *mean, double *rstd) {
    double m = 0.0, v = 0.0;
    for (int64_t c = 0; c < width; c++) m += x[c] / (double)width;
    for (int64_t c = 0; c < width; c++) v += (x[c] - m) * (x[c] - m) / (double)width;
    *mean = m;
    *rstd = 1.0 / sqrt(v + (double)(float)EPS);
}

/* Row of x [B,N,C] that row i of its first n tokens [B,n,C] is; p: B*n, C, n, N. */
static int64_t row_of(int64_t i, int64_t n, int64_t all) {
    return i / n * all + i % n;
}

/* The first p[2] of p[3] tokens of each sample; p: rows, width. */
static void layernorm_tokens_body(Run *r) {
    const int64_t rows = r->p[0], width = r->p[1], n = r->p[2], all = r->p[3], batch = rows / n;
    Tensor x = input(r, "x", r->act, SHAPE(batch, all, width), 2.0);
    Tensor w = input(r, "w", DTYPE_F32, SHAPE(width), 1.0);
    Tensor b = input(r, "b", DTYPE_F32, SHAPE(width), 1.0);
    Tensor y = output(r, "y", r->act, SHAPE(batch, n, width));
    Tensor stats = output(r, "stats", DTYPE_F32, SHAPE(rows, 2));
    CALL(r, layernorm, y, stats, x, w, b, (float)EPS);
    if (!r->reference) return;
    double *e = expected(r, y), *s = expected(r, stats);
    for (int64_t i = 0; i < rows; i++) {
        const double *from = values(r, x) + row_of(i, n, all) * width;
        row_moments(from, width, &s[2 * i], &s[2 * i + 1]);
        for (int64_t c = 0; c < width; c++)
            e[i * width + c] =
                (from[c] - s[2 * i]) * s[2 * i + 1] * values(r, w)[c] + values(r, b)[c];
    }
}

/* p: rows, width; p[2]: 1 without stats, 2 stats alone. */
static void layernorm_body(Run *r) {
    const int64_t rows = r->p[0], width = r->p[1];
    Tensor x = input(r, "x", r->act, SHAPE(rows, width), 2.0);
    const bool alone = r->p[2] == 2;
    Tensor w = alone ? tensor_none() : input(r, "w", DTYPE_F32, SHAPE(width), 1.0);
    Tensor b = alone ? tensor_none() : input(r, "b", DTYPE_F32, SHAPE(width), 1.0);
    Tensor y = alone ? tensor_none() : output(r, "y", r->act, SHAPE(rows, width));
    Tensor stats = r->p[2] == 1 ? tensor_none() : output(r, "stats", DTYPE_F32, SHAPE(rows, 2));
    CALL(r, layernorm, y, stats, x, w, b, (float)EPS);
    if (!r->reference) return;
    double *e = expected(r, y), *s = expected(r, stats);
    for (int64_t i = 0; i < rows; i++) {
        double mean, rstd;
        row_moments(values(r, x) + i * width, width, &mean, &rstd);
        if (s) s[2 * i] = mean;
        if (s) s[2 * i + 1] = rstd;
        for (int64_t c = 0; c < width && e; c++)
            e[i * width + c] =
                (values(r, x)[i * width + c] - mean) * rstd * values(r, w)[c] + values(r, b)[c];
    }
}

typedef struct Stats {
    Run *r;
    Tensor x;
    int64_t width;
} Stats;

static double stats_value(int64_t i, void *user) {
    const Stats *s = user;
    double mean, rstd;
    row_moments(values(s->r, s->x) + i / 2 * s->width, s->width, &mean, &rstd);
    return i % 2 ? rstd : mean;
}

static double tokens_stats_value(int64_t i, void *user) {
    const Stats *s = user;
    double mean, rstd;
    const int64_t row = row_of(i / 2, s->r->p[2], s->r->p[3]);
    row_moments(values(s->r, s->x) + row * s->width, s->width, &mean, &rstd);
    return i % 2 ? rstd : mean;
}

/* p as layernorm_tokens; p[4]: 1 the norm's result once more, in the place of dy. */
static void layernorm_tokens_backward_body(Run *r) {
    const int64_t rows = r->p[0], width = r->p[1], n = r->p[2], all = r->p[3], batch = rows / n;
    Tensor dy = r->p[4] ? in_place(r, "dy", r->act, SHAPE(batch, n, width), 1.0)
                        : input(r, "dy", r->act, SHAPE(batch, n, width), 1.0);
    Tensor x = input(r, "x", r->act, SHAPE(batch, all, width), 2.0);
    Tensor w = input(r, "w", DTYPE_F32, SHAPE(width), 1.0);
    Stats s = {r, x, width};
    Tensor stats = input_of(r, "stats", DTYPE_F32, SHAPE(rows, 2), tokens_stats_value, &s);
    Tensor to = in_place(r, "dx", r->act, SHAPE(batch, all, width), 1.0);
    Grad dw = gradient(r, "dw", DTYPE_F32, SHAPE(width));
    const Tensor y = r->p[4] ? dy : tensor_none(), none = tensor_none();
    CALL(r, layernorm_backward, (Grad){to, true}, dw, grad_none(), y, dy, x, w, none, stats, none,
         none);
    if (!r->reference) return;
    double *ex = expected(r, to), *ew = expected(r, dw.t), *ey = expected(r, y);
    for (int64_t i = 0; i < batch * all * width; i++) ex[i] = values(r, to)[i];
    for (int64_t i = 0; i < rows; i++) {
        const int64_t from = row_of(i, n, all) * width;
        const double *v = values(r, x) + from, *g = values(r, dy) + i * width;
        double mean, rstd, mean_u = 0.0, mean_ux = 0.0;
        row_moments(v, width, &mean, &rstd);
        for (int64_t c = 0; c < width; c++) {
            const double u = g[c] * values(r, w)[c], xhat = (v[c] - mean) * rstd;
            mean_u += u / (double)width;
            mean_ux += u * xhat / (double)width;
            if (ew) ew[c] += g[c] * xhat;
            if (ey) ey[i * width + c] = xhat * values(r, w)[c];
        }
        for (int64_t c = 0; c < width; c++)
            ex[from + c] +=
                rstd * (g[c] * values(r, w)[c] - mean_u - (v[c] - mean) * rstd * mean_ux);
    }
}

/* p: rows, width, samples with a scale (0: no scaled copy); p[3]: 1 the norm's result once more, 2
 * in the place of dy, 3 so without b. */
static void layernorm_backward_body(Run *r) {
    const int64_t rows = r->p[0], width = r->p[1];
    Tensor dy = r->p[3] > 1 ? in_place(r, "dy", r->act, SHAPE(rows, width), 1.0)
                            : input(r, "dy", r->act, SHAPE(rows, width), 1.0);
    Tensor x = input(r, "x", r->act, SHAPE(rows, width), 2.0);
    Tensor w = input(r, "w", DTYPE_F32, SHAPE(width), 1.0);
    Stats s = {r, x, width};
    Tensor stats = input_of(r, "stats", DTYPE_F32, SHAPE(rows, 2), stats_value, &s);
    Grad dx = gradient(r, "dx", r->act, SHAPE(rows, width));
    Grad dw = gradient(r, "dw", DTYPE_F32, SHAPE(width));
    Grad db = gradient(r, "db", DTYPE_F32, SHAPE(width));
    Tensor scaled = tensor_none(), scale = tensor_none();
    if (r->p[2]) scale = input(r, "scale", DTYPE_F32, SHAPE(r->p[2]), 1.0);
    if (r->p[2] && dx.t.data) scaled = output(r, "scaled", r->act, SHAPE(rows, width));
    Tensor y = tensor_none(), b = tensor_none();
    if (r->p[3]) y = r->p[3] == 1 ? output(r, "y", r->act, SHAPE(rows, width)) : dy;
    if (r->p[3] % 3) b = input(r, "b", DTYPE_F32, SHAPE(width), 1.0);
    CALL(r, layernorm_backward, dx, dw, db, y, dy, x, w, b, stats, scaled, scale);
    if (!r->reference) return;
    /* Of a row of one value nothing is left but the rounding of u - mean(u), times rstd =
     * 1/sqrt(eps). */
    if (width == 1) r->cancelled = 1.0 / sqrt(EPS);
    double *ex = expected(r, dx.t), *ew = expected(r, dw.t), *eb = expected(r, db.t);
    double *ey = expected(r, y);
    for (int64_t i = 0; i < rows; i++) {
        const double *v = values(r, x) + i * width, *g = values(r, dy) + i * width;
        double mean, rstd, mean_u = 0.0, mean_ux = 0.0;
        row_moments(v, width, &mean, &rstd);
        for (int64_t c = 0; c < width; c++) {
            const double u = g[c] * values(r, w)[c], xhat = (v[c] - mean) * rstd;
            mean_u += u / (double)width;
            mean_ux += u * xhat / (double)width;
            if (ew) ew[c] += g[c] * xhat;
            if (eb) eb[c] += g[c];
            if (ey) ey[i * width + c] = xhat * values(r, w)[c] + (b.data ? values(r, b)[c] : 0.0);
        }
        for (int64_t c = 0; ex && c < width; c++)
            ex[i * width + c] =
                rstd * (g[c] * values(r, w)[c] - mean_u - (v[c] - mean) * rstd * mean_ux);
    }
    double *es = expected(r, scaled);
    for (int64_t i = 0; es && i < rows * width; i++)
        es[i] = values(r, scale)[i / width / (rows / r->p[2])] *
                (ex[i] + (dx.add ? values(r, dx.t)[i] : 0.0));
}

/* p: outer, reduce, inner; p[3]: 1 without norms, 2 without y; p[4]: the offset is 10^-p[4]; p[5]:
 * rows of the gain, 0 without. Column 0 of every softnorm input is zero. */
static double offset_of(const Run *r) {
    return (double)(float)pow(10.0, -(double)r->p[4]);
}

static Tensor gain_input(Run *r) {
    if (r->p[5] == 0) return tensor_none();
    return input(r, "gain", DTYPE_F32, SHAPE(r->p[5], r->p[2]), 1.0);
}

static double gain_of(Run *r, Tensor gain, int64_t o, int64_t i) {
    return gain.data ? values(r, gain)[o % r->p[5] * r->p[2] + i] : 1.0;
}

static double softnorm_value(int64_t i, void *user) {
    Run *r = user;
    return i % r->p[2] == 0 && r->p[2] > 1 ? 0.0 : random_normal(r);
}

static double column_norm(Run *r, Tensor g, int64_t o, int64_t i) {
    const int64_t reduce = r->p[1], inner = r->p[2];
    double sum = 0.0;
    for (int64_t j = 0; j < reduce; j++)
        sum += pow(values(r, g)[(o * reduce + j) * inner + i], 2.0);
    return sqrt(sum);
}

static void softnorm_body(Run *r) {
    const int64_t outer = r->p[0], reduce = r->p[1], inner = r->p[2];
    Tensor g = input_of(r, "g", r->act, SHAPE(outer, reduce, inner), softnorm_value, r);
    Tensor gain = gain_input(r), y = tensor_none();
    if (r->p[3] != 2) y = output(r, "y", r->act, SHAPE(outer, reduce, inner));
    Tensor norms =
        r->p[3] == 1 ? tensor_none() : output(r, "norms", DTYPE_F32, SHAPE(outer, inner));
    CALL(r, softnorm, y, norms, g, gain, (float)offset_of(r));
    if (!r->reference) return;
    double *e = expected(r, y), *n = expected(r, norms);
    for (int64_t o = 0; o < outer; o++) {
        for (int64_t i = 0; i < inner; i++) {
            const double norm = column_norm(r, g, o, i);
            if (n) n[o * inner + i] = norm;
            for (int64_t j = 0; e && j < reduce; j++) {
                const int64_t at = (o * reduce + j) * inner + i;
                e[at] = gain_of(r, gain, o, i) * values(r, g)[at] / (norm + offset_of(r));
            }
        }
    }
}

typedef struct Norms {
    Run *r;
    Tensor g;
} Norms;

static double norms_value(int64_t i, void *user) {
    const Norms *n = user;
    return column_norm(n->r, n->g, i / n->r->p[2], i % n->r->p[2]);
}

static void softnorm_backward_body(Run *r) {
    const int64_t outer = r->p[0], reduce = r->p[1], inner = r->p[2];
    Tensor g = input_of(r, "g", r->act, SHAPE(outer, reduce, inner), softnorm_value, r);
    Tensor dy = input(r, "dy", r->act, SHAPE(outer, reduce, inner), 1.0);
    Tensor gain = gain_input(r);
    Norms user = {r, g};
    Tensor norms = input_of(r, "norms", DTYPE_F32, SHAPE(outer, inner), norms_value, &user);
    Grad dg = gradient(r, "dg", r->act, SHAPE(outer, reduce, inner));
    CALL(r, softnorm_backward, dg, dy, g, norms, gain, (float)offset_of(r));
    double *e = r->reference ? expected(r, dg.t) : NULL;
    for (int64_t oi = 0; e && oi < outer * inner; oi++) {
        const int64_t o = oi / inner, i = oi % inner;
        const double norm = column_norm(r, g, o, i), c = gain_of(r, gain, o, i);
        const double rate = 1.0 / (norm + offset_of(r));
        double t = 0.0;
        for (int64_t j = 0; j < reduce; j++) {
            const int64_t at = (o * reduce + j) * inner + i;
            t += values(r, g)[at] * values(r, dy)[at];
        }
        for (int64_t j = 0; j < reduce; j++) {
            const int64_t at = (o * reduce + j) * inner + i;
            e[at] = c * rate * values(r, dy)[at];
            if (norm > 0.0) e[at] -= c * rate * rate * t / norm * values(r, g)[at];
        }
    }
}

#define BOTH (IN_BOTH | ANY_THREADS)
#define F32  (IN_F32 | ANY_THREADS)

const OpCase cases_norm[] = {
    {"layernorm", layernorm_body, {1, 1}, BOTH, 0},
    {"layernorm", layernorm_body, {5, 24}, BOTH, 0},
    {"layernorm", layernorm_body, {150, 191, 1}, BOTH, 0},
    {"layernorm", layernorm_body, {3, 2500}, BOTH, 0},
    {"layernorm", layernorm_body, {35, 768, 2}, BOTH, 0},
    {"layernorm", layernorm_body, {9, 191, 2}, BOTH, 0},
    {"layernorm", layernorm_tokens_body, {15, 24, 5, 7}, BOTH, 0},
    {"layernorm", layernorm_tokens_body, {14, 191, 7, 20}, BOTH, 0},
    {"layernorm", layernorm_tokens_body, {66, 768, 33, 100}, BOTH, 0},
    {"layernorm_backward", layernorm_tokens_backward_body, {15, 24, 5, 7}, BOTH, 0},
    {"layernorm_backward", layernorm_tokens_backward_body, {14, 191, 7, 20, 1}, BOTH, 0},
    {"layernorm_backward", layernorm_tokens_backward_body, {66, 768, 33, 100, 1}, BOTH, 0},
    {"layernorm_backward", layernorm_backward_body, {1, 1}, BOTH, 0},
    {"layernorm_backward", layernorm_backward_body, {7, 24}, BOTH, 0},
    {"layernorm_backward", layernorm_backward_body, {333, 191}, BOTH, 0},
    {"layernorm_backward", layernorm_backward_body, {19, 1500}, BOTH, 0},
    {"layernorm_backward", layernorm_backward_body, {12, 191, 3}, BOTH, 0},
    {"layernorm_backward", layernorm_backward_body, {700, 192, 7}, BOTH, 0},
    {"layernorm_backward", layernorm_backward_body, {90, 768, 90}, BOTH, 0},
    {"layernorm_backward", layernorm_backward_body, {333, 191, 0, 1}, BOTH, 0},
    {"layernorm_backward", layernorm_backward_body, {700, 192, 7, 2}, BOTH, 0},
    {"layernorm_backward", layernorm_backward_body, {90, 768, 0, 3}, BOTH, 0},
    {"softnorm", softnorm_body, {1, 1, 1}, F32, 0},
    {"softnorm", softnorm_body, {6, 8, 8}, F32, 0},
    {"softnorm", softnorm_body, {5, 9, 1, 1}, F32, 0},
    {"softnorm", softnorm_body, {3, 33, 1031}, F32, 0},
    {"softnorm", softnorm_body, {7, 33, 5, 0, 5}, BOTH, 0},
    {"softnorm", softnorm_body, {3, 40, 600, 0, 5}, BOTH, 0},
    {"softnorm", softnorm_body, {37, 64, 1, 0, 5}, BOTH, 0},
    {"softnorm", softnorm_body, {300, 65, 1, 1, 5}, BOTH, 0},
    {"softnorm", softnorm_body, {3, 2500, 1}, BOTH, 0},
    {"softnorm", softnorm_body, {3, 20011, 1, 1, 5}, BOTH, 0},
    {"softnorm", softnorm_body, {6, 33, 300, 0, 5, 2}, BOTH, 0},
    {"softnorm", softnorm_body, {6, 33, 1, 0, 5, 3}, BOTH, 0},
    {"softnorm", softnorm_body, {4, 17000, 1, 0, 5, 2}, BOTH, 0},
    {"softnorm", softnorm_body, {3, 33, 5, 2, 5}, BOTH, 0},
    {"softnorm", softnorm_body, {3, 40, 1, 2, 5}, BOTH, 0},
    {"softnorm", softnorm_body, {3, 17000, 1, 2, 5}, BOTH, 0},
    {"softnorm", softnorm_body, {1, 40000, 1, 0, 7}, BOTH, 0},
    {"softnorm_backward", softnorm_backward_body, {1, 1, 1}, F32, 0},
    {"softnorm_backward", softnorm_backward_body, {6, 8, 8}, F32, 0},
    {"softnorm_backward", softnorm_backward_body, {5, 9, 1}, F32, 0},
    {"softnorm_backward", softnorm_backward_body, {3, 33, 1031}, F32, 0},
    {"softnorm_backward", softnorm_backward_body, {7, 33, 5, 0, 1}, BOTH, 0},
    {"softnorm_backward", softnorm_backward_body, {3, 40, 600, 0, 5}, BOTH, 0},
    {"softnorm_backward", softnorm_backward_body, {37, 64, 1, 0, 5}, BOTH, 0},
    {"softnorm_backward", softnorm_backward_body, {300, 65, 1, 0, 5}, BOTH, 0},
    {"softnorm_backward", softnorm_backward_body, {3, 2500, 1}, BOTH, 0},
    {"softnorm_backward", softnorm_backward_body, {3, 20011, 1, 0, 5}, BOTH, 0},
    {"softnorm_backward", softnorm_backward_body, {6, 33, 300, 0, 5, 2}, BOTH, 0},
    {"softnorm_backward", softnorm_backward_body, {6, 33, 1, 0, 5, 3}, BOTH, 0},
    {"softnorm_backward", softnorm_backward_body, {4, 17000, 1, 0, 5, 2}, BOTH, 0},
    {"softnorm_backward", softnorm_backward_body, {1, 40000, 1, 0, 7}, BOTH, 0},
    {"layernorm", layernorm_body, {196, 192}, IN_BOTH | ONLY_BENCH, 0},
    {"layernorm", layernorm_body, {6272, 192}, IN_BOTH | ONLY_BENCH, 0},
    {"layernorm_backward", layernorm_backward_body, {6272, 192}, IN_BOTH | ONLY_BENCH, 0},
    {"softnorm", softnorm_body, {2048, 768, 1, 0, 5}, IN_BOTH | ONLY_BENCH, 0},
    {"softnorm", softnorm_body, {1, 768 * 768, 1, 0, 7}, IN_F32 | ONLY_BENCH, 0},
    {"softnorm", softnorm_body, {1, 768, 768, 0, 5}, IN_F32 | ONLY_BENCH, 0},
    {"softnorm_backward", softnorm_backward_body, {2048, 768, 1, 0, 5}, IN_BOTH | ONLY_BENCH, 0},
    {0},
};
