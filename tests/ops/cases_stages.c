/* What the stages of a hierarchical ViTTT add (vittt.md 4.2, 4.3): dense 3x3 convolutions, the
 * depthwise one with stride 2, batch norm, rotary positions. */
#include <math.h>

#include "op_case.h"

/* ---- convolutions; p: batch, height, width, channels; p[4]: stride, 0: 2 ----------------------
 */

typedef struct Sizes {
    int64_t b, h, w, c, stride, rows, columns;
} Sizes;

static Sizes sizes(const Run *r) {
    const int64_t s = r->p[4] ? r->p[4] : 2;
    return (Sizes){
        r->p[0], r->p[1], r->p[2], r->p[3], s, (r->p[1] - 1) / s + 1, (r->p[2] - 1) / s + 1};
}

/* Pixel of the batch at tap t around place i, or -1. */
static int64_t around(Sizes s, int64_t i, int t) {
    const int64_t b = i / (s.rows * s.columns), row = i / s.columns % s.rows, k = i % s.columns;
    const int64_t y = row * s.stride + t / 3 - 1, x = k * s.stride + t % 3 - 1;
    return y < 0 || y >= s.h || x < 0 || x >= s.w ? -1 : (b * s.h + y) * s.w + x;
}

/* p[5]: channels of the result. */
static void conv3_body(Run *r) {
    const Sizes s = sizes(r);
    const int64_t places = s.b * s.rows * s.columns, o = r->p[5];
    Tensor x = input(r, "x", r->act, SHAPE(s.b, s.h, s.w, s.c), 1.0);
    Tensor w = input(r, "w", r->act, SHAPE(o, s.c, 3, 3), 0.5);
    Tensor y = output(r, "y", r->act, SHAPE(s.b, s.rows, s.columns, o));
    r->flops = 18.0 * (double)(places * s.c * o);
    CALL(r, conv3, y, x, w, s.stride);
    double *e = r->reference ? expected(r, y) : NULL;
    for (int64_t i = 0; e && i < places * o; i++)
        for (int t = 0; t < 9; t++) {
            const int64_t q = around(s, i / o, t);
            for (int64_t c = 0; q >= 0 && c < s.c; c++)
                e[i] += values(r, x)[q * s.c + c] * values(r, w)[(i % o * s.c + c) * 9 + t];
        }
}

static void conv3_backward_body(Run *r) {
    const Sizes s = sizes(r);
    const int64_t places = s.b * s.rows * s.columns, o = r->p[5];
    Tensor dy = input(r, "dy", r->act, SHAPE(s.b, s.rows, s.columns, o), 1.0);
    Tensor x = input(r, "x", r->act, SHAPE(s.b, s.h, s.w, s.c), 1.0);
    Tensor w = input(r, "w", r->act, SHAPE(o, s.c, 3, 3), 0.5);
    Grad dx = gradient(r, "dx", r->act, SHAPE(s.b, s.h, s.w, s.c));
    Grad dw = gradient(r, "dw", DTYPE_F32, SHAPE(o, s.c, 3, 3));
    r->flops = 36.0 * (double)(places * s.c * o);
    CALL(r, conv3_backward, dx, dw, dy, x, w, s.stride);
    if (!r->reference) return;
    /* The other way holds the columns' gradients between a product and a sum, in act. */
    r->coarse = r->act == DTYPE_BF16;
    double *ex = expected(r, dx.t), *ew = expected(r, dw.t);
    for (int64_t i = 0; i < places * o; i++)
        for (int t = 0; t < 9; t++) {
            const int64_t q = around(s, i / o, t);
            for (int64_t c = 0; q >= 0 && c < s.c; c++) {
                const double g = values(r, dy)[i];
                if (ex) ex[q * s.c + c] += g * values(r, w)[(i % o * s.c + c) * 9 + t];
                if (ew) ew[(i % o * s.c + c) * 9 + t] += g * values(r, x)[q * s.c + c];
            }
        }
}

static double relu(double x) {
    return x > 0.0 ? x : 0.0;
}

static void down_body(Run *r) {
    const Sizes s = sizes(r);
    const int64_t places = s.b * s.rows * s.columns;
    Tensor x = input(r, "x", r->act, SHAPE(s.b, s.h, s.w, s.c), 1.0);
    Tensor w = input(r, "w", DTYPE_F32, SHAPE(1, s.c, 9), 0.5);
    Tensor bias = input(r, "bias", DTYPE_F32, SHAPE(s.c), 1.0);
    Tensor y = output(r, "y", r->act, SHAPE(s.b, s.rows, s.columns, s.c));
    r->flops = 18.0 * (double)(places * s.c);
    CALL(r, dwconv3_down, y, x, w, bias);
    double *e = r->reference ? expected(r, y) : NULL;
    for (int64_t i = 0; e && i < places * s.c; i++) {
        double sum = values(r, bias)[i % s.c];
        for (int t = 0; t < 9; t++) {
            const int64_t q = around(s, i / s.c, t);
            if (q >= 0)
                sum += values(r, w)[i % s.c * 9 + t] * relu(values(r, x)[q * s.c + i % s.c]);
        }
        e[i] = relu(sum);
    }
}

/* y: any values, of which the signs count. */
static void down_backward_body(Run *r) {
    const Sizes s = sizes(r);
    const int64_t places = s.b * s.rows * s.columns;
    Tensor dy = input(r, "dy", r->act, SHAPE(s.b, s.rows, s.columns, s.c), 1.0);
    Tensor y = input(r, "y", r->act, SHAPE(s.b, s.rows, s.columns, s.c), 1.0);
    Tensor x = input(r, "x", r->act, SHAPE(s.b, s.h, s.w, s.c), 1.0);
    Tensor w = input(r, "w", DTYPE_F32, SHAPE(1, s.c, 9), 0.5);
    Grad dx = gradient(r, "dx", r->act, SHAPE(s.b, s.h, s.w, s.c));
    Grad dw = gradient(r, "dw", DTYPE_F32, SHAPE(1, s.c, 9));
    Grad db = gradient(r, "db", DTYPE_F32, SHAPE(s.c));
    r->flops = 36.0 * (double)(places * s.c);
    CALL(r, dwconv3_down_backward, dx, dw, db, dy, y, x, w);
    if (!r->reference) return;
    double *ex = expected(r, dx.t), *ew = expected(r, dw.t), *eb = expected(r, db.t);
    for (int64_t i = 0; i < places * s.c; i++) {
        const int64_t c = i % s.c;
        const double e = values(r, y)[i] > 0.0 ? values(r, dy)[i] : 0.0;
        if (eb) eb[c] += e;
        for (int t = 0; t < 9; t++) {
            const int64_t q = around(s, i / s.c, t);
            if (q < 0) continue;
            const double v = values(r, x)[q * s.c + c];
            if (ew) ew[c * 9 + t] += e * relu(v);
            if (ex && v > 0.0) ex[q * s.c + c] += e * values(r, w)[c * 9 + t];
        }
    }
}

/* ---- batch norm; p: rows, columns; p[2]: bit 1 relu, bit 2 not training, bit 4 without stats --
 */

/* Far from 0, so that a variance from plain squares would lose its digits. */
static double far_value(int64_t i, void *user) {
    (void)user;
    return 30.0 + sin((double)(i * i % 9973)) + 0.5 * cos(0.37 * (double)i);
}

static double positive(int64_t i, void *user) {
    (void)user;
    return 0.5 + 0.25 * sin((double)i);
}

typedef struct Moments {
    double mean, var;
} Moments;

static Moments column_moments(const double *x, int64_t rows, int64_t width, int64_t c) {
    Moments m = {0, 0};
    for (int64_t i = 0; i < rows; i++) m.mean += x[i * width + c] / (double)rows;
    for (int64_t i = 0; i < rows; i++) {
        const double u = x[i * width + c] - m.mean;
        m.var += u * u / (double)rows;
    }
    return m;
}

static Tensor moving(Run *r, const char *name, int64_t n, bool training) {
    if (training) return in_place_of(r, name, DTYPE_F32, SHAPE(n), positive, NULL);
    return input_of(r, name, DTYPE_F32, SHAPE(n), positive, NULL);
}

static void batchnorm_body(Run *r) {
    const int64_t m = r->p[0], n = r->p[1];
    const bool cut = r->p[2] & 1, training = !(r->p[2] & 2);
    const float momentum = 0.1f, eps = 1e-3f;
    Tensor x = r->p[3] ? input_of(r, "x", r->act, SHAPE(m, n), far_value, NULL)
                       : input(r, "x", r->act, SHAPE(m, n), 1.0);
    Tensor w = input(r, "w", DTYPE_F32, SHAPE(n), 1.0);
    Tensor b = input(r, "b", DTYPE_F32, SHAPE(n), 1.0);
    Tensor seen_mean = moving(r, "seen_mean", n, training);
    Tensor seen_var = moving(r, "seen_var", n, training);
    Tensor stats = r->p[2] & 4 ? tensor_none() : output(r, "stats", DTYPE_F32, SHAPE(2, n));
    Tensor y = output(r, "y", r->act, SHAPE(m, n));
    CALL(r, batchnorm, y, stats, seen_mean, seen_var, x, w, b, eps, momentum, cut, training);
    if (!r->reference) return;
    double *ey = expected(r, y), *es = expected(r, stats);
    double *em = training ? expected(r, seen_mean) : NULL;
    double *ev = training ? expected(r, seen_var) : NULL;
    for (int64_t c = 0; c < n; c++) {
        const Moments seen = {values(r, seen_mean)[c], values(r, seen_var)[c]};
        Moments k = seen;
        if (training) k = column_moments(values(r, x), m, n, c);
        const double rstd = 1.0 / sqrt(k.var + (double)eps);
        if (es) es[c] = k.mean;
        if (es) es[n + c] = rstd;
        const double unbiased = m > 1 ? k.var * (double)m / (double)(m - 1) : k.var;
        if (em) em[c] = seen.mean + (double)momentum * (k.mean - seen.mean);
        if (ev) ev[c] = seen.var + (double)momentum * (unbiased - seen.var);
        for (int64_t i = 0; i < m; i++) {
            const double v =
                (values(r, x)[i * n + c] - k.mean) * rstd * values(r, w)[c] + values(r, b)[c];
            ey[i * n + c] = cut ? relu(v) : v;
        }
    }
}

static double mean_or_rstd(int64_t i, void *user) {
    const int64_t n = *(int64_t *)user;
    return i < n ? 0.3 * sin((double)i) : 0.7 + 0.2 * cos((double)i);
}

static void batchnorm_backward_body(Run *r) {
    int64_t m = r->p[0], n = r->p[1];
    const bool cut = r->p[2] & 1, training = !(r->p[2] & 2);
    Tensor dy = input(r, "dy", r->act, SHAPE(m, n), 1.0);
    Tensor x = input(r, "x", r->act, SHAPE(m, n), 1.0);
    Tensor w = input(r, "w", DTYPE_F32, SHAPE(n), 1.0);
    Tensor b = input(r, "b", DTYPE_F32, SHAPE(n), 0.3);
    Tensor stats = input_of(r, "stats", DTYPE_F32, SHAPE(2, n), mean_or_rstd, &n);
    Grad dx = gradient(r, "dx", r->act, SHAPE(m, n));
    Grad dw = gradient(r, "dw", DTYPE_F32, SHAPE(n));
    Grad db = gradient(r, "db", DTYPE_F32, SHAPE(n));
    CALL(r, batchnorm_backward, dx, dw, db, dy, x, w, b, stats, cut, training);
    if (!r->reference) return;
    double *ex = expected(r, dx.t), *ew = expected(r, dw.t), *eb = expected(r, db.t);
    for (int64_t c = 0; c < n; c++) {
        const double mean = values(r, stats)[c], rstd = values(r, stats)[n + c];
        double sum = 0.0, sum_n = 0.0;
        for (int pass = 0; pass < 2; pass++) {
            for (int64_t i = 0; i < m; i++) {
                const double z = (values(r, x)[i * n + c] - mean) * rstd;
                const bool off = cut && z * values(r, w)[c] + values(r, b)[c] <= 0.0;
                const double e = off ? 0.0 : values(r, dy)[i * n + c];
                const double share = training ? (sum + z * sum_n) / (double)m : 0.0;
                if (pass && ex) ex[i * n + c] = values(r, w)[c] * rstd * (e - share);
                if (!pass) sum += e;
                if (!pass) sum_n += e * z;
            }
        }
        if (eb) eb[c] = sum;
        if (ew) ew[c] = sum_n;
    }
}

/* ---- rotary positions; p: batch, tokens, width, channels behind keys; p[4]: back --------------
 */

static double turned_by(int64_t i, void *user) {
    (void)user;
    const double angle = 0.7 * (double)(i / 2);
    return i % 2 ? sin(angle) : cos(angle);
}

static void rope_body(Run *r) {
    const int64_t b = r->p[0], n = r->p[1], c = r->p[2], packed = 2 * c + r->p[3];
    Tensor x = input(r, "x", r->act, SHAPE(b, n, packed), 1.0);
    Tensor table = input_of(r, "table", DTYPE_F32, SHAPE(n, c / 2, 2), turned_by, NULL);
    Grad y = gradient(r, "y", r->act, SHAPE(b, n, packed));
    CALL(r, rope, y, x, table, r->p[4] != 0);
    double *e = r->reference ? expected(r, y.t) : NULL;
    for (int64_t i = 0; e && i < b * n * packed; i++) {
        const int64_t row = i / packed, at = i % packed;
        e[i] = values(r, x)[i];
        if (at >= 2 * c) continue;
        const double *turn = values(r, table) + row % n * c + at % c / 2 * 2;
        const double other = values(r, x)[i % 2 == row * packed % 2 ? i + 1 : i - 1];
        const double sine = r->p[4] ? -turn[1] : turn[1];
        e[i] = e[i] * turn[0] + (at % 2 ? other : -other) * sine;
    }
}

#define BOTH (IN_BOTH | ANY_THREADS)

/* Odd maps and channels; then those of stems, whose tiles of 16 x 16 places overhang. */
#define CONVS(slot, body)                                                                          \
    {slot, body, {1, 1, 1, 1, 1, 1}, BOTH, 0}, {slot, body, {1, 1, 1, 1, 2, 2}, BOTH, 0},          \
        {slot, body, {2, 5, 4, 3, 1, 4}, BOTH, 0}, {slot, body, {2, 5, 4, 3, 2, 7}, BOTH, 0},      \
        {slot, body, {1, 8, 6, 16, 1, 8}, BOTH, 0}, {slot, body, {3, 9, 16, 8, 2, 5}, BOTH, 0},    \
        {slot, body, {2, 2, 2, 40, 2, 3}, BOTH, 0}, {slot, body, {2, 16, 16, 32, 1, 32}, BOTH, 0}, \
        {slot, body, {2, 17, 7, 32, 1, 32}, BOTH, 0},                                              \
        {slot, body, {1, 20, 33, 48, 1, 48}, BOTH, 0}, {                                           \
        slot, body, {2, 9, 12, 32, 2, 64}, BOTH, 0                                                 \
    }

#define DOWNS(slot, body)                                                                          \
    {slot, body, {1, 1, 1, 1}, BOTH, 0}, {slot, body, {2, 5, 4, 3}, BOTH, 0},                      \
        {slot, body, {1, 6, 8, 4}, BOTH, 0}, {slot, body, {3, 9, 16, 20}, BOTH, 0},                \
        {slot, body, {2, 2, 3, 136}, BOTH, 0}, {                                                   \
        slot, body, {2, 14, 31, 36}, BOTH, 0                                                       \
    }

#define NORMS(slot, body, relu_and_mode)                                                           \
    {slot, body, {2, 1, relu_and_mode}, BOTH, 0}, {slot, body, {17, 5, relu_and_mode}, BOTH, 0},   \
        {slot, body, {700, 8, relu_and_mode}, BOTH, 0},                                            \
        {slot, body, {1030, 32, relu_and_mode}, BOTH, 0},                                          \
        {slot, body, {33, 1100, relu_and_mode}, BOTH, 0}, {                                        \
        slot, body, {40, 1029, relu_and_mode}, BOTH, 0                                             \
    }

const OpCase cases_stages[] = {
    CONVS("conv3", conv3_body),
    CONVS("conv3_backward", conv3_backward_body),
    DOWNS("dwconv3_down", down_body),
    DOWNS("dwconv3_down_backward", down_backward_body),
    NORMS("batchnorm", batchnorm_body, 0),
    NORMS("batchnorm", batchnorm_body, 1),
    NORMS("batchnorm", batchnorm_body, 3),
    NORMS("batchnorm", batchnorm_body, 6),
    {"batchnorm", batchnorm_body, {1, 3, 0}, BOTH, 0},
    {"batchnorm", batchnorm_body, {900, 24, 0, 1}, IN_F32 | ANY_THREADS, 0},
    NORMS("batchnorm_backward", batchnorm_backward_body, 0),
    NORMS("batchnorm_backward", batchnorm_backward_body, 1),
    NORMS("batchnorm_backward", batchnorm_backward_body, 2),
    {"rope", rope_body, {1, 1, 4, 0}, BOTH, 0},
    {"rope", rope_body, {2, 6, 8, 11}, BOTH, 0},
    {"rope", rope_body, {2, 6, 8, 11, 1}, BOTH, 0},
    {"rope", rope_body, {3, 12, 32, 64, 1}, BOTH, 0},
    {"rope", rope_body, {2, 49, 96, 192}, BOTH, 0},
    {"rope", rope_body, {1, 3, 1028, 1}, BOTH, 0},
    {"conv3", conv3_body, {32, 112, 112, 32, 1, 32}, IN_BF16 | ONLY_BENCH, 0},
    {"conv3_backward", conv3_backward_body, {32, 112, 112, 32, 1, 32}, IN_BF16 | ONLY_BENCH, 0},
    {"conv3", conv3_body, {32, 112, 112, 32, 2, 256}, IN_BF16 | ONLY_BENCH, 0},
    {"conv3_backward", conv3_backward_body, {32, 112, 112, 32, 2, 256}, IN_BF16 | ONLY_BENCH, 0},
    {"dwconv3_down", down_body, {8, 56, 56, 512}, IN_BF16 | ONLY_BENCH, 0},
    {"dwconv3_down_backward", down_backward_body, {8, 56, 56, 512}, IN_BF16 | ONLY_BENCH, 0},
    {"batchnorm", batchnorm_body, {32 * 112 * 112, 32, 5}, IN_BF16 | ONLY_BENCH, 0},
    {"batchnorm_backward",
     batchnorm_backward_body,
     {32 * 112 * 112, 32, 1},
     IN_BF16 | ONLY_BENCH,
     0},
    {"rope", rope_body, {16, 3136, 64, 160}, IN_BF16 | ONLY_BENCH, 0},
    {0},
};
