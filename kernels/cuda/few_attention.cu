/* Attention within a few windows: a block has 64 queries of a head, and each of its two warpgroups
 * half of the keys, so that the longest way through the kernel is short and 48 blocks share a view
 * of twelve heads. Where attention_hopper.cu has a head a block and goes on to the next, here all
 * that counts is how soon the one head is done.
 */
#include "kernels/cuda/few_attention.cuh"

#include "kernels/cuda/attention_hopper.cuh"
#include "kernels/cuda/chain.cuh"

#define THREADS      256
#define HALF         128 /* keys of a warpgroup */
#define EXCHANGE     (2 * 4 * 128 * 16)
#define SHARED_BYTES (TILE_BYTES + 2 * WINDOW_BYTES + EXCHANGE + 1024 + 64)

#if HAVE_SM90A

/* What a row of a warpgroup's half is relative to, and its sum. */
typedef struct RowSums {
    float top[2], sum[2]; /* rows r and r + 8 of the warp's 16 */
} RowSums;

/* Scores (64 x 128, of which the thread has parts of two rows) become packed powers; keys from
 * `left` on do not exist. */
static __device__ __forceinline__ RowSums powers(float (&s)[64], uint32_t (&p)[8][4],
                                                 const float (&factor)[2], int left, int lane) {
    RowSums r = {{-INFINITY, -INFINITY}, {0, 0}};
    if (left < HALF) {
#pragma unroll
        for (int i = 0; i < 64; i++)
            if (8 * (i / 4) + 2 * (lane & 3) + (i & 1) >= left) s[i] = -INFINITY;
    }
#pragma unroll
    for (int i = 0; i < 64; i++) r.top[i >> 1 & 1] = fmaxf(r.top[i >> 1 & 1], s[i]);
#pragma unroll
    for (int half = 0; half < 2; half++) {
        float x = r.top[half];
        x = fmaxf(x, __shfl_xor_sync(0xffffffffu, x, 1));
        x = fmaxf(x, __shfl_xor_sync(0xffffffffu, x, 2));
        r.top[half] = x * factor[half];
    }
#pragma unroll
    for (int i = 0; i < 64; i += 2) {
        const int half = i >> 1 & 1;
        const float x = exponential2(fmaf(s[i], factor[half], -r.top[half]));
        const float y = exponential2(fmaf(s[i + 1], factor[half], -r.top[half]));
        r.sum[half] += x + y;
        p[i / 8][i / 2 % 4] = pack2(x, y);
    }
    r.sum[0] = quad_sum(r.sum[0]);
    r.sum[1] = quad_sum(r.sum[1]);
    return r;
}

/* Rates of the queries, four threads a row. */
static __device__ __forceinline__ void query_rate(const AttentionArgs &a, Shared q, float *rates) {
    const int row = threadIdx.x >> 2, part = threadIdx.x & 3;
    float squares = square_sum(chunk_get(tile_at(q, row, 2 * part))) +
                    square_sum(chunk_get(tile_at(q, row, 2 * part + 1)));
    squares = quad_sum(squares);
    if (part == 0) rates[row] = rate_of(a, squares);
}

/* Norms a key each, and leaves rates of the queries. */
static __device__ __forceinline__ void norm(const AttentionArgs &a, Shared q, Shared k,
                                            const float *w, float *rates, int keys) {
    const int row = threadIdx.x;
    if (row < keys) {
        window_norm(a, k, row, w);
    } else { /* rows that no copy brings: their powers are zero, they must be numbers */
#pragma unroll
        for (int c = 0; c < CHUNKS; c++) {
            chunk_put(tile_at(k, row, c), make_uint4(0, 0, 0, 0));
            chunk_put(tile_at(k + WINDOW_BYTES, row, c), make_uint4(0, 0, 0, 0));
        }
    }
    query_rate(a, q, rates);
    shared_is_written();
}

/* The thread's 16 values of the columns that its group writes, from both groups' halves. */
static __device__ __forceinline__ void merge(float (&to)[16], const float (&o)[32],
                                             const RowSums &mine, float4 *exchange,
                                             float2 (*sums)[64], int group, int row, int lane) {
    const int thread = threadIdx.x & 127;
#pragma unroll
    for (int j = 0; j < 4; j++) {
        const float x[2][4] = {{o[4 * j], o[4 * j + 1], o[4 * j + 2], o[4 * j + 3]},
                               {o[16 + 4 * j], o[17 + 4 * j], o[18 + 4 * j], o[19 + 4 * j]}};
        /* the other group's columns go, the own ones stay */
#pragma unroll
        for (int i = 0; i < 4; i++) to[4 * j + i] = group ? x[1][i] : x[0][i];
        exchange[(group * 4 + j) * 128 + thread] =
            group ? make_float4(x[0][0], x[0][1], x[0][2], x[0][3])
                  : make_float4(x[1][0], x[1][1], x[1][2], x[1][3]);
    }
    if ((lane & 3) == 0)
#pragma unroll
        for (int half = 0; half < 2; half++)
            sums[group][row + 8 * half] = make_float2(mine.top[half], mine.sum[half]);
    __syncthreads();
    float own[2], other[2];
#pragma unroll
    for (int half = 0; half < 2; half++) {
        const float2 x = sums[group ^ 1][row + 8 * half];
        const float top = fmaxf(mine.top[half], x.x);
        own[half] = exponential2(mine.top[half] - top);
        other[half] = exponential2(x.x - top);
        const float inverse = reciprocal(own[half] * mine.sum[half] + other[half] * x.y);
        own[half] *= inverse;
        other[half] *= inverse;
    }
#pragma unroll
    for (int j = 0; j < 4; j++) {
        const float4 x = exchange[((group ^ 1) * 4 + j) * 128 + thread];
        to[4 * j] = to[4 * j] * own[0] + x.x * other[0];
        to[4 * j + 1] = to[4 * j + 1] * own[0] + x.y * other[0];
        to[4 * j + 2] = to[4 * j + 2] * own[1] + x.z * other[1];
        to[4 * j + 3] = to[4 * j + 3] * own[1] + x.w * other[1];
    }
}

/* Starts the copies: `keys` rows of k and v in boxes of 64. */
static __device__ __forceinline__ void fetch(const AttentionArgs &a, const CUtensorMap *map,
                                             Shared q, int window, int head, int first, int keys,
                                             Shared here) {
    const Shared k = q + TILE_BYTES, v = k + WINDOW_BYTES;
    const int x = head * HEAD, third = a.heads * HEAD, y = window * a.tokens;
    barrier_expect(here, TILE_BYTES + keys * 128);
    for (int i = 0; i < keys; i += 64) box_fetch(k + i * 128, map, third + x, y + i, here);
    box_fetch(q, map, x, y + first, here);
    barrier_expect(here + 8, keys * 128);
    for (int i = 0; i < keys; i += 64) box_fetch(v + i * 128, map, 2 * third + x, y + i, here + 8);
}

#endif

__global__ void __launch_bounds__(THREADS, 1)
    few_attention_kernel(AttentionArgs a, const __grid_constant__ CUtensorMap map) {
#if HAVE_SM90A
    extern __shared__ char memory[];
    __shared__ float w[HEAD], rates[64];
    __shared__ float2 sums[2][64];
    const Shared begin = shared_address(memory), q = (begin + 1023) & ~1023u;
    const Shared k = q + TILE_BYTES, v = k + WINDOW_BYTES, here = v + WINDOW_BYTES + EXCHANGE;
    float4 *exchange = (float4 *)(memory + (v + WINDOW_BYTES - begin));
    const int head = blockIdx.y, window = blockIdx.z, first = 64 * blockIdx.x;
    const int keys = (a.tokens + 63) / 64 * 64;
    const int group = threadIdx.x / 128, warp = threadIdx.x / 32 % 4, lane = threadIdx.x & 31;
    if (threadIdx.x == 0) {
        map_ahead(&map);
        barrier_init(here, 1);
        barrier_init(here + 8, 1);
        asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
    }
    if (threadIdx.x < HEAD) w[threadIdx.x] = a.q_w ? a.q_w[threadIdx.x] * a.k_w[threadIdx.x] : 1;
    __syncthreads();
    chain_wait();
    if (threadIdx.x == 0) fetch(a, &map, q, window, head, first, keys, here);
    barrier_wait(here, 0);
    norm(a, q, k, w, rates, keys);
    __syncthreads();
    float s[64], o[32], to[16];
    const uint64_t left = operand_straight(q), right = operand_straight(k + group * HALF * 128);
    wgmma_begin();
#pragma unroll
    for (int i = 0; i < 4; i++) wgmma<0>(s, left + 2 * i, right + 2 * i, i > 0);
    wgmma_commit();
    wgmma_wait<0>();
    const int row = 16 * warp + (lane >> 2);
    const float factor = a.scale * LOG2_E,
                scale[2] = {factor * rates[row], factor * rates[row + 8]};
    uint32_t p[8][4];
    const RowSums mine = powers(s, p, scale, a.tokens - HALF * group, lane);
    barrier_wait(here + 8, 0);
    const uint64_t values = operand_turned(v + group * HALF * 128);
    wgmma_begin();
#pragma unroll
    for (int i = 0; i < 8; i++) wgmma_registers(o, p[i], values + i * (2048 >> 4), i > 0);
    wgmma_commit();
    wgmma_wait<0>();
    merge(to, o, mine, exchange, sums, group, row, lane);
#pragma unroll
    for (int half = 0; half < 2; half++) {
        const int token = first + row + 8 * half;
        if (token >= a.tokens) continue;
        bf16 *y = (bf16 *)a.to + plain_at(a, window, head, token) + 32 * group + 2 * (lane & 3);
#pragma unroll
        for (int j = 0; j < 4; j++)
            *reinterpret_cast<uint32_t *>(y + 8 * j) =
                pack2(to[4 * j + 2 * half], to[4 * j + 2 * half + 1]);
    }
#endif
}

bool few_attention_fits(Device *d, const AttentionArgs &a) {
    return backend_of(d)->sm90a && a.tokens > HALF && a.tokens <= WINDOW && a.width == HEAD &&
           !a.lse && is_aligned(a.packed, 16) && is_aligned(a.to, 4);
}

Status few_attention(Device *d, const AttentionArgs &a, int64_t windows) {
    CUtensorMap map;
    TRY(map_matrix(&map, a.packed, windows * a.tokens, 3 * (int64_t)a.heads * HEAD, 64));
    CUDA_TRY(cudaFuncSetAttribute(few_attention_kernel, cudaFuncAttributeMaxDynamicSharedMemorySize,
                                  SHARED_BYTES),
             "attention: shared memory");
    const dim3 grid((unsigned)ceil_div(a.tokens, 64), (unsigned)a.heads, (unsigned)windows);
    chain_launch(d, true, grid, THREADS, SHARED_BYTES, few_attention_kernel, a, map);
    return launched("attention");
}
