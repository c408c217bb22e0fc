/* Newton-Schulz by the letter of lact_nvs.md 4.3 and 5.3, in doubles. */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "op_case.h"

#define OFFSET 1e-7

/* Triples that differ from step to step: fastweight.md 4.3, schedule5. */
static const float schedule[5][3] = {{4.0848f, -6.8946f, 2.9270f},
                                     {3.9505f, -6.3029f, 2.6377f},
                                     {3.7418f, -5.5913f, 2.3037f},
                                     {2.8769f, -3.1427f, 1.2046f},
                                     {2.8366f, -3.0525f, 1.2012f}};

/* p: matrices, rows, columns, steps, 1 for products of BF16 operands, 1 for F32 results always, how
 * many matrices differ (0: all), as many are no more work for the naive version; of the backward 1
 * where u is wanted, 2 in F32. */
static NewtonSchulz iteration(const Run *r) {
    NewtonSchulz s = {.steps = (int)r->p[3], .bf16 = r->p[4] == 1};
    memcpy(s.triple, schedule, sizeof schedule);
    return s;
}

/* c[n,m] = alpha a[n,k] b + beta c; b [k,m], or [m,k] when turned. */
static void product(double *c, const double *a, const double *b, bool turned, int64_t n, int64_t m,
                    int64_t k, double alpha, double beta) {
#pragma omp parallel for schedule(static) if (n * m * k > 100000)
    for (int64_t i = 0; i < n; i++) {
        double *to = c + i * m;
        for (int64_t j = 0; j < m; j++) to[j] = beta == 0.0 ? 0.0 : beta * to[j];
        for (int64_t p = 0; !turned && p < k; p++)
            for (int64_t j = 0; j < m; j++) to[j] += alpha * a[i * k + p] * b[p * m + j];
        for (int64_t j = 0; turned && j < m; j++) {
            double sum = 0.0;
#pragma omp simd reduction(+ : sum)
            for (int64_t p = 0; p < k; p++) sum += a[i * k + p] * b[j * k + p];
            to[j] += alpha * sum;
        }
    }
}

/* One matrix with r <= c, and what a step makes of it. */
typedef struct Work {
    int64_t r, c;
    double *x[6], *a, *b, *h, *q, *dx, *next;
} Work;

static double *doubles(int64_t n) {
    double *p = malloc(sizeof *p * (size_t)n);
    if (!p) abort();
    return p;
}

static void work_open(Work *w, int64_t rows, int64_t columns) {
    w->r = rows < columns ? rows : columns;
    w->c = rows + columns - w->r;
    for (int i = 0; i < 6; i++) w->x[i] = doubles(w->r * w->c);
    w->dx = doubles(w->r * w->c), w->next = doubles(w->r * w->c);
    w->a = doubles(w->r * w->r), w->b = doubles(w->r * w->r);
    w->h = doubles(w->r * w->r), w->q = doubles(w->r * w->r);
}

static void work_close(Work *w) {
    for (int i = 0; i < 6; i++) free(w->x[i]);
    free(w->a), free(w->b), free(w->h), free(w->q), free(w->dx), free(w->next);
}

/* y[r,c] = alpha x, of x [rows, columns] turned where it has more rows; and back. */
static void place(double *y, const double *x, int64_t rows, int64_t columns, double alpha) {
    for (int64_t i = 0; i < rows; i++)
        for (int64_t j = 0; j < columns; j++)
            y[rows > columns ? j * rows + i : i * columns + j] = alpha * x[i * columns + j];
}
static void place_back(double *y, const double *x, int64_t rows, int64_t columns) {
    for (int64_t i = 0; i < rows; i++)
        for (int64_t j = 0; j < columns; j++)
            y[i * columns + j] = x[rows > columns ? j * rows + i : i * columns + j];
}

static int64_t distinct(const Run *r) {
    return r->p[6] ? r->p[6] : r->p[0];
}

/* Uniform in [-0.5, 0.5), from the number alone. */
static double scattered(uint64_t z) {
    z = (z + 1) * 0x9e3779b97f4a7c15u;
    z = (z ^ z >> 30) * 0xbf58476d1ce4e5b9u;
    z = (z ^ z >> 27) * 0x94d049bb133111ebu;
    return (double)((z ^ z >> 31) >> 11) * 0x1p-53 - 0.5;
}

/* Values of a matrix that comes again every so many. */
static double repeated_value(int64_t i, void *user) {
    const Run *r = user;
    const uint64_t at = 4 * (uint64_t)(i % (distinct(r) * r->p[1] * r->p[2]));
    return 1.7 * (scattered(at) + scattered(at + 1) + scattered(at + 2) + scattered(at + 3));
}
static double repeated_small(int64_t i, void *user) {
    return 0.01 * repeated_value(i + 7, user); /* not the same as the other tensor's */
}

static Tensor matrices(Run *r, const char *name, DType dtype, double spread) {
    const int64_t *p = r->p;
    if (!p[6]) return input(r, name, dtype, SHAPE(p[0], p[1], p[2]), spread);
    return input_of(r, name, dtype, SHAPE(p[0], p[1], p[2]),
                    spread < 1.0 ? repeated_small : repeated_value, r);
}

/* The expected values of the first matrices for those that are the same. */
static void repeat_expected(const Run *r, double *e) {
    const int64_t some = distinct(r) * r->p[1] * r->p[2];
    for (int64_t i = some; i < r->p[0] * r->p[1] * r->p[2]; i++) e[i] = e[i - some];
}

static double norm_of(const double *x, int64_t n) {
    double sum = 0.0;
    for (int64_t i = 0; i < n; i++) sum += x[i] * x[i];
    return sqrt(sum);
}

/* A and B = bA + cAA of step k. */
static void polynomial(Work *w, int k) {
    const int64_t r = w->r;
    product(w->a, w->x[k], w->x[k], true, r, r, w->c, 1.0, 0.0);
    memcpy(w->b, w->a, sizeof *w->b * (size_t)(r * r));
    product(w->b, w->a, w->a, true, r, r, r, (double)schedule[k][2], (double)schedule[k][1]);
}

static void run_forward(Work *w, int steps) {
    for (int k = 0; k < steps; k++) {
        polynomial(w, k);
        memcpy(w->x[k + 1], w->x[k], sizeof(double) * (size_t)(w->r * w->c));
        product(w->x[k + 1], w->b, w->x[k], false, w->r, w->c, w->r, 1.0, (double)schedule[k][0]);
    }
}

static void newton_schulz_body(Run *r) {
    const int64_t n = r->p[0], rows = r->p[1], columns = r->p[2], count = rows * columns;
    const NewtonSchulz s = iteration(r);
    Tensor g = matrices(r, "g", r->act, 0.01);
    Tensor u = output(r, "u", r->p[5] ? DTYPE_F32 : r->act, SHAPE(n, rows, columns));
    Tensor norms = r->p[5] ? tensor_none() : output(r, "norms", DTYPE_F32, SHAPE(n));
    r->coarse = s.bf16;
    r->flops = (double)n * s.steps *
               (4.0 * (double)(count * (rows < columns ? rows : columns)) +
                2.0 * pow((double)(rows < columns ? rows : columns), 3.0));
    CALL(r, newton_schulz, u, norms, g, s);
    if (!r->reference) return;
    Work w;
    work_open(&w, rows, columns);
    double *eu = expected(r, u), *en = expected(r, norms);
    for (int64_t i = 0; i < distinct(r); i++) {
        const double *x = values(r, g) + i * count, norm = norm_of(x, count);
        if (en) en[i] = norm;
        place(w.x[0], x, rows, columns, 1.0 / (norm + OFFSET));
        run_forward(&w, s.steps);
        place_back(eu + i * count, w.x[s.steps], rows, columns);
    }
    repeat_expected(r, eu);
    for (int64_t i = distinct(r); en && i < n; i++) en[i] = en[i - distinct(r)];
    work_close(&w);
}

/* dx before step k from dx after it. */
static void step_back(Work *w, int k) {
    const int64_t r = w->r, c = w->c;
    const double cubic = (double)schedule[k][1], quintic = (double)schedule[k][2];
    polynomial(w, k);
    product(w->h, w->dx, w->x[k], true, r, r, c, 1.0, 0.0);
    product(w->h, w->x[k], w->dx, true, r, r, c, 1.0, 1.0);
    memcpy(w->q, w->h, sizeof *w->q * (size_t)(r * r));
    product(w->q, w->h, w->a, true, r, r, r, quintic, cubic);
    product(w->q, w->a, w->h, true, r, r, r, quintic, 1.0);
    memcpy(w->next, w->dx, sizeof *w->dx * (size_t)(r * c));
    product(w->next, w->b, w->dx, false, r, c, r, 1.0, (double)schedule[k][0]);
    product(w->next, w->q, w->x[k], false, r, c, r, 1.0, 1.0);
    double *old = w->dx;
    w->dx = w->next;
    w->next = old;
}

typedef struct Norms {
    Run *r;
    Tensor g;
} Norms;

static double norm_value(int64_t i, void *user) {
    const Norms *s = user;
    const int64_t count = s->r->p[1] * s->r->p[2];
    return norm_of(values(s->r, s->g) + i * count, count);
}

static void newton_schulz_backward_body(Run *r) {
    const int64_t n = r->p[0], rows = r->p[1], columns = r->p[2], count = rows * columns;
    const NewtonSchulz s = iteration(r);
    Tensor du = matrices(r, "du", r->p[5] ? DTYPE_F32 : r->act, 1.0);
    Tensor g = matrices(r, "g", r->act, 0.01);
    Norms user = {r, g};
    Tensor norms = input_of(r, "norms", DTYPE_F32, SHAPE(n), norm_value, &user);
    Grad dg = gradient(r, "dg", r->act, SHAPE(n, rows, columns));
    r->coarse = s.bf16;
    Tensor u = tensor_none();
    if (r->p[7]) u = output(r, "u", r->p[7] == 2 ? DTYPE_F32 : r->act, SHAPE(n, rows, columns));
    CALL(r, newton_schulz_backward, dg, u, du, g, norms, s);
    double *e = r->reference ? expected(r, dg.t) : NULL, *eu = r->reference ? expected(r, u) : NULL;
    if (!e && !eu) return;
    Work w;
    work_open(&w, rows, columns);
    double *back = doubles(count);
    for (int64_t i = 0; i < distinct(r); i++) {
        const double *x = values(r, g) + i * count, norm = norm_of(x, count), den = norm + OFFSET;
        place(w.x[0], x, rows, columns, 1.0 / den);
        run_forward(&w, s.steps);
        if (eu) place_back(eu + i * count, w.x[s.steps], rows, columns);
        if (!e) continue;
        place(w.dx, values(r, du) + i * count, rows, columns, 1.0);
        for (int k = s.steps - 1; k >= 0; k--) step_back(&w, k);
        place_back(back, w.dx, rows, columns);
        double dot = 0.0;
        for (int64_t j = 0; j < count; j++) dot += back[j] * x[j];
        for (int64_t j = 0; j < count; j++)
            e[i * count + j] = (back[j] - x[j] * dot / (den * norm)) / den;
    }
    if (e) repeat_expected(r, e);
    if (eu) repeat_expected(r, eu);
    free(back);
    work_close(&w);
}

#define BENCH (IN_BF16 | ONLY_BENCH)

/* Products of BF16 operands: each step multiplies what rounding left in directions of small
 * singular values, so few steps tell more about the kernel (limits of 1 to 3 % instead of 6 to 24).
 */
const OpCase cases_newton_schulz[] = {
    {"newton_schulz", newton_schulz_body, {1, 1, 1, 5, 0}, IN_BOTH, 10},
    {"newton_schulz", newton_schulz_body, {3, 8, 8, 5, 0}, IN_BOTH, 10},
    {"newton_schulz", newton_schulz_body, {3, 12, 7, 5, 0}, IN_BOTH, 10},
    {"newton_schulz", newton_schulz_body, {2, 7, 12, 3, 0, 1}, IN_BOTH, 10},
    {"newton_schulz", newton_schulz_body, {2, 33, 20, 0, 0}, IN_BOTH, 1},
    {"newton_schulz", newton_schulz_body, {96, 16, 24, 5, 0, 1}, IN_BOTH, 10},
    {"newton_schulz", newton_schulz_body, {3, 12, 20, 2, 1}, IN_BOTH, 4},
    {"newton_schulz", newton_schulz_body, {1, 64, 64, 1, 1, 1}, IN_BOTH, 2},
    {"newton_schulz", newton_schulz_body, {3, 64, 64, 5, 1, 1}, IN_BOTH, 15},
    {"newton_schulz", newton_schulz_body, {96, 64, 64, 1, 1}, IN_BOTH, 3},
    {"newton_schulz", newton_schulz_body, {3, 128, 128, 1, 1}, IN_BOTH, 3},
    {"newton_schulz", newton_schulz_body, {2, 128, 320, 2, 1, 1}, IN_BOTH, 4},
    {"newton_schulz", newton_schulz_body, {3, 192, 192, 1, 1, 1}, IN_BOTH, 2},
    {"newton_schulz", newton_schulz_body, {2, 192, 256, 5, 1}, IN_BOTH, 15},
    {"newton_schulz", newton_schulz_body, {2, 256, 192, 2, 1}, IN_BOTH, 4},
    {"newton_schulz", newton_schulz_body, {1, 384, 384, 1, 1, 1}, IN_BOTH, 2},
    {"newton_schulz", newton_schulz_body, {1, 256, 512, 1, 1}, IN_BOTH, 2},
    {"newton_schulz", newton_schulz_body, {44, 320, 320, 1, 1, 1, 1}, IN_F32, 2},
    /* by pairs of blocks, in two rounds and in one */
    {"newton_schulz", newton_schulz_body, {80, 384, 384, 2, 1, 0, 1}, IN_BF16, 4},
    {"newton_schulz", newton_schulz_body, {41, 384, 384, 1, 1, 1, 2}, IN_BF16, 3},
    {"newton_schulz", newton_schulz_body, {45, 512, 768, 1, 1, 0, 2}, IN_BF16 | ONLY_CARDS, 2},
    {"newton_schulz", newton_schulz_body, {45, 512, 768, 3, 1, 1, 1}, IN_BF16 | ONLY_CARDS, 6},
    {"newton_schulz", newton_schulz_body, {3, 768, 768, 5, 1, 1}, BENCH, 0},
    {"newton_schulz", newton_schulz_body, {12, 384, 384, 5, 1, 1}, BENCH, 0},
    {"newton_schulz", newton_schulz_body, {64, 384, 384, 5, 1, 1}, BENCH, 0},
    {"newton_schulz", newton_schulz_body, {192, 384, 384, 5, 1, 1}, BENCH, 0},
    {"newton_schulz", newton_schulz_body, {96, 768, 768, 5, 1, 1}, BENCH, 0},
    {"newton_schulz", newton_schulz_body, {96, 512, 768, 5, 1}, BENCH, 0},
    {"newton_schulz_backward", newton_schulz_backward_body, {1, 1, 5, 2, 0}, IN_BOTH, 50},
    {"newton_schulz_backward", newton_schulz_backward_body, {3, 8, 8, 5, 0}, IN_BOTH, 50},
    {"newton_schulz_backward", newton_schulz_backward_body, {3, 12, 7, 5, 0, 1}, IN_BOTH, 50},
    {"newton_schulz_backward", newton_schulz_backward_body, {2, 7, 12, 1, 0}, IN_BOTH, 10},
    {"newton_schulz_backward", newton_schulz_backward_body, {2, 33, 20, 0, 0}, IN_BOTH, 2},
    {"newton_schulz_backward", newton_schulz_backward_body, {3, 12, 20, 1, 1}, IN_BOTH, 4},
    {"newton_schulz_backward", newton_schulz_backward_body, {1, 64, 64, 1, 1, 1}, IN_BOTH, 4},
    {"newton_schulz_backward", newton_schulz_backward_body, {3, 128, 128, 1, 1}, IN_BOTH, 4},
    {"newton_schulz_backward", newton_schulz_backward_body, {2, 128, 192, 2, 1, 1}, IN_BOTH, 8},
    {"newton_schulz_backward", newton_schulz_backward_body, {3, 192, 128, 2, 1}, IN_BOTH, 8},
    {"newton_schulz_backward", newton_schulz_backward_body, {1, 192, 192, 5, 1}, IN_BOTH, 60},
    {"newton_schulz_backward", newton_schulz_backward_body, {2, 256, 512, 1, 1}, IN_BOTH, 4},
    {"newton_schulz_backward", newton_schulz_backward_body, {44, 320, 320, 1, 1, 1, 1}, IN_BOTH, 4},
    /* with u: any size, by tiles of 128 and of 64 rows, by quads */
    {"newton_schulz_backward", newton_schulz_backward_body, {2, 7, 12, 3, 0, 0, 0, 1}, IN_BOTH, 50},
    {"newton_schulz_backward", newton_schulz_backward_body, {3, 12, 7, 5, 0, 1, 0, 2}, IN_BOTH, 50},
    {"newton_schulz_backward", newton_schulz_backward_body, {2, 33, 20, 0, 0, 0, 0, 1}, IN_BOTH, 2},
    {"newton_schulz_backward", newton_schulz_backward_body, {3, 12, 20, 1, 1, 0, 0, 2}, IN_BOTH, 4},
    {"newton_schulz_backward",
     newton_schulz_backward_body,
     {3, 128, 192, 2, 1, 0, 0, 1},
     IN_BOTH,
     8},
    {"newton_schulz_backward",
     newton_schulz_backward_body,
     {2, 192, 128, 2, 1, 0, 0, 2},
     IN_BOTH,
     8},
    {"newton_schulz_backward",
     newton_schulz_backward_body,
     {1, 64, 320, 1, 1, 1, 0, 1},
     IN_BOTH,
     4},
    {"newton_schulz_backward",
     newton_schulz_backward_body,
     {44, 320, 384, 1, 1, 0, 1, 2},
     IN_F32 | ONLY_CARDS,
     4},
    {"newton_schulz_backward",
     newton_schulz_backward_body,
     {45, 320, 384, 2, 1, 0, 1, 1},
     IN_BF16 | ONLY_CARDS,
     8},
    {"newton_schulz_backward", newton_schulz_backward_body, {96, 512, 768, 5, 1}, BENCH, 0},
    {"newton_schulz_backward",
     newton_schulz_backward_body,
     {96, 512, 768, 5, 1, 0, 0, 1},
     BENCH,
     0},
    {"newton_schulz_backward", newton_schulz_backward_body, {64, 384, 384, 5, 1, 1}, BENCH, 0},
    {"newton_schulz_backward", newton_schulz_backward_body, {96, 768, 768, 5, 1, 1}, BENCH, 0},
    {0},
};
