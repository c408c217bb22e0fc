/* What products of few rows do with their sums (few_rows.cu): bias, function, residual, factors. */
#ifndef TTV_KERNELS_CUDA_FEW_ROWS_END_CUH
#define TTV_KERNELS_CUDA_FEW_ROWS_END_CUH

#include "kernels/cuda/few_rows_tile.cuh"

#if HAVE_SM90A

/* Element pairs of the thread: parts of 8 columns, rows r and r + 8. */
typedef struct Place {
    int row, column, pitch;
} Place;

template <int COUNT>
static __device__ __forceinline__ void residual_get(uint32_t (&x)[COUNT][2], const FewArgs &g,
                                                    const Place &at) {
#pragma unroll
    for (int j = 0; j < COUNT; j++)
#pragma unroll
        for (int half = 0; half < 2; half++) {
            const int row = at.row + 8 * half, c = at.column + 8 * j;
            x[j][half] = 0;
            if (row < g.m && c < g.n)
                x[j][half] =
                    *reinterpret_cast<const uint32_t *>(g.residual + (int64_t)row * g.n + c);
        }
}

/* Factors of the thread's columns. */
template <int COUNT>
static __device__ __forceinline__ void columns_get(float2 (&w)[COUNT], const FewArgs &g,
                                                   const Place &at) {
#pragma unroll
    for (int j = 0; j < COUNT; j++) {
        const int c = at.column + 8 * j;
        w[j] = make_float2(1, 1);
        if (g.column_w && c < g.n) w[j] = *reinterpret_cast<const float2 *>(g.column_w + c);
    }
}

/* A pair of y: bias, rounding, function, residual. */
template <int END>
static __device__ __forceinline__ uint32_t pair_of(float u, float v, const float2 &bias,
                                                   uint32_t residual) {
    u += bias.x;
    v += bias.y;
    if (END == END_RESIDUAL) return pack2(u + low_of(residual), v + high_of(residual));
    const uint32_t p = pack2(u, v);
    if (END == END_GELU) return pack2(gelu_quick(low_of(p)), gelu_quick(high_of(p)));
    if (END == END_SILU)
        return pack2(low_of(p) * logistic(low_of(p)), high_of(p) * logistic(high_of(p)));
    return p;
}

static __device__ __forceinline__ constexpr bool leaves_sums(int end) {
    return end == END_SILU || end == END_RESIDUAL || end == END_COLUMN;
}

/* What a product's rows are multiplied by and, of a norm, which part of the columns' shifts is
 * added. */
typedef struct Factors {
    float2 row[2];      /* of rows r and r + 8 */
    const float *shift; /* [4][WIDTH], to be summed, of the block's columns */
} Factors;

/* Writes the thread's pairs; `total`: sums of the values and squares of both rows. */
template <int COUNT, int FORM, int END>
static __device__ __forceinline__ void
finish(const float *sum, const uint32_t (&x)[COUNT][2], const float2 (&w)[COUNT], const FewArgs &g,
       const Place &at, int n0, const Factors &f, float2 (&total)[2]) {
#pragma unroll
    for (int j = 0; j < COUNT; j++) {
        const int c = at.column + 8 * j;
        if (c >= g.n) continue; /* n is a multiple of 8 */
        float2 bias = make_float2(0, 0), shift = make_float2(0, 0);
        if (g.bias) bias = *reinterpret_cast<const float2 *>(g.bias + c);
        if (FORM == FORM_NORM) {
#pragma unroll
            for (int i = 0; i < 4; i++) {
                const float2 part =
                    *reinterpret_cast<const float2 *>(f.shift + i * 8 * COUNT + c - n0);
                shift.x += part.x;
                shift.y += part.y;
            }
        }
#pragma unroll
        for (int half = 0; half < 2; half++) {
            const int row = at.row + 8 * half;
            float u = sum[4 * j + 2 * half], v = sum[4 * j + 2 * half + 1];
            if (END == END_RESIDUAL || FORM == FORM_NORM) {
                u = fmaf(u, f.row[half].x, f.row[half].y * shift.x);
                v = fmaf(v, f.row[half].x, f.row[half].y * shift.y);
            }
            if (END == END_SIGMOID) {
                if (row < g.m)
                    *reinterpret_cast<float2 *>((float *)g.y + (int64_t)row * g.n + c) =
                        make_float2(logistic(u + bias.x), logistic(v + bias.y));
                continue;
            }
            uint32_t y = pair_of<END>(u, v, bias, x[j][half]);
            if (leaves_sums(END)) {
                const float low = low_of(y), high = high_of(y);
                total[half].x += low + high;
                total[half].y = fmaf(low, low, fmaf(high, high, total[half].y));
                if (END == END_COLUMN) y = pack2(low * w[j].x, high * w[j].y);
                if (END == END_RESIDUAL && g.weighed && row < g.m)
                    *reinterpret_cast<uint32_t *>(g.weighed + (int64_t)row * g.n + c) =
                        pack2(low * w[j].x, high * w[j].y);
            }
            if (row < g.m) *reinterpret_cast<uint32_t *>(g.y + (int64_t)row * g.n + c) = y;
        }
    }
}

/* Sums of the thread's rows over the block's columns, to part `part`. */
static __device__ __forceinline__ void totals_put(const FewArgs &g, const float2 (&total)[2],
                                                  const Place &at, int part, int lane) {
#pragma unroll
    for (int half = 0; half < 2; half++) {
        const float2 all = make_float2(quad_sum(total[half].x), quad_sum(total[half].y));
        const int row = at.row + 8 * half;
        if ((lane & 3) == 0 && row < g.m) g.sums_out[(int64_t)part * g.m + row] = all;
    }
}

/* finish() of a gate: COUNT parts of the left half, then as many of the right one. */
template <int COUNT>
static __device__ __forceinline__ void finish_gate(const float *sum, const FewArgs &g,
                                                   const Place &at, const Factors &f) {
#pragma unroll
    for (int j = 0; j < COUNT; j++)
#pragma unroll
        for (int half = 0; half < 2; half++) {
            const int row = at.row + 8 * half, i = 4 * j + 2 * half, k = i + 4 * COUNT;
            const uint32_t a = pack2(f.row[half].x * sum[i], f.row[half].x * sum[i + 1]);
            const uint32_t b = pack2(f.row[half].x * sum[k], f.row[half].x * sum[k + 1]);
            const uint32_t y = pack2(low_of(a) * logistic(low_of(a)) * low_of(b),
                                     high_of(a) * logistic(high_of(a)) * high_of(b));
            if (row < g.m)
                *reinterpret_cast<uint32_t *>(g.y + (int64_t)row * at.pitch + at.column + 8 * j) =
                    y;
        }
}

#endif

#endif
