/* Attention within windows, forward and backward (lact_nvs.md 3.2, 5.5). */
#include <math.h>
#include <stdlib.h>

#include "op_case.h"

#define EPS 1.1920929e-7

/* Bits of p[4]. */
enum { NO_NORM = 1, NO_LSE = 2, WIDE = 4 /* large weights: scores up to 100 */ };

/* p: windows, tokens, heads, head width, bits. */
typedef struct Sizes {
    int64_t windows, tokens, heads, width, rows; /* rows: windows * tokens */
} Sizes;

static Sizes sizes_of(const Run *r) {
    return (Sizes){r->p[0], r->p[1], r->p[2], r->p[3], r->p[0] * r->p[1]};
}

static void *numbers(int64_t n) {
    void *x = calloc((size_t)n, sizeof(double));
    if (!x) abort();
    return x;
}

/* The forward pass in doubles: normed q and k and plain v as [3][windows, heads, tokens, width];
 * rates as [2][windows, heads, tokens]. */
typedef struct Exact {
    Run *r;
    Sizes s;
    Tensor packed, q_w, k_w;
    double *x, *rate, *o, *lse;
} Exact;

static double *exact_row(const Exact *e, int third, int64_t window, int64_t head, int64_t token) {
    const Sizes *s = &e->s;
    return e->x +
           (((third * s->windows + window) * s->heads + head) * s->tokens + token) * s->width;
}

static void exact_norm(Exact *e) {
    const Sizes *s = &e->s;
    const double *packed = values(e->r, e->packed);
    const double *w[2] = {e->q_w.data ? values(e->r, e->q_w) : NULL,
                          e->k_w.data ? values(e->r, e->k_w) : NULL};
    for (int64_t i = 0; i < 3 * s->rows * s->heads; i++) {
        const int64_t row = i / (3 * s->heads), head = i % s->heads;
        const int third = (int)(i / s->heads % 3);
        double *x = exact_row(e, third, row / s->tokens, head, row % s->tokens), squares = 0;
        for (int64_t c = 0; c < s->width; c++) {
            x[c] = packed[i * s->width + c];
            squares += x[c] * x[c] / (double)s->width;
        }
        if (third == 2 || !w[third]) continue;
        const double rate = 1.0 / sqrt(squares + (double)(float)EPS);
        e->rate[(third * s->windows + row / s->tokens) * s->heads * s->tokens + head * s->tokens +
                row % s->tokens] = rate;
        for (int64_t c = 0; c < s->width; c++) x[c] *= rate * w[third][c];
    }
}

static double product(const double *a, const double *b, int64_t n) {
    double sum = 0;
    for (int64_t c = 0; c < n; c++) sum += a[c] * b[c];
    return sum;
}

/* Scaled score of query i and key j. */
static double score(const Exact *e, int64_t window, int64_t head, int64_t i, int64_t j) {
    return product(exact_row(e, 0, window, head, i), exact_row(e, 1, window, head, j), e->s.width) /
           sqrt((double)e->s.width);
}

static void exact_forward(Exact *e) {
    const Sizes *s = &e->s;
    double *p = numbers(s->tokens);
    for (int64_t i = 0; i < s->windows * s->heads * s->tokens; i++) {
        const int64_t window = i / (s->heads * s->tokens), head = i / s->tokens % s->heads;
        const int64_t token = i % s->tokens;
        double top = -INFINITY, sum = 0;
        for (int64_t j = 0; j < s->tokens; j++) {
            p[j] = score(e, window, head, token, j);
            top = fmax(top, p[j]);
        }
        for (int64_t j = 0; j < s->tokens; j++) sum += p[j] = exp(p[j] - top);
        e->lse[i] = top + log(sum);
        double *o = e->o + ((window * s->tokens + token) * s->heads + head) * s->width;
        for (int64_t j = 0; j < s->tokens; j++)
            for (int64_t c = 0; c < s->width; c++)
                o[c] += p[j] / sum * exact_row(e, 2, window, head, j)[c];
    }
    free(p);
}

static Exact exact_new(Run *r, Tensor packed, Tensor q_w, Tensor k_w) {
    Exact e = {.r = r, .s = sizes_of(r), .packed = packed, .q_w = q_w, .k_w = k_w};
    const int64_t rows = e.s.rows * e.s.heads;
    e.x = numbers(3 * rows * e.s.width);
    e.rate = numbers(2 * rows);
    e.o = numbers(rows * e.s.width);
    e.lse = numbers(rows);
    exact_norm(&e);
    return e;
}

static void exact_free(Exact *e) {
    free(e->x);
    free(e->rate);
    free(e->o);
    free(e->lse);
}

static double weight_value(int64_t i, void *user) {
    Run *r = user;
    (void)i;
    return (r->p[4] & WIDE ? 4.0 : 1.0) * (0.5 + random_uniform(r));
}

static void weights(Run *r, Tensor *q_w, Tensor *k_w) {
    *q_w = *k_w = tensor_none();
    if (r->p[4] & NO_NORM) return;
    *q_w = input_of(r, "q_w", DTYPE_F32, SHAPE(r->p[3]), weight_value, r);
    *k_w = input_of(r, "k_w", DTYPE_F32, SHAPE(r->p[3]), weight_value, r);
}

static void attention_body(Run *r) {
    const Sizes s = sizes_of(r);
    Tensor q_w, k_w;
    Tensor packed =
        input(r, "packed", r->act, SHAPE(s.windows, s.tokens, 3 * s.heads * s.width), 1.0);
    weights(r, &q_w, &k_w);
    Tensor o = output(r, "o", r->act, SHAPE(s.windows, s.tokens, s.heads * s.width));
    Tensor lse = r->p[4] & NO_LSE
                     ? tensor_none()
                     : output(r, "lse", DTYPE_F32, SHAPE(s.windows, s.heads, s.tokens));
    r->flops = 4.0 * (double)(s.rows * s.heads * s.tokens * s.width);
    CALL(r, attention, o, lse, packed, q_w, k_w, s.heads, (float)EPS);
    if (!r->reference) return;
    /* q and k enter products rounded to BF16 */
    r->coarse = r->act == DTYPE_BF16;
    Exact e = exact_new(r, packed, q_w, k_w);
    exact_forward(&e);
    double *eo = expected(r, o), *el = expected(r, lse);
    for (int64_t i = 0; i < s.rows * s.heads * s.width; i++) eo[i] = e.o[i];
    for (int64_t i = 0; el && i < s.rows * s.heads; i++) el[i] = e.lse[i];
    exact_free(&e);
}

/* ---- backward ------------------------------------------------------------------------------ */

/* Of normed q and k and of v, laid out like Exact.x, with o and lse as the kernel is given them. */
static void exact_backward(const Exact *e, const double *dout, const double *o, const double *lse,
                           double *dx) {
    const Sizes *s = &e->s;
    for (int64_t i = 0; i < s->windows * s->heads * s->tokens; i++) {
        const int64_t window = i / (s->heads * s->tokens), head = i / s->tokens % s->heads;
        const int64_t token = i % s->tokens;
        const int64_t at = ((window * s->tokens + token) * s->heads + head) * s->width;
        const double *q = exact_row(e, 0, window, head, token), *g = dout + at;
        const double delta = product(g, o + at, s->width);
        double *dq = dx + (q - e->x);
        for (int64_t j = 0; j < s->tokens; j++) {
            const double *k = exact_row(e, 1, window, head, j);
            const double *v = exact_row(e, 2, window, head, j);
            const double p = exp(score(e, window, head, token, j) - lse[i]);
            const double ds = p * (product(g, v, s->width) - delta) / sqrt((double)s->width);
            double *dk = dx + (k - e->x), *dv = dx + (v - e->x);
            for (int64_t c = 0; c < s->width; c++) {
                dq[c] += ds * k[c];
                dk[c] += ds * q[c];
                dv[c] += p * g[c];
            }
        }
    }
}

/* Through the norms, into the layout of packed. */
static void exact_packed(const Exact *e, const double *dx, double *dpacked, double *dq_w,
                         double *dk_w) {
    const Sizes *s = &e->s;
    const double *packed = values(e->r, e->packed);
    double *dw[2] = {dq_w, dk_w};
    for (int64_t i = 0; i < 3 * s->rows * s->heads; i++) {
        const int64_t row = i / (3 * s->heads), head = i % s->heads;
        const int third = (int)(i / s->heads % 3);
        const double *y = exact_row(e, third, row / s->tokens, head, row % s->tokens);
        const double *g = dx + (y - e->x), *x = packed + i * s->width;
        double *out = dpacked + i * s->width;
        const bool normed = third < 2 && e->q_w.data;
        const double *w = normed ? values(e->r, third ? e->k_w : e->q_w) : NULL;
        const double rate =
            normed ? e->rate[(third * s->windows + row / s->tokens) * s->heads * s->tokens +
                             head * s->tokens + row % s->tokens]
                   : 0;
        const double mean = product(g, y, s->width) / (double)s->width;
        for (int64_t c = 0; c < s->width; c++) {
            out[c] = normed ? rate * w[c] * g[c] - x[c] * rate * rate * mean : g[c];
            if (normed && dw[third]) dw[third][c] += g[c] * x[c] * rate;
        }
    }
}

static double o_value(int64_t i, void *user) {
    return ((const Exact *)user)->o[i];
}
static double lse_value(int64_t i, void *user) {
    return ((const Exact *)user)->lse[i];
}

static void attention_backward_body(Run *r) {
    const Sizes s = sizes_of(r);
    Tensor q_w, k_w;
    Tensor packed =
        input(r, "packed", r->act, SHAPE(s.windows, s.tokens, 3 * s.heads * s.width), 1.0);
    weights(r, &q_w, &k_w);
    Exact e = exact_new(r, packed, q_w, k_w);
    if (!(r->item->flags & ONLY_BENCH)) exact_forward(&e);
    Tensor dout = input(r, "dout", r->act, SHAPE(s.windows, s.tokens, s.heads * s.width), 1.0);
    Tensor o = input_of(r, "o", r->act, SHAPE(s.windows, s.tokens, s.heads * s.width), o_value, &e);
    Tensor lse = input_of(r, "lse", DTYPE_F32, SHAPE(s.windows, s.heads, s.tokens), lse_value, &e);
    Tensor dpacked =
        output(r, "dpacked", r->act, SHAPE(s.windows, s.tokens, 3 * s.heads * s.width));
    const bool norm = !(r->p[4] & NO_NORM);
    Grad dq_w = norm ? gradient(r, "dq_w", DTYPE_F32, SHAPE(s.width)) : grad_none();
    Grad dk_w = norm ? gradient(r, "dk_w", DTYPE_F32, SHAPE(s.width)) : grad_none();
    r->flops = 10.0 * (double)(s.rows * s.heads * s.tokens * s.width);
    CALL(r, attention_backward, dpacked, dq_w, dk_w, dout, o, lse, packed, q_w, k_w, s.heads,
         (float)EPS);
    if (r->reference) {
        r->coarse = r->act == DTYPE_BF16;
        /* A single token attends to itself: q and k have no gradient. */
        r->cancelled = s.tokens == 1 ? 1.0 : 1e-3;
        double *dx = numbers(3 * s.rows * s.heads * s.width);
        exact_backward(&e, values(r, dout), values(r, o), values(r, lse), dx);
        exact_packed(&e, dx, expected(r, dpacked), expected(r, dq_w.t), expected(r, dk_w.t));
        free(dx);
    }
    exact_free(&e);
}

#define BOTH  (IN_BOTH | ANY_THREADS)
#define BENCH (IN_BOTH | ONLY_BENCH)

/* Head width 64 is the fast one of CUDA, in blocks of 256 keys. */
const OpCase cases_attention[] = {
    {"attention", attention_body, {1, 1, 1, 16}, BOTH, 4},
    {"attention", attention_body, {2, 37, 3, 16}, BOTH, 4},
    {"attention", attention_body, {1, 9, 2, 5, NO_NORM}, BOTH, 4},
    {"attention", attention_body, {1, 70, 1, 128}, BOTH, 4},
    {"attention", attention_body, {1, 33, 1, 200}, BOTH, 4},
    {"attention", attention_body, {1, 1, 2, 64}, BOTH, 4},
    {"attention", attention_body, {2, 256, 2, 64}, BOTH, 4},
    {"attention", attention_body, {3, 100, 1, 64, NO_NORM | NO_LSE}, BOTH, 4},
    {"attention", attention_body, {2, 256, 3, 64, NO_LSE}, BOTH, 4},
    {"attention", attention_body, {1, 130, 2, 64, NO_LSE}, BOTH, 4},
    {"attention", attention_body, {3, 200, 1, 64, NO_NORM | NO_LSE}, BOTH, 4},
    {"attention", attention_body, {1, 191, 1, 64, WIDE | NO_LSE}, BOTH, 16},
    {"attention", attention_body, {1, 65, 1, 64, WIDE}, BOTH, 16},
    {"attention", attention_body, {1, 327, 1, 64}, BOTH, 4},
    /* enough heads for a block each on a card */
    {"attention", attention_body, {132, 70, 1, 64, NO_NORM}, BOTH, 4},
    {"attention", attention_body, {34, 129, 4, 64}, BOTH, 4},
    {"attention", attention_body, {44, 256, 3, 64}, BOTH, 4},
    {"attention", attention_body, {67, 256, 2, 64, WIDE}, IN_BF16, 16},
    {"attention", attention_body, {135, 255, 1, 64}, IN_BF16, 4},
    {"attention", attention_body, {28, 130, 5, 64}, IN_BF16, 4},
    {"attention", attention_body, {140, 1, 1, 64}, IN_BF16, 4},
    /* and for large blocks of longer windows */
    {"attention", attention_body, {70, 260, 1, 64}, BOTH, 4},
    {"attention", attention_body, {256, 256, 12, 64}, BENCH, 0},
    {"attention_backward", attention_backward_body, {1, 1, 1, 16}, BOTH, 4},
    {"attention_backward", attention_backward_body, {2, 37, 3, 16}, BOTH, 4},
    {"attention_backward", attention_backward_body, {1, 9, 2, 5, NO_NORM}, BOTH, 4},
    {"attention_backward", attention_backward_body, {1, 70, 1, 128}, BOTH, 4},
    {"attention_backward", attention_backward_body, {1, 33, 1, 200}, BOTH, 4},
    {"attention_backward", attention_backward_body, {1, 1, 2, 64}, BOTH, 4},
    {"attention_backward", attention_backward_body, {2, 256, 2, 64}, BOTH, 4},
    {"attention_backward", attention_backward_body, {3, 100, 1, 64, NO_NORM}, BOTH, 4},
    {"attention_backward", attention_backward_body, {1, 65, 1, 64, WIDE}, BOTH, 16},
    {"attention_backward", attention_backward_body, {1, 327, 1, 64}, BOTH, 4},
    /* more heads than blocks */
    {"attention_backward", attention_backward_body, {140, 40, 1, 64}, IN_BF16, 4},
    {"attention_backward", attention_backward_body, {1, 129, 2, 64}, BOTH, 4},
    {"attention_backward", attention_backward_body, {2, 200, 3, 64, NO_NORM}, IN_BF16, 4},
    {"attention_backward", attention_backward_body, {1, 193, 2, 64}, IN_BF16, 4},
    {"attention_backward", attention_backward_body, {70, 256, 2, 64}, IN_BF16, 4},
    {"attention_backward", attention_backward_body, {3, 255, 2, 64}, IN_BF16, 4},
    {"attention_backward", attention_backward_body, {2, 256, 2, 64, WIDE}, IN_BF16, 16},
    {"attention_backward", attention_backward_body, {256, 256, 12, 64}, BENCH, 0},
    {0},
};
