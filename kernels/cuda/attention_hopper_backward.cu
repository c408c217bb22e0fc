/* Attention of BF16 heads of 64 channels in windows of at most 256 tokens, backward, on Hopper.
 *
 * A persistent block takes head after head: q, k, v and dout stand in shared memory. Each of two
 * warpgroups has 64 keys at a time and goes through the queries in steps of 64. Scores are computed
 * once: with keys as rows, so that P' and dS' are operands of dv and dk as they lie in registers;
 * dS passes through shared memory for its product with k. Those products are summed in shared
 * memory, a tile of queries by one warpgroup at a time: their order is fixed.
 */
#include "kernels/cuda/attention_hopper_backward.cuh"

#define THREADS 256
#define STEPS   (WINDOW / 64) /* most tiles of 64 tokens */

/* Numbers of tokens, and sums. */
typedef struct Numbers {
    float2 query[WINDOW]; /* lse in powers of two, delta */
    float q_rate[WINDOW], k_rate[WINDOW];
    float w[HEAD], sums[THREADS / 32][HEAD];
} Numbers;
#define SUM_BYTES    (WINDOW * HEAD * 4) /* of dq */
#define SPARE_BYTES  (2 * TILE_BYTES)
#define SHARED_BYTES (4 * WINDOW_BYTES + SUM_BYTES + SPARE_BYTES + 1024 + 16 + (int)sizeof(Numbers))

#if HAVE_SM90A

typedef struct Head {
    Shared q, k, v, g, sums, staging, here; /* g: dout; here: barrier of the copies */
    Numbers *numbers;
    int64_t window, item;
    int head;
} Head;

static __device__ __forceinline__ void item_set(const AttentionArgs &a, Head &h, int64_t item) {
    h.item = item;
    h.window = item / a.heads;
    h.head = (int)(item % a.heads);
}

/* Starts copying a head; by one thread. */
static __device__ __forceinline__ void head_fetch(const AttentionArgs &a, const Head &h,
                                                  const HeadMaps &maps) {
    const int x = h.head * HEAD, y = (int)h.window * a.tokens;
    barrier_expect(h.here, 4 * a.tokens * 128);
    box_fetch(h.q, &maps.packed, x, y, h.here);
    box_fetch(h.k, &maps.packed, x + a.heads * HEAD, y, h.here);
    box_fetch(h.v, &maps.packed, x + 2 * a.heads * HEAD, y, h.here);
    box_fetch(h.g, &maps.dout, x, y, h.here);
}

/* Asks for a head's rows in the L2 cache. */
static __device__ __forceinline__ void head_ahead(const AttentionArgs &a, const HeadMaps &maps,
                                                  int64_t item) {
    const int x = (int)(item % a.heads) * HEAD, y = (int)(item / a.heads) * a.tokens;
    for (int third = 0; third < 3; third++) box_ahead(&maps.packed, x + third * a.heads * HEAD, y);
    box_ahead(&maps.dout, x, y);
    box_ahead(&maps.o, x, y);
}

/* The sum of products of a row of dout, in shared memory, and one of o. */
static __device__ __forceinline__ float delta_of(const Head &h, const uint4 (&o)[CHUNKS], int row) {
    float sum = 0;
#pragma unroll
    for (int c = 0; c < CHUNKS; c++) sum += dot(o[c], chunk_get(tile_at(h.g, row, c)));
    return sum;
}

/* Waits for the copies, then thread t prepares row t. */
static __device__ __forceinline__ void head_get(const AttentionArgs &a, const Head &h, int phase) {
    const int row = threadIdx.x;
    const bool real = row < a.tokens;
    uint4 o[CHUNKS];
    const bf16 *from = (const bf16 *)a.o + plain_at(a, h.window, h.head, real ? row : 0);
#pragma unroll
    for (int c = 0; c < CHUNKS; c++)
        o[c] = *reinterpret_cast<const uint4 *>(from + c * (HEAD / CHUNKS));
    const float lse = real ? a.lse[h.item * a.tokens + row] * LOG2_E : INFINITY;
    barrier_wait(h.here, phase);
    __syncthreads(); /* the numbers of the head before are not read any more */
    h.numbers->query[row] = make_float2(lse, real ? delta_of(h, o, row) : 0.0f);
    h.numbers->q_rate[row] = window_norm(a, h.q, row, h.numbers->w);
    h.numbers->k_rate[row] = window_norm(a, h.k, row, NULL);
    shared_is_written();
    __syncthreads();
}

/* ---- 64 keys and 64 queries ---- */

/* A barrier of a warpgroup. */
static __device__ __forceinline__ void meet(int group) {
    asm volatile("bar.sync %0, 128;" ::"r"(2 + group) : "memory");
}

/* Scores and dP of 64 keys (rows) and 64 queries. */
static __device__ __forceinline__ void scores(float (&s)[32], float (&d)[32], const Head &h,
                                              int keys, int queries) {
    const uint64_t k = operand_straight(h.k + keys * 128), v = operand_straight(h.v + keys * 128);
    const uint64_t q = operand_straight(h.q + queries * 128);
    const uint64_t g = operand_straight(h.g + queries * 128);
    wgmma_begin();
#pragma unroll
    for (int i = 0; i < 4; i++) wgmma_64<0>(s, k + 2 * i, q + 2 * i, i > 0);
#pragma unroll
    for (int i = 0; i < 4; i++) wgmma_64<0>(d, v + 2 * i, g + 2 * i, i > 0);
    wgmma_commit();
    wgmma_wait<0>();
}

/* p = P', f = dS' over scale, packed. */
static __device__ __forceinline__ void slopes(const float (&s)[32], const float (&d)[32],
                                              uint32_t (&p)[4][4], uint32_t (&f)[4][4],
                                              const float2 *queries, float factor, int lane) {
#pragma unroll
    for (int j = 0; j < 8; j++) { /* queries 8 j + 2 (lane & 3), + 1 */
        const float4 n = *reinterpret_cast<const float4 *>(queries + 8 * j + 2 * (lane & 3));
#pragma unroll
        for (int half = 0; half < 2; half++) {
            const int i = 4 * j + 2 * half;
            const float x = exponential2(fmaf(s[i], factor, -n.x));
            const float y = exponential2(fmaf(s[i + 1], factor, -n.z));
            p[j / 2][j % 2 * 2 + half] = pack2(x, y);
            f[j / 2][j % 2 * 2 + half] = pack2(x * (d[i] - n.y), y * (d[i + 1] - n.w));
        }
    }
}

/* Adds a tile of dq to its sums: a thread's own 16 bytes of each part of 8 channels. */
static __device__ __forceinline__ Shared sums_at(const Head &h, int tile, int part) {
    return h.sums + ((tile * 8 + part) * 128 + (threadIdx.x & 127)) * 16;
}
static __device__ __forceinline__ void sums_load(float *v, Shared at) {
    asm volatile("ld.shared.v4.f32 {%0,%1,%2,%3}, [%4];"
                 : "=f"(v[0]), "=f"(v[1]), "=f"(v[2]), "=f"(v[3])
                 : "r"(at)
                 : "memory");
}
static __device__ __forceinline__ void sums_store(Shared at, float a, float b, float c, float d) {
    asm volatile("st.shared.v4.f32 [%0], {%1,%2,%3,%4};" ::"r"(at), "f"(a), "f"(b), "f"(c), "f"(d)
                 : "memory");
}
static __device__ __forceinline__ void sums_add(const Head &h, const float (&dq)[32], int tile) {
#pragma unroll
    for (int j = 0; j < 8; j++) {
        float v[4];
        sums_load(v, sums_at(h, tile, j));
        sums_store(sums_at(h, tile, j), v[0] + dq[4 * j], v[1] + dq[4 * j + 1],
                   v[2] + dq[4 * j + 2], v[3] + dq[4 * j + 3]);
    }
}

/* One step: adds to dk and dv of the warpgroup's 64 keys, and to dq of 64 queries. */
static __device__ __forceinline__ void step(const AttentionArgs &a, const Head &h, float (&dk)[32],
                                            float (&dv)[32], int keys, int tile, bool keep,
                                            bool turns, const Lanes &lanes, int warp, int lane) {
    const int group = warp / 4;
    const Shared staging = h.staging + group * TILE_BYTES;
    float s[32], d[32], dq[32];
    uint32_t p[4][4], f[4][4];
    if (turns) turn_wait(group);
    scores(s, d, h, keys, 64 * tile);
    if (turns) turn_give(group);
    slopes(s, d, p, f, h.numbers->query + 64 * tile, a.scale * LOG2_E, lane);
#pragma unroll
    for (int c = 0; c < 4; c++) /* dS with queries as rows */
        matrix_put_turned(staging, lanes, 16 * c, 2 * (warp & 3), f[c]);
    shared_is_written();
    meet(group);
    const uint64_t g = operand_turned(h.g + tile * TILE_BYTES);
    const uint64_t q = operand_turned(h.q + tile * TILE_BYTES);
    const uint64_t k = operand_turned(h.k + keys * 128), ds = operand_straight(staging);
    if (turns) turn_wait(group);
    wgmma_begin();
#pragma unroll
    for (int i = 0; i < 4; i++) wgmma_64<1>(dq, ds + 2 * i, k + i * (2048 >> 4), i > 0);
#pragma unroll
    for (int i = 0; i < 4; i++) wgmma_registers(dv, p[i], g + i * (2048 >> 4), keep || i > 0);
#pragma unroll
    for (int i = 0; i < 4; i++) wgmma_registers(dk, f[i], q + i * (2048 >> 4), keep || i > 0);
    wgmma_commit();
    wgmma_wait<0>();
    if (turns) turn_give(group);
    sums_add(h, dq, tile);
}

/* dk and dv of the warpgroup's 64 keys to memory. */
static __device__ __forceinline__ void keys_put(const AttentionArgs &a, const Head &h,
                                                float (&dk)[32], const float (&dv)[32], int keys,
                                                const Lanes &lanes, int warp, int lane) {
    const int row0 = 16 * (warp & 3), left = a.tokens - keys - row0;
    meet(warp / 4); /* no product reads the staging any more */
    const int row = keys + row0 + (lane >> 2);
    uint32_t n[8][2];
    const float rate[2] = {h.numbers->k_rate[row], h.numbers->k_rate[row + 8]};
    rows_of_tile(n, h.k, row, lane);
#pragma unroll
    for (int i = 0; i < 32; i++) dk[i] *= a.scale;
    norm_back(dk, n, rate, a);
    const Shared staging = h.staging + warp / 4 * TILE_BYTES;
    const int64_t pitch = 3 * (int64_t)a.heads * HEAD;
    bf16 *to = (bf16 *)a.to + packed_at(a, h.window, 1, h.head, keys + row0);
    warp_put(dk, to, pitch, staging, row0, left, lanes, lane);
    warp_put(dv, to + pitch / 3, pitch, staging, row0, left, lanes, lane);
    meet(warp / 4); /* the staging is free again */
}

/* All pairs of tiles. At any time the warpgroups are at different queries: when both have as many
 * keys, turns keep them less than a step apart; else a barrier does, at which sums are complete. */
static __device__ __forceinline__ void products(const AttentionArgs &a, const Head &h, bool turns,
                                                const Lanes &lanes, int warp, int lane) {
    const int tiles = (a.tokens + 63) / 64, group = warp / 4;
#pragma unroll 1
    for (int first = 0; first < tiles; first += 2) {
        const int keys = 64 * (first + group);
        const bool busy = first + group < tiles;
        float dk[32], dv[32];
#pragma unroll 1
        for (int i = 0; i < tiles; i++) {
            const int tile = (i + group * (tiles / 2)) % tiles;
            if (busy) step(a, h, dk, dv, keys, tile, i > 0, turns, lanes, warp, lane);
            if (!turns) __syncthreads();
        }
        if (busy) keys_put(a, h, dk, dv, keys, lanes, warp, lane);
    }
}

/* dq of 64 queries from `first` on; adds to the weights' sums of the lane's 16 channels. Leaves
 * zeros in the place of dq. */
static __device__ __forceinline__ void queries_put(const AttentionArgs &a, const Head &h, int first,
                                                   float (&sums)[16], const Lanes &lanes, int warp,
                                                   int lane) {
    const int row0 = 16 * (warp & 3), row = first + row0 + (lane >> 2);
    const int64_t pitch = 3 * (int64_t)a.heads * HEAD;
    const int64_t place = packed_at(a, h.window, 0, h.head, 0);
    uint32_t n[8][2];
    float dq[32], rate[2];
#pragma unroll
    for (int half = 0; half < 2; half++) { /* the raw rows, which are copied over by now */
        row_get(n, half, a, place, pitch, row, lane);
        rate[half] = h.numbers->q_rate[row + 8 * half];
    }
#pragma unroll
    for (int j = 0; j < 8; j++) {
        sums_load(&dq[4 * j], sums_at(h, first / 64, j));
        sums_store(sums_at(h, first / 64, j), 0, 0, 0, 0);
    }
    queries_back(dq, n, rate, sums, h.numbers->w, a, lane);
    warp_put(dq, (bf16 *)a.to + place + (first + row0) * pitch, pitch,
             h.staging + warp / 4 * TILE_BYTES, row0, a.tokens - first - row0, lanes, lane);
}

/* The block's sums over queries, to weights[item]. */
static __device__ __forceinline__ void sums_put(const AttentionArgs &a, const Head &h,
                                                float (&sums)[16], int warp, int lane) {
    warp_sums(h.numbers->sums, sums, warp, lane);
    __syncthreads();
    if (threadIdx.x >= HEAD || !a.weights) return;
    float all = 0;
    for (int i = 0; i < THREADS / 32; i++) all += h.numbers->sums[i][threadIdx.x];
    a.weights[h.item * HEAD + threadIdx.x] = all;
}

/* Zeros where no copy goes, and for the sums. */
static __device__ __forceinline__ void shared_clear(const AttentionArgs &a, const Head &h) {
    const uint4 none = make_uint4(0, 0, 0, 0);
    for (int i = 0; i < 4; i++)
        for (int at = a.tokens * CHUNKS + threadIdx.x; at < WINDOW * CHUNKS; at += THREADS)
            chunk_put(h.q + i * WINDOW_BYTES + at * 16, none);
    for (int at = threadIdx.x; at < SUM_BYTES / 16; at += THREADS)
        chunk_put(h.sums + at * 16, none);
    shared_is_written();
}

static __device__ __forceinline__ Head head_init(char *memory) {
    const Shared start = shared_address(memory), data = (start + 1023) & ~1023u;
    Head h = {};
    h.q = data;
    h.k = data + WINDOW_BYTES;
    h.v = data + 2 * WINDOW_BYTES;
    h.g = data + 3 * WINDOW_BYTES;
    h.staging = data + 4 * WINDOW_BYTES;
    h.sums = h.staging + SPARE_BYTES;
    h.here = h.sums + SUM_BYTES;
    h.numbers = (Numbers *)(memory + (h.here + 16 - start));
    return h;
}

#endif

__global__ void __launch_bounds__(THREADS, 1)
    attention_hopper_backward_kernel(AttentionArgs a, int64_t items,
                                     const __grid_constant__ HeadMaps maps) {
#if HAVE_SM90A
    extern __shared__ char memory[];
    const Lanes lanes = lanes_init();
    const int warp = threadIdx.x >> 5, lane = threadIdx.x & 31;
    Head h = head_init(memory);
    shared_clear(a, h);
    if (threadIdx.x < HEAD)
        h.numbers->w[threadIdx.x] = a.q_w ? a.q_w[threadIdx.x] * a.k_w[threadIdx.x] : 1;
    item_set(a, h, blockIdx.x);
    if (threadIdx.x == 0) {
        barrier_init(h.here, 1);
        asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
    }
    __syncthreads();
    if (threadIdx.x == 0) head_fetch(a, h, maps);
    const bool turns = (a.tokens + 63) / 64 % 2 == 0;
    if (turns && warp >= 4) turn_give(1);
    int phase = 0;
    for (int64_t item = blockIdx.x; item < items; item += gridDim.x, phase ^= 1) {
        const int64_t next = item + gridDim.x;
        item_set(a, h, item);
        head_get(a, h, phase);
        if (threadIdx.x == 0 && next < items) head_ahead(a, maps, next);
        products(a, h, turns, lanes, warp, lane);
        shared_is_written();
        __syncthreads(); /* the head's rows are not read any more */
        if (threadIdx.x == 0 && next < items) {
            Head after = h;
            item_set(a, after, next);
            head_fetch(a, after, maps);
        }
        float sums[16] = {};
#pragma unroll 1
        for (int first = 64 * (warp / 4); first < a.tokens; first += 128)
            queries_put(a, h, first, sums, lanes, warp, lane);
        sums_put(a, h, sums, warp, lane);
    }
#endif
}

Status attention_hopper_backward(Device *d, const AttentionArgs &a, int64_t windows) {
    const int64_t items = windows * a.heads, most = backend_of(d)->sm_count;
    HeadMaps maps;
    TRY(head_maps(&maps, a, windows, a.tokens));
    CUDA_TRY(cudaFuncSetAttribute(attention_hopper_backward_kernel,
                                  cudaFuncAttributeMaxDynamicSharedMemorySize, SHARED_BYTES),
             "attention_backward: shared memory");
    attention_hopper_backward_kernel<<<(unsigned)(items < most ? items : most), THREADS,
                                       SHARED_BYTES, stream_of(d)>>>(a, items, maps);
    return launched("attention_backward");
}
