/* Norms of q and k by warps, for attention by warpgroups (attention_hopper.cu,
 * attention_window_backward.cu): a warp takes a strip of 16 rows of 64 channels.
 *
 * Products take k w rate and q rate scale in powers of two, w the product of both norms' weights
 * and rate that of the row, each rounded to BF16 once: products of them are scores. Sums of squares
 * are the diagonal of a product of tensor cores, and multiplying by a row's factor f goes by pairs:
 * x f = x high + x rest, high and rest the two BF16 halves of f.
 */
#ifndef TTV_KERNELS_CUDA_ATTENTION_STRIP_CUH
#define TTV_KERNELS_CUDA_ATTENTION_STRIP_CUH

#include "kernels/cuda/attention_hopper.cuh"

/* Factors of 64 channels: pair t of chunk c at [t][c / 2], two chunks beside each other. */
typedef struct ChannelFactors {
    float4 at[4][4];
} ChannelFactors;

#if HAVE_SM90A

/* ---- strips as operands of products: [two chunks], rows r = lane / 4 and r + 8 beside ---- */

static __device__ __forceinline__ void strip_get(uint32_t (&f)[4][4], Shared strip, Shared lane) {
#pragma unroll
    for (int c = 0; c < 4; c++) matrix_get(f[c], region(strip, lane, 0, 2 * c));
}

static __device__ __forceinline__ void matrix_store(Shared at, const uint32_t (&f)[4]) {
    asm volatile("stmatrix.sync.aligned.m8n8.x4.shared.b16 [%0], {%1,%2,%3,%4};" ::"r"(at),
                 "r"(f[0]), "r"(f[1]), "r"(f[2]), "r"(f[3])
                 : "memory");
}
static __device__ __forceinline__ void strip_put(const uint32_t (&f)[4][4], Shared strip,
                                                 const Lanes &lanes) {
#pragma unroll
    for (int c = 0; c < 4; c++) matrix_store(region(strip, lanes.below, 0, 2 * c), f[c]);
}

/* Of a product of rows with rows, row r has its own column in lane 4 r + r / 2. */
static __device__ __forceinline__ float diagonal(float even, float odd, int lane) {
    return __shfl_sync(0xffffffffu, lane & 4 ? odd : even, (lane & 28) | lane >> 3);
}

/* f = the strip; sums of squares of rows r, r + 8. */
static __device__ __forceinline__ void strip_squares(uint32_t (&f)[4][4], float (&sums)[2],
                                                     Shared strip, const Lanes &lanes, int lane) {
    uint32_t columns[4][4];
    float low[4] = {}, high[4] = {}; /* against rows 0-7, and 8-15 */
    strip_get(f, strip, lanes.below);
    strip_get(columns, strip, lanes.beside);
#pragma unroll
    for (int c = 0; c < 4; c++) {
        mma(low, f[c], columns[c][0], columns[c][1]);
        mma(high, f[c], columns[c][2], columns[c][3]);
    }
    sums[0] = diagonal(low[0], low[1], lane);
    sums[1] = diagonal(high[2], high[3], lane);
}

static __device__ __forceinline__ uint32_t pair_times(uint32_t x, uint32_t high, uint32_t rest) {
    uint32_t y;
    asm("{\n.reg .b32 t;\nmul.rn.bf16x2 t, %1, %3;\nfma.rn.bf16x2 %0, %1, %2, t;\n}\n"
        : "=r"(y)
        : "r"(x), "r"(high), "r"(rest));
    return y;
}
/* Both halves of two factors. */
static __device__ __forceinline__ void factor_split(uint32_t &high, uint32_t &rest, float a,
                                                    float b) {
    high = pack2(a, b);
    rest = pack2(a - low_of(high), b - high_of(high));
}

/* Rows times their rates. */
static __device__ __forceinline__ void strip_rates(uint32_t (&f)[4][4], const float (&rate)[2]) {
#pragma unroll
    for (int half = 0; half < 2; half++) {
        uint32_t high, rest;
        factor_split(high, rest, rate[half], rate[half]);
#pragma unroll
        for (int i = 0; i < 8; i++) {
            uint32_t &x = f[i / 2][i % 2 * 2 + half];
            x = pair_times(x, high, rest);
        }
    }
}

static __device__ __forceinline__ void pair_norm(uint32_t (&f)[4], int i, const float (&rate)[2],
                                                 float wx, float wy) {
    f[2 * i] = scaled(f[2 * i], rate[0] * wx, rate[0] * wy);
    f[2 * i + 1] = scaled(f[2 * i + 1], rate[1] * wx, rate[1] * wy);
}
/* Rows times their rates, channels times w; rounded once. */
static __device__ __forceinline__ void strip_norm(uint32_t (&f)[4][4], const float (&rate)[2],
                                                  const ChannelFactors &w, int lane) {
#pragma unroll
    for (int c = 0; c < 4; c++) {
        const float4 x = w.at[lane & 3][c];
        pair_norm(f[c], 0, rate, x.x, x.y);
        pair_norm(f[c], 1, rate, x.z, x.w);
    }
}

/* Both norms' weights, by the first 32 threads; 1 without norms. */
static __device__ __forceinline__ void weights_put(ChannelFactors *w, const AttentionArgs &a) {
    if (threadIdx.x >= HEAD / 2) return;
    const int pair = threadIdx.x & 3, chunk = threadIdx.x >> 2;
    ((float2 *)w->at[pair])[chunk] = weights_at(a, 2 * threadIdx.x);
}

/* ---- strips by chunks, as they come from memory ---- */

/* Rows r and r + 8, two chunks of each. Which ones depends on r, so that a quarter of a warp
 * touches all banks: lane & 3 and that plus 4, in the other order for odd r. */
typedef struct Strip {
    uint4 x[2][2]; /* [row][chunk] */
} Strip;

static __device__ __forceinline__ int strip_chunk(int part, int lane) {
    return (lane & 3) | ((part ^ lane >> 2) & 1) << 2;
}

static __device__ __forceinline__ void strip_load(Strip &s, Shared strip, int lane) {
    const Shared at = tile_at(strip, lane >> 2, strip_chunk(0, lane));
#pragma unroll
    for (int half = 0; half < 2; half++) {
        s.x[half][0] = chunk_get(at + 1024 * half);
        s.x[half][1] = chunk_get((at ^ 64) + 1024 * half);
    }
}

/* Products of rows r, and r + 8, of two strips. A chunk's four registers are an operand as they
 * are, halves of it in rows r and r + 8; any order of channels will do, as it is the same in both.
 */
static __device__ __forceinline__ void strip_products(float (&sums)[2], const Strip &a,
                                                      const Strip &b, int lane) {
#pragma unroll
    for (int half = 0; half < 2; half++) {
        float low[4] = {}, high[4] = {};
#pragma unroll
        for (int part = 0; part < 2; part++) {
            const uint4 x = a.x[half][part], y = b.x[half][part];
            const uint32_t f[4] = {x.x, x.y, x.z, x.w};
            mma(low, f, y.x, y.z);
            mma(high, f, y.y, y.w);
        }
        sums[half] = diagonal(low[0] + high[2], low[1] + high[3], lane);
    }
}

/* ---- fragments to rows ---- */

/* Rounds a warp's 16 rows of 64 channels into 16 rows of shared memory. */
static __device__ __forceinline__ void strip_round(const float *d, Shared strip,
                                                   const Lanes &lanes) {
#pragma unroll
    for (int c = 0; c < 4; c++) {
        const uint32_t f[4] = {pack2(d[8 * c], d[8 * c + 1]), pack2(d[8 * c + 2], d[8 * c + 3]),
                               pack2(d[8 * c + 4], d[8 * c + 5]),
                               pack2(d[8 * c + 6], d[8 * c + 7])};
        matrix_store(region(strip, lanes.below, 0, 2 * c), f);
    }
}

/* Writes the strip's first `left` rows to rows `pitch` elements apart. */
static __device__ __forceinline__ void strip_store(bf16 *to, int pitch, Shared strip, int left,
                                                   int lane) {
    const int row = lane >> 3;
    const Shared at = tile_at(strip, row, lane & 7);
    bf16 *out = to + row * pitch + (lane & 7) * (HEAD / CHUNKS);
    uint4 x[4];
#pragma unroll
    for (int i = 0; i < 4; i++) x[i] = chunk_get((at ^ (i & 1) << 6) + 512 * i);
#pragma unroll
    for (int i = 0; i < 4; i++)
        if (row + 4 * i < left) *reinterpret_cast<uint4 *>(out + 4 * i * (int64_t)pitch) = x[i];
}

#endif

#endif
