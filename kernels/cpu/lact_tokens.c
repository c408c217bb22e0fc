/* Tokens of the LaCT layer: silu and heads of the packed projection, rates (lact_nvs.md 3.3, 5.5).
 */
#include <math.h>

#include "kernels/cpu/rowsum.h"
#include "kernels/cpu/table.h"
#include "kernels/cpu/values.h"
#include "kernels/cpu/vec.h"
#include "kernels/cpu/vmath.h"

/* ---- heads of a packed projection ---- */

/* Rows of y[B,nh,N,dh] and where each begins in packed[B,N,P]. */
typedef struct Heads {
    int64_t rows, width, heads, tokens, pitch, at;
} Heads;

static Heads heads_of(Tensor y, Tensor packed, int64_t at) {
    return (Heads){tensor_rows(y), y.shape[3], y.shape[1], y.shape[2], packed.shape[2], at};
}

static int64_t head_begin(const Heads *s, int64_t row) {
    const int64_t token = row % s->tokens, head = row / s->tokens % s->heads;
    const int64_t sample = row / s->tokens / s->heads;
    return (sample * s->tokens + token) * s->pitch + s->at + head * s->width;
}

static void silu_values(float *out, const float *x, int64_t n) {
#pragma omp simd
    for (int64_t i = 0; i < n; i++) out[i] = silu_value(x[i]);
}

static void silu_head(const Grad *y, const Tensor *packed, const Heads *s, int64_t row,
                      float offset) {
    float buffer[CHUNK], part[CHUNK], y_buffer[CHUNK], squares = 0.0f;
    const int64_t from = head_begin(s, row), width = s->width;
    for (int64_t c = 0; offset > 0.0f && c < width; c += CHUNK) {
        const int64_t n = min_i64(CHUNK, width - c);
        silu_values(part, values_read(packed, from + c, n, buffer), n);
        squares += vec_dot(part, part, n);
    }
    const float rate = offset > 0.0f ? 1.0f / (sqrtf(squares) + offset) : 1.0f;
    const bool held = offset > 0.0f && width <= CHUNK;
    for (int64_t c = 0; c < width; c += CHUNK) {
        const int64_t n = min_i64(CHUNK, width - c), at = row * width + c;
        if (!held) silu_values(part, values_read(packed, from + c, n, buffer), n);
        float *out = values_target(y, at, y_buffer);
#pragma omp simd
        for (int64_t i = 0; i < n; i++) out[i] = part[i] * rate;
        values_write(y, at, n, out);
    }
}

Status silu_heads_cpu(Device *d, Tensor y, Tensor packed, int64_t at, float offset) {
    (void)d;
    if (!act_dtype(y.dtype) || packed.dtype != y.dtype)
        return refuse_dtype("silu_heads", packed.dtype);
    const Heads s = heads_of(y, packed, at);
    const Grad to = grad_set(y);
#pragma omp parallel for schedule(static) if (s.rows * s.width >= PARALLEL_MIN)
    for (int64_t row = 0; row < s.rows; row++) silu_head(&to, &packed, &s, row, offset);
    return STATUS_OK;
}

/* ds = r dy - (r^2 t/|s|) s with r = 1/(|s| + offset), t = sum s dy; then silu'. */
static void silu_head_backward(const Grad *dpacked, const Tensor *dy, const Tensor *packed,
                               const Heads *s, int64_t row, float offset) {
    float buffer[CHUNK], part[CHUNK], dy_buffer[CHUNK], out_buffer[CHUNK];
    float squares = 0.0f, dot = 0.0f;
    const int64_t from = head_begin(s, row), width = s->width;
    for (int64_t c = 0; offset > 0.0f && c < width; c += CHUNK) {
        const int64_t n = min_i64(CHUNK, width - c);
        silu_values(part, values_read(packed, from + c, n, buffer), n);
        squares += vec_dot(part, part, n);
        dot += vec_dot(part, values_read(dy, row * width + c, n, dy_buffer), n);
    }
    const float norm = sqrtf(squares), rate = offset > 0.0f ? 1.0f / (norm + offset) : 1.0f;
    const float slope = norm > 0.0f ? rate * rate * dot / norm : 0.0f;
    for (int64_t c = 0; c < width; c += CHUNK) {
        const int64_t n = min_i64(CHUNK, width - c);
        const float *x = values_read(packed, from + c, n, buffer);
        const float *g = values_read(dy, row * width + c, n, dy_buffer);
        float *out = values_target(dpacked, from + c, out_buffer);
#pragma omp simd
        for (int64_t i = 0; i < n; i++)
            out[i] = (rate * g[i] - slope * silu_value(x[i])) * dsilu_value(x[i]);
        values_write(dpacked, from + c, n, out);
    }
}

Status silu_heads_backward_cpu(Device *d, Grad dpacked, Tensor y, Tensor dy, Tensor packed,
                               int64_t at, float offset) {
    if (!dpacked.t.data) return y.data ? silu_heads_cpu(d, y, packed, at, offset) : STATUS_OK;
    if (!act_dtype(dy.dtype) || packed.dtype != dy.dtype || dpacked.t.dtype != dy.dtype)
        return refuse_dtype("silu_heads_backward", packed.dtype);
    const Heads s = heads_of(dy, packed, at);
#pragma omp parallel for schedule(static) if (s.rows * s.width >= PARALLEL_MIN)
    for (int64_t row = 0; row < s.rows; row++)
        silu_head_backward(&dpacked, &dy, &packed, &s, row, offset);
    return y.data ? silu_heads_cpu(d, y, packed, at, offset) : STATUS_OK;
}

/* ---- rates ---- */

Status token_rates_cpu(Device *d, Tensor eta, Tensor x, Tensor w, Tensor b, float shift) {
    (void)d;
    if (!act_dtype(x.dtype)) return refuse_dtype("token_rates", x.dtype);
    const int64_t rows = tensor_rows(x), width = tensor_last(x), rates = tensor_last(eta);
    const float *weight = w.data, *bias = b.data;
    float *out = eta.data;
#pragma omp parallel for schedule(static) if (rows * width >= PARALLEL_MIN)
    for (int64_t r = 0; r < rows; r++) {
        float buffer[CHUNK], *z = out + r * rates;
        for (int64_t j = 0; j < rates; j++) z[j] = bias[j] + shift;
        for (int64_t c = 0; c < width; c += CHUNK) {
            const int64_t n = min_i64(CHUNK, width - c);
            const float *in = values_read(&x, r * width + c, n, buffer);
            for (int64_t j = 0; j < rates; j++) z[j] += vec_dot(in, weight + j * width + c, n);
        }
        for (int64_t j = 0; j < rates; j++) z[j] = softplus_value(z[j]);
    }
    return STATUS_OK;
}

/* A row's dx (+)= dz w. */
static void rates_dx(const Grad *dx, const float *dz, const float *w, int64_t rates, int64_t row,
                     int64_t width) {
    float buffer[CHUNK];
    for (int64_t c = 0; c < width; c += CHUNK) {
        const int64_t n = min_i64(CHUNK, width - c);
        memset(buffer, 0, sizeof buffer);
        for (int64_t j = 0; j < rates; j++) {
            const float *line = w + j * width + c, factor = dz[j];
#pragma omp simd
            for (int64_t i = 0; i < n; i++) buffer[i] += factor * line[i];
        }
        values_write(dx, row * width + c, n, buffer);
    }
}

/* sums [J,C+1] += dz' [x|1] of one row. */
static void rates_dw(float *sums, const float *dz, const Tensor *x, int64_t rates, int64_t row,
                     int64_t width) {
    float buffer[CHUNK];
    for (int64_t c = 0; c < width; c += CHUNK) {
        const int64_t n = min_i64(CHUNK, width - c);
        const float *in = values_read(x, row * width + c, n, buffer);
        for (int64_t j = 0; j < rates; j++) {
            float *sum = sums + j * width + c, factor = dz[j];
#pragma omp simd
            for (int64_t i = 0; i < n; i++) sum[i] += factor * in[i];
        }
    }
    for (int64_t j = 0; j < rates; j++) sums[rates * width + j] += dz[j];
}

static Status rates_backward(Device *d, Grad dx, Grad dw, Grad db, Tensor deta, Tensor eta,
                             Tensor x, Tensor w) {
    const int64_t rows = tensor_rows(x), width = tensor_last(x), rates = tensor_last(eta);
    const int64_t sums = rates * (width + 1);
    const RowParts parts = row_parts(rows);
    float *dz, *partial = NULL;
    TRY(scratch_floats(d, rows * rates, &dz));
    if (dw.t.data || db.t.data) TRY(scratch_floats(d, parts.count * sums, &partial));
    const float *slope = deta.data, *rate = eta.data;
    for (int64_t i = 0; i < rows * rates; i++) dz[i] = -expm1f(-rate[i]) * slope[i];
#pragma omp parallel for schedule(static) if (rows * width >= PARALLEL_MIN)
    for (int64_t p = 0; p < parts.count; p++) {
        float *sum = partial ? partial + p * sums : NULL;
        if (sum) memset(sum, 0, (size_t)sums * sizeof *sum);
        for (int64_t r = row_part_begin(parts, p); r < row_part_begin(parts, p + 1); r++) {
            if (dx.t.data) rates_dx(&dx, dz + r * rates, w.data, rates, r, width);
            if (sum) rates_dw(sum, dz + r * rates, &x, rates, r, width);
        }
    }
    if (dw.t.data) row_parts_sum(dw, partial, parts.count, sums, rates * width);
    if (db.t.data) row_parts_sum(db, partial + rates * width, parts.count, sums, rates);
    return STATUS_OK;
}

Status token_rates_backward_cpu(Device *d, Grad dx, Grad dw, Grad db, Tensor deta, Tensor eta,
                                Tensor x, Tensor w) {
    if (!act_dtype(x.dtype) || (dx.t.data && dx.t.dtype != x.dtype))
        return refuse_dtype("token_rates_backward", x.dtype);
    return scratch_done(d, rates_backward(d, dx, dw, db, deta, eta, x, w));
}
