/* Forward products of linear layers with what follows them in one kernel (Hopper, BF16): y[m,n] =
 * f(a[m,k] b[n,k]' + bias[n]).
 *
 * The product, plus bias, is rounded to BF16 before f, so results equal those of a product followed
 * by elementwise kernels.
 */
#ifndef TTV_KERNELS_CUDA_GEMM_FORWARD_CUH
#define TTV_KERNELS_CUDA_GEMM_FORWARD_CUH

#include "kernels/cuda/common.cuh"

typedef enum ForwardKind {
    FORWARD_GELU,     /* y = gelu(p); `other` (optional) = p */
    FORWARD_RESIDUAL, /* y = other + scale[row / rows_per_scale] p; y may be other */
} ForwardKind;

typedef struct ForwardCall {
    int64_t m, n, k;
    const void *a, *b;
    void *y, *other;
    const float *bias;  /* [n] or NULL */
    const float *scale; /* FORWARD_RESIDUAL: NULL: 1 */
    int64_t rows_per_scale;
    ForwardKind kind;
} ForwardCall;

/* Whether card, sizes and alignment suit this kernel, and it is the fastest way known. */
bool gemm_forward_fits(Device *d, const ForwardCall *g);
Status gemm_forward(Device *d, const ForwardCall *g);

#endif
