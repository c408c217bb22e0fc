/* What a 3x3 convolution needs beside a product of matrices: its surroundings as columns, their
 * adjoint, and the depthwise convolution with stride 2 of the merging layers. */
#include "kernels/cpu/rowsum.h"
#include "kernels/cpu/table.h"

/* A map and the places of a convolution on it. */
typedef struct Places {
    int64_t batch, height, width, channels, stride, rows, columns;
} Places;

static Places places_of(Tensor x, int64_t stride) {
    return (Places){x.shape[0],
                    x.shape[1],
                    x.shape[2],
                    x.shape[3],
                    stride,
                    div_up(x.shape[1], stride),
                    div_up(x.shape[2], stride)};
}

/* Element of the first channel at tap t around place i of the batch; -1: outside the map. */
static int64_t around(const Places *p, int64_t i, int t) {
    const int64_t each = p->rows * p->columns, row = i % each / p->columns;
    const int64_t y = row * p->stride + t / 3 - 1, x = i % p->columns * p->stride + t % 3 - 1;
    if (y < 0 || y >= p->height || x < 0 || x >= p->width) return -1;
    return ((i / each * p->height + y) * p->width + x) * p->channels;
}

/* The place whose tap t looks at pixel q, or -1. */
static int64_t looking(const Places *p, int64_t q, int t) {
    const int64_t each = p->height * p->width;
    const int64_t y = q % each / p->width - (t / 3 - 1), x = q % p->width - (t % 3 - 1);
    if (y < 0 || x < 0 || y % p->stride || x % p->stride) return -1;
    const int64_t row = y / p->stride, column = x / p->stride;
    if (row >= p->rows || column >= p->columns) return -1;
    return (q / each * p->rows + row) * p->columns + column;
}

static float value_at(const Tensor *t, int64_t at) {
    return t->dtype == DTYPE_F32 ? ((const float *)t->data)[at]
                                 : bf16_value(((const uint16_t *)t->data)[at]);
}

/* ---- columns -------------------------------------------------------------------------------- */

Status unfold3_cpu(Device *d, Tensor y, Tensor x, int64_t stride) {
    (void)d;
    if (!act_dtype(x.dtype) || y.dtype != x.dtype) return refuse_dtype("unfold3", x.dtype);
    const Places p = places_of(x, stride);
    const int64_t places = p.batch * p.rows * p.columns, size = (int64_t)dtype_size(x.dtype);
#pragma omp parallel for schedule(static) if (places * p.channels >= PARALLEL_MIN / 8)
    for (int64_t i = 0; i < places; i++) {
        char *out = (char *)y.data + i * 9 * p.channels * size;
        for (int t = 0; t < 9; t++) {
            const int64_t at = around(&p, i, t);
            if (x.dtype == DTYPE_F32) {
                for (int64_t c = 0; c < p.channels; c++)
                    ((float *)out)[9 * c + t] = at < 0 ? 0.0f : ((const float *)x.data)[at + c];
            } else {
                for (int64_t c = 0; c < p.channels; c++)
                    ((uint16_t *)out)[9 * c + t] = at < 0 ? 0 : ((const uint16_t *)x.data)[at + c];
            }
        }
    }
    return STATUS_OK;
}

Status fold3_cpu(Device *d, Grad dx, Tensor dy, int64_t stride) {
    (void)d;
    if (!dx.t.data) return STATUS_OK;
    if (!act_dtype(dy.dtype) || dx.t.dtype != dy.dtype) return refuse_dtype("fold3", dy.dtype);
    const Places p = places_of(dx.t, stride);
    const int64_t pixels = p.batch * p.height * p.width, c = p.channels;
#pragma omp parallel for schedule(static) if (pixels * c >= PARALLEL_MIN / 8)
    for (int64_t q = 0; q < pixels; q++) {
        int64_t from[9];
        for (int t = 0; t < 9; t++) from[t] = looking(&p, q, t);
        for (int64_t start = 0; start < c; start += CHUNK) {
            float sum[CHUNK] = {0};
            const int64_t n = min_i64(CHUNK, c - start);
            for (int t = 0; t < 9; t++) {
                if (from[t] < 0) continue;
                const int64_t at = (from[t] * c + start) * 9 + t;
                for (int64_t k = 0; k < n; k++) sum[k] += value_at(&dy, at + 9 * k);
            }
            values_write(&dx, q * c + start, n, sum);
        }
    }
    return STATUS_OK;
}

/* ---- depthwise, stride 2, between two relu -------------------------------------------------- */

static void add_relu_product(float *sum, const float *w, int64_t step, const Tensor *x, int64_t at,
                             int64_t n) {
    float buffer[CHUNK];
    const float *in = values_read(x, at, n, buffer);
#pragma omp simd
    for (int64_t c = 0; c < n; c++) sum[c] += w[c * step] * (in[c] > 0.0f ? in[c] : 0.0f);
}

Status dwconv3_down_cpu(Device *d, Tensor y, Tensor x, Tensor w, Tensor bias) {
    (void)d;
    if (!act_dtype(x.dtype) || y.dtype != x.dtype) return refuse_dtype("dwconv3_down", x.dtype);
    const Places p = places_of(x, 2);
    const int64_t places = p.batch * p.rows * p.columns;
    const Grad to = grad_set(y);
#pragma omp parallel for schedule(static) if (places * p.channels >= PARALLEL_MIN / 8)
    for (int64_t i = 0; i < places; i++) {
        for (int64_t c = 0; c < p.channels; c += CHUNK) {
            float sum[CHUNK];
            const int64_t n = min_i64(CHUNK, p.channels - c);
            memcpy(sum, (const float *)bias.data + c, (size_t)n * sizeof *sum);
            for (int t = 0; t < 9; t++) {
                const int64_t at = around(&p, i, t);
                if (at >= 0)
                    add_relu_product(sum, (const float *)w.data + c * 9 + t, 9, &x, at + c, n);
            }
            for (int64_t k = 0; k < n; k++) sum[k] = sum[k] > 0.0f ? sum[k] : 0.0f;
            values_write(&to, i * p.channels + c, n, sum);
        }
    }
    return STATUS_OK;
}

/* e = dy where y > 0, else 0. */
static void slope_read(float *e, const Tensor *dy, const Tensor *y, int64_t at, int64_t n) {
    float dy_buffer[CHUNK], y_buffer[CHUNK];
    const float *g = values_read(dy, at, n, dy_buffer), *v = values_read(y, at, n, y_buffer);
#pragma omp simd
    for (int64_t c = 0; c < n; c++) e[c] = v[c] > 0.0f ? g[c] : 0.0f;
}

static void down_dx(const Places *p, const Grad *dx, const Tensor *dy, const Tensor *y,
                    const Tensor *x, const float *w) {
    const int64_t pixels = p->batch * p->height * p->width, channels = p->channels;
#pragma omp parallel for schedule(static) if (pixels * channels >= PARALLEL_MIN / 8)
    for (int64_t q = 0; q < pixels; q++) {
        for (int64_t c = 0; c < channels; c += CHUNK) {
            float sum[CHUNK] = {0}, e[CHUNK], buffer[CHUNK];
            const int64_t n = min_i64(CHUNK, channels - c);
            for (int t = 0; t < 9; t++) {
                const int64_t i = looking(p, q, t);
                if (i < 0) continue;
                slope_read(e, dy, y, i * channels + c, n);
                for (int64_t k = 0; k < n; k++) sum[k] += w[(c + k) * 9 + t] * e[k];
            }
            const float *in = values_read(x, q * channels + c, n, buffer);
            for (int64_t k = 0; k < n; k++) sum[k] = in[k] > 0.0f ? sum[k] : 0.0f;
            values_write(dx, q * channels + c, n, sum);
        }
    }
}

/* Sums over the places of one part: partial[9][channels] of the taps, then the bias. */
static void down_part(const Places *p, float *partial, int64_t begin, int64_t end, const Tensor *dy,
                      const Tensor *y, const Tensor *x) {
    const int64_t channels = p->channels;
    memset(partial, 0, (size_t)(10 * channels) * sizeof *partial);
    for (int64_t i = begin; i < end; i++) {
        for (int64_t c = 0; c < channels; c += CHUNK) {
            float e[CHUNK];
            const int64_t n = min_i64(CHUNK, channels - c);
            slope_read(e, dy, y, i * channels + c, n);
            for (int t = 0; t < 9; t++) {
                const int64_t at = around(p, i, t);
                if (at >= 0) add_relu_product(partial + t * channels + c, e, 1, x, at + c, n);
            }
            for (int64_t k = 0; k < n; k++) partial[9 * channels + c + k] += e[k];
        }
    }
}

static Status down_weights(Device *d, const Places *p, Grad dw, Grad db, const Tensor *dy,
                           const Tensor *y, const Tensor *x) {
    const int64_t channels = p->channels;
    const RowParts parts = row_parts(p->batch * p->rows * p->columns);
    float *partial, *turned;
    TRY(scratch_floats(d, parts.count * 10 * channels, &partial));
    TRY(scratch_floats(d, 9 * channels, &turned));
#pragma omp parallel for schedule(static)
    for (int64_t i = 0; i < parts.count; i++)
        down_part(p, partial + i * 10 * channels, row_part_begin(parts, i),
                  row_part_begin(parts, i + 1), dy, y, x);
    for (int64_t i = 1; i < parts.count; i++)
        for (int64_t k = 0; k < 10 * channels; k++) partial[k] += partial[i * 10 * channels + k];
    for (int64_t c = 0; c < channels; c++)
        for (int64_t t = 0; t < 9; t++) turned[c * 9 + t] = partial[t * channels + c];
    if (dw.t.data) values_write(&dw, 0, 9 * channels, turned);
    if (db.t.data) values_write(&db, 0, channels, partial + 9 * channels);
    return STATUS_OK;
}

Status dwconv3_down_backward_cpu(Device *d, Grad dx, Grad dw, Grad db, Tensor dy, Tensor y,
                                 Tensor x, Tensor w) {
    if (!act_dtype(x.dtype) || dy.dtype != x.dtype || y.dtype != x.dtype)
        return refuse_dtype("dwconv3_down_backward", dy.dtype);
    const Places p = places_of(x, 2);
    if (dx.t.data) down_dx(&p, &dx, &dy, &y, &x, w.data);
    if (!dw.t.data && !db.t.data) return STATUS_OK;
    return scratch_done(d, down_weights(d, &p, dw, db, &dy, &y, &x));
}
