/* The step of LaCT's fast weights with its norms, written down here once more. */
#include <math.h>

#include "op_case.h"

/* ---- the step of the weights ---- */

/* p: matrices, rows, columns, matrices of w, columns of y before, behind; p[6]: 1 without norm, 2
 * without what only the backward wants, 3 without norm and u; p[7]: 1 for the other sign. Column 0
 * of w is zero, and that of u in matrix 0 as well. */
static double step_sign(const Run *r) {
    return r->p[7] ? -1.0 : 1.0;
}
static double step_offset(const Run *r) {
    return r->p[6] % 2 ? 0.0 : (double)1e-5f;
}

/* U has the dtype of the activations in every other case of BF16. */
static DType step_dtype(const Run *r) {
    return r->p[1] % 2 == 0 ? r->act : DTYPE_F32;
}

static double weight_value(int64_t i, void *user) {
    Run *r = user;
    return i % r->p[2] == 0 && r->p[2] > 1 ? 0.0 : 0.1 * random_normal(r);
}

static double step_value(int64_t i, void *user) {
    Run *r = user;
    return i < r->p[1] * r->p[2] ? weight_value(i, user) : 0.1 * random_normal(r);
}

typedef struct Stepping {
    Run *r;
    Tensor u, w, y;
} Stepping;

static double moved(const Stepping *s, int64_t o, int64_t i, int64_t j) {
    Run *r = s->r;
    const int64_t rows = r->p[1], columns = r->p[2];
    const double w = values(r, s->w)[(o % r->p[3] * rows + i) * columns + j];
    if (tensor_is_none(s->u)) return w;
    return w + step_sign(r) * values(r, s->u)[(o * rows + i) * columns + j];
}

/* |M| and |W| of a column. */
static void column_norms(const Stepping *s, int64_t o, int64_t j, double out[2]) {
    Run *r = s->r;
    const int64_t rows = r->p[1], columns = r->p[2];
    out[0] = out[1] = 0.0;
    for (int64_t i = 0; i < rows; i++) {
        out[0] += pow(moved(s, o, i, j), 2.0);
        out[1] += pow(values(r, s->w)[(o % r->p[3] * rows + i) * columns + j], 2.0);
    }
    out[0] = sqrt(out[0]);
    out[1] = sqrt(out[1]);
}

/* Factor k of column j of matrix o: what weight_step leaves in stats. */
static double column_factor(const Stepping *s, int64_t o, int64_t j, int k) {
    double norm[2];
    column_norms(s, o, j, norm);
    if (k == 0) return norm[1] / (norm[0] + step_offset(s->r));
    return norm[0] * norm[1] > 0.0 ? 1.0 / (norm[0] * norm[1]) : 0.0;
}

static void weight_step_body(Run *r) {
    const int64_t outer = r->p[0], rows = r->p[1], columns = r->p[2];
    const int64_t pitch = r->p[4] + columns + r->p[5];
    Stepping s = {.r = r};
    s.u = r->p[6] == 3
              ? tensor_none()
              : input_of(r, "u", step_dtype(r), SHAPE(outer, rows, columns), step_value, r);
    s.w = input_of(r, "w", DTYPE_F32, SHAPE(r->p[3], rows, columns), weight_value, r);
    Tensor y = in_place(r, "y", r->act, SHAPE(outer, rows, pitch), 1.0);
    Tensor stats =
        r->p[6] ? tensor_none() : output(r, "stats", DTYPE_F32, SHAPE(outer, columns, 2));
    const WeightStep part = {y, r->p[4], stats, s.u, s.w};
    CALL(r, weight_step, 1, &part, (float)step_sign(r), (float)step_offset(r));
    if (!r->reference) return;
    double *e = expected(r, y), *kept = expected(r, stats);
    for (int64_t i = 0; i < outer * rows * pitch; i++) e[i] = values(r, y)[i];
    for (int64_t o = 0; o < outer; o++)
        for (int64_t j = 0; j < columns; j++) {
            const double scale = r->p[6] % 2 ? 1.0 : column_factor(&s, o, j, 0);
            for (int k = 0; kept && k < 2; k++)
                kept[2 * (o * columns + j) + k] = column_factor(&s, o, j, k);
            for (int64_t i = 0; i < rows; i++)
                e[(o * rows + i) * pitch + r->p[4] + j] = scale * moved(&s, o, i, j);
        }
}

static double factor_value(int64_t i, void *user) {
    Run *r = user;
    return i / 2 % r->p[2] == 0 && i % 2 ? 0.0 : fabs(random_normal(r)) + 0.1;
}

static void weight_step_backward_body(Run *r) {
    const int64_t outer = r->p[0], rows = r->p[1], columns = r->p[2];
    const int64_t pitch = r->p[4] + columns + r->p[5];
    Tensor dy = input(r, "dy", r->act, SHAPE(outer, rows, pitch), 1.0);
    Tensor y = input(r, "y", r->act, SHAPE(outer, rows, pitch), 1.0 / sqrt((double)rows));
    Tensor stats = tensor_none();
    if (r->p[6] != 1)
        stats = input_of(r, "stats", DTYPE_F32, SHAPE(outer, columns, 2), factor_value, r);
    Grad du = gradient(r, "du", step_dtype(r), SHAPE(outer, rows, columns));
    Grad dw = gradient(r, "dw", DTYPE_F32, SHAPE(r->p[3], rows, columns));
    const WeightSlope part = {du, dw, dy, r->p[4], y, stats};
    CALL(r, weight_step_backward, 1, &part, (float)step_sign(r));
    r->coarse = du.t.dtype == DTYPE_BF16; /* dw may be a sum of rounded steps */
    if (!r->reference) return;
    double *eu = expected(r, du.t), *ew = expected(r, dw.t);
    for (int64_t o = 0; o < outer; o++)
        for (int64_t j = 0; j < columns; j++) {
            const int64_t from = o * rows * pitch + r->p[4] + j;
            const double *f = stats.data ? values(r, stats) + 2 * (o * columns + j) : NULL;
            double dot = 0.0;
            for (int64_t i = 0; i < rows; i++)
                dot += values(r, dy)[from + i * pitch] * values(r, y)[from + i * pitch];
            for (int64_t i = 0; i < rows; i++) {
                double dm = values(r, dy)[from + i * pitch];
                if (f) dm = f[0] * dm - f[1] * dot * values(r, y)[from + i * pitch];
                if (eu) eu[(o * rows + i) * columns + j] = step_sign(r) * dm;
                if (ew) ew[(o % r->p[3] * rows + i) * columns + j] += dm;
            }
        }
}

#define BOTH  (IN_BOTH | ANY_THREADS)
#define BENCH (IN_BF16 | ONLY_BENCH)

const OpCase cases_weight_step[] = {
    {"weight_step", weight_step_body, {1, 1, 1, 1}, BOTH, 0},
    {"weight_step", weight_step_body, {4, 8, 12, 2, 0, 12}, BOTH, 0},
    {"weight_step", weight_step_body, {3, 33, 35, 1, 3, 2, 0, 1}, BOTH, 0},
    {"weight_step", weight_step_body, {2, 768, 72, 1, 72, 0}, BOTH, 0},
    {"weight_step", weight_step_body, {2, 1000, 40, 1, 0, 0}, BOTH, 0},
    {"weight_step", weight_step_body, {4, 40, 24, 2, 0, 0, 1, 1}, BOTH, 0},
    {"weight_step", weight_step_body, {4, 40, 24, 2, 0, 0, 2}, BOTH, 0},
    {"weight_step", weight_step_body, {3, 33, 35, 1, 3, 2, 3}, BOTH, 0},
    {"weight_step", weight_step_body, {4, 40, 24, 2, 24, 0, 3}, BOTH, 0},
    /* many matrices */
    {"weight_step", weight_step_body, {92, 46, 72, 2, 8, 0}, BOTH, 0},
    {"weight_step", weight_step_body, {70, 100, 136, 1, 0, 8}, BOTH, 0},
    {"weight_step", weight_step_body, {32, 768, 768, 1, 768, 0}, BENCH, 0},
    {"weight_step_backward", weight_step_backward_body, {1, 1, 1, 1}, BOTH, 0},
    {"weight_step_backward", weight_step_backward_body, {4, 8, 12, 2, 0, 12}, BOTH, 0},
    {"weight_step_backward", weight_step_backward_body, {3, 33, 35, 1, 3, 2, 0, 1}, BOTH, 0},
    {"weight_step_backward", weight_step_backward_body, {5, 768, 72, 1, 72, 0}, BOTH, 0},
    {"weight_step_backward", weight_step_backward_body, {2, 1000, 40, 1, 0, 0}, BOTH, 0},
    {"weight_step_backward", weight_step_backward_body, {4, 40, 24, 2, 0, 0, 1, 1}, BOTH, 0},
    {"weight_step_backward", weight_step_backward_body, {92, 46, 72, 2, 8, 0}, BOTH, 0},
    {"weight_step_backward", weight_step_backward_body, {70, 100, 136, 1, 0, 8}, BOTH, 0},
    {"weight_step_backward", weight_step_backward_body, {32, 768, 768, 1, 768, 0}, BENCH, 0},
    {0},
};
