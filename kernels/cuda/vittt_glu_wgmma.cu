/* GLU branch, forward, on Hopper's warpgroup products (glu_wgmma.cuh has the picture).
 *
 * Pass over K, V: G; then W'; pass over Q: the output. A block walks through the samples part,
 * part + parts, ... of its head; tokens of all passes form one stream through two stages.
 */
#include "kernels/cuda/glu_train.cuh"

#define STAGES 2

/* Shared memory: high and rest of W1', W2', W1, W2, stages of two token tiles, barriers. */
template <int CHUNK> struct Layout {
    static const int tile = CHUNK * ROW_BYTES;
    static const int initial = 4 * TILE_BYTES;
    static const int stages = 6 * TILE_BYTES;
    static const int barriers = stages + STAGES * 2 * tile;
    static const int bytes = barriers + 8 * STAGES;
};

typedef struct Task {
    Shared base;
    int channel; /* first channel */
    bool feeder;
} Task;

#if HAVE_SM90A

/* Brings the next chunk, of K, V (pass 0) or Q (pass 1); its stage is free for all. */
template <int CHUNK>
static __device__ __forceinline__ void feed(TokenFeed &f, const FeedMaps &maps, const Task &k,
                                            const GluArgs &a) {
    typedef Layout<CHUNK> L;
    if (!k.feeder || f.b >= a.batch) return;
    const Shared stage = k.base + L::stages + f.stage * 2 * L::tile,
                 barrier = k.base + L::barriers + 8 * f.stage;
    barrier_expect(barrier, (f.pass ? 1 : 2) * L::tile);
    box3_fetch(stage, f.pass ? &maps.q : &maps.k, k.channel, f.first, f.b, barrier);
    if (!f.pass) box3_fetch(stage + L::tile, &maps.v, k.channel, f.first, f.b, barrier);
    f.stage ^= 1;
    f.first += CHUNK;
    if (f.first < a.tokens) return;
    f.first = 0;
    f.pass ^= 1;
    if (f.pass == 0) f.b += a.parts;
}

/* V A and V Z1 D from Z1, Z2, in their places. */
static __device__ __forceinline__ void write_element(float *z1, float *z2, float v) {
    float s, d;
    silu_slope(*z2, &s, &d);
    *z2 = v * *z1 * d;
    *z1 = v * s;
}

/* N tokens in stage x (K, V): G without -c into g1, g2. */
template <int CHUNK, int N, int D>
static __device__ __forceinline__ void write_chunk(Sums &g1, Sums &g2, Shared x, const Task &k,
                                                   const GluPlace<D> &p) {
    float z1[N / 2], z2[N / 2];
    uint32_t a1[N / 16][4], a2[N / 16][4];
    wgmma_begin();
    project(z1, weight_tile(k.base, 4), x, false);
    project(z2, weight_tile(k.base, 5), x, false);
    wgmma_commit();
    wgmma_wait<0>();
    settle(z1);
    settle(z2);
#pragma unroll
    for (int t = 0; t < N / 16; t++) {
        uint32_t v[4];
        matrix_get_turned(v, region(x + CHUNK * ROW_BYTES, p.own.beside, 16 * t, 0));
#pragma unroll
        for (int e = 0; e < 8; e++)
            write_element(&z1[8 * t + e], &z2[8 * t + e], fragment_value(v, e));
        pack_columns(a1[t], z1 + 8 * t);
        pack_columns(a2[t], z2 + 8 * t);
    }
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

/* N tokens in stage x (Q): the output through the place of V. */
template <int CHUNK, int N, int D>
static __device__ __forceinline__ void read_chunk(bf16 *out, int left, Shared x, const Task &k,
                                                  const GluArgs &a, const GluPlace<D> &p) {
    const Shared to = x + CHUNK * ROW_BYTES;
    float y1[N / 2], y2[N / 2];
    wgmma_begin();
    project(y1, weight_tile(k.base, 0), x, false);
    project(y2, weight_tile(k.base, 2), x, false);
    project(y1, weight_tile(k.base, 1), x, true);
    project(y2, weight_tile(k.base, 3), x, true);
    wgmma_commit();
    wgmma_wait<0>();
    settle(y1);
    settle(y2);
#pragma unroll
    for (int t = 0; t < N / 16; t++) {
        uint32_t f[4];
#pragma unroll
        for (int e = 8 * t; e < 8 * t + 8; e++) y1[e] *= y2[e] * logistic(y2[e]);
        pack_columns(f, y1 + 8 * t);
        matrix_put_turned(to, p.own, 16 * t, 0, f);
    }
    if (p.real) chunk_flush<N>(out, a.cat_pitch, to, p.row, left);
}

/* The block's stage is free for all. */
template <int CHUNK>
static __device__ __forceinline__ void chunk_leave(TokenFeed &ahead, const FeedMaps &maps,
                                                   const Task &k, const GluArgs &a) {
    writes_publish();
    __syncthreads();
    feed<CHUNK>(ahead, maps, k, a);
}

template <int CHUNK, bool WRITE, int D>
static __device__ __forceinline__ void pass(Sums &g1, Sums &g2, bf16 *out, FeedPlace &at,
                                            TokenFeed &ahead, const FeedMaps &maps, const Task &k,
                                            const GluArgs &a, const GluPlace<D> &p) {
    typedef Layout<CHUNK> L;
    for (int left = a.tokens; left > 0; left -= CHUNK, out += CHUNK * a.cat_pitch) {
        const Shared x = k.base + L::stages + at.stage * 2 * L::tile;
        feed_wait(at, k.base + L::barriers);
        feed_step<STAGES>(at);
        if (WRITE && left <= TAIL)
            write_chunk<CHUNK, TAIL>(g1, g2, x, k, p);
        else if (WRITE)
            write_chunk<CHUNK, CHUNK>(g1, g2, x, k, p);
        else if (left <= TAIL)
            read_chunk<CHUNK, TAIL>(out, left, x, k, a, p);
        else
            read_chunk<CHUNK, CHUNK>(out, left, x, k, a, p);
        chunk_leave<CHUNK>(ahead, maps, k, a);
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

/* Samples part, part + parts, ... */
template <int CHUNK, int D>
static __device__ __forceinline__ void group_forward(char *memory, bf16 *cat, const Task &k,
                                                     const FeedMaps &maps, int part,
                                                     const GluArgs &a, const GluPlace<D> &p) {
    typedef Layout<CHUNK> L;
    const int64_t dd = D * D;
    const float *w1 = a.w1 + p.head * dd, *w2 = a.w2 + p.head * dd;
    TokenFeed ahead = {part, 0, 0, 0};
    FeedPlace at = {0, 0};
    if (k.feeder) feed_barriers(k.base + L::barriers, STAGES);
    __syncthreads();
    for (int i = 0; i < STAGES; i++) feed<CHUNK>(ahead, maps, k, a);
    initial_tiles<D>(memory + L::initial, a, p.group, a.heads - p.group * (GROUP / D));
    writes_publish();
    __syncthreads();
    for (int64_t b = part; b < a.batch; b += a.parts) {
        float *g = a.g && p.real ? a.g + (b * a.heads + p.head) * 2 * dd : NULL;
        bf16 *out = cat + b * a.tokens * a.cat_pitch + k.channel;
        Sums g1 = {}, g2 = {};
        pass<CHUNK, true>(g1, g2, out, at, ahead, maps, k, a, p);
        {
            Sums x1, x2;
            load_pair(x1, x2, w1, w2, p);
            finish_sums(g1, a.c, g, p);
            finish_sums(g2, a.c, g ? g + dd : NULL, p);
            train_weights(weight_tile(k.base, 0), weight_tile(k.base, 1), g1, x1, p);
            train_weights(weight_tile(k.base, 2), weight_tile(k.base, 3), g2, x2, p);
        }
        writes_publish();
        __syncthreads();
        pass<CHUNK, false>(g1, g2, out, at, ahead, maps, k, a, p);
    }
}

#endif /* HAVE_SM90A */

template <int D, int CHUNK, int BLOCKS>
__global__ void __launch_bounds__(GLU_THREADS, BLOCKS)
    glu_wgmma_kernel(bf16 *cat, GluArgs a, const __grid_constant__ FeedMaps maps) {
#if HAVE_SM90A
    extern __shared__ char memory[];
    const Shared begin = shared_address(memory),
                 base = (begin + SMEM_ALIGN - 1) / SMEM_ALIGN * SMEM_ALIGN;
    const int groups = (a.heads * D + GROUP - 1) / GROUP, group = blockIdx.x % groups;
    const Task k = {base, group * GROUP, threadIdx.x == 0};
    group_forward<CHUNK>(memory + (base - begin), cat, k, maps, blockIdx.x / groups, a,
                         glu_place<D>(a, group));
#endif
}

/* ---- host ----------------------------------------------------------------------------------- */

template <int D, int CHUNK, int BLOCKS>
static Status forward_launch(Device *d, GluArgs a, Tensor cat, Tensor qkv) {
    const int shared = Layout<CHUNK>::bytes + SMEM_ALIGN;
    const int64_t groups = ceil_div((int64_t)a.heads * D, GROUP),
                  parts = BLOCKS * backend_of(d)->sm_count / groups;
    a.parts = (int)(parts < 1 ? 1 : parts < a.batch ? parts : a.batch);
    FeedMaps maps;
    TRY(feed_maps(&maps, a, qkv.data, cat.data, CHUNK));
    CUDA_TRY(cudaFuncSetAttribute(glu_wgmma_kernel<D, CHUNK, BLOCKS>,
                                  cudaFuncAttributeMaxDynamicSharedMemorySize, shared),
             "vittt_glu");
    glu_wgmma_kernel<D, CHUNK, BLOCKS>
        <<<(unsigned)(a.parts * groups), GLU_THREADS, shared, stream_of(d)>>>((bf16 *)cat.data, a,
                                                                              maps);
    return launched("vittt_glu");
}

/* Rounds of all blocks, weighted with how many share a multiprocessor. */
static int64_t rounds(Device *d, const GluArgs &a, int blocks) {
    const int64_t parts = (int64_t)blocks * backend_of(d)->sm_count / a.heads;
    return blocks * ceil_div(a.batch, parts < 1 ? 1 : parts);
}

Status glu_wgmma_forward(Device *d, GluArgs a, Tensor cat, Tensor qkv) {
    return rounds(d, a, 2) < rounds(d, a, 3) ? forward_launch<64, 64, 2>(d, a, cat, qkv)
                                             : forward_launch<64, 48, 3>(d, a, cat, qkv);
}
