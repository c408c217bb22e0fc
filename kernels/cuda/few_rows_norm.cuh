/* Layer norms behind a product of few rows (few_rows.cu).
 *
 * LN(x) B' = rate (x w) B' - rate mean (w B'): the makers multiply x w, which the kernel before has
 * left, and helpers sum w B' from the tiles of b, long before x w is there.
 */
#ifndef TTV_KERNELS_CUDA_FEW_ROWS_NORM_CUH
#define TTV_KERNELS_CUDA_FEW_ROWS_NORM_CUH

#include "kernels/cuda/few_rows_tile.cuh"

#if HAVE_SM90A

/* Norm weights as A operands of products of 16 k: rows 0 and 8 are w in two parts, the others are
 * nothing. [step of 16 k][lane of the first four] */
typedef uint4 ShiftTable[MOST_DEPTH / 16][4];

static __device__ __forceinline__ uint32_t pack_left(float x, float y, uint32_t f) {
    return pack2(x - low_of(f), y - high_of(f));
}

/* A warp fills the steps that it will read itself, so that warps need not meet for it. */
static __device__ __forceinline__ void shift_table(ShiftTable &table, const FewArgs &g, int warp,
                                                   int lane) {
    for (int i = lane; i < MOST_DEPTH / 64 * 4; i += 32) {
        const int step = i / 4 * 4 + warp, k = step * 16 + i % 4 * 2;
        float w[4];
#pragma unroll
        for (int j = 0; j < 4; j++) {
            const int at = k + (j & 1) + (j >> 1) * 8;
            w[j] = at < g.k ? g.norm_w[at] : 0;
        }
        const uint32_t low = pack2(w[0], w[1]), high = pack2(w[2], w[3]);
        table[step][i % 4] =
            make_uint4(low, pack_left(w[0], w[1], low), high, pack_left(w[2], w[3], high));
    }
    __syncwarp();
}

/* Adds steps t.. of w B'; warp `warp` has 16 of the 64 k of each. */
template <typename S>
static __device__ __forceinline__ void shifts_add(float (&sum)[S::width / 8][4], const Share &s,
                                                  const ShiftTable &table, int t, int end,
                                                  Turn &turn, int warp, int lane) {
    const Lanes lanes = lanes_init();
    for (; t < end; t++, turn_next<S>(turn)) {
        const Shared b = s.data + turn.stage * S::stage_bytes + S::a_bytes;
        uint4 w = make_uint4(0, 0, 0, 0);
        if (lane < 4) w = table[4 * t + warp][lane];
        const uint32_t f[4] = {w.x, w.y, w.z, w.w};
        barrier_wait(s.weights + 8 * turn.stage, turn.phase);
#pragma unroll
        for (int n = 0; n < S::width / 16; n++) {
            uint32_t x[4];
            matrix_get(x, region(b, lanes.beside, 16 * n, 2 * warp));
            mma(sum[2 * n], f, x[0], x[1]);
            mma(sum[2 * n + 1], f, x[2], x[3]);
        }
        __syncwarp();
        if (lane == 0) barrier_arrive(s.empty + 8 * turn.stage);
    }
}

#endif

#endif
