/* What the products written for Hopper share: tiles, the ring of stages, descriptions of matrices
 * for the copy engine. */
#ifndef TTV_KERNELS_CUDA_GEMM_RING_CUH
#define TTV_KERNELS_CUDA_GEMM_RING_CUH

#include "kernels/cuda/wgmma.cuh"

#define ROWS         128 /* of a block's tile */
#define DEPTH        64  /* k per stage */
#define CLUSTER      2   /* blocks, on neighbouring rows */
#define A_BYTES      (ROWS * 128)
#define SHARED_LIMIT (227 * 1024)
#if !defined(__CUDA_ARCH__) || __CUDA_ARCH__ >= 900
#define IN_CLUSTERS __cluster_dims__(CLUSTER, 1, 1)
#else
#define IN_CLUSTERS /* an empty kernel that is never run */
#endif

/* Describes a BF16 matrix [rows, columns], read in boxes of box_rows x 64. */
Status map_matrix(CUtensorMap *map, const void *p, int64_t rows, int64_t columns, int box_rows);

#if HAVE_SM90A

/* Where a role is in the ring. */
typedef struct Turn {
    int stage, phase;
} Turn;

template <int STAGES> static __device__ __forceinline__ void turn_next(Turn &t) {
    if (++t.stage == STAGES) {
        t.stage = 0;
        t.phase ^= 1;
    }
}

#endif

#endif
