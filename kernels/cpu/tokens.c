/* Images to tokens, tokens to heads, tokens to one feature vector. */
#include "kernels/cpu/table.h"
#include "kernels/cpu/values.h"

/* One row of patches per unit of work; moves elements of `size` bytes. */
#define PATCH_ROW(type)                                                                            \
    static void patch_row_##type(type *y, const type *x, int64_t width, int64_t channels,          \
                                 int64_t p) {                                                      \
        const int64_t columns = channels * p * p;                                                  \
        for (int64_t px = 0; px < width / p; px++) {                                               \
            for (int64_t c = 0; c < channels; c++) {                                               \
                for (int64_t ky = 0; ky < p; ky++) {                                               \
                    const type *in = x + (ky * width + px * p) * channels + c;                     \
                    type *out = y + px * columns + (c * p + ky) * p;                               \
                    for (int64_t kx = 0; kx < p; kx++) out[kx] = in[kx * channels];                \
                }                                                                                  \
            }                                                                                      \
        }                                                                                          \
    }
PATCH_ROW(uint32_t)
PATCH_ROW(uint16_t)

Status patchify_cpu(Device *d, Tensor y, Tensor x, int64_t patch) {
    (void)d;
    if (x.dtype != y.dtype || !act_dtype(x.dtype)) return refuse_dtype("patchify", x.dtype);
    const int64_t batch = x.shape[0], height = x.shape[1], width = x.shape[2];
    const int64_t channels = x.shape[3], rows = height / patch;
    const int64_t in_row = patch * width * channels;
    const int64_t out_row = width / patch * channels * patch * patch;
#pragma omp parallel for schedule(static) if (tensor_count(y) >= PARALLEL_MIN)
    for (int64_t r = 0; r < batch * rows; r++) {
        const int64_t from = r / rows * height * width * channels + r % rows * in_row;
        if (x.dtype == DTYPE_F32) {
            patch_row_uint32_t((uint32_t *)y.data + r * out_row, (const uint32_t *)x.data + from,
                               width, channels, patch);
        } else {
            patch_row_uint16_t((uint16_t *)y.data + r * out_row, (const uint16_t *)x.data + from,
                               width, channels, patch);
        }
    }
    return STATUS_OK;
}

/* Values [from, from+n) of x (+)= into [at, at+n) of y. */
static void move_values(const Grad *y, int64_t at, const Tensor *x, int64_t from, int64_t n) {
    float buffer[CHUNK];
    for (int64_t c = 0; c < n; c += CHUNK) {
        const int64_t count = min_i64(CHUNK, n - c);
        values_write(y, at + c, count, values_read(x, from + c, count, buffer));
    }
}

Status split_heads_cpu(Device *d, Grad y, Tensor packed, int64_t offset) {
    (void)d;
    if (!y.t.data) return STATUS_OK;
    if (!act_dtype(y.t.dtype) || !act_dtype(packed.dtype))
        return refuse_dtype("split_heads", packed.dtype);
    const int64_t heads = y.t.shape[1], tokens = y.t.shape[2], dim = y.t.shape[3];
    const int64_t row = tensor_last(packed), units = y.t.shape[0] * tokens;
#pragma omp parallel for schedule(static) if (units * heads * dim >= PARALLEL_MIN)
    for (int64_t u = 0; u < units; u++) {
        for (int64_t h = 0; h < heads; h++)
            move_values(&y, ((u / tokens * heads + h) * tokens + u % tokens) * dim, &packed,
                        u * row + offset + h * dim, dim);
    }
    return STATUS_OK;
}

Status merge_heads_cpu(Device *d, Grad packed, Tensor x, int64_t offset) {
    (void)d;
    if (!packed.t.data) return STATUS_OK;
    if (!act_dtype(packed.t.dtype) || !act_dtype(x.dtype))
        return refuse_dtype("merge_heads", x.dtype);
    const int64_t heads = x.shape[1], tokens = x.shape[2], dim = x.shape[3];
    const int64_t row = tensor_last(packed.t), units = x.shape[0] * tokens;
#pragma omp parallel for schedule(static) if (units * heads * dim >= PARALLEL_MIN)
    for (int64_t u = 0; u < units; u++) {
        for (int64_t h = 0; h < heads; h++)
            move_values(&packed, u * row + offset + h * dim, &x,
                        ((u / tokens * heads + h) * tokens + u % tokens) * dim, dim);
    }
    return STATUS_OK;
}

/* stats, gain and shift NULL: of x itself. */
static void mean_tokens(Tensor y, Tensor x, const float *stats, const float *gain,
                        const float *shift) {
    const int64_t batch = x.shape[0], tokens = x.shape[1], width = x.shape[2];
    const int64_t pieces = div_up(width, CHUNK);
#pragma omp parallel for schedule(static) if (batch * tokens * width >= PARALLEL_MIN)
    for (int64_t piece = 0; piece < batch * pieces; piece++) {
        float buffer[CHUNK];
        const int64_t b = piece / pieces, c = piece % pieces * CHUNK;
        const int64_t n = min_i64(CHUNK, width - c);
        float *sum = (float *)y.data + b * width + c;
        memset(sum, 0, (size_t)n * sizeof *sum);
        for (int64_t t = 0; t < tokens; t++) {
            const int64_t row = b * tokens + t;
            const float *in = values_read(&x, row * width + c, n, buffer);
            const float mean = stats ? stats[2 * row] : 0.0f;
            const float rate = stats ? stats[2 * row + 1] : 1.0f;
#pragma omp simd
            for (int64_t i = 0; i < n; i++) sum[i] += (in[i] - mean) * rate;
        }
        for (int64_t i = 0; i < n; i++) sum[i] /= (float)tokens;
        for (int64_t i = 0; stats && i < n; i++) sum[i] = sum[i] * gain[c + i] + shift[c + i];
    }
}

Status mean_tokens_cpu(Device *d, Tensor y, Tensor x) {
    (void)d;
    if (!act_dtype(x.dtype) || y.dtype != DTYPE_F32) return refuse_dtype("mean_tokens", x.dtype);
    mean_tokens(y, x, NULL, NULL, NULL);
    return STATUS_OK;
}

Status norm_mean_tokens_cpu(Device *d, Tensor y, Tensor x, Tensor stats, Tensor gain,
                            Tensor shift) {
    (void)d;
    if (!act_dtype(x.dtype) || y.dtype != DTYPE_F32)
        return refuse_dtype("norm_mean_tokens", x.dtype);
    mean_tokens(y, x, stats.data, gain.data, shift.data);
    return STATUS_OK;
}

Status mean_tokens_backward_cpu(Device *d, Grad dx, Tensor dy) {
    (void)d;
    if (!dx.t.data) return STATUS_OK;
    if (!act_dtype(dx.t.dtype) || dy.dtype != DTYPE_F32)
        return refuse_dtype("mean_tokens_backward", dx.t.dtype);
    const int64_t batch = dx.t.shape[0], tokens = dx.t.shape[1], width = dx.t.shape[2];
#pragma omp parallel for schedule(static) if (batch * tokens * width >= PARALLEL_MIN)
    for (int64_t row = 0; row < batch * tokens; row++) {
        float buffer[CHUNK];
        const float *in = (const float *)dy.data + row / tokens * width;
        for (int64_t c = 0; c < width; c += CHUNK) {
            const int64_t n = min_i64(CHUNK, width - c);
            for (int64_t i = 0; i < n; i++) buffer[i] = in[c + i] / (float)tokens;
            values_write(&dx, row * width + c, n, buffer);
        }
    }
    return STATUS_OK;
}
