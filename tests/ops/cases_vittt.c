/* The fused ViTTT branches against the equations of vittt.md 2.1, 2.2, 3.1 and 3.2, written out
 * naively.
 *
 * p: batch, height, width, heads, head width; p[5]: bit 1 without g, bit 2 heads whose first value
 * column is zero, so that a norm is zero.
 */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "core/memory.h"
#include "op_case.h"

typedef struct Sizes {
    VitttShape s;
    int64_t tokens, d, width, packed, cat;
    double c;
} Sizes;

static Sizes sizes(const Run *r) {
    const VitttShape s = {r->p[0], r->p[1], r->p[2], r->p[3], r->p[4]};
    const int64_t tokens = s.height * s.width, width = s.heads * s.head_dim;
    return (Sizes){s,
                   tokens,
                   s.head_dim,
                   width,
                   3 * width + 3 * s.head_dim,
                   width + s.head_dim,
                   1.0 / (3.0 * (double)tokens)};
}

static double qkv_value(int64_t i, void *user) {
    Run *r = user;
    const Sizes z = sizes(r);
    const int64_t channel = i % z.packed, from_v = channel - 2 * z.width;
    const bool glu_v = from_v >= 0 && from_v < z.width && from_v % z.d == 0;
    const double x = 2.0 * random_normal(r);
    return (r->p[5] & 2) && (glu_v || channel == 3 * z.width + 2 * z.d) ? 0.0 : x;
}

static Tensor packed_input(Run *r, const Sizes *z) {
    return input_of(r, "qkv", r->act, SHAPE(z->s.batch, z->s.height, z->s.width, z->packed),
                    qkv_value, r);
}

static double *zeros(int64_t count) {
    void *block;
    if (mem_alloc(&block, count, sizeof(double), "op case") != STATUS_OK) abort();
    return block;
}

/* What all Grad modes and devices of a case have in common: inputs are drawn before the gradients
 * are declared, so they are the same. Large cases take seconds, so it is worked out once. */
typedef struct Known {
    const OpCase *item;
    DType act;
    double *values;
} Known;

/* False: `count` zeros that the caller has to fill. */
static bool known(const Run *r, Known *k, int64_t count) {
    if (k->item == r->item && k->act == r->act) return true;
    mem_free(k->values);
    *k = (Known){r->item, r->act, zeros(count)};
    return false;
}

/* ---- GLU branch: one (sample, head) ---- */

typedef struct Head {
    const double *q, *k, *v; /* of token 0; `packed` from token to token */
    const double *w1, *w2;
    double *z1, *z2; /* [tokens][d] */
    double *g1, *g2; /* [d][d], with -c */
    double *n1, *n2; /* [d] */
    double *u1, *u2; /* trained weights */
} Head;

static void head_open(Head *h, const Sizes *z) {
    const int64_t rows = z->tokens * z->d, square = z->d * z->d;
    h->z1 = zeros(2 * rows + 4 * square + 2 * z->d);
    h->z2 = h->z1 + rows;
    h->g1 = h->z2 + rows;
    h->g2 = h->g1 + square;
    h->u1 = h->g2 + square;
    h->u2 = h->u1 + square;
    h->n1 = h->u2 + square;
    h->n2 = h->n1 + z->d;
}

static void head_place(Head *h, const Sizes *z, const double *qkv, const double *w1,
                       const double *w2, int64_t b, int64_t head) {
    h->q = qkv + b * z->tokens * z->packed + head * z->d;
    h->k = h->q + z->width;
    h->v = h->k + z->width;
    h->w1 = w1 + head * z->d * z->d;
    h->w2 = w2 + head * z->d * z->d;
}

/* y[d] = x[d] W. */
static void row_times(double *y, const double *x, const double *w, int64_t d) {
    for (int64_t j = 0; j < d; j++) {
        y[j] = 0.0;
        for (int64_t i = 0; i < d; i++) y[j] += x[i] * w[i * d + j];
    }
}

static void head_gradients(Head *h, const Sizes *z) {
    const int64_t d = z->d;
    for (int64_t i = 0; i < d * d; i++) h->g1[i] = h->g2[i] = 0.0;
    for (int64_t n = 0; n < z->tokens; n++) {
        const double *k = h->k + n * z->packed, *v = h->v + n * z->packed;
        double *z1 = h->z1 + n * d, *z2 = h->z2 + n * d;
        row_times(z1, k, h->w1, d);
        row_times(z2, k, h->w2, d);
        for (int64_t j = 0; j < d; j++) {
            const double e = -z->c * v[j];
            const double p1 = e * unary_reference(UNARY_SILU, z2[j]);
            const double p2 = e * z1[j] * unary_reference(UNARY_DSILU, z2[j]);
            for (int64_t i = 0; i < d; i++) {
                h->g1[i * d + j] += k[i] * p1;
                h->g2[i * d + j] += k[i] * p2;
            }
        }
    }
}

static void head_train(Head *h, const Sizes *z) {
    const int64_t d = z->d;
    for (int64_t j = 0; j < d; j++) {
        h->n1[j] = h->n2[j] = 0.0;
        for (int64_t i = 0; i < d; i++) {
            h->n1[j] += h->g1[i * d + j] * h->g1[i * d + j];
            h->n2[j] += h->g2[i * d + j] * h->g2[i * d + j];
        }
        h->n1[j] = sqrt(h->n1[j]);
        h->n2[j] = sqrt(h->n2[j]);
        for (int64_t i = 0; i < d; i++) {
            h->u1[i * d + j] = h->w1[i * d + j] - h->g1[i * d + j] / (h->n1[j] + 1.0);
            h->u2[i * d + j] = h->w2[i * d + j] - h->g2[i * d + j] / (h->n2[j] + 1.0);
        }
    }
}

static void glu_reference(Run *r, const Sizes *z, Tensor cat, Tensor g, Tensor qkv, Tensor w1,
                          Tensor w2) {
    const int64_t d = z->d, square = d * d;
    double *e = expected(r, cat), *eg = expected(r, g);
    for (int64_t i = 0; i < z->s.batch * z->tokens * z->cat; i++) e[i] = values(r, cat)[i];
    Head h;
    head_open(&h, z);
    double *y = zeros(2 * d);
    for (int64_t unit = 0; unit < z->s.batch * z->s.heads; unit++) {
        const int64_t b = unit / z->s.heads, head = unit % z->s.heads;
        head_place(&h, z, values(r, qkv), values(r, w1), values(r, w2), b, head);
        head_gradients(&h, z);
        head_train(&h, z);
        for (int64_t i = 0; eg && i < square; i++) {
            eg[unit * 2 * square + i] = h.g1[i];
            eg[unit * 2 * square + square + i] = h.g2[i];
        }
        for (int64_t n = 0; n < z->tokens; n++) {
            row_times(y, h.q + n * z->packed, h.u1, d);
            row_times(y + d, h.q + n * z->packed, h.u2, d);
            for (int64_t j = 0; j < d; j++)
                e[(b * z->tokens + n) * z->cat + head * d + j] =
                    y[j] * unary_reference(UNARY_SILU, y[d + j]);
        }
    }
    mem_free(y);
    mem_free(h.z1);
}

/* Tensor cores round the operands of the inner products in BF16 runs, the CPU does not. */
static bool glu_coarse(const Run *r) {
    return r->act == DTYPE_BF16 && r->device->kind == DEVICE_CUDA;
}

static void glu_body(Run *r) {
    const Sizes z = sizes(r);
    r->coarse = glu_coarse(r);
    const VitttShape s = z.s;
    Tensor qkv = packed_input(r, &z);
    Tensor w1 = input(r, "w1", DTYPE_F32, SHAPE(1, s.heads, z.d, z.d), 0.5);
    Tensor w2 = input(r, "w2", DTYPE_F32, SHAPE(1, s.heads, z.d, z.d), 0.5);
    Tensor cat = in_place(r, "cat", r->act, SHAPE(s.batch, z.tokens, z.cat), 1.0);
    Tensor g = r->p[5] & 1
                   ? tensor_none()
                   : output(r, "g", DTYPE_F32, 4, (int64_t[]){s.batch, s.heads, 2, z.d * z.d});
    r->flops = 12.0 * (double)(s.batch * z.tokens * z.width * z.d);
    CALL(r, vittt_glu, s, cat, g, qkv, w1, w2);
    if (r->reference) glu_reference(r, &z, cat, g, qkv, w1, w2);
}

/* The raw gradients that the forward would have kept. */
typedef struct Kept {
    double *values;
} Kept;

static double kept_value(int64_t i, void *user) {
    return ((const Kept *)user)->values[i];
}

static Kept kept_glu(Run *r, const Sizes *z, Tensor qkv, Tensor w1, Tensor w2) {
    static Known cache;
    const int64_t square = z->d * z->d;
    const bool done = known(r, &cache, z->s.batch * z->s.heads * 2 * square);
    Head h;
    if (done) return (Kept){cache.values};
    head_open(&h, z);
    for (int64_t unit = 0; unit < z->s.batch * z->s.heads; unit++) {
        head_place(&h, z, values(r, qkv), values(r, w1), values(r, w2), unit / z->s.heads,
                   unit % z->s.heads);
        head_gradients(&h, z);
        for (int64_t i = 0; i < square; i++) {
            cache.values[unit * 2 * square + i] = h.g1[i];
            cache.values[unit * 2 * square + square + i] = h.g2[i];
        }
    }
    mem_free(h.z1);
    return (Kept){cache.values};
}

/* dW' for one head and dQ of every token; dq as in qkv, or NULL. */
static void read_backward(const Head *h, const Sizes *z, const double *dout, double *dq,
                          double *du1, double *du2) {
    const int64_t d = z->d;
    double *y = zeros(2 * d);
    for (int64_t n = 0; n < z->tokens; n++) {
        const double *q = h->q + n * z->packed, *g = dout + n * z->cat;
        row_times(y, q, h->u1, d);
        row_times(y + d, q, h->u2, d);
        for (int64_t j = 0; j < d; j++) {
            const double dy1 = g[j] * unary_reference(UNARY_SILU, y[d + j]);
            const double dy2 = g[j] * y[j] * unary_reference(UNARY_DSILU, y[d + j]);
            for (int64_t i = 0; i < d; i++) {
                du1[i * d + j] += q[i] * dy1;
                du2[i * d + j] += q[i] * dy2;
                dq[n * z->packed + i] += dy1 * h->u1[i * d + j] + dy2 * h->u2[i * d + j];
            }
        }
    }
    mem_free(y);
}

/* dg = soft norm backward of -du. */
static void soft_backward(double *dg, const double *g, const double *norms, const double *du,
                          int64_t rows, int64_t columns) {
    for (int64_t j = 0; j < columns; j++) {
        const double rate = 1.0 / (norms[j] + 1.0);
        double t = 0.0;
        for (int64_t i = 0; i < rows; i++) t -= g[i * columns + j] * du[i * columns + j];
        for (int64_t i = 0; i < rows; i++) {
            dg[i * columns + j] = -rate * du[i * columns + j];
            if (norms[j] > 0.0)
                dg[i * columns + j] -= rate * rate * t / norms[j] * g[i * columns + j];
        }
    }
}

static void write_backward(const Head *h, const Sizes *z, const double *dg1, const double *dg2,
                           double *dk, double *dv, double *dw1, double *dw2) {
    const int64_t d = z->d;
    double *dp = zeros(2 * d);
    for (int64_t n = 0; n < z->tokens; n++) {
        const double *k = h->k + n * z->packed, *v = h->v + n * z->packed;
        row_times(dp, k, dg1, d);
        row_times(dp + d, k, dg2, d);
        for (int64_t j = 0; j < d; j++) {
            const double z1 = h->z1[n * d + j], z2 = h->z2[n * d + j], e = -z->c * v[j];
            const double a = unary_reference(UNARY_SILU, z2), s = unary_reference(UNARY_DSILU, z2);
            const double bend = unary_reference(UNARY_D2SILU, z2);
            const double dz1 = dp[d + j] * e * s;
            const double dz2 = dp[j] * e * s + dp[d + j] * e * z1 * bend;
            dv[n * z->packed + j] = -z->c * (dp[j] * a + dp[d + j] * z1 * s);
            for (int64_t i = 0; i < d; i++) {
                dk[n * z->packed + i] += e * a * dg1[i * d + j] + e * z1 * s * dg2[i * d + j] +
                                         dz1 * h->w1[i * d + j] + dz2 * h->w2[i * d + j];
                dw1[i * d + j] += k[i] * dz1;
                dw2[i * d + j] += k[i] * dz2;
            }
        }
    }
    mem_free(dp);
}

/* Into e, and e1, e2, which start as zeros. */
static void glu_backward_all(Run *r, const Sizes *z, double *e, double *e1, double *e2, Tensor dqkv,
                             Tensor dcat, Tensor qkv, Tensor g, Tensor w1, Tensor w2) {
    const int64_t d = z->d, square = d * d;
    for (int64_t i = 0; i < z->s.batch * z->tokens * z->packed; i++)
        e[i] = i % z->packed < 3 * z->width ? 0.0 : values(r, dqkv)[i];
    Head h;
    head_open(&h, z);
    double *du = zeros(4 * square), *dg = du + 2 * square;
    for (int64_t unit = 0; unit < z->s.batch * z->s.heads; unit++) {
        const int64_t b = unit / z->s.heads, head = unit % z->s.heads;
        double *to = e + b * z->tokens * z->packed + head * d;
        head_place(&h, z, values(r, qkv), values(r, w1), values(r, w2), b, head);
        head_gradients(&h, z); /* for z1, z2; the kept gradients are those that the kernel got */
        for (int64_t i = 0; i < square; i++) {
            h.g1[i] = values(r, g)[unit * 2 * square + i];
            h.g2[i] = values(r, g)[unit * 2 * square + square + i];
            du[i] = du[square + i] = 0.0;
        }
        head_train(&h, z);
        read_backward(&h, z, values(r, dcat) + b * z->tokens * z->cat + head * d, to, du,
                      du + square);
        soft_backward(dg, h.g1, h.n1, du, d, d);
        soft_backward(dg + square, h.g2, h.n2, du + square, d, d);
        write_backward(&h, z, dg, dg + square, to + z->width, to + 2 * z->width, du, du + square);
        for (int64_t i = 0; i < square; i++) e1[head * square + i] += du[i];
        for (int64_t i = 0; i < square; i++) e2[head * square + i] += du[square + i];
    }
    mem_free(du);
    mem_free(h.z1);
}

static void glu_backward_reference(Run *r, const Sizes *z, Tensor dqkv, Grad dw1, Grad dw2,
                                   Tensor dcat, Tensor qkv, Tensor g, Tensor w1, Tensor w2) {
    static Known cache;
    const int64_t packed = z->s.batch * z->tokens * z->packed, weights = z->s.heads * z->d * z->d;
    const bool done = known(r, &cache, packed + 2 * weights);
    double *e1 = cache.values + packed, *e2 = e1 + weights;
    if (!done) glu_backward_all(r, z, cache.values, e1, e2, dqkv, dcat, qkv, g, w1, w2);
    memcpy(expected(r, dqkv), cache.values, (size_t)packed * sizeof *e1);
    if (dw1.t.data) memcpy(expected(r, dw1.t), e1, (size_t)weights * sizeof *e1);
    if (dw2.t.data) memcpy(expected(r, dw2.t), e2, (size_t)weights * sizeof *e2);
}

static void glu_backward_body(Run *r) {
    const Sizes z = sizes(r);
    r->coarse = glu_coarse(r);
    const VitttShape s = z.s;
    Tensor qkv = packed_input(r, &z);
    Tensor w1 = input(r, "w1", DTYPE_F32, SHAPE(1, s.heads, z.d, z.d), 0.5);
    Tensor w2 = input(r, "w2", DTYPE_F32, SHAPE(1, s.heads, z.d, z.d), 0.5);
    Tensor dcat = input(r, "dcat", r->act, SHAPE(s.batch, z.tokens, z.cat), 1.0);
    Kept kept = kept_glu(r, &z, qkv, w1, w2);
    Tensor g =
        input_of(r, "g", DTYPE_F32, SHAPE(s.batch, s.heads, 2, z.d * z.d), kept_value, &kept);
    Tensor dqkv = in_place(r, "dqkv", r->act, SHAPE(s.batch, z.tokens, z.packed), 1.0);
    Grad dw1 = gradient(r, "dw1", DTYPE_F32, SHAPE(1, s.heads, z.d, z.d));
    Grad dw2 = gradient(r, "dw2", DTYPE_F32, SHAPE(1, s.heads, z.d, z.d));
    r->flops = 32.0 * (double)(s.batch * z.tokens * z.width * z.d);
    CALL(r, vittt_glu_backward, s, dqkv, dw1, dw2, dcat, qkv, g, w1, w2);
    if (r->reference) glu_backward_reference(r, &z, dqkv, dw1, dw2, dcat, qkv, g, w1, w2);
}

/* ---- depthwise branch: one (sample, channel) ---- */

/* Index of the neighbour of token n at tap t, or -1. */
static int64_t neighbour(const Sizes *z, int64_t n, int t, int sign) {
    const int64_t y = n / z->s.width + sign * (t / 3 - 1), x = n % z->s.width + sign * (t % 3 - 1);
    return y < 0 || y >= z->s.height || x < 0 || x >= z->s.width ? -1 : y * z->s.width + x;
}

static double tap_sum(const Sizes *z, const double *x, int64_t row, const double *w, int64_t n,
                      int sign) {
    double sum = 0.0;
    for (int t = 0; t < 9; t++) {
        const int64_t m = neighbour(z, n, t, sign);
        if (m >= 0) sum += w[t] * x[m * row];
    }
    return sum;
}

/* g[t] += sum_n x[n+t] y[n]. */
static void tap_gradient(const Sizes *z, double *g, const double *x, int64_t x_row, const double *y,
                         int64_t y_row) {
    for (int64_t n = 0; n < z->tokens; n++) {
        for (int t = 0; t < 9; t++) {
            const int64_t m = neighbour(z, n, t, 1);
            if (m >= 0) g[t] += x[m * x_row] * y[n * y_row];
        }
    }
}

static void raw_taps(const Sizes *z, double g[9], const double *k) {
    for (int t = 0; t < 9; t++) g[t] = 0.0;
    tap_gradient(z, g, k, z->packed, k + z->d, z->packed);
    for (int t = 0; t < 9; t++) g[t] *= -z->c;
}

static double norm9(const double *g) {
    double sum = 0.0;
    for (int t = 0; t < 9; t++) sum += g[t] * g[t];
    return sqrt(sum);
}

static void dwc_body(Run *r) {
    const Sizes z = sizes(r);
    const VitttShape s = z.s;
    Tensor qkv = packed_input(r, &z);
    Tensor w3 = input(r, "w3", DTYPE_F32, SHAPE(z.d, 9), 0.5);
    Tensor cat = in_place(r, "cat", r->act, SHAPE(s.batch, z.tokens, z.cat), 1.0);
    Tensor g = r->p[5] & 1 ? tensor_none() : output(r, "g", DTYPE_F32, SHAPE(s.batch, z.d, 9));
    CALL(r, vittt_dwc, s, cat, g, qkv, w3);
    if (!r->reference) return;
    double *e = expected(r, cat), *eg = expected(r, g);
    for (int64_t i = 0; i < s.batch * z.tokens * z.cat; i++) e[i] = values(r, cat)[i];
    for (int64_t unit = 0; unit < s.batch * z.d; unit++) {
        const int64_t b = unit / z.d, ch = unit % z.d;
        const double *q = values(r, qkv) + b * z.tokens * z.packed + 3 * z.width + ch;
        double taps[9], w[9];
        raw_taps(&z, taps, q + z.d);
        for (int t = 0; t < 9; t++) {
            if (eg) eg[unit * 9 + t] = taps[t];
            w[t] = values(r, w3)[ch * 9 + t] - taps[t] / (norm9(taps) + 1.0);
        }
        for (int64_t n = 0; n < z.tokens; n++)
            e[(b * z.tokens + n) * z.cat + z.width + ch] = tap_sum(&z, q, z.packed, w, n, 1);
    }
}

static Kept kept_dwc(Run *r, const Sizes *z, Tensor qkv) {
    Kept kept = {zeros(z->s.batch * z->d * 9)};
    for (int64_t unit = 0; unit < z->s.batch * z->d; unit++)
        raw_taps(z, kept.values + unit * 9,
                 values(r, qkv) + unit / z->d * z->tokens * z->packed + 3 * z->width + z->d +
                     unit % z->d);
    return kept;
}

static void dwc_backward_reference(Run *r, const Sizes *z, Tensor dqkv, Grad dw3, Tensor dcat,
                                   Tensor qkv, Tensor g, Tensor w3) {
    double *e = expected(r, dqkv), *e3 = expected(r, dw3.t);
    for (int64_t i = 0; i < z->s.batch * z->tokens * z->packed; i++) e[i] = values(r, dqkv)[i];
    for (int64_t unit = 0; unit < z->s.batch * z->d; unit++) {
        const int64_t b = unit / z->d, ch = unit % z->d, at = 3 * z->width + ch;
        const double *q = values(r, qkv) + b * z->tokens * z->packed + at;
        const double *k = q + z->d, *v = k + z->d, *raw = values(r, g) + unit * 9;
        const double *dout = values(r, dcat) + b * z->tokens * z->cat + z->width + ch;
        double *dq = e + b * z->tokens * z->packed + at, w[9], dw[9] = {0}, dg[9];
        const double norm = norm9(raw);
        for (int t = 0; t < 9; t++) w[t] = values(r, w3)[ch * 9 + t] - raw[t] / (norm + 1.0);
        tap_gradient(z, dw, q, z->packed, dout, z->cat);
        soft_backward(dg, raw, &norm, dw, 9, 1);
        for (int64_t n = 0; n < z->tokens; n++) {
            dq[n * z->packed] = tap_sum(z, dout, z->cat, w, n, -1);
            dq[n * z->packed + z->d] = -z->c * tap_sum(z, v, z->packed, dg, n, -1);
            dq[n * z->packed + 2 * z->d] = -z->c * tap_sum(z, k, z->packed, dg, n, 1);
        }
        for (int t = 0; e3 && t < 9; t++) e3[ch * 9 + t] += dw[t];
    }
}

static void dwc_backward_body(Run *r) {
    const Sizes z = sizes(r);
    const VitttShape s = z.s;
    Tensor qkv = packed_input(r, &z);
    Tensor w3 = input(r, "w3", DTYPE_F32, SHAPE(z.d, 9), 0.5);
    Tensor dcat = input(r, "dcat", r->act, SHAPE(s.batch, z.tokens, z.cat), 1.0);
    Kept kept = kept_dwc(r, &z, qkv);
    Tensor g = input_of(r, "g", DTYPE_F32, SHAPE(s.batch, z.d, 9), kept_value, &kept);
    Tensor dqkv = in_place(r, "dqkv", r->act, SHAPE(s.batch, z.tokens, z.packed), 1.0);
    Grad dw3 = gradient(r, "dw3", DTYPE_F32, SHAPE(z.d, 9));
    CALL(r, vittt_dwc_backward, s, dqkv, dw3, dcat, qkv, g, w3);
    if (r->reference) dwc_backward_reference(r, &z, dqkv, dw3, dcat, qkv, g, w3);
    mem_free(kept.values);
}

#define BOTH (IN_BOTH | ANY_THREADS)

#define SHAPES(slot, body)                                                                         \
    {slot, body, {1, 1, 1, 1, 1}, BOTH, 0}, {slot, body, {2, 6, 5, 3, 8}, BOTH, 0},                \
        {slot, body, {2, 3, 4, 2, 5, 1}, BOTH, 0}, {slot, body, {2, 5, 5, 2, 32, 2}, BOTH, 0},     \
        {slot, body, {18, 4, 4, 1, 17}, BOTH, 0}, {slot, body, {1, 1, 60, 1, 64}, BOTH, 0},        \
        {slot, body, {1, 14, 14, 2, 48}, BOTH, 0}, {slot, body, {2, 14, 14, 3, 32}, BOTH, 0},      \
        {slot, body, {3, 11, 13, 2, 64}, BOTH, 0}, {                                               \
        slot, body, {1, 9, 1, 1, 3}, BOTH, 0                                                       \
    }

#define BENCH(slot, body)                                                                          \
    {slot, body, {1, 14, 14, 6, 32}, IN_BOTH | ONLY_BENCH, 0},                                     \
        {slot, body, {32, 14, 14, 6, 32}, IN_BOTH | ONLY_BENCH, 0},                                \
        {slot, body, {8, 14, 14, 12, 64}, IN_BOTH | ONLY_BENCH, 0}, {                              \
        slot, body, {64, 8, 8, 6, 32}, IN_BOTH | ONLY_BENCH, 0                                     \
    }

/* For the tensor-core kernels, heads of 64: one short chunk, whole chunks, a short last chunk, more
 * samples than blocks. Few tokens average less of what rounding the weights costs. */
#define HEADS_64(slot, body)                                                                       \
    {slot, body, {1, 3, 5, 2, 64}, BOTH, 1.5}, {slot, body, {1, 17, 1, 1, 64}, BOTH, 1.5},         \
        {slot, body, {2, 16, 16, 2, 64}, BOTH, 0}, {slot, body, {2, 14, 14, 3, 64}, BOTH, 0},      \
        {slot, body, {2, 7, 7, 2, 64, 3}, BOTH, 0}, {slot, body, {12, 17, 1, 24, 64}, BOTH, 1.5},  \
    {                                                                                              \
        slot, body, {12, 13, 5, 24, 64}, BOTH, 1.5                                                 \
    }
/* Heads of 32 come in pairs. */
#define HEADS_32(slot, body)                                                                       \
    {slot, body, {1, 3, 5, 3, 32}, BOTH, 1.5}, {slot, body, {2, 16, 16, 2, 32}, BOTH, 0},          \
        {slot, body, {2, 5, 5, 1, 32}, BOTH, 1.5}, {slot, body, {2, 7, 7, 2, 32, 3}, BOTH, 0},     \
        {slot, body, {12, 17, 1, 47, 32}, BOTH, 1.5}, {                                            \
        slot, body, {23, 13, 5, 23, 32}, BOTH, 1.5                                                 \
    }

const OpCase cases_vittt[] = {
    SHAPES("vittt_glu", glu_body),
    SHAPES("vittt_glu_backward", glu_backward_body),
    HEADS_64("vittt_glu", glu_body),
    HEADS_64("vittt_glu_backward", glu_backward_body),
    HEADS_32("vittt_glu", glu_body),
    HEADS_32("vittt_glu_backward", glu_backward_body),
    SHAPES("vittt_dwc", dwc_body),
    SHAPES("vittt_dwc_backward", dwc_backward_body),
    BENCH("vittt_glu", glu_body),
    BENCH("vittt_glu_backward", glu_backward_body),
    BENCH("vittt_dwc", dwc_body),
    BENCH("vittt_dwc_backward", dwc_backward_body),
    {0},
};
