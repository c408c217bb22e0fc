/* Global gradient norm and AdamW over flat ranges (vittt.md 7.2). */
#include <math.h>

#include "kernels/cpu/table.h"
#include "kernels/cpu/values.h"

/* Elements whose squares one partial sum holds: fixed, so that the norm does not depend on threads.
 */
#define NORM_PART 16384

static Status grad_norm(Device *d, Tensor control, Tensor taken, Tensor g, float max_norm,
                        float skip_norm, float beta1, float beta2) {
    const int64_t count = tensor_count(g), parts = div_up(count, NORM_PART);
    double *partial, sum = 0.0;
    TRY(arena_take(&d->scratch, (size_t)parts * sizeof *partial, (void **)&partial));
#pragma omp parallel for schedule(static) if (count >= PARALLEL_MIN)
    for (int64_t p = 0; p < parts; p++) {
        const float *x = (const float *)g.data + p * NORM_PART;
        const int64_t n = min_i64(NORM_PART, count - p * NORM_PART);
        double squares = 0.0;
#pragma omp simd reduction(+ : squares)
        for (int64_t i = 0; i < n; i++) squares += (double)x[i] * (double)x[i];
        partial[p] = squares;
    }
    for (int64_t p = 0; p < parts; p++) sum += partial[p];
    float *out = control.data;
    int64_t *steps = taken.data;
    const float norm = (float)sqrt(sum);
    const bool usable = isfinite(norm) && !(skip_norm > 0.0f && norm > skip_norm);
    if (usable) ++*steps;
    const double k = (double)max_i64(*steps, 1);
    float clip = usable ? 1.0f : 0.0f;
    if (usable && max_norm > 0.0f) clip = fminf(1.0f, max_norm / (norm + 1e-6f));
    out[0] = norm;
    out[1] = clip;
    out[2] = (float)(1.0 / (1.0 - pow((double)beta1, k)));
    out[3] = (float)(1.0 / (1.0 - pow((double)beta2, k)));
    return STATUS_OK;
}

Status grad_norm_cpu(Device *d, Tensor control, Tensor taken, Tensor g, float max_norm,
                     float skip_norm, float beta1, float beta2) {
    if (g.dtype != DTYPE_F32 || taken.dtype != DTYPE_I64)
        return refuse_dtype("grad_norm", g.dtype != DTYPE_F32 ? g.dtype : taken.dtype);
    return scratch_done(d, grad_norm(d, control, taken, g, max_norm, skip_norm, beta1, beta2));
}

Status adamw_cpu(Device *d, Tensor p, Tensor m, Tensor v, Tensor shadow, Tensor g, Tensor lr,
                 Tensor control, float beta1, float beta2, float eps, float weight_decay) {
    (void)d;
    if (p.dtype != DTYPE_F32 || g.dtype != DTYPE_F32) return refuse_dtype("adamw", p.dtype);
    if (shadow.data && shadow.dtype != DTYPE_BF16) return refuse_dtype("adamw", shadow.dtype);
    const float *c = control.data;
    if (c[1] == 0.0f) return STATUS_OK;
    const float rate = ((const float *)lr.data)[0], clip = c[1];
    const float keep = 1.0f - rate * weight_decay, step = rate * c[2], root = sqrtf(c[3]);
    const float new1 = 1.0f - beta1, new2 = 1.0f - beta2;
    const int64_t count = tensor_count(p);
#pragma omp parallel for schedule(static) if (count >= PARALLEL_MIN)
    for (int64_t start = 0; start < count; start += CHUNK) {
        const int64_t n = min_i64(CHUNK, count - start);
        float *restrict w = (float *)p.data + start;
        float *restrict mean = (float *)m.data + start, *restrict square = (float *)v.data + start;
        const float *restrict gradient = (const float *)g.data + start;
#pragma omp simd
        for (int64_t i = 0; i < n; i++) {
            const float x = clip * gradient[i];
            const float a = beta1 * mean[i] + new1 * x, b = beta2 * square[i] + new2 * x * x;
            mean[i] = a;
            square[i] = b;
            w[i] = w[i] * keep - step * a / (sqrtf(b) * root + eps);
        }
        if (shadow.data) {
            const Grad to = grad_set(shadow);
            values_write(&to, start, n, w);
        }
    }
    return STATUS_OK;
}

/* ---- Muon ---- */

Status muon_momentum_cpu(Device *d, Tensor u, Tensor m, Tensor g, Tensor control, int64_t stride,
                         float momentum) {
    (void)d;
    if (m.dtype != DTYPE_F32 || g.dtype != DTYPE_F32) return refuse_dtype("muon_momentum", m.dtype);
    const float clip = ((const float *)control.data)[1], fresh = 1.0f - momentum;
    const int64_t n = u.shape[1] * u.shape[2], parts = div_up(n, CHUNK);
#pragma omp parallel for schedule(static) if (tensor_count(u) >= PARALLEL_MIN)
    for (int64_t job = 0; job < u.shape[0] * parts; job++) {
        const int64_t from = job % parts * CHUNK, count = min_i64(CHUNK, n - from);
        float *restrict mean = (float *)m.data + job / parts * stride + from;
        const float *restrict gradient = (const float *)g.data + job / parts * stride + from;
        float ahead[CHUNK] = {0};
        for (int64_t i = 0; i < count && clip != 0.0f; i++) {
            const float x = fresh * (clip * gradient[i]);
            mean[i] = momentum * mean[i] + x;
            ahead[i] = momentum * mean[i] + x;
        }
        const Grad to = grad_set(u);
        values_write(&to, job / parts * n + from, count, ahead);
    }
    return STATUS_OK;
}

Status muon_step_cpu(Device *d, Tensor p, Tensor shadow, Tensor u, Tensor lr, Tensor control,
                     int64_t stride, float scale, float weight_decay) {
    (void)d;
    if (p.dtype != DTYPE_F32) return refuse_dtype("muon_step", p.dtype);
    if (shadow.data && shadow.dtype != DTYPE_BF16) return refuse_dtype("muon_step", shadow.dtype);
    if (((const float *)control.data)[1] == 0.0f) return STATUS_OK;
    const float rate = ((const float *)lr.data)[0];
    const float keep = 1.0f - rate * weight_decay, step = rate * scale;
    const int64_t n = u.shape[1] * u.shape[2], parts = div_up(n, CHUNK);
#pragma omp parallel for schedule(static) if (tensor_count(u) >= PARALLEL_MIN)
    for (int64_t job = 0; job < u.shape[0] * parts; job++) {
        const int64_t from = job % parts * CHUNK, count = min_i64(CHUNK, n - from);
        const int64_t at = job / parts * stride + from;
        float *restrict w = (float *)p.data + at;
        float buffer[CHUNK];
        const float *ahead = values_read(&u, job / parts * n + from, count, buffer);
        for (int64_t i = 0; i < count; i++) w[i] = w[i] * keep - step * ahead[i];
        if (shadow.data) {
            const Grad to = grad_set(shadow);
            values_write(&to, at, count, w);
        }
    }
    return STATUS_OK;
}

Status ema_cpu(Device *d, Tensor average, Tensor p, float decay) {
    (void)d;
    if (average.dtype != DTYPE_F32 || p.dtype != DTYPE_F32) return refuse_dtype("ema", p.dtype);
    const int64_t count = tensor_count(p);
    float *restrict a = average.data;
    const float *restrict x = p.data;
#pragma omp parallel for simd schedule(static) if (count >= PARALLEL_MIN)
    for (int64_t i = 0; i < count; i++) a[i] = x[i] + decay * (a[i] - x[i]);
    return STATUS_OK;
}
