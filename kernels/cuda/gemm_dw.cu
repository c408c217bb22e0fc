#include "kernels/cuda/gemm_dw.cuh"
#include "kernels/cuda/gemm_ring.cuh"

#define THREADS      384
#define WIDTH        256
#define PIECES       8 /* of 8 columns, per block of the second kernel */
#define MIN_ROWS     4096
#define ONES_BYTES   1024 /* an operand of ones: 8 columns, 64 k */
#define STAGE_BYTES  (A_BYTES + WIDTH * 128)
#define STAGES       ((SHARED_LIMIT - ONES_BYTES - 2048) / STAGE_BYTES)
#define SHARED_BYTES (STAGES * STAGE_BYTES + ONES_BYTES + 2048) /* barriers, alignment */

/* c[m,n] = a' b, a [k,m], b [k,n]: a is dy, b is x. */
typedef struct DwArgs {
    int m, n, k;
    int tiles_n, tiles; /* tiles of a cluster: 2 ROWS x WIDTH */
    int steps;          /* stages of a tile's whole depth */
    int parts;          /* clusters on every tile at the same time, each with a part of its depth */
    int common;         /* steps of every tile that those do; the rest is for the other clusters */
    int others;
    float *partial; /* [slots][2 blocks][2 makers][WIDTH / 8][128] x 4 */
    float *sums;    /* [slots][2 ROWS] or NULL */
    float *c, *bias;
    bool add, add_bias;
} DwArgs;

/* First step of the share of number r of the other clusters, all tiles' rests end to end. */
static __host__ __device__ __forceinline__ int64_t rest_begin(const DwArgs &g, int r) {
    return (int64_t)g.tiles * (g.steps - g.common) * r / g.others;
}

#if HAVE_SM90A

typedef struct DwRing {
    Shared data, ones, full, empty;
} DwRing;

/* A run of steps within one tile, and the place of its sums. */
typedef struct Segment {
    int64_t at, end; /* of what the cluster has to do: where it is, where it ends */
    int tile, step, count, slot;
} Segment;

/* Clusters that work on one part of the depth read the same rows at the same time: from DRAM once.
 */
static __device__ __forceinline__ Segment segment_init(const DwArgs &g) {
    const int cluster = blockIdx.x / CLUSTER, rest = cluster - g.tiles * g.parts;
    Segment s = {};
    if (rest >= 0) {
        s.at = rest_begin(g, rest);
        s.end = rest_begin(g, rest + 1);
    } else {
        s.end = 1;
    }
    return s;
}

static __device__ __forceinline__ bool segment_next(Segment &s, const DwArgs &g) {
    const int cluster = blockIdx.x / CLUSTER, rest = cluster - g.tiles * g.parts;
    s.at += s.count;
    if (s.at >= s.end) return false;
    if (rest < 0) {
        const int part = cluster / g.tiles;
        s.tile = cluster % g.tiles;
        s.step = (int)((int64_t)g.common * part / g.parts);
        s.count = (int)((int64_t)g.common * (part + 1) / g.parts) - s.step;
        s.slot = s.tile * g.parts + part;
        return s.count > 0;
    }
    const int length = g.steps - g.common;
    s.tile = (int)(s.at / length);
    s.step = g.common + (int)(s.at % length);
    s.count = (int)min((int64_t)(g.steps - s.step), s.end - s.at);
    s.slot = g.tiles * g.parts + rest + s.tile; /* two segments never meet in one */
    return true;
}

static __device__ __forceinline__ void dw_copier(const DwRing &r, const DwArgs &g,
                                                 const CUtensorMap *a, const CUtensorMap *b) {
    const int rank = cluster_rank();
    Turn t = {0, 1}; /* the first round finds the stages empty */
    Segment s = segment_init(g);
    while (segment_next(s, g)) {
        const int m0 = (s.tile / g.tiles_n * CLUSTER + rank) * ROWS,
                  n0 = s.tile % g.tiles_n * WIDTH;
        for (int i = 0; i < s.count; i++) {
            const Shared full = r.full + 8 * t.stage, to = r.data + t.stage * STAGE_BYTES;
            const int k0 = (s.step + i) * DEPTH;
            barrier_wait(r.empty + 8 * t.stage, t.phase);
            barrier_expect(full, STAGE_BYTES);
            for (int j = 0; j < ROWS / 64; j++)
                box_fetch(to + j * TILE_BYTES, a, m0 + 64 * j, k0, full);
            for (int j = 0; j < WIDTH / 64; j++) /* half of the k of each 64 n, for both blocks */
                box_fetch_all(to + A_BYTES + j * TILE_BYTES + rank * (TILE_BYTES / 2), b,
                              n0 + 64 * j, k0 + rank * (DEPTH / 2), full, 3);
            turn_next<STAGES>(t);
        }
    }
}

/* The warpgroup's sums over one segment; with ONES also the sums of a's rows. */
template <bool ONES>
static __device__ __forceinline__ void dw_multiply(float (&sum)[WIDTH / 2], float (&rows)[4],
                                                   const DwRing &r, Turn &t, int group, int count) {
    const int lane = threadIdx.x & 31;
    const uint64_t ones = operand_straight(r.ones);
    Shared before = 0;
    for (int step = 0; step < count; step++) {
        const Shared at = r.data + t.stage * STAGE_BYTES;
        barrier_wait(r.full + 8 * t.stage, t.phase);
        const uint64_t a = operand_turned(at + group * TILE_BYTES);
        const uint64_t b = operand_turned(at + A_BYTES);
        wgmma_begin();
#pragma unroll
        for (int i = 0; i < DEPTH / 16; i++) {
            wgmma<1, 1>(sum, a + i * (2048 >> 4), b + i * (2048 >> 4), step + i > 0);
            if (ONES) wgmma_rows(rows, a + i * (2048 >> 4), ones, step + i > 0);
        }
        wgmma_commit();
        wgmma_wait<1>(); /* the products of the stage before are done: both blocks may refill it */
        if (before && lane < CLUSTER) barrier_arrive_at(before, lane);
        before = r.empty + 8 * t.stage;
        turn_next<STAGES>(t);
    }
    wgmma_wait<0>();
    if (lane < CLUSTER) barrier_arrive_at(before, lane);
}

static __device__ __forceinline__ void dw_maker(const DwRing &r, const DwArgs &g, int group) {
    const int thread = threadIdx.x & 127, rank = cluster_rank();
    Turn t = {0, 0};
    Segment s = segment_init(g);
    while (segment_next(s, g)) {
        float sum[WIDTH / 2], rows[4];
        const bool ones = g.sums && s.tile % g.tiles_n == 0;
        if (ones) {
            dw_multiply<true>(sum, rows, r, t, group, s.count);
        } else {
            dw_multiply<false>(sum, rows, r, t, group, s.count);
        }
        const int64_t part = ((int64_t)s.slot * CLUSTER + rank) * 2 + group;
        float4 *to = reinterpret_cast<float4 *>(g.partial) + part * (WIDTH / 8 * 128) + thread;
#pragma unroll
        for (int i = 0; i < WIDTH / 8; i++)
            to[i * 128] = make_float4(sum[4 * i], sum[4 * i + 1], sum[4 * i + 2], sum[4 * i + 3]);
        if (ones && thread % 4 == 0) {
            float *at = g.sums + part * 64 + thread / 32 * 16 + thread % 32 / 4;
            at[0] = rows[0];
            at[8] = rows[2];
        }
    }
}

static __device__ __forceinline__ DwRing dw_ring(Shared memory) {
    DwRing r;
    r.data = (memory + 1023) & ~1023u;
    r.ones = r.data + STAGES * STAGE_BYTES;
    r.full = r.ones + ONES_BYTES;
    r.empty = r.full + 8 * STAGES;
    for (int i = threadIdx.x; i < ONES_BYTES / 4; i += THREADS)
        asm volatile("st.shared.b32 [%0], %1;" ::"r"(r.ones + 4 * i), "r"(0x3f803f80) : "memory");
    asm volatile("fence.proxy.async.shared::cta;" ::: "memory");
    if (threadIdx.x == 0) {
        for (int i = 0; i < STAGES; i++) {
            barrier_init(r.full + 8 * i, 1);
            barrier_init(r.empty + 8 * i, CLUSTER * 8); /* the makers' warps of both blocks */
        }
        asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
    }
    cluster_sync();
    return r;
}

#endif

__global__ void IN_CLUSTERS __launch_bounds__(THREADS, 1)
    gemm_dw_kernel(DwArgs g, const __grid_constant__ CUtensorMap a,
                   const __grid_constant__ CUtensorMap b) {
#if HAVE_SM90A
    extern __shared__ char memory[];
    const DwRing r = dw_ring(shared_address(memory));
    const int role = threadIdx.x / 128;
    if (role == 0) {
        registers_down<40>();
        if (threadIdx.x == 0) dw_copier(r, g, &a, &b);
    } else {
        registers_up<232>();
        dw_maker(r, g, role - 1);
    }
    __syncwarp();
    cluster_sync(); /* no block ends while the other may still write to it */
#endif
}

/* Which of the other clusters has a step of the rests. */
static __device__ __forceinline__ int rest_of(const DwArgs &g, int64_t step) {
    int r = (int)(step * g.others / ((int64_t)g.tiles * (g.steps - g.common)));
    while (rest_begin(g, r + 1) <= step) r++;
    while (rest_begin(g, r) > step) r--;
    return r;
}

static __device__ __forceinline__ void dw_put(const DwArgs &g, int row, int column, float v) {
    if (row >= g.m || column >= g.n) return;
    float *to = g.c + (int64_t)row * g.n + column;
    *to = g.add ? *to + v : v;
}

/* Adds up the segments of a tile in order of depth: block x: pieces, y: block and maker, z: tile.
 */
__global__ void __launch_bounds__(128) dw_join_kernel(DwArgs g) {
    const int tile = blockIdx.z, part = blockIdx.y, t = threadIdx.x, length = g.steps - g.common;
    const int64_t begin = (int64_t)tile * length;
    const int first = length ? rest_of(g, begin) : 0;
    const int rests = length ? rest_of(g, begin + length - 1) - first + 1 : 0;
    const int row0 = tile / g.tiles_n * CLUSTER * ROWS + part * 64;
    const int row = row0 + t / 32 * 16 + t % 32 / 4, column = tile % g.tiles_n * WIDTH + t % 4 * 2;
    float4 sum[PIECES] = {};
    float total = 0; /* of a row of a */
    const bool ones = g.sums && tile % g.tiles_n == 0 && blockIdx.x == 0 && t < 64;
    for (int i = 0; i < g.parts + rests; i++) {
        const int slot =
            i < g.parts ? tile * g.parts + i : g.tiles * g.parts + first + i - g.parts + tile;
        const int64_t at = (int64_t)slot * 4 + part;
        const float4 *from = reinterpret_cast<const float4 *>(g.partial) +
                             (at * (WIDTH / 8) + blockIdx.x * PIECES) * 128 + t;
#pragma unroll
        for (int j = 0; j < PIECES; j++) {
            const float4 v = from[j * 128];
            sum[j].x += v.x, sum[j].y += v.y, sum[j].z += v.z, sum[j].w += v.w;
        }
        if (ones) total += g.sums[at * 64 + t];
    }
#pragma unroll
    for (int j = 0; j < PIECES; j++) {
        const int at = column + (blockIdx.x * PIECES + j) * 8;
        dw_put(g, row, at, sum[j].x);
        dw_put(g, row, at + 1, sum[j].y);
        dw_put(g, row + 8, at, sum[j].z);
        dw_put(g, row + 8, at + 1, sum[j].w);
    }
    if (ones && row0 + t < g.m) g.bias[row0 + t] = g.add_bias ? g.bias[row0 + t] + total : total;
}

/* ---- host ----------------------------------------------------------------------------------- */

/* How the clusters are shared out. */
static void dw_divide(DwArgs *g, int clusters) {
    g->tiles_n = (int)ceil_div(g->n, WIDTH);
    g->tiles = (int)ceil_div(g->m, CLUSTER * ROWS) * g->tiles_n;
    g->steps = (int)ceil_div(g->k, DEPTH);
    g->parts = clusters / g->tiles;
    g->others = clusters - g->tiles * g->parts;
    const int64_t share = (int64_t)g->steps * g->tiles * g->parts;
    g->common = g->others ? (int)(share / clusters) : g->steps;
}

static DwArgs dw_sizes(Device *d, const DwCall *call) {
    DwArgs g = {};
    g.m = (int)call->outputs, g.n = (int)call->inputs, g.k = (int)call->rows;
    dw_divide(&g, backend_of(d)->sm_count / CLUSTER);
    return g;
}

/* Share of the products that are of the matrix, not of the tiles' edges. */
static double dw_use(const DwArgs *g) {
    return (double)g->m * g->n / ((double)g->tiles * CLUSTER * ROWS * WIDTH);
}

/* Where it was faster than cuBLASLt and a column sum (docs/performance.md): more outputs than
 * inputs, so that the bias weighs. Not where a large share of the clusters would work by itself (66
 * clusters: tiles from 34 to 57): what it reads is read again and again. */
bool gemm_dw_fits(Device *d, const DwCall *call) {
    if (!backend_of(d)->sm90a || call->rows < MIN_ROWS || call->rows > INT32_MAX / 2 ||
        call->outputs > INT32_MAX / 2 || call->outputs < 2 * call->inputs || call->inputs < 128)
        return false;
    const int clusters = backend_of(d)->sm_count / CLUSTER;
    const DwArgs g = dw_sizes(d, call);
    return g.m % 8 == 0 && g.n % 8 == 0 && 7 * g.others <= clusters &&
           (int64_t)g.steps * g.tiles >= clusters && dw_use(&g) >= 0.9 &&
           is_aligned(call->dy, 16) && is_aligned(call->x, 16);
}

Status gemm_dw(Device *d, const DwCall *call) {
    DwArgs g = dw_sizes(d, call);
    CUtensorMap map_a, map_b;
    TRY(map_matrix(&map_a, call->dy, g.k, g.m, DEPTH));
    TRY(map_matrix(&map_b, call->x, g.k, g.n, DEPTH / 2));
    g.c = call->dw, g.bias = call->dbias;
    g.add = call->add, g.add_bias = call->add_bias;
    const int clusters = backend_of(d)->sm_count / CLUSTER;
    const int64_t slots = clusters + g.tiles;
    TRY(scratch_take(d, sizeof(float) * slots * CLUSTER * ROWS * WIDTH, (void **)&g.partial));
    if (call->dbias) TRY(scratch_take(d, sizeof(float) * slots * CLUSTER * ROWS, (void **)&g.sums));
    CUDA_TRY(cudaFuncSetAttribute(gemm_dw_kernel, cudaFuncAttributeMaxDynamicSharedMemorySize,
                                  SHARED_BYTES),
             "a weight gradient");
    gemm_dw_kernel<<<CLUSTER * clusters, THREADS, SHARED_BYTES, stream_of(d)>>>(g, map_a, map_b);
    TRY(launched("a weight gradient"));
    const dim3 grid(WIDTH / 8 / PIECES, 2 * CLUSTER, (unsigned)g.tiles);
    dw_join_kernel<<<grid, 128, 0, stream_of(d)>>>(g);
    return launched("a weight gradient");
}
