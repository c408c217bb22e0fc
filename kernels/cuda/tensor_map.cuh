/* Descriptions of matrices and boxes for Hopper's copy engine. */
#ifndef TTV_KERNELS_CUDA_TENSOR_MAP_CUH
#define TTV_KERNELS_CUDA_TENSOR_MAP_CUH

#include <cuda.h>

#include "kernels/cuda/common.cuh"

/* Numbers from p on in `rank` dimensions, the first of them dense, to be copied in boxes; what lies
 * outside arrives as zeros. size and box have `rank` values in elements, pitches has rank - 1 in
 * bytes (from one to the next of the second dimension, the third, ...). STATUS_DEVICE when the
 * driver has no such function, or refuses. */
Status tensor_map(CUtensorMap *map, CUtensorMapDataType type, int rank, const void *p,
                  const cuuint64_t *size, const cuuint64_t *pitches, const cuuint32_t *box,
                  CUtensorMapSwizzle swizzle, CUtensorMapL2promotion promotion);
/* The same of a BF16 matrix [rows, columns], in boxes of box_rows x 64. */
Status map_matrix(CUtensorMap *map, const void *p, int64_t rows, int64_t columns, int box_rows);
/* In boxes of box_rows x 32, which lie as operand_narrow (wgmma.cuh) has them. */
Status map_narrow(CUtensorMap *map, const void *p, int64_t rows, int64_t columns, int box_rows);

#endif
