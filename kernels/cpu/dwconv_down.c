/* The depthwise 3x3 convolution with stride 2 of merging layers, between two relu. */
#include "kernels/cpu/places.h"
#include "kernels/cpu/rowsum.h"
#include "kernels/cpu/table.h"

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
