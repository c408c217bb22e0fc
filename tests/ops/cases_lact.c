/* The slots that LaCT adds: norms and softmax of rows, their inner products, the square error. */
#include <math.h>

#include "op_case.h"

#define EPS 1e-5

static double row_rate(const double *x, int64_t width) {
    double squares = 0.0;
    for (int64_t c = 0; c < width; c++) squares += x[c] * x[c] / (double)width;
    return 1.0 / sqrt(squares + (double)(float)EPS);
}

/* p: rows, width; p[2]: 1 without rstd. */
static void rmsnorm_body(Run *r) {
    const int64_t rows = r->p[0], width = r->p[1];
    Tensor x = input(r, "x", r->act, SHAPE(rows, width), 2.0);
    Tensor w = input(r, "w", DTYPE_F32, SHAPE(width), 1.0);
    Tensor y = output(r, "y", r->act, SHAPE(rows, width));
    Tensor rstd = r->p[2] ? tensor_none() : output(r, "rstd", DTYPE_F32, SHAPE(rows));
    CALL(r, rmsnorm, y, rstd, x, w, (float)EPS);
    if (!r->reference) return;
    double *e = expected(r, y), *kept = expected(r, rstd);
    for (int64_t i = 0; i < rows; i++) {
        const double *in = values(r, x) + i * width, rate = row_rate(in, width);
        if (kept) kept[i] = rate;
        for (int64_t c = 0; c < width; c++) e[i * width + c] = in[c] * rate * values(r, w)[c];
    }
}

typedef struct Rates {
    Run *r;
    Tensor x;
} Rates;

static double rate_value(int64_t i, void *user) {
    const Rates *s = user;
    return row_rate(values(s->r, s->x) + i * s->r->p[1], s->r->p[1]);
}

static void rmsnorm_backward_body(Run *r) {
    const int64_t rows = r->p[0], width = r->p[1];
    Tensor dy = r->p[3] == 2 ? in_place(r, "dy, y", r->act, SHAPE(rows, width), 1.0)
                             : input(r, "dy", r->act, SHAPE(rows, width), 1.0);
    Tensor x = input(r, "x", r->act, SHAPE(rows, width), 2.0);
    Tensor w = input(r, "w", DTYPE_F32, SHAPE(width), 1.0);
    Rates user = {r, x};
    Tensor rstd = input_of(r, "rstd", DTYPE_F32, SHAPE(rows), rate_value, &user);
    Grad dx = gradient(r, "dx", r->act, SHAPE(rows, width));
    Grad dw = gradient(r, "dw", DTYPE_F32, SHAPE(width));
    /* p[3]: 1 for the normed rows once more, 2 in the place of dy */
    Tensor y = r->p[3] == 0   ? tensor_none()
               : r->p[3] == 1 ? output(r, "y", r->act, SHAPE(rows, width))
                              : dy;
    CALL(r, rmsnorm_backward, dx, dw, y, dy, x, w, rstd);
    if (!r->reference) return;
    double *again = r->p[3] ? expected(r, y) : NULL;
    for (int64_t i = 0; again && i < rows * width; i++)
        again[i] = values(r, w)[i % width] * values(r, x)[i] * values(r, rstd)[i / width];
    /* Of a row of one value nothing but w dy r (1 - x^2 r^2) is left, near eps. */
    if (width == 1) r->cancelled = 1.0;
    double *ex = expected(r, dx.t), *ew = expected(r, dw.t);
    for (int64_t i = 0; i < rows; i++) {
        const double *in = values(r, x) + i * width, *g = values(r, dy) + i * width;
        const double rate = row_rate(in, width);
        double mean = 0.0;
        for (int64_t c = 0; c < width; c++) {
            mean += in[c] * values(r, w)[c] * g[c] / (double)width;
            if (ew) ew[c] += g[c] * in[c] * rate;
        }
        for (int64_t c = 0; ex && c < width; c++)
            ex[i * width + c] = rate * values(r, w)[c] * g[c] - in[c] * pow(rate, 3.0) * mean;
    }
}

/* p: rows, width, spread of x. The scale is 1/8, or -1/8 with p[3] == 1. */
static double softmax_scale(const Run *r) {
    return r->p[3] == 1 ? -0.125 : 0.125;
}

static void softmax_body(Run *r) {
    const int64_t rows = r->p[0], width = r->p[1];
    const double scale = softmax_scale(r);
    Tensor x = input(r, "x", r->act, SHAPE(rows, width), (double)r->p[2]);
    Tensor y = output(r, "y", r->act, SHAPE(rows, width));
    CALL(r, softmax, y, x, (float)scale);
    if (!r->reference) return;
    double *e = expected(r, y);
    for (int64_t i = 0; i < rows; i++) {
        const double *in = values(r, x) + i * width;
        double top = -INFINITY, sum = 0.0;
        for (int64_t c = 0; c < width; c++) top = fmax(top, scale * in[c]);
        for (int64_t c = 0; c < width; c++) sum += exp(scale * in[c] - top);
        for (int64_t c = 0; c < width; c++) e[i * width + c] = exp(scale * in[c] - top) / sum;
    }
}

static double share_value(int64_t i, void *user) {
    Run *r = user;
    return i % 5 == 2 ? 0.0 : 2.0 * random_uniform(r) / (double)r->p[1];
}

static void softmax_backward_body(Run *r) {
    const int64_t rows = r->p[0], width = r->p[1];
    Tensor dy = input(r, "dy", r->act, SHAPE(rows, width), 1.0);
    Tensor y = input_of(r, "y", r->act, SHAPE(rows, width), share_value, r);
    Grad dx = gradient(r, "dx", r->act, SHAPE(rows, width));
    CALL(r, softmax_backward, dx, dy, y, (float)softmax_scale(r));
    double *e = r->reference ? expected(r, dx.t) : NULL;
    for (int64_t i = 0; e && i < rows; i++) {
        const double *p = values(r, y) + i * width, *g = values(r, dy) + i * width;
        double mean = 0.0;
        for (int64_t c = 0; c < width; c++) mean += p[c] * g[c];
        for (int64_t c = 0; c < width; c++)
            e[i * width + c] = softmax_scale(r) * p[c] * (g[c] - mean);
    }
}

/* p: rows, width. */
static void row_dot_body(Run *r) {
    const int64_t rows = r->p[0], width = r->p[1];
    Tensor x = input(r, "x", r->act, SHAPE(rows, width), 1.0);
    Tensor y = input(r, "y", r->act, SHAPE(rows, width), 1.0);
    Grad s = gradient(r, "s", DTYPE_F32, SHAPE(rows));
    CALL(r, row_dot, s, x, y);
    double *e = r->reference ? expected(r, s.t) : NULL;
    if (e) r->cancelled = sqrt((double)width); /* terms of both signs */
    for (int64_t i = 0; e && i < rows * width; i++)
        e[i / width] += values(r, x)[i] * values(r, y)[i];
}

/* p: elements. */
static void mse_body(Run *r) {
    const int64_t n = r->p[0];
    Tensor x = input(r, "x", r->act, SHAPE(n), 1.0);
    Tensor target = input(r, "target", DTYPE_F32, SHAPE(n), 1.0);
    Tensor loss = output(r, "loss", DTYPE_F32, SHAPE(1));
    CALL(r, mse, loss, x, target);
    double *e = r->reference ? expected(r, loss) : NULL;
    for (int64_t i = 0; e && i < n; i++)
        e[0] += pow(values(r, x)[i] - values(r, target)[i], 2.0) / (double)n;
}

static void mse_backward_body(Run *r) {
    const int64_t n = r->p[0];
    Tensor dloss = input(r, "dloss", DTYPE_F32, SHAPE(1), 1.0);
    Tensor x = input(r, "x", r->act, SHAPE(n), 1.0);
    Tensor target = input(r, "target", DTYPE_F32, SHAPE(n), 1.0);
    Grad dx = gradient(r, "dx", r->act, SHAPE(n));
    CALL(r, mse_backward, dx, dloss, x, target);
    double *e = r->reference ? expected(r, dx.t) : NULL;
    for (int64_t i = 0; e && i < n; i++)
        e[i] = values(r, dloss)[0] * 2.0 * (values(r, x)[i] - values(r, target)[i]) / (double)n;
}

#define BOTH  (IN_BOTH | ANY_THREADS)
#define BENCH (IN_BOTH | ONLY_BENCH)

const OpCase cases_lact[] = {
    {"rmsnorm", rmsnorm_body, {1, 1}, BOTH, 0},
    {"rmsnorm", rmsnorm_body, {5, 64}, BOTH, 0},
    {"rmsnorm", rmsnorm_body, {150, 191, 1}, BOTH, 0},
    {"rmsnorm", rmsnorm_body, {9, 768}, BOTH, 0},
    {"rmsnorm", rmsnorm_body, {3, 2500}, BOTH, 0},
    {"rmsnorm", rmsnorm_body, {2048 * 12, 64}, BENCH, 0},
    {"rmsnorm_backward", rmsnorm_backward_body, {1, 1}, BOTH, 0},
    {"rmsnorm_backward", rmsnorm_backward_body, {7, 64}, BOTH, 0},
    {"rmsnorm_backward", rmsnorm_backward_body, {333, 191}, BOTH, 0},
    {"rmsnorm_backward", rmsnorm_backward_body, {700, 768}, BOTH, 0},
    {"rmsnorm_backward", rmsnorm_backward_body, {35, 768, 0, 2}, BOTH, 0},
    {"rmsnorm_backward", rmsnorm_backward_body, {35, 100, 0, 1}, BOTH, 0},
    {"rmsnorm_backward", rmsnorm_backward_body, {35, 1000, 0, 2}, BOTH, 0},
    {"rmsnorm_backward", rmsnorm_backward_body, {19, 1500}, BOTH, 0},
    {"rmsnorm_backward", rmsnorm_backward_body, {2048 * 12, 64}, BENCH, 0},
    {"softmax", softmax_body, {1, 1, 1}, BOTH, 0},
    {"softmax", softmax_body, {5, 64, 8}, BOTH, 0},
    {"softmax", softmax_body, {130, 257, 8}, BOTH, 0},
    {"softmax", softmax_body, {33, 31, 8, 1}, BOTH, 0},
    {"softmax", softmax_body, {3, 2500, 40}, BOTH, 0},
    {"softmax", softmax_body, {7, 12, 3000}, BOTH, 8},
    {"softmax", softmax_body, {12 * 256, 256, 8}, BENCH, 0},
    {"softmax_backward", softmax_backward_body, {1, 1}, BOTH, 0},
    {"softmax_backward", softmax_backward_body, {5, 64}, BOTH, 0},
    {"softmax_backward", softmax_backward_body, {130, 257, 0, 1}, BOTH, 0},
    {"softmax_backward", softmax_backward_body, {3, 2500}, BOTH, 0},
    {"softmax_backward", softmax_backward_body, {12 * 256, 256}, BENCH, 0},
    {"row_dot", row_dot_body, {1, 1}, BOTH, 0},
    {"row_dot", row_dot_body, {9, 33}, BOTH, 0},
    {"row_dot", row_dot_body, {300, 128}, BOTH, 0},
    {"row_dot", row_dot_body, {3, 2500}, BOTH, 0},
    {"row_dot", row_dot_body, {2048, 768}, BENCH, 0},
    {"mse", mse_body, {1}, BOTH, 0},
    {"mse", mse_body, {2051}, BOTH, 0},
    {"mse", mse_body, {300007}, BOTH, 0},
    {"mse", mse_body, {6 * 256 * 192}, BENCH, 0},
    {"mse_backward", mse_backward_body, {1}, BOTH, 0},
    {"mse_backward", mse_backward_body, {2051}, BOTH, 0},
    {"mse_backward", mse_backward_body, {40007}, BOTH, 0},
    {0},
};
