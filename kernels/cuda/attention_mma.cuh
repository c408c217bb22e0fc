/* Pieces of attention on tensor cores (attention_mma.cu, attention_mma_backward.cu).
 *
 * Products take q, k, v as they lie in memory. A score is rate_i rate_j sum_c w_c q_ic k_jc, w the
 * product of both norms' weights: w goes into the operand that stays in registers, the rates are
 * factors of rows and columns of scores in F32.
 */
#ifndef TTV_KERNELS_CUDA_ATTENTION_MMA_CUH
#define TTV_KERNELS_CUDA_ATTENTION_MMA_CUH

#include "kernels/cuda/attention.cuh"
#include "kernels/cuda/mma.cuh"

#define HEAD   64
#define CHUNKS 8  /* of 16 bytes in a row */
#define STEP   64 /* keys of a tile of the forward, queries of one of the backward */

static __device__ __forceinline__ uint4 chunk_get(Shared at) {
    uint4 x;
    asm volatile("ld.shared.v4.u32 {%0,%1,%2,%3}, [%4];"
                 : "=r"(x.x), "=r"(x.y), "=r"(x.z), "=r"(x.w)
                 : "r"(at)
                 : "memory");
    return x;
}

static __device__ __forceinline__ float square_sum(uint32_t x) {
    return low_of(x) * low_of(x) + high_of(x) * high_of(x);
}
static __device__ __forceinline__ float square_sum(const uint4 &x) {
    return square_sum(x.x) + square_sum(x.y) + square_sum(x.z) + square_sum(x.w);
}
static __device__ __forceinline__ float dot2(uint32_t x, uint32_t y) {
    return low_of(x) * low_of(y) + high_of(x) * high_of(y);
}
static __device__ __forceinline__ float dot(const uint4 &x, const uint4 &y) {
    return dot2(x.x, y.x) + dot2(x.y, y.y) + dot2(x.z, y.z) + dot2(x.w, y.w);
}

/* 1/sqrt of the mean square; 1 without norms. */
static __device__ __forceinline__ float rate_of(const AttentionArgs &a, float squares) {
    return a.q_w ? rsqrtf(squares * (1.0f / HEAD) + a.eps) : 1.0f;
}

/* Both norms' weights of channels c, c + 1. */
static __device__ __forceinline__ float2 weights_at(const AttentionArgs &a, int c) {
    if (!a.q_w) return make_float2(1, 1);
    return make_float2(a.q_w[c] * a.k_w[c], a.q_w[c + 1] * a.k_w[c + 1]);
}

/* Starts copying 64-channel rows first.. of a matrix with `pitch` elements between rows; zeros
 * where there is no such token. */
template <int ROWS, int THREADS>
static __device__ __forceinline__ void rows_fetch(Shared to, const bf16 *from, int64_t pitch,
                                                  int first, int tokens) {
#pragma unroll
    for (int i = 0; i < ROWS * CHUNKS / THREADS; i++) {
        const int at = i * THREADS + threadIdx.x, row = at / CHUNKS, chunk = at % CHUNKS;
        const bool real = first + row < tokens;
        copy_chunk(tile_at(to, row, chunk),
                   from + (real ? first + row : 0) * pitch + chunk * (HEAD / CHUNKS), real);
    }
}

/* Multiplies an A operand of 16 rows (four steps of 16 channels) by the weights; sums of squares of
 * its rows r and r + 8, before that. */
static __device__ __forceinline__ void operand_weigh(uint32_t (&f)[4][4], float (&squares)[2],
                                                     const AttentionArgs &a, int lane) {
    squares[0] = squares[1] = 0;
#pragma unroll
    for (int k = 0; k < 4; k++) {
#pragma unroll
        for (int i = 0; i < 4; i++) squares[i & 1] += square_sum(f[k][i]);
        if (!a.q_w) continue;
#pragma unroll
        for (int part = 0; part < 2; part++) {
            const float2 w = weights_at(a, k * 16 + part * 8 + 2 * (lane & 3));
#pragma unroll
            for (int i = 2 * part; i < 2 * part + 2; i++)
                f[k][i] = pack2(low_of(f[k][i]) * w.x, high_of(f[k][i]) * w.y);
        }
    }
    squares[0] = quad_sum(squares[0]);
    squares[1] = quad_sum(squares[1]);
}

/* Writes ROWS rows of a warp's region of a tile, `chunks` chunks of each from `chunk` on, to rows
 * `pitch` elements apart that begin at `to`. */
template <int ROWS, int COUNT>
static __device__ __forceinline__ void rows_store(bf16 *to, int64_t pitch, Shared tile, int row0,
                                                  int chunk, int left, int lane) {
#pragma unroll
    for (int i = 0; i < ROWS * COUNT / 32; i++) {
        const int at = i * 32 + lane, row = at / COUNT, c = chunk + at % COUNT;
        if (row >= left) continue;
        *reinterpret_cast<uint4 *>(to + row * pitch + c * (HEAD / CHUNKS)) =
            chunk_get(tile_at(tile, row0 + row, c));
    }
}

#endif
