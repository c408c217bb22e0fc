/* Layer norm of a row that a warp holds in registers: what norm.cu and cpe.cu share. */
#ifndef TTV_KERNELS_CUDA_NORM_CUH
#define TTV_KERNELS_CUDA_NORM_CUH

#include "kernels/cuda/common.cuh"

/* V (4 or 8) floats at a 16-byte boundary. */
template <int V>
static __device__ __forceinline__ void floats_load(float (&out)[V], const float *p) {
#pragma unroll
    for (int q = 0; q < V; q += 4) {
        const float4 f = *reinterpret_cast<const float4 *>(p + q);
        out[q] = f.x, out[q + 1] = f.y, out[q + 2] = f.z, out[q + 3] = f.w;
    }
}

/* Element i of 16 bytes of T. */
template <typename T> static __device__ __forceinline__ float raw_value(const uint4 &raw, int i) {
    const uint32_t words[4] = {raw.x, raw.y, raw.z, raw.w};
    if (sizeof(T) == sizeof(float)) return __uint_as_float(words[i]);
    return __uint_as_float(i % 2 ? words[i / 2] & 0xffff0000u : words[i / 2] << 16);
}

typedef struct NormArgs {
    const float *w, *b;
    int width;
    float inverse; /* 1 / width */
    float eps;
} NormArgs;

static inline NormArgs norm_args(Tensor w, Tensor b, int64_t width, float eps) {
    return {(const float *)w.data, (const float *)b.data, (int)width, 1.0f / (float)width, eps};
}

/* y[width] (or NULL) and stats[2] (or NULL) of a row. The row's pack p of a lane, 16 bytes as they
 * lie in memory, begins at channel (p * 32 + lane) * V; packs from `width` on are zeros. Values are
 * unpacked again for each of the three passes, which takes fewer registers than keeping them. */
template <typename T, int PACKS>
static __device__ __forceinline__ void row_norm(T *y, float *stats, const uint4 (&raw)[PACKS],
                                                const NormArgs &g, int lane) {
    const int V = 16 / sizeof(T);
    float sum = 0, square = 0;
#pragma unroll
    for (int p = 0; p < PACKS; p++)
#pragma unroll
        for (int i = 0; i < V; i++) sum += raw_value<T>(raw[p], i);
    const float mean = warp_sum(sum) * g.inverse;
#pragma unroll
    for (int p = 0; p < PACKS; p++) {
        if ((p * 32 + lane) * V >= g.width) break;
#pragma unroll
        for (int i = 0; i < V; i++) {
            const float u = raw_value<T>(raw[p], i) - mean;
            square += u * u;
        }
    }
    const float rstd = rsqrtf(warp_sum(square) * g.inverse + g.eps);
#pragma unroll
    for (int p = 0; p < PACKS; p++) {
        const int c = (p * 32 + lane) * V;
        if (c >= g.width || !y) break;
        float wv[V], bv[V], out[V];
        floats_load<V>(wv, g.w + c);
        floats_load<V>(bv, g.b + c);
#pragma unroll
        for (int i = 0; i < V; i++)
            out[i] = (raw_value<T>(raw[p], i) - mean) * rstd * wv[i] + bv[i];
        pack_store<T, V>(y + c, out);
    }
    if (stats && lane == 0) *reinterpret_cast<float2 *>(stats) = make_float2(mean, rstd);
}

/* Packs of V per lane that hold a row; 0: the row takes a general kernel. */
static inline int row_packs(int64_t width, int V) {
    if (width % V || width > 1024) return 0;
    const int packs = (int)ceil_div(width, 32 * V);
    return packs <= 4 ? packs : packs <= 6 ? 6 : 8;
}

/* Runs the statements with PACKS = row_packs(); BF16 rows have at most 4. */
#define WITH_PACKS(packs, T, PACKS, ...)                                                           \
    do {                                                                                           \
        switch (packs) {                                                                           \
        case 1: {                                                                                  \
            const int PACKS = 1;                                                                   \
            __VA_ARGS__;                                                                           \
        } break;                                                                                   \
        case 2: {                                                                                  \
            const int PACKS = 2;                                                                   \
            __VA_ARGS__;                                                                           \
        } break;                                                                                   \
        case 3: {                                                                                  \
            const int PACKS = 3;                                                                   \
            __VA_ARGS__;                                                                           \
        } break;                                                                                   \
        case 4: {                                                                                  \
            const int PACKS = 4;                                                                   \
            __VA_ARGS__;                                                                           \
        } break;                                                                                   \
        case 6: {                                                                                  \
            const int PACKS = sizeof(T) == sizeof(float) ? 6 : 4;                                  \
            __VA_ARGS__;                                                                           \
        } break;                                                                                   \
        default: {                                                                                 \
            const int PACKS = sizeof(T) == sizeof(float) ? 8 : 4;                                  \
            __VA_ARGS__;                                                                           \
        } break;                                                                                   \
        }                                                                                          \
    } while (0)

#endif
