/* Layer norm (vittt.md 3.4). */
#include <math.h>

#include "kernels/cpu/rowsum.h"
#include "kernels/cpu/table.h"
#include "kernels/cpu/values.h"
#include "kernels/cpu/vec.h"

/* Sum of v, or of (v - shift)^2. Two sums side by side: one would wait for itself. */
ALWAYS_INLINE float sum_values(const float *v, int64_t n, float shift, const bool squares) {
    Vec even = {0}, odd = {0};
    int64_t i = 0;
    for (; i + 2 * LANES <= n; i += 2 * LANES) {
        const Vec x = *(const Vec *)(v + i) - shift, y = *(const Vec *)(v + i + LANES) - shift;
        if (squares) {
            even += x * x;
            odd += y * y;
        } else {
            even += x;
            odd += y;
        }
    }
    float sum = vec_sum(even + odd);
    for (; i < n; i++) sum += squares ? (v[i] - shift) * (v[i] - shift) : v[i] - shift;
    return sum;
}

/* Mean and 1/sqrt(variance + eps) of row `at`; two passes, so that large means cost no digits. */
static void row_stats(const Tensor *x, int64_t at, int64_t width, float eps, float *mean,
                      float *rstd) {
    float buffer[CHUNK];
    float sum = 0.0f, squares = 0.0f;
    for (int64_t c = 0; c < width; c += CHUNK) {
        const int64_t n = min_i64(CHUNK, width - c);
        sum += sum_values(values_read(x, at + c, n, buffer), n, 0.0f, false);
    }
    const float m = sum / (float)width;
    for (int64_t c = 0; c < width; c += CHUNK) {
        const int64_t n = min_i64(CHUNK, width - c);
        squares += sum_values(values_read(x, at + c, n, buffer), n, m, true);
    }
    *mean = m;
    *rstd = 1.0f / sqrtf(squares / (float)width + eps);
}

/* Row r of x and the element it starts at; a BF16 row that fits is converted once, into `buffer`.
 */
static Tensor row_of(const Tensor *x, int64_t r, int64_t width, float *buffer, int64_t *at) {
    *at = r * width;
    if (x->dtype == DTYPE_F32 || width > CHUNK) return *x;
    values_read(x, r * width, width, buffer);
    *at = 0;
    return (Tensor){.data = buffer, .shape = {width}, .rank = 1, .dtype = DTYPE_F32};
}

/* The row of x that row r of y belongs to, where y has the first tokens of x. */
static int64_t row_in(const Tensor *y, const Tensor *x, int64_t r) {
    if (!y->data || tensor_rows(*y) == tensor_rows(*x)) return r;
    return r / y->shape[1] * x->shape[1] + r % y->shape[1];
}

static Status runs_check(const char *op, Tensor y, Tensor x) {
    if (!y.data || tensor_rows(y) == tensor_rows(x)) return STATUS_OK;
    const bool fits =
        y.rank == 3 && x.rank == 3 && y.shape[0] == x.shape[0] && y.shape[1] <= x.shape[1];
    return fits ? STATUS_OK : status_set(STATUS_INTERNAL, "%s: rows of other samples", op);
}

Status layernorm_cpu(Device *d, Tensor y, Tensor stats, Tensor x, Tensor w, Tensor b, float eps) {
    (void)d;
    if (!act_dtype(x.dtype) || (y.data && !act_dtype(y.dtype)))
        return refuse_dtype("layernorm", x.dtype);
    TRY(runs_check("layernorm", y, x));
    const int64_t width = tensor_last(x), rows = tensor_rows(y.data ? y : x);
    const float *weight = w.data, *bias = b.data;
    float *kept = stats.data;
    const Grad to = grad_set(y);
#pragma omp parallel for schedule(static) if (rows * width >= PARALLEL_MIN)
    for (int64_t r = 0; r < rows; r++) {
        float row_buffer[CHUNK], x_buffer[CHUNK], y_buffer[CHUNK], mean, rstd;
        int64_t from;
        const Tensor row = row_of(&x, row_in(&y, &x, r), width, row_buffer, &from);
        row_stats(&row, from, width, eps, &mean, &rstd);
        if (kept) {
            kept[2 * r] = mean;
            kept[2 * r + 1] = rstd;
        }
        for (int64_t c = 0; y.data && c < width; c += CHUNK) {
            const int64_t n = min_i64(CHUNK, width - c), at = r * width + c;
            const float *in = values_read(&row, from + c, n, x_buffer);
            float *out = values_target(&to, at, y_buffer);
#pragma omp simd
            for (int64_t i = 0; i < n; i++)
                out[i] = (in[i] - mean) * rstd * weight[c + i] + bias[c + i];
            values_write(&to, at, n, out);
        }
    }
    return STATUS_OK;
}

/* Where a row begins in dy and in x, and its statistics. */
typedef struct RowPlace {
    int64_t dy, x, width;
    float mean, rstd;
} RowPlace;

/* dx of one row: rstd (u - mean(u) - xhat mean(u xhat)), u = dy w. */
static void row_backward(const Grad *dx, int64_t dx_at, const Tensor *dy, const Tensor *x,
                         const float *w, const RowPlace *at) {
    const int64_t width = at->width;
    const float mean = at->mean, rstd = at->rstd;
    float x_buffer[CHUNK], dy_buffer[CHUNK], out_buffer[CHUNK];
    float sum_u = 0.0f, sum_ux = 0.0f;
    for (int64_t c = 0; c < width; c += CHUNK) {
        const int64_t n = min_i64(CHUNK, width - c);
        const float *in = values_read(x, at->x + c, n, x_buffer);
        const float *g = values_read(dy, at->dy + c, n, dy_buffer);
        Vec u_sum = {0}, ux_sum = {0};
        int64_t i = 0;
        for (; i + LANES <= n; i += LANES) {
            const Vec u = *(const Vec *)(g + i) * *(const Vec *)(w + c + i);
            u_sum += u;
            ux_sum += u * (*(const Vec *)(in + i) - mean);
        }
        sum_u += vec_sum(u_sum);
        sum_ux += vec_sum(ux_sum);
        for (; i < n; i++) {
            sum_u += g[i] * w[c + i];
            sum_ux += g[i] * w[c + i] * (in[i] - mean);
        }
    }
    const float mean_u = sum_u / (float)width, slope = sum_ux * rstd * rstd / (float)width;
    for (int64_t c = 0; c < width; c += CHUNK) {
        const int64_t n = min_i64(CHUNK, width - c);
        const float *in = values_read(x, at->x + c, n, x_buffer);
        const float *g = values_read(dy, at->dy + c, n, dy_buffer);
        float *out = values_target(dx, dx_at + c, out_buffer);
#pragma omp simd
        for (int64_t i = 0; i < n; i++)
            out[i] = rstd * (g[i] * w[c + i] - mean_u - (in[i] - mean) * slope);
        values_write(dx, dx_at + c, n, out);
    }
}

/* Adds dy xhat to dw and dy to db for one row. */
static void row_weights(float *dw, float *db, const Tensor *dy, const Tensor *x,
                        const RowPlace *at) {
    const int64_t width = at->width;
    const float mean = at->mean, rstd = at->rstd;
    float x_buffer[CHUNK], dy_buffer[CHUNK];
    for (int64_t c = 0; c < width; c += CHUNK) {
        const int64_t n = min_i64(CHUNK, width - c);
        const float *in = values_read(x, at->x + c, n, x_buffer);
        const float *g = values_read(dy, at->dy + c, n, dy_buffer);
#pragma omp simd
        for (int64_t i = 0; i < n; i++) {
            dw[c + i] += g[i] * (in[i] - mean) * rstd;
            db[c + i] += g[i];
        }
    }
}

static Status layernorm_backward(Device *d, Grad dx, Grad dw, Grad db, Tensor dy, Tensor x,
                                 Tensor w, Tensor stats) {
    const int64_t width = tensor_last(x), rows = tensor_rows(dy);
    const float *s = stats.data;
    const bool weights = dw.t.data || db.t.data;
    RowParts parts = row_parts(rows);
    float *partial = NULL;
    if (weights) TRY(scratch_floats(d, parts.count * 2 * width, &partial));
#pragma omp parallel for schedule(static) if (rows * width >= PARALLEL_MIN)
    for (int64_t p = 0; p < parts.count; p++) {
        float *part = partial ? partial + p * 2 * width : NULL;
        if (part) memset(part, 0, (size_t)(2 * width) * sizeof *part);
        for (int64_t r = row_part_begin(parts, p); r < row_part_begin(parts, p + 1); r++) {
            float x_buffer[CHUNK], dy_buffer[CHUNK];
            const float mean = s[2 * r], rstd = s[2 * r + 1];
            const int64_t from = row_in(&dy, &x, r);
            int64_t at, x_at;
            const Tensor xr = row_of(&x, from, width, x_buffer, &x_at);
            const Tensor gr = row_of(&dy, r, width, dy_buffer, &at);
            const RowPlace place = {at, x_at, width, mean, rstd};
            if (dx.t.data) row_backward(&dx, from * width, &gr, &xr, w.data, &place);
            if (part) row_weights(part, part + width, &gr, &xr, &place);
        }
    }
    if (dw.t.data) row_parts_sum(dw, partial, parts.count, 2 * width, width);
    if (db.t.data) row_parts_sum(db, partial + width, parts.count, 2 * width, width);
    return STATUS_OK;
}

/* y = (x-mean)*rstd*w + b from the statistics. */
static void layernorm_again(Tensor y, Tensor x, const float *w, const float *b,
                            const float *stats) {
    const int64_t width = tensor_last(x), rows = tensor_rows(y);
    const Grad to = grad_set(y);
#pragma omp parallel for schedule(static) if (rows * width >= PARALLEL_MIN)
    for (int64_t r = 0; r < rows; r++) {
        const int64_t from = row_in(&y, &x, r);
        const float mean = stats[2 * r], rstd = stats[2 * r + 1];
        float x_buffer[CHUNK], out_buffer[CHUNK];
        for (int64_t c = 0; c < width; c += CHUNK) {
            const int64_t n = min_i64(CHUNK, width - c);
            const float *in = values_read(&x, from * width + c, n, x_buffer);
            float *out = values_target(&to, r * width + c, out_buffer);
            for (int64_t i = 0; i < n; i++)
                out[i] = (in[i] - mean) * rstd * w[c + i] + (b ? b[c + i] : 0.0f);
            values_write(&to, r * width + c, n, out);
        }
    }
}

Status layernorm_backward_cpu(Device *d, Grad dx, Grad dw, Grad db, Tensor y, Tensor dy, Tensor x,
                              Tensor w, Tensor b, Tensor stats, Tensor scaled, Tensor scale) {
    if (!act_dtype(x.dtype) || dy.dtype != x.dtype || (dx.t.data && !act_dtype(dx.t.dtype)) ||
        (y.data && y.dtype != x.dtype))
        return refuse_dtype("layernorm_backward", dy.dtype);
    TRY(runs_check("layernorm_backward", dy, x));
    TRY(scratch_done(d, layernorm_backward(d, dx, dw, db, dy, x, w, stats)));
    if (y.data) layernorm_again(y, x, w.data, b.data, stats.data);
    if (!scaled.data || !dx.t.data) return STATUS_OK;
    const int64_t batch = tensor_count(scale), each = tensor_count(x) / batch;
    return scale_rows_cpu(d, grad_set(tensor_view2(scaled, batch, each)),
                          tensor_view2(dx.t, batch, each), scale);
}
