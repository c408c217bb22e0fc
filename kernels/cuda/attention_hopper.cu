/* Attention of BF16 heads of 64 channels in windows of at most 256 tokens, forward, on Hopper.
 *
 * A persistent block goes from head to head. One warpgroup brings q, k, v of the next head into one
 * of two buffers, norms the keys and leaves the rates of the queries; two take 64 queries at a time
 * against all keys, so that the softmax has its row at once. A buffer is free for the next head
 * only when the one before is done, so that its rows are asked into the L2 cache long before.
 */
#include "kernels/cuda/attention_hopper.cuh"

#define THREADS      384
#define BUFFER_BYTES (3 * WINDOW_BYTES)
#define SHARED_BYTES (2 * BUFFER_BYTES + 1024 + 512)
#define AHEAD        2 /* heads */

#if HAVE_SM90A

typedef struct Buffers {
    Shared data, full, empty, here; /* barriers of both */
    const float *w;
    float *rates; /* of both: [WINDOW], of the queries */
} Buffers;

/* Rows of q, k or v of a head: x and y of its box. */
static __device__ __forceinline__ int box_x(const AttentionArgs &a, int64_t item, int third) {
    return (third * a.heads + (int)(item % a.heads)) * HEAD;
}
static __device__ __forceinline__ int box_y(const AttentionArgs &a, int64_t item) {
    return (int)(item / a.heads) * a.tokens;
}

static __device__ __forceinline__ void head_ahead(const AttentionArgs &a, const CUtensorMap *map,
                                                  int64_t item) {
    for (int third = 0; third < 3; third++) box_ahead(map, box_x(a, item, third), box_y(a, item));
}

static __device__ __forceinline__ void head_fetch(const AttentionArgs &a, const CUtensorMap *map,
                                                  int64_t item, Shared to, Shared here) {
    barrier_expect(here, 3 * a.tokens * 128);
    for (int third = 0; third < 3; third++)
        box_fetch(to + third * WINDOW_BYTES, map, box_x(a, item, third), box_y(a, item), here);
}

static __device__ __forceinline__ void bring(const AttentionArgs &a, const CUtensorMap *map,
                                             const Buffers &b, int64_t items, int thread) {
    int round = 0;
    if (thread == 0)
        for (int i = 1; i < AHEAD; i++)
            if (blockIdx.x + i * gridDim.x < items) head_ahead(a, map, blockIdx.x + i * gridDim.x);
    for (int64_t item = blockIdx.x; item < items; item += gridDim.x, round++) {
        const int side = round & 1, phase = round >> 1 & 1;
        const Shared to = b.data + side * BUFFER_BYTES;
        if (thread == 0) {
            barrier_wait(b.empty + 8 * side, phase ^ 1);
            head_fetch(a, map, item, to, b.here + 8 * side);
            const int64_t later = item + AHEAD * (int64_t)gridDim.x;
            if (later < items) head_ahead(a, map, later);
        }
        barrier_wait(b.here + 8 * side, phase);
#pragma unroll
        for (int row = thread; row < WINDOW; row += 128) {
            b.rates[side * WINDOW + row] = window_rate(a, to, row);
            window_norm(a, to + WINDOW_BYTES, row, b.w);
        }
        shared_is_written();
        barrier_arrive(b.full + 8 * side);
    }
}

/* s (64 queries, of which the lane has parts of two rows, by 256 keys) becomes packed powers; the
 * rows' sums and references (scores in powers of two). */
static __device__ __forceinline__ void softmax(float (&s)[128], uint32_t (&p)[16][4],
                                               float (&sum)[2], float (&top)[2],
                                               const float (&factor)[2], int tokens, int lane) {
    if (tokens < WINDOW) {
#pragma unroll
        for (int i = 0; i < 128; i++)
            if (8 * (i / 4) + 2 * (lane & 3) + (i & 1) >= tokens) s[i] = -INFINITY;
    }
    top[0] = top[1] = -INFINITY;
#pragma unroll
    for (int i = 0; i < 128; i++) top[i >> 1 & 1] = fmaxf(top[i >> 1 & 1], s[i]);
#pragma unroll
    for (int half = 0; half < 2; half++) {
        float x = top[half];
        x = fmaxf(x, __shfl_xor_sync(0xffffffffu, x, 1));
        x = fmaxf(x, __shfl_xor_sync(0xffffffffu, x, 2));
        top[half] = x * factor[half];
        sum[half] = 0;
    }
#pragma unroll
    for (int i = 0; i < 128; i += 2) {
        const int half = i >> 1 & 1;
        const float x = exponential2(fmaf(s[i], factor[half], -top[half]));
        const float y = exponential2(fmaf(s[i + 1], factor[half], -top[half]));
        sum[half] += x + y;
        p[i / 8][i / 2 % 4] = pack2(x, y);
    }
    sum[0] = quad_sum(sum[0]);
    sum[1] = quad_sum(sum[1]);
}

/* Which 64 queries a warpgroup is at. */
typedef struct Place {
    int64_t item;
    int first, round;
} Place;

static __device__ __forceinline__ Shared head_of(const Buffers &b, const Place &p) {
    return b.data + (p.round & 1) * BUFFER_BYTES;
}

/* The group's next queries, of this head or the next. */
static __device__ __forceinline__ Place place_next(const AttentionArgs &a, Place p, int group) {
    p.first += 128;
    if (p.first < a.tokens) return p;
    return {p.item + gridDim.x, 64 * group, p.round + 1};
}

/* Starts s = q k' once the head is there. */
static __device__ __forceinline__ void scores_start(float (&s)[128], const Buffers &b,
                                                    const Place &p) {
    const Shared at = head_of(b, p);
    const uint64_t q = operand_straight(at + p.first * 128);
    const uint64_t k = operand_straight(at + WINDOW_BYTES);
    barrier_wait(b.full + 8 * (p.round & 1), p.round >> 1 & 1);
    wgmma_begin();
#pragma unroll
    for (int i = 0; i < 4; i++) wgmma<0>(s, q + 2 * i, k + 2 * i, i > 0);
    wgmma_commit();
}

/* o = p v */
static __device__ __forceinline__ void values_add(float (&o)[32], const uint32_t (&p)[16][4],
                                                  Shared at) {
    const uint64_t v = operand_turned(at + 2 * WINDOW_BYTES);
    wgmma_begin();
#pragma unroll
    for (int i = 0; i < 16; i++) wgmma_registers(o, p[i], v + i * (2048 >> 4), i > 0);
    wgmma_commit();
    wgmma_wait<0>();
}

/* Divides by the sums, writes o and lse. The queries' own rows are read no more: o goes through
 * them. */
static __device__ __forceinline__ void queries_put(const AttentionArgs &a, const Buffers &b,
                                                   const Place &p, float (&o)[32],
                                                   const float (&sum)[2], const float (&top)[2],
                                                   const Lanes &lanes, int warp, int lane) {
    const int row = p.first + 16 * warp + (lane >> 2);
#pragma unroll
    for (int half = 0; half < 2; half++) {
        const float inverse = reciprocal(sum[half]);
        if (a.lse && (lane & 3) == 0 && row + 8 * half < a.tokens)
            a.lse[p.item * a.tokens + row + 8 * half] = LN_2 * (top[half] + log2f(sum[half]));
#pragma unroll
        for (int j = 0; j < 8; j++) {
            o[4 * j + 2 * half] *= inverse;
            o[4 * j + 2 * half + 1] *= inverse;
        }
    }
    const int first = p.first + 16 * warp;
    warp_put(o, (bf16 *)a.to + plain_at(a, p.item / a.heads, (int)(p.item % a.heads), first),
             (int64_t)a.heads * HEAD, head_of(b, p) + p.first * 128, 16 * warp, a.tokens - first,
             lanes, lane);
}

/* All queries of a warpgroup that has some; `turns`: the other has as many. */
static __device__ __forceinline__ void take(const AttentionArgs &a, const Buffers &b, int64_t items,
                                            int group, bool turns) {
    const Lanes lanes = lanes_init();
    const int warp = threadIdx.x >> 5 & 3, lane = threadIdx.x & 31;
    const float factor = a.scale * LOG2_E;
    Place at = {(int64_t)blockIdx.x, 64 * group, 0};
    float s[128];
    if (turns && group == 1) turn_give(1);
    if (turns) turn_wait(group);
    scores_start(s, b, at);
    wgmma_wait<0>();
    if (turns) turn_give(group);
    for (;;) {
        const float *rates = b.rates + (at.round & 1) * WINDOW + at.first + 16 * warp + (lane >> 2);
        const float scale[2] = {factor * rates[0], factor * rates[8]};
        float o[32], sum[2], top[2];
        uint32_t p[16][4];
        softmax(s, p, sum, top, scale, a.tokens, lane);
        if (turns) turn_wait(group);
        values_add(o, p, head_of(b, at));
        if (turns) turn_give(group);
        const Place next = place_next(a, at, group);
        queries_put(a, b, at, o, sum, top, lanes, warp, lane);
        if (next.item != at.item) {
            shared_is_written(); /* before the copies that follow */
            barrier_arrive(b.empty + 8 * (at.round & 1));
        }
        if (next.item >= items) break;
        at = next;
        if (turns) turn_wait(group);
        scores_start(s, b, at);
        wgmma_wait<0>();
        if (turns) turn_give(group);
    }
}

/* A warpgroup without queries. */
static __device__ __forceinline__ void pass(const Buffers &b, int64_t items) {
    int round = 0;
    for (int64_t item = blockIdx.x; item < items; item += gridDim.x, round++) {
        barrier_wait(b.full + 8 * (round & 1), round >> 1 & 1);
        barrier_arrive(b.empty + 8 * (round & 1));
    }
}

#endif

__global__ void __launch_bounds__(THREADS, 1)
    attention_hopper_kernel(AttentionArgs a, int64_t items,
                            const __grid_constant__ CUtensorMap map) {
#if HAVE_SM90A
    extern __shared__ char memory[];
    __shared__ float w[HEAD], rates[2 * WINDOW];
    Buffers b;
    b.data = (shared_address(memory) + 1023) & ~1023u;
    b.full = b.data + 2 * BUFFER_BYTES;
    b.empty = b.full + 16;
    b.here = b.empty + 16;
    b.w = w;
    b.rates = rates;
    if (threadIdx.x == 0) {
        for (int i = 0; i < 2; i++) {
            barrier_init(b.full + 8 * i, 128);
            barrier_init(b.empty + 8 * i, 256);
            barrier_init(b.here + 8 * i, 1);
        }
        asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
    }
    if (threadIdx.x < HEAD) w[threadIdx.x] = a.q_w ? a.q_w[threadIdx.x] * a.k_w[threadIdx.x] : 1;
    /* rows that no copy brings */
    for (int at = a.tokens * CHUNKS + threadIdx.x; at < WINDOW * CHUNKS; at += THREADS)
        for (int i = 0; i < 6; i++)
            chunk_put(b.data + i * WINDOW_BYTES + at * 16, make_uint4(0, 0, 0, 0));
    shared_is_written();
    __syncthreads();
    const int role = threadIdx.x / 128;
    if (role == 0) {
        registers_down<88>();
        bring(a, &map, b, items, threadIdx.x);
    } else {
        registers_up<208>();
        const int tiles = (a.tokens + 63) / 64;
        if (role <= tiles)
            take(a, b, items, role - 1, tiles % 2 == 0);
        else
            pass(b, items);
    }
#endif
}

bool attention_hopper_fits(Device *d, const AttentionArgs &a) {
    return backend_of(d)->sm90a && a.tokens <= WINDOW && a.width == HEAD;
}

Status attention_hopper(Device *d, const AttentionArgs &a, int64_t windows) {
    const int64_t items = windows * a.heads, most = backend_of(d)->sm_count;
    CUtensorMap map;
    TRY(map_matrix(&map, a.packed, windows * a.tokens, 3 * (int64_t)a.heads * HEAD, a.tokens));
    CUDA_TRY(cudaFuncSetAttribute(attention_hopper_kernel,
                                  cudaFuncAttributeMaxDynamicSharedMemorySize, SHARED_BYTES),
             "attention: shared memory");
    attention_hopper_kernel<<<(unsigned)(items < most ? items : most), THREADS, SHARED_BYTES,
                              stream_of(d)>>>(a, items, map);
    return launched("attention");
}
