/* The tensor-core GLU kernels: geometry shared by forward and backward.
 *
 * A block of four warps works on 64 neighbouring channels of one sample: one head of 64 or two
 * heads of
 * 32. Everything is computed turned over: Z' = W' K' and so on, rows = output channel j, columns =
 * tokens. Warp w owns the 16 rows j = 16w .. 16w+15, so
 *  - its rows of the weights stay in registers while tokens stream by, 64 at a time;
 *  - sums over tokens (G' = P' K) and column norms of G need no exchange between warps;
 *  - accumulators (j, token) are at once the A operand of the sums over tokens.
 * W' = W - softnorm(G) is the sum of two BF16 numbers, high and rest (about 16 bits): its update is
 * never rounded away (vittt.md 9). The factor c = 1/(3N) multiplies finished sums only.
 */
#ifndef TTV_KERNELS_CUDA_GLU_MMA_CUH
#define TTV_KERNELS_CUDA_GLU_MMA_CUH

#include "kernels/cuda/glu.cuh"
#include "kernels/cuda/mma.cuh"

#define GLU_THREADS 128
#define GROUP       64 /* channels per block */

/* What a warp works on. D: head width. */
template <int D> struct GluPlace {
    int group; /* of 64 channels */
    int head;  /* the warp's head */
    int row;   /* the warp's first channel within the group */
    int base;  /* first channel of its head within the group */
    int lane_row, lane_quad;
    bool real;  /* false: the group has no such head (odd count of heads of 32) */
    Lanes lane; /* lane addresses, */
    Lanes own;  /* at the warp's first channel, */
    Lanes all;  /* at its head's first channel */
};

template <int D>
static __device__ __forceinline__ GluPlace<D> glu_place(const GluArgs &a, int group) {
    GluPlace<D> p;
    const int warp = threadIdx.x / 32, lane = threadIdx.x & 31;
    p.group = group;
    p.row = 16 * warp;
    p.base = p.row / D * D;
    p.head = group * (GROUP / D) + p.row / D;
    p.real = D == GROUP || p.head < a.heads;
    p.lane_row = lane / 4;
    p.lane_quad = lane % 4;
    p.lane = p.own = p.all = lanes_init();
    p.own.beside ^= p.row / 8 << 4;
    p.own.below ^= p.row / 8 << 4;
    p.all.beside ^= p.base / 8 << 4;
    p.all.below ^= p.base / 8 << 4;
    return p;
}

/* A thread's share of the copies of token tiles: every 16th row, one chunk. */
#define FETCH_STEP (GLU_THREADS / 8)

typedef struct GluFetch {
    const bf16 *from;
    int64_t step; /* FETCH_STEP tokens */
    Shared to;    /* within a tile */
    int left; /* tokens from the thread's next one to the end; none for a chunk that is not there */
} GluFetch;

static __device__ __forceinline__ GluFetch glu_fetch_init(const bf16 *in, int64_t pitch, int tokens,
                                                          int chunks) {
    const int row = threadIdx.x / 8, chunk = threadIdx.x % 8;
    GluFetch f;
    f.from = in + row * pitch + 8 * chunk;
    f.step = FETCH_STEP * pitch;
    f.to = row * 128 + ((chunk ^ (row & 7)) << 4);
    f.left = chunk < chunks ? tokens - row : 0;
    return f;
}

/* Starts the copy of the next 64 tokens; zeros past the end. */
static __device__ __forceinline__ void glu_fetch(Shared tile, GluFetch &f) {
#pragma unroll
    for (int i = 0; i < TILE_ROWS / FETCH_STEP; i++) {
        const bool real = f.left > i * FETCH_STEP;
        /* the address is not read when `real` is false */
        copy_chunk(tile + f.to + i * FETCH_STEP * 128, f.from + i * f.step, real);
    }
    f.from += TILE_ROWS / FETCH_STEP * f.step;
    f.left -= TILE_ROWS;
}

/* The warp's 16 channels of a tile to memory, `left` tokens at most; call after the warp has
 * written them. `out`: the tile's first token. */
static __device__ __forceinline__ void glu_flush(bf16 *out, int64_t pitch, Shared tile, int row,
                                                 int left) {
    __syncwarp();
    const int lane = threadIdx.x & 31, t = lane / 2, chunk = row / 8 + lane % 2;
    const Shared at = tile + t * 128 + ((chunk ^ (t & 7)) << 4);
    bf16 *to = out + t * pitch + 8 * chunk;
#pragma unroll
    for (int i = 0; i < TILE_ROWS / 16; i++) {
        if (t + 16 * i >= left) break;
        uint4 v;
        asm volatile("ld.shared.v4.u32 {%0,%1,%2,%3}, [%4];"
                     : "=r"(v.x), "=r"(v.y), "=r"(v.z), "=r"(v.w)
                     : "r"(at + i * 16 * 128));
        *reinterpret_cast<uint4 *>(to + i * 16 * pitch) = v;
    }
}

/* Rows i of the group's initial weights, rounded, as tile[i][j within the group]: W is [nh][D][D],
 * so heads lie below each other and only the blocks on the diagonal are filled. */
template <int D>
static __device__ __forceinline__ void glu_weight_tile(char *tile, const float *w, int group,
                                                       int heads) {
    for (int i = threadIdx.x; i < GROUP * D / 8; i += GLU_THREADS) {
        const int row = i / (D / 8), part = i % (D / 8), head = row / D;
        const int64_t at = ((int64_t)group * GROUP + row) * D + 8 * part;
        uint4 v = make_uint4(0, 0, 0, 0);
        if (group * (GROUP / D) + head < heads) {
            const float4 f = *reinterpret_cast<const float4 *>(w + at);
            const float4 g = *reinterpret_cast<const float4 *>(w + at + 4);
            v = make_uint4(pack2(f.x, f.y), pack2(f.z, f.w), pack2(g.x, g.y), pack2(g.z, g.w));
        }
        const int chunk = head * (D / 8) + part;
        *reinterpret_cast<uint4 *>(tile + row * 128 + ((chunk ^ (row & 7)) << 4)) = v;
    }
}

/* The warp's rows of W' (j, i) as A operands, from tile[i][j]. */
template <int D>
static __device__ __forceinline__ void glu_weight_rows(uint32_t (&f)[D / 16][4], Shared tile,
                                                       const GluPlace<D> &p) {
#pragma unroll
    for (int k = 0; k < D / 16; k++)
        matrix_get_turned(f[k], region(tile, p.own.beside, p.base + 16 * k, 0));
}

/* Element (i, j) of the head's d x d matrix that belongs to accumulator `n`, register `e`. */
template <int D>
static __device__ __forceinline__ int glu_element(const GluPlace<D> &p, int n, int e) {
    const int i = 8 * n + 2 * p.lane_quad + (e & 1);
    const int j = p.row - p.base + p.lane_row + (e >> 1) * 8;
    return i * D + j;
}

/* G' in `g` (raw) -> W' = W - softnorm(G) as high + rest. n[2]: the norms of rows r and r+8. */
template <int D>
static __device__ __forceinline__ void
glu_inner_step(uint32_t (&high)[D / 16][4], uint32_t (&rest)[D / 16][4], float (&norm)[2],
               const float (&g)[D / 8][4], const float *w, const GluPlace<D> &p) {
    float square[2] = {};
#pragma unroll
    for (int n = 0; n < D / 8; n++)
#pragma unroll
        for (int e = 0; e < 4; e++) square[e >> 1] += g[n][e] * g[n][e];
    float r[2];
#pragma unroll
    for (int half = 0; half < 2; half++) {
        norm[half] = sqrtf(quad_sum(square[half]));
        r[half] = 1.0f / (norm[half] + 1.0f);
    }
#pragma unroll
    for (int k = 0; k < D / 16; k++) {
        float u[2][4];
#pragma unroll
        for (int n = 0; n < 2; n++)
#pragma unroll
            for (int e = 0; e < 4; e++) {
                const float old = p.real ? w[glu_element<D>(p, 2 * k + n, e)] : 0.0f;
                u[n][e] = old - r[e >> 1] * g[2 * k + n][e];
            }
        pack_pair(high[k], u[0], u[1]);
        pack_rest(rest[k], high[k], u[0], u[1]);
    }
}

/* sum[n] += A' B over 16 tokens at `row` of tile[token][i]: both matrices of a pair at once. */
template <int D>
static __device__ __forceinline__ void
glu_token_sums(float (&s1)[D / 8][4], float (&s2)[D / 8][4], const uint32_t (&a1)[4],
               const uint32_t (&a2)[4], Shared tile, int row, const GluPlace<D> &p) {
#pragma unroll
    for (int i = 0; i < D / 16; i++) {
        uint32_t b[4];
        matrix_get_turned(b, region(tile, p.all.below, row, 2 * i));
        mma(s1[2 * i], a1, b[0], b[1]);
        mma(s2[2 * i], a2, b[0], b[1]);
        mma(s1[2 * i + 1], a1, b[2], b[3]);
        mma(s2[2 * i + 1], a2, b[2], b[3]);
    }
}

/* The element's values from z1, z2, p1 = dP1, p2 = dP2 and v: P1, P2, dZ1, dZ2 in their places, all
 * without the factor -c; returns dV / -c. */
static __device__ __forceinline__ float write_back_element(float v, float *z1, float *z2, float *p1,
                                                           float *p2) {
    float a, d1, d2;
    silu_all(*z2, &a, &d1, &d2);
    const float z = *z1, q1 = *p1, q2 = *p2;
    *p1 = v * a;
    *p2 = v * z * d1;
    *z1 = v * q2 * d1;
    *z2 = v * (q1 * d1 + q2 * z * d2);
    return q1 * a + q2 * z * d1;
}

#endif
