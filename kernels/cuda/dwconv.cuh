/* Depthwise 3x3: what the tiled kernels (dwconv.cu) and the plain ones (dwconv_any.cu) share. */
#ifndef TTV_KERNELS_CUDA_DWCONV_CUH
#define TTV_KERNELS_CUDA_DWCONV_CUH

#include "kernels/cuda/common.cuh"

typedef struct ConvArgs {
    const float *w, *bias; /* w[Bw,C,9]; bias[C] or NULL */
    int64_t w_step;        /* from one sample's taps to the next; 0: shared */
    bool transpose, add_input, put_add;
} ConvArgs;

typedef struct TapsArgs {
    float *partial; /* [part][stride] */
    int64_t stride;
    bool per_sample, sums;
} TapsArgs;

/* The taps of V channels from channel c: reversed for the adjoint, 1 more in the middle for the
 * input. */
template <int V>
static __device__ __forceinline__ void conv_taps(float (&w)[9][V], float (&bias)[V],
                                                 const ConvArgs &g, int64_t b, int64_t c) {
    const float *taps = g.w + b * g.w_step + c * 9;
#pragma unroll
    for (int v = 0; v < V; v++) {
#pragma unroll
        for (int t = 0; t < 9; t++) w[t][v] = taps[v * 9 + (g.transpose ? 8 - t : t)];
        if (g.add_input) w[4][v] += 1.0f;
        bias[v] = g.bias ? g.bias[c + v] : 0.0f;
    }
}

/* The block's joined sums (rows_join) of V channels from c to its part's place. */
template <int V>
static __device__ __forceinline__ void taps_put(const float *joined, int64_t c, int64_t channels,
                                                const TapsArgs &g) {
    float *part = g.partial + blockIdx.x * g.stride;
    if (c >= channels) return;
    for (int i = threadIdx.y; i < 10 * V; i += blockDim.y) {
        const int t = i / V, v = i % V;
        if (t == 9 && !g.sums) continue;
        part[t < 9 ? (c + v) * 9 + t : channels * 9 + c + v] = joined[i * blockDim.x + threadIdx.x];
    }
}

/* Any size and alignment. */
Status dwconv3_any(Device *d, Tensor y, Tensor x, ConvArgs g);
Status dwconv3_taps_any(Device *d, Tensor x, Tensor y, TapsArgs *g, unsigned *parts);

#endif
