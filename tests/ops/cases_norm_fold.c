#include <math.h>

#include "op_case.h"

#define EPS 1e-6f

/* p: O, I; p[2]: 1 without bias. */
static void norm_fold_body(Run *r) {
    const int64_t out = r->p[0], in = r->p[1];
    Tensor w = input(r, "w", r->act, SHAPE(out, in), 0.5);
    Tensor bias = r->p[2] ? tensor_none() : input(r, "bias", DTYPE_F32, SHAPE(out), 1.0);
    Tensor gain = input(r, "gain", DTYPE_F32, SHAPE(in), 1.0);
    Tensor shift = input(r, "shift", DTYPE_F32, SHAPE(in), 1.0);
    Tensor folded = output(r, "folded", r->act, SHAPE(out, in));
    Tensor offset = output(r, "offset", DTYPE_F32, SHAPE(out));
    CALL(r, norm_fold, folded, offset, w, bias, gain, shift);
    if (!r->reference) return;
    if (in == 1) r->cancelled = 1.0; /* every row is 0 */
    double *e = expected(r, folded), *o = expected(r, offset);
    for (int64_t i = 0; i < out; i++) {
        const double *from = values(r, w) + i * in;
        double mean = 0.0;
        o[i] = r->p[2] ? 0.0 : values(r, bias)[i];
        for (int64_t c = 0; c < in; c++) {
            mean += from[c] * values(r, gain)[c] / (double)in;
            o[i] += from[c] * values(r, shift)[c];
        }
        for (int64_t c = 0; c < in; c++) e[i * in + c] = from[c] * values(r, gain)[c] - mean;
    }
}

static double stats_value(int64_t i, void *user) {
    return i % 2 ? 0.2 + random_uniform(user) : random_normal(user);
}

/* p: M, I, O; p[3]: 1 GELU. */
static void linear_rated_body(Run *r) {
    const int64_t m = r->p[0], in = r->p[1], out = r->p[2];
    Tensor x = input(r, "x", r->act, SHAPE(m, in), 1.0);
    Tensor w = input(r, "w", r->act, SHAPE(out, in), 0.5);
    Tensor bias = input(r, "bias", DTYPE_F32, SHAPE(out), 1.0);
    Tensor stats = input_of(r, "stats", DTYPE_F32, SHAPE(m, 2), stats_value, r);
    Tensor y = output(r, "y", r->act, SHAPE(m, out));
    r->flops = 2.0 * (double)(m * in * out);
    CALL(r, linear_rated, y, stats, x, w, bias, r->p[3] ? ACT_GELU : ACT_NONE);
    if (!r->reference) return;
    double *e = expected(r, y);
    const double *from = values(r, x), *weight = values(r, w);
    for (int64_t i = 0; i < m; i++) {
        const double rate = values(r, stats)[2 * i + 1];
        for (int64_t o = 0; o < out; o++) {
            double sum = 0.0;
            for (int64_t l = 0; l < in; l++) sum += from[i * in + l] * weight[o * in + l];
            sum = rate * sum + values(r, bias)[o];
            e[i * out + o] = r->p[3] ? unary_reference(UNARY_GELU, sum) : sum;
        }
    }
}

/* Rows of a residual stream with little but a mean, with one large value, and as they mostly are.
 */
static double residual_value(int64_t i, void *user) {
    Run *r = user;
    const int64_t out = r->p[2], row = i / out, kind = r->p[4] ? row % 3 : 2;
    const double v = random_normal(r);
    if (kind == 0) return 40.0 + v;
    return kind == 1 && i % out == row % out ? 300.0 : v;
}

static double rounded_to(DType act, double x) {
    return act == DTYPE_BF16 ? (double)f32_from_bf16(bf16_from_f32((float)x)) : x;
}

/* p: M, I, O; p[3]: 1 in place; p[4]: 1 uneven rows. */
static void linear_residual_stats_body(Run *r) {
    const int64_t m = r->p[0], in = r->p[1], out = r->p[2];
    Tensor x = input(r, "x", r->act, SHAPE(m, in), 1.0);
    Tensor w = input(r, "w", r->act, SHAPE(out, in), 0.5);
    Tensor bias = input(r, "bias", DTYPE_F32, SHAPE(out), 1.0);
    Tensor y, residual, stats;
    if (r->p[3]) {
        y = residual = in_place_of(r, "y", r->act, SHAPE(m, out), residual_value, r);
    } else {
        y = output(r, "y", r->act, SHAPE(m, out));
        residual = input_of(r, "residual", r->act, SHAPE(m, out), residual_value, r);
    }
    stats = output(r, "stats", DTYPE_F32, SHAPE(m, 2));
    r->flops = 2.0 * (double)(m * in * out);
    CALL(r, linear_residual_stats, y, stats, x, w, bias, residual, EPS);
    if (!r->reference) return;
    r->coarse = r->act == DTYPE_BF16; /* the last bit of a sum may fall on the other side */
    if (out == 1) r->cancelled = 1e3; /* nothing but roundings, times 1/sqrt(eps) */
    double *e = expected(r, y), *s = expected(r, stats);
    const double *from = values(r, x), *weight = values(r, w);
    for (int64_t i = 0; i < m; i++) {
        double mean = 0.0, square = 0.0;
        for (int64_t o = 0; o < out; o++) {
            double sum = values(r, bias)[o] + values(r, residual)[i * out + o];
            for (int64_t l = 0; l < in; l++) sum += from[i * in + l] * weight[o * in + l];
            e[i * out + o] = rounded_to(r->act, sum);
            mean += e[i * out + o] / (double)out;
        }
        for (int64_t o = 0; o < out; o++) square += pow(e[i * out + o] - mean, 2.0) / (double)out;
        s[2 * i] = mean;
        s[2 * i + 1] = 1.0 / sqrt(square + (double)EPS);
    }
}

/* p: batch, tokens, channels. */
static void norm_mean_tokens_body(Run *r) {
    const int64_t b = r->p[0], n = r->p[1], c = r->p[2];
    Tensor x = input(r, "x", r->act, SHAPE(b, n, c), 1.0);
    Tensor stats = input_of(r, "stats", DTYPE_F32, SHAPE(b * n, 2), stats_value, r);
    Tensor gain = input(r, "gain", DTYPE_F32, SHAPE(c), 1.0);
    Tensor shift = input(r, "shift", DTYPE_F32, SHAPE(c), 1.0);
    Tensor y = output(r, "y", DTYPE_F32, SHAPE(b, c));
    CALL(r, norm_mean_tokens, y, x, stats, gain, shift);
    if (!r->reference) return;
    double *e = expected(r, y);
    for (int64_t i = 0; i < b * n * c; i++) {
        const double *s = values(r, stats) + i / c * 2;
        e[i / (n * c) * c + i % c] += (values(r, x)[i] - s[0]) * s[1] / (double)n;
    }
    for (int64_t i = 0; i < b * c; i++)
        e[i] = e[i] * values(r, gain)[i % c] + values(r, shift)[i % c];
}

const OpCase cases_norm_fold[] = {
    {"norm_fold", norm_fold_body, {1, 1}, IN_BOTH, 0},
    {"norm_fold", norm_fold_body, {5, 33, 1}, IN_BOTH, 0},
    {"norm_fold", norm_fold_body, {130, 768}, IN_BOTH, 0},
    {"norm_fold", norm_fold_body, {3, 2100}, IN_BOTH, 0},
    {"linear_rated", linear_rated_body, {1, 1, 1}, IN_BOTH, 0},
    {"linear_rated", linear_rated_body, {33, 48, 37}, IN_BOTH, 2},
    {"linear_rated", linear_rated_body, {19, 24, 1030, 1}, IN_BOTH, 2},
    /* large enough for one kernel: tiles that end inside, several a block, a narrow last one */
    {"linear_rated", linear_rated_body, {1025, 136, 248, 1}, IN_BF16, 2},
    {"linear_rated", linear_rated_body, {16641, 128, 232}, IN_BF16, 2},
    {"linear_rated", linear_rated_body, {17000, 128, 232, 1}, IN_BF16, 2},
    {"linear_rated", linear_rated_body, {5632, 128, 696}, IN_BF16, 2},
    {"linear_residual_stats", linear_residual_stats_body, {1, 1, 1}, IN_BOTH, 0},
    {"linear_residual_stats", linear_residual_stats_body, {33, 48, 37, 0, 1}, IN_BOTH, 2},
    {"linear_residual_stats", linear_residual_stats_body, {301, 9, 1030, 1, 1}, IN_BOTH, 2},
    {"linear_residual_stats", linear_residual_stats_body, {16641, 128, 232, 1, 1}, IN_BF16, 2},
    {"linear_residual_stats", linear_residual_stats_body, {16897, 136, 248, 0, 1}, IN_BF16, 2},
    {"linear_residual_stats", linear_residual_stats_body, {5632, 128, 696, 0, 1}, IN_BF16, 2},
    {"linear_residual_stats", linear_residual_stats_body, {11300, 128, 768, 1}, IN_BF16, 2},
    {"norm_mean_tokens", norm_mean_tokens_body, {1, 1, 1}, IN_BOTH, 0},
    {"norm_mean_tokens", norm_mean_tokens_body, {3, 49, 70}, IN_BOTH, 0},
    {"norm_mean_tokens", norm_mean_tokens_body, {2, 196, 768}, IN_BOTH, 0},
    {0},
};
