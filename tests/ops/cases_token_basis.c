/* The basis of rows by the letter of its contract, in doubles. Cases are of rows that differ enough
 * for the elements of r, inv and q to be determined; what holds for any rows is a unit test's. */
#include <math.h>
#include <stdlib.h>

#include "op_case.h"

/* r of x [n,c], from S + TOKEN_SHIFT diag(S) column after column. */
static void factor(double *r, const double *x, int64_t n, int64_t c) {
    for (int64_t s = 0; s < n; s++) {
        for (int64_t t = s; t < n; t++) {
            double sum = 0.0, taken = 0.0;
            for (int64_t i = 0; i < c; i++) sum += x[t * c + i] * x[s * c + i];
            for (int64_t i = 0; i < s; i++) taken += r[t * n + i] * r[s * n + i];
            if (t > s) {
                r[t * n + s] = (sum - taken) / r[s * n + s];
                continue;
            }
            const double shift = (double)TOKEN_SHIFT * sum, least = (double)TOKEN_LEAST;
            r[s * n + s] = sqrt(fmax(sum + shift - taken, fmax(shift / 2.0, least * least)));
        }
    }
}

/* inv, column after column by substitution. */
static void invert(double *inv, const double *r, int64_t n) {
    for (int64_t s = 0; s < n; s++) {
        for (int64_t t = s; t < n; t++) {
            double sum = t == s ? 1.0 : 0.0;
            for (int64_t i = s; i < t; i++) sum -= r[t * n + i] * inv[i * n + s];
            inv[t * n + s] = sum / r[t * n + t];
        }
    }
}

static void basis(double *q, const double *inv, const double *x, int64_t n, int64_t c) {
    for (int64_t t = 0; t < n; t++)
        for (int64_t s = 0; s <= t; s++)
            for (int64_t i = 0; i < c; i++) q[t * c + i] += inv[t * n + s] * x[s * c + i];
}

/* Rows that have a part in common: p[3] hundredths, beside 1 of their own. The last row is zero
 * where p[4] is 1. */
static double token_value(int64_t i, void *user) {
    Run *r = user;
    const int64_t c = r->p[2], row = i / c % r->p[1];
    if (r->p[4] == 1 && row + 1 == r->p[1]) return 0.0;
    return 0.01 * (double)r->p[3] * cos((double)(i % c)) + random_normal(r);
}

/* p: matrices, rows, columns, hundredths in common, 1 with a row of zeros. */
static void token_basis_body(Run *r) {
    const int64_t g = r->p[0], n = r->p[1], c = r->p[2];
    Tensor x = input_of(r, "x", r->act, SHAPE(g, n, c), token_value, r);
    Tensor q = output(r, "q", r->act, SHAPE(g, n, c));
    Tensor factors = output(r, "r", r->act, SHAPE(g, n, n));
    Tensor inv = output(r, "inv", r->act, SHAPE(g, n, n));
    const double square = (double)(g * n * n);
    r->flops = square * (2.0 * (double)c + 2.0 / 3.0 * (double)n);
    CALL(r, token_basis, q, factors, inv, x);
    if (!r->reference) return;
    double *eq = expected(r, q), *er = expected(r, factors), *ei = expected(r, inv);
    for (int64_t i = 0; i < g; i++) {
        const double *in = values(r, x) + i * n * c;
        factor(er + i * n * n, in, n, c);
        invert(ei + i * n * n, er + i * n * n, n);
        basis(eq + i * n * c, ei + i * n * n, in, n, c);
    }
}

/* Energies of a few values, so that some are equal. */
static double energy_value(int64_t i, void *user) {
    (void)i;
    return floor(8.0 * random_uniform(user)) * 0.25;
}

static double walsh(int64_t i, int64_t j, int64_t n) {
    int64_t run = 1;
    while (run < 512 && n % (2 * run) == 0) run *= 2;
    if (i / run != j / run) return 0.0;
    int bits = 0;
    for (int64_t both = i & j & (run - 1); both; both >>= 1) bits += (int)(both & 1);
    return (bits % 2 ? -1.0 : 1.0) / sqrt((double)run);
}

/* p: matrices, n. */
static void walsh_rows_body(Run *r) {
    const int64_t g = r->p[0], n = r->p[1];
    Tensor energy = input_of(r, "energy", DTYPE_F32, SHAPE(g, n), energy_value, r);
    Tensor w = output(r, "w", r->act, SHAPE(g, n, n));
    CALL(r, walsh_rows, w, energy);
    if (!r->reference) return;
    double *e = expected(r, w);
    for (int64_t i = 0; i < g; i++) {
        const double *own = values(r, energy) + i * n;
        for (int64_t t = 0; t < n; t++) {
            int64_t place = 0;
            for (int64_t s = 0; s < n; s++) place += own[s] > own[t] || (own[s] == own[t] && s < t);
            for (int64_t j = 0; j < n; j++) e[(i * n + place) * n + j] = walsh(t, j, n);
        }
    }
}

/* p: matrices, rows, columns. */
static void walsh_energy_body(Run *r) {
    const int64_t g = r->p[0], n = r->p[1], c = r->p[2];
    Tensor x = input(r, "x", r->act, SHAPE(g, n, c), 1.0);
    Tensor energy = output(r, "energy", DTYPE_F32, SHAPE(g, n));
    CALL(r, walsh_energy, energy, x);
    double *e = r->reference ? expected(r, energy) : NULL;
    for (int64_t i = 0; e && i < g * n; i++) {
        const double *rows = values(r, x) + i / n * n * c;
        for (int64_t j = 0; j < c; j++) {
            double sum = 0.0;
            for (int64_t t = 0; t < n; t++) sum += walsh(i % n, t, n) * rows[t * c + j];
            e[i] += sum * sum;
        }
    }
}

/* F32 results have the condition of the rows in their last digits, BF16 results one rounding. */
#define BOTH(...)                                                                                  \
    {"token_basis", token_basis_body, {__VA_ARGS__}, IN_F32, 20}, {                                \
        "token_basis", token_basis_body, {__VA_ARGS__}, IN_BF16, 1                                 \
    }

const OpCase cases_token_basis[] = {
    BOTH(1, 1, 1),
    BOTH(3, 5, 8),
    {"token_basis", token_basis_body, {2, 12, 12}, IN_BOTH, 100},
    BOTH(2, 7, 30, 100),
    BOTH(2, 6, 16, 0, 1),
    BOTH(1, 33, 100, 50),
    BOTH(3, 64, 128),
    BOTH(2, 64, 192, 200),
    BOTH(2, 128, 192, 30),
    BOTH(1, 192, 320),
    {"token_basis", token_basis_body, {1, 512, 768}, IN_BF16, 1},
    {"token_basis", token_basis_body, {64, 512, 768}, IN_BF16 | ONLY_BENCH, 0},
    {"walsh_rows", walsh_rows_body, {1, 1}, IN_BOTH, 1},
    {"walsh_rows", walsh_rows_body, {2, 7}, IN_BOTH, 1},
    {"walsh_rows", walsh_rows_body, {3, 24}, IN_BOTH, 1},
    {"walsh_rows", walsh_rows_body, {5, 192}, IN_BOTH, 1},
    {"walsh_rows", walsh_rows_body, {2, 512}, IN_BOTH, 1},
    {"walsh_rows", walsh_rows_body, {1, 1024}, IN_BOTH, 1},
    {"walsh_rows", walsh_rows_body, {64, 512}, IN_BF16 | ONLY_BENCH, 0},
    {"walsh_energy", walsh_energy_body, {1, 1, 1}, IN_BOTH, 1},
    {"walsh_energy", walsh_energy_body, {2, 7, 5}, IN_BOTH, 1},
    {"walsh_energy", walsh_energy_body, {3, 2, 40}, IN_BOTH, 1},
    {"walsh_energy", walsh_energy_body, {2, 4, 33}, IN_BOTH, 1},
    {"walsh_energy", walsh_energy_body, {2, 24, 64}, IN_BOTH, 1},
    {"walsh_energy", walsh_energy_body, {2, 16, 70}, IN_BOTH, 1},
    {"walsh_energy", walsh_energy_body, {1, 32, 8}, IN_BOTH, 1},
    {"walsh_energy", walsh_energy_body, {2, 192, 100}, IN_BOTH, 1},
    {"walsh_energy", walsh_energy_body, {1, 128, 96}, IN_BOTH, 1},
    {"walsh_energy", walsh_energy_body, {1, 256, 36}, IN_BOTH, 1},
    {"walsh_energy", walsh_energy_body, {2, 512, 64}, IN_BOTH, 1},
    {"walsh_energy", walsh_energy_body, {1, 1024, 10}, IN_BOTH, 1},
    {"walsh_energy", walsh_energy_body, {64, 512, 768}, IN_BF16 | ONLY_BENCH, 0},
    {0},
};
