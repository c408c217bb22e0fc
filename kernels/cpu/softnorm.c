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

/* ---- inner == 1: the vectors lie in memory one after the other ---- */

static float row_product(const Tensor *a, const Tensor *b, int64_t at, int64_t width) {
    float a_buffer[CHUNK], b_buffer[CHUNK], sum = 0.0f;
    for (int64_t c = 0; c < width; c += CHUNK) {
        const int64_t n = min_i64(CHUNK, width - c);
        const float *x = values_read(a, at + c, n, a_buffer);
        sum += vec_dot(x, a == b ? x : values_read(b, at + c, n, b_buffer), n);
    }
    return sum;
}

static void rows_forward(Tensor y, float *norms, Tensor g, int64_t rows, int64_t width,
                         float offset) {
    const Grad to = grad_set(y);
#pragma omp parallel for schedule(static) if (rows * width >= PARALLEL_MIN)
    for (int64_t r = 0; r < rows; r++) {
        float in_buffer[CHUNK], out_buffer[CHUNK];
        const float norm = sqrtf(row_product(&g, &g, r * width, width));
        const float rate = 1.0f / (norm + offset);
        if (norms) norms[r] = norm;
        for (int64_t c = 0; c < width; c += CHUNK) {
            const int64_t n = min_i64(CHUNK, width - c), at = r * width + c;
            const float *in = values_read(&g, at, n, in_buffer);
            float *out = values_target(&to, at, out_buffer);
#pragma omp simd
            for (int64_t i = 0; i < n; i++) out[i] = in[i] * rate;
            values_write(&to, at, n, out);
        }
    }
}

static void rows_backward(Grad dg, Tensor dy, Tensor g, const float *norms, int64_t rows,
                          int64_t width, float offset) {
#pragma omp parallel for schedule(static) if (rows * width >= PARALLEL_MIN)
    for (int64_t r = 0; r < rows; r++) {
        float g_buffer[CHUNK], dy_buffer[CHUNK], out_buffer[CHUNK];
        const float rate = 1.0f / (norms[r] + offset);
        const float dot = row_product(&g, &dy, r * width, width);
        const float back = norms[r] > 0.0f ? rate * rate * dot / norms[r] : 0.0f;
        for (int64_t c = 0; c < width; c += CHUNK) {
            const int64_t n = min_i64(CHUNK, width - c), at = r * width + c;
            const float *in = values_read(&g, at, n, g_buffer);
            const float *gradient = values_read(&dy, at, n, dy_buffer);
            float *out = values_target(&dg, at, out_buffer);
#pragma omp simd
            for (int64_t i = 0; i < n; i++) out[i] = rate * gradient[i] - back * in[i];
            values_write(&dg, at, n, out);
        }
    }
}

/* ---- inner > 1: columns side by side ---- */

static void columns_forward(Tensor y, float *norms, Tensor g, float offset) {
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
        for (int64_t r = 0; r < reduce; r++) {
            const float *in = values_read(&g, first + r * inner, n, in_buffer);
            float *out = values_target(&to, first + r * inner, out_buffer);
#pragma omp simd
            for (int64_t i = 0; i < n; i++) out[i] = in[i] / (sum[i] + offset);
            values_write(&to, first + r * inner, n, out);
        }
    }
}

static void columns_backward(Grad dg, Tensor dy, Tensor g, const float *norms, float offset) {
    const int64_t outer = g.shape[0], reduce = g.shape[1], inner = g.shape[2];
    const int64_t pieces = div_up(inner, COLUMNS);
#pragma omp parallel for schedule(static) if (outer * reduce * inner >= PARALLEL_MIN)
    for (int64_t piece = 0; piece < outer * pieces; piece++) {
        float t[COLUMNS], rate[COLUMNS];
        float g_buffer[COLUMNS], dy_buffer[COLUMNS], out_buffer[COLUMNS];
        const int64_t o = piece / pieces, c = piece % pieces * COLUMNS;
        const int64_t n = min_i64(COLUMNS, inner - c), first = o * reduce * inner + c;
        const float *norm = norms + o * inner + c;
        memset(t, 0, (size_t)n * sizeof *t);
        for (int64_t r = 0; r < reduce; r++) {
            const float *in = values_read(&g, first + r * inner, n, g_buffer);
            const float *gradient = values_read(&dy, first + r * inner, n, dy_buffer);
#pragma omp simd
            for (int64_t i = 0; i < n; i++) t[i] += in[i] * gradient[i];
        }
        for (int64_t i = 0; i < n; i++) {
            rate[i] = 1.0f / (norm[i] + offset);
            t[i] = norm[i] > 0.0f ? rate[i] * rate[i] * t[i] / norm[i] : 0.0f;
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

Status softnorm_cpu(Device *d, Tensor y, Tensor norms, Tensor g, float offset) {
    (void)d;
    if (!act_dtype(g.dtype) || y.dtype != g.dtype) return refuse_dtype("softnorm", y.dtype);
    if (g.shape[2] == 1)
        rows_forward(y, norms.data, g, g.shape[0], g.shape[1], offset);
    else
        columns_forward(y, norms.data, g, offset);
    return STATUS_OK;
}

Status softnorm_backward_cpu(Device *d, Grad dg, Tensor dy, Tensor g, Tensor norms, float offset) {
    (void)d;
    if (!dg.t.data) return STATUS_OK;
    if (!act_dtype(g.dtype) || dy.dtype != g.dtype || !act_dtype(dg.t.dtype))
        return refuse_dtype("softnorm_backward", dy.dtype);
    if (g.shape[2] == 1)
        rows_backward(dg, dy, g, norms.data, g.shape[0], g.shape[1], offset);
    else
        columns_backward(dg, dy, g, norms.data, offset);
    return STATUS_OK;
}
