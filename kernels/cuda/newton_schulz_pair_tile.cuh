/* A maker's part of newton_schulz_pair.cu: 64 rows of a matrix of 384 x 384 as left operand in
 * registers, 64 columns of a result at a time.
 */
#ifndef TTV_KERNELS_CUDA_NEWTON_SCHULZ_PAIR_TILE_CUH
#define TTV_KERNELS_CUDA_NEWTON_SCHULZ_PAIR_TILE_CUH

#include "kernels/cuda/wgmma.cuh"

#define SIZE   384
#define CHUNKS (SIZE / 64) /* of 64 columns of a result */

#if HAVE_SM90A

/* The left operand: 64 rows, 16 k for every four. */
typedef uint32_t Left[4 * SIZE / 16];

/* 64 columns of a result, rounded; in the same order they are part of a left operand. */
typedef uint32_t Packed[16];

/* A maker: its place, and the stage that it has come to. `own`: where the lane has its row of 8 for
 * the four 8 x 8 parts of 16 x 16 at the warp's rows, in the strip's first columns in shared memory
 * (as in tile_at). */
typedef struct Maker {
    Shared own;
    int which, rank, stage, round;
} Maker;

/* The same at columns 16 i of a chunk. */
static __device__ __forceinline__ Shared part_at(const Maker &w, int chunk, int i) {
    return (w.own ^ (Shared)(i << 5)) + chunk * TILE_BYTES;
}

/* A chunk of the left operand from what this warp, or the copy engine, wrote. */
template <int CHUNK> static __device__ __forceinline__ void left_get(Left &left, const Maker &w) {
#pragma unroll
    for (int i = 0; i < 4; i++) {
        uint32_t f[4];
        matrix_get(f, part_at(w, CHUNK, i));
#pragma unroll
        for (int k = 0; k < 4; k++) left[16 * CHUNK + 4 * i + k] = f[k];
    }
}

/* Accumulators 4 j + 2 e and the next one are row 16 warp + 8 e + lane / 4 of the strip and columns
 * 8 j + 2 (lane % 4) and the next one. */

/* Rounds alpha sum. */
static __device__ __forceinline__ void chunk_pack(Packed &f, float (&sum)[32], float alpha) {
    if (alpha != 1.0f) {
#pragma unroll
        for (int i = 0; i < 32; i++) sum[i] *= alpha;
    }
#pragma unroll
    for (int i = 0; i < 16; i++) f[i] = pack2(sum[2 * i], sum[2 * i + 1]);
}

/* Rounds c sum + b s + a I of a triple a, b, c; s where the result will be. */
static __device__ __forceinline__ void chunk_add(Packed &f, float (&sum)[32], const Maker &w,
                                                 int chunk, bool diagonal, const float *triple) {
    const float alpha = triple[2], beta = triple[1];
#pragma unroll
    for (int i = 0; i < 4; i++) {
        uint32_t s[4];
        matrix_get(s, part_at(w, chunk, i));
#pragma unroll
        for (int k = 0; k < 4; k++) {
            float *v = &sum[8 * i + 2 * k];
            v[0] = alpha * v[0] + beta * low_of(s[k]);
            v[1] = alpha * v[1] + beta * high_of(s[k]);
        }
    }
    if (diagonal) {
        const int lane = threadIdx.x & 31, row = threadIdx.x / 32 % 4 * 16 + lane / 4;
        const float gamma = triple[0];
#pragma unroll
        for (int i = 0; i < 32; i++)
            if (row + (i & 2) * 4 == i / 4 * 8 + lane % 4 * 2 + (i & 1)) sum[i] += gamma;
    }
#pragma unroll
    for (int i = 0; i < 16; i++) f[i] = pack2(sum[2 * i], sum[2 * i + 1]);
}

/* To the strip in shared memory. */
static __device__ __forceinline__ void chunk_put(const Packed &f, const Maker &w, int chunk) {
#pragma unroll
    for (int i = 0; i < 4; i++)
        asm volatile("stmatrix.sync.aligned.m8n8.x4.shared.b16 [%0], {%1,%2,%3,%4};" ::"r"(
                         part_at(w, chunk, i)),
                     "r"(f[4 * i]), "r"(f[4 * i + 1]), "r"(f[4 * i + 2]), "r"(f[4 * i + 3])
                     : "memory");
}

/* alpha sum in F32, `to` at the strip's first element of these columns. */
static __device__ __forceinline__ void chunk_put_wide(const float (&sum)[32], float *to,
                                                      float alpha) {
    const int lane = threadIdx.x & 31;
    to += (threadIdx.x / 32 % 4 * 16 + lane / 4) * SIZE + lane % 4 * 2;
#pragma unroll
    for (int j = 0; j < 8; j++) {
#pragma unroll
        for (int e = 0; e < 2; e++)
            *(float2 *)(to + 8 * e * SIZE + 8 * j) =
                make_float2(alpha * sum[4 * j + 2 * e], alpha * sum[4 * j + 2 * e + 1]);
    }
}

/* Sum of squares of all that the warp has. */
static __device__ __forceinline__ float left_square(const Left &left) {
    float sum[4] = {0.0f, 0.0f, 0.0f, 0.0f};
#pragma unroll
    for (int i = 0; i < 4 * SIZE / 16; i++) {
        const float x = low_of(left[i]), y = high_of(left[i]);
        sum[i % 4] = fmaf(x, x, fmaf(y, y, sum[i % 4]));
    }
    return warp_sum((sum[0] + sum[1]) + (sum[2] + sum[3]));
}

#endif /* HAVE_SM90A */

#endif
