/* The forward product with what follows: persistent blocks of five warpgroups, in clusters of two.
 *
 * - The copier, one thread, streams tiles of a and b through a ring in shared memory. The blocks
 *   of a cluster work on neighbouring rows with the same b; each fetches half of it for both.
 * - The makers, two warpgroups, multiply (64 rows each of the block's 128 x 256 results), add the
 *   bias, round, and leave the result in a staging tile.
 * - The finishers, eleven warps, apply f to the staging tile and write to memory, while the makers
 *   are at the next tile.
 *
 * The staging tile is handed over in units of 64 rows x PART columns, so that neither side waits
 * for the whole of the other's work. A finisher's warp issues an instruction every five cycles or
 * so beside the makers (dispatch stalls; ncu on an H200): hence so many of them.
 */
#include "kernels/cuda/gemm_forward.cuh"
#include "kernels/cuda/gemm_ring.cuh"

#define WIDTH      256
#define GROUPS     3 /* warpgroups besides the makers */
#define THREADS    (128 * (2 + GROUPS))
#define FINISHERS  (4u * GROUPS - 1)  /* warps */
#define BATCH      2                  /* accesses of a finisher at a time */
#define PART       64                 /* columns of a unit */
#define UNITS      (2 * WIDTH / PART) /* u: rows of maker u % 2, columns of part u / 2 */
#define UNIT_BYTES (64 * PART * 2)
#define UNIT_STEPS (PART / 4) /* accesses of a warp, 512 bytes each */
#define STEPS      (UNITS * UNIT_STEPS)
#define CHUNKS     (PART / 8) /* of 8 columns in a row of a unit */

#define STAGE_BYTES  (A_BYTES + WIDTH * 128)
#define STAGED_BYTES (ROWS * WIDTH * 2)
#define BIAS_BYTES   (4 * WIDTH * 4)                           /* of both makers, two by turns */
#define FIXED_BYTES  (STAGED_BYTES + BIAS_BYTES + 1024 + 1024) /* barriers, alignment */
#define STAGES       ((SHARED_LIMIT - FIXED_BYTES) / STAGE_BYTES)
#define SHARED_BYTES (STAGES * STAGE_BYTES + FIXED_BYTES)

typedef struct ForwardArgs {
    int m, n, k;
    int tiles_n, tiles; /* tiles of a cluster: 2 ROWS x WIDTH */
    bf16 *y, *other;
    const float *bias, *scale;
    int rows_per_scale;
} ForwardArgs;

#if HAVE_SM90A

/* Barriers: a stage is full, a stage is empty; per unit: it is staged, it is taken. */
typedef struct Ring {
    Shared data, staging, biases, full, empty, staged, taken;
} Ring;

static __device__ __forceinline__ void copier_run(const Ring &r, const ForwardArgs &g,
                                                  const CUtensorMap *a, const CUtensorMap *b) {
    const int rank = cluster_rank(), clusters = gridDim.x / CLUSTER;
    Turn t = {0, 1}; /* the first round finds the stages empty */
    for (int tile = blockIdx.x / CLUSTER; tile < g.tiles; tile += clusters) {
        const int m0 = (tile / g.tiles_n * CLUSTER + rank) * ROWS, n0 = tile % g.tiles_n * WIDTH;
        for (int k0 = 0; k0 < g.k; k0 += DEPTH) {
            const Shared full = r.full + 8 * t.stage, to = r.data + t.stage * STAGE_BYTES;
            barrier_wait(r.empty + 8 * t.stage, t.phase);
            barrier_expect(full, STAGE_BYTES);
            box_fetch(to, a, k0, m0, full);
            box_fetch_all(to + A_BYTES + rank * (WIDTH / 2) * 128, b, k0, n0 + rank * (WIDTH / 2),
                          full, 3); /* half of the n, for both blocks */
            turn_next<STAGES>(t);
        }
    }
}

/* The warpgroup's accumulators of one tile. */
static __device__ __forceinline__ void maker_multiply(float (&sum)[WIDTH / 2], const Ring &r,
                                                      Turn &t, int group, int k) {
    const int lane = threadIdx.x & 31;
    Shared before = 0;
    for (int k0 = 0; k0 < k; k0 += DEPTH) {
        const Shared at = r.data + t.stage * STAGE_BYTES;
        barrier_wait(r.full + 8 * t.stage, t.phase);
        const uint64_t a = operand_straight(at + group * TILE_BYTES);
        const uint64_t b = operand_straight(at + A_BYTES);
        wgmma_begin();
#pragma unroll
        for (int i = 0; i < DEPTH / 16; i++) wgmma_halves(sum, a + i * 2, b + i * 2, k0 + i > 0);
        wgmma_commit();
        wgmma_wait<1>(); /* the products of the stage before are done: both blocks may refill it */
        if (before && lane < CLUSTER) barrier_arrive_at(before, lane);
        before = r.empty + 8 * t.stage;
        turn_next<STAGES>(t);
    }
    wgmma_wait<0>();
    if (lane < CLUSTER) barrier_arrive_at(before, lane);
}

/* A barrier among `count` threads of the block. */
static __device__ __forceinline__ void meet(int barrier, int count) {
    asm volatile("bar.sync %0, %1;" ::"r"(barrier), "r"(count) : "memory");
}
static __device__ __forceinline__ void shared_put(Shared at, float2 v) {
    asm volatile("st.shared.v2.f32 [%0], {%1, %2};" ::"r"(at), "f"(v.x), "f"(v.y) : "memory");
}
static __device__ __forceinline__ float2 shared_pair(Shared at) {
    float2 v;
    asm volatile("ld.shared.v2.f32 {%0, %1}, [%2];" : "=f"(v.x), "=f"(v.y) : "r"(at) : "memory");
    return v;
}

/* Chunk of 8 columns of a row of a unit. */
static __device__ __forceinline__ Shared unit_at(Shared unit, int row, int chunk) {
    return unit + row * (PART * 2) + ((chunk ^ (row & 7)) << 4);
}

/* Adds the bias, rounds and stores PART columns of the warp's 16 rows. */
static __device__ __forceinline__ void maker_stage(const float *sum, Shared unit, Shared bias,
                                                   int row0) {
    const int l = threadIdx.x & 31, q = l & 3;
    const int row = row0 + ((l >> 3) & 1) * 8 + (l & 7), right = l >> 4;
#pragma unroll
    for (int i = 0; i < PART / 16; i++) {
        const float2 near = shared_pair(bias + (16 * i + 2 * q) * 4);
        const float2 far = shared_pair(bias + (16 * i + 2 * q + 8) * 4);
        const float *s = sum + 8 * i;
        const uint32_t f0 = pack2(s[0] + near.x, s[1] + near.y);
        const uint32_t f1 = pack2(s[2] + near.x, s[3] + near.y);
        const uint32_t f2 = pack2(s[4] + far.x, s[5] + far.y);
        const uint32_t f3 = pack2(s[6] + far.x, s[7] + far.y);
        asm volatile("stmatrix.sync.aligned.m8n8.x4.shared.b16 [%0], {%1,%2,%3,%4};" ::"r"(
                         unit_at(unit, row, 2 * i + right)),
                     "r"(f0), "r"(f1), "r"(f2), "r"(f3)
                     : "memory");
    }
}

/* The bias of a tile: fetched before the products, which hide the way to memory, and put into
 * shared memory after them. */
static __device__ __forceinline__ float2 bias_fetch(const ForwardArgs &g, int n0) {
    const int c = 2 * (threadIdx.x & 127);
    float2 v = {};
    if (g.bias && n0 + c < g.n) /* n is a multiple of 8 */
        v = *reinterpret_cast<const float2 *>(g.bias + n0 + c);
    return v;
}

static __device__ __forceinline__ void maker_run(const Ring &r, const ForwardArgs &g, int group) {
    const int clusters = gridDim.x / CLUSTER, warp = threadIdx.x / 32 % 4;
    Turn t = {0, 0};
    int round = 0;
    for (int tile = blockIdx.x / CLUSTER; tile < g.tiles; tile += clusters, round ^= 1) {
        float sum[WIDTH / 2];
        const float2 bias = bias_fetch(g, tile % g.tiles_n * WIDTH);
        maker_multiply(sum, r, t, group, g.k);
        const Shared biases = r.biases + (2 * round + group) * (WIDTH * 4);
        shared_put(biases + 2 * (threadIdx.x & 127) * 4, bias);
        meet(2 + group, 128);
#pragma unroll
        for (int p = 0; p < WIDTH / PART; p++) {
            const int unit = 2 * p + group;
            barrier_wait(r.taken + 8 * unit, round ^ 1);
            maker_stage(sum + p * (PART / 2), r.staging + unit * UNIT_BYTES,
                        biases + p * (PART * 4), warp * 16);
            __syncwarp();
            if ((threadIdx.x & 31) == 0) barrier_arrive(r.staged + 8 * unit);
        }
    }
}

/* f of a pair of elements. */
template <ForwardKind KIND>
static __device__ __forceinline__ uint32_t finish_pair(uint32_t p, uint32_t o, float scale) {
    const float x[2] = {low_of(p), high_of(p)}, y[2] = {low_of(o), high_of(o)};
    float out[2];
#pragma unroll
    for (int i = 0; i < 2; i++)
        out[i] = KIND == FORWARD_GELU ? gelu_quick(x[i]) : y[i] + scale * x[i];
    return pack2(out[0], out[1]);
}

/* What a finisher's lane reads and writes of a tile, 8 columns (16 bytes) at a time: step s of a
 * warp is 32 / CHUNKS rows of unit s / UNIT_STEPS; the warps take steps by turns. */
typedef struct Finish {
    unsigned at;       /* in y: the lane's first row, its chunk in the first part */
    int rows, columns; /* left of the matrix from there on */
    int tile_row;      /* of all tiles of a block */
} Finish;

/* Row of the lane in a step, and its chunk of 8 columns. */
static __device__ __forceinline__ unsigned lane_row(void) {
    return (threadIdx.x & 31) / CHUNKS;
}
static __device__ __forceinline__ unsigned lane_chunk(void) {
    return (threadIdx.x & 31) % CHUNKS;
}

static __device__ __forceinline__ Finish finish_init(const ForwardArgs &g, int tile) {
    const int n0 = tile % g.tiles_n * WIDTH;
    Finish f;
    f.tile_row = tile / g.tiles_n * CLUSTER + cluster_rank();
    const int row = f.tile_row * ROWS + lane_row(), column = n0 + 8 * lane_chunk();
    f.rows = g.m - row, f.columns = g.n - column;
    f.at = (unsigned)row * g.n + column;
    return f;
}

/* Row and first column of step s, without the lane's own. */
static __device__ __forceinline__ unsigned step_row(unsigned s) {
    return s / UNIT_STEPS % 2 * 64 + s % UNIT_STEPS * (32 / CHUNKS);
}
static __device__ __forceinline__ unsigned step_column(unsigned s) {
    return s / (2 * UNIT_STEPS) * PART;
}

/* Whether step s exists and the lane's chunk of it lies in the matrix; where. */
static __device__ __forceinline__ bool step_real(const Finish &f, unsigned s) {
    return s < STEPS && (int)step_row(s) < f.rows && (int)step_column(s) < f.columns;
}
static __device__ __forceinline__ unsigned step_place(const Finish &f, unsigned n, unsigned s) {
    return f.at + step_row(s) * n + step_column(s);
}

static __device__ __forceinline__ uint4 finish_fetch(const Finish &f, const ForwardArgs &g,
                                                     unsigned s) {
    if (!step_real(f, s)) return make_uint4(0, 0, 0, 0);
    return *reinterpret_cast<const uint4 *>(g.other + step_place(f, g.n, s));
}

/* The lane's chunk of step s in the staging tile. */
static __device__ __forceinline__ uint4 finish_staged(const char *staging, unsigned s) {
    const unsigned row = s % UNIT_STEPS * (32 / CHUNKS) + lane_row();
    return *reinterpret_cast<const uint4 *>(staging + s / UNIT_STEPS * UNIT_BYTES +
                                            row * (PART * 2) + (lane_chunk() ^ (row & 7)) * 16);
}

/* A batch of steps, FINISHERS apart from s on. `other` is fetched for the next batch as soon as it
 * is used up: so much of it is on its way at any time. */
template <ForwardKind KIND>
static __device__ __forceinline__ void finish_batch(const char *staging, const Finish &f,
                                                    const ForwardArgs &g, unsigned s,
                                                    uint4 (&other)[BATCH]) {
    uint4 ahead = finish_staged(staging, s);
#pragma unroll
    for (int i = 0; i < BATCH; i++) {
        const unsigned step = s + i * FINISHERS, at = step_place(f, g.n, step);
        const bool real = step_real(f, step);
        const uint4 v = ahead;
        if (i + 1 < BATCH) ahead = finish_staged(staging, min(step + FINISHERS, STEPS - 1u));
        float scale = 1.0f;
        if (KIND == FORWARD_RESIDUAL && g.scale && real)
            scale = g.scale[(f.tile_row * ROWS + lane_row() + step_row(step)) / g.rows_per_scale];
        if (KIND == FORWARD_GELU && g.other && real) *reinterpret_cast<uint4 *>(g.other + at) = v;
        const uint4 y = make_uint4(
            finish_pair<KIND>(v.x, other[i].x, scale), finish_pair<KIND>(v.y, other[i].y, scale),
            finish_pair<KIND>(v.z, other[i].z, scale), finish_pair<KIND>(v.w, other[i].w, scale));
        if (KIND == FORWARD_RESIDUAL) other[i] = finish_fetch(f, g, step + FINISHERS * BATCH);
        if (real) *reinterpret_cast<uint4 *>(g.y + at) = y;
    }
}

/* What is read does not wait for the makers. */
template <ForwardKind KIND>
static __device__ __forceinline__ void finisher_run(const Ring &r, const char *staging,
                                                    const ForwardArgs &g) {
    const int clusters = gridDim.x / CLUSTER;
    const unsigned warp = threadIdx.x / 32 - 1;
    int round = 0;
    for (int tile = blockIdx.x / CLUSTER; tile < g.tiles; tile += clusters, round ^= 1) {
        const Finish f = finish_init(g, tile);
        uint4 other[BATCH] = {};
        unsigned staged = 0, taken = 0; /* units so far */
#pragma unroll
        for (int i = 0; i < BATCH && KIND == FORWARD_RESIDUAL; i++)
            other[i] = finish_fetch(f, g, warp + i * FINISHERS);
#pragma unroll 1
        for (unsigned s = warp; s < STEPS; s += FINISHERS * BATCH) {
            const unsigned last = min(s + FINISHERS * (BATCH - 1), STEPS - 1u) / UNIT_STEPS;
            for (; staged <= last; staged++) barrier_wait(r.staged + 8 * staged, round);
            finish_batch<KIND>(staging, f, g, s, other);
            __syncwarp();
            for (; taken < min((s + FINISHERS * BATCH) / UNIT_STEPS, (unsigned)UNITS); taken++)
                if ((threadIdx.x & 31) == 0) barrier_arrive(r.taken + 8 * taken);
        }
    }
}

static __device__ __forceinline__ Ring ring_init(Shared memory) {
    Ring r;
    r.data = (memory + 1023) & ~1023u;
    r.staging = r.data + STAGES * STAGE_BYTES;
    r.biases = r.staging + STAGED_BYTES;
    r.full = r.biases + BIAS_BYTES;
    r.empty = r.full + 8 * STAGES;
    r.staged = r.empty + 8 * STAGES;
    r.taken = r.staged + 8 * UNITS;
    if (threadIdx.x == 0) {
        for (int i = 0; i < STAGES; i++) {
            barrier_init(r.full + 8 * i, 1);
            barrier_init(r.empty + 8 * i, CLUSTER * 8); /* the makers' warps of both blocks */
        }
        for (int i = 0; i < UNITS; i++) {
            barrier_init(r.staged + 8 * i, 4);
            barrier_init(r.taken + 8 * i, FINISHERS);
        }
        asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
    }
    cluster_sync();
    return r;
}

#endif

template <ForwardKind KIND>
__global__ void IN_CLUSTERS __launch_bounds__(THREADS, 1)
    gemm_forward_kernel(ForwardArgs g, const __grid_constant__ CUtensorMap a,
                        const __grid_constant__ CUtensorMap b) {
#if HAVE_SM90A
    extern __shared__ char memory[];
    const Ring r = ring_init(shared_address(memory));
    const char *staging = memory + (r.staging - shared_address(memory));
    const int role = threadIdx.x / 128;
    if (role < GROUPS) {
        registers_down<48>();
        if (threadIdx.x >= 32) {
            finisher_run<KIND>(r, staging, g);
        } else if (threadIdx.x == 0) {
            copier_run(r, g, &a, &b);
        }
    } else {
        registers_up<168>();
        maker_run(r, g, role - GROUPS);
    }
    __syncwarp();
    cluster_sync(); /* no block ends while the other may still write to it */
#endif
}

/* ---- host ----------------------------------------------------------------------------------- */

/* Wide results with the pre-activation are left to others: two streams of pitch 6144 bytes took
 * 0.43 to 0.94 ms (n = 3072, seven runs on one H200), as memory happened to lie. A residual is
 * worth it for products that are over soon. */
bool gemm_forward_fits(Device *d, const ForwardCall *g) {
    const int64_t covered = ceil_div(g->n, WIDTH) * WIDTH;
    const bool suits = g->kind == FORWARD_GELU ? !g->other || g->n <= 2048 : g->k <= 1536;
    return suits && backend_of(d)->sm90a && g->m >= 1024 && g->k >= 128 &&
           10 * g->n > 9 * covered && g->n % 8 == 0 && g->k % 8 == 0 && g->m * g->n < INT32_MAX &&
           is_aligned(g->a, 16) && is_aligned(g->b, 16) && is_aligned(g->y, 16) &&
           is_aligned(g->other, 16) && is_aligned(g->bias, 8);
}

template <ForwardKind KIND> static Status forward_launch(Device *d, const ForwardCall *call) {
    CUtensorMap a, b;
    TRY(map_matrix(&a, call->a, call->m, call->k, ROWS));
    TRY(map_matrix(&b, call->b, call->n, call->k, WIDTH / 2));
    ForwardArgs g = {};
    g.m = (int)call->m, g.n = (int)call->n, g.k = (int)call->k;
    g.tiles_n = (int)ceil_div(call->n, WIDTH);
    g.tiles = (int)ceil_div(call->m, CLUSTER * ROWS) * g.tiles_n;
    g.y = (bf16 *)call->y, g.other = (bf16 *)call->other;
    g.bias = call->bias, g.scale = call->scale;
    g.rows_per_scale = (int)(call->rows_per_scale > 0 ? call->rows_per_scale : 1);
    const int most = backend_of(d)->sm_count / CLUSTER, clusters = g.tiles < most ? g.tiles : most;
    CUDA_TRY(cudaFuncSetAttribute(gemm_forward_kernel<KIND>,
                                  cudaFuncAttributeMaxDynamicSharedMemorySize, SHARED_BYTES),
             "a fused product");
    gemm_forward_kernel<KIND><<<CLUSTER * clusters, THREADS, SHARED_BYTES, stream_of(d)>>>(g, a, b);
    return launched("a fused product");
}

Status gemm_forward(Device *d, const ForwardCall *g) {
    return g->kind == FORWARD_GELU ? forward_launch<FORWARD_GELU>(d, g)
                                   : forward_launch<FORWARD_RESIDUAL>(d, g);
}
