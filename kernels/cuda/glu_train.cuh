/* The backward GLU kernels on warpgroup products: what they make of G between their passes, with as
 * few instructions and as many loads in flight as the registers allow.
 */
#ifndef TTV_KERNELS_CUDA_GLU_TRAIN_CUH
#define TTV_KERNELS_CUDA_GLU_TRAIN_CUH

#include "kernels/cuda/glu_feed.cuh"
#include "kernels/cuda/glu_wgmma.cuh"

#if HAVE_SM90A

/* ---- rows of the group's matrices: a thread has eight columns (chunk `part`) of every 16th row -
 */

/* A thread's first row of a matrix: of the first head's. Heads lie STEP floats apart. */
template <int D> static __device__ __forceinline__ const float *strip_at(const float *matrix) {
    const int row = threadIdx.x / 8, part = threadIdx.x % 8;
    return matrix + row * D + part % (D / 8) * 8;
}
/* Row 16 t on; zeros between two heads and for a head that is not there. */
template <int D, int STEP>
static __device__ __forceinline__ void strip_load(float (&x)[8], const float *at, int t,
                                                  int heads) {
    float4 f = make_float4(0, 0, 0, 0), g = f;
    const int head = D == GROUP ? 0 : t / 2, row = D == GROUP ? 16 * t : 16 * (t % 2);
    if (D == GROUP || (threadIdx.x % 8 / 4 == head && head < heads)) {
        f = load4_here(at + head * STEP + row * D);
        g = load4_here(at + head * STEP + row * D + 4);
    }
    x[0] = f.x, x[1] = f.y, x[2] = f.z, x[3] = f.w;
    x[4] = g.x, x[5] = g.y, x[6] = g.z, x[7] = g.w;
}

/* Place of chunk `part` of a row within a tile. */
static __device__ __forceinline__ int strip_place(int row, int part) {
    return row * ROW_BYTES + ((part ^ (row & 7)) << 4);
}

static __device__ __forceinline__ void strip_put(char *to, const uint32_t (&f)[4]) {
    *reinterpret_cast<uint4 *>(to) = make_uint4(f[0], f[1], f[2], f[3]);
}

/* W of the group, rounded, into two tiles. */
template <int D>
static __device__ __forceinline__ void initial_tiles(char *to, const GluArgs &a, int group,
                                                     int heads) {
    const int64_t first = (int64_t)group * GROUP * D;
    const float *w1 = strip_at<D>(a.w1 + first), *w2 = strip_at<D>(a.w2 + first);
#pragma unroll
    for (int i = 0; i < 8; i++) {
        float w[8];
        uint32_t f[4];
        strip_load<D, D * D>(w, i / 4 ? w2 : w1, i % 4, heads);
        pack_columns(f, w);
        strip_put(to + i / 4 * TILE_BYTES +
                      strip_place(i % 4 * 16 + threadIdx.x / 8, threadIdx.x % 8),
                  f);
    }
}

/* W' = W - softnorm(G): high and rest of the first into two tiles, then of the second; the column
 * norms into norms[2][64]. partial: 512 floats. */
template <int D>
static __device__ __forceinline__ void trained_tiles(char *to, float *norms, float *partial,
                                                     int64_t b, const GluArgs &a, int group,
                                                     int heads) {
    const int part = threadIdx.x % 8, lane = threadIdx.x % 32, warp = threadIdx.x / 32;
    const float *g_in = strip_at<D>(a.g + (b * a.heads + group * (GROUP / D)) * 2 * D * D);
    float g[2][4][8];
#pragma unroll
    for (int i = 0; i < 8; i++)
        strip_load<D, 2 * D * D>(g[i / 4][i % 4], g_in + i / 4 * D * D, i % 4, heads);
    const int64_t first = (int64_t)group * GROUP * D;
    const float *w1 = strip_at<D>(a.w1 + first), *w2 = strip_at<D>(a.w2 + first);
    float w[4][8];
#pragma unroll
    for (int t = 0; t < 4; t++) strip_load<D, D * D>(w[t], w1, t, heads);
#pragma unroll
    for (int i = 0; i < 16; i++) {
        const int m = i / 8, e = i % 8;
        float square = 0;
#pragma unroll
        for (int t = 0; t < 4; t++) square += g[m][t][e] * g[m][t][e];
        square += __shfl_xor_sync(0xffffffffu, square, 8);
        square += __shfl_xor_sync(0xffffffffu, square, 16);
        if (lane < 8) partial[(4 * m + warp) * GROUP + 8 * part + e] = square;
    }
    __syncthreads();
#pragma unroll
    for (int m = 0; m < 2; m++) {
        float norm[8] = {}, rate[8];
#pragma unroll
        for (int q = 0; q < 4; q++) {
            const float4 *in =
                reinterpret_cast<const float4 *>(partial + (4 * m + q) * GROUP + 8 * part);
            const float4 x = in[0], y = in[1];
            norm[0] += x.x, norm[1] += x.y, norm[2] += x.z, norm[3] += x.w;
            norm[4] += y.x, norm[5] += y.y, norm[6] += y.z, norm[7] += y.w;
        }
#pragma unroll
        for (int e = 0; e < 8; e++) {
            norm[e] = square_root(norm[e]);
            rate[e] = reciprocal(norm[e] + 1.0f);
        }
        if (threadIdx.x < 8) {
            float4 *out = reinterpret_cast<float4 *>(norms + m * GROUP + 8 * part);
            out[0] = make_float4(norm[0], norm[1], norm[2], norm[3]);
            out[1] = make_float4(norm[4], norm[5], norm[6], norm[7]);
        }
#pragma unroll
        for (int t = 0; t < 4; t++) {
            float u[8];
            uint32_t f[4], x[4];
#pragma unroll
            for (int e = 0; e < 8; e++) u[e] = w[t][e] - rate[e] * g[m][t][e];
            if (m == 0) strip_load<D, D * D>(w[t], w2, t, heads);
            pack_columns(f, u);
            pack_columns_rest(x, f, u);
            char *at = to + 2 * m * TILE_BYTES + strip_place(16 * t + threadIdx.x / 8, part);
            strip_put(at, f);
            strip_put(at + TILE_BYTES, x);
        }
    }
}

/* ---- G as it came from memory: halves of 32 columns of a head's matrix --------------------- */

/* Where G1, G2 lie: rows of 32 columns, 128 bytes with their chunks at c ^ (row & 7); columns
 * 32h .. 32h+31 (heads of 64) or head h (heads of 32). */
typedef struct Gradients {
    Shared at[2][2]; /* [matrix][h] */
} Gradients;

/* Brings G of sample b near. One thread. */
template <int D>
static __device__ __forceinline__ void gradients_prefetch(int64_t b, const GluArgs &a, int group,
                                                          int heads) {
    const int count = D == GROUP ? 1 : min(2, heads);
    const float *g = a.g + (b * a.heads + group * (GROUP / D)) * 2 * D * D;
    asm volatile("cp.async.bulk.prefetch.L2.global [%0], %1;" ::"l"(g),
                 "r"(count * 2 * D * D * (int)sizeof(float))
                 : "memory");
}

/* Starts their copies. One thread. */
template <int D>
static __device__ __forceinline__ void gradients_bring(const Gradients &g, const CUtensorMap *map,
                                                       Shared barrier, int64_t b, const GluArgs &a,
                                                       int group, int heads) {
    const int count = D == GROUP ? 1 : min(2, heads);
    barrier_expect(barrier, count * 2 * D * D * (int)sizeof(float));
#pragma unroll
    for (int m = 0; m < 2; m++)
#pragma unroll
        for (int h = 0; h < 2; h++) {
            const int head = D == GROUP ? 0 : h;
            if (head >= count) continue;
            const int row = (int)((b * a.heads + group * (GROUP / D) + head) * 2 + m) * D;
            box_fetch(g.at[m][h], map, D == GROUP ? 32 * h : 0, row, barrier);
        }
}

#endif /* HAVE_SM90A */

#endif
