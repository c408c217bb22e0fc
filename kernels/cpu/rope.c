/* Rotary positions of queries and keys in packed projections (vittt.md 4.3). */
#include "kernels/cpu/table.h"
#include "kernels/cpu/values.h"

/* `pairs` pairs of a row, turned. */
static void turn(float *out, const float *in, const float *table, int64_t pairs, float sign) {
    for (int64_t i = 0; i < pairs; i++) {
        const float c = table[2 * i], s = sign * table[2 * i + 1];
        const float u = in[2 * i], v = in[2 * i + 1];
        out[2 * i] = u * c - v * s;
        out[2 * i + 1] = v * c + u * s;
    }
}

Status rope_cpu(Device *d, Grad y, Tensor x, Tensor table, bool back) {
    (void)d;
    if (!y.t.data) return STATUS_OK;
    if (!act_dtype(x.dtype) || y.t.dtype != x.dtype) return refuse_dtype("rope", x.dtype);
    const int64_t rows = tensor_rows(x), packed = tensor_last(x);
    const int64_t tokens = table.shape[0], width = 2 * table.shape[1];
    const float sign = back ? -1.0f : 1.0f;
#pragma omp parallel for schedule(static) if (rows * packed >= PARALLEL_MIN)
    for (int64_t r = 0; r < rows; r++) {
        const float *angles = (const float *)table.data + r % tokens * width;
        for (int64_t c = 0, n; c < packed; c += n) {
            float in_buffer[CHUNK], out[CHUNK];
            const int64_t border = c < width ? width : c < 2 * width ? 2 * width : packed;
            n = min_i64(CHUNK, border - c);
            const float *in = values_read(&x, r * packed + c, n, in_buffer);
            if (c < 2 * width)
                turn(out, in, angles + c % width, n / 2, sign);
            else
                memcpy(out, in, (size_t)n * sizeof *out);
            values_write(&y, r * packed + c, n, out);
        }
    }
    return STATUS_OK;
}
