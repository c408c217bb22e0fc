/* GLU branch of the ViTTT mixer: what its general and its tensor-core kernels share. */
#ifndef TTV_KERNELS_CUDA_GLU_CUH
#define TTV_KERNELS_CUDA_GLU_CUH

#include "kernels/cuda/common.cuh"

typedef struct GluArgs {
    int64_t batch;
    int heads, head_dim, tokens;
    int64_t pitch, cat_pitch; /* channels per token of qkv and cat; q, k, v begin at 0, C, 2C */
    float c;                  /* 1/(3N) (vittt.md 2.1) */
    const float *w1, *w2;     /* [nh,d,d] */
    float *g;                 /* [B,nh,2,d,d] or NULL */
    float *dw_partial;        /* backward: [parts][2][nh][d][d] or NULL */
    int parts;                /* backward: samples part, part+parts, ... go through one block */
} GluArgs;

static inline GluArgs glu_args(VitttShape s, Tensor w1, Tensor w2, Tensor g) {
    const int64_t wide = s.heads * s.head_dim;
    GluArgs a = {};
    a.batch = s.batch;
    a.heads = (int)s.heads;
    a.head_dim = (int)s.head_dim;
    a.tokens = (int)(s.height * s.width);
    a.pitch = 3 * wide + 3 * s.head_dim;
    a.cat_pitch = wide + s.head_dim;
    a.c = 1.0f / (3.0f * (float)a.tokens);
    a.w1 = (const float *)w1.data;
    a.w2 = (const float *)w2.data;
    a.g = (float *)g.data;
    return a;
}

/* silu and its derivatives from one logistic s (vittt.md 0), a = z s:
 * silu' = s + a (1-s), silu'' = (1-s) (2 s + a (1-2s)) = (1-s) (s + silu' - a s). */
static __device__ __forceinline__ void silu_slope(float z, float *a, float *d1) {
    const float s = logistic(z);
    *a = z * s;
    *d1 = *a * (1.0f - s) + s;
}
static __device__ __forceinline__ void silu_all(float z, float *a, float *d1, float *d2) {
    const float s = logistic(z), rest = 1.0f - s;
    *a = z * s;
    *d1 = *a * rest + s;
    *d2 = rest * (s + *d1 - *a * s);
}

/* The tensor-core kernels (vittt_glu_mma.cu): BF16, head width 32 or 64. */
bool glu_mma_fits(Device *d, VitttShape s, DType act, const void *p, const void *q);
Status glu_mma_forward(Device *d, GluArgs a, Tensor cat, Tensor qkv);
Status glu_mma_backward(Device *d, GluArgs a, Tensor dqkv, Tensor dcat, Tensor qkv);
int glu_mma_parts(Device *d, GluArgs a);

/* On Hopper's warpgroup products: the forward for heads of 64 (vittt_glu_wgmma.cu), the backward
 * (vittt_glu_wgmma_backward.cu). */
Status glu_wgmma_forward(Device *d, GluArgs a, Tensor cat, Tensor qkv);
Status glu_wgmma_backward(Device *d, GluArgs a, Tensor dqkv, Tensor dcat, Tensor qkv);

#endif
