/* A triangular factor and a basis of the rows of matrices, in doubles: the Gram matrix of tokens
 * that are alike is close to singular. Matrix after matrix, so that scratch holds what one needs.
 */
#include <math.h>
#include <string.h>

#include "kernels/cpu/table.h"
#include "kernels/cpu/values.h"

typedef struct Basis {
    Device *d;
    int64_t n, c;
    float *x;        /* [n,c] */
    double *r, *inv; /* [n,n] */
} Basis;

static Status take(Basis *b) {
    const size_t square = (size_t)(b->n * b->n) * sizeof(double);
    TRY(scratch_floats(b->d, b->n * b->c, &b->x));
    TRY(arena_take(&b->d->scratch, square, (void **)&b->r));
    return arena_take(&b->d->scratch, square, (void **)&b->inv);
}

static void read_rows(const Basis *b, const Tensor *x, int64_t matrix) {
    const int64_t n = b->n * b->c;
    for (int64_t at = 0; at < n; at += CHUNK) {
        const int64_t count = min_i64(CHUNK, n - at);
        const float *v = values_read(x, matrix * n + at, count, b->x + at);
        if (v != b->x + at) memcpy(b->x + at, v, (size_t)count * sizeof *v);
    }
}

/* The lower half of S into r. */
static void gram(const Basis *b) {
#pragma omp parallel for schedule(dynamic, 4) if (b->n * b->n * b->c >= 2 * PARALLEL_MIN)
    for (int64_t t = 0; t < b->n; t++) {
        const float *row = b->x + t * b->c;
        for (int64_t s = 0; s <= t; s++) {
            const float *other = b->x + s * b->c;
            double sum = 0.0;
#pragma omp simd reduction(+ : sum)
            for (int64_t i = 0; i < b->c; i++) sum += (double)row[i] * (double)other[i];
            b->r[t * b->n + s] = sum;
        }
    }
}

/* r, from S in its place: row after row. */
static void factor(const Basis *b) {
    const double shift = (double)TOKEN_SHIFT, least = (double)TOKEN_LEAST;
    for (int64_t t = 0; t < b->n; t++) {
        double *row = b->r + t * b->n;
        const double own = row[t];
        row[t] = own + shift * own;
        for (int64_t s = 0; s <= t; s++) {
            const double *other = b->r + s * b->n;
            double rest = row[s];
#pragma omp simd reduction(- : rest)
            for (int64_t i = 0; i < s; i++) rest -= row[i] * other[i];
            if (s < t)
                row[s] = rest / other[s];
            else
                row[s] = sqrt(fmax(rest, fmax(0.5 * shift * own, least * least)));
        }
        memset(row + t + 1, 0, (size_t)(b->n - t - 1) * sizeof *row);
    }
}

static void invert(const Basis *b) {
    for (int64_t t = 0; t < b->n; t++) {
        const double *row = b->r + t * b->n;
        double *to = b->inv + t * b->n;
        memset(to, 0, (size_t)b->n * sizeof *to);
        for (int64_t s = 0; s < t; s++) {
            const double *from = b->inv + s * b->n;
#pragma omp simd
            for (int64_t i = 0; i <= s; i++) to[i] -= row[s] * from[i];
        }
        for (int64_t i = 0; i < t; i++) to[i] /= row[t];
        to[t] = 1.0 / row[t];
    }
}

/* Rows of q, CHUNK columns at a time. */
static void project(const Basis *b, const Grad *q, int64_t matrix) {
#pragma omp parallel for schedule(dynamic, 4) if (b->n * b->n * b->c >= 2 * PARALLEL_MIN)
    for (int64_t t = 0; t < b->n; t++) {
        for (int64_t at = 0; at < b->c; at += CHUNK) {
            const int64_t count = min_i64(CHUNK, b->c - at);
            double sum[CHUNK] = {0};
            float out[CHUNK];
            for (int64_t s = 0; s <= t; s++) {
                const double rate = b->inv[t * b->n + s];
                const float *row = b->x + s * b->c + at;
#pragma omp simd
                for (int64_t i = 0; i < count; i++) sum[i] += rate * (double)row[i];
            }
            for (int64_t i = 0; i < count; i++) out[i] = (float)sum[i];
            values_write(q, (matrix * b->n + t) * b->c + at, count, out);
        }
    }
}

static void write_square(const Basis *b, const Grad *to, int64_t matrix, const double *m) {
    float row[CHUNK];
    const int64_t n = b->n * b->n;
    for (int64_t at = 0; at < n; at += CHUNK) {
        const int64_t count = min_i64(CHUNK, n - at);
        for (int64_t i = 0; i < count; i++) row[i] = (float)m[at + i];
        values_write(to, matrix * n + at, count, row);
    }
}

static Status bases(Basis *b, Tensor q, Tensor r, Tensor inv, Tensor x) {
    const Grad to_q = grad_set(q), to_r = grad_set(r), to_inv = grad_set(inv);
    TRY(take(b));
    for (int64_t i = 0; i < x.shape[0]; i++) {
        read_rows(b, &x, i);
        gram(b);
        factor(b);
        invert(b);
        project(b, &to_q, i);
        write_square(b, &to_r, i, b->r);
        write_square(b, &to_inv, i, b->inv);
    }
    return STATUS_OK;
}

Status token_basis_cpu(Device *d, Tensor q, Tensor r, Tensor inv, Tensor x) {
    if (!act_dtype(x.dtype)) return refuse_dtype("token_basis", x.dtype);
    Basis b = {.d = d, .n = x.shape[1], .c = x.shape[2]};
    return scratch_done(d, bases(&b, q, r, inv, x));
}
