/* Attention of BF16 heads of 64 channels on tensor cores: forward. */
#include "kernels/cuda/attention_mma.cuh"
#include "kernels/cuda/chain.cuh"

#define GROWTH 8.0f /* a row's reference is moved when scores exceed it by 2^8 */

#define FORWARD       128 /* threads */
#define STAGES        3
#define STAGE_BYTES   (2 * TILE_BYTES)
#define FORWARD_BYTES (STAGES * STAGE_BYTES + 2 * STEP * (int)sizeof(float))

/* M: fragments of 16 queries that a warp has. */
template <int M> struct Softmax {
    float reference[M][2], sum[M][2]; /* of rows r, r + 8 of each */
};

/* The warp's queries as A operands, times w; row factors scale * rate, for powers of two. */
template <int M>
static __device__ __forceinline__ void queries_get(uint32_t (&q)[M][4][4], float (&factor)[M][2],
                                                   const AttentionArgs &a, const bf16 *from,
                                                   int64_t pitch, int first, int lane) {
#pragma unroll
    for (int m = 0; m < M; m++) {
#pragma unroll
        for (int half = 0; half < 2; half++) {
            const int token = first + 16 * m + 8 * half + (lane >> 2);
            const bf16 *row = from + (token < a.tokens ? token : 0) * pitch + 2 * (lane & 3);
#pragma unroll
            for (int i = 0; i < 8; i++) {
                const uint32_t x = *reinterpret_cast<const uint32_t *>(row + 8 * i);
                q[m][i / 2][(i & 1) * 2 + half] = token < a.tokens ? x : 0;
            }
        }
        float squares[2];
        operand_weigh(q[m], squares, a, lane);
#pragma unroll
        for (int half = 0; half < 2; half++)
            factor[m][half] = rate_of(a, squares[half]) * a.scale * LOG2_E;
    }
}

/* Rates of the 64 keys of a tile: two threads a row. */
static __device__ __forceinline__ void key_rates(const AttentionArgs &a, float *rates, Shared k) {
    const int row = threadIdx.x >> 1, part = threadIdx.x & 1;
    float squares = 0;
#pragma unroll
    for (int i = 0; i < 4; i++) squares += square_sum(chunk_get(tile_at(k, row, 4 * part + i)));
    squares += __shfl_xor_sync(0xffffffffu, squares, 1);
    if (part == 0) rates[row] = rate_of(a, squares);
}

/* Moves the references of rows whose highest score has grown past them, and shrinks what those rows
 * have summed. */
template <int M>
static __device__ __forceinline__ void references_move(float (&o)[M][8][4], Softmax<M> &f,
                                                       const float (&top)[M][2]) {
#pragma unroll
    for (int m = 0; m < M; m++) {
#pragma unroll
        for (int half = 0; half < 2; half++) {
            const float now = fmaxf(top[m][half], f.reference[m][half]);
            const float shrink = exponential2(f.reference[m][half] - now);
            f.reference[m][half] = now;
            f.sum[m][half] *= shrink;
#pragma unroll
            for (int n = 0; n < 8; n++) {
                o[m][n][2 * half] *= shrink;
                o[m][n][2 * half + 1] *= shrink;
            }
        }
    }
}

/* Scores of 32 queries and 32 keys become powers 2^(score - reference); a row whose reference has
 * to move shrinks what it has summed. `left`: keys that exist. */
template <int M>
static __device__ __forceinline__ void powers(float (&s)[M][4][4], float (&o)[M][8][4],
                                              Softmax<M> &f, const float (&factor)[M][2],
                                              const float *rates, int left, int lane) {
    float top[M][2];
#pragma unroll
    for (int m = 0; m < M; m++) top[m][0] = top[m][1] = -INFINITY;
#pragma unroll
    for (int n = 0; n < 4; n++) {
        const int key = 8 * n + 2 * (lane & 3);
        const float2 rate = *reinterpret_cast<const float2 *>(rates + key);
#pragma unroll
        for (int m = 0; m < M; m++) {
#pragma unroll
            for (int i = 0; i < 4; i++) {
                s[m][n][i] *= i & 1 ? rate.y : rate.x;
                if (left < 32 && key + (i & 1) >= left) s[m][n][i] = -INFINITY;
                top[m][i >> 1] = fmaxf(top[m][i >> 1], s[m][n][i]);
            }
        }
    }
    bool move = false;
#pragma unroll
    for (int m = 0; m < M; m++) {
#pragma unroll
        for (int half = 0; half < 2; half++) {
            float x = top[m][half];
            x = fmaxf(x, __shfl_xor_sync(0xffffffffu, x, 1));
            x = fmaxf(x, __shfl_xor_sync(0xffffffffu, x, 2)) * factor[m][half];
            top[m][half] = x;
            move = move || x > f.reference[m][half] + GROWTH;
        }
    }
    if (__any_sync(0xffffffffu, move)) references_move(o, f, top);
#pragma unroll
    for (int m = 0; m < M; m++) {
#pragma unroll
        for (int n = 0; n < 4; n++) {
#pragma unroll
            for (int i = 0; i < 4; i++) {
                const float p =
                    exponential2(fmaf(s[m][n][i], factor[m][i >> 1], -f.reference[m][i >> 1]));
                s[m][n][i] = p;
                f.sum[m][i >> 1] += p;
            }
        }
    }
}

/* s = q k' of 32 keys from `row` on. */
template <int M>
static __device__ __forceinline__ void scores(float (&s)[M][4][4], const uint32_t (&q)[M][4][4],
                                              Shared k, const Lanes &lanes, int row) {
#pragma unroll
    for (int m = 0; m < M; m++)
#pragma unroll
        for (int n = 0; n < 4; n++)
#pragma unroll
            for (int i = 0; i < 4; i++) s[m][n][i] = 0;
#pragma unroll
    for (int c = 0; c < 4; c++) {
#pragma unroll
        for (int n = 0; n < 2; n++) {
            uint32_t b[4];
            matrix_get(b, region(k, lanes.beside, row + 16 * n, 2 * c));
#pragma unroll
            for (int m = 0; m < M; m++) {
                mma(s[m][2 * n], q[m][c], b[0], b[1]);
                mma(s[m][2 * n + 1], q[m][c], b[2], b[3]);
            }
        }
    }
}

/* o += p v of 32 keys from `row` on. */
template <int M>
static __device__ __forceinline__ void values_add(float (&o)[M][8][4], const float (&p)[M][4][4],
                                                  Shared v, const Lanes &lanes, int row) {
#pragma unroll
    for (int j = 0; j < 2; j++) {
        uint32_t f[M][4];
#pragma unroll
        for (int m = 0; m < M; m++) pack_pair(f[m], p[m][2 * j], p[m][2 * j + 1]);
#pragma unroll
        for (int c = 0; c < 4; c++) {
            uint32_t b[4];
            matrix_get_turned(b, region(v, lanes.below, row + 16 * j, 2 * c));
#pragma unroll
            for (int m = 0; m < M; m++) {
                mma(o[m][2 * c], f[m], b[0], b[1]);
                mma(o[m][2 * c + 1], f[m], b[2], b[3]);
            }
        }
    }
}

/* Divides by the sums, writes o and lse. `tile`: 32 rows of the warp's own. */
template <int M>
static __device__ __forceinline__ void queries_put(const AttentionArgs &a, float (&o)[M][8][4],
                                                   Softmax<M> &f, Shared tile, const Lanes &lanes,
                                                   int64_t window, int head, int first, int lane) {
#pragma unroll
    for (int m = 0; m < M; m++) {
#pragma unroll
        for (int half = 0; half < 2; half++) {
            const float sum = quad_sum(f.sum[m][half]), inverse = 1.0f / sum;
            const int token = first + 16 * m + 8 * half + (lane >> 2);
            if (a.lse && (lane & 3) == 0 && token < a.tokens)
                a.lse[(window * a.heads + head) * a.tokens + token] =
                    LN_2 * (f.reference[m][half] + log2f(sum));
#pragma unroll
            for (int n = 0; n < 8; n++) {
                o[m][n][2 * half] *= inverse;
                o[m][n][2 * half + 1] *= inverse;
            }
        }
#pragma unroll
        for (int c = 0; c < 4; c++) {
            uint32_t packed[4];
            pack_pair(packed, o[m][2 * c], o[m][2 * c + 1]);
            matrix_put(tile, lanes, 16 * m, 2 * c, packed);
        }
    }
    __syncwarp();
    rows_store<16 * M, CHUNKS>((bf16 *)a.to + plain_at(a, window, head, first),
                               (int64_t)a.heads * HEAD, tile, 0, 0, a.tokens - first, lane);
}

template <int M> static __device__ __forceinline__ Softmax<M> softmax_init(void) {
    Softmax<M> f;
#pragma unroll
    for (int m = 0; m < M; m++)
#pragma unroll
        for (int half = 0; half < 2; half++) {
            f.reference[m][half] = -INFINITY;
            f.sum[m][half] = 0;
        }
    return f;
}

/* Starts copying tile t of keys and values, which begin at k and v, where there is one. */
static __device__ __forceinline__ void tile_fetch(const AttentionArgs &a, Shared ring,
                                                  const bf16 *k, const bf16 *v, int t) {
    const int64_t pitch = 3 * (int64_t)a.heads * HEAD;
    const Shared to = ring + t % STAGES * STAGE_BYTES;
    if (t * STEP < a.tokens) {
        rows_fetch<STEP, FORWARD>(to, k, pitch, t * STEP, a.tokens);
        rows_fetch<STEP, FORWARD>(to + TILE_BYTES, v, pitch, t * STEP, a.tokens);
    }
    copies_commit();
}

/* Block: 64 M queries of one window and head; keys and values come in tiles of 64. */
template <int M, int BLOCKS>
__global__ void __launch_bounds__(FORWARD, BLOCKS) attention_mma_kernel(AttentionArgs a) {
    extern __shared__ __align__(1024) unsigned char memory[];
    const Shared ring = shared_address(memory);
    float *rates = (float *)(memory + STAGES * STAGE_BYTES);
    const Lanes lanes = lanes_init();
    const int warp = threadIdx.x >> 5, lane = threadIdx.x & 31;
    const int queries = 64 * M, blocks = (a.tokens + queries - 1) / queries;
    const int tiles = (a.tokens + STEP - 1) / STEP;
    const int64_t pair = blockIdx.x / blocks, window = pair / a.heads;
    const int head = (int)(pair % a.heads);
    const int first = (int)(blockIdx.x % blocks) * queries + 16 * M * warp;
    const int64_t pitch = 3 * (int64_t)a.heads * HEAD;
    const bf16 *packed = (const bf16 *)a.packed;
    const bf16 *k = packed + packed_at(a, window, 1, head, 0);
    const bf16 *v = packed + packed_at(a, window, 2, head, 0);
    chain_wait();
#pragma unroll
    for (int t = 0; t < STAGES - 1; t++) tile_fetch(a, ring, k, v, t);
    uint32_t q[M][4][4];
    float factor[M][2], o[M][8][4] = {};
    Softmax<M> f = softmax_init<M>();
    queries_get(q, factor, a, packed + packed_at(a, window, 0, head, 0), pitch, first, lane);
    for (int t = 0; t < tiles; t++) {
        copies_wait<STAGES - 2>();
        __syncthreads(); /* the tile is there, and everyone is done with the one before */
        tile_fetch(a, ring, k, v, t + STAGES - 1);
        const Shared at = ring + t % STAGES * STAGE_BYTES;
        float *tile_rates = rates + (t & 1) * STEP;
        key_rates(a, tile_rates, at);
#pragma unroll
        for (int half = 0; half < 2; half++) {
            float s[M][4][4];
            const int left = a.tokens - t * STEP - 32 * half;
            if (left > 0) scores(s, q, at, lanes, 32 * half);
            if (half == 0) __syncthreads(); /* rates */
            if (left <= 0) break;
            powers(s, o, f, factor, tile_rates + 32 * half, left, lane);
            values_add(o, s, at + TILE_BYTES, lanes, 32 * half);
        }
    }
    copies_wait<0>();
    __syncthreads();
    if (first < a.tokens)
        queries_put(a, o, f, ring + warp * 16 * M * 128, lanes, window, head, first, lane);
}

template <int M, int BLOCKS>
static Status forward(Device *d, const AttentionArgs &a, int64_t windows) {
    const int64_t blocks = windows * a.heads * ceil_div(a.tokens, 64 * M);
    CUDA_TRY(cudaFuncSetAttribute(attention_mma_kernel<M, BLOCKS>,
                                  cudaFuncAttributeMaxDynamicSharedMemorySize, FORWARD_BYTES),
             "attention: shared memory");
    chain_launch(d, blocks < CHAIN_ROWS, (unsigned)blocks, FORWARD, FORWARD_BYTES,
                 attention_mma_kernel<M, BLOCKS>, a);
    return launched("attention");
}

/* Few windows: smaller blocks, which occupy more of the card. */
Status attention_mma(Device *d, const AttentionArgs &a, int64_t windows) {
    const bool few = windows * a.heads * ceil_div(a.tokens, 128) < 2 * backend_of(d)->sm_count;
    return few ? forward<1, 4>(d, a, windows) : forward<2, 3>(d, a, windows);
}
