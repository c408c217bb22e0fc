/* Pieces of both backwards of attention by warpgroups: products of 64 x 64, rows of a head, the
 * norms. */
#ifndef TTV_KERNELS_CUDA_ATTENTION_HOPPER_BACKWARD_CUH
#define TTV_KERNELS_CUDA_ATTENTION_HOPPER_BACKWARD_CUH

#include "kernels/cuda/attention_hopper.cuh"

/* Rows of packed, dout and o of a head, as the copy engine takes them. */
typedef struct HeadMaps {
    CUtensorMap packed, dout, o;
} HeadMaps;

/* Boxes of box_rows of packed and dout, of a window of o. */
static inline Status head_maps(HeadMaps *maps, const AttentionArgs &a, int64_t windows,
                               int box_rows) {
    const int64_t rows = windows * a.tokens, width = (int64_t)a.heads * HEAD;
    TRY(map_matrix(&maps->packed, a.packed, rows, 3 * width, box_rows));
    TRY(map_matrix(&maps->dout, a.dout, rows, width, box_rows));
    return map_matrix(&maps->o, a.o, rows, width, a.tokens);
}

#if HAVE_SM90A

/* d (64 x 64) = a b of operands in shared memory, plus d when `keep`. */
template <int TURNED_B>
static __device__ __forceinline__ void wgmma_64(float (&d)[32], uint64_t a, uint64_t b, int keep) {
    asm volatile("{\n.reg .pred p;\nsetp.ne.b32 p, %34, 0;\n"
                 "wgmma.mma_async.sync.aligned.m64n64k16.f32.bf16.bf16 {" NAMES_32
                 "}, %32, %33, p, 1, 1, 0, %35;\n}\n"
                 : SUMS_8(0), SUMS_8(8), SUMS_8(16), SUMS_8(24)
                 : "l"(a), "l"(b), "r"(keep), "n"(TURNED_B));
}

static __device__ __forceinline__ uint32_t pair_get(Shared at) {
    uint32_t x;
    asm volatile("ld.shared.u32 %0, [%1];" : "=r"(x) : "r"(at) : "memory");
    return x;
}

/* g *= scale (the gradient of the row times its rate n, which has the pairs n[j] of two rows), then
 * through the norm: rate (g - n mean(n g)). */
static __device__ __forceinline__ void norm_back(float (&g)[32], const uint32_t (&n)[8][2],
                                                 const float (&rate)[2], const AttentionArgs &a) {
#pragma unroll
    for (int half = 0; half < 2; half++) {
        float sum = 0;
#pragma unroll
        for (int j = 0; j < 8; j++)
            sum += low_of(n[j][half]) * g[4 * j + 2 * half] +
                   high_of(n[j][half]) * g[4 * j + 2 * half + 1];
        const float mean = a.q_w ? quad_sum(sum) * (1.0f / HEAD) : 0.0f;
#pragma unroll
        for (int j = 0; j < 8; j++) {
            float *x = &g[4 * j + 2 * half];
            x[0] = rate[half] * (x[0] - low_of(n[j][half]) * mean);
            x[1] = rate[half] * (x[1] - high_of(n[j][half]) * mean);
        }
    }
}

/* Half `half` of n = the pairs of the lane's q, `row` or the eighth after it, raw from memory;
 * zeros where there is no token. place: of the head's first q in packed. */
static __device__ __forceinline__ void row_get(uint32_t (&n)[8][2], int half,
                                               const AttentionArgs &a, int64_t place, int64_t pitch,
                                               int row, int lane) {
    const bool real = row + 8 * half < a.tokens;
    const bf16 *raw = (const bf16 *)a.packed + place + (real ? row + 8 * half : 0) * pitch;
#pragma unroll
    for (int j = 0; j < 8; j++) {
        const uint32_t x = *reinterpret_cast<const uint32_t *>(raw + 8 * j + 2 * (lane & 3));
        n[j][half] = real ? x : 0;
    }
}

/* The pairs of two rows of a tile in shared memory. */
static __device__ __forceinline__ void rows_of_tile(uint32_t (&n)[8][2], Shared tile, int row,
                                                    int lane) {
#pragma unroll
    for (int j = 0; j < 8; j++) {
        n[j][0] = pair_get(tile_at(tile, row, j) + 4 * (lane & 3));
        n[j][1] = pair_get(tile_at(tile, row + 8, j) + 4 * (lane & 3));
    }
}

/* dq of two rows from products over scale and weights: n, raw, is multiplied by its rates, sums of
 * the lane's 16 channels get the gradient of w [64], dq goes through the norm. */
static __device__ __forceinline__ void queries_back(float (&dq)[32], uint32_t (&n)[8][2],
                                                    const float (&rate)[2], float (&sums)[16],
                                                    const float *weights, const AttentionArgs &a,
                                                    int lane) {
#pragma unroll
    for (int j = 0; j < 8; j++) {
        const float2 w = *reinterpret_cast<const float2 *>(weights + 8 * j + 2 * (lane & 3));
#pragma unroll
        for (int half = 0; half < 2; half++) {
            n[j][half] = scaled(n[j][half], rate[half], rate[half]);
            float *x = &dq[4 * j + 2 * half];
            sums[2 * j] += low_of(n[j][half]) * x[0];
            sums[2 * j + 1] += high_of(n[j][half]) * x[1];
            x[0] *= a.scale * w.x;
            x[1] *= a.scale * w.y;
        }
    }
    norm_back(dq, n, rate, a);
}

/* A warp's sums over its rows of the lanes' 16 channels, to to[warp]. */
static __device__ __forceinline__ void warp_sums(float (*to)[HEAD], const float (&sums)[16],
                                                 int warp, int lane) {
#pragma unroll
    for (int i = 0; i < 16; i++) {
        float x = sums[i];
#pragma unroll
        for (int mask = 4; mask < 32; mask *= 2) x += __shfl_xor_sync(0xffffffffu, x, mask);
        if (lane < 4) to[warp][i / 2 * 8 + 2 * lane + i % 2] = x;
    }
}

#endif

#endif
