#include <math.h>

#include "op_case.h"

/* p: batch, height, width, channels; p[4]: flags. */

typedef struct Sizes {
    int64_t b, h, w, c;
} Sizes;

static Sizes sizes(const Run *r) {
    return (Sizes){r->p[0], r->p[1], r->p[2], r->p[3]};
}

/* Index of the neighbour of pixel p = (b,y,x) at tap t, sign +1 or -1; -1 outside. */
static int64_t neighbour(Sizes s, int64_t p, int t, int sign) {
    const int64_t y = p / s.w % s.h + sign * (t / 3 - 1), x = p % s.w + sign * (t % 3 - 1);
    if (y < 0 || y >= s.h || x < 0 || x >= s.w) return -1;
    return p / (s.h * s.w) * s.h * s.w + y * s.w + x;
}

/* p[4]: bit 1 transpose, bit 2 bias, bit 4 add the input, bit 8 taps per sample. */
static void dwconv3_body(Run *r) {
    const Sizes s = sizes(r);
    const int64_t pixels = s.b * s.h * s.w, flags = r->p[4], sets = flags & 8 ? s.b : 1;
    Tensor x = input(r, "x", r->act, SHAPE(s.b, s.h, s.w, s.c), 1.0);
    Tensor w = input(r, "w", DTYPE_F32, SHAPE(sets, s.c, 9), 0.5);
    Tensor bias = flags & 2 ? input(r, "bias", DTYPE_F32, SHAPE(s.c), 1.0) : tensor_none();
    Grad y = gradient(r, "y", r->act, SHAPE(s.b, s.h, s.w, s.c));
    r->flops = 18.0 * (double)(pixels * s.c);
    CALL(r, dwconv3, y, x, w, bias, flags & 1 ? TAPS_TRANSPOSE : TAPS_CORRELATE, (flags & 4) != 0);
    double *e = r->reference ? expected(r, y.t) : NULL;
    for (int64_t i = 0; e && i < pixels * s.c; i++) {
        const int64_t p = i / s.c, c = i % s.c, set = sets > 1 ? p / (s.h * s.w) : 0;
        e[i] = (flags & 2 ? values(r, bias)[c] : 0.0) + (flags & 4 ? values(r, x)[i] : 0.0);
        for (int t = 0; t < 9; t++) {
            const int64_t q = neighbour(s, p, t, flags & 1 ? -1 : 1);
            if (q >= 0) e[i] += values(r, w)[(set * s.c + c) * 9 + t] * values(r, x)[q * s.c + c];
        }
    }
}

/* p[4]: bit 1 per sample, bit 2 without sum_y. */
static void dwconv3_taps_body(Run *r) {
    const Sizes s = sizes(r);
    const int64_t pixels = s.b * s.h * s.w, sets = r->p[4] & 1 ? s.b : 1;
    Tensor x = input(r, "x", r->act, SHAPE(s.b, s.h, s.w, s.c), 1.0);
    Tensor y = input(r, "y", r->act, SHAPE(s.b, s.h, s.w, s.c), 1.0);
    Grad g = gradient(r, "g", DTYPE_F32, SHAPE(sets, s.c, 9));
    Grad sum_y = r->p[4] & 3 ? grad_none() : gradient(r, "sum_y", DTYPE_F32, SHAPE(s.c));
    r->flops = 18.0 * (double)(pixels * s.c);
    CALL(r, dwconv3_taps, g, sum_y, x, y, -0.25f);
    if (!r->reference) return;
    double *e = expected(r, g.t), *sum = expected(r, sum_y.t);
    for (int64_t i = 0; i < pixels * s.c; i++) {
        const int64_t p = i / s.c, c = i % s.c, set = sets > 1 ? p / (s.h * s.w) : 0;
        if (sum) sum[c] += values(r, y)[i];
        for (int t = 0; e && t < 9; t++) {
            const int64_t q = neighbour(s, p, t, 1);
            if (q >= 0)
                e[(set * s.c + c) * 9 + t] -= 0.25 * values(r, x)[q * s.c + c] * values(r, y)[i];
        }
    }
}

static double rounded_to(DType act, double x) {
    return act == DTYPE_BF16 ? (double)f32_from_bf16(bf16_from_f32((float)x)) : x;
}

/* Of one row: mean and 1/sqrt(variance + eps). */
static void moments(const double *v, int64_t n, double *mean, double *rstd) {
    double m = 0.0, square = 0.0;
    for (int64_t i = 0; i < n; i++) m += v[i] / (double)n;
    for (int64_t i = 0; i < n; i++) square += (v[i] - m) * (v[i] - m) / (double)n;
    *mean = m;
    *rstd = 1.0 / sqrt(square + (double)1e-6f);
}

/* p[4]: 1 without stats, 2 without y. */
static void dwconv3_norm_body(Run *r) {
    const Sizes s = sizes(r);
    const int64_t pixels = s.b * s.h * s.w;
    Tensor x = input(r, "x", r->act, SHAPE(s.b, s.h, s.w, s.c), 1.0);
    Tensor w = input(r, "w", DTYPE_F32, SHAPE(1, s.c, 9), 0.5);
    Tensor bias = input(r, "bias", DTYPE_F32, SHAPE(s.c), 1.0);
    const bool alone = r->p[4] == 2;
    Tensor gain = alone ? tensor_none() : input(r, "gain", DTYPE_F32, SHAPE(s.c), 1.0);
    Tensor shift = alone ? tensor_none() : input(r, "shift", DTYPE_F32, SHAPE(s.c), 1.0);
    Tensor sum = output(r, "sum", r->act, SHAPE(s.b, s.h, s.w, s.c));
    Tensor y = alone ? tensor_none() : output(r, "y", r->act, SHAPE(s.b, s.h, s.w, s.c));
    Tensor stats = r->p[4] == 1 ? tensor_none() : output(r, "stats", DTYPE_F32, SHAPE(pixels, 2));
    r->flops = 18.0 * (double)(pixels * s.c);
    CALL(r, dwconv3_norm, sum, y, stats, x, w, bias, gain, shift, 1e-6f);
    if (!r->reference) return;
    r->coarse = r->act == DTYPE_BF16; /* the last bit of a sum may fall on the other side */
    /* One channel leaves nothing but roundings of its sum, times rstd = 1/sqrt(eps). */
    if (s.c == 1) r->cancelled = 1e3;
    double *es = expected(r, sum), *ey = expected(r, y), *et = expected(r, stats);
    for (int64_t p = 0; p < pixels; p++) {
        double *row = es + p * s.c, mean, rstd;
        for (int64_t c = 0; c < s.c; c++) {
            row[c] = values(r, bias)[c] + values(r, x)[p * s.c + c];
            for (int t = 0; t < 9; t++) {
                const int64_t q = neighbour(s, p, t, 1);
                if (q >= 0) row[c] += values(r, w)[c * 9 + t] * values(r, x)[q * s.c + c];
            }
            row[c] = rounded_to(r->act, row[c]);
        }
        moments(row, s.c, &mean, &rstd);
        if (et) et[2 * p] = mean;
        if (et) et[2 * p + 1] = rstd;
        for (int64_t c = 0; c < s.c && ey; c++)
            ey[p * s.c + c] = (row[c] - mean) * rstd * values(r, gain)[c] + values(r, shift)[c];
    }
}

/* p[4]: bit 1 without adding the input, bit 2 with a scaled copy. */
static void dwconv3_backward_body(Run *r) {
    const Sizes s = sizes(r);
    const int64_t pixels = s.b * s.h * s.w;
    Tensor dy = input(r, "dy", r->act, SHAPE(s.b, s.h, s.w, s.c), 1.0);
    Tensor x = input(r, "x", r->act, SHAPE(s.b, s.h, s.w, s.c), 1.0);
    Tensor w = input(r, "w", DTYPE_F32, SHAPE(1, s.c, 9), 0.5);
    Grad dx = gradient(r, "dx", r->act, SHAPE(s.b, s.h, s.w, s.c));
    Grad dw = gradient(r, "dw", DTYPE_F32, SHAPE(1, s.c, 9));
    Grad db = gradient(r, "sum_dy", DTYPE_F32, SHAPE(s.c));
    r->flops = 36.0 * (double)(pixels * s.c);
    Tensor scaled = tensor_none(), scale = tensor_none();
    if (r->p[4] & 2) scale = input(r, "scale", DTYPE_F32, SHAPE(s.b), 1.0);
    if ((r->p[4] & 2) && dx.t.data) scaled = output(r, "scaled", r->act, SHAPE(s.b, s.h, s.w, s.c));
    CALL(r, dwconv3_backward, dx, dw, db, dy, x, w, !(r->p[4] & 1), scaled, scale);
    if (!r->reference) return;
    double *ex = expected(r, dx.t), *ew = expected(r, dw.t), *eb = expected(r, db.t);
    const double *g = values(r, dy), *v = values(r, x);
    for (int64_t i = 0; i < pixels * s.c; i++) {
        const int64_t p = i / s.c, c = i % s.c;
        if (eb) eb[c] += g[i];
        if (ex && !(r->p[4] & 1)) ex[i] += g[i];
        for (int t = 0; t < 9; t++) {
            const int64_t q = neighbour(s, p, t, 1), back = neighbour(s, p, t, -1);
            if (ew && q >= 0) ew[c * 9 + t] += v[q * s.c + c] * g[i];
            if (ex && back >= 0) ex[i] += values(r, w)[c * 9 + t] * g[back * s.c + c];
        }
    }
    double *es = expected(r, scaled);
    for (int64_t i = 0; es && i < pixels * s.c; i++)
        es[i] = values(r, scale)[i / (pixels / s.b * s.c)] *
                (ex[i] + (dx.add ? values(r, dx.t)[i] : 0.0));
}

#define BOTH (IN_BOTH | ANY_THREADS)

const OpCase cases_dwconv[] = {
    {"dwconv3", dwconv3_body, {1, 1, 1, 1}, BOTH, 0},
    {"dwconv3", dwconv3_body, {2, 1, 5, 3, 2}, BOTH, 0},
    {"dwconv3", dwconv3_body, {2, 5, 1, 3, 4}, BOTH, 0},
    {"dwconv3", dwconv3_body, {2, 2, 2, 17, 2 | 4}, BOTH, 0},
    {"dwconv3", dwconv3_body, {2, 6, 5, 24, 2 | 4}, BOTH, 0},
    {"dwconv3", dwconv3_body, {2, 6, 5, 24, 1 | 4}, BOTH, 0},
    {"dwconv3", dwconv3_body, {3, 7, 6, 8, 8}, BOTH, 0},
    {"dwconv3", dwconv3_body, {3, 7, 6, 8, 8 | 1}, BOTH, 0},
    {"dwconv3", dwconv3_body, {2, 14, 14, 65, 2 | 4}, BOTH, 0},
    {"dwconv3_taps", dwconv3_taps_body, {1, 1, 1, 1}, BOTH, 0},
    {"dwconv3_taps", dwconv3_taps_body, {2, 1, 5, 3, 1}, BOTH, 0},
    {"dwconv3_taps", dwconv3_taps_body, {3, 5, 1, 16, 2}, BOTH, 0},
    {"dwconv3_taps", dwconv3_taps_body, {19, 6, 5, 24}, BOTH, 0},
    {"dwconv3_taps", dwconv3_taps_body, {3, 6, 5, 129, 1}, BOTH, 0},
    {"dwconv3_taps", dwconv3_taps_body, {2, 14, 14, 131}, BOTH, 0},
    {"dwconv3_norm", dwconv3_norm_body, {1, 1, 1, 1}, BOTH, 0},
    {"dwconv3_norm", dwconv3_norm_body, {2, 1, 5, 8, 1}, BOTH, 0},
    {"dwconv3_norm", dwconv3_norm_body, {2, 5, 1, 24}, BOTH, 0},
    {"dwconv3_norm", dwconv3_norm_body, {3, 7, 6, 65}, BOTH, 0},
    {"dwconv3_norm", dwconv3_norm_body, {300, 3, 5, 72}, BOTH, 0},
    {"dwconv3_norm", dwconv3_norm_body, {2, 14, 14, 192}, BOTH, 0},
    {"dwconv3_norm", dwconv3_norm_body, {1, 6, 14, 768, 1}, BOTH, 0},
    {"dwconv3_norm", dwconv3_norm_body, {300, 3, 7, 768}, BOTH, 0},
    {"dwconv3_norm", dwconv3_norm_body, {140, 5, 14, 384}, BOTH, 0},
    {"dwconv3_norm", dwconv3_norm_body, {280, 2, 14, 768}, BOTH, 0},
    {"dwconv3_norm", dwconv3_norm_body, {5, 16, 16, 256, 1}, BOTH, 0},
    {"dwconv3_norm", dwconv3_norm_body, {1, 3, 40, 1000}, BOTH, 0},
    {"dwconv3_norm", dwconv3_norm_body, {3, 7, 6, 65, 2}, BOTH, 0},
    {"dwconv3_norm", dwconv3_norm_body, {2, 14, 14, 192, 2}, BOTH, 0},
    {"dwconv3_norm", dwconv3_norm_body, {280, 2, 14, 768, 2}, BOTH, 0},
    {"dwconv3_norm", dwconv3_norm_body, {5, 16, 16, 256, 2}, BOTH, 0},
    {"dwconv3_backward", dwconv3_backward_body, {1, 1, 1, 1}, BOTH, 0},
    {"dwconv3_backward", dwconv3_backward_body, {2, 1, 5, 8, 1}, BOTH, 0},
    {"dwconv3_backward", dwconv3_backward_body, {2, 5, 1, 24}, BOTH, 0},
    {"dwconv3_backward", dwconv3_backward_body, {3, 7, 6, 65}, BOTH, 0},
    {"dwconv3_backward", dwconv3_backward_body, {300, 3, 5, 72}, BOTH, 0},
    {"dwconv3_backward", dwconv3_backward_body, {400, 2, 2, 264}, BOTH, 0},
    {"dwconv3_backward", dwconv3_backward_body, {2, 14, 14, 192}, BOTH, 0},
    {"dwconv3_backward", dwconv3_backward_body, {1, 6, 14, 768, 1}, BOTH, 0},
    {"dwconv3_backward", dwconv3_backward_body, {3, 5, 6, 72, 2}, BOTH, 0},
    {"dwconv3_backward", dwconv3_backward_body, {3, 7, 6, 65, 3}, BOTH, 0},
    {"dwconv3_backward", dwconv3_backward_body, {1, 3, 40, 1000}, BOTH, 0},
    {"dwconv3", dwconv3_body, {1, 14, 14, 192, 2 | 4}, IN_BOTH | ONLY_BENCH, 0},
    {"dwconv3", dwconv3_body, {32, 14, 14, 192, 2 | 4}, IN_BOTH | ONLY_BENCH, 0},
    {"dwconv3_taps", dwconv3_taps_body, {32, 14, 14, 192}, IN_BOTH | ONLY_BENCH, 0},
    {0},
};
