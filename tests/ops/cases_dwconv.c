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
    {"dwconv3", dwconv3_body, {1, 14, 14, 192, 2 | 4}, IN_BOTH | ONLY_BENCH, 0},
    {"dwconv3", dwconv3_body, {32, 14, 14, 192, 2 | 4}, IN_BOTH | ONLY_BENCH, 0},
    {"dwconv3_taps", dwconv3_taps_body, {32, 14, 14, 192}, IN_BOTH | ONLY_BENCH, 0},
    {0},
};
