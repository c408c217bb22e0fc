/* Softmax cross-entropy with soft targets, and the mean square error. */
#include <math.h>

#include "kernels/cpu/table.h"
#include "kernels/cpu/values.h"
#include "kernels/cpu/vec.h"
#include "kernels/cpu/vmath.h"

/* Largest logit and log of the sum of exp(logit - largest). */
static void row_partition(const float *logits, int64_t n, float *largest, double *log_sum) {
    float top = logits[0];
#pragma omp simd reduction(max : top)
    for (int64_t i = 1; i < n; i++) top = logits[i] > top ? logits[i] : top;
    double sum = 0.0;
#pragma omp simd reduction(+ : sum)
    for (int64_t i = 0; i < n; i++) sum += (double)exp_value(logits[i] - top);
    *largest = top;
    *log_sum = log(sum);
}

static double row_loss(const float *logits, const float *targets, int64_t n) {
    float top;
    double log_sum, loss = 0.0;
    row_partition(logits, n, &top, &log_sum);
    for (int64_t i = 0; i < n; i++) {
        /* A class without a share of the target counts nothing, even at logit -inf. */
        if (targets[i] != 0.0f)
            loss -= (double)targets[i] * ((double)logits[i] - (double)top - log_sum);
    }
    return loss;
}

static Status cross_entropy(Device *d, Tensor loss, Tensor logits, Tensor targets) {
    const int64_t rows = tensor_rows(logits), classes = tensor_last(logits);
    double *losses, sum = 0.0;
    TRY(arena_take(&d->scratch, (size_t)rows * sizeof *losses, (void **)&losses));
#pragma omp parallel for schedule(static) if (rows * classes >= PARALLEL_MIN)
    for (int64_t r = 0; r < rows; r++)
        losses[r] = row_loss((const float *)logits.data + r * classes,
                             (const float *)targets.data + r * classes, classes);
    for (int64_t r = 0; r < rows; r++) sum += losses[r];
    ((float *)loss.data)[0] = (float)(sum / (double)rows);
    return STATUS_OK;
}

Status cross_entropy_cpu(Device *d, Tensor loss, Tensor logits, Tensor targets) {
    if (logits.dtype != DTYPE_F32 || targets.dtype != DTYPE_F32)
        return refuse_dtype("cross_entropy", logits.dtype);
    return scratch_done(d, cross_entropy(d, loss, logits, targets));
}

Status cross_entropy_backward_cpu(Device *d, Grad dlogits, Tensor dloss, Tensor logits,
                                  Tensor targets) {
    (void)d;
    if (!dlogits.t.data) return STATUS_OK;
    if (logits.dtype != DTYPE_F32 || dlogits.t.dtype != DTYPE_F32)
        return refuse_dtype("cross_entropy_backward", logits.dtype);
    const int64_t rows = tensor_rows(logits), classes = tensor_last(logits);
    const float scale = ((const float *)dloss.data)[0] / (float)rows;
#pragma omp parallel for schedule(static) if (rows * classes >= PARALLEL_MIN)
    for (int64_t r = 0; r < rows; r++) {
        const float *in = (const float *)logits.data + r * classes;
        const float *target = (const float *)targets.data + r * classes;
        float *out = (float *)dlogits.t.data + r * classes;
        float top;
        double log_sum, share = 0.0;
        row_partition(in, classes, &top, &log_sum);
        for (int64_t i = 0; i < classes; i++) share += (double)target[i];
        const float lowest = (float)log_sum, mass = (float)share;
#pragma omp simd
        for (int64_t i = 0; i < classes; i++) {
            const float value = scale * (exp_value(in[i] - top - lowest) * mass - target[i]);
            out[i] = dlogits.add ? out[i] + value : value;
        }
    }
    return STATUS_OK;
}

/* Sum of (x - target)^2 over [at, at + n). */
static float square_errors(const Tensor *x, const float *target, int64_t at, int64_t n) {
    float buffer[CHUNK], off[CHUNK];
    const float *in = values_read(x, at, n, buffer);
#pragma omp simd
    for (int64_t i = 0; i < n; i++) off[i] = in[i] - target[at + i];
    return vec_dot(off, off, n);
}

static Status mse(Device *d, Tensor loss, Tensor x, const float *target) {
    const int64_t count = tensor_count(x), pieces = div_up(count, CHUNK);
    float *sums;
    double sum = 0.0;
    TRY(scratch_floats(d, pieces, &sums));
#pragma omp parallel for schedule(static) if (count >= PARALLEL_MIN)
    for (int64_t p = 0; p < pieces; p++)
        sums[p] = square_errors(&x, target, p * CHUNK, min_i64(CHUNK, count - p * CHUNK));
    for (int64_t p = 0; p < pieces; p++) sum += (double)sums[p];
    ((float *)loss.data)[0] = (float)(sum / (double)count);
    return STATUS_OK;
}

Status mse_cpu(Device *d, Tensor loss, Tensor x, Tensor target) {
    if (!act_dtype(x.dtype) || target.dtype != DTYPE_F32) return refuse_dtype("mse", x.dtype);
    return scratch_done(d, mse(d, loss, x, target.data));
}

Status mse_backward_cpu(Device *d, Grad dx, Tensor dloss, Tensor x, Tensor target) {
    (void)d;
    if (!dx.t.data) return STATUS_OK;
    if (!act_dtype(x.dtype) || !act_dtype(dx.t.dtype) || target.dtype != DTYPE_F32)
        return refuse_dtype("mse_backward", x.dtype);
    const int64_t count = tensor_count(x);
    const float *wanted = target.data, scale = 2.0f * ((const float *)dloss.data)[0] / (float)count;
#pragma omp parallel for schedule(static) if (count >= PARALLEL_MIN)
    for (int64_t start = 0; start < count; start += CHUNK) {
        float x_buffer[CHUNK], out_buffer[CHUNK];
        const int64_t n = min_i64(CHUNK, count - start);
        const float *in = values_read(&x, start, n, x_buffer);
        float *out = values_target(&dx, start, out_buffer);
#pragma omp simd
        for (int64_t i = 0; i < n; i++) out[i] = scale * (in[i] - wanted[start + i]);
        values_write(&dx, start, n, out);
    }
    return STATUS_OK;
}
