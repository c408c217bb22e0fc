/* Attention of BF16 heads of 64 channels on tensor cores: backward. */
#include "kernels/cuda/attention_mma.cuh"

#define KEYS     256 /* of a block: 32 a warp */
#define BACKWARD 256 /* threads */

/* Shared memory: keys, values, dS [key][query of a tile], a ring of two tiles of queries with what
 * belongs to them, and numbers of the current tile. */
#define KEY_BYTES      (KEYS * 128)
#define RING_BYTES     (3 * TILE_BYTES) /* q, dout, o */
#define BACKWARD_TILES (3 * KEY_BYTES + 2 * RING_BYTES)
typedef struct TileNumbers {
    float rate[STEP], shift[STEP], delta[STEP]; /* of queries; shift: lse in powers of two */
    float dots[STEP][2];
    float weights[4][HEAD];
} TileNumbers;
#define BACKWARD_BYTES (BACKWARD_TILES + (int)sizeof(TileNumbers))

/* What a warp keeps of its 32 keys. */
typedef struct Keys {
    uint32_t k[2][4][4]; /* A operand, times w */
    float rate[2][2];
    float dk[2][8][4], dv[2][8][4];
} Keys;

static __device__ __forceinline__ void queries_fetch(const AttentionArgs &a, Shared to,
                                                     int64_t window, int head, int first) {
    const int64_t pitch = (int64_t)a.heads * HEAD, plain = plain_at(a, window, head, 0);
    rows_fetch<STEP, BACKWARD>(to, (const bf16 *)a.packed + packed_at(a, window, 0, head, 0),
                               3 * pitch, first, a.tokens);
    rows_fetch<STEP, BACKWARD>(to + TILE_BYTES, (const bf16 *)a.dout + plain, pitch, first,
                               a.tokens);
    rows_fetch<STEP, BACKWARD>(to + 2 * TILE_BYTES, (const bf16 *)a.o + plain, pitch, first,
                               a.tokens);
}

static __device__ __forceinline__ float shift_get(const AttentionArgs &a, int64_t pair, int token) {
    return token < a.tokens ? a.lse[pair * a.tokens + token] * LOG2_E : INFINITY;
}

/* Rate and delta of 64 queries: four threads a row. */
static __device__ __forceinline__ void query_numbers(const AttentionArgs &a, TileNumbers *numbers,
                                                     Shared tile, float shift) {
    const int row = threadIdx.x >> 2, part = threadIdx.x & 3;
    float squares = 0, delta = 0;
#pragma unroll
    for (int i = 0; i < 2; i++) {
        const Shared at = tile_at(tile, row, 2 * part + i);
        squares += square_sum(chunk_get(at));
        delta += dot(chunk_get(at + TILE_BYTES), chunk_get(at + 2 * TILE_BYTES));
    }
    squares = quad_sum(squares);
    delta = quad_sum(delta);
    if (part) return;
    numbers->rate[row] = rate_of(a, squares);
    numbers->delta[row] = delta;
    numbers->shift[row] = shift;
}

static __device__ __forceinline__ void keys_get(Keys &y, const AttentionArgs &a, Shared k, Shared v,
                                                const Lanes &lanes, int warp, int lane) {
#pragma unroll
    for (int m = 0; m < 2; m++) {
#pragma unroll
        for (int c = 0; c < 4; c++) {
            matrix_get(y.k[m][c], region(k, lanes.below, 32 * warp + 16 * m, 2 * c));
        }
        float squares[2];
        operand_weigh(y.k[m], squares, a, lane);
        y.rate[m][0] = rate_of(a, squares[0]);
        y.rate[m][1] = rate_of(a, squares[1]);
#pragma unroll
        for (int n = 0; n < 8; n++)
#pragma unroll
            for (int i = 0; i < 4; i++) y.dk[m][n][i] = y.dv[m][n][i] = 0;
    }
}

/* s becomes P' and g (in: dP') dS' times both rates, [key][query] of 16 queries from `row` on.
 * `left`: keys of the warp that exist. */
static __device__ __forceinline__ void slopes(float (&s)[2][2][4], float (&g)[2][2][4],
                                              const Keys &y, const AttentionArgs &a,
                                              const TileNumbers *numbers, int row, int left,
                                              int lane) {
    const float scale = a.scale * LOG2_E;
#pragma unroll
    for (int n = 0; n < 2; n++) {
        const int query = row + 8 * n + 2 * (lane & 3);
        const float2 rate = *reinterpret_cast<const float2 *>(numbers->rate + query);
        const float2 shift = *reinterpret_cast<const float2 *>(numbers->shift + query);
        const float2 delta = *reinterpret_cast<const float2 *>(numbers->delta + query);
#pragma unroll
        for (int m = 0; m < 2; m++) {
#pragma unroll
            for (int i = 0; i < 4; i++) {
                const float mine = y.rate[m][i >> 1], other = i & 1 ? rate.y : rate.x;
                float p = exponential2(
                    fmaf(s[m][n][i] * (mine * scale), other, -(i & 1 ? shift.y : shift.x)));
                if (left < 32 && 16 * m + 8 * (i >> 1) + (lane >> 2) >= left) p = 0;
                s[m][n][i] = p;
                g[m][n][i] = p * (g[m][n][i] - (i & 1 ? delta.y : delta.x)) * other * mine;
            }
        }
    }
}

/* 16 queries from `row` on of a tile: adds to dk and dv, leaves dS. */
static __device__ __forceinline__ void queries_step(Keys &y, const AttentionArgs &a,
                                                    const TileNumbers *numbers, Shared tile,
                                                    Shared ds, const Lanes &lanes, int row,
                                                    int left, int warp, int lane) {
    const Shared v = ds - KEY_BYTES;
    float s[2][2][4] = {}, g[2][2][4] = {};
#pragma unroll
    for (int c = 0; c < 4; c++) {
        uint32_t b[4];
        const Shared at = region(tile, lanes.beside, row, 2 * c);
        matrix_get(b, at);
#pragma unroll
        for (int m = 0; m < 2; m++) {
            mma(s[m][0], y.k[m][c], b[0], b[1]);
            mma(s[m][1], y.k[m][c], b[2], b[3]);
        }
        matrix_get(b, at + TILE_BYTES);
#pragma unroll
        for (int m = 0; m < 2; m++) {
            uint32_t f[4]; /* kept, it would cost registers that there are not */
            matrix_get(f, region(v, lanes.below, 32 * warp + 16 * m, 2 * c));
            mma(g[m][0], f, b[0], b[1]);
            mma(g[m][1], f, b[2], b[3]);
        }
    }
    slopes(s, g, y, a, numbers, row, left, lane);
    uint32_t p[2][4], slope[2][4];
#pragma unroll
    for (int m = 0; m < 2; m++) {
        pack_pair(p[m], s[m][0], s[m][1]);
        pack_pair(slope[m], g[m][0], g[m][1]);
        matrix_put(ds, lanes, 32 * warp + 16 * m, row / 8, slope[m]);
    }
#pragma unroll
    for (int c = 0; c < 4; c++) {
        uint32_t b[4];
        const Shared at = region(tile, lanes.below, row, 2 * c);
        matrix_get_turned(b, at + TILE_BYTES);
#pragma unroll
        for (int m = 0; m < 2; m++) {
            mma(y.dv[m][2 * c], p[m], b[0], b[1]);
            mma(y.dv[m][2 * c + 1], p[m], b[2], b[3]);
        }
        matrix_get_turned(b, at);
#pragma unroll
        for (int m = 0; m < 2; m++) {
            mma(y.dk[m][2 * c], slope[m], b[0], b[1]);
            mma(y.dk[m][2 * c + 1], slope[m], b[2], b[3]);
        }
    }
}

/* Which queries and channels of a tile's dq a warp has: 16 by 32. */
typedef struct Corner {
    int row, chunk, channel; /* chunk = channel / 8 */
} Corner;

/* sum = dS k over the block's keys; with those of the blocks before, if any. */
static __device__ __forceinline__ void query_slopes(float (&sum)[4][4], Shared ds, Shared k,
                                                    const Lanes &lanes, const Corner &at,
                                                    int steps) {
    for (int j = 0; j < steps; j++) {
        uint32_t f[4], b[4];
        matrix_get_turned(f, region(ds, lanes.beside, 16 * j, at.row / 8));
#pragma unroll
        for (int c = 0; c < 2; c++) {
            matrix_get_turned(b, region(k, lanes.below, 16 * j, at.chunk + 2 * c));
            mma(sum[2 * c], f, b[0], b[1]);
            mma(sum[2 * c + 1], f, b[2], b[3]);
        }
    }
}

/* Adds or keeps the sums of a warp's corner in F32 memory [token][64]. */
static __device__ __forceinline__ void carry_take(float (&sum)[4][4], const AttentionArgs &a,
                                                  int64_t pair, int first, const Corner &at,
                                                  bool put, int lane) {
#pragma unroll
    for (int half = 0; half < 2; half++) {
        const int token = first + at.row + 8 * half + (lane >> 2);
        if (token >= a.tokens) continue;
        float *row = a.carry + (pair * a.tokens + token) * HEAD + at.channel + 2 * (lane & 3);
#pragma unroll
        for (int n = 0; n < 4; n++) {
            float2 *place = reinterpret_cast<float2 *>(row + 8 * n);
            if (put) {
                *place = make_float2(sum[n][2 * half], sum[n][2 * half + 1]);
            } else {
                sum[n][2 * half] += place->x;
                sum[n][2 * half + 1] += place->y;
            }
        }
    }
}

/* From sum = dS k: the warp's part of the weights' gradients, and g = scale w sum with its products
 * with q, by row. */
static __device__ __forceinline__ void corner_weigh(float (&sum)[4][4], float (&q)[4][4],
                                                    float (&weights)[4][2], const AttentionArgs &a,
                                                    TileNumbers *numbers, Shared tile,
                                                    const Corner &at, int left, int lane) {
    float dots[2] = {};
#pragma unroll
    for (int n = 0; n < 4; n++) {
        const float2 w = weights_at(a, at.channel + 8 * n + 2 * (lane & 3));
#pragma unroll
        for (int half = 0; half < 2; half++) {
            const int row = at.row + 8 * half + (lane >> 2);
            uint32_t x;
            asm volatile("ld.shared.u32 %0, [%1];"
                         : "=r"(x)
                         : "r"(tile_at(tile, row, at.chunk + n) + 4 * (lane & 3))
                         : "memory");
            q[n][2 * half] = low_of(x);
            q[n][2 * half + 1] = high_of(x);
            if (row < left) {
                weights[n][0] += q[n][2 * half] * sum[n][2 * half];
                weights[n][1] += q[n][2 * half + 1] * sum[n][2 * half + 1];
            }
            sum[n][2 * half] *= a.scale * w.x;
            sum[n][2 * half + 1] *= a.scale * w.y;
            dots[half] +=
                q[n][2 * half] * sum[n][2 * half] + q[n][2 * half + 1] * sum[n][2 * half + 1];
        }
    }
#pragma unroll
    for (int half = 0; half < 2; half++) {
        const float all = quad_sum(dots[half]);
        if ((lane & 3) == 0) numbers->dots[at.row + 8 * half + (lane >> 2)][at.channel / 32] = all;
    }
}

/* dq = g - q rate^2 mean(q g) of the warp's corner, through its part of `staging`. */
static __device__ __forceinline__ void corner_put(float (&g)[4][4], const float (&q)[4][4],
                                                  const AttentionArgs &a,
                                                  const TileNumbers *numbers, Shared staging,
                                                  const Lanes &lanes, int64_t window, int head,
                                                  int first, const Corner &at, int lane) {
#pragma unroll
    for (int half = 0; half < 2; half++) {
        const int row = at.row + 8 * half + (lane >> 2);
        const float rate = numbers->rate[row];
        const float pull =
            a.q_w ? rate * rate * (1.0f / HEAD) * (numbers->dots[row][0] + numbers->dots[row][1])
                  : 0.0f;
#pragma unroll
        for (int n = 0; n < 4; n++) {
            g[n][2 * half] -= q[n][2 * half] * pull;
            g[n][2 * half + 1] -= q[n][2 * half + 1] * pull;
        }
    }
#pragma unroll
    for (int c = 0; c < 2; c++) {
        uint32_t f[4];
        pack_pair(f, g[2 * c], g[2 * c + 1]);
        matrix_put(staging, lanes, at.row, at.chunk + 2 * c, f);
    }
    __syncwarp();
    bf16 *to = (bf16 *)a.to + packed_at(a, window, 0, head, first + at.row);
    rows_store<16, 4>(to, 3 * (int64_t)a.heads * HEAD, staging, at.row, at.chunk,
                      a.tokens - first - at.row, lane);
}

/* dk = g - k rate^2 mean(k g), g = scale w (dS' q); dv. Through the warp's rows of `staging`. */
static __device__ __forceinline__ void keys_put(Keys &y, const AttentionArgs &a, Shared k,
                                                Shared staging, const Lanes &lanes, int64_t window,
                                                int head, int first, int warp, int lane) {
    const int64_t pitch = 3 * (int64_t)a.heads * HEAD;
    const int left = a.tokens - first - 32 * warp;
    if (left <= 0) return;
#pragma unroll
    for (int m = 0; m < 2; m++) {
#pragma unroll
        for (int half = 0; half < 2; half++) {
            const int row = 32 * warp + 16 * m + 8 * half + (lane >> 2);
            float raw[8][2], sum = 0;
#pragma unroll
            for (int n = 0; n < 8; n++) {
                const float2 w = weights_at(a, 8 * n + 2 * (lane & 3));
                uint32_t x;
                asm volatile("ld.shared.u32 %0, [%1];"
                             : "=r"(x)
                             : "r"(tile_at(k, row, n) + 4 * (lane & 3))
                             : "memory");
                raw[n][0] = low_of(x);
                raw[n][1] = high_of(x);
                y.dk[m][n][2 * half] *= a.scale * w.x;
                y.dk[m][n][2 * half + 1] *= a.scale * w.y;
                sum += raw[n][0] * y.dk[m][n][2 * half] + raw[n][1] * y.dk[m][n][2 * half + 1];
            }
            const float rate = y.rate[m][half];
            const float pull = a.q_w ? rate * rate * (1.0f / HEAD) * quad_sum(sum) : 0.0f;
#pragma unroll
            for (int n = 0; n < 8; n++) {
                y.dk[m][n][2 * half] -= raw[n][0] * pull;
                y.dk[m][n][2 * half + 1] -= raw[n][1] * pull;
            }
        }
    }
#pragma unroll
    for (int third = 1; third < 3; third++) {
        float(&g)[2][8][4] = third == 1 ? y.dk : y.dv;
#pragma unroll
        for (int m = 0; m < 2; m++) {
#pragma unroll
            for (int c = 0; c < 4; c++) {
                uint32_t f[4];
                pack_pair(f, g[m][2 * c], g[m][2 * c + 1]);
                matrix_put(staging, lanes, 32 * warp + 16 * m, 2 * c, f);
            }
        }
        __syncwarp();
        rows_store<32, CHUNKS>((bf16 *)a.to + packed_at(a, window, third, head, first + 32 * warp),
                               pitch, staging, 32 * warp, 0, left, lane);
        __syncwarp();
    }
}

/* The block's sums over queries, to weights[pair]. */
static __device__ __forceinline__ void weights_put(float (&weights)[4][2], const AttentionArgs &a,
                                                   TileNumbers *numbers, const Corner &at,
                                                   int64_t pair, int lane) {
#pragma unroll
    for (int n = 0; n < 4; n++) {
#pragma unroll
        for (int i = 0; i < 2; i++) {
            float x = weights[n][i];
#pragma unroll
            for (int mask = 4; mask < 32; mask *= 2) x += __shfl_xor_sync(0xffffffffu, x, mask);
            if (lane < 4) numbers->weights[at.row / 16][at.channel + 8 * n + 2 * lane + i] = x;
        }
    }
    __syncthreads();
    const int c = threadIdx.x;
    if (c < HEAD && a.weights)
        a.weights[pair * HEAD + c] = numbers->weights[0][c] + numbers->weights[1][c] +
                                     numbers->weights[2][c] + numbers->weights[3][c];
}

/* Block: one window and head. Keys in blocks of 256, which stay in registers as operands, 32 a
 * warp; queries in tiles of 64. */
__global__ void __launch_bounds__(BACKWARD, 1) attention_mma_backward_kernel(AttentionArgs a) {
    extern __shared__ __align__(1024) unsigned char memory[];
    const Shared k = shared_address(memory), v = k + KEY_BYTES, ds = v + KEY_BYTES;
    const Shared ring = ds + KEY_BYTES;
    TileNumbers *numbers = (TileNumbers *)(memory + BACKWARD_TILES);
    const Lanes lanes = lanes_init();
    const int warp = threadIdx.x >> 5, lane = threadIdx.x & 31;
    const int64_t pair = blockIdx.x, window = pair / a.heads;
    const int head = (int)(pair % a.heads), tiles = (a.tokens + STEP - 1) / STEP;
    const int64_t pitch = 3 * (int64_t)a.heads * HEAD;
    const Corner at = {16 * (warp & 3), 4 * (warp >> 2), 32 * (warp >> 2)};
    float weights[4][2] = {};
    for (int key0 = 0; key0 < a.tokens; key0 += KEYS) {
        const int keys = a.tokens - key0 < KEYS ? a.tokens - key0 : KEYS;
        Keys y;
        __syncthreads();
        rows_fetch<KEYS, BACKWARD>(k, (const bf16 *)a.packed + packed_at(a, window, 1, head, 0),
                                   pitch, key0, a.tokens);
        rows_fetch<KEYS, BACKWARD>(v, (const bf16 *)a.packed + packed_at(a, window, 2, head, 0),
                                   pitch, key0, a.tokens);
        queries_fetch(a, ring, window, head, 0);
        copies_commit();
        float shift = shift_get(a, pair, threadIdx.x >> 2);
        copies_wait<0>();
        __syncthreads();
        keys_get(y, a, k, v, lanes, warp, lane);
        for (int t = 0; t < tiles; t++) {
            const int first = t * STEP;
            const Shared tile = ring + (t & 1) * RING_BYTES;
            if (t > 0) {
                copies_wait<0>();
                __syncthreads(); /* the tile is there, and everyone is done with the one before */
            }
            const float now = shift;
            if (t + 1 < tiles) {
                queries_fetch(a, ring + (t + 1 & 1) * RING_BYTES, window, head, first + STEP);
                shift = shift_get(a, pair, first + STEP + (threadIdx.x >> 2));
            }
            copies_commit();
            query_numbers(a, numbers, tile, now);
            __syncthreads();
            for (int row = 0; row < STEP && first + row < a.tokens; row += 16)
                queries_step(y, a, numbers, tile, ds, lanes, row, keys - 32 * warp, warp, lane);
            __syncthreads(); /* dS is complete */
            float sum[4][4] = {}, q[4][4];
            const bool last = key0 + KEYS >= a.tokens;
            query_slopes(sum, ds, k, lanes, at, (keys + 15) / 16);
            if (key0 > 0) carry_take(sum, a, pair, first, at, false, lane);
            if (!last) carry_take(sum, a, pair, first, at, true, lane);
            if (last) corner_weigh(sum, q, weights, a, numbers, tile, at, a.tokens - first, lane);
            __syncthreads();
            if (last)
                corner_put(sum, q, a, numbers, tile + 2 * TILE_BYTES, lanes, window, head, first,
                           at, lane);
        }
        keys_put(y, a, k, ds, lanes, window, head, key0, warp, lane);
    }
    weights_put(weights, a, numbers, at, pair, lane);
}

/* ---- launches ------ */

bool attention_mma_fits(Device *d, const Tensor &packed, int64_t heads) {
    const CudaBackend *b = backend_of(d);
    return packed.dtype == DTYPE_BF16 && tensor_last(packed) == 3 * heads * HEAD &&
           is_aligned(packed.data, 16) && b->compute >= 80 &&
           b->smem_limit >= (size_t)BACKWARD_BYTES;
}

int64_t attention_mma_parts(int64_t windows, int64_t heads) {
    return windows * heads;
}

size_t attention_mma_carry(int64_t windows, int64_t heads, int64_t tokens) {
    return tokens <= KEYS ? 0 : sizeof(float) * windows * heads * tokens * HEAD;
}

Status attention_mma_backward(Device *d, const AttentionArgs &a, int64_t windows) {
    CUDA_TRY(cudaFuncSetAttribute(attention_mma_backward_kernel,
                                  cudaFuncAttributeMaxDynamicSharedMemorySize, BACKWARD_BYTES),
             "attention_backward: shared memory");
    attention_mma_backward_kernel<<<(unsigned)(windows * a.heads), BACKWARD, BACKWARD_BYTES,
                                    stream_of(d)>>>(a);
    return launched("attention_backward");
}
