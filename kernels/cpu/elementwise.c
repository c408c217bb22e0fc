#include "kernels/cpu/table.h"
#include "kernels/cpu/values.h"
#include "kernels/cpu/vmath.h"

Status zero_cpu(Device *d, Tensor y) {
    (void)d;
    memset(y.data, 0, tensor_bytes(y));
    return STATUS_OK;
}

Status fill_cpu(Device *d, Tensor y, float value) {
    (void)d;
    if (!act_dtype(y.dtype)) return refuse_dtype("fill", y.dtype);
    const int64_t count = tensor_count(y);
    const uint16_t half = bf16_round(value);
    if (y.dtype == DTYPE_F32)
        for (int64_t i = 0; i < count; i++) ((float *)y.data)[i] = value;
    else
        for (int64_t i = 0; i < count; i++) ((uint16_t *)y.data)[i] = half;
    return STATUS_OK;
}

Status copy_cpu(Device *d, Grad y, Tensor x, float alpha) {
    (void)d;
    if (!y.t.data) return STATUS_OK;
    if (y.t.dtype == x.dtype && alpha == 1.0f && !y.add) {
        memmove(y.t.data, x.data, tensor_bytes(x));
        return STATUS_OK;
    }
    if (!act_dtype(x.dtype) || !act_dtype(y.t.dtype))
        return refuse_dtype("copy", act_dtype(x.dtype) ? y.t.dtype : x.dtype);
    const int64_t count = tensor_count(x);
#pragma omp parallel for schedule(static) if (count >= PARALLEL_MIN)
    for (int64_t start = 0; start < count; start += CHUNK) {
        float x_buffer[CHUNK], y_buffer[CHUNK];
        const int64_t n = min_i64(CHUNK, count - start);
        const float *in = values_read(&x, start, n, x_buffer);
        float *out = values_target(&y, start, y_buffer);
#pragma omp simd
        for (int64_t i = 0; i < n; i++) out[i] = alpha * in[i];
        values_write(&y, start, n, out);
    }
    return STATUS_OK;
}

Status add_cpu(Device *d, Tensor y, Tensor a, Tensor b, float alpha) {
    (void)d;
    if (!act_dtype(y.dtype) || !act_dtype(a.dtype) || !act_dtype(b.dtype))
        return refuse_dtype("add", y.dtype);
    const int64_t count = tensor_count(y), period = tensor_count(a);
    const int64_t pieces = div_up(period, CHUNK);
    const Grad to = grad_set(y);
#pragma omp parallel for schedule(static) if (count >= PARALLEL_MIN)
    for (int64_t piece = 0; piece < count / period * pieces; piece++) {
        float a_buffer[CHUNK], b_buffer[CHUNK], y_buffer[CHUNK];
        const int64_t in_a = piece % pieces * CHUNK, at = piece / pieces * period + in_a;
        const int64_t n = min_i64(CHUNK, period - in_a);
        const float *x = values_read(&a, in_a, n, a_buffer);
        const float *z = values_read(&b, at, n, b_buffer);
        float *out = values_target(&to, at, y_buffer);
#pragma omp simd
        for (int64_t i = 0; i < n; i++) out[i] = x[i] + alpha * z[i];
        values_write(&to, at, n, out);
    }
    return STATUS_OK;
}

Status mul_cpu(Device *d, Grad y, Tensor a, Tensor b) {
    (void)d;
    if (!y.t.data) return STATUS_OK;
    if (!act_dtype(y.t.dtype) || !act_dtype(a.dtype) || !act_dtype(b.dtype))
        return refuse_dtype("mul", y.t.dtype);
    const int64_t count = tensor_count(y.t);
#pragma omp parallel for schedule(static) if (count >= PARALLEL_MIN)
    for (int64_t start = 0; start < count; start += CHUNK) {
        float a_buffer[CHUNK], b_buffer[CHUNK], y_buffer[CHUNK];
        const int64_t n = min_i64(CHUNK, count - start);
        const float *x = values_read(&a, start, n, a_buffer);
        const float *z = values_read(&b, start, n, b_buffer);
        float *out = values_target(&y, start, y_buffer);
#pragma omp simd
        for (int64_t i = 0; i < n; i++) out[i] = x[i] * z[i];
        values_write(&y, start, n, out);
    }
    return STATUS_OK;
}

/* y = value(x), one vector loop for each function. */
#define EACH(value)                                                                                \
    do {                                                                                           \
        _Pragma("omp simd") for (int64_t i = 0; i < n; i++) y[i] = value(x[i]);                    \
        return;                                                                                    \
    } while (0)

/* rough: the values came from BF16 and go back to it. */
static void unary_values(UnaryKind f, bool rough, float *y, const float *x, int64_t n) {
    if (rough && f == UNARY_GELU) EACH(gelu_rough);
    if (rough && f == UNARY_DGELU) EACH(dgelu_rough);
    switch (f) {
    case UNARY_SILU:
        EACH(silu_value);
    case UNARY_DSILU:
        EACH(dsilu_value);
    case UNARY_D2SILU:
        EACH(d2silu_value);
    case UNARY_GELU:
        EACH(gelu_value);
    case UNARY_DGELU:
        EACH(dgelu_value);
    case UNARY_SIGMOID:
        EACH(sigma_value);
    case UNARY_DSIGMOID:
        EACH(dsigma_value);
    case UNARY_SOFTPLUS:
        EACH(softplus_value);
    case UNARY_D2GELU:
        EACH(d2gelu_value);
    case UNARY_GELU_TANH:
        EACH(gelu_tanh_value);
    case UNARY_DGELU_TANH:
        EACH(dgelu_tanh_value);
    case UNARY_D2GELU_TANH:
        EACH(d2gelu_tanh_value);
    case UNARY_D2SIGMOID:
        EACH(d2sigma_value);
    case UNARY_TANH:
        EACH(tanh_value);
    case UNARY_DTANH:
        EACH(dtanh_value);
    case UNARY_D2TANH:
        EACH(d2tanh_value);
    case UNARY_RELU:
        EACH(relu_value);
    case UNARY_STEP:
        EACH(step_value);
    case UNARY_SIGN:
        EACH(sign_value);
    case UNARY_EXP:
        EACH(exp_value);
    case UNARY_RSQRT:
        EACH(rsqrt_value);
    case UNARY_DRSQRT:
        EACH(drsqrt_value);
    case UNARY_LOG:
        EACH(log_value);
    case UNARY_DLOG:
        EACH(dlog_value);
    }
}
#undef EACH

Status unary_cpu(Device *d, Grad y, UnaryKind f, Tensor x) {
    (void)d;
    if (!y.t.data) return STATUS_OK;
    if (!act_dtype(y.t.dtype) || !act_dtype(x.dtype)) return refuse_dtype("unary", x.dtype);
    const int64_t count = tensor_count(x);
    const bool rough = x.dtype == DTYPE_BF16 && y.t.dtype == DTYPE_BF16;
#pragma omp parallel for schedule(static) if (count >= PARALLEL_MIN)
    for (int64_t start = 0; start < count; start += CHUNK) {
        float x_buffer[CHUNK], y_buffer[CHUNK];
        const int64_t n = min_i64(CHUNK, count - start);
        const float *in = values_read(&x, start, n, x_buffer);
        float *out = values_target(&y, start, y_buffer);
        unary_values(f, rough, out, in, n);
        values_write(&y, start, n, out);
    }
    return STATUS_OK;
}

Status unary_mul_cpu(Device *d, Grad y, UnaryKind f, Tensor x, Tensor dy) {
    (void)d;
    if (!y.t.data) return STATUS_OK;
    if (!act_dtype(y.t.dtype) || !act_dtype(x.dtype) || !act_dtype(dy.dtype))
        return refuse_dtype("unary_mul", x.dtype);
    const int64_t count = tensor_count(x);
    const bool rough = x.dtype == DTYPE_BF16 && y.t.dtype == DTYPE_BF16;
#pragma omp parallel for schedule(static) if (count >= PARALLEL_MIN)
    for (int64_t start = 0; start < count; start += CHUNK) {
        float x_buffer[CHUNK], d_buffer[CHUNK], y_buffer[CHUNK], factor[CHUNK];
        const int64_t n = min_i64(CHUNK, count - start);
        const float *in = values_read(&x, start, n, x_buffer);
        const float *gradient = values_read(&dy, start, n, d_buffer);
        float *out = values_target(&y, start, y_buffer);
        unary_values(f, rough, factor, in, n); /* not into out: linear_dx passes dy as y */
#pragma omp simd
        for (int64_t i = 0; i < n; i++) out[i] = factor[i] * gradient[i];
        values_write(&y, start, n, out);
    }
    return STATUS_OK;
}

Status sum_batch_cpu(Device *d, Grad y, Tensor x, float alpha) {
    (void)d;
    if (!y.t.data) return STATUS_OK;
    if (!act_dtype(y.t.dtype) || !act_dtype(x.dtype)) return refuse_dtype("sum_batch", x.dtype);
    const int64_t count = tensor_count(y.t), batch = tensor_count(x) / count;
#pragma omp parallel for schedule(static) if (count * batch >= PARALLEL_MIN)
    for (int64_t start = 0; start < count; start += CHUNK) {
        float sum[CHUNK], x_buffer[CHUNK];
        const int64_t n = min_i64(CHUNK, count - start);
        memset(sum, 0, (size_t)n * sizeof *sum);
        for (int64_t b = 0; b < batch; b++) {
            const float *in = values_read(&x, b * count + start, n, x_buffer);
#pragma omp simd
            for (int64_t i = 0; i < n; i++) sum[i] += in[i];
        }
#pragma omp simd
        for (int64_t i = 0; i < n; i++) sum[i] *= alpha;
        values_write(&y, start, n, sum);
    }
    return STATUS_OK;
}

/* y = x + scale[b] branch (x none: 0): the common part of residual and scale_rows. */
static void scaled_rows(Grad y, const Tensor *x, Tensor branch, Tensor scale) {
    const int64_t count = tensor_count(y.t), batch = y.t.rank ? y.t.shape[0] : 1;
    const int64_t row = count / batch, pieces = div_up(row, CHUNK);
#pragma omp parallel for schedule(static) if (count >= PARALLEL_MIN)
    for (int64_t piece = 0; piece < batch * pieces; piece++) {
        float x_buffer[CHUNK], branch_buffer[CHUNK], y_buffer[CHUNK];
        const int64_t b = piece / pieces, at = b * row + piece % pieces * CHUNK;
        const int64_t n = min_i64(CHUNK, (b + 1) * row - at);
        const float factor = scale.data ? ((const float *)scale.data)[b] : 1.0f;
        const float *in = values_read(&branch, at, n, branch_buffer);
        float *out = values_target(&y, at, y_buffer);
        if (x) {
            const float *base = values_read(x, at, n, x_buffer);
#pragma omp simd
            for (int64_t i = 0; i < n; i++) out[i] = base[i] + factor * in[i];
        } else {
#pragma omp simd
            for (int64_t i = 0; i < n; i++) out[i] = factor * in[i];
        }
        values_write(&y, at, n, out);
    }
}

Status residual_cpu(Device *d, Tensor y, Tensor x, Tensor branch, Tensor scale) {
    (void)d;
    if (!act_dtype(y.dtype) || !act_dtype(x.dtype) || !act_dtype(branch.dtype))
        return refuse_dtype("residual", y.dtype);
    scaled_rows(grad_set(y), &x, branch, scale);
    return STATUS_OK;
}

Status scale_rows_cpu(Device *d, Grad y, Tensor x, Tensor scale) {
    (void)d;
    if (!y.t.data) return STATUS_OK;
    if (!act_dtype(y.t.dtype) || !act_dtype(x.dtype)) return refuse_dtype("scale_rows", x.dtype);
    scaled_rows(y, NULL, x, scale);
    return STATUS_OK;
}
