/* Newton-Schulz in F32, matrix after matrix, so that scratch holds what one matrix needs
 * (lact_nvs.md 4.3, 5.3). A matrix with more rows than columns is not turned: its Gram matrix
 * stands on the right, X'X, which gives the transpose of the same result.
 */
#include <math.h>

#include "kernels/cpu/gemm.h"
#include "kernels/cpu/table.h"
#include "kernels/cpu/values.h"

#define OFFSET 1e-7f
/* A gradient of this size counts as none (fastweight.md 4.3). */
#define VANISHED 1e-20f

/* Sizes of one matrix and the products of its kind. */
typedef struct Matrix {
    Device *d;
    int64_t rows, columns, side; /* side: of the Gram matrix */
    bool tall;
} Matrix;

static Matrix matrix_of(Device *d, Tensor g) {
    const int64_t rows = g.shape[1], columns = g.shape[2];
    return (Matrix){d, rows, columns, min_i64(rows, columns), rows > columns};
}

static int64_t elements(const Matrix *m) {
    return m->rows * m->columns;
}

/* c (+)= alpha op(a) op(b), all dense. */
static Status product(const Matrix *m, float *c, const float *a, const float *b, bool ta, bool tb,
                      int64_t lda, int64_t ldb, int64_t rows, int64_t columns, int64_t depth,
                      float alpha, bool add) {
    const Gemm g = {.batch = 1,
                    .m = rows,
                    .n = columns,
                    .k = depth,
                    .a = a,
                    .b = b,
                    .in = DTYPE_F32,
                    .out = DTYPE_F32,
                    .ta = ta,
                    .tb = tb,
                    .lda = lda,
                    .ldb = ldb,
                    .ldc = columns,
                    .c = c,
                    .alpha = alpha,
                    .add = add};
    return gemm_run(m->d, &g);
}

/* s (+)= x y', of tall ones x' y: [side, side]. */
static Status gram(const Matrix *m, float *s, const float *x, const float *y, bool add) {
    const int64_t depth = m->tall ? m->rows : m->columns;
    return product(m, s, x, y, m->tall, !m->tall, m->columns, m->columns, m->side, m->side, depth,
                   1.0f, add);
}

/* c (+)= alpha a b of symmetric matrices. */
static Status square(const Matrix *m, float *c, const float *a, const float *b, float alpha,
                     bool add) {
    const int64_t n = m->side;
    return product(m, c, a, b, false, false, n, n, n, n, n, alpha, add);
}

/* y += s x, of tall ones x s. */
static Status apply(const Matrix *m, float *y, const float *s, const float *x) {
    const float *left = m->tall ? x : s, *right = m->tall ? s : x;
    return product(m, y, left, right, false, false, m->tall ? m->columns : m->side,
                   m->tall ? m->side : m->columns, m->rows, m->columns, m->side, 1.0f, true);
}

/* y += alpha x, or y = alpha x. */
static void scaled(float *y, const float *x, float alpha, int64_t n, bool add) {
#pragma omp parallel for simd schedule(static) if (n >= PARALLEL_MIN)
    for (int64_t i = 0; i < n; i++) y[i] = (add ? y[i] : 0.0f) + alpha * x[i];
}

/* Inner product of two matrices in doubles, row by row in a fixed order. */
static double inner(const Matrix *m, const float *x, const float *y, double *rows) {
#pragma omp parallel for schedule(static) if (m->rows * m->columns >= PARALLEL_MIN)
    for (int64_t r = 0; r < m->rows; r++) {
        double sum = 0.0;
        const float *a = x + r * m->columns, *b = y + r * m->columns;
        for (int64_t c = 0; c < m->columns; c++) sum += (double)a[c] * (double)b[c];
        rows[r] = sum;
    }
    double total = 0.0;
    for (int64_t r = 0; r < m->rows; r++) total += rows[r];
    return total;
}

static Status take_rows(const Matrix *m, double **out) {
    return arena_take(&m->d->scratch, (size_t)m->rows * sizeof **out, (void **)out);
}

/* F32 values of matrix i of t. */
static void read_matrix(const Matrix *m, const Tensor *t, int64_t i, float *out) {
    const int64_t n = elements(m);
#pragma omp parallel for schedule(static) if (n >= PARALLEL_MIN)
    for (int64_t at = 0; at < n; at += CHUNK) {
        const int64_t count = min_i64(CHUNK, n - at);
        const float *x = values_read(t, i * n + at, count, out + at);
        if (x != out + at) memcpy(out + at, x, (size_t)count * sizeof *out);
    }
}

static void write_matrix(const Matrix *m, const Grad *to, int64_t i, const float *x) {
    const int64_t n = elements(m);
#pragma omp parallel for schedule(static) if (n >= PARALLEL_MIN)
    for (int64_t at = 0; at < n; at += CHUNK)
        values_write(to, i * n + at, min_i64(CHUNK, n - at), x + at);
}

/* a = the Gram matrix of x, b = cubic a + quintic a a. */
static Status polynomial(const Matrix *m, const float *x, const float *triple, float *a, float *b) {
    TRY(gram(m, a, x, x, false));
    TRY(square(m, b, a, a, triple[2], false));
    scaled(b, a, triple[1], m->side * m->side, true);
    return STATUS_OK;
}

/* next = X after a step from x; a and b as of polynomial. */
static Status step(const Matrix *m, const float *x, const float *triple, float *a, float *b,
                   float *next) {
    TRY(polynomial(m, x, triple, a, b));
    scaled(next, x, triple[0], elements(m), false);
    return apply(m, next, b, x);
}

/* ---- forward
 * ------------------------------------------------------------------------------------ */

static Status forward(const Matrix *m, Tensor u, Tensor norms, Tensor g, const NewtonSchulz *s) {
    const Grad to = grad_set(u);
    float *x, *next, *a, *b;
    double *rows;
    TRY(scratch_floats(m->d, elements(m), &x));
    TRY(scratch_floats(m->d, elements(m), &next));
    TRY(scratch_floats(m->d, m->side * m->side, &a));
    TRY(scratch_floats(m->d, m->side * m->side, &b));
    TRY(take_rows(m, &rows));
    for (int64_t i = 0; i < g.shape[0]; i++) {
        read_matrix(m, &g, i, x);
        const float norm = (float)sqrt(inner(m, x, x, rows));
        if (norms.data) ((float *)norms.data)[i] = norm;
        scaled(x, x, 1.0f / (norm + OFFSET), elements(m), false);
        for (int k = 0; k < s->steps; k++) {
            TRY(step(m, x, s->triple[k], a, b, next));
            float *old = x;
            x = next;
            next = old;
        }
        write_matrix(m, &to, i, x);
    }
    return STATUS_OK;
}

Status newton_schulz_cpu(Device *d, Tensor u, Tensor norms, Tensor g, NewtonSchulz s) {
    const Matrix m = matrix_of(d, g);
    if (!act_dtype(g.dtype)) return refuse_dtype("newton_schulz", g.dtype);
    if (!act_dtype(u.dtype)) return refuse_dtype("newton_schulz", u.dtype);
    return scratch_done(d, forward(&m, u, norms, g, &s));
}

/* ---- backward
 * ----------------------------------------------------------------------------------- */

typedef struct Work {
    float *x[NEWTON_SCHULZ_MOST + 1]; /* before each step; the last one holds dX */
    float *a, *b, *h, *q, *next;
    double *rows;
} Work;

static Status work_take(const Matrix *m, int steps, Work *w) {
    float **square[] = {&w->a, &w->b, &w->h, &w->q};
    for (int k = 0; k <= steps; k++) TRY(scratch_floats(m->d, elements(m), &w->x[k]));
    for (int i = 0; i < 4; i++) TRY(scratch_floats(m->d, m->side * m->side, square[i]));
    TRY(scratch_floats(m->d, elements(m), &w->next));
    return take_rows(m, &w->rows);
}

/* *dx becomes the gradient before a step with X = x: H = dX X' + X dX',
 * dX <- a dX + B dX + (b H + c (H A + A H)) X. */
static Status step_back(const Matrix *m, Work *w, const float *x, const float *triple, float **dx) {
    TRY(polynomial(m, x, triple, w->a, w->b));
    TRY(gram(m, w->h, *dx, x, false));
    TRY(gram(m, w->h, x, *dx, true));
    TRY(square(m, w->q, w->h, w->a, triple[2], false));
    TRY(square(m, w->q, w->a, w->h, triple[2], true));
    scaled(w->q, w->h, triple[1], m->side * m->side, true);
    scaled(w->next, *dx, triple[0], elements(m), false);
    TRY(apply(m, w->next, w->b, *dx));
    TRY(apply(m, w->next, w->q, x));
    float *old = *dx;
    *dx = w->next;
    w->next = old;
    return STATUS_OK;
}

/* The gradient through g/(norm + offset); dx becomes dG, x is g afterwards. */
static void norm_back(const Matrix *m, Tensor g, int64_t i, float norm, double *rows, float *x,
                      float *dx) {
    read_matrix(m, &g, i, x);
    const float dot = (float)inner(m, x, dx, rows);
    const float rate = norm < VANISHED ? 0.0f : 1.0f / (norm + OFFSET);
    scaled(dx, dx, rate, elements(m), false);
    if (rate > 0.0f) scaled(dx, x, -dot * rate * rate / norm, elements(m), true);
}

/* X of all steps but the last one, and that to u where it is wanted. */
static Status steps_again(const Matrix *m, Work *w, const Grad *u, int64_t i,
                          const NewtonSchulz *s) {
    for (int k = 0; k + 1 < s->steps; k++)
        TRY(step(m, w->x[k], s->triple[k], w->a, w->b, w->x[k + 1]));
    if (tensor_is_none(u->t)) return STATUS_OK;
    const int last = s->steps - 1;
    if (last >= 0) TRY(step(m, w->x[last], s->triple[last], w->a, w->b, w->next));
    write_matrix(m, u, i, last >= 0 ? w->next : w->x[0]);
    return STATUS_OK;
}

static Status backward(const Matrix *m, Grad dg, Tensor u, Tensor du, Tensor g, const float *norms,
                       const NewtonSchulz *s) {
    const Grad last = grad_set(u);
    Work w;
    TRY(work_take(m, s->steps, &w));
    for (int64_t i = 0; i < g.shape[0]; i++) {
        read_matrix(m, &g, i, w.x[0]);
        scaled(w.x[0], w.x[0], 1.0f / (norms[i] + OFFSET), elements(m), false);
        TRY(steps_again(m, &w, &last, i, s));
        float *dx = w.x[s->steps];
        read_matrix(m, &du, i, dx);
        for (int k = s->steps - 1; k >= 0; k--) TRY(step_back(m, &w, w.x[k], s->triple[k], &dx));
        /* step_back may have left dX in `next`: the pair still holds two matrices */
        w.x[s->steps] = dx;
        norm_back(m, g, i, norms[i], w.rows, w.next, dx);
        write_matrix(m, &dg, i, dx);
    }
    return STATUS_OK;
}

Status newton_schulz_backward_cpu(Device *d, Grad dg, Tensor u, Tensor du, Tensor g, Tensor norms,
                                  NewtonSchulz s) {
    const bool wanted = !tensor_is_none(u);
    if (!dg.t.data) return wanted ? newton_schulz_cpu(d, u, tensor_none(), g, s) : STATUS_OK;
    const Matrix m = matrix_of(d, g);
    if (!act_dtype(g.dtype)) return refuse_dtype("newton_schulz_backward", g.dtype);
    if (!act_dtype(du.dtype)) return refuse_dtype("newton_schulz_backward", du.dtype);
    if (!act_dtype(dg.t.dtype)) return refuse_dtype("newton_schulz_backward", dg.t.dtype);
    if (wanted && !act_dtype(u.dtype)) return refuse_dtype("newton_schulz_backward", u.dtype);
    return scratch_done(d, backward(&m, dg, u, du, g, norms.data, &s));
}
