/* Strips of 16 rows as operands of tensor-core products, each number as two FP16 parts (22 bits):
 * numbers are scaled so that their size is known, and three products of the parts have the accuracy
 * of F32.
 *
 * An image is 16 x 64 numbers: [part][16 x 16 tile][lane], each a lane's fragment of 16 bytes. It
 * serves as A, and as B of 16 columns whose k run along its rows. As it lies in memory the two
 * operands of B are neighbours (registers of an operand must be); A has its middle words turned.
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
    asm("mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 {%0,%1,%2,%3}, "
        "{%4,%5,%6,%7}, {%8,%9}, {%0,%1,%2,%3};"
        : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
        : "r"(a.x), "r"(a.y), "r"(a.z), "r"(a.w), "r"(b0), "r"(b1));
}

/* A's words from those in memory, and back. */
static __device__ __forceinline__ uint4 chunk_turn(uint4 v) {
    return make_uint4(v.x, v.z, v.y, v.w);
}

/* d += a b' for COUNT strips and 16 WIDE columns, b as it lies in memory, a tile after the other
 * IMAGE chunks apart: products that add to the same sum are as far apart as they can be, for each
 * waits for the one before. */
template <int COUNT, int WIDE, int STRIDE>
static __device__ __forceinline__ void tiles_multiply(float (*const (&to)[COUNT])[4],
                                                      const uint4 (&high)[COUNT],
                                                      const uint4 (&low)[COUNT], const uint4 *b) {
    uint4 bh[WIDE], bl[WIDE];
#pragma unroll
    for (int j = 0; j < WIDE; j++) bh[j] = b[j * STRIDE], bl[j] = b[j * STRIDE + LOW];
#pragma unroll
    for (int part = 0; part < 3; part++)
#pragma unroll
        for (int p = 0; p < COUNT; p++)
#pragma unroll
            for (int j = 0; j < WIDE; j++) {
                const uint4 &v = part == 2 ? bl[j] : bh[j];
                const uint4 &a = part == 1 ? low[p] : high[p];
                half_mma(to[p][2 * j], a, v.x, v.y);
                half_mma(to[p][2 * j + 1], a, v.z, v.w);
            }
}

/* The transpose of a packed 8 x 8. */
static __device__ __forceinline__ uint32_t turned(uint32_t v) {
    uint32_t t;
    asm("movmatrix.sync.aligned.m8n8.trans.b16 %0, %1;" : "=r"(t) : "r"(v));
    return t;
}

#endif
