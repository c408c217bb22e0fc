/* Attention of BF16 heads of 64 channels in windows of 193 to 256 tokens, backward, on Hopper.
 *
 * A persistent block goes from head to head. Two warpgroups have 64 keys each, twice a head, and go
 * through the queries in tiles of 64; scores are computed once, with keys as rows, so that P' and
 * dS' are operands of dv and dk as they lie in registers. dS goes through one of four entries to
 * one of two further warpgroups, which sum dq of two tiles of queries each in registers. They also
 * bring and norm what comes next, in parts: a half of the keys and values, or a tile of queries and
 * dout, is fetched as soon as the entries show that the head before is done with it.
 *
 * In shared memory stand k w rate and q rate scale in powers of two, w the product of both norms'
 * weights and rate that of the row, rounded to BF16; so products are scores. What is subtracted
 * from a query's scores and dP, lse and delta, comes in with the products: as three BF16 numbers
 * each in further channels of q and dout.
 */
#include "kernels/cuda/attention_window_keys.cuh"

#define THREADS 512
/* a thread of the keys, of those that serve: together what the launch gives */
#define KEYS_REGISTERS  160
#define SERVE_REGISTERS 96

#if HAVE_SM90A

/* dq of a tile of queries += dS k of 128 keys. */
static __device__ __forceinline__ void sums_add(const Room &r, float (&dq)[32], int tile,
                                                int pass) {
    Shared start; /* anew each time: the compiler would keep all operands' descriptions */
    asm volatile("mov.u32 %0, %1;" : "=r"(start) : "r"(r.q));
    wgmma_begin();
#pragma unroll
    for (int i = 0; i < 8; i++) {
        const int side = i / 4;
        const uint64_t ds =
            operand_straight(start + (r.entries - r.q) + tile * ENTRY_BYTES + side * TILE_BYTES);
        const uint64_t k = operand_turned(start + (r.k - r.q) + (128 * pass + 64 * side) * 128);
        wgmma_64<1>(dq, ds + 2 * (i % 4), k + i % 4 * (2048 >> 4), pass > 0 || i > 0);
    }
    wgmma_commit();
    wgmma_wait<0>();
    barrier_arrive(r.empty + 8 * tile);
}

/* dq of a tile to memory, from that of the normed row n over scale; in shared memory stands n scale
 * in powers of two. dq = rate (x - n mean(n x)), x that times scale. */
static __device__ __forceinline__ void queries_put(const AttentionArgs &a, const Room &r,
                                                   const WindowMaps &maps, const Item &item,
                                                   float (&dq)[32], int tile, Lanes lanes, int warp,
                                                   int lane) {
    forget(lanes, warp, lane);
    const int row0 = 64 * tile + 16 * warp, row = row0 + (lane >> 2);
    const float share = a.q_w ? LN_2 * LN_2 / (HEAD * a.scale * a.scale) : 0.0f;
    uint32_t n[4][4]; /* [two chunks][chunk, row] */
    strip_get(n, r.q + row0 * 128, lanes.below);
#pragma unroll
    for (int half = 0; half < 2; half++) {
        float sum = 0;
#pragma unroll
        for (int j = 0; j < 8; j++) {
            const uint32_t q = n[j / 2][j % 2 * 2 + half];
            sum = fmaf(low_of(q), dq[4 * j + 2 * half], sum);
            sum = fmaf(high_of(q), dq[4 * j + 2 * half + 1], sum);
        }
        const float rate = r.numbers->q_rate[row + 8 * half] * a.scale;
        const float mean = quad_sum(sum) * (rate * share);
#pragma unroll
        for (int j = 0; j < 8; j++) {
            const uint32_t q = n[j / 2][j % 2 * 2 + half];
            float *x = &dq[4 * j + 2 * half];
            x[0] = fmaf(-low_of(q), mean, rate * x[0]);
            x[1] = fmaf(-high_of(q), mean, rate * x[1]);
        }
    }
    const Shared out = r.q + row0 * 128;
    strip_round(dq, out, lanes);
    strip_send(&maps.to, item.head * HEAD, row0, item.window, out, lane);
}

/* Nobody of the warpgroup reads any more what is fetched over, nor is it being sent. */
static __device__ __forceinline__ void serve_sync(int group, int lane) {
    if (lane == 0) sends_read();
    __syncwarp();
    asm volatile("bar.sync %0, 128;" ::"r"(1 + 4 * group) : "memory");
}

/* Prepares a tile of queries with what it needs from memory. */
static __device__ __forceinline__ void tile_prepare(const AttentionArgs &a, const Room &r, int tile,
                                                    const Item &item, int phase, const Lanes &lanes,
                                                    int warp, int lane) {
    Outputs x;
    outputs_get(x, a, tile, item, warp, lane);
    queries_prepare(a, r, tile, x, phase, lanes, warp, lane);
}

/* The first half of the keys for two tiles of queries. A full entry says that both warpgroups of
 * the keys are done with all before it. */
template <int GROUP>
static __device__ __forceinline__ void
first_half(const AttentionArgs &a, const Room &r, const WindowMaps &maps, const Item &item,
           const Item &next, float (&dq)[2][32], int items, bool first, int phase,
           const Lanes &lanes, int warp, int lane) {
    barrier_wait(r.full + 8 * GROUP, 0);
    if (GROUP == 0 && threadIdx.x == 0 && !first) {
        barrier_wait(r.done + 8, phase ^ 1);
        part_fetch(a, r, maps, 1, item);
    }
    __syncwarp();
    sums_add(r, dq[0], GROUP, 0);
    if (GROUP == 1 && next.at < items) outputs_ahead(a, maps, next);
    if (GROUP == 0) keys_prepare(a, r, 1, phase, lanes, warp, lane);
    barrier_wait(r.full + 8 * (GROUP + 2), 0);
    __syncwarp();
    sums_add(r, dq[1], GROUP + 2, 0);
    barrier_arrive(r.done);
}

/* The second half; dq leaves. Fetches what the next head has in its place, and prepares it: the
 * keys' warpgroups wait for the first tiles of queries. */
template <int GROUP>
static __device__ __forceinline__ void
second_half(const AttentionArgs &a, const Room &r, const WindowMaps &maps, const Item &item,
            const Item &next, float (&dq)[2][32], bool more, int phase, const Lanes &lanes,
            int warp, int lane) {
    const bool fetches = threadIdx.x % 128 == 0 && more;
    barrier_wait(r.full + 8 * GROUP, 1);
    __syncwarp();
    sums_add(r, dq[0], GROUP, 1);
    if (GROUP == 0 && fetches) {
        barrier_wait(r.done, phase);
        part_fetch(a, r, maps, 0, next);
    }
    __syncwarp();
    queries_put(a, r, maps, item, dq[0], GROUP, lanes, warp, lane);
    if (GROUP == 1 && more) keys_prepare(a, r, 0, phase ^ 1, lanes, warp, lane);
    serve_sync(GROUP, lane);
    if (fetches) part_fetch(a, r, maps, GROUP + 2, next);
    __syncwarp();
    barrier_wait(r.full + 8 * (GROUP + 2), 1);
    __syncwarp();
    sums_add(r, dq[1], GROUP + 2, 1);
    barrier_arrive(r.done + 8);
    queries_put(a, r, maps, item, dq[1], GROUP + 2, lanes, warp, lane);
    Outputs x;
    if (more) outputs_get(x, a, GROUP, next, warp, lane);
    serve_sync(GROUP, lane);
    if (fetches) part_fetch(a, r, maps, GROUP + 4, next);
    __syncwarp();
    if (!more) return;
    queries_prepare(a, r, GROUP, x, phase ^ 1, lanes, warp, lane);
    tile_prepare(a, r, GROUP + 2, next, phase ^ 1, lanes, warp, lane);
}

/* Tiles GROUP and GROUP + 2 of the queries of all heads. */
template <int GROUP>
static __device__ __forceinline__ void serve(const AttentionArgs &a, const Room &r,
                                             const WindowMaps &maps, int items) {
    const Lanes lanes = lanes_init();
    const int warp = threadIdx.x >> 5 & 3, lane = threadIdx.x & 31;
    Item item = item_of(a, blockIdx.x);
    for (int part = 0; part < PARTS && threadIdx.x == 0; part++) part_fetch(a, r, maps, part, item);
    __syncwarp();
    if (GROUP == 1) keys_prepare(a, r, 0, 0, lanes, warp, lane);
    tile_prepare(a, r, GROUP, item, 0, lanes, warp, lane);
    tile_prepare(a, r, GROUP + 2, item, 0, lanes, warp, lane);
    bool first = true;
#pragma unroll 1
    for (int phase = 0; item.at < items; phase ^= 1) {
        const Item next = item_of(a, item.at + gridDim.x);
        float dq[2][32];
        first_half<GROUP>(a, r, maps, item, next, dq, items, first, phase, lanes, warp, lane);
        second_half<GROUP>(a, r, maps, item, next, dq, next.at < items, phase, lanes, warp, lane);
        item = next;
        first = false;
    }
    if (lane == 0) sends_done();
}

#endif

__global__ void __launch_bounds__(THREADS, 1)
    attention_window_backward_kernel(AttentionArgs a, int items,
                                     const __grid_constant__ WindowMaps maps) {
#if HAVE_SM90A
    extern __shared__ char memory[];
    const Room r = room_init(memory);
    weights_put(&r.numbers->w, a);
    if (threadIdx.x < HEAD)
        r.numbers->scaled_w[threadIdx.x] =
            a.q_w ? LN_2 * a.q_w[threadIdx.x] * a.k_w[threadIdx.x] : LN_2;
    if (threadIdx.x < 16)
        r.numbers->ones[threadIdx.x / 8][threadIdx.x % 8] =
            threadIdx.x < 8 ? make_uint4(0x3f803f80, 0x3f80, 0, 0)
                            : make_uint4(0, 0x3f800000, 0x3f803f80, 0);
    if (threadIdx.x < 64) r.numbers->zeros[threadIdx.x] = make_uint4(0, 0, 0, 0);
    if (threadIdx.x == 0) {
        for (int i = 0; i < PARTS; i++) {
            barrier_init(r.here + 8 * i, 1);
            barrier_init(r.ready + 8 * i, 128);
        }
        for (int i = 0; i < 8; i++) barrier_init(r.raw + 8 * i, 1);
        for (int i = 0; i < TILES; i++) {
            barrier_init(r.full + 8 * i, 256);
            barrier_init(r.empty + 8 * i, 128);
        }
        for (int i = 0; i < 2; i++) barrier_init(r.done + 8 * i, 256);
        asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
    }
    shared_is_written();
    __syncthreads();
    const int role = (int)__reduce_max_sync(0xffffffffu, threadIdx.x / 128);
    if (role == 0) {
        registers_down<SERVE_REGISTERS>();
        serve<0>(a, r, maps, items);
    } else if (role == 3) {
        registers_down<SERVE_REGISTERS>();
        serve<1>(a, r, maps, items);
    } else {
        registers_up<KEYS_REGISTERS>();
        keys_take(a, r, maps, items, role - 1);
    }
#endif
}

static Status map_windows(CUtensorMap *map, const void *p, int64_t windows, int tokens,
                          int64_t columns, int box_rows) {
    const cuuint64_t size[3] = {(cuuint64_t)columns, (cuuint64_t)tokens, (cuuint64_t)windows};
    const cuuint64_t pitches[2] = {(cuuint64_t)columns * sizeof(bf16),
                                   (cuuint64_t)(columns * tokens) * sizeof(bf16)};
    const cuuint32_t box[3] = {HEAD, (cuuint32_t)box_rows, 1};
    return tensor_map(map, CU_TENSOR_MAP_DATA_TYPE_BFLOAT16, 3, p, size, pitches, box,
                      CU_TENSOR_MAP_SWIZZLE_128B, CU_TENSOR_MAP_L2_PROMOTION_L2_256B);
}

static Status window_maps(WindowMaps *maps, const AttentionArgs &a, int64_t windows) {
    const int64_t width = (int64_t)a.heads * HEAD;
    TRY(map_windows(&maps->packed, a.packed, windows, a.tokens, 3 * width, 64));
    TRY(map_windows(&maps->strips, a.packed, windows, a.tokens, 3 * width, 16));
    TRY(map_windows(&maps->dout, a.dout, windows, a.tokens, width, 64));
    TRY(map_windows(&maps->o, a.o, windows, a.tokens, width, WINDOW));
    return map_windows(&maps->to, a.to, windows, a.tokens, 3 * width, 16);
}

bool attention_window_backward_fits(Device *d, const AttentionArgs &a, int64_t windows) {
    return attention_hopper_fits(d, a, windows) && a.tokens > 3 * 64;
}

int64_t attention_window_parts(Device *d, int64_t windows, int64_t heads) {
    const int64_t items = windows * heads, most = backend_of(d)->sm_count;
    return items < most ? items : most;
}

Status attention_window_backward(Device *d, const AttentionArgs &a, int64_t windows) {
    WindowMaps maps;
    TRY(window_maps(&maps, a, windows));
    CUDA_TRY(cudaFuncSetAttribute(attention_window_backward_kernel,
                                  cudaFuncAttributeMaxDynamicSharedMemorySize, WINDOW_SHARED),
             "attention_backward: shared memory");
    attention_window_backward_kernel<<<(unsigned)attention_window_parts(d, windows, a.heads),
                                       THREADS, WINDOW_SHARED, stream_of(d)>>>(
        a, (int)(windows * a.heads), maps);
    return launched("attention_backward");
}
