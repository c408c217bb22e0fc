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

/* How S lies between the two: [strip of 16 rows][block of 64 columns] at this number, in units of
 * 16 bytes, where the 16 x 64 values follow as eight accumulators of mma.cuh, 32 lanes each. */
#define BASIS_SUMS(strip, block, blocks) (((int64_t)(strip) * (blocks) + (block)) * 256)

/* s = xx' (F32, n n a matrix), at and below the diagonal. */
Status basis_gram(Device *d, BasisSizes b, float *s, const bf16 *x);
/* r and inv (BF16) from s, which is not kept, and what rounding took from inv, rounded; in blocks
 * of 64 x 64 above the diagonal `rest` is not written. */
Status basis_factor(Device *d, BasisSizes b, bf16 *r, bf16 *inv, bf16 *rest, float *s);
/* q = (inv + rest) x. */
Status basis_product(Device *d, BasisSizes b, bf16 *q, const bf16 *inv, const bf16 *rest,
                     const bf16 *x);

/* Any sizes and types, in F32. */
Status basis_any(Device *d, Tensor q, Tensor r, Tensor inv, Tensor x);

#endif
