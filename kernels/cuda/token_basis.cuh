/* The slot token_basis: for BF16 on Hopper three kernels, for everything else plain ones. */
#ifndef TTV_KERNELS_CUDA_TOKEN_BASIS_CUH
#define TTV_KERNELS_CUDA_TOKEN_BASIS_CUH

#include "kernels/cuda/common.cuh"

/* Matrices of n tokens of c elements; n and c are multiples of 64. */
typedef struct BasisSizes {
    int count, n, c;
} BasisSizes;

/* n that basis_factor takes. */
#define BASIS_MOST 1024

/* Bytes that basis_factor needs besides s. */
size_t basis_parts_bytes(BasisSizes b);
/* r and inv (BF16) from s[G,n,n] = xx' (F32), and what rounding took from inv, rounded, where it is
 * not 0 by its place: in blocks of 64 x 64 above the diagonal `rest` is not written. */
Status basis_factor(Device *d, BasisSizes b, bf16 *r, bf16 *inv, bf16 *rest, const float *s,
                    void *parts);
/* q = (inv + rest) x. */
Status basis_product(Device *d, BasisSizes b, bf16 *q, const bf16 *inv, const bf16 *rest,
                     const bf16 *x);

/* Any sizes and types, in F32. */
Status basis_any(Device *d, Tensor q, Tensor r, Tensor inv, Tensor x);

#endif
