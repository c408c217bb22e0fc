#include "op_case.h"

/* matmul p: leading dimensions (outer, inner) as a bit mask of which of A, B, C have them; sizes.
 * p[0..2]: m, n, k; p[3], p[4]: outer and inner count; p[5]: bits 1 A, 2 B, 4 C have the outer
 * dimension, 8, 16, 32 the inner one; p[6]: bit 1 ta, bit 2 tb, bit 4 C is F32, bit 8 rank 2, bit
 * 16 rank 3; p[7]: alpha in tenths. */

typedef struct Matrix {
    Tensor t;
    int64_t outer, inner, rows, columns;
    bool transposed;
} Matrix;

static Matrix matrix(Run *r, int bit, int64_t rows, int64_t columns, bool transposed) {
    Matrix m = {.outer = r->p[5] & bit ? r->p[3] : 1,
                .inner = r->p[5] & (8 * bit) ? r->p[4] : 1,
                .rows = transposed ? columns : rows,
                .columns = transposed ? rows : columns,
                .transposed = transposed};
    return m;
}

static int shape_of(Run *r, const Matrix *m, int64_t shape[4]) {
    const int rank = r->p[6] & 8 ? 2 : r->p[6] & 16 ? 3 : 4;
    const int64_t all[4] = {m->outer, m->inner, m->rows, m->columns};
    for (int i = 0; i < rank; i++) shape[i] = all[4 - rank + i];
    return rank;
}

/* op(M)[i][j] of matrix (o, n). */
static int64_t at(const Matrix *m, int64_t o, int64_t n, int64_t i, int64_t j) {
    const int64_t base = ((m->outer > 1 ? o : 0) * m->inner + (m->inner > 1 ? n : 0)) * m->rows;
    return m->transposed ? (base + j) * m->columns + i : (base + i) * m->columns + j;
}

static void matmul_body(Run *r) {
    const int64_t m = r->p[0], n = r->p[1], k = r->p[2];
    const bool ta = r->p[6] & 1, tb = r->p[6] & 2;
    const float alpha = r->p[7] ? (float)r->p[7] / 10.0f : 1.0f;
    Matrix a = matrix(r, 1, m, k, ta), b = matrix(r, 2, k, n, tb), c = matrix(r, 4, m, n, false);
    int64_t shape[4];
    int rank = shape_of(r, &a, shape);
    a.t = input(r, "a", r->act, rank, shape, 1.0);
    rank = shape_of(r, &b, shape);
    b.t = input(r, "b", r->act, rank, shape, 1.0);
    rank = shape_of(r, &c, shape);
    Grad y = gradient(r, "c", r->p[6] & 4 ? DTYPE_F32 : r->act, rank, shape);
    r->flops = 2.0 * (double)(m * n * k * r->p[3] * r->p[4]);
    CALL(r, matmul, y, a.t, ta, b.t, tb, alpha);
    double *e = r->reference ? expected(r, y.t) : NULL;
    if (!e) return;
    const double *x = values(r, a.t), *w = values(r, b.t);
    for (int64_t o = 0; o < r->p[3]; o++) {
        for (int64_t h = 0; h < r->p[4]; h++) {
            for (int64_t i = 0; i < m; i++) {
                for (int64_t j = 0; j < n; j++) {
                    double sum = 0.0;
                    for (int64_t l = 0; l < k; l++)
                        sum += x[at(&a, o, h, i, l)] * w[at(&b, o, h, l, j)];
                    e[at(&c, o, h, i, j)] += (double)alpha * sum;
                }
            }
        }
    }
}

/* linear p: M, I, O; p[3]: bit 1 without bias, bit 2 GELU, bit 4 keep pre. */
static void linear_body(Run *r) {
    const int64_t m = r->p[0], in = r->p[1], out = r->p[2];
    const bool biased = !(r->p[3] & 1), gelu = r->p[3] & 2, keep = r->p[3] & 4;
    Tensor x = input(r, "x", r->act, SHAPE(m, in), 1.0);
    Tensor w = input(r, "w", r->act, SHAPE(out, in), 0.5);
    Tensor bias = biased ? input(r, "bias", DTYPE_F32, SHAPE(out), 1.0) : tensor_none();
    Tensor y = output(r, "y", r->act, SHAPE(m, out));
    Tensor pre = keep ? output(r, "pre", r->act, SHAPE(m, out)) : tensor_none();
    r->flops = 2.0 * (double)(m * in * out);
    CALL(r, linear, y, pre, x, w, bias, gelu ? ACT_GELU : ACT_NONE);
    if (!r->reference) return;
    double *e = expected(r, y), *before = expected(r, pre);
    const double *from = values(r, x), *weight = values(r, w);
    for (int64_t i = 0; i < m; i++) {
        for (int64_t o = 0; o < out; o++) {
            double sum = biased ? values(r, bias)[o] : 0.0;
            for (int64_t l = 0; l < in; l++) sum += from[i * in + l] * weight[o * in + l];
            e[i * out + o] = gelu ? unary_reference(UNARY_GELU, sum) : sum;
            if (keep) before[i * out + o] = sum;
        }
    }
}

/* p: M, I, O, samples (0: no scale); p[4]: 1 in place. */
static void linear_residual_body(Run *r) {
    const int64_t m = r->p[0], in = r->p[1], out = r->p[2], samples = r->p[3];
    Tensor x = input(r, "x", r->act, SHAPE(m, in), 1.0);
    Tensor w = input(r, "w", r->act, SHAPE(out, in), 0.5);
    Tensor bias = input(r, "bias", DTYPE_F32, SHAPE(out), 1.0);
    Tensor scale = samples ? input(r, "scale", DTYPE_F32, SHAPE(samples), 1.0) : tensor_none();
    Tensor y, residual;
    if (r->p[4]) {
        y = residual = in_place(r, "y", r->act, SHAPE(m, out), 1.0);
    } else {
        y = output(r, "y", r->act, SHAPE(m, out));
        residual = input(r, "residual", r->act, SHAPE(m, out), 1.0);
    }
    r->flops = 2.0 * (double)(m * in * out);
    CALL(r, linear_residual, y, x, w, bias, residual, scale);
    if (!r->reference) return;
    double *e = expected(r, y);
    const double *from = values(r, x), *weight = values(r, w);
    for (int64_t i = 0; i < m; i++) {
        const double factor = samples ? values(r, scale)[i / (m / samples)] : 1.0;
        for (int64_t o = 0; o < out; o++) {
            double sum = values(r, bias)[o];
            for (int64_t l = 0; l < in; l++) sum += from[i * in + l] * weight[o * in + l];
            e[i * out + o] = values(r, residual)[i * out + o] + factor * sum;
        }
    }
}

/* p[3]: bit 2 GELU, bit 4 sums of the rows, which dx then does not add to. */
static void linear_dx_body(Run *r) {
    const int64_t m = r->p[0], in = r->p[1], out = r->p[2];
    const bool gelu = r->p[3] & 2, sum = r->p[3] & 4;
    Tensor dy = input(r, "dy", r->act, SHAPE(m, out), 1.0);
    Tensor w = input(r, "w", r->act, SHAPE(out, in), 0.5);
    Tensor pre = gelu ? input(r, "pre", r->act, SHAPE(m, in), 1.0) : tensor_none();
    Grad dx, sums = {tensor_none(), false};
    if (sum) {
        dx = (Grad){output(r, "dx", r->act, SHAPE(m, in)), false};
        sums = gradient(r, "sums", DTYPE_F32, SHAPE(in));
        r->coarse = r->act == DTYPE_BF16;
    } else {
        dx = gradient(r, "dx", r->act, SHAPE(m, in));
    }
    r->flops = 2.0 * (double)(m * in * out);
    CALL(r, linear_dx, dx, sums, dy, w, pre, gelu ? ACT_GELU : ACT_NONE);
    double *e = r->reference ? expected(r, dx.t) : NULL;
    double *s = r->reference && sum ? expected(r, sums.t) : NULL;
    const double *from = e ? values(r, dy) : NULL, *weight = e ? values(r, w) : NULL;
    for (int64_t i = 0; e && i < m * in; i++) {
        for (int64_t o = 0; o < out; o++) e[i] += from[i / in * out + o] * weight[o * in + i % in];
        if (gelu) e[i] *= unary_reference(UNARY_DGELU, values(r, pre)[i]);
        if (s) s[i % in] += e[i];
    }
}

static void linear_dw_body(Run *r) {
    const int64_t m = r->p[0], in = r->p[1], out = r->p[2];
    Tensor dy = input(r, "dy", r->act, SHAPE(m, out), 1.0);
    Tensor x = input(r, "x", r->act, SHAPE(m, in), 1.0);
    Grad dw = gradient(r, "dw", DTYPE_F32, SHAPE(out, in));
    Grad dbias = gradient(r, "dbias", DTYPE_F32, SHAPE(out));
    r->flops = 2.0 * (double)(m * in * out);
    CALL(r, linear_dw, dw, dbias, dy, x);
    if (!r->reference) return;
    double *e = expected(r, dw.t), *b = expected(r, dbias.t);
    const double *from = values(r, x), *slope = values(r, dy);
    for (int64_t i = 0; i < m; i++) {
        for (int64_t o = 0; o < out; o++) {
            const double g = slope[i * out + o];
            if (b) b[o] += g;
            for (int64_t l = 0; e && l < in; l++) e[o * in + l] += g * from[i * in + l];
        }
    }
}

enum { ALL_OUTER = 1 | 2 | 4, ALL_INNER = 8 | 16 | 32 };

const OpCase cases_matmul[] = {
    {"matmul", matmul_body, {1, 1, 1, 1, 1, 0, 8, 0}, IN_BOTH, 0},
    {"matmul", matmul_body, {17, 33, 5, 1, 1, 0, 8, 0}, IN_BOTH, 0},
    {"matmul", matmul_body, {17, 33, 5, 1, 1, 0, 8 | 1, -5}, IN_BOTH, 0},
    {"matmul", matmul_body, {17, 33, 65, 1, 1, 0, 8 | 2 | 4, 3}, IN_BOTH, 0},
    {"matmul", matmul_body, {64, 48, 32, 1, 1, 0, 8 | 1 | 2, 0}, IN_BOTH, 0},
    {"matmul", matmul_body, {1, 70, 129, 1, 1, 0, 8, 0}, IN_BOTH, 0},
    {"matmul", matmul_body, {7, 5, 9, 1, 3, ALL_INNER, 16, 0}, IN_BOTH, 0},
    {"matmul", matmul_body, {7, 5, 9, 1, 3, ALL_INNER, 16 | 1, 0}, IN_BOTH, 0},
    {"matmul", matmul_body, {7, 5, 9, 1, 3, 8 | 32, 16, 0}, IN_BOTH, 0},
    {"matmul", matmul_body, {7, 5, 9, 1, 3, 16 | 32, 16 | 2, 7}, IN_BOTH, 0},
    {"matmul", matmul_body, {7, 5, 9, 1, 3, 8 | 16, 16 | 4, 0}, IN_BOTH, 0},
    {"matmul", matmul_body, {30, 8, 8, 2, 3, ALL_OUTER | ALL_INNER, 0, 0}, IN_BOTH, 0},
    {"matmul", matmul_body, {30, 8, 8, 2, 3, 1 | 4 | ALL_INNER, 0, 0}, IN_BOTH, 0},
    {"matmul", matmul_body, {8, 8, 30, 2, 3, 1 | 2 | ALL_INNER, 1 | 4, 0}, IN_BOTH, 0},
    /* sums over samples: few launches of many products */
    {"matmul", matmul_body, {32, 32, 64, 20, 4, 1 | 2 | ALL_INNER, 1 | 4, 0}, IN_BOTH, 0},
    {"matmul", matmul_body, {9, 5, 17, 33, 3, 1 | 2 | 8 | 16, 1 | 4, -4}, IN_BOTH, 0},
    {"matmul", matmul_body, {9, 5, 17, 1, 33, 8 | 16, 16 | 4, 0}, IN_BOTH, 0},
    {"matmul", matmul_body, {9, 5, 17, 6, 7, 1 | ALL_INNER, 4, 0}, IN_BOTH, 0},
    {"matmul", matmul_body, {8, 30, 8, 2, 3, 1 | 4 | 16 | 32, 2, 0}, IN_BOTH, 0},
    {"matmul", matmul_body, {8, 9, 10, 2, 3, 1 | 2 | 8 | 16, 1 | 4, 0}, IN_BOTH, 0},
    {"matmul", matmul_body, {8, 9, 10, 2, 3, ALL_OUTER | 8 | 16, 4, 2}, IN_BOTH, 0},
    /* many rows with the same weights */
    {"matmul", matmul_body, {1024, 192, 128, 2, 1, 63, 0, 0}, IN_BF16, 0},
    {"matmul", matmul_body, {1088, 384, 192, 1, 3, 63, 0, 0}, IN_BF16, 0},
    {"linear", linear_body, {1, 1, 1}, IN_BOTH, 0},
    {"linear", linear_body, {33, 48, 37}, IN_BOTH, 0},
    {"linear", linear_body, {33, 48, 37, 1}, IN_BOTH, 0},
    {"linear", linear_body, {19, 24, 96, 2}, IN_BOTH, 0},
    {"linear", linear_body, {19, 24, 96, 2 | 4}, IN_BOTH, 2},
    {"linear", linear_body, {19, 24, 7, 4}, IN_BOTH, 0},
    {"linear", linear_body, {5, 7, 1, 1 | 2}, IN_BOTH, 0},
    {"linear", linear_body, {130, 17, 1030, 2}, IN_BOTH, 0},
    /* large enough for the kernels that fuse GELU into the product */
    {"linear", linear_body, {1025, 136, 248, 2}, IN_BF16, 0},
    /* few rows: tiles that end inside the matrix, shared sums over k */
    {"linear", linear_body, {70, 200, 136}, IN_BF16, 0},
    {"linear", linear_body, {200, 768, 784, 1}, IN_BF16, 0},
    {"linear", linear_body, {257, 264, 192, 2}, IN_BF16, 0},
    {"linear_residual", linear_residual_body, {130, 1544, 104}, IN_BF16, 0},
    {"linear_residual", linear_residual_body, {256, 768, 320, 0, 1}, IN_BF16, 0},
    {"matmul", matmul_body, {70, 136, 200, 1, 1, 0, 8, 0}, IN_BF16, 0},
    {"matmul", matmul_body, {256, 320, 768, 1, 1, 0, 8, 0}, IN_BF16, 0},
    {"matmul", matmul_body, {130, 192, 776, 1, 1, 0, 8 | 2, 0}, IN_BF16, 0},
    {"linear", linear_body, {1300, 200, 504, 2 | 4}, IN_BF16, 2},
    {"linear", linear_body, {16640, 128, 232}, IN_BF16, 0},        /* a tile a block */
    {"linear", linear_body, {17000, 128, 232, 2 | 4}, IN_BF16, 2}, /* several tiles a block */
    {"linear", linear_body, {5632, 128, 696}, IN_BF16, 2},         /* a narrow last tile */
    {"linear_residual", linear_residual_body, {1, 1, 1}, IN_BOTH, 0},
    {"linear_residual", linear_residual_body, {33, 48, 37}, IN_BOTH, 0},
    {"linear_residual", linear_residual_body, {33, 48, 40, 0, 1}, IN_BOTH, 0},
    {"linear_residual", linear_residual_body, {33, 24, 37, 3}, IN_BOTH, 2},
    {"linear_residual", linear_residual_body, {33, 24, 37, 11, 1}, IN_BOTH, 2},
    {"linear_residual", linear_residual_body, {301, 9, 1030, 7}, IN_BOTH, 2},
    {"linear_residual", linear_residual_body, {1302, 136, 248, 7}, IN_BF16, 2},
    {"linear_residual", linear_residual_body, {16640, 128, 232, 0, 1}, IN_BF16, 2},
    {"linear_dx", linear_dx_body, {1, 1, 1}, IN_BOTH, 0},
    {"linear_dx", linear_dx_body, {33, 37, 48}, IN_BOTH, 0},
    {"linear_dx", linear_dx_body, {33, 96, 24, 2}, IN_BOTH, 0},
    {"linear_dx", linear_dx_body, {33, 40, 24, 4}, IN_BOTH, 0},
    {"linear_dx", linear_dx_body, {130, 37, 24, 2 | 4}, IN_BOTH, 0},
    {"linear_dx", linear_dx_body, {1025, 136, 648, 2}, IN_BF16, 0},
    {"linear_dx", linear_dx_body, {1300, 504, 200, 2 | 4}, IN_BF16, 0},
    {"linear_dw", linear_dw_body, {1, 1, 1}, IN_BOTH, 0},
    {"linear_dw", linear_dw_body, {333, 37, 48}, IN_BOTH, 0},
    {"linear_dw", linear_dw_body, {65, 3, 1100}, IN_BOTH, 0},
    {"linear_dw", linear_dw_body, {4290, 248, 504}, IN_BF16, 0},
    {"linear", linear_body, {196, 192, 672}, IN_BOTH | ONLY_BENCH, 0},
    {"linear", linear_body, {196, 224, 192}, IN_BOTH | ONLY_BENCH, 0},
    {"linear", linear_body, {196, 192, 768}, IN_BOTH | ONLY_BENCH, 0},
    {"linear", linear_body, {196, 192, 768, 2}, IN_BOTH | ONLY_BENCH, 0},
    {"linear", linear_body, {196, 768, 192}, IN_BOTH | ONLY_BENCH, 0},
    {"linear", linear_body, {1, 192, 1000}, IN_BOTH | ONLY_BENCH, 0},
    {"linear", linear_body, {6272, 192, 768, 2 | 4}, IN_BOTH | ONLY_BENCH, 0},
    {"linear", linear_body, {6272, 768, 192}, IN_BOTH | ONLY_BENCH, 0},
    {"linear_dx", linear_dx_body, {6272, 768, 192, 2}, IN_BOTH | ONLY_BENCH, 0},
    {"linear_dx", linear_dx_body, {6272, 192, 672}, IN_BOTH | ONLY_BENCH, 0},
    {"linear_dw", linear_dw_body, {6272, 192, 768}, IN_BOTH | ONLY_BENCH, 0},
    {"linear_dw", linear_dw_body, {6272, 768, 192}, IN_BOTH | ONLY_BENCH, 0},
    {"matmul", matmul_body, {1024, 1024, 1024, 1, 1, 0, 8, 0}, IN_BOTH | ONLY_BENCH, 0},
    {"matmul", matmul_body, {768, 768, 768, 1, 1, 0, 2, 0}, IN_F32 | ONLY_BENCH, 0},
    {"matmul", matmul_body, {768, 768, 768, 3, 1, 7, 2, 0}, IN_F32 | ONLY_BENCH, 0},
    {"matmul", matmul_body, {256, 256, 256, 3, 1, 7, 2, 0}, IN_F32 | ONLY_BENCH, 0},
    {"matmul", matmul_body, {128, 128, 128, 3, 2, 63, 2, 0}, IN_F32 | ONLY_BENCH, 0},
    {"matmul", matmul_body, {64, 64, 64, 3, 4, 63, 0, 0}, IN_F32 | ONLY_BENCH, 0},
    {"matmul", matmul_body, {256, 256, 64, 8, 12, 63, 2, 0}, IN_BOTH | ONLY_BENCH, 0},
    {"matmul", matmul_body, {2048, 384, 384, 16, 4, 63, 0, 0}, IN_BF16 | ONLY_BENCH, 0},
    /* of writing in the span of 512 tokens (nn/ops_lact_span.c), 32 samples */
    {"matmul", matmul_body, {512, 768, 512, 1, 64, 56, 16, 0}, IN_BF16 | ONLY_BENCH, 0},
    {"matmul", matmul_body, {512, 768, 512, 1, 64, 56, 16 | 1, 0}, IN_BF16 | ONLY_BENCH, 0},
    {"matmul", matmul_body, {512, 512, 512, 1, 64, 56, 16, 0}, IN_BF16 | ONLY_BENCH, 0},
    {"matmul", matmul_body, {512, 512, 512, 1, 64, 56, 16 | 1, 0}, IN_BF16 | ONLY_BENCH, 0},
    {"matmul", matmul_body, {512, 512, 768, 1, 64, 56, 16 | 2, 0}, IN_BF16 | ONLY_BENCH, 0},
    {"matmul", matmul_body, {512, 768, 512, 1, 32, 56, 16, 0}, IN_BF16 | ONLY_BENCH, 0},
    {"matmul", matmul_body, {512, 768, 512, 1, 32, 56, 16 | 1, 0}, IN_BF16 | ONLY_BENCH, 0},
    {"matmul", matmul_body, {512, 768, 768, 1, 32, 56, 16, 0}, IN_BF16 | ONLY_BENCH, 0},
    {"matmul", matmul_body, {512, 768, 768, 1, 32, 56, 16 | 2, 0}, IN_BF16 | ONLY_BENCH, 0},
    {"matmul", matmul_body, {768, 768, 512, 1, 32, 56, 16 | 1, 0}, IN_BF16 | ONLY_BENCH, 0},
    {"matmul", matmul_body, {384, 384, 2048, 16, 4, 63, 1 | 4, 0}, IN_BF16 | ONLY_BENCH, 0},
    {0},
};
