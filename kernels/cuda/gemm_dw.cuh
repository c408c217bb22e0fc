/* Weight gradients of linear layers on Hopper: dw[O,I] (+)= dy' x over many rows, BF16 operands,
 * F32 result, and the bias gradient as a by-product.
 *
 * All clusters get equal shares of all tiles' depth, laid end to end ("stream-K"), so no card waits
 * for a last, half-empty wave. What a cluster has of a tile is a partial sum in memory; a second
 * kernel adds those of a tile in order of depth. So the numbers depend on the sizes and the card's
 * multiprocessors alone.
 */
#ifndef TTV_KERNELS_CUDA_GEMM_DW_CUH
#define TTV_KERNELS_CUDA_GEMM_DW_CUH

#include "kernels/cuda/common.cuh"

typedef struct DwCall {
    int64_t rows, outputs, inputs;
    const void *dy, *x;
    float *dw, *dbias; /* dbias NULL: none */
    bool add, add_bias;
} DwCall;

/* Whether the card, the sizes and the alignment suit this kernel. */
bool gemm_dw_fits(Device *d, const DwCall *g);
/* Takes scratch. */
Status gemm_dw(Device *d, const DwCall *g);

#endif
