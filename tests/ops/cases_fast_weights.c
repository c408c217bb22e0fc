/* The slots of the fused LaCT layer (lact_nvs.md 3.3, 4, 5): against formulas in doubles that are
 * written down here once more.
 */
#include <math.h>

#include "op_case.h"

static double silu(double x) {
    return x * sigma(x);
}
static double dsilu(double x) {
    const double s = sigma(x);
    return s * (1.0 + x * (1.0 - s));
}
static double d2silu(double x) {
    const double s = sigma(x);
    return s * (1.0 - s) * (2.0 + x * (1.0 - 2.0 * s));
}

/* ---- heads of a packed projection ---- */

/* p: B, nh, N, dh, channels before, behind; p[6]: 1 with the unit norm. */
static double unit_offset(const Run *r) {
    return r->p[6] ? (double)1e-5f : 0.0;
}

static int64_t head_begin(const Run *r, int64_t row) {
    const int64_t nh = r->p[1], n = r->p[2], dh = r->p[3];
    const int64_t pitch = r->p[4] + nh * dh + r->p[5];
    return (row / n / nh * n + row % n) * pitch + r->p[4] + row / n % nh * dh;
}

static void expect_heads(Run *r, Tensor y, Tensor packed) {
    const int64_t dh = r->p[3];
    double *e = expected(r, y);
    for (int64_t row = 0; e && row < r->p[0] * r->p[1] * r->p[2]; row++) {
        const double *x = values(r, packed) + head_begin(r, row);
        double squares = 0.0;
        for (int64_t c = 0; c < dh; c++) squares += pow(silu(x[c]), 2.0);
        const double rate = r->p[6] ? 1.0 / (sqrt(squares) + unit_offset(r)) : 1.0;
        for (int64_t c = 0; c < dh; c++) e[row * dh + c] = silu(x[c]) * rate;
    }
}

static void silu_heads_body(Run *r) {
    const int64_t b = r->p[0], nh = r->p[1], n = r->p[2], dh = r->p[3];
    const int64_t pitch = r->p[4] + nh * dh + r->p[5];
    Tensor packed = input(r, "packed", r->act, SHAPE(b, n, pitch), 1.5);
    Tensor y = output(r, "y", r->act, SHAPE(b, nh, n, dh));
    CALL(r, silu_heads, y, packed, r->p[4], (float)unit_offset(r));
    if (r->reference) expect_heads(r, y, packed);
}

static void silu_heads_backward_body(Run *r) {
    const int64_t b = r->p[0], nh = r->p[1], n = r->p[2], dh = r->p[3];
    const int64_t pitch = r->p[4] + nh * dh + r->p[5];
    Tensor dy = r->p[7] == 2 ? in_place(r, "dy, y", r->act, SHAPE(b, nh, n, dh), 1.0)
                             : input(r, "dy", r->act, SHAPE(b, nh, n, dh), 1.0);
    Tensor packed = input(r, "packed", r->act, SHAPE(b, n, pitch), 1.5);
    Grad dpacked = gradient_in_place(r, "dpacked", r->act, SHAPE(b, n, pitch));
    /* p[7]: 1 for the heads once more, 2 in the place of dy */
    Tensor y = r->p[7] == 0   ? tensor_none()
               : r->p[7] == 1 ? output(r, "y", r->act, SHAPE(b, nh, n, dh))
                              : dy;
    CALL(r, silu_heads_backward, dpacked, y, dy, packed, r->p[4], (float)unit_offset(r));
    if (!r->reference) return;
    if (r->p[7]) expect_heads(r, y, packed);
    /* of a unit vector of one value nothing but the offset's share is left */
    if (dh == 1 && r->p[6]) r->cancelled = 1.0;
    double *e = expected(r, dpacked.t);
    if (!e) return;
    const double *before = values(r, dpacked.t);
    for (int64_t i = 0; i < b * n * pitch; i++) e[i] = before[i];
    for (int64_t row = 0; row < b * nh * n; row++) {
        const double *x = values(r, packed) + head_begin(r, row), *g = values(r, dy) + row * dh;
        double squares = 0.0, dot = 0.0;
        for (int64_t c = 0; c < dh; c++) {
            squares += pow(silu(x[c]), 2.0);
            dot += silu(x[c]) * g[c];
        }
        const double norm = sqrt(squares), rate = r->p[6] ? 1.0 / (norm + unit_offset(r)) : 1.0;
        const double pull = r->p[6] ? rate * rate * dot / norm : 0.0;
        for (int64_t c = 0; c < dh; c++) {
            const double value = (rate * g[c] - pull * silu(x[c])) * dsilu(x[c]);
            e[head_begin(r, row) + c] = value + (dpacked.add ? before[head_begin(r, row) + c] : 0);
        }
    }
}

/* ---- rates ---- */

/* p: rows, width, rates. The shift makes the rates small, as in the model. */
#define RATE_SHIFT (-4.6)

static void token_rates_body(Run *r) {
    const int64_t rows = r->p[0], width = r->p[1], rates = r->p[2];
    Tensor x = input(r, "x", r->act, SHAPE(rows, width), 1.0);
    Tensor w = input(r, "w", DTYPE_F32, SHAPE(rates, width), 1.0 / sqrt((double)width));
    Tensor b = input(r, "b", DTYPE_F32, SHAPE(rates), 0.5);
    Tensor eta = output(r, "eta", DTYPE_F32, SHAPE(rows, rates));
    CALL(r, token_rates, eta, x, w, b, (float)RATE_SHIFT);
    double *e = r->reference ? expected(r, eta) : NULL;
    for (int64_t i = 0; e && i < rows * rates; i++) {
        double z = values(r, b)[i % rates] + (double)(float)RATE_SHIFT;
        for (int64_t c = 0; c < width; c++)
            z += values(r, x)[i / rates * width + c] * values(r, w)[i % rates * width + c];
        e[i] = log1p(exp(z));
    }
}

static double rate_value(int64_t i, void *user) {
    (void)i;
    return 0.01 * exp(random_normal(user));
}

static void token_rates_backward_body(Run *r) {
    const int64_t rows = r->p[0], width = r->p[1], rates = r->p[2];
    Tensor deta = input(r, "deta", DTYPE_F32, SHAPE(rows, rates), 1.0);
    Tensor eta = input_of(r, "eta", DTYPE_F32, SHAPE(rows, rates), rate_value, r);
    Tensor x = input(r, "x", r->act, SHAPE(rows, width), 1.0);
    Tensor w = input(r, "w", DTYPE_F32, SHAPE(rates, width), 1.0);
    Grad dx = gradient(r, "dx", r->act, SHAPE(rows, width));
    Grad dw = gradient(r, "dw", DTYPE_F32, SHAPE(rates, width));
    Grad db = gradient(r, "db", DTYPE_F32, SHAPE(rates));
    CALL(r, token_rates_backward, dx, dw, db, deta, eta, x, w);
    if (!r->reference) return;
    double *ex = expected(r, dx.t), *ew = expected(r, dw.t), *eb = expected(r, db.t);
    double size = 0.0;
    for (int64_t i = 0; i < rows * rates; i++) {
        const double dz = values(r, deta)[i] * -expm1(-values(r, eta)[i]);
        const int64_t row = i / rates, j = i % rates;
        size += dz * dz;
        if (eb) eb[j] += dz;
        for (int64_t c = 0; c < width; c++) {
            if (ex) ex[row * width + c] += dz * values(r, w)[j * width + c];
            if (ew) ew[j * width + c] += dz * values(r, x)[row * width + c];
        }
    }
    r->cancelled = sqrt(size); /* sums over rows of both signs */
}

/* ---- what the inner gradients are products of ---- */

/* p: B, H, n, h; p[4]: 1 where only W1 is written. */
typedef struct Writing {
    Tensor ac, t, eta;
} Writing;

static Writing writing_inputs(Run *r) {
    const int64_t b = r->p[0], heads = r->p[1], n = r->p[2], h = r->p[3];
    Writing w = {.t = tensor_none()};
    w.ac = input(r, "ac", r->act, SHAPE(b, heads, n, 2 * h), 1.2);
    if (!r->p[4]) w.t = input(r, "t", r->act, SHAPE(b, heads, n, h), 1.0);
    w.eta = input(r, "eta", DTYPE_F32, SHAPE(b, n, 3 * heads), 1.0);
    return w;
}

/* Rate j of row (b, head, token). */
static int64_t rate_place(const Run *r, int64_t row, int j) {
    const int64_t heads = r->p[1], n = r->p[2];
    return (row / n / heads * n + row % n) * 3 * heads + j * heads + row / n % heads;
}

static double rate_of(Run *r, const Writing *w, int64_t row, int j) {
    return values(r, w->eta)[rate_place(r, row, j)];
}

/* E0, E2 and P of element (row, c), without rates. */
static void factors(Run *r, const Writing *w, int64_t row, int64_t c, double out[3]) {
    const int64_t h = r->p[3];
    const double a = values(r, w->ac)[2 * row * h + c], g = values(r, w->ac)[2 * row * h + h + c];
    const double t = w->t.data ? values(r, w->t)[row * h + c] : 0.0;
    out[0] = t * g * dsilu(a);
    out[1] = t * silu(a);
    out[2] = silu(a) * g;
}

/* Which rate each part of e has. */
static const int rate_of_part[] = {0, 2, 1};

static void lact_write_body(Run *r) {
    const int64_t each = r->p[0] * r->p[1], n = r->p[2], h = r->p[3], parts = r->p[4] ? 1 : 3;
    const Writing w = writing_inputs(r);
    Tensor y = output(r, "e", r->act, SHAPE(parts, each, n, h));
    CALL(r, lact_write, y, w.ac, w.t, w.eta);
    double *e = r->reference ? expected(r, y) : NULL, f[3];
    for (int64_t i = 0; e && i < each * n * h; i++) {
        factors(r, &w, i / h, i % h, f);
        for (int64_t k = 0; k < parts; k++) {
            const int64_t part = r->p[4] ? 2 : k;
            e[k * each * n * h + i] = f[part] * rate_of(r, &w, i / h, rate_of_part[part]);
        }
    }
}

static void lact_write_backward_body(Run *r) {
    const int64_t b = r->p[0], heads = r->p[1], n = r->p[2], h = r->p[3];
    const int64_t rows = b * heads * n, parts = r->p[4] ? 1 : 3;
    const Writing w = writing_inputs(r);
    Tensor e = in_place(r, "e", r->act, SHAPE(parts, b * heads, n, h), 1.0);
    Tensor dac = output(r, "dac", r->act, SHAPE(b, heads, n, 2 * h)), dt = tensor_none();
    if (!r->p[4]) dt = output(r, "dt", r->act, SHAPE(b, heads, n, h));
    Grad deta = gradient(r, "deta", DTYPE_F32, SHAPE(b, n, 3 * heads));
    CALL(r, lact_write_backward, dac, dt, deta, e, w.ac, w.t, w.eta);
    if (!r->reference) return;
    const double *before = values(r, e);
    double *ee = expected(r, e), *eac = expected(r, dac), *et = expected(r, dt);
    double *er = expected(r, deta.t), size = 0.0, f[3];
    for (int64_t i = 0; i < rows * h; i++) {
        const int64_t row = i / h, c = i % h;
        double g[3] = {0}, d[3];
        factors(r, &w, row, c, f);
        for (int64_t k = 0; k < parts; k++) {
            const int64_t part = r->p[4] ? 2 : k;
            const double rate = rate_of(r, &w, row, rate_of_part[part]);
            g[part] = before[k * rows * h + i];
            ee[k * rows * h + i] = f[part] * rate;
            if (er) er[rate_place(r, row, rate_of_part[part])] += f[part] * g[part];
            size += pow(f[part] * g[part], 2.0);
        }
        for (int k = 0; k < 3; k++) d[k] = g[k] * rate_of(r, &w, row, rate_of_part[k]);
        const double a = values(r, w.ac)[2 * row * h + c], q = values(r, w.ac)[2 * row * h + h + c];
        const double t = w.t.data ? values(r, w.t)[i] : 0.0;
        eac[2 * row * h + c] = (d[2] * q + d[1] * t) * dsilu(a) + d[0] * t * q * d2silu(a);
        eac[2 * row * h + h + c] = d[2] * silu(a) + d[0] * t * dsilu(a);
        if (et) et[i] = d[1] * silu(a) + d[0] * q * dsilu(a);
    }
    r->cancelled = sqrt(size); /* of deta: terms of both signs */
}

/* ---- the gate ---- */

/* p: rows, h; p[2]: 1 where p takes the place of dp. */
static void lact_gate_body(Run *r) {
    const int64_t rows = r->p[0], h = r->p[1];
    Tensor ab = input(r, "ab", r->act, SHAPE(rows, 2 * h), 1.2);
    Tensor p = output(r, "p", r->act, SHAPE(rows, h));
    CALL(r, lact_gate, p, ab);
    double *e = r->reference ? expected(r, p) : NULL;
    for (int64_t i = 0; e && i < rows * h; i++) {
        const double *x = values(r, ab) + 2 * (i / h) * h + i % h;
        e[i] = silu(x[0]) * x[h];
    }
}

static void lact_gate_backward_body(Run *r) {
    const int64_t rows = r->p[0], h = r->p[1];
    Tensor ab = input(r, "ab", r->act, SHAPE(rows, 2 * h), 1.2);
    Tensor dp = r->p[2] ? in_place(r, "dp, p", r->act, SHAPE(rows, h), 1.0)
                        : input(r, "dp", r->act, SHAPE(rows, h), 1.0);
    Tensor p = r->p[2] ? dp : output(r, "p", r->act, SHAPE(rows, h));
    Tensor dab = output(r, "dab", r->act, SHAPE(rows, 2 * h));
    CALL(r, lact_gate_backward, dab, p, dp, ab);
    if (!r->reference) return;
    const double *g = values(r, dp);
    double *e = expected(r, dab), *again = expected(r, p);
    for (int64_t i = 0; i < rows * h; i++) {
        const int64_t at = 2 * (i / h) * h + i % h;
        const double a = values(r, ab)[at], b = values(r, ab)[at + h];
        e[at] = g[i] * b * dsilu(a);
        e[at + h] = g[i] * silu(a);
        again[i] = silu(a) * b;
    }
}

#define BOTH  (IN_BOTH | ANY_THREADS)
#define BENCH (IN_BF16 | ONLY_BENCH)

const OpCase cases_fast_weights[] = {
    {"silu_heads", silu_heads_body, {1, 1, 1, 1, 0, 0, 1}, BOTH, 0},
    {"silu_heads", silu_heads_body, {2, 3, 5, 8, 16, 8, 1}, BOTH, 0},
    {"silu_heads", silu_heads_body, {2, 2, 7, 33, 3, 1, 1}, BOTH, 0},
    {"silu_heads", silu_heads_body, {2, 1, 9, 768, 0, 768, 1}, BOTH, 0},
    {"silu_heads", silu_heads_body, {1, 2, 5, 1200, 0, 0, 1}, BOTH, 0},
    {"silu_heads", silu_heads_body, {2, 2, 9, 64, 128, 0, 0}, BOTH, 0},
    {"silu_heads", silu_heads_body, {1, 1, 65536, 768, 0, 0, 1}, BENCH, 0},
    {"silu_heads_backward", silu_heads_backward_body, {1, 1, 1, 1, 0, 0, 1}, BOTH, 0},
    {"silu_heads_backward", silu_heads_backward_body, {2, 3, 5, 8, 16, 8, 1}, BOTH, 0},
    {"silu_heads_backward", silu_heads_backward_body, {2, 2, 7, 33, 3, 1, 1}, BOTH, 0},
    {"silu_heads_backward", silu_heads_backward_body, {2, 1, 9, 768, 0, 768, 1}, BOTH, 0},
    {"silu_heads_backward", silu_heads_backward_body, {2, 1, 9, 768, 0, 0, 1, 2}, BOTH, 0},
    {"silu_heads_backward", silu_heads_backward_body, {2, 2, 7, 33, 3, 1, 1, 2}, BOTH, 0},
    {"silu_heads_backward", silu_heads_backward_body, {2, 2, 7, 64, 0, 0, 0, 1}, BOTH, 0},
    {"silu_heads_backward", silu_heads_backward_body, {1, 2, 5, 1200, 0, 0, 1}, BOTH, 0},
    {"silu_heads_backward", silu_heads_backward_body, {2, 2, 9, 64, 128, 0, 0}, BOTH, 0},
    {"silu_heads_backward", silu_heads_backward_body, {1, 1, 65536, 768, 0, 0, 1}, BENCH, 0},
    {"token_rates", token_rates_body, {1, 1, 1}, BOTH, 0},
    {"token_rates", token_rates_body, {37, 64, 3}, BOTH, 0},
    {"token_rates", token_rates_body, {9, 191, 12}, BOTH, 0},
    {"token_rates", token_rates_body, {5, 1100, 6}, BOTH, 0},
    {"token_rates", token_rates_body, {4099, 40, 3}, BOTH, 0},
    {"token_rates", token_rates_body, {6000, 760, 3}, BOTH | ONLY_CARDS, 0},
    {"token_rates", token_rates_body, {16384, 768, 3}, BENCH, 0},
    {"token_rates_backward", token_rates_backward_body, {1, 1, 1}, BOTH, 0},
    {"token_rates_backward", token_rates_backward_body, {37, 64, 3}, BOTH, 0},
    {"token_rates_backward", token_rates_backward_body, {901, 191, 12}, BOTH, 0},
    {"token_rates_backward", token_rates_backward_body, {5, 1100, 6}, BOTH, 0},
    {"token_rates_backward", token_rates_backward_body, {700, 768, 3}, BOTH, 0},
    {"token_rates_backward", token_rates_backward_body, {131, 1544, 4}, BOTH, 0},
    {"token_rates_backward", token_rates_backward_body, {20000, 40, 3}, BOTH | ONLY_CARDS, 0},
    {"token_rates_backward", token_rates_backward_body, {16384, 768, 3}, BENCH, 0},
    {"lact_write", lact_write_body, {1, 1, 1, 1}, BOTH, 0},
    {"lact_write", lact_write_body, {2, 3, 5, 33}, BOTH, 0},
    {"lact_write", lact_write_body, {2, 2, 7, 96, 1}, BOTH, 0},
    {"lact_write", lact_write_body, {1, 2, 9, 768}, BOTH, 0},
    {"lact_write", lact_write_body, {1, 1, 3, 1100}, BOTH, 0},
    {"lact_write", lact_write_body, {32, 1, 512, 768}, BENCH, 0},
    {"lact_write_backward", lact_write_backward_body, {1, 1, 1, 1}, BOTH, 0},
    {"lact_write_backward", lact_write_backward_body, {2, 3, 5, 33}, BOTH, 0},
    {"lact_write_backward", lact_write_backward_body, {2, 2, 7, 96, 1}, BOTH, 0},
    {"lact_write_backward", lact_write_backward_body, {1, 2, 9, 768}, BOTH, 0},
    {"lact_write_backward", lact_write_backward_body, {1, 1, 3, 1100}, BOTH, 0},
    {"lact_write_backward", lact_write_backward_body, {32, 1, 512, 768}, BENCH, 0},
    {"lact_gate", lact_gate_body, {1, 1}, BOTH, 0},
    {"lact_gate", lact_gate_body, {13, 96}, BOTH, 0},
    {"lact_gate", lact_gate_body, {130, 33}, BOTH, 0},
    {"lact_gate", lact_gate_body, {3, 1100}, BOTH, 0},
    {"lact_gate", lact_gate_body, {65536, 768}, BENCH, 0},
    {"lact_gate_backward", lact_gate_backward_body, {1, 1}, BOTH, 0},
    {"lact_gate_backward", lact_gate_backward_body, {13, 96, 1}, BOTH, 0},
    {"lact_gate_backward", lact_gate_backward_body, {130, 33}, BOTH, 0},
    {"lact_gate_backward", lact_gate_backward_body, {3, 1100, 1}, BOTH, 0},
    {"lact_gate_backward", lact_gate_backward_body, {65536, 768, 1}, BENCH, 0},
    {0},
};
