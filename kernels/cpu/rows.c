/* Over the last dimension: root-mean-square norm, softmax, inner products of rows (lact_nvs.md
 * 3.2, 3.3, 5).
 */
#include <math.h>

#include "kernels/cpu/rowsum.h"
#include "kernels/cpu/table.h"
#include "kernels/cpu/values.h"
#include "kernels/cpu/vec.h"
#include "kernels/cpu/vmath.h"

/* ---- root-mean-square norm ---- */

static float row_rstd(const Tensor *x, int64_t at, int64_t width, float eps) {
    float buffer[CHUNK], squares = 0.0f;
    for (int64_t c = 0; c < width; c += CHUNK) {
        const int64_t n = min_i64(CHUNK, width - c);
        const float *in = values_read(x, at + c, n, buffer);
        squares += vec_dot(in, in, n);
    }
    return 1.0f / sqrtf(squares / (float)width + eps);
}

Status rmsnorm_cpu(Device *d, Tensor y, Tensor rstd, Tensor x, Tensor w, float eps) {
    (void)d;
    if (!act_dtype(x.dtype) || !act_dtype(y.dtype)) return refuse_dtype("rmsnorm", x.dtype);
    const int64_t width = tensor_last(x), rows = tensor_rows(x);
    const float *weight = w.data;
    float *kept = rstd.data;
    const Grad to = grad_set(y);
#pragma omp parallel for schedule(static) if (rows * width >= PARALLEL_MIN)
    for (int64_t r = 0; r < rows; r++) {
        float x_buffer[CHUNK], y_buffer[CHUNK];
        const float rate = row_rstd(&x, r * width, width, eps);
        if (kept) kept[r] = rate;
        for (int64_t c = 0; c < width; c += CHUNK) {
            const int64_t n = min_i64(CHUNK, width - c), at = r * width + c;
            const float *in = values_read(&x, at, n, x_buffer);
            float *out = values_target(&to, at, y_buffer);
#pragma omp simd
            for (int64_t i = 0; i < n; i++) out[i] = in[i] * rate * weight[c + i];
            values_write(&to, at, n, out);
        }
    }
    return STATUS_OK;
}

/* dx of the row that starts at `at`: r u - x r^3 mean(x u), u = w dy. */
static void rms_row_dx(const Grad *dx, const Tensor *dy, const Tensor *x, const float *w,
                       int64_t at, int64_t width, float rate) {
    float x_buffer[CHUNK], dy_buffer[CHUNK], u[CHUNK], out_buffer[CHUNK];
    float sum = 0.0f;
    for (int64_t c = 0; c < width; c += CHUNK) {
        const int64_t n = min_i64(CHUNK, width - c);
        const float *in = values_read(x, at + c, n, x_buffer);
        const float *g = values_read(dy, at + c, n, dy_buffer);
#pragma omp simd
        for (int64_t i = 0; i < n; i++) u[i] = g[i] * w[c + i];
        sum += vec_dot(in, u, n);
    }
    const float slope = rate * rate * rate * sum / (float)width;
    for (int64_t c = 0; c < width; c += CHUNK) {
        const int64_t n = min_i64(CHUNK, width - c);
        const float *in = values_read(x, at + c, n, x_buffer);
        const float *g = values_read(dy, at + c, n, dy_buffer);
        float *out = values_target(dx, at + c, out_buffer);
#pragma omp simd
        for (int64_t i = 0; i < n; i++) out[i] = rate * g[i] * w[c + i] - slope * in[i];
        values_write(dx, at + c, n, out);
    }
}

/* Adds dy x r to dw for one row. */
static void rms_row_dw(float *dw, const Tensor *dy, const Tensor *x, int64_t at, int64_t width,
                       float rate) {
    float x_buffer[CHUNK], dy_buffer[CHUNK];
    for (int64_t c = 0; c < width; c += CHUNK) {
        const int64_t n = min_i64(CHUNK, width - c);
        const float *in = values_read(x, at + c, n, x_buffer);
        const float *g = values_read(dy, at + c, n, dy_buffer);
#pragma omp simd
        for (int64_t i = 0; i < n; i++) dw[c + i] += g[i] * in[i] * rate;
    }
}

/* y = w x r, which may take the place of dy. */
static void rms_row_again(Tensor *y, const Tensor *x, const float *w, int64_t at, int64_t width,
                          float rate) {
    float x_buffer[CHUNK], out_buffer[CHUNK];
    const Grad to = grad_set(*y);
    for (int64_t c = 0; c < width; c += CHUNK) {
        const int64_t n = min_i64(CHUNK, width - c);
        const float *in = values_read(x, at + c, n, x_buffer);
        float *out = values_target(&to, at + c, out_buffer);
#pragma omp simd
        for (int64_t i = 0; i < n; i++) out[i] = in[i] * rate * w[c + i];
        values_write(&to, at + c, n, out);
    }
}

static Status rmsnorm_backward(Device *d, Grad dx, Grad dw, Tensor y, Tensor dy, Tensor x, Tensor w,
                               const float *rstd) {
    const int64_t width = tensor_last(x), rows = tensor_rows(x);
    const RowParts parts = row_parts(rows);
    float *partial = NULL;
    if (dw.t.data) TRY(scratch_floats(d, parts.count * width, &partial));
#pragma omp parallel for schedule(static) if (rows * width >= PARALLEL_MIN)
    for (int64_t p = 0; p < parts.count; p++) {
        float *part = partial ? partial + p * width : NULL;
        if (part) memset(part, 0, (size_t)width * sizeof *part);
        for (int64_t r = row_part_begin(parts, p); r < row_part_begin(parts, p + 1); r++) {
            if (dx.t.data) rms_row_dx(&dx, &dy, &x, w.data, r * width, width, rstd[r]);
            if (part) rms_row_dw(part, &dy, &x, r * width, width, rstd[r]);
            if (y.data) rms_row_again(&y, &x, w.data, r * width, width, rstd[r]);
        }
    }
    if (partial) row_parts_sum(dw, partial, parts.count, width, width);
    return STATUS_OK;
}

Status rmsnorm_backward_cpu(Device *d, Grad dx, Grad dw, Tensor y, Tensor dy, Tensor x, Tensor w,
                            Tensor rstd) {
    if (!act_dtype(x.dtype) || dy.dtype != x.dtype || (dx.t.data && !act_dtype(dx.t.dtype)))
        return refuse_dtype("rmsnorm_backward", dy.dtype);
    return scratch_done(d, rmsnorm_backward(d, dx, dw, y, dy, x, w, rstd.data));
}

/* ---- softmax ---- */

/* Largest of scale x. */
static float row_top(const Tensor *x, int64_t at, int64_t width, float scale) {
    float buffer[CHUNK], top = -INFINITY;
    for (int64_t c = 0; c < width; c += CHUNK) {
        const int64_t n = min_i64(CHUNK, width - c);
        const float *in = values_read(x, at + c, n, buffer);
#pragma omp simd reduction(max : top)
        for (int64_t i = 0; i < n; i++) top = scale * in[i] > top ? scale * in[i] : top;
    }
    return top;
}

/* e^(scale x - top) of n values. */
static void powers(float *out, const float *in, int64_t n, float scale, float top) {
#pragma omp simd
    for (int64_t i = 0; i < n; i++) out[i] = exp_value(scale * in[i] - top);
}

static void softmax_row(const Grad *y, const Tensor *x, int64_t at, int64_t width, float scale) {
    float x_buffer[CHUNK], y_buffer[CHUNK], sum = 0.0f;
    /* A row in F32, or of one chunk, holds the powers from the sum to the division. */
    const bool held = y->t.dtype == DTYPE_F32 || width <= CHUNK;
    const float top = row_top(x, at, width, scale);
    for (int64_t c = 0; c < width; c += CHUNK) {
        const int64_t n = min_i64(CHUNK, width - c);
        float *out = values_target(y, at + c, y_buffer);
        powers(out, values_read(x, at + c, n, x_buffer), n, scale, top);
        sum += vec_total(out, n);
    }
    const float share = 1.0f / sum;
    for (int64_t c = 0; c < width; c += CHUNK) {
        const int64_t n = min_i64(CHUNK, width - c);
        float *out = values_target(y, at + c, y_buffer);
        if (!held) powers(out, values_read(x, at + c, n, x_buffer), n, scale, top);
#pragma omp simd
        for (int64_t i = 0; i < n; i++) out[i] *= share;
        values_write(y, at + c, n, out);
    }
}

Status softmax_cpu(Device *d, Tensor y, Tensor x, float scale) {
    (void)d;
    if (!act_dtype(x.dtype) || !act_dtype(y.dtype)) return refuse_dtype("softmax", x.dtype);
    const int64_t width = tensor_last(x), rows = tensor_rows(x);
    const Grad to = grad_set(y);
#pragma omp parallel for schedule(static) if (rows * width >= PARALLEL_MIN)
    for (int64_t r = 0; r < rows; r++) softmax_row(&to, &x, r * width, width, scale);
    return STATUS_OK;
}

static float row_product(const Tensor *a, const Tensor *b, int64_t at, int64_t width) {
    float a_buffer[CHUNK], b_buffer[CHUNK], sum = 0.0f;
    for (int64_t c = 0; c < width; c += CHUNK) {
        const int64_t n = min_i64(CHUNK, width - c);
        sum += vec_dot(values_read(a, at + c, n, a_buffer), values_read(b, at + c, n, b_buffer), n);
    }
    return sum;
}

Status softmax_backward_cpu(Device *d, Grad dx, Tensor dy, Tensor y, float scale) {
    (void)d;
    if (!dx.t.data) return STATUS_OK;
    if (!act_dtype(y.dtype) || !act_dtype(dy.dtype) || !act_dtype(dx.t.dtype))
        return refuse_dtype("softmax_backward", dy.dtype);
    const int64_t width = tensor_last(y), rows = tensor_rows(y);
#pragma omp parallel for schedule(static) if (rows * width >= PARALLEL_MIN)
    for (int64_t r = 0; r < rows; r++) {
        float y_buffer[CHUNK], dy_buffer[CHUNK], out_buffer[CHUNK];
        const float mean = row_product(&dy, &y, r * width, width);
        for (int64_t c = 0; c < width; c += CHUNK) {
            const int64_t n = min_i64(CHUNK, width - c), at = r * width + c;
            const float *p = values_read(&y, at, n, y_buffer);
            const float *g = values_read(&dy, at, n, dy_buffer);
            float *out = values_target(&dx, at, out_buffer);
#pragma omp simd
            for (int64_t i = 0; i < n; i++) out[i] = scale * p[i] * (g[i] - mean);
            values_write(&dx, at, n, out);
        }
    }
    return STATUS_OK;
}

/* ---- inner products of rows ---- */

Status row_dot_cpu(Device *d, Grad s, Tensor x, Tensor y) {
    (void)d;
    if (!s.t.data) return STATUS_OK;
    if (!act_dtype(x.dtype) || !act_dtype(y.dtype) || s.t.dtype != DTYPE_F32)
        return refuse_dtype("row_dot", x.dtype);
    const int64_t width = tensor_last(x), rows = tensor_rows(x);
    float *out = s.t.data;
#pragma omp parallel for schedule(static) if (rows * width >= PARALLEL_MIN)
    for (int64_t r = 0; r < rows; r++) {
        const float dot = row_product(&x, &y, r * width, width);
        out[r] = s.add ? out[r] + dot : dot;
    }
    return STATUS_OK;
}
