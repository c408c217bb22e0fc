/* LaCT over chunks (fastweight.md 4.1, 4.4): gated products, states of chunks, steps between them.
 */
#include <math.h>

#include "kernels/cpu/gemm.h"
#include "kernels/cpu/table.h"
#include "kernels/cpu/values.h"
#include "kernels/cpu/vmath.h"

/* ---- gated products ---- */

#define ROWS 4096 /* whose products lie in scratch at a time */

/* Rows [at, at + n) of a matrix. */
static Tensor rows_of(Tensor x, int64_t at, int64_t n, int64_t width) {
    return tensor_2d((char *)x.data + (size_t)(at * width) * dtype_size(x.dtype), x.dtype, n,
                     width);
}

/* The gate of rows [first, first + n) of p from their products ab[n,2h]. */
static void gate_rows(Tensor p, Tensor rate, const float *ab, int64_t first, int64_t n) {
    const Grad to = grad_set(p);
    const int64_t width = tensor_last(p);
#pragma omp parallel for schedule(static) if (n * width >= PARALLEL_MIN)
    for (int64_t r = 0; r < n; r++) {
        const float eta = rate.data ? ((const float *)rate.data)[first + r] : 1.0f;
        float buffer[CHUNK];
        for (int64_t c = 0; c < width; c += CHUNK) {
            const int64_t m = min_i64(CHUNK, width - c), at = (first + r) * width + c;
            const float *a = ab + 2 * r * width + c, *b = a + width;
            float *out = values_target(&to, at, buffer);
#pragma omp simd
            for (int64_t i = 0; i < m; i++) out[i] = eta * silu_value(a[i]) * b[i];
            values_write(&to, at, m, out);
        }
    }
}

Status gate_product_cpu(Device *d, Tensor p, Tensor x, Tensor w, Tensor rate) {
    if (!act_dtype(x.dtype) || w.dtype != x.dtype || p.dtype != x.dtype)
        return refuse_dtype("gate_product", w.dtype);
    const int64_t groups = x.shape[0] * x.shape[1], tokens = x.shape[2], e = x.shape[3];
    const int64_t h = p.shape[3], weights = w.shape[0] * w.shape[1];
    for (int64_t g = 0; g < groups; g++) {
        const Tensor own = rows_of(w, g % weights * e, e, 2 * h);
        for (int64_t at = 0; at < tokens; at += ROWS) {
            const int64_t n = min_i64(ROWS, tokens - at), first = g * tokens + at;
            Tensor ab;
            TRY(arena_tensor(&d->scratch, DTYPE_F32, 2, (int64_t[]){n, 2 * h}, &ab));
            TRY(matmul_cpu(d, grad_set(ab), rows_of(x, first, n, e), false, own, false, 1.0f));
            gate_rows(p, rate, ab.data, first, n); /* nothing has taken scratch since */
        }
    }
    return STATUS_OK;
}

/* ---- what reads them, what they write ---- */

static Gemm gemm_of(int64_t m, int64_t n, int64_t k, const void *a, bool ta, const void *b, void *c,
                    DType in, DType out) {
    return (Gemm){.batch = 1,
                  .m = m,
                  .n = n,
                  .k = k,
                  .a = a,
                  .ta = ta,
                  .b = b,
                  .c = c,
                  .in = in,
                  .out = out,
                  .lda = ta ? m : k,
                  .ldb = n,
                  .ldc = n,
                  .alpha = 1.0f};
}

/* Of rows x [n,e] with w [e,2h]: p in scratch. */
static Status take_gates(Device *d, Tensor x, Tensor w, Tensor rate, int64_t first, Tensor *p) {
    const int64_t n = x.shape[0], e = x.shape[1], h = w.shape[1] / 2;
    Tensor ab;
    TRY(arena_tensor(&d->scratch, DTYPE_F32, 2, (int64_t[]){n, 2 * h}, &ab));
    TRY(arena_tensor(&d->scratch, x.dtype, 2, (int64_t[]){n, h}, p));
    const Gemm g = gemm_of(n, 2 * h, e, x.data, false, w.data, ab.data, x.dtype, DTYPE_F32);
    TRY(gemm_run(d, &g));
    if (rate.data) rate = tensor_1d((float *)rate.data + first, DTYPE_F32, n);
    gate_rows(*p, rate, ab.data, 0, n);
    return STATUS_OK;
}

/* Weights of chunk c of all, of `chunks` a group. */
static Tensor gates_of(Tensor w, int64_t c, int64_t chunks) {
    const int64_t e = w.shape[2], weights = w.shape[0] * w.shape[1];
    return rows_of(w, c / chunks % weights * e, e, w.shape[3]);
}

Status gate_read_cpu(Device *d, Tensor y, Tensor x, Tensor w, Tensor s) {
    if (!act_dtype(x.dtype) || w.dtype != x.dtype || s.dtype != x.dtype || y.dtype != x.dtype)
        return refuse_dtype("gate_read", s.dtype);
    const int64_t chunks = s.shape[1], h = s.shape[2], o = s.shape[3], n = x.shape[2] / chunks;
    for (int64_t c = 0; c < s.shape[0] * chunks; c++) {
        for (int64_t at = 0; at < n; at += ROWS) {
            const int64_t rows = min_i64(ROWS, n - at), first = c * n + at;
            Tensor p;
            TRY(take_gates(d, rows_of(x, first, rows, x.shape[3]), gates_of(w, c, chunks),
                           tensor_none(), 0, &p));
            const Gemm g = gemm_of(rows, o, h, p.data, false, rows_of(s, c * h, h, o).data,
                                   rows_of(y, first, rows, o).data, x.dtype, y.dtype);
            TRY(gemm_run(d, &g));
            arena_reset(&d->scratch);
        }
    }
    return STATUS_OK;
}

Status gate_write_cpu(Device *d, Tensor y, Tensor x, Tensor v, Tensor w, Tensor rate) {
    if (!act_dtype(x.dtype) || w.dtype != x.dtype || v.dtype != x.dtype || !act_dtype(y.dtype))
        return refuse_dtype("gate_write", w.dtype);
    const int64_t chunks = y.shape[1], h = y.shape[2], o = y.shape[3], n = x.shape[2] / chunks;
    for (int64_t c = 0; c < y.shape[0] * chunks; c++) {
        Tensor p;
        TRY(take_gates(d, rows_of(x, c * n, n, x.shape[3]), gates_of(w, c, chunks), rate, c * n,
                       &p));
        const Gemm g = gemm_of(h, o, n, p.data, true, rows_of(v, c * n, n, o).data,
                               rows_of(y, c * h, h, o).data, x.dtype, y.dtype);
        TRY(gemm_run(d, &g));
        arena_reset(&d->scratch);
    }
    return STATUS_OK;
}

/* ---- states ---- */

/* f of chunk c of a group. */
static float factor_of(Tensor m, int64_t group, int64_t c) {
    if (!m.data) return 1.0f;
    const int64_t chunks = m.shape[1], n = m.shape[2];
    const float *x = (const float *)m.data + (group % m.shape[0] * chunks + c) * n;
    float sum = 0.0f;
    for (int64_t i = 0; i < n; i++) sum += x[i];
    return sum / (float)n;
}

typedef struct Scan {
    Tensor y, last, x, m, start;
    float alpha;
    bool before;
} Scan;

/* Elements [at, at + n) of all chunks of a group. */
static void scan_part(const Scan *s, int64_t group, int64_t at, int64_t n) {
    const int64_t chunks = s->x.shape[1], width = s->x.shape[2];
    const Grad to = grad_set(s->y);
    float state[CHUNK] = {0}, buffer[CHUNK];
    if (s->start.data)
        memcpy(state, (const float *)s->start.data + group % s->start.shape[0] * width + at,
               (size_t)n * sizeof *state);
    for (int64_t c = 0; c < chunks; c++) {
        const int64_t place = (group * chunks + c) * width + at;
        const float f = factor_of(s->m, group, c);
        const float *x = values_read(&s->x, place, n, buffer);
        if (s->before && s->y.data) values_write(&to, place, n, state);
#pragma omp simd
        for (int64_t i = 0; i < n; i++) state[i] = f * state[i] + s->alpha * x[i];
        if (!s->before && s->y.data) values_write(&to, place, n, state);
    }
    if (s->last.data)
        memcpy((float *)s->last.data + group * width + at, state, (size_t)n * sizeof *state);
}

Status state_scan_cpu(Device *d, Tensor y, Tensor last, Tensor x, Tensor m, Tensor start,
                      float alpha, bool before) {
    (void)d;
    if (!act_dtype(x.dtype) || (y.data && !act_dtype(y.dtype)))
        return refuse_dtype("state_scan", x.dtype);
    const Scan s = {y, last, x, m, start, alpha, before};
    const int64_t groups = x.shape[0], width = x.shape[2], parts = div_up(width, CHUNK);
#pragma omp parallel for schedule(static) if (tensor_count(x) >= PARALLEL_MIN)
    for (int64_t job = 0; job < groups * parts; job++) {
        const int64_t at = job % parts * CHUNK;
        scan_part(&s, job / parts, at, min_i64(CHUNK, width - at));
    }
    return STATUS_OK;
}

/* ---- steps ---- */

#define COLUMNS 64

/* kept/(|M| + offset) of n columns from c of matrix o. */
static void step_scales(const ChunkStep *p, int64_t o, int64_t c, int64_t n, float sign,
                        float offset, float *scale) {
    const int64_t rows = p->before.shape[1], columns = p->before.shape[2];
    const float *before =
        (const float *)p->before.data + o % p->before.shape[0] * rows * columns + c;
    const float *kept = (const float *)p->kept.data + o % p->kept.shape[0] * columns + c;
    float sum[COLUMNS] = {0}, buffer[COLUMNS];
    for (int64_t r = 0; r < rows; r++) {
        const float *u = values_read(&p->u, (o * rows + r) * columns + c, n, buffer);
#pragma omp simd
        for (int64_t i = 0; i < n; i++) {
            const float moved = before[r * columns + i] + sign * u[i];
            sum[i] += moved * moved;
        }
    }
    for (int64_t i = 0; i < n; i++) scale[i] = kept[i] / (sqrtf(sum[i]) + offset);
}

/* n columns from c of matrix o; w may be `before`. */
static void step_columns(const ChunkStep *p, int64_t o, int64_t c, int64_t n, float sign,
                         float offset) {
    const int64_t rows = p->w.shape[1], columns = p->w.shape[2];
    const int64_t matrix = o % p->before.shape[0] * rows * columns;
    const Grad to = grad_set(p->y);
    float scale[COLUMNS], buffer[COLUMNS];
    for (int64_t i = 0; i < COLUMNS; i++) scale[i] = 1.0f;
    if (offset > 0.0f) step_scales(p, o, c, n, sign, offset, scale);
    for (int64_t r = 0; r < rows; r++) {
        const float *before = (const float *)p->before.data + matrix + r * columns + c;
        const float *u = values_read(&p->u, (o * rows + r) * columns + c, n, buffer);
        float *w = (float *)p->w.data + (o * rows + r) * columns + c;
        for (int64_t i = 0; i < n; i++) w[i] = (before[i] + sign * u[i]) * scale[i];
        values_write(&to, (o * rows + r) * p->y.shape[2] + p->at + c, n, w);
    }
}

Status chunk_step_cpu(Device *d, int parts, const ChunkStep *part, float sign, float offset) {
    (void)d;
    for (int i = 0; i < parts; i++) {
        const ChunkStep *p = &part[i];
        if (!act_dtype(p->y.dtype) || !act_dtype(p->u.dtype))
            return refuse_dtype("chunk_step", p->y.dtype);
        const int64_t across = div_up(p->w.shape[2], COLUMNS);
#pragma omp parallel for schedule(static) if (tensor_count(p->w) >= PARALLEL_MIN)
        for (int64_t job = 0; job < p->w.shape[0] * across; job++) {
            const int64_t c = job % across * COLUMNS;
            step_columns(p, job / across, c, min_i64(COLUMNS, p->w.shape[2] - c), sign, offset);
        }
    }
    return STATUS_OK;
}
