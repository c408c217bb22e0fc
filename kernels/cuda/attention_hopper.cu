/* Attention of BF16 heads of 64 channels in windows of at most 256 tokens, forward, on Hopper.
 *
 * A persistent block goes from head to head. Two warpgroups bring q, k, v of the next head into one
 * of two buffers and norm queries and keys; two take 64 queries at a time against all keys, so that
 * the softmax has its row at once. A buffer is free for the next head only when the one before is
 * done, so that its rows are asked into the L2 cache long before.
 */
#include "kernels/cuda/attention_strip.cuh"

#define THREADS      512
#define PREPS        2 /* warpgroups that prepare */
#define BUFFER_BYTES (3 * WINDOW_BYTES)
#define ONES_BYTES   2048
#define SHARED_BYTES (2 * BUFFER_BYTES + ONES_BYTES + 1024 + 512)
#define PARTS        4     /* of the keys */
#define TALL         40.0f /* powers of two */

#if HAVE_SM90A

#define SUMS_36                                                                                    \
    "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3]), "+f"(d[4]), "+f"(d[5]), "+f"(d[6]),            \
        "+f"(d[7]), SUMS_8(8), SUMS_8(16), SUMS_8(24), "+f"(d[32]), "+f"(d[33]), "+f"(d[34]),      \
        "+f"(d[35])

/* d (64 x 72) = a (64 x 16, registers) b, plus d when `keep`; b turned. */
static __device__ __forceinline__ void wgmma_72(float (&d)[36], const uint32_t (&a)[4], uint64_t b,
                                                int keep) {
    asm volatile("{\n.reg .pred p;\nsetp.ne.b32 p, %41, 0;\n"
                 "wgmma.mma_async.sync.aligned.m64n72k16.f32.bf16.bf16 {" NAMES_32
                 ", %32, %33, %34, %35}, {%36, %37, %38, %39}, %40, p, 1, 1, 1;\n}\n"
                 : SUMS_36
                 : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b), "r"(keep));
}

typedef struct Buffers {
    Shared data, ones, full, empty, here; /* barriers of both */
    const ChannelFactors *w;
    bool small; /* no score exceeds TALL */
} Buffers;

/* A head: of which window, which of it, which buffer and phase. */
typedef struct Item {
    int at, window, head, round;
} Item;

static __device__ __forceinline__ Item item_first(const AttentionArgs &a) {
    const int at = (int)blockIdx.x;
    return {at, at / a.heads, at % a.heads, 0};
}
/* steps: windows and heads of gridDim.x items. */
static __device__ __forceinline__ Item item_next(const AttentionArgs &a, Item i, int2 steps) {
    i.at += gridDim.x;
    i.window += steps.x;
    i.head += steps.y;
    i.round++;
    if (i.head >= a.heads) {
        i.head -= a.heads;
        i.window++;
    }
    return i;
}
static __device__ __forceinline__ Shared buffer_of(const Buffers &b, const Item &i) {
    return b.data + (i.round & 1) * BUFFER_BYTES;
}

static __device__ __forceinline__ void head_ahead(const AttentionArgs &a, const CUtensorMap *map,
                                                  int item) {
    const int x = item % a.heads * HEAD, y = item / a.heads * a.tokens;
    for (int third = 0; third < 3; third++) box_ahead(map, x + third * a.heads * HEAD, y);
}

static __device__ __forceinline__ void head_fetch(const AttentionArgs &a, const CUtensorMap *map,
                                                  const Item &i, Shared to, Shared here) {
    barrier_expect(here, 3 * a.tokens * 128);
    for (int third = 0; third < 3; third++)
        box_fetch(to + third * WINDOW_BYTES, map, (third * a.heads + i.head) * HEAD,
                  i.window * a.tokens, here);
}

/* A strip of q and one of k: products of them are scores in powers of two. */
static __device__ __forceinline__ void strips_prepare(const AttentionArgs &a, const Buffers &b,
                                                      Shared query, const Lanes &lanes, int lane) {
    const float factor = a.scale * LOG2_E;
    const Shared key = query + WINDOW_BYTES;
    uint32_t q[4][4], k[4][4];
    float squares[2], rate[2];
    if (a.q_w) {
        strip_squares(k, squares, key, lanes, lane);
        rate[0] = rate_of(a, squares[0]);
        rate[1] = rate_of(a, squares[1]);
        strip_norm(k, rate, *b.w, lane);
        strip_put(k, key, lanes);
    }
    strip_squares(q, squares, query, lanes, lane);
    rate[0] = factor * rate_of(a, squares[0]);
    rate[1] = factor * rate_of(a, squares[1]);
    strip_rates(q, rate);
    strip_put(q, query, lanes);
}

/* Whether the phase of the given parity is over. */
static __device__ __forceinline__ bool barrier_over(Shared barrier, int parity) {
    int over;
    asm volatile("{\n.reg .pred p;\nmbarrier.test_wait.parity.shared::cta.b64 p, [%1], %2;\n"
                 "selp.b32 %0, 1, 0, p;\n}\n"
                 : "=r"(over)
                 : "r"(barrier), "r"(parity)
                 : "memory");
    return over;
}

/* Fetches an item; the next one's rows are asked into the cache. Not earlier: what is asked for two
 * heads ahead is gone from the cache by then. */
static __device__ __forceinline__ void item_fetch(const AttentionArgs &a, const CUtensorMap *map,
                                                  const Buffers &b, const Item &i, int items) {
    head_fetch(a, map, i, buffer_of(b, i), b.here + 8 * (i.round & 1));
    if (i.at + (int)gridDim.x < items) head_ahead(a, map, i.at + gridDim.x);
}

/* Brings and prepares heads, each of PREPS groups a part of the strips; the first one's first
 * thread fetches the next head as soon as its buffer is free, between two strips. */
static __device__ __forceinline__ void bring(const AttentionArgs &a, const CUtensorMap *map,
                                             const Buffers &b, int items, int2 steps, int group) {
    const Lanes lanes = lanes_init();
    const int warp = threadIdx.x >> 5 & 3, lane = threadIdx.x & 31;
    const bool one = threadIdx.x == 0;
    bool fetched = false;
    for (Item i = item_first(a); i.at < items; i = item_next(a, i, steps)) {
        const int side = i.round & 1, phase = i.round >> 1 & 1;
        const Item next = item_next(a, i, steps);
        if (one && !fetched) {
            barrier_wait(b.empty + 8 * side, phase ^ 1);
            item_fetch(a, map, b, i, items);
        }
        fetched = next.at >= items;
        __syncwarp();
        barrier_wait(b.here + 8 * side, phase);
#pragma unroll 1
        for (int n = 0; n < 4 / PREPS; n++) {
            strips_prepare(a, b, buffer_of(b, i) + 16 * (warp + 4 * (group + PREPS * n)) * 128,
                           lanes, lane);
            if (one && !fetched &&
                barrier_over(b.empty + 8 * (side ^ 1), next.round >> 1 & 1 ^ 1)) {
                item_fetch(a, map, b, next, items);
                fetched = true;
            }
            __syncwarp();
        }
        shared_is_written();
        barrier_arrive(b.full + 8 * side);
    }
}

/* Makes s, 64 queries by 256 keys of which the lane has parts of two rows, relative to the rows'
 * largest. */
static __device__ __forceinline__ void references(float (&s)[128], float (&top)[2], int tokens,
                                                  int lane) {
#pragma unroll
    for (int i = 0; i < 128; i++)
        if (8 * (i / 4) + 2 * (lane & 3) + (i & 1) >= tokens) s[i] = -INFINITY;
    float most[2][2];
#pragma unroll
    for (int i = 0; i < 4; i++) most[i >> 1][i & 1] = -INFINITY;
#pragma unroll
    for (int i = 0; i < 128; i++) most[i >> 1 & 1][i & 1] = fmaxf(most[i >> 1 & 1][i & 1], s[i]);
#pragma unroll
    for (int half = 0; half < 2; half++) {
        float x = fmaxf(most[half][0], most[half][1]);
        x = fmaxf(x, __shfl_xor_sync(0xffffffffu, x, 1));
        top[half] = fmaxf(x, __shfl_xor_sync(0xffffffffu, x, 2));
    }
#pragma unroll
    for (int i = 0; i < 128; i++) s[i] -= top[i >> 1 & 1];
}

/* Packed powers of 16 keys' scores. */
static __device__ __forceinline__ void powers(const float *s, uint32_t (&p)[4]) {
#pragma unroll
    for (int i = 0; i < 8; i += 2) p[i / 2] = pack2(exponential2(s[i]), exponential2(s[i + 1]));
}

/* Starts s = q k' once the head is there. */
static __device__ __forceinline__ void scores_start(float (&s)[128], const Buffers &b,
                                                    const Item &item, int first) {
    const Shared at = buffer_of(b, item);
    const uint64_t q = operand_straight(at + first * 128);
    const uint64_t k = operand_straight(at + WINDOW_BYTES);
    barrier_wait(b.full + 8 * (item.round & 1), item.round >> 1 & 1);
    wgmma_begin();
#pragma unroll
    for (int i = 0; i < 4; i++) wgmma_halves<0>(s, q + 2 * i, k + 2 * i, i > 0);
    wgmma_commit();
}

/* Divides by the sums (o[32], o[34]), writes o and lse. The queries' own rows are read no more: o
 * goes through them. */
static __device__ __forceinline__ void queries_put(const AttentionArgs &a, const Buffers &b,
                                                   const Item &item, int first, float (&o)[36],
                                                   const float (&top)[2], const Lanes &lanes,
                                                   int warp, int lane) {
    const int row0 = first + 16 * warp, row = row0 + (lane >> 2);
    float *lse = a.lse + (int64_t)item.at * a.tokens + row;
#pragma unroll
    for (int half = 0; half < 2; half++) {
        const float sum = o[32 + 2 * half], inverse = reciprocal(sum);
        if (a.lse && (lane & 3) == 0 && row + 8 * half < a.tokens)
            lse[8 * half] = LN_2 * (top[half] + __log2f(sum));
#pragma unroll
        for (int j = 0; j < 8; j++) {
            o[4 * j + 2 * half] *= inverse;
            o[4 * j + 2 * half + 1] *= inverse;
        }
    }
    const Shared strip = buffer_of(b, item) + row0 * 128;
    const int width = a.heads * HEAD;
    strip_round(o, strip, lanes);
    __syncwarp();
    strip_store((bf16 *)a.to + ((int64_t)item.window * a.tokens + row0) * width + item.head * HEAD,
                width, strip, a.tokens - row0, lane);
}

/* Two warpgroups take their powers one after the other: there are few units for them, and while one
 * waits for those, the other has its products and its way out. Group 1 gives the first turn. */
static __device__ __forceinline__ void powers_wait(int group) {
    asm volatile("bar.sync %0, 256;" ::"r"(2 + group) : "memory");
}
static __device__ __forceinline__ void powers_give(int group) {
    asm volatile("bar.arrive %0, 256;" ::"r"(3 - group) : "memory");
}

/* o = powers of s times values, PARTS of the keys one after the other: the product of one runs
 * under the powers of the next. The last four channels are the powers' sums. */
static __device__ __forceinline__ void values_add(float (&o)[36], const float (&s)[128],
                                                  const Buffers &b, const Item &item, int group,
                                                  bool turns) {
    const Shared at = buffer_of(b, item) + 2 * WINDOW_BYTES;
    const uint64_t values = operand_turned(at) + ((uint64_t)(b.ones - at - TILE_BYTES) >> 4 << 16);
    uint32_t p[16][4];
#pragma unroll
    for (int part = 0; part < PARTS; part++) {
#pragma unroll
        for (int i = 16 / PARTS * part; i < 16 / PARTS * (part + 1); i++) powers(&s[8 * i], p[i]);
        wgmma_begin();
#pragma unroll
        for (int i = 16 / PARTS * part; i < 16 / PARTS * (part + 1); i++)
            wgmma_72(o, p[i], values + i * (128 - (128ll << 16)), i > 0);
        wgmma_commit();
    }
    if (turns) powers_give(group);
    wgmma_wait<0>();
}

/* All queries of a warpgroup that has some. */
static __device__ __forceinline__ void take(const AttentionArgs &a, const Buffers &b, int items,
                                            int2 steps, int group) {
    const Lanes lanes = lanes_init();
    const int warp = threadIdx.x >> 5 & 3, lane = threadIdx.x & 31;
    const bool plain = b.small && a.tokens == WINDOW;
    Item item = item_first(a);
    int first = 64 * group;
    if (plain && group == 1) powers_give(group);
#pragma unroll 1
    while (item.at < items) {
        float s[128], o[36], top[2] = {0, 0};
        scores_start(s, b, item, first);
        wgmma_wait<0>();
        if (!plain) references(s, top, a.tokens, lane);
        if (plain) powers_wait(group);
        values_add(o, s, b, item, group, plain);
        queries_put(a, b, item, first, o, top, lanes, warp, lane);
        first += 128;
        if (first >= a.tokens) {
            shared_is_written(); /* before the copies that follow */
            barrier_arrive(b.empty + 8 * (item.round & 1));
            first = 64 * group;
            item = item_next(a, item, steps);
        }
    }
    if (plain && group == 0) powers_wait(group);
}

/* A warpgroup without queries. */
static __device__ __forceinline__ void pass(const Buffers &b, int items) {
    int round = 0;
    for (int item = blockIdx.x; item < items; item += gridDim.x, round++) {
        barrier_wait(b.full + 8 * (round & 1), round >> 1 & 1);
        barrier_arrive(b.empty + 8 * (round & 1));
    }
}

/* Whether no score can exceed TALL: normed rows have 64 channels of mean square 1. */
static __device__ __forceinline__ bool scores_small(const AttentionArgs &a) {
    float most = INFINITY;
    if (a.q_w) {
        most = 0;
        for (int c = 0; c < HEAD; c += 2) {
            const float2 w = weights_at(a, c);
            const float x = fmaxf(fabsf(w.x), fabsf(w.y));
            most = x <= most ? most : x; /* also when it is no number */
        }
    }
    return most * (HEAD * 1.02f) * a.scale * LOG2_E <= TALL;
}

#endif

__global__ void __launch_bounds__(THREADS, 1)
    attention_hopper_kernel(AttentionArgs a, int items, const __grid_constant__ CUtensorMap map) {
#if HAVE_SM90A
    extern __shared__ char memory[];
    __shared__ ChannelFactors w;
    Buffers b;
    b.data = (shared_address(memory) + 1023) & ~1023u;
    b.ones = b.data + 2 * BUFFER_BYTES;
    b.full = b.ones + ONES_BYTES;
    b.empty = b.full + 16;
    b.here = b.empty + 16;
    b.w = &w;
    b.small = false;
    if (threadIdx.x == 0) {
        for (int i = 0; i < 2; i++) {
            barrier_init(b.full + 8 * i, 128 * PREPS);
            barrier_init(b.empty + 8 * i, 256);
            barrier_init(b.here + 8 * i, 1);
        }
        asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
    }
    weights_put(&w, a);
    for (int at = threadIdx.x; at < ONES_BYTES / 16; at += THREADS)
        chunk_put(b.ones + at * 16, make_uint4(0x3f803f80, 0x3f803f80, 0x3f803f80, 0x3f803f80));
    /* rows that no copy brings */
    for (int at = a.tokens * CHUNKS + threadIdx.x; at < WINDOW * CHUNKS; at += THREADS)
        for (int i = 0; i < 6; i++)
            chunk_put(b.data + i * WINDOW_BYTES + at * 16, make_uint4(0, 0, 0, 0));
    shared_is_written();
    __syncthreads();
    const int role = threadIdx.x / 128;
    const int2 steps = make_int2(gridDim.x / a.heads, gridDim.x % a.heads);
    if (role == 0 || role == 3) {
        registers_down<56>();
        bring(a, &map, b, items, steps, role == 3);
    } else {
        registers_up<200>();
        b.small = scores_small(a);
        const int tiles = (a.tokens + 63) / 64;
        if (role <= tiles)
            take(a, b, items, steps, role - 1);
        else
            pass(b, items);
    }
#endif
}

bool attention_hopper_fits(Device *d, const AttentionArgs &a, int64_t windows) {
    return backend_of(d)->sm90a && a.tokens <= WINDOW && a.width == HEAD &&
           windows * a.heads <= INT32_MAX / 2;
}

Status attention_hopper(Device *d, const AttentionArgs &a, int64_t windows) {
    const int64_t items = windows * a.heads, most = backend_of(d)->sm_count;
    CUtensorMap map;
    TRY(map_matrix(&map, a.packed, windows * a.tokens, 3 * (int64_t)a.heads * HEAD, a.tokens));
    CUDA_TRY(cudaFuncSetAttribute(attention_hopper_kernel,
                                  cudaFuncAttributeMaxDynamicSharedMemorySize, SHARED_BYTES),
             "attention: shared memory");
    attention_hopper_kernel<<<(unsigned)(items < most ? items : most), THREADS, SHARED_BYTES,
                              stream_of(d)>>>(a, (int)items, map);
    return launched("attention");
}
