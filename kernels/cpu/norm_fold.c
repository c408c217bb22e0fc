/* Layer norms folded into the products behind them. */
#include <math.h>
#include <string.h>

#include "kernels/cpu/table.h"
#include "kernels/cpu/values.h"
#include "kernels/cpu/vmath.h"

/* Moves elements of a row of BF16 numbers by one last digit each, from the front, until their sum
 * `left` is within half of one. */
static void row_settle(uint16_t *row, int64_t width, float left) {
    for (int64_t c = 0; c < width && left != 0.0f; c++) {
        const float value = bf16_value(row[c]);
        if (value == 0.0f) continue;
        const bool larger = (value < 0.0f) == (left > 0.0f); /* in magnitude */
        const uint16_t next = (uint16_t)(row[c] + (larger ? 1 : -1));
        const float step = bf16_value(next) - value;
        if (2.0f * fabsf(left) <= fabsf(step)) continue;
        row[c] = next;
        left += step;
    }
}

static void row_fold(Tensor folded, float *offset, Tensor w, const float *gain, const float *shift,
                     int64_t r) {
    const int64_t width = w.shape[1];
    const Grad to = grad_set(folded);
    float buffer[CHUNK], out_buffer[CHUNK];
    double sum = 0.0, moved = 0.0, left = 0.0;
    for (int64_t c = 0; c < width; c += CHUNK) {
        const int64_t n = min_i64(CHUNK, width - c);
        const float *v = values_read(&w, r * width + c, n, buffer);
        for (int64_t i = 0; i < n; i++) {
            sum += (double)v[i] * (double)gain[c + i];
            moved += (double)v[i] * (double)shift[c + i];
        }
    }
    const double mean = sum / (double)width;
    for (int64_t c = 0; c < width; c += CHUNK) {
        const int64_t n = min_i64(CHUNK, width - c), at = r * width + c;
        const float *v = values_read(&w, at, n, buffer);
        float *out = values_target(&to, at, out_buffer);
        for (int64_t i = 0; i < n; i++) out[i] = (float)((double)v[i] * (double)gain[c + i] - mean);
        values_write(&to, at, n, out);
        v = values_read(&folded, at, n, buffer);
        for (int64_t i = 0; i < n; i++) left += (double)v[i];
    }
    if (folded.dtype == DTYPE_BF16)
        row_settle((uint16_t *)folded.data + r * width, width, (float)left);
    *offset += (float)moved;
}

Status norm_fold_cpu(Device *d, Tensor folded, Tensor offset, Tensor w, Tensor bias, Tensor gain,
                     Tensor shift) {
    (void)d;
    if (!act_dtype(w.dtype) || folded.dtype != w.dtype) return refuse_dtype("norm_fold", w.dtype);
    float *to = offset.data;
    const float *from = bias.data;
    const int64_t rows = w.shape[0];
#pragma omp parallel for schedule(static) if (rows * w.shape[1] >= PARALLEL_MIN)
    for (int64_t r = 0; r < rows; r++) {
        to[r] = from ? from[r] : 0.0f;
        row_fold(folded, &to[r], w, gain.data, shift.data, r);
    }
    return STATUS_OK;
}

Status linear_rated_cpu(Device *d, Tensor y, Tensor stats, Tensor x, Tensor w, Tensor bias,
                        Activation act) {
    TRY(linear_cpu(d, y, tensor_none(), x, w, tensor_none(), ACT_NONE));
    const int64_t rows = tensor_rows(y), width = tensor_last(y);
    const float *rates = stats.data, *b = bias.data;
    const Grad to = grad_set(y);
#pragma omp parallel for schedule(static) if (rows * width >= PARALLEL_MIN)
    for (int64_t r = 0; r < rows; r++) {
        float x_buffer[CHUNK], y_buffer[CHUNK];
        for (int64_t c = 0; c < width; c += CHUNK) {
            const int64_t n = min_i64(CHUNK, width - c), at = r * width + c;
            const float *in = values_read(&y, at, n, x_buffer), rate = rates[2 * r + 1];
            float *out = values_target(&to, at, y_buffer);
#pragma omp simd
            for (int64_t i = 0; i < n; i++) out[i] = rate * in[i] + b[c + i];
            if (act == ACT_GELU) {
#pragma omp simd
                for (int64_t i = 0; i < n; i++) out[i] = gelu_value(out[i]);
            }
            values_write(&to, at, n, out);
        }
    }
    return STATUS_OK;
}

Status linear_residual_stats_cpu(Device *d, Tensor y, Tensor stats, Tensor x, Tensor w, Tensor bias,
                                 Tensor residual, float eps) {
    TRY(linear_residual_cpu(d, y, x, w, bias, residual, tensor_none()));
    return layernorm_cpu(d, tensor_none(), stats, y, tensor_none(), tensor_none(), eps);
}
