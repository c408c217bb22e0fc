/* Batch norm over rows (vittt.md 4.2), with relu behind it where asked. Sums over rows are F32
 * within a part of the rows and double across parts; the parts depend on the number of rows alone.
 */
#include <math.h>

#include "kernels/cpu/rowsum.h"
#include "kernels/cpu/table.h"

/* Rows of one part: F32 sums stay short. */
#define PART_ROWS 512

static int64_t part_count(int64_t rows) {
    return div_up(rows, PART_ROWS);
}

/* sums[0][c] = sum of x - shift, sums[1][c] = sum of (x - shift)^2 over the rows of a part. The
 * shift is the first row: large means then cost no digits. */
static void part_moments(float *sums, const Tensor *x, int64_t begin, int64_t end, int64_t width,
                         const float *shift) {
    memset(sums, 0, (size_t)(2 * width) * sizeof *sums);
    for (int64_t r = begin; r < end; r++) {
        for (int64_t c = 0; c < width; c += CHUNK) {
            float buffer[CHUNK];
            const int64_t n = min_i64(CHUNK, width - c);
            const float *in = values_read(x, r * width + c, n, buffer);
            float *sum = sums + c, *square = sums + width + c;
#pragma omp simd
            for (int64_t i = 0; i < n; i++) {
                const float u = in[i] - shift[c + i];
                sum[i] += u;
                square[i] += u * u;
            }
        }
    }
}

/* Joins the parts: stats = mean, 1/sqrt(var + eps), and moves the running ones. */
static void join_moments(float *stats, float *seen_mean, float *seen_var, const float *partial,
                         const float *shift, int64_t rows, int64_t width, float eps,
                         float momentum) {
    const double count = (double)rows;
    for (int64_t c = 0; c < width; c++) {
        double sum = 0.0, square = 0.0;
        for (int64_t p = 0; p < part_count(rows); p++) {
            sum += partial[p * 2 * width + c];
            square += partial[(p * 2 + 1) * width + c];
        }
        const double offset = sum / count;
        const double var = fmax(square / count - offset * offset, 0.0);
        const double mean = (double)shift[c] + offset;
        stats[c] = (float)mean;
        stats[width + c] = (float)(1.0 / sqrt(var + (double)eps));
        if (!isfinite(mean) || !isfinite(square)) {
            stats[c] = stats[width + c] = NAN;
            continue;
        }
        const double unbiased = rows > 1 ? var * count / (count - 1.0) : var;
        const double keep = 1.0 - (double)momentum;
        seen_mean[c] = (float)(keep * seen_mean[c] + (double)momentum * mean);
        seen_var[c] = (float)(keep * seen_var[c] + (double)momentum * unbiased);
    }
}

static Status batch_moments(Device *d, float *stats, float *seen_mean, float *seen_var, Tensor x,
                            float eps, float momentum) {
    const int64_t width = tensor_last(x), rows = tensor_rows(x), parts = part_count(rows);
    float *partial, *shift;
    TRY(scratch_floats(d, parts * 2 * width, &partial));
    TRY(scratch_floats(d, width, &shift));
    for (int64_t c = 0; c < width; c += CHUNK) {
        float buffer[CHUNK];
        const int64_t n = min_i64(CHUNK, width - c);
        memcpy(shift + c, values_read(&x, c, n, buffer), (size_t)n * sizeof *shift);
    }
#pragma omp parallel for schedule(static) if (rows * width >= PARALLEL_MIN)
    for (int64_t p = 0; p < parts; p++)
        part_moments(partial + p * 2 * width, &x, p * PART_ROWS, min_i64((p + 1) * PART_ROWS, rows),
                     width, shift);
    join_moments(stats, seen_mean, seen_var, partial, shift, rows, width, eps, momentum);
    return STATUS_OK;
}

static void normalise(Tensor y, Tensor x, const float *mean, const float *rstd, const float *w,
                      const float *b, bool relu) {
    const int64_t width = tensor_last(x), rows = tensor_rows(x);
    const Grad to = grad_set(y);
#pragma omp parallel for schedule(static) if (rows * width >= PARALLEL_MIN)
    for (int64_t r = 0; r < rows; r++) {
        for (int64_t c = 0; c < width; c += CHUNK) {
            float x_buffer[CHUNK], y_buffer[CHUNK];
            const int64_t n = min_i64(CHUNK, width - c), at = r * width + c;
            const float *in = values_read(&x, at, n, x_buffer);
            float *out = values_target(&to, at, y_buffer);
#pragma omp simd
            for (int64_t i = 0; i < n; i++) {
                const float v = (in[i] - mean[c + i]) * rstd[c + i] * w[c + i] + b[c + i];
                out[i] = relu && v <= 0.0f ? 0.0f : v;
            }
            values_write(&to, at, n, out);
        }
    }
}

static Status batchnorm(Device *d, Tensor y, Tensor stats, Tensor seen_mean, Tensor seen_var,
                        Tensor x, Tensor w, Tensor b, float eps, float momentum, bool relu,
                        bool training) {
    const int64_t width = tensor_last(x);
    float *kept = stats.data, *mean = seen_mean.data, *var = seen_var.data;
    if (!kept) TRY(scratch_floats(d, 2 * width, &kept));
    if (training) {
        TRY(batch_moments(d, kept, mean, var, x, eps, momentum));
    } else {
        memcpy(kept, mean, (size_t)width * sizeof *kept);
        for (int64_t c = 0; c < width; c++) kept[width + c] = 1.0f / sqrtf(var[c] + eps);
    }
    normalise(y, x, kept, kept + width, w.data, b.data, relu);
    return STATUS_OK;
}

Status batchnorm_cpu(Device *d, Tensor y, Tensor stats, Tensor seen_mean, Tensor seen_var, Tensor x,
                     Tensor w, Tensor b, float eps, float momentum, bool relu, bool training) {
    if (!act_dtype(x.dtype) || y.dtype != x.dtype) return refuse_dtype("batchnorm", x.dtype);
    return scratch_done(
        d, batchnorm(d, y, stats, seen_mean, seen_var, x, w, b, eps, momentum, relu, training));
}

/* ---- backward ------------------------------------------------------------------------------- */

typedef struct Back {
    const Tensor *dy, *x;
    const float *mean, *rstd, *w, *b;
    int64_t width;
    bool relu;
} Back;

/* e and n of the values [at, at + count) in columns from c on. */
static void back_read(const Back *k, int64_t at, int64_t c, int64_t count, float *e, float *n) {
    float x_buffer[CHUNK], dy_buffer[CHUNK];
    const float *in = values_read(k->x, at, count, x_buffer);
    const float *g = values_read(k->dy, at, count, dy_buffer);
#pragma omp simd
    for (int64_t i = 0; i < count; i++) {
        n[i] = (in[i] - k->mean[c + i]) * k->rstd[c + i];
        e[i] = k->relu && n[i] * k->w[c + i] + k->b[c + i] <= 0.0f ? 0.0f : g[i];
    }
}

static void part_sums(const Back *k, float *sums, int64_t begin, int64_t end) {
    memset(sums, 0, (size_t)(2 * k->width) * sizeof *sums);
    for (int64_t r = begin; r < end; r++) {
        for (int64_t c = 0; c < k->width; c += CHUNK) {
            float e[CHUNK], n[CHUNK];
            const int64_t count = min_i64(CHUNK, k->width - c);
            back_read(k, r * k->width + c, c, count, e, n);
#pragma omp simd
            for (int64_t i = 0; i < count; i++) {
                sums[c + i] += e[i];
                sums[k->width + c + i] += e[i] * n[i];
            }
        }
    }
}

static void write_dx(const Back *k, const Grad *dx, int64_t rows, const float *means) {
#pragma omp parallel for schedule(static) if (rows * k->width >= PARALLEL_MIN)
    for (int64_t r = 0; r < rows; r++) {
        for (int64_t c = 0; c < k->width; c += CHUNK) {
            float e[CHUNK], n[CHUNK], out[CHUNK];
            const int64_t count = min_i64(CHUNK, k->width - c), at = r * k->width + c;
            back_read(k, at, c, count, e, n);
#pragma omp simd
            for (int64_t i = 0; i < count; i++)
                out[i] = k->w[c + i] * k->rstd[c + i] *
                         (e[i] - means[c + i] - n[i] * means[k->width + c + i]);
            values_write(dx, at, count, out);
        }
    }
}

static Status backward(Device *d, Grad dx, Grad dw, Grad db, const Back *k, bool training) {
    const int64_t rows = tensor_rows(*k->x), width = k->width, parts = part_count(rows);
    float *partial, *sums;
    TRY(scratch_floats(d, parts * 2 * width, &partial));
    TRY(scratch_floats(d, 2 * width, &sums));
#pragma omp parallel for schedule(static) if (rows * width >= PARALLEL_MIN)
    for (int64_t p = 0; p < parts; p++)
        part_sums(k, partial + p * 2 * width, p * PART_ROWS, min_i64((p + 1) * PART_ROWS, rows));
    for (int64_t c = 0; c < 2 * width; c++) {
        double sum = 0.0;
        for (int64_t p = 0; p < parts; p++) sum += partial[p * 2 * width + c];
        sums[c] = (float)sum;
    }
    if (db.t.data) values_write(&db, 0, width, sums);
    if (dw.t.data) values_write(&dw, 0, width, sums + width);
    if (!dx.t.data) return STATUS_OK;
    for (int64_t c = 0; c < 2 * width; c++) sums[c] = training ? sums[c] / (float)rows : 0.0f;
    write_dx(k, &dx, rows, sums);
    return STATUS_OK;
}

Status batchnorm_backward_cpu(Device *d, Grad dx, Grad dw, Grad db, Tensor dy, Tensor x, Tensor w,
                              Tensor b, Tensor stats, bool relu, bool training) {
    if (!act_dtype(x.dtype) || dy.dtype != x.dtype)
        return refuse_dtype("batchnorm_backward", dy.dtype);
    const int64_t width = tensor_last(x);
    const Back k = {&dy,    &x,     stats.data, (const float *)stats.data + width,
                    w.data, b.data, width,      relu};
    return scratch_done(d, backward(d, dx, dw, db, &k, training));
}
