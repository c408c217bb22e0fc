/* Vectors divided by their norm plus an offset: the soft norm of inner gradients (vittt.md 2.1,
 * 3.1), unit vectors of tokens and of weight columns (lact_nvs.md 3.3, 4).
 */
#include <math.h>

#include "kernels/cpu/table.h"
#include "kernels/cpu/values.h"
#include "kernels/cpu/vec.h"

/* Columns that are worked on together: few enough that a single matrix keeps several threads busy.
 */
#define COLUMNS 256

/* The factors of vector or matrix o; NULL without a gain. */
static const float *gain_row(const Tensor *gain, int64_t o, int64_t inner) {
    if (!gain->data) return NULL;
    return (const float *)gain->data + o % (tensor_count(*gain) / inner) * inner;
}

static float gain_of(const Tensor *gain, int64_t row) {
    return gain->data ? *gain_row(gain, row, 1) : 1.0f;
}

/* ---- inner == 1: the vectors lie in memory one after the other ---- */

/* The pieces below have at most CHUNK elements. */

static float piece_product(const Tensor *a, const Tensor *b, int64_t at, int64_t n) {
    float a_buffer[CHUNK], b_buffer[CHUNK];
    const float *x = values_read(a, at, n, a_buffer);
    return vec_dot(x, a == b ? x : values_read(b, at, n, b_buffer), n);
}

/* y = rate g */
static void piece_scale(const Grad *y, const Tensor *g, int64_t at, int64_t n, float rate) {
    float in_buffer[CHUNK], out_buffer[CHUNK];
    const float *in = values_read(g, at, n, in_buffer);
    float *out = values_target(y, at, out_buffer);
#pragma omp simd
    for (int64_t i = 0; i < n; i++) out[i] = in[i] * rate;
    values_write(y, at, n, out);
}

/* dg (+)= c (r dy - (r^2 dot / norm) g), r = 1/(norm + offset) */
static void piece_slope(const Grad *dg, const Tensor *dy, const Tensor *g, int64_t at, int64_t n,
                        float norm, float dot, float c, float offset) {
    float g_buffer[CHUNK], dy_buffer[CHUNK], out_buffer[CHUNK];
    const float r = 1.0f / (norm + offset), rate = c * r;
    const float back = norm > 0.0f ? rate * r * dot / norm : 0.0f;
    const float *in = values_read(g, at, n, g_buffer);
    const float *gradient = values_read(dy, at, n, dy_buffer);
    float *out = values_target(dg, at, out_buffer);
#pragma omp simd
    for (int64_t i = 0; i < n; i++) out[i] = rate * gradient[i] - back * in[i];
    values_write(dg, at, n, out);
}

static void rows_forward(Tensor y, float *norms, Tensor g, Tensor gain, float offset) {
    const int64_t rows = g.shape[0], width = g.shape[1];
    const Grad to = grad_set(y);
#pragma omp parallel for schedule(static) if (rows * width >= PARALLEL_MIN)
    for (int64_t r = 0; r < rows; r++) {
        const float norm = sqrtf(piece_product(&g, &g, r * width, width));
        if (norms) norms[r] = norm;
        if (y.data) piece_scale(&to, &g, r * width, width, gain_of(&gain, r) / (norm + offset));
    }
}

static void rows_backward(Grad dg, Tensor dy, Tensor g, const float *norms, Tensor gain,
                          float offset) {
    const int64_t rows = g.shape[0], width = g.shape[1];
#pragma omp parallel for schedule(static) if (rows * width >= PARALLEL_MIN)
    for (int64_t r = 0; r < rows; r++) {
        const float dot = piece_product(&g, &dy, r * width, width);
        piece_slope(&dg, &dy, &g, r * width, width, norms[r], dot, gain_of(&gain, r), offset);
    }
}

/* ---- inner == 1, long vectors, such as whole matrices: in pieces, so that a single one keeps
 * several threads busy ---- */

/* out[r] = inner product of row r of a and b. */
static Status long_products(Device *d, const Tensor *a, const Tensor *b, int64_t rows,
                            int64_t width, float *out) {
    const int64_t pieces = div_up(width, CHUNK);
    float *parts;
    TRY(scratch_floats(d, rows * pieces, &parts));
#pragma omp parallel for schedule(static) if (rows * width >= PARALLEL_MIN)
    for (int64_t p = 0; p < rows * pieces; p++) {
        const int64_t c = p % pieces * CHUNK;
        parts[p] = piece_product(a, b, p / pieces * width + c, min_i64(CHUNK, width - c));
    }
    for (int64_t r = 0; r < rows; r++) {
        double sum = 0.0;
        for (int64_t p = 0; p < pieces; p++) sum += (double)parts[r * pieces + p];
        out[r] = (float)sum;
    }
    return STATUS_OK;
}

static Status long_forward(Device *d, Tensor y, float *norms, Tensor g, Tensor gain, float offset) {
    const int64_t rows = g.shape[0], width = g.shape[1], pieces = div_up(width, CHUNK);
    const Grad to = grad_set(y);
    float *norm = norms;
    if (!norm) TRY(scratch_floats(d, rows, &norm));
    TRY(long_products(d, &g, &g, rows, width, norm));
    for (int64_t r = 0; r < rows; r++) norm[r] = sqrtf(norm[r]);
    if (!y.data) return STATUS_OK;
#pragma omp parallel for schedule(static) if (rows * width >= PARALLEL_MIN)
    for (int64_t p = 0; p < rows * pieces; p++) {
        const int64_t r = p / pieces, c = p % pieces * CHUNK;
        piece_scale(&to, &g, r * width + c, min_i64(CHUNK, width - c),
                    gain_of(&gain, r) / (norm[r] + offset));
    }
    return STATUS_OK;
}

static Status long_backward(Device *d, Grad dg, Tensor dy, Tensor g, const float *norms,
                            Tensor gain, float offset) {
    const int64_t rows = g.shape[0], width = g.shape[1], pieces = div_up(width, CHUNK);
    float *dots;
    TRY(scratch_floats(d, rows, &dots));
    TRY(long_products(d, &g, &dy, rows, width, dots));
#pragma omp parallel for schedule(static) if (rows * width >= PARALLEL_MIN)
    for (int64_t p = 0; p < rows * pieces; p++) {
        const int64_t r = p / pieces, c = p % pieces * CHUNK;
        piece_slope(&dg, &dy, &g, r * width + c, min_i64(CHUNK, width - c), norms[r], dots[r],
                    gain_of(&gain, r), offset);
    }
    return STATUS_OK;
}

/* ---- inner > 1: columns side by side ---- */

static void columns_forward(Tensor y, float *norms, Tensor g, Tensor gain, float offset) {
    const int64_t outer = g.shape[0], reduce = g.shape[1], inner = g.shape[2];
    const int64_t pieces = div_up(inner, COLUMNS);
    const Grad to = grad_set(y);
#pragma omp parallel for schedule(static) if (outer * reduce * inner >= PARALLEL_MIN)
    for (int64_t piece = 0; piece < outer * pieces; piece++) {
        float sum[COLUMNS], in_buffer[COLUMNS], out_buffer[COLUMNS];
        const int64_t o = piece / pieces, c = piece % pieces * COLUMNS;
        const int64_t n = min_i64(COLUMNS, inner - c), first = o * reduce * inner + c;
        memset(sum, 0, (size_t)n * sizeof *sum);
        for (int64_t r = 0; r < reduce; r++) {
            const float *in = values_read(&g, first + r * inner, n, in_buffer);
#pragma omp simd
            for (int64_t i = 0; i < n; i++) sum[i] += in[i] * in[i];
        }
        for (int64_t i = 0; i < n; i++) sum[i] = sqrtf(sum[i]);
        if (norms) memcpy(norms + o * inner + c, sum, (size_t)n * sizeof *sum);
        const float *factor = gain_row(&gain, o, inner);
        for (int64_t i = 0; i < n; i++)
            sum[i] = (factor ? factor[c + i] : 1.0f) / (sum[i] + offset);
        for (int64_t r = 0; y.data && r < reduce; r++) {
            const float *in = values_read(&g, first + r * inner, n, in_buffer);
            float *out = values_target(&to, first + r * inner, out_buffer);
#pragma omp simd
            for (int64_t i = 0; i < n; i++) out[i] = in[i] * sum[i];
            values_write(&to, first + r * inner, n, out);
        }
    }
}

static void columns_backward(Grad dg, Tensor dy, Tensor g, const float *norms, Tensor gain,
                             float offset) {
    const int64_t outer = g.shape[0], reduce = g.shape[1], inner = g.shape[2];
    const int64_t pieces = div_up(inner, COLUMNS);
#pragma omp parallel for schedule(static) if (outer * reduce * inner >= PARALLEL_MIN)
    for (int64_t piece = 0; piece < outer * pieces; piece++) {
        float t[COLUMNS], rate[COLUMNS];
        float g_buffer[COLUMNS], dy_buffer[COLUMNS], out_buffer[COLUMNS];
        const int64_t o = piece / pieces, c = piece % pieces * COLUMNS;
        const int64_t n = min_i64(COLUMNS, inner - c), first = o * reduce * inner + c;
        const float *norm = norms + o * inner + c, *factor = gain_row(&gain, o, inner);
        memset(t, 0, (size_t)n * sizeof *t);
        for (int64_t r = 0; r < reduce; r++) {
            const float *in = values_read(&g, first + r * inner, n, g_buffer);
            const float *gradient = values_read(&dy, first + r * inner, n, dy_buffer);
#pragma omp simd
            for (int64_t i = 0; i < n; i++) t[i] += in[i] * gradient[i];
        }
        for (int64_t i = 0; i < n; i++) {
            const float once = 1.0f / (norm[i] + offset);
            rate[i] = factor ? factor[c + i] * once : once;
            t[i] = norm[i] > 0.0f ? rate[i] * once * t[i] / norm[i] : 0.0f;
        }
        for (int64_t r = 0; r < reduce; r++) {
            const float *in = values_read(&g, first + r * inner, n, g_buffer);
            const float *gradient = values_read(&dy, first + r * inner, n, dy_buffer);
            float *out = values_target(&dg, first + r * inner, out_buffer);
#pragma omp simd
            for (int64_t i = 0; i < n; i++) out[i] = rate[i] * gradient[i] - t[i] * in[i];
            values_write(&dg, first + r * inner, n, out);
        }
    }
}

/* ---- the slots ---- */

Status softnorm_cpu(Device *d, Tensor y, Tensor norms, Tensor g, Tensor gain, float offset) {
    if (!act_dtype(g.dtype)) return refuse_dtype("softnorm", g.dtype);
    if (y.data && y.dtype != g.dtype) return refuse_dtype("softnorm (y)", y.dtype);
    if (g.shape[2] > 1)
        columns_forward(y, norms.data, g, gain, offset);
    else if (g.shape[1] <= CHUNK)
        rows_forward(y, norms.data, g, gain, offset);
    else
        return scratch_done(d, long_forward(d, y, norms.data, g, gain, offset));
    return STATUS_OK;
}

Status softnorm_backward_cpu(Device *d, Grad dg, Tensor dy, Tensor g, Tensor norms, Tensor gain,
                             float offset) {
    if (!dg.t.data) return STATUS_OK;
    if (!act_dtype(g.dtype) || dy.dtype != g.dtype || !act_dtype(dg.t.dtype))
        return refuse_dtype("softnorm_backward", dy.dtype);
    if (g.shape[2] > 1)
        columns_backward(dg, dy, g, norms.data, gain, offset);
    else if (g.shape[1] <= CHUNK)
        rows_backward(dg, dy, g, norms.data, gain, offset);
    else
        return scratch_done(d, long_backward(d, dg, dy, g, norms.data, gain, offset));
    return STATUS_OK;
}
