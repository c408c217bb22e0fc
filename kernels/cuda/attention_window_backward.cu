/* Attention of BF16 heads of 64 channels in windows of 193 to 256 tokens, backward, on Hopper.
 *
 * A persistent block goes from head to head. Two warpgroups have 64 keys each, twice a head, and go
 * through the queries in tiles of 64; scores are computed once, with keys as rows, so that P' and
 * dS' are operands of dv and dk as they lie in registers. dS goes through one of four entries to a
 * third warpgroup, which sums dq of all 256 queries in registers. That one also brings and norms
 * what comes next, in parts: a half of the keys and values, or a tile of queries and dout, is
 * fetched as soon as the entries show that the head before is done with it. So nobody waits at the
 * end of a head.
 */
#include "kernels/cuda/attention_hopper_backward.cuh"

#define THREADS 384
#define TILES   4 /* of 64 tokens, and entries */
#define PARTS   6 /* two halves of k and v, four tiles of q and dout */

typedef struct Numbers {
    float2 query[WINDOW]; /* lse in powers of two, delta */
    float q_rate[WINDOW], k_rate[WINDOW];
    float w[HEAD], sums[4][HEAD];
} Numbers;

#define ENTRY_BYTES   (2 * TILE_BYTES) /* 64 queries, 2 x 64 keys */
#define BARRIER_BYTES 256
#define SHARED_BYTES                                                                               \
    (4 * WINDOW_BYTES + TILES * ENTRY_BYTES + 3 * TILE_BYTES + 1024 + BARRIER_BYTES +              \
     (int)sizeof(Numbers))

#if HAVE_SM90A

typedef struct Room {
    Shared q, k, v, g, entries, out; /* g: dout; out: a tile for each warpgroup */
    Shared here, ready;              /* of parts: copied, normed */
    Shared full, empty;              /* of entries */
    Numbers *numbers;
} Room;

static __device__ __forceinline__ Room room_init(char *memory) {
    const Shared start = shared_address(memory), data = (start + 1023) & ~1023u;
    Room r;
    r.q = data;
    r.k = data + WINDOW_BYTES;
    r.v = data + 2 * WINDOW_BYTES;
    r.g = data + 3 * WINDOW_BYTES;
    r.entries = data + 4 * WINDOW_BYTES;
    r.out = r.entries + TILES * ENTRY_BYTES;
    r.here = r.out + 3 * TILE_BYTES;
    r.ready = r.here + 8 * PARTS;
    r.full = r.ready + 8 * PARTS;
    r.empty = r.full + 8 * TILES;
    r.numbers = (Numbers *)(memory + (r.here + BARRIER_BYTES - start));
    return r;
}

/* ---- what comes in ---- */

/* Starts copying a part of a head; by one thread. */
static __device__ __forceinline__ void part_fetch(const AttentionArgs &a, const Room &r,
                                                  const HeadMaps &maps, int part, int item) {
    const int x = (int)(item % a.heads) * HEAD, y = (int)(item / a.heads) * a.tokens;
    const Shared here = r.here + 8 * part;
    if (part < 2) {
        barrier_expect(here, 4 * TILE_BYTES);
        for (int i = 2 * part; i < 2 * part + 2; i++) {
            box_fetch(r.k + i * TILE_BYTES, &maps.packed, x + a.heads * HEAD, y + 64 * i, here);
            box_fetch(r.v + i * TILE_BYTES, &maps.packed, x + 2 * a.heads * HEAD, y + 64 * i, here);
        }
    } else {
        const int i = part - 2;
        barrier_expect(here, 2 * TILE_BYTES);
        box_fetch(r.q + i * TILE_BYTES, &maps.packed, x, y + 64 * i, here);
        box_fetch(r.g + i * TILE_BYTES, &maps.dout, x, y + 64 * i, here);
    }
}

static __device__ __forceinline__ void half_clear(Shared tile, int row, int half) {
    for (int c = 0; c < 4; c++) chunk_put(tile_at(tile, row, 4 * half + c), make_uint4(0, 0, 0, 0));
}

static __device__ __forceinline__ void keys_prepare(const AttentionArgs &a, const Room &r, int half,
                                                    int phase) {
    barrier_wait(r.here + 8 * half, phase);
#pragma unroll 1
    for (int i = 0; i < 2; i++) {
        const int row = 128 * half + 64 * i + threadIdx.x / 2, side = threadIdx.x & 1;
        const bool real = row < a.tokens;
        const float rate = half_norm(a, r.k, row, side, NULL, real);
        if (!real) half_clear(r.v, row, side);
        if (side == 0) r.numbers->k_rate[row] = rate;
    }
    shared_is_written();
    barrier_arrive(r.ready + 8 * half);
}

static __device__ __forceinline__ void queries_prepare(const AttentionArgs &a, const Room &r,
                                                       int tile, int item, int phase) {
    const int row = 64 * tile + threadIdx.x / 2, side = threadIdx.x & 1;
    const bool real = row < a.tokens;
    const bf16 *from = (const bf16 *)a.o + 32 * side +
                       plain_at(a, item / a.heads, (int)(item % a.heads), real ? row : 0);
    uint4 o[4];
#pragma unroll
    for (int c = 0; c < 4; c++) o[c] = *reinterpret_cast<const uint4 *>(from + 8 * c);
    const float lse = real ? a.lse[item * a.tokens + row] * LOG2_E : INFINITY;
    barrier_wait(r.here + 8 * (2 + tile), phase);
    float sum = 0;
#pragma unroll
    for (int c = 0; c < 4; c++) sum += dot(o[c], chunk_get(tile_at(r.g, row, 4 * side + c)));
    sum += __shfl_xor_sync(0xffffffffu, sum, 1);
    const float rate = half_norm(a, r.q, row, side, r.numbers->w, real);
    if (!real) half_clear(r.g, row, side);
    if (side == 0) {
        r.numbers->query[row] = make_float2(lse, real ? sum : 0.0f);
        r.numbers->q_rate[row] = rate;
    }
    shared_is_written();
    barrier_arrive(r.ready + 8 * (2 + tile));
}

/* ---- 64 keys and 64 queries ---- */

/* s becomes P' (keys as rows), which is packed too. */
static __device__ __forceinline__ void powers(float (&s)[32], uint32_t (&p)[4][4],
                                              const float2 *queries, float factor, int lane) {
#pragma unroll
    for (int j = 0; j < 8; j++) { /* queries 8 j + 2 (lane & 3), + 1 */
        const float4 n = *reinterpret_cast<const float4 *>(queries + 8 * j + 2 * (lane & 3));
#pragma unroll
        for (int half = 0; half < 2; half++) {
            const int i = 4 * j + 2 * half;
            s[i] = exponential2(fmaf(s[i], factor, -n.x));
            s[i + 1] = exponential2(fmaf(s[i + 1], factor, -n.z));
            p[j / 2][j % 2 * 2 + half] = pack2(s[i], s[i + 1]);
        }
    }
}
/* f = dS' over scale, packed, from the powers and dP'. */
static __device__ __forceinline__ void gradients(const float (&s)[32], const float (&d)[32],
                                                 uint32_t (&f)[4][4], const float2 *queries,
                                                 int lane) {
#pragma unroll
    for (int j = 0; j < 8; j++) {
        const float4 n = *reinterpret_cast<const float4 *>(queries + 8 * j + 2 * (lane & 3));
#pragma unroll
        for (int half = 0; half < 2; half++) {
            const int i = 4 * j + 2 * half;
            f[j / 2][j % 2 * 2 + half] = pack2(s[i] * (d[i] - n.y), s[i + 1] * (d[i + 1] - n.w));
        }
    }
}

/* One step, products started as soon as their operands are there. */
static __device__ __forceinline__ void step(const AttentionArgs &a, const Room &r, float (&dk)[32],
                                            float (&dv)[32], int pass, int group, int tile,
                                            const Lanes &lanes, int warp, int lane) {
    const Shared entry = r.entries + tile * ENTRY_BYTES + group * TILE_BYTES;
    const int keys = 128 * pass + 64 * group;
    const float2 *numbers = r.numbers->query + 64 * tile;
    float s[32], d[32];
    uint32_t p[4][4], f[4][4];
    {
        const uint64_t k = operand_straight(r.k + keys * 128),
                       v = operand_straight(r.v + keys * 128);
        const uint64_t q = operand_straight(r.q + tile * TILE_BYTES);
        const uint64_t g = operand_straight(r.g + tile * TILE_BYTES);
        wgmma_begin();
#pragma unroll
        for (int i = 0; i < 4; i++) wgmma_64<0>(s, k + 2 * i, q + 2 * i, i > 0);
        wgmma_commit();
#pragma unroll
        for (int i = 0; i < 4; i++) wgmma_64<0>(d, v + 2 * i, g + 2 * i, i > 0);
        wgmma_commit();
    }
    wgmma_wait<1>();
    powers(s, p, numbers, a.scale * LOG2_E, lane);
    const uint64_t g = operand_turned(r.g + tile * TILE_BYTES);
    const uint64_t q = operand_turned(r.q + tile * TILE_BYTES);
    wgmma_begin();
#pragma unroll
    for (int i = 0; i < 4; i++) wgmma_registers(dv, p[i], g + i * (2048 >> 4), tile > 0 || i > 0);
    wgmma_commit();
    wgmma_wait<1>();
    gradients(s, d, f, numbers, lane);
    wgmma_begin();
#pragma unroll
    for (int i = 0; i < 4; i++) wgmma_registers(dk, f[i], q + i * (2048 >> 4), tile > 0 || i > 0);
    wgmma_commit();
    barrier_wait(r.empty + 8 * tile, pass ^ 1);
#pragma unroll
    for (int c = 0; c < 4; c++) /* dS with queries as rows */
        matrix_put_turned(entry, lanes, 16 * c, 2 * warp, f[c]);
    shared_is_written();
    wgmma_wait<0>();
    barrier_arrive(r.full + 8 * tile); /* also: the tile and what came before are read */
}

/* dk and dv of the warpgroup's 64 keys to memory. */
static __device__ __forceinline__ void keys_put(const AttentionArgs &a, const Room &r, int item,
                                                float (&dk)[32], const float (&dv)[32], int keys,
                                                Shared out, const Lanes &lanes, int warp,
                                                int lane) {
    const int row0 = 16 * warp, left = a.tokens - keys - row0, row = keys + row0 + (lane >> 2);
    uint32_t n[8][2];
    const float rate[2] = {r.numbers->k_rate[row], r.numbers->k_rate[row + 8]};
    rows_of_tile(n, r.k, row, lane);
#pragma unroll
    for (int i = 0; i < 32; i++) dk[i] *= a.scale;
    norm_back(dk, n, rate, a);
    const int64_t pitch = 3 * (int64_t)a.heads * HEAD;
    bf16 *to = (bf16 *)a.to + packed_at(a, item / a.heads, 1, (int)(item % a.heads), keys + row0);
    warp_put(dk, to, pitch, out, row0, left, lanes, lane);
    warp_put(dv, to + pitch / 3, pitch, out, row0, left, lanes, lane);
}

static __device__ __forceinline__ void keys_take(const AttentionArgs &a, const Room &r, int items,
                                                 int group) {
    const Lanes lanes = lanes_init();
    const int warp = threadIdx.x >> 5 & 3, lane = threadIdx.x & 31;
    int phase = 0;
    for (int item = blockIdx.x; item < items; item += gridDim.x, phase ^= 1) {
#pragma unroll 1
        for (int pass = 0; pass < 2; pass++) {
            float dk[32], dv[32];
            barrier_wait(r.ready + 8 * pass, phase);
#pragma unroll 1
            for (int tile = 0; tile < TILES; tile++) {
                if (pass == 0) barrier_wait(r.ready + 8 * (2 + tile), phase);
                step(a, r, dk, dv, pass, group, tile, lanes, warp, lane);
            }
            keys_put(a, r, item, dk, dv, 128 * pass + 64 * group, r.out + (1 + group) * TILE_BYTES,
                     lanes, warp, lane);
        }
    }
}

/* ---- the third warpgroup ---- */

/* dq of a tile of queries += dS k of 128 keys. */
static __device__ __forceinline__ void sums_add(const Room &r, float (&dq)[32], int tile,
                                                int pass) {
    wgmma_begin();
#pragma unroll
    for (int i = 0; i < 8; i++) {
        const int side = i / 4;
        const uint64_t ds = operand_straight(r.entries + tile * ENTRY_BYTES + side * TILE_BYTES);
        const uint64_t k = operand_turned(r.k + (128 * pass + 64 * side) * 128);
        wgmma_64<1>(dq, ds + 2 * (i % 4), k + i % 4 * (2048 >> 4), pass > 0 || i > 0);
    }
    wgmma_commit();
    wgmma_wait<0>();
    barrier_arrive(r.empty + 8 * tile);
}

/* The raw rows of the lane's queries, which are normed or gone in shared memory. */
static __device__ __forceinline__ void rows_get(uint32_t (&n)[8][2], const AttentionArgs &a,
                                                int item, int row, int lane) {
    const int64_t pitch = 3 * (int64_t)a.heads * HEAD;
    const int64_t place = packed_at(a, item / a.heads, 0, (int)(item % a.heads), 0);
#pragma unroll
    for (int half = 0; half < 2; half++) row_get(n, half, a, place, pitch, row, lane);
}

/* dq of a tile to memory; adds to the weights' sums of the lane's 16 channels. */
static __device__ __forceinline__ void queries_put(const AttentionArgs &a, const Room &r, int item,
                                                   float (&dq)[32], uint32_t (&n)[8][2], int tile,
                                                   float (&sums)[16], const Lanes &lanes, int warp,
                                                   int lane) {
    const int row0 = 16 * warp, row = 64 * tile + row0 + (lane >> 2);
    const float rate[2] = {r.numbers->q_rate[row], r.numbers->q_rate[row + 8]};
    queries_back(dq, n, rate, sums, r.numbers->w, a, lane);
    const int first = 64 * tile + row0;
    bf16 *to = (bf16 *)a.to + packed_at(a, item / a.heads, 0, (int)(item % a.heads), first);
    warp_put(dq, to, 3 * (int64_t)a.heads * HEAD, r.out, row0, a.tokens - first, lanes, lane);
}

/* The sums over the head's queries, to weights[item]. */
static __device__ __forceinline__ void sums_put(const AttentionArgs &a, const Room &r, int item,
                                                float (&sums)[16], int warp, int lane) {
    if (!a.weights) return;
    warp_sums(r.numbers->sums, sums, warp, lane);
    asm volatile("bar.sync 1, 128;" ::: "memory");
    if (threadIdx.x >= HEAD) return;
    float all = 0;
    for (int i = 0; i < 4; i++) all += r.numbers->sums[i][threadIdx.x];
    a.weights[item * HEAD + threadIdx.x] = all;
}

/* A full entry says that both warpgroups are done with all before it: what they read then makes
 * room for the same part of the next head. */
static __device__ __forceinline__ void serve(const AttentionArgs &a, const Room &r,
                                             const HeadMaps &maps, int items) {
    const Lanes lanes = lanes_init();
    const int warp = threadIdx.x >> 5, lane = threadIdx.x & 31;
    const bool one = threadIdx.x == 0;
    const int start = blockIdx.x;
    for (int part = 0; part < PARTS && one; part++) part_fetch(a, r, maps, part, start);
    __syncwarp();
    keys_prepare(a, r, 0, 0);
    for (int i = 0; i < 3; i++) queries_prepare(a, r, i, start, 0);
    int phase = 0;
    for (int item = start; item < items; item += gridDim.x, phase ^= 1) {
        const int next = item + gridDim.x;
        const bool more = next < items;
        float dq[TILES][32], sums[16] = {};
#pragma unroll
        for (int i = 0; i < TILES; i++) {
            barrier_wait(r.full + 8 * i, 0);
            if (i == 0 && one && item > start) {
                part_fetch(a, r, maps, 5, item);
                part_fetch(a, r, maps, 1, item);
            }
            __syncwarp();
            sums_add(r, dq[i], i, 0);
            if (i == 1) queries_prepare(a, r, 3, item, phase);
            if (i == 2) keys_prepare(a, r, 1, phase);
        }
#pragma unroll
        for (int i = 0; i < TILES; i++) {
            uint32_t n[8][2];
            rows_get(n, a, item, 64 * i + 16 * warp + (lane >> 2), lane);
            barrier_wait(r.full + 8 * i, 1);
            if (one && more) {
                part_fetch(a, r, maps, i == 0 ? 0 : i + 1, next);
                if (i == 0)
                    box_ahead(&maps.o, (int)(next % a.heads) * HEAD,
                              (int)(next / a.heads) * a.tokens);
            }
            __syncwarp();
            sums_add(r, dq[i], i, 1);
            if (i == 3 && more) queries_prepare(a, r, 0, next, phase ^ 1);
            queries_put(a, r, item, dq[i], n, i, sums, lanes, warp, lane);
            if (i == 2 && more) keys_prepare(a, r, 0, phase ^ 1);
        }
        if (more) {
            queries_prepare(a, r, 1, next, phase ^ 1);
            queries_prepare(a, r, 2, next, phase ^ 1);
        }
        sums_put(a, r, item, sums, warp, lane);
    }
}

#endif

__global__ void __launch_bounds__(THREADS, 1)
    attention_window_backward_kernel(AttentionArgs a, int items,
                                     const __grid_constant__ HeadMaps maps) {
#if HAVE_SM90A
    extern __shared__ char memory[];
    const Room r = room_init(memory);
    if (threadIdx.x < HEAD)
        r.numbers->w[threadIdx.x] = a.q_w ? a.q_w[threadIdx.x] * a.k_w[threadIdx.x] : 1;
    if (threadIdx.x == 0) {
        for (int i = 0; i < PARTS; i++) {
            barrier_init(r.here + 8 * i, 1);
            barrier_init(r.ready + 8 * i, 128);
        }
        for (int i = 0; i < TILES; i++) {
            barrier_init(r.full + 8 * i, 256);
            barrier_init(r.empty + 8 * i, 128);
        }
        asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
    }
    __syncthreads();
    if (threadIdx.x < 128) {
        registers_up<184>();
        serve(a, r, maps, items);
    } else {
        registers_down<160>();
        keys_take(a, r, items, threadIdx.x / 128 - 1);
    }
#endif
}

bool attention_window_backward_fits(Device *d, const AttentionArgs &a, int64_t windows) {
    return attention_hopper_fits(d, a, windows) && a.tokens > 3 * 64;
}

Status attention_window_backward(Device *d, const AttentionArgs &a, int64_t windows) {
    const int64_t items = windows * a.heads, most = backend_of(d)->sm_count;
    HeadMaps maps;
    TRY(head_maps(&maps, a, windows, 64));
    CUDA_TRY(cudaFuncSetAttribute(attention_window_backward_kernel,
                                  cudaFuncAttributeMaxDynamicSharedMemorySize, SHARED_BYTES),
             "attention_backward: shared memory");
    attention_window_backward_kernel<<<(unsigned)(items < most ? items : most), THREADS,
                                       SHARED_BYTES, stream_of(d)>>>(a, (int)items, maps);
    return launched("attention_backward");
}
