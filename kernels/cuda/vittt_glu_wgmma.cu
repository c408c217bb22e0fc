/* GLU branch, forward, on Hopper's warpgroup products (glu_wgmma.cuh has the picture).
 *
 * Pass over K, V: G; then W'; pass over Q: the output. A block walks through the samples part,
 * part + parts, ... of its head; tiles of all passes form one stream through a ring. W' never
 * leaves the registers: what G' is in the accumulators is at once the left operand of W' Q'.
 */
#include "kernels/cuda/glu_train.cuh"

/* Shared memory: W1, W2, the ring's tiles, a tile of results, barriers. */
template <int CHUNK, int STAGES> struct RingLayout {
    static const int tile = CHUNK * ROW_BYTES;
    static const int ring = 2 * TILE_BYTES;
    static const int result = ring + STAGES * tile;
    static const int barriers = result + tile;
    static const int bytes = barriers + 8 * STAGES;
};

#if HAVE_SM90A

/* The next tile that is not yet in flight: K (part 0) or V of pass 0, Q of pass 1. */
typedef struct RingFeed {
    int b, pass, part, first, stage;
} RingFeed;

typedef struct RingTask {
    Shared base;
    int channel; /* first channel */
    bool feeder;
} RingTask;

/* Brings the next tile; its place is free. */
template <int CHUNK, int STAGES>
static __device__ __forceinline__ void ring_feed(RingFeed &f, const FeedMaps &maps,
                                                 const RingTask &k, const GluArgs &a) {
    typedef RingLayout<CHUNK, STAGES> L;
    if (f.b >= a.batch) return;
    const Shared barrier = k.base + L::barriers + 8 * f.stage;
    barrier_expect(barrier, L::tile);
    box3_fetch(k.base + L::ring + f.stage * L::tile,
               f.pass ? &maps.q : (f.part ? &maps.v : &maps.k), k.channel, f.first, f.b, barrier);
    f.stage = f.stage + 1 == STAGES ? 0 : f.stage + 1;
    if (f.pass == 0 && f.part == 0) {
        f.part = 1;
        return;
    }
    f.part = 0;
    f.first += CHUNK;
    if (f.first < a.tokens) return;
    f.first = 0;
    f.pass ^= 1;
    if (f.pass == 0) f.b += a.parts;
}

/* The next tile, when it has arrived. */
template <int CHUNK, int STAGES>
static __device__ __forceinline__ Shared ring_next(FeedPlace &at, const RingTask &k) {
    typedef RingLayout<CHUNK, STAGES> L;
    const Shared tile = k.base + L::ring + at.stage * L::tile;
    feed_wait(at, k.base + L::barriers);
    feed_step<STAGES>(at);
    return tile;
}

/* `count` tiles have been read by this warp. */
template <int CHUNK, int STAGES>
static __device__ __forceinline__ void ring_leave(RingFeed &f, int count, const FeedMaps &maps,
                                                  const RingTask &k, const GluArgs &a) {
    __syncthreads();
    if (!k.feeder) return;
    for (int i = 0; i < count; i++) ring_feed<CHUNK, STAGES>(f, maps, k, a);
}

/* 1/2 (1 + tanh(x/2)), off by 2^-12 at most: what it multiplies is rounded to BF16, 2^-9. */
static __device__ __forceinline__ float logistic_quick(float x) {
    float t;
    asm("tanh.approx.f32 %0, %1;" : "=f"(t) : "f"(0.5f * x));
    return fmaf(0.5f, t, 0.5f);
}

/* ---- the pass over K and V ---- */

/* V A and V Z1 D of Z1, Z2, in their places, as left operands. */
template <int N, int D>
static __device__ __forceinline__ void
write_elements(uint32_t (&a1)[N / 16][4], uint32_t (&a2)[N / 16][4], float (&z1)[N / 2],
               float (&z2)[N / 2], Shared v_tile, const GluPlace<D> &p) {
#pragma unroll
    for (int t = 0; t < N / 16; t++) {
        uint32_t v[4];
        matrix_get_turned(v, region(v_tile, p.own.beside, 16 * t, 0));
#pragma unroll
        for (int e = 0; e < 8; e++) {
            float *x1 = &z1[8 * t + e], *x2 = &z2[8 * t + e];
            const float value = fragment_value(v, e), s = logistic_quick(*x2), y = *x2 * s;
            const float d = y * (1.0f - s) + s;
            *x2 = value * *x1 * d;
            *x1 = value * y;
        }
        pack_columns(a1[t], z1 + 8 * t);
        pack_columns(a2[t], z2 + 8 * t);
    }
}

/* N tokens: G without -c. */
template <int CHUNK, int STAGES, int N, int D>
static __device__ __forceinline__ void ring_write(Sums &g1, Sums &g2, FeedPlace &at,
                                                  const RingTask &k, const GluPlace<D> &p) {
    float z1[N / 2], z2[N / 2];
    uint32_t a1[N / 16][4], a2[N / 16][4];
    const Shared x = ring_next<CHUNK, STAGES>(at, k);
    wgmma_begin();
    project(z1, weight_tile(k.base, 0), x, false);
    project(z2, weight_tile(k.base, 1), x, false);
    wgmma_commit();
    const Shared v = ring_next<CHUNK, STAGES>(at, k);
    wgmma_wait<0>();
    settle(z1);
    settle(z2);
    write_elements<N>(a1, a2, z1, z2, v, p);
    settle(flat(g1));
    settle(flat(g2));
    wgmma_begin();
    token_sums(flat(g1), a1, x);
    token_sums(flat(g2), a2, x);
    wgmma_commit();
    wgmma_wait<0>();
    settle(flat(g1));
    settle(flat(g2));
    settle(a1);
    settle(a2);
}

template <int CHUNK, int STAGES, int D>
static __device__ __forceinline__ void write_pass(Sums &g1, Sums &g2, FeedPlace &at, RingFeed &feed,
                                                  const FeedMaps &maps, const RingTask &k,
                                                  const GluArgs &a, const GluPlace<D> &p) {
    for (int left = a.tokens; left > 0; left -= CHUNK) {
        if (left <= TAIL)
            ring_write<CHUNK, STAGES, TAIL>(g1, g2, at, k, p);
        else
            ring_write<CHUNK, STAGES, CHUNK>(g1, g2, at, k, p);
        ring_leave<CHUNK, STAGES>(feed, 2, maps, k, a);
    }
}

/* ---- W' ---- */

/* W' = W - softnorm(G), rows j of W'(i, j): high and rest as left operands. */
typedef struct Trained {
    uint32_t high[GROUP / 16][4], rest[GROUP / 16][4];
} Trained;

template <int D>
static __device__ __forceinline__ void train_rows(Trained &to, const Sums &g, const Sums &w,
                                                  const GluPlace<D> &p) {
    float square[2] = {}, rate[2];
#pragma unroll
    for (int e = 0; e < 32; e++) square[e >> 1 & 1] += g[e / 4][e % 4] * g[e / 4][e % 4];
#pragma unroll
    for (int half = 0; half < 2; half++)
        rate[half] = reciprocal(square_root(quad_sum(square[half])) + 1.0f);
#pragma unroll
    for (int k = 0; k < GROUP / 16; k++) {
        float u[8];
#pragma unroll
        for (int e = 0; e < 8; e++)
            u[e] = w[2 * k + e / 4][e % 4] - rate[e >> 1 & 1] * g[2 * k + e / 4][e % 4];
        pack_columns(to.high[k], u);
        pack_columns_rest(to.rest[k], to.high[k], u);
    }
}

/* G' times -c; to memory as g[i][j], when the backward wants it. */
template <int D>
static __device__ __forceinline__ void finish_sums(Sums &g, float c, float *out,
                                                   const GluPlace<D> &p) {
#pragma unroll
    for (int e = 0; e < 32; e++) g[e / 4][e % 4] = is_own(p, e / 4) ? -c * g[e / 4][e % 4] : 0.0f;
    if (!out) return;
    out += first_element(p);
#pragma unroll
    for (int e = 0; e < 32; e++)
        if (is_own(p, e / 4)) out[element<D>(e / 4, e % 4)] = g[e / 4][e % 4];
}

/* ---- the pass over Q ---- */

/* d (64 x 2 COUNT) = a (64 x 16, registers) b (16 x 2 COUNT, straight), plus d when `keep`. */
static __device__ __forceinline__ void product_rows(float (&d)[32], const uint32_t (&a)[4],
                                                    uint64_t b, int keep) {
    asm volatile("{\n.reg .pred p;\nsetp.ne.b32 p, %37, 0;\n"
                 "wgmma.mma_async.sync.aligned.m64n64k16.f32.bf16.bf16 {" NAMES_32
                 "}, {%32, %33, %34, %35}, %36, p, 1, 1, 0;\n}\n"
                 : SUMS_8(0), SUMS_8(8), SUMS_8(16), SUMS_8(24)
                 : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b), "r"(keep)
                 : "memory");
}
static __device__ __forceinline__ void product_rows(float (&d)[24], const uint32_t (&a)[4],
                                                    uint64_t b, int keep) {
    asm volatile("{\n.reg .pred p;\nsetp.ne.b32 p, %29, 0;\n"
                 "wgmma.mma_async.sync.aligned.m64n48k16.f32.bf16.bf16 {" NAMES_24
                 "}, {%24, %25, %26, %27}, %28, p, 1, 1, 0;\n}\n"
                 : SUMS_8(0), SUMS_8(8), SUMS_8(16)
                 : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b), "r"(keep)
                 : "memory");
}
static __device__ __forceinline__ void product_rows(float (&d)[8], const uint32_t (&a)[4],
                                                    uint64_t b, int keep) {
    asm volatile("{\n.reg .pred p;\nsetp.ne.b32 p, %13, 0;\n"
                 "wgmma.mma_async.sync.aligned.m64n16k16.f32.bf16.bf16 {" NAMES_8
                 "}, {%8, %9, %10, %11}, %12, p, 1, 1, 0;\n}\n"
                 : SUMS_8(0)
                 : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b), "r"(keep)
                 : "memory");
}

template <int N>
static __device__ __forceinline__ void read_start(float (&y1)[N], float (&y2)[N], Shared x,
                                                  const Trained &w1, const Trained &w2) {
    wgmma_begin();
#pragma unroll
    for (int k = 0; k < GROUP / 16; k++) {
        const uint64_t q = described(straight(x) + STRAIGHT_STEP * k);
        product_rows(y1, w1.high[k], q, k > 0);
        product_rows(y2, w2.high[k], q, k > 0);
        product_rows(y1, w1.rest[k], q, 1);
        product_rows(y2, w2.rest[k], q, 1);
    }
    wgmma_commit();
}

/* N tokens of Q: the output, `left` at most. */
template <int CHUNK, int STAGES, int N, int D>
static __device__ __forceinline__ void ring_read(bf16 *out, int left, Trained &w1, Trained &w2,
                                                 FeedPlace &at, const RingTask &k, const GluArgs &a,
                                                 const GluPlace<D> &p) {
    const Shared to = k.base + RingLayout<CHUNK, STAGES>::result;
    float y1[N / 2], y2[N / 2];
    read_start(y1, y2, ring_next<CHUNK, STAGES>(at, k), w1, w2);
    wgmma_wait<0>();
    settle(y1);
    settle(y2);
    settle(w1.high);
    settle(w1.rest);
    settle(w2.high);
    settle(w2.rest);
#pragma unroll
    for (int t = 0; t < N / 16; t++) {
        uint32_t f[4];
#pragma unroll
        for (int e = 8 * t; e < 8 * t + 8; e++) y1[e] *= y2[e] * logistic_quick(y2[e]);
        pack_columns(f, y1 + 8 * t);
        matrix_put_turned(to, p.own, 16 * t, 0, f);
    }
    if (p.real) chunk_flush<N>(out, a.cat_pitch, to, p.row, left);
}

template <int CHUNK, int STAGES, int D>
static __device__ __forceinline__ void
read_pass(bf16 *out, Trained &w1, Trained &w2, FeedPlace &at, RingFeed &feed, const FeedMaps &maps,
          const RingTask &k, const GluArgs &a, const GluPlace<D> &p) {
    for (int left = a.tokens; left > 0; left -= CHUNK, out += CHUNK * a.cat_pitch) {
        if (left <= TAIL)
            ring_read<CHUNK, STAGES, TAIL>(out, left, w1, w2, at, k, a, p);
        else
            ring_read<CHUNK, STAGES, CHUNK>(out, left, w1, w2, at, k, a, p);
        ring_leave<CHUNK, STAGES>(feed, 1, maps, k, a);
    }
}

/* Samples part, part + parts, ... */
template <int CHUNK, int STAGES, int D>
static __device__ __forceinline__ void ring_forward(char *memory, bf16 *cat, const RingTask &k,
                                                    const FeedMaps &maps, int part,
                                                    const GluArgs &a, const GluPlace<D> &p) {
    typedef RingLayout<CHUNK, STAGES> L;
    const int64_t dd = D * D;
    const float *w1 = a.w1 + p.head * dd, *w2 = a.w2 + p.head * dd;
    RingFeed feed = {part, 0, 0, 0, 0};
    FeedPlace at = {0, 0};
    if (k.feeder) {
        feed_barriers(k.base + L::barriers, STAGES);
        for (int i = 0; i < STAGES; i++) ring_feed<CHUNK, STAGES>(feed, maps, k, a);
    }
    initial_tiles<D>(memory, a, p.group, a.heads - p.group * (GROUP / D));
    writes_publish();
    __syncthreads();
    for (int64_t b = part; b < a.batch; b += a.parts) {
        float *g = a.g && p.real ? a.g + (b * a.heads + p.head) * 2 * dd : NULL;
        bf16 *out = cat + b * a.tokens * a.cat_pitch + k.channel;
        Trained t1, t2;
        {
            Sums g1 = {}, g2 = {};
            write_pass<CHUNK, STAGES>(g1, g2, at, feed, maps, k, a, p);
            Sums x1, x2;
            load_pair(x1, x2, w1, w2, p);
            finish_sums(g1, a.c, g, p);
            finish_sums(g2, a.c, g ? g + dd : NULL, p);
            train_rows(t1, g1, x1, p);
            train_rows(t2, g2, x2, p);
        }
        read_pass<CHUNK, STAGES>(out, t1, t2, at, feed, maps, k, a, p);
    }
}

#endif /* HAVE_SM90A */

template <int D, int CHUNK, int STAGES, int BLOCKS>
__global__ void __launch_bounds__(GLU_THREADS, BLOCKS)
    glu_ring_kernel(bf16 *cat, GluArgs a, const __grid_constant__ FeedMaps maps) {
#if HAVE_SM90A
    extern __shared__ char memory[];
    const Shared begin = shared_address(memory),
                 base = (begin + SMEM_ALIGN - 1) / SMEM_ALIGN * SMEM_ALIGN;
    const int groups = (a.heads * D + GROUP - 1) / GROUP, group = blockIdx.x % groups;
    const RingTask k = {base, group * GROUP, threadIdx.x == 0};
    ring_forward<CHUNK, STAGES>(memory + (base - begin), cat, k, maps, blockIdx.x / groups, a,
                                glu_place<D>(a, group));
#endif
}

/* ---- host ----------------------------------------------------------------------------------- */

template <int D, int CHUNK, int STAGES, int BLOCKS>
static Status ring_launch(Device *d, GluArgs a, Tensor cat, Tensor qkv) {
    const int shared = RingLayout<CHUNK, STAGES>::bytes + SMEM_ALIGN;
    const int64_t groups = ceil_div((int64_t)a.heads * D, GROUP),
                  parts = BLOCKS * backend_of(d)->sm_count / groups;
    a.parts = (int)(parts < 1 ? 1 : parts < a.batch ? parts : a.batch);
    FeedMaps maps;
    TRY(feed_maps(&maps, a, qkv.data, cat.data, CHUNK));
    const auto kernel = glu_ring_kernel<D, CHUNK, STAGES, BLOCKS>;
    CUDA_TRY(cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, shared),
             "vittt_glu");
    kernel<<<(unsigned)(a.parts * groups), GLU_THREADS, shared, stream_of(d)>>>((bf16 *)cat.data, a,
                                                                                maps);
    return launched("vittt_glu");
}

/* Rounds of all blocks, weighted with how many share a multiprocessor. */
static int64_t rounds(Device *d, const GluArgs &a, int blocks) {
    const int64_t parts = (int64_t)blocks * backend_of(d)->sm_count / a.heads;
    return blocks * ceil_div(a.batch, parts < 1 ? 1 : parts);
}

Status glu_wgmma_forward(Device *d, GluArgs a, Tensor cat, Tensor qkv) {
    return rounds(d, a, 2) < rounds(d, a, 3) ? ring_launch<64, 64, 10, 2>(d, a, cat, qkv)
                                             : ring_launch<64, 48, 8, 3>(d, a, cat, qkv);
}
