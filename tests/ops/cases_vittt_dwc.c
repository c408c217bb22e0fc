/* The fused depthwise branch of ViTTT against the equations of vittt.md 2.2 and 3.2, written out
 * naively. */
#include "cases_vittt.h"

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

const OpCase cases_vittt_dwc[] = {
    SHAPES("vittt_dwc", dwc_body),
    SHAPES("vittt_dwc_backward", dwc_backward_body),
    BENCH("vittt_dwc", dwc_body),
    BENCH("vittt_dwc_backward", dwc_backward_body),
    {0},
};
