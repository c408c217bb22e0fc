/* Depthwise branch of the ViTTT mixer: what its tiled kernels and the plain ones share. */
#ifndef TTV_KERNELS_CUDA_DWC_CUH
#define TTV_KERNELS_CUDA_DWC_CUH

#include "kernels/cuda/common.cuh"

typedef struct DwcArgs {
    int64_t pitch, cat_pitch; /* channels per token of qkv and cat */
    int64_t first, cat_first; /* where q2 and the branch's output begin */
    int channels, height, width;
    float c; /* 1/(3N) */
} DwcArgs;

static inline DwcArgs dwc_args(VitttShape s) {
    const int64_t wide = s.heads * s.head_dim;
    DwcArgs a = {};
    a.pitch = 3 * wide + 3 * s.head_dim;
    a.cat_pitch = wide + s.head_dim;
    a.first = 3 * wide;
    a.cat_first = wide;
    a.channels = (int)s.head_dim;
    a.height = (int)s.height;
    a.width = (int)s.width;
    a.c = 1.0f / (3.0f * (float)(s.height * s.width));
    return a;
}

/* g -> w' = w - g/(n+1), n the norm of the nine. */
static __device__ __forceinline__ void dwc_inner_step(float (&g)[9], const float *w) {
    float square = 0;
#pragma unroll
    for (int t = 0; t < 9; t++) square += g[t] * g[t];
    const float r = 1.0f / (sqrtf(square) + 1.0f);
#pragma unroll
    for (int t = 0; t < 9; t++) g[t] = w[t] - r * g[t];
}

/* dw' -> dg (vittt.md 3.2). */
static __device__ __forceinline__ void dwc_inner_backward(float (&dw)[9], const float (&g)[9]) {
    float square = 0, sum = 0;
#pragma unroll
    for (int t = 0; t < 9; t++) {
        square += g[t] * g[t];
        sum -= g[t] * dw[t];
    }
    const float n = sqrtf(square), r = 1.0f / (n + 1.0f);
    const float back = n > 0 ? r * r * sum / n : 0.0f;
#pragma unroll
    for (int t = 0; t < 9; t++) dw[t] = -r * dw[t] - back * g[t];
}

/* Any size and alignment. */
template <typename T>
Status dwc_any_forward(Device *d, VitttShape s, const DwcArgs &a, T *cat, float *g, const T *qkv,
                       const float *w3);
template <typename T>
Status dwc_any_backward(Device *d, VitttShape s, const DwcArgs &a, T *dqkv, float *dw3_partial,
                        const T *dcat, const T *qkv, const float *g, const float *w3);

#endif
