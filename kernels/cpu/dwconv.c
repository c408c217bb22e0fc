/* Depthwise 3x3 over channels-last images, and its gradient with respect to the taps. */
#include <omp.h>

#include "kernels/cpu/rowsum.h"
#include "kernels/cpu/table.h"
#include "kernels/cpu/taps.h"

/* Rows of one unit of work in dwconv3; channels of one in dwconv3_taps. */
#define BAND        4
#define TAP_BLOCK   64
#define BATCH_PARTS 8

static Status dwconv3(Device *d, Grad y, Tensor x, Tensor w, Tensor bias, TapMode mode,
                      bool add_input) {
    const int64_t batch = x.shape[0], height = x.shape[1], width = x.shape[2];
    const int64_t channels = x.shape[3], bands = div_up(height, BAND);
    const int64_t sets = tensor_count(w) / (9 * channels), line = width * channels;
    const int threads = omp_get_max_threads();
    const int64_t per_thread = (BAND + 2) * line + line;
    float *taps, *buffers;
    TRY(scratch_floats(d, sets * 9 * channels, &taps));
    TRY(scratch_floats(d, threads * per_thread, &buffers));
    for (int64_t i = 0; i < sets; i++)
        taps_transpose(taps + i * 9 * channels, (const float *)w.data + i * 9 * channels, channels,
                       mode == TAPS_TRANSPOSE);
#pragma omp parallel for schedule(static) if (batch * height * line >= PARALLEL_MIN / 4)
    for (int64_t unit = 0; unit < batch * bands; unit++) {
        float *buffer = buffers + omp_get_thread_num() * per_thread;
        const int64_t b = unit / bands, begin = unit % bands * BAND;
        const int64_t end = min_i64(begin + BAND, height);
        const ActMap image = {x, b * height * line, height, width, channels, channels};
        const Map map = map_rows(&image, max_i64(begin - 1, 0), min_i64(end + 1, height), buffer);
        for (int64_t row = begin; row < end; row++) {
            const int64_t at = (b * height + row) * line;
            float *out = values_target(&y, at, buffer + (BAND + 2) * line);
            taps_row(out, channels, &map, row, taps + (sets > 1 ? b : 0) * 9 * channels, bias.data,
                     add_input);
            values_write(&y, at, line, out);
        }
    }
    return STATUS_OK;
}

Status dwconv3_cpu(Device *d, Grad y, Tensor x, Tensor w, Tensor bias, TapMode mode,
                   bool add_input) {
    if (!y.t.data) return STATUS_OK;
    if (!act_dtype(x.dtype) || !act_dtype(y.t.dtype)) return refuse_dtype("dwconv3", x.dtype);
    return scratch_done(d, dwconv3(d, y, x, w, bias, mode, add_input));
}

/* partial[parts][10][channels]: taps and sum of y, each part over its own samples. */
static Status taps_partial(Device *d, Tensor x, Tensor y, int64_t parts, float *partial) {
    const int64_t batch = x.shape[0], height = x.shape[1], width = x.shape[2];
    const int64_t channels = x.shape[3], image = height * width * channels;
    const int64_t blocks = div_up(channels, TAP_BLOCK);
    const bool copies = x.dtype != DTYPE_F32 || y.dtype != DTYPE_F32;
    const int threads = omp_get_max_threads();
    const int64_t per_thread = 2 * height * width * TAP_BLOCK;
    float *buffers = NULL;
    if (copies) TRY(scratch_floats(d, threads * per_thread, &buffers));
#pragma omp parallel for schedule(static) if (batch * image >= PARALLEL_MIN / 4)
    for (int64_t unit = 0; unit < parts * blocks; unit++) {
        const int64_t part = unit / blocks, c = unit % blocks * TAP_BLOCK;
        const int64_t n = min_i64(TAP_BLOCK, channels - c);
        float sums[10 * TAP_BLOCK] = {0};
        float *buffer = buffers ? buffers + omp_get_thread_num() * per_thread : NULL;
        for (int64_t b = batch * part / parts; b < batch * (part + 1) / parts; b++) {
            const ActMap ax = {x, b * image + c, height, width, n, channels};
            const ActMap ay = {y, b * image + c, height, width, n, channels};
            const Map mx = map_rows(&ax, 0, height, buffer);
            const Map my =
                map_rows(&ay, 0, height, buffer ? buffer + height * width * TAP_BLOCK : NULL);
            taps_gradient(sums, sums + 9 * n, &mx, &my);
        }
        for (int64_t t = 0; t < 10; t++)
            memcpy(partial + (part * 10 + t) * channels + c, sums + t * n,
                   (size_t)n * sizeof *sums);
    }
    return STATUS_OK;
}

static Status dwconv3_taps(Device *d, Grad g, Grad sum_y, Tensor x, Tensor y, float alpha) {
    const int64_t batch = x.shape[0], channels = x.shape[3];
    const int64_t wanted = g.t.data ? tensor_count(g.t) / (9 * channels) : 1;
    const int64_t parts = wanted > 1 ? batch : min_i64(batch, BATCH_PARTS);
    float *partial, *turned;
    TRY(scratch_floats(d, parts * 10 * channels, &partial));
    TRY(scratch_floats(d, 9 * channels, &turned));
    TRY(taps_partial(d, x, y, parts, partial));
    if (sum_y.t.data) row_parts_sum(sum_y, partial + 9 * channels, parts, 10 * channels, channels);
    for (int64_t i = 0; g.t.data && i < wanted; i++) {
        for (int64_t c = 0; c < channels; c++) {
            for (int64_t t = 0; t < 9; t++) {
                float sum = 0.0f;
                for (int64_t p = wanted > 1 ? i : 0; p < (wanted > 1 ? i + 1 : parts); p++)
                    sum += partial[(p * 10 + t) * channels + c];
                turned[c * 9 + t] = alpha * sum;
            }
        }
        values_write(&g, i * 9 * channels, 9 * channels, turned);
    }
    return STATUS_OK;
}

Status dwconv3_taps_cpu(Device *d, Grad g, Grad sum_y, Tensor x, Tensor y, float alpha) {
    if (!g.t.data && !sum_y.t.data) return STATUS_OK;
    if (!act_dtype(x.dtype) || !act_dtype(y.dtype)) return refuse_dtype("dwconv3_taps", x.dtype);
    if (g.t.data && g.t.dtype != DTYPE_F32) return refuse_dtype("dwconv3_taps (g)", g.t.dtype);
    return scratch_done(d, dwconv3_taps(d, g, sum_y, x, y, alpha));
}

Status dwconv3_norm_cpu(Device *d, Tensor sum, Tensor y, Tensor stats, Tensor x, Tensor w,
                        Tensor bias, Tensor gain, Tensor shift, float eps) {
    TRY(dwconv3_cpu(d, grad_set(sum), x, w, bias, TAPS_CORRELATE, true));
    return layernorm_cpu(d, y, stats, sum, gain, shift, eps);
}

Status dwconv3_backward_cpu(Device *d, Grad dx, Grad dw, Grad sum_dy, Tensor dy, Tensor x, Tensor w,
                            bool add_input, Tensor scaled, Tensor scale) {
    TRY(dwconv3_taps_cpu(d, dw, sum_dy, x, dy, 1.0f));
    TRY(dwconv3_cpu(d, dx, dy, w, tensor_none(), TAPS_TRANSPOSE, add_input));
    if (!scaled.data || !dx.t.data) return STATUS_OK;
    return scale_rows_cpu(d, grad_set(scaled), dx.t, scale);
}
