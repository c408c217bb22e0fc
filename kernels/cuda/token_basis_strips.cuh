/* What blocks of basis_factor (token_basis_factor.cu) know of their matrix, their shared memory,
 * and the sums of a column of blocks.
 */
#ifndef TTV_KERNELS_CUDA_TOKEN_BASIS_STRIPS_CUH
#define TTV_KERNELS_CUDA_TOKEN_BASIS_STRIPS_CUH

#include "kernels/cuda/token_basis_block.cuh"

#define SCALE    16.0f
#define LEAST    (0.5f * TOKEN_SHIFT * SCALE * SCALE)
#define SMALLEST (2.0f * TOKEN_LEAST * TOKEN_LEAST / TOKEN_SHIFT) /* diagonal: the same pivot */
#define WARPS    8
#define PAIR     2            /* strips of a warp */
#define OWNERS   (32 * WARPS) /* threads that have strips */
#define THREADS  (OWNERS + WORKERS)
/* Known blocks of row t in shared memory at a time; one more: the last. With more of them there is
 * too little first-level cache for what does not fit in registers. */
#define HELD        4
#define STRIP_BYTES (IMAGE * 16)
#define ROW_BYTES   ((HELD + 1) * 4 * STRIP_BYTES)
#define SPACE_AT    (ROW_BYTES + 4 * STRIP_BYTES)
#define BARRIERS_AT (SPACE_AT + 2 * (int)sizeof(BlockSpace))
#define STAGED_AT   (BARRIERS_AT + 64) /* of a warp: what goes to memory in whole rows */
#define STAGE_BYTES 2048
#define RATES_AT    (STAGED_AT + WARPS * STAGE_BYTES)

typedef struct FactorArgs {
    bf16 *r, *inv, *rest;
    uint4 *s; /* [matrix][strip][block][IMAGE]: S, then parts */
    int n;
} FactorArgs;

static __host__ __device__ int cluster_size(int n) {
    return n <= 512 ? 2 : 4;
}

#if HAVE_SM90A

extern __shared__ __align__(16) uint8_t memory[];

/* What a warp knows of its strips. */
typedef struct Strip {
    int at, row, block; /* first strip, its first row, its block of rows */
    bool has;
    uint4 *own;     /* images of the first strip, this lane's chunk */
    int64_t matrix; /* number n n of the matrix */
} Strip;

/* [n] what rows and columns of S are multiplied by. */
static __device__ __forceinline__ float *rates(void) {
    return (float *)(memory + RATES_AT);
}
/* Two, by turns. */
static __device__ __forceinline__ BlockSpace *space(int t) {
    return (BlockSpace *)(memory + SPACE_AT) + (t & 1);
}
/* Row t of R: images [block][strip of four]. */
static __device__ __forceinline__ uint4 *row_images(void) {
    return (uint4 *)memory;
}
/* Those of Y_t. */
static __device__ __forceinline__ uint4 *inverse_images(void) {
    return (uint4 *)(memory + ROW_BYTES);
}
static __device__ __forceinline__ Shared staged(void) {
    return shared_address(memory + STAGED_AT + threadIdx.x / 32 * STAGE_BYTES);
}
/* Barriers: C of column t is here (two); its parts of row t + 1 are; the cluster's parts of column
 * t are in memory; all warps of the cluster are done with column t's shared memory. */
static __device__ __forceinline__ Shared diagonal_barrier(int t) {
    return shared_address(memory + BARRIERS_AT) + 8 * (t & 1);
}
static __device__ __forceinline__ Shared last_barrier(void) {
    return shared_address(memory + BARRIERS_AT + 16);
}
static __device__ __forceinline__ Shared stored_barrier(void) {
    return shared_address(memory + BARRIERS_AT + 24);
}
static __device__ __forceinline__ Shared free_barrier(void) {
    return shared_address(memory + BARRIERS_AT + 32);
}

/* Images of the matrix. */
static __device__ __forceinline__ uint4 *matrix_images(const FactorArgs &a, const Strip &w) {
    return a.s + w.matrix / STRIP / SIDE * IMAGE;
}
/* Images of the warp's strip p. */
static __device__ __forceinline__ uint4 *images(const FactorArgs &a, const Strip &w, int p) {
    return w.own + p * (a.n / SIDE) * IMAGE;
}

/* A strip's block as an operand. */
typedef struct Parts {
    uint4 high[4], low[4];
} Parts;

/* Element (i, i) of S lies in the fragment of one lane. */
static __device__ __forceinline__ void strip_rates(const FactorArgs &a, const Strip &w) {
    const float *s = (const float *)matrix_images(a, w);
    for (int i = threadIdx.x; i < a.n; i += THREADS) {
        const int64_t image = (int64_t)(i / STRIP) * (a.n / SIDE) + i / SIDE;
        const int column = i % SIDE, lane = 4 * (i % 8) + column % 8 / 2;
        const int at = (column / 8 * 32 + lane) * 4 + i % STRIP / 8 * 2 + column % 2;
        rates()[i] = SCALE * rsqrtf(fmaxf(s[image * IMAGE * 4 + at], SMALLEST));
    }
}

/* sum = -S, or 0 above the diagonal. */
static __device__ __forceinline__ void strip_begin(Sums &sum, const FactorArgs &a, const Strip &w,
                                                   int p, int t) {
    const int lane = threadIdx.x & 31, row = w.row + STRIP * p + lane / 4;
    const int column = SIDE * t + 2 * (lane & 3);
    const float4 *s = (const float4 *)images(a, w, p) + t * IMAGE;
    const bool real = w.block >= t;
    float4 v[8];
#pragma unroll
    for (int i = 0; i < 8; i++)
        v[i] = real ? __ldcg(s + 32 * i) : make_float4(0.0f, 0.0f, 0.0f, 0.0f);
    const float up = -rates()[row], down = -rates()[row + 8];
#pragma unroll
    for (int i = 0; i < 8; i++) {
        const float2 rate = *(const float2 *)(rates() + column + 8 * i);
        sum[i][0] = v[i].x * (up * rate.x), sum[i][1] = v[i].y * (up * rate.y);
        sum[i][2] = v[i].z * (down * rate.x), sum[i][3] = v[i].w * (down * rate.y);
    }
    if (w.block != t) return;
#pragma unroll
    for (int i = 0; i < 8; i++) { /* the shift, where row and column are the same */
        const int at = row - column - 8 * i;
        if (at == 0) sum[i][0] *= 1.0f + TOKEN_SHIFT;
        if (at == 1) sum[i][1] *= 1.0f + TOKEN_SHIFT;
        if (at == -8) sum[i][2] *= 1.0f + TOKEN_SHIFT;
        if (at == -7) sum[i][3] *= 1.0f + TOKEN_SHIFT;
    }
}

/* Blocks k0 to k0 + many - 1 of row t into shared memory, by the owners. */
static __device__ __forceinline__ void row_fetch(const FactorArgs &a, const Strip &w, int t, int k0,
                                                 int many) {
    const int blocks = a.n / SIDE;
    const uint4 *from = matrix_images(a, w) + (4 * t * blocks + k0) * IMAGE;
    const Shared to = shared_address(row_images());
    const int strip = threadIdx.x / (OWNERS / 4), first = threadIdx.x % (OWNERS / 4);
    for (int i = first; i < many * IMAGE; i += OWNERS / 4)
        copy_chunk(to + 16 * ((i / IMAGE * 4 + strip) * IMAGE + i % IMAGE),
                   from + (int64_t)strip * blocks * IMAGE + i, true);
    copies_commit();
}

/* sum += tiles of the strips times those of row t at b, turned. */
static __device__ __forceinline__ void tiles_add(Sums (&sum)[PAIR], const uint4 (&high)[PAIR],
                                                 const uint4 (&low)[PAIR], const uint4 *b) {
#pragma unroll
    for (int j = 0; j < 4; j++) {
        float(*const to[PAIR])[4] = {sum[0] + 2 * j, sum[1] + 2 * j};
        tiles_multiply<PAIR, 1, IMAGE>(to, high, low, b + j * IMAGE);
    }
}
static __device__ __forceinline__ const uint4 *row_block(int place) {
    return row_images() + place * 4 * IMAGE + (threadIdx.x & 31);
}

/* A tile of both strips as operands. */
typedef struct Tiles {
    uint4 high[PAIR], low[PAIR];
} Tiles;

static __device__ __forceinline__ Tiles tiles_load(const FactorArgs &a, const Strip &w, int k,
                                                   int i) {
    Tiles v;
#pragma unroll
    for (int p = 0; p < PAIR; p++) {
        const uint4 *from = images(a, w, p) + k * IMAGE + 32 * i;
        v.high[p] = chunk_turn(__ldcg(from));
        v.low[p] = chunk_turn(__ldcg(from + LOW));
    }
    return v;
}

/* Blocks first to end - 1 of the strips times those of row t, of which `place` is the first; each
 * tile is on its way while the one before is multiplied. */
static __device__ __forceinline__ void strips_add(Sums (&sum)[PAIR], const FactorArgs &a,
                                                  const Strip &w, int first, int end, int place) {
    const uint4 *b = row_block(place);
    Tiles now[2];
    if (first < end) now[0] = tiles_load(a, w, first, 0);
#pragma unroll 1
    for (int k = first; k < end; k++, b += 4 * IMAGE) {
#pragma unroll
        for (int i = 0; i < 4; i++) {
            if (i < 3)
                now[(i + 1) & 1] = tiles_load(a, w, k, i + 1);
            else if (k + 1 < end)
                now[0] = tiles_load(a, w, k + 1, 0);
            tiles_add(sum, now[i & 1].high, now[i & 1].low, b + 32 * i);
        }
    }
}

/* Column t as far as columns before t - 1 go; the first of row t are on their way. */
static __device__ __forceinline__ void strips_sum(Sums (&sum)[PAIR], const FactorArgs &a,
                                                  const Strip &w, int t) {
    const int begin = w.block < t ? w.block : 0;
#pragma unroll
    for (int p = 0; p < PAIR; p++)
        if (w.has) strip_begin(sum[p], a, w, p, t);
    for (int k0 = 0; k0 < t - 1; k0 += HELD) {
        const int end = k0 + HELD < t - 1 ? k0 + HELD : t - 1;
        if (k0 > 0) {
            meet(2, OWNERS);
            row_fetch(a, w, t, k0, end - k0);
        }
        copies_wait<0>();
        meet(2, OWNERS);
        if (!w.has) continue;
        const int first = begin > k0 ? begin : k0;
        strips_add(sum, a, w, first, end, first - k0);
    }
}

static __device__ __forceinline__ Strip strip_init(const FactorArgs &a, int rank, int size) {
    Strip w;
    w.at = PAIR * (threadIdx.x / 32 * size + rank);
    w.has = threadIdx.x < OWNERS && w.at < a.n / STRIP;
    w.row = w.at * STRIP, w.block = w.at / 4;
    w.matrix = (int64_t)(blockIdx.x / size) * a.n * a.n;
    w.own = matrix_images(a, w) + w.at * (a.n / SIDE) * IMAGE + (threadIdx.x & 31);
    return w;
}

#endif

#endif
