/* Products of linear layers with what follows them in one kernel (Hopper, BF16): y[m,n] = f(a[m,k]
 * b), b[n,k]' (the weights of a layer, forward) or b[k,n] (its input gradient).
 *
 * The product, plus bias, is rounded to BF16 before f, so results equal those of a product followed
 * by elementwise kernels.
 */
#ifndef TTV_KERNELS_CUDA_GEMM_FUSED_CUH
#define TTV_KERNELS_CUDA_GEMM_FUSED_CUH

#include "kernels/cuda/common.cuh"

typedef enum FusedKind {
    FUSED_PLAIN,     /* y = p */
    FUSED_GELU,      /* forward: y = gelu(p); `other` (optional) = p */
    FUSED_GELU_KEEP, /* within the kernel: the one with `other` */
    FUSED_DGELU,     /* input gradient: y = p gelu'(other) */
    FUSED_RESIDUAL,  /* forward: y = other + scale p; `other` may be y */
    FUSED_MOMENTS,   /* within the kernel: the same without scale, with `moments` */
} FusedKind;

typedef struct FusedCall {
    int64_t m, n, k;
    const void *a, *b;
    void *y, *other;
    const float *bias;  /* [n] or NULL */
    const float *stats; /* of FUSED_PLAIN, FUSED_GELU: [m][2] or NULL; row r of a b' is taken
                           stats[r][1] times before the bias is added */
    const float *scale; /* [m / rows_per_scale] or NULL: 1 */
    int64_t rows_per_scale;
    float *sums; /* of FUSED_DGELU: [gemm_fused_sums(m)][n], column sums of y by parts; or NULL */
    float *moments; /* of FUSED_RESIDUAL: [m][gemm_fused_moments(n)][2], of each row the sum of y
                       and of its squares by parts of GEMM_FUSED_PART columns; or NULL */
    FusedKind kind;
} FusedCall;

/* Sets b->sm90a. */
Status gemm_fused_probe(CudaBackend *b);

/* Whether the card, the sizes and the alignment suit this kernel. */
bool gemm_fused_fits(Device *d, const FusedCall *g);
Status gemm_fused(Device *d, const FusedCall *g);
/* Parts of the column sums. */
int64_t gemm_fused_sums(int64_t m);
/* Parts of a row's moments. */
#define GEMM_FUSED_PART 256
int64_t gemm_fused_moments(int64_t n);
/* Whether forward products of these sizes are this kernel's. */
bool gemm_fused_folds(Device *d, int64_t m, int64_t n, int64_t k);

#endif
