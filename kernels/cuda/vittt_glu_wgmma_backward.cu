/* GLU branch, backward, on Hopper's warpgroup products (vittt.md 3.1; glu_wgmma.cuh has the
 * picture).
 *
 * Pass over Q, dO: dY, dW' and dQ; then dG; pass over K, V: dZ, dV, K' dZ and dK. A block walks
 * through the samples part, part + parts, ... of its head; the sums of their dw stay in registers.
 * The tokens of all passes form one stream through three stages: the next chunk but one, of this or
 * the next pass or sample, is fetched while a chunk is worked on.
 */
#include "kernels/cuda/glu_train.cuh"

#define STAGES 3

/* Shared memory: high and rest of W1', W2' (dG1, G2, dG2, G2 later), W1, W2, stages of two token
 * tiles, four exchange tiles (for a while G1), numbers of columns, barriers. */
template <int CHUNK> struct Layout {
    static const int tile = CHUNK * ROW_BYTES;
    static const int initial = 4 * TILE_BYTES;
    static const int stages = 6 * TILE_BYTES;
    static const int exchange = stages + STAGES * 2 * tile;
    static const int norms = exchange + (4 * tile < 2 * TILE_BYTES ? 2 * TILE_BYTES : 4 * tile);
    static const int barriers = norms + 10 * GROUP * 4; /* [2][64], by warps [2][4][64] */
    static const int bytes = barriers + 8 * (STAGES + 1);
};

/* What a block works on. */
typedef struct Task {
    Shared base, barriers; /* the last barrier is that of G */
    int channel;           /* first channel */
    bool feeder;
} Task;

#if HAVE_SM90A

/* Brings the next chunk; its stage is free for all. */
template <int CHUNK>
static __device__ __forceinline__ void feed(TokenFeed &f, const FeedMaps &maps, const Task &k,
                                            const GluArgs &a) {
    if (k.feeder) boxes_left();
    if (k.feeder)
        feed_next<CHUNK, STAGES>(f, maps, k.base + Layout<CHUNK>::stages, k.barriers, k.channel, a);
}

/* What is summed over N tokens, as operands. */
template <int N> struct Operands { uint32_t a1[N / 16][4], a2[N / 16][4]; };

template <int N>
static __device__ __forceinline__ void sums_start(Sums &s1, Sums &s2, const Operands<N> &o,
                                                  Shared tokens) {
    token_sums(flat(s1), o.a1, tokens);
    token_sums(flat(s2), o.a2, tokens);
}
template <int N>
static __device__ __forceinline__ void sums_settle(Sums &s1, Sums &s2, Operands<N> &o) {
    settle(flat(s1));
    settle(flat(s2));
    settle(o.a1);
    settle(o.a2);
}
/* 16 tokens of both from column block t of two accumulators; also into two exchange tiles. */
template <int N, int D>
static __device__ __forceinline__ void operands_put(Operands<N> &o, int t, const float *z1,
                                                    const float *z2, Shared exchange,
                                                    int exchange_tile, const GluPlace<D> &p) {
    pack_columns(o.a1[t], z1 + 8 * t);
    pack_columns(o.a2[t], z2 + 8 * t);
    matrix_put_turned(exchange, p.own, 16 * t, 0, o.a1[t]);
    matrix_put_turned(exchange + exchange_tile, p.own, 16 * t, 0, o.a2[t]);
}

/* (i, token) sums times scale into a tile. */
template <int N, int D>
static __device__ __forceinline__ void mix_put(Shared tile, float (&d)[N], float scale,
                                               const GluPlace<D> &p) {
#pragma unroll
    for (int t = 0; t < N / 8; t++) {
        uint32_t f[4];
#pragma unroll
        for (int e = 8 * t; e < 8 * t + 8; e++) d[e] *= scale;
        pack_columns(f, d + 8 * t);
        matrix_put_turned(tile, p.own, 16 * t, 0, f);
    }
}

/* ---- pass over Q, dO ------------------------------------------------------------------------ */

/* dY1, dY2 of 16 tokens from eight values of Y1, Y2, in their places. */
static __device__ __forceinline__ void read_back_element(float *y1, float *y2, float out) {
    float s, d;
    silu_slope(*y2, &s, &d);
    *y2 = out * *y1 * d;
    *y1 = out * s;
}

template <int N>
static __device__ __forceinline__ void read_start(float (&y1)[N], float (&y2)[N], Shared weights,
                                                  Shared q_tile) {
    project(y1, weight_tile(weights, 0), q_tile, false);
    project(y2, weight_tile(weights, 2), q_tile, false);
    project(y1, weight_tile(weights, 1), q_tile, true);
    project(y2, weight_tile(weights, 3), q_tile, true);
}

template <int N>
static __device__ __forceinline__ void read_mix(float (&dq)[N], Shared weights, Shared exchange,
                                                int exchange_tile) {
    mix(dq, weight_tile(weights, 0), exchange, false);
    mix(dq, weight_tile(weights, 1), exchange, true);
    mix(dq, weight_tile(weights, 2), exchange + exchange_tile, true);
    mix(dq, weight_tile(weights, 3), exchange + exchange_tile, true);
}

/* N tokens of stage x: dW' into s1, s2; dQ through the place of dO. */
template <int CHUNK, int N, int D>
static __device__ __forceinline__ void read_chunk(Sums &s1, Sums &s2, Shared x, TokenFeed &ahead,
                                                  const FeedMaps &maps, const FeedMaps &outs, int b,
                                                  int first, const Task &k, const GluArgs &a,
                                                  const GluPlace<D> &p) {
    typedef Layout<CHUNK> L;
    const Shared exchange = k.base + L::exchange;
    float y1[N / 2], y2[N / 2], dq[N / 2];
    Operands<N> o;
    wgmma_begin();
    read_start(y1, y2, k.base, x);
    wgmma_commit();
    wgmma_wait<0>();
    settle(y1);
    settle(y2);
#pragma unroll
    for (int t = 0; t < N / 16; t++) {
        uint32_t f[4];
        matrix_get_turned(f, region(x + L::tile, p.own.beside, 16 * t, 0));
#pragma unroll
        for (int e = 0; e < 8; e++)
            read_back_element(&y1[8 * t + e], &y2[8 * t + e], fragment_value(f, e));
        operands_put(o, t, y1, y2, exchange, L::tile, p);
    }
    settle(flat(s1));
    settle(flat(s2));
    wgmma_begin();
    sums_start(s1, s2, o, x);
    wgmma_commit();
    writes_publish();
    __syncthreads();
    wgmma_begin();
    read_mix(dq, k.base, exchange, L::tile);
    wgmma_commit();
    feed<CHUNK>(ahead, maps, k, a);
    wgmma_wait<0>();
    settle(dq);
    sums_settle(s1, s2, o);
    mix_put(x + L::tile, dq, 1.0f, p);
    writes_publish();
    __syncthreads();
    if (k.feeder) {
        box3_put(&outs.q, k.channel, first, b, x + L::tile);
        boxes_commit();
    }
}

/* ---- pass over K, V ------------------------------------------------------------------------- */

/* Tiles: dG1 0, dG2 2, W1 4, W2 5. */
template <int N>
static __device__ __forceinline__ void write_start(float (&z1)[N], float (&z2)[N], float (&p1)[N],
                                                   float (&p2)[N], Shared weights, Shared k_tile) {
    project(z1, weight_tile(weights, 4), k_tile, false);
    project(z2, weight_tile(weights, 5), k_tile, false);
    project(p1, weight_tile(weights, 0), k_tile, false);
    project(p2, weight_tile(weights, 2), k_tile, false);
}

template <int N>
static __device__ __forceinline__ void write_mix(float (&dk)[N], Shared weights, Shared exchange,
                                                 int exchange_tile) {
    mix(dk, weight_tile(weights, 0), exchange, false);
    mix(dk, weight_tile(weights, 2), exchange + exchange_tile, true);
    mix(dk, weight_tile(weights, 4), exchange + 2 * exchange_tile, true);
    mix(dk, weight_tile(weights, 5), exchange + 3 * exchange_tile, true);
}

/* N tokens of stage x: dZ into s1, s2; dV through the place of V, dK through that of K. */
template <int CHUNK, int N, int D>
static __device__ __forceinline__ void write_chunk(Sums &s1, Sums &s2, Shared x, TokenFeed &ahead,
                                                   const FeedMaps &maps, const FeedMaps &outs,
                                                   int b, int first, const Task &k,
                                                   const GluArgs &a, const GluPlace<D> &p) {
    typedef Layout<CHUNK> L;
    const Shared exchange = k.base + L::exchange, v_tile = x + L::tile;
    float z1[N / 2], z2[N / 2], p1[N / 2], p2[N / 2], dk[N / 2];
    Operands<N> o;
    wgmma_begin();
    write_start(z1, z2, p1, p2, k.base, x);
    wgmma_commit();
    wgmma_wait<0>();
    settle(z1);
    settle(z2);
    settle(p1);
    settle(p2);
#pragma unroll
    for (int t = 0; t < N / 16; t++) {
        uint32_t f[4];
        float dv[8];
        matrix_get_turned(f, region(v_tile, p.own.beside, 16 * t, 0));
#pragma unroll
        for (int e = 0; e < 8; e++) {
            const int i = 8 * t + e;
            dv[e] = -a.c * write_back_element(fragment_value(f, e), &z1[i], &z2[i], &p1[i], &p2[i]);
        }
        pack_columns(f, dv);
        matrix_put_turned(v_tile, p.own, 16 * t, 0, f);
        pack_columns(f, p1 + 8 * t);
        matrix_put_turned(exchange, p.own, 16 * t, 0, f);
        pack_columns(f, p2 + 8 * t);
        matrix_put_turned(exchange + L::tile, p.own, 16 * t, 0, f);
        operands_put(o, t, z1, z2, exchange + 2 * L::tile, L::tile, p);
    }
    settle(flat(s1));
    settle(flat(s2));
    wgmma_begin();
    sums_start(s1, s2, o, x);
    wgmma_commit();
    writes_publish();
    __syncthreads();
    wgmma_begin();
    write_mix(dk, k.base, exchange, L::tile);
    wgmma_commit();
    feed<CHUNK>(ahead, maps, k, a);
    wgmma_wait<0>();
    settle(dk);
    sums_settle(s1, s2, o);
    __syncthreads(); /* K has been read */
    mix_put(x, dk, -a.c, p);
    writes_publish();
    __syncthreads();
    if (k.feeder) {
        box3_put(&outs.v, k.channel, first, b, v_tile);
        box3_put(&outs.k, k.channel, first, b, x);
        boxes_commit();
    }
}

/* ---- between the passes --------------------------------------------------------------------- */

/* A thread's accumulator elements of G of the half that its rows belong to. */
template <int D>
static __device__ __forceinline__ void sums_get(Sums &x, Shared first, Shared second,
                                                const GluPlace<D> &p) {
    const int chunk = p.row % 32 / 4 + p.lane_row / 4;
    const Shared at = (p.row < 32 ? first : second) + 2 * p.lane_quad * 128 +
                      ((chunk ^ 2 * p.lane_quad) << 4) + (p.lane_row & 3) * 4;
#pragma unroll
    for (int e = 0; e < 32; e++) {
        const int n = e / 4;
        const Shared here =
            (at ^ ((e & 2 ? 32 : 0) + (e & 1) * 16)) + (8 * (n % (D / 8)) + (e & 1)) * 128;
        x[n][e % 4] = 0;
        if (is_own(p, n))
            asm volatile("ld.shared.f32 %0, [%1];" : "=f"(x[n][e % 4]) : "r"(here) : "memory");
    }
}

/* dW' in s -> dG into a tile; dW' / -c is added to `total`, so that K' dZ (which lacks the factor
 * -c) can be added too. */
template <int D>
static __device__ __forceinline__ void train_back(Shared tile, Sums &total, const Sums &s,
                                                  const Sums &g, const float *norms, float c,
                                                  const GluPlace<D> &p) {
    float t[2] = {}, rate[2], back[2];
#pragma unroll
    for (int e = 0; e < 32; e++) t[e >> 1 & 1] -= g[e / 4][e % 4] * s[e / 4][e % 4];
#pragma unroll
    for (int half = 0; half < 2; half++) {
        const float norm = norms[p.row + p.lane_row + 8 * half];
        rate[half] = reciprocal(norm + 1.0f);
        t[half] = quad_sum(t[half]);
        back[half] = norm > 0 ? rate[half] * rate[half] * t[half] * reciprocal(norm) : 0.0f;
    }
    const float scale = -1.0f / c;
#pragma unroll
    for (int k = 0; k < GROUP / 16; k++) {
        float u[8];
        uint32_t f[4];
#pragma unroll
        for (int e = 0; e < 8; e++) {
            const int half = e >> 1 & 1, n = 2 * k + e / 4;
            const float dw = s[n][e % 4];
            total[n][e % 4] += scale * dw;
            u[e] = -rate[half] * (is_own(p, n) ? dw : 0.0f) - back[half] * g[n][e % 4];
        }
        pack_columns(f, u);
        matrix_put_turned(tile, p.own, 16 * k, 0, f);
    }
}

/* s times -c to memory. */
template <int D>
static __device__ __forceinline__ void put_sums(float *out, const Sums &s, float c,
                                                const GluPlace<D> &p) {
    out += first_element(p);
#pragma unroll
    for (int e = 0; e < 32; e++)
        if (is_own(p, e / 4)) out[element<D>(e / 4, e % 4)] = -c * s[e / 4][e % 4];
}

/* ---- a block -------------------------------------------------------------------------------- */

/* One pass over the tokens of sample b. */
template <int CHUNK, bool READ, int D>
static __device__ __forceinline__ void pass(Sums &s1, Sums &s2, FeedPlace &at, TokenFeed &ahead,
                                            const FeedMaps &maps, const FeedMaps &outs, int b,
                                            const Task &k, const GluArgs &a, const GluPlace<D> &p) {
    typedef Layout<CHUNK> L;
    for (int first = 0; first < a.tokens; first += CHUNK) {
        const Shared x = k.base + L::stages + at.stage * 2 * L::tile;
        const bool tail = a.tokens - first <= TAIL;
        feed_wait(at, k.barriers);
        feed_step<STAGES>(at);
        if (READ && tail)
            read_chunk<CHUNK, TAIL>(s1, s2, x, ahead, maps, outs, b, first, k, a, p);
        else if (READ)
            read_chunk<CHUNK, CHUNK>(s1, s2, x, ahead, maps, outs, b, first, k, a, p);
        else if (tail)
            write_chunk<CHUNK, TAIL>(s1, s2, x, ahead, maps, outs, b, first, k, a, p);
        else
            write_chunk<CHUNK, CHUNK>(s1, s2, x, ahead, maps, outs, b, first, k, a, p);
    }
}

/* Samples part, part + parts, ... */
template <int CHUNK, int D>
static __device__ __forceinline__ void
group_backward(char *memory, const Task &k, const FeedMaps &maps, const FeedMaps &outs,
               const CUtensorMap &g_map, int part, const GluArgs &a, const GluPlace<D> &p) {
    typedef Layout<CHUNK> L;
    float *norms = reinterpret_cast<float *>(memory + L::norms);
    const int heads = a.heads - p.group * (GROUP / D);
    const Shared e = k.base + L::exchange, half = D * 128, g_barrier = k.barriers + 8 * STAGES;
    const Gradients g_at = {{{e, e + half},
                             {weight_tile(k.base, 1), D == GROUP ? weight_tile(k.base, 3)
                                                                 : weight_tile(k.base, 1) + half}}};
    TokenFeed ahead = {part, 0, 0, 0};
    FeedPlace at = {0, 0};
    if (k.feeder) feed_barriers(k.barriers, STAGES + 1);
    __syncthreads();
    for (int i = 0; i < STAGES - 1; i++) feed<CHUNK>(ahead, maps, k, a);
    initial_tiles<D>(memory + L::initial, a, p.group, heads);
    Sums total1 = {}, total2 = {};
    int g_parity = 0;
    for (int64_t b = part; b < a.batch; b += a.parts) {
        trained_tiles<D>(memory, norms, norms + 2 * GROUP, b, a, p.group, heads);
        writes_publish();
        __syncthreads();
        {
            Sums s1 = {}, s2 = {}, g;
            pass<CHUNK, true>(s1, s2, at, ahead, maps, outs, (int)b, k, a, p);
            if (k.feeder) gradients_bring<D>(g_at, &g_map, g_barrier, b, a, p.group, heads);
            barrier_wait(g_barrier, g_parity);
            g_parity ^= 1;
            sums_get(g, g_at.at[0][0], g_at.at[0][1], p);
            train_back(weight_tile(k.base, 0), total1, s1, g, norms, a.c, p);
            sums_get(g, g_at.at[1][0], g_at.at[1][1], p);
            train_back(weight_tile(k.base, 2), total2, s2, g, norms + GROUP, a.c, p);
        }
        if (k.feeder && b + a.parts < a.batch)
            gradients_prefetch<D>(b + a.parts, a, p.group, heads);
        writes_publish();
        __syncthreads();
        pass<CHUNK, false>(total1, total2, at, ahead, maps, outs, (int)b, k, a, p);
    }
    if (k.feeder) boxes_done();
    if (!a.dw_partial || !p.real) return;
    float *dw = a.dw_partial + ((int64_t)part * 2 * a.heads + p.head) * D * D;
    put_sums(dw, total1, a.c, p);
    put_sums(dw + (int64_t)a.heads * D * D, total2, a.c, p);
}

#endif /* HAVE_SM90A */

template <int D, int CHUNK>
__global__ void __launch_bounds__(GLU_THREADS, 2)
    glu_wgmma_backward_kernel(GluArgs a, const __grid_constant__ FeedMaps maps,
                              const __grid_constant__ FeedMaps outs,
                              const __grid_constant__ CUtensorMap g_map) {
#if HAVE_SM90A
    extern __shared__ char memory[];
    const Shared begin = shared_address(memory),
                 base = (begin + SMEM_ALIGN - 1) / SMEM_ALIGN * SMEM_ALIGN;
    const int groups = (a.heads * D + GROUP - 1) / GROUP, group = blockIdx.x % groups;
    const Task k = {base, base + Layout<CHUNK>::barriers, group * GROUP, threadIdx.x == 0};
    group_backward<CHUNK>(memory + (base - begin), k, maps, outs, g_map, blockIdx.x / groups, a,
                          glu_place<D>(a, group));
#endif
}

/* ---- host ----------------------------------------------------------------------------------- */

template <int D, int CHUNK>
static Status backward_launch(Device *d, GluArgs a, Tensor dqkv, Tensor dcat, Tensor qkv) {
    const int shared = Layout<CHUNK>::bytes + SMEM_ALIGN;
    const int64_t blocks = a.parts * ceil_div((int64_t)a.heads * D, GROUP);
    FeedMaps maps, outs = {};
    CUtensorMap g_map;
    TRY(feed_maps(&maps, a, qkv.data, dcat.data, CHUNK));
    TRY(output_maps(&outs, a, dqkv.data, CHUNK));
    TRY(gradients_map(&g_map, a));
    CUDA_TRY(cudaFuncSetAttribute(glu_wgmma_backward_kernel<D, CHUNK>,
                                  cudaFuncAttributeMaxDynamicSharedMemorySize, shared),
             "vittt_glu_backward");
    glu_wgmma_backward_kernel<D, CHUNK>
        <<<(unsigned)blocks, GLU_THREADS, shared, stream_of(d)>>>(a, maps, outs, g_map);
    return launched("vittt_glu_backward");
}

Status glu_wgmma_backward(Device *d, GluArgs a, Tensor dqkv, Tensor dcat, Tensor qkv) {
    return a.head_dim == 64 ? backward_launch<64, 48>(d, a, dqkv, dcat, qkv)
                            : backward_launch<32, 48>(d, a, dqkv, dcat, qkv);
}
