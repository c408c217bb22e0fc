/* Strips of 16 rows as operands of tensor-core products, each number as two FP16 parts (22 bits):
 * numbers are scaled so that their size is known, and three products of the parts have the accuracy
 * of F32.
 *
 * An image is 16 x 64 numbers: [part][16 x 16 tile][lane], each a lane's fragment of 16 bytes. It
 * serves as A, and as B of 16 columns whose k run along its rows.
 */
#ifndef TTV_KERNELS_CUDA_TOKEN_BASIS_PARTS_CUH
#define TTV_KERNELS_CUDA_TOKEN_BASIS_PARTS_CUH

#include <cuda_fp16.h>

#include "kernels/cuda/mma.cuh"

#define STRIP 16  /* rows */
#define IMAGE 256 /* chunks of 16 bytes */
#define LOW   128 /* where the lower parts begin */

/* Accumulators of a strip: 16 x 64. */
typedef float Sums[8][4];

static __device__ __forceinline__ void parts_of(uint32_t &high, uint32_t &low, float a, float b) {
    const __half2 h = __floats2half2_rn(a, b);
    const float2 back = __half22float2(h);
    const __half2 l = __floats2half2_rn(a - back.x, b - back.y);
    high = *reinterpret_cast<const uint32_t *>(&h);
    low = *reinterpret_cast<const uint32_t *>(&l);
}

/* rate x two neighbouring accumulators, as an operand. */
static __device__ __forceinline__ void tile_parts(uint4 &high, uint4 &low, const float (&a)[4],
                                                  const float (&b)[4], float rate) {
    parts_of(high.x, low.x, rate * a[0], rate * a[1]);
    parts_of(high.y, low.y, rate * a[2], rate * a[3]);
    parts_of(high.z, low.z, rate * b[0], rate * b[1]);
    parts_of(high.w, low.w, rate * b[2], rate * b[3]);
}

static __device__ __forceinline__ void half_mma(float (&d)[4], const uint4 &a, uint32_t b0,
                                                uint32_t b1) {
    asm volatile("mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 {%0,%1,%2,%3}, "
                 "{%4,%5,%6,%7}, {%8,%9}, {%0,%1,%2,%3};"
                 : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
                 : "r"(a.x), "r"(a.y), "r"(a.z), "r"(a.w), "r"(b0), "r"(b1));
}

/* 16 columns of d += a b'; `to` is the first of two neighbouring accumulators. */
static __device__ __forceinline__ void
tile_multiply(float (*to)[4], const uint4 &ah, const uint4 &al, const uint4 &bh, const uint4 &bl) {
    half_mma(to[0], ah, bh.x, bh.z);
    half_mma(to[1], ah, bh.y, bh.w);
    half_mma(to[0], al, bh.x, bh.z);
    half_mma(to[1], al, bh.y, bh.w);
    half_mma(to[0], ah, bl.x, bl.z);
    half_mma(to[1], ah, bl.y, bl.w);
}

/* The transpose of a packed 8 x 8. */
static __device__ __forceinline__ uint32_t turned(uint32_t v) {
    uint32_t t;
    asm volatile("movmatrix.sync.aligned.m8n8.trans.b16 %0, %1;" : "=r"(t) : "r"(v));
    return t;
}

#endif
