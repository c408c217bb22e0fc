/* Copier and makers of the fused products (gemm_fused.cu says who does what): what fills the
 * staging tile.
 */
#ifndef TTV_KERNELS_CUDA_GEMM_FUSED_TILE_CUH
#define TTV_KERNELS_CUDA_GEMM_FUSED_TILE_CUH

#include "kernels/cuda/gemm_fused.cuh"
#include "kernels/cuda/gemm_ring.cuh"

#define WIDTH        GEMM_FUSED_PART
#define UNITS        8 /* of the staging tile: the rows of a maker */
#define UNIT_ROWS    16
#define NARROW       192 /* columns of a narrow tile */
#define STAGE_BYTES  (A_BYTES + WIDTH * 128)
#define BOX_BYTES    (ROWS * 128) /* 64 columns of the staging tile */
#define UNIT_BYTES   (UNIT_ROWS * 128)
#define STAGED_BYTES (WIDTH / 64 * BOX_BYTES)
#define BIAS_BYTES   (4 * WIDTH * 4)                           /* of both makers, two by turns */
#define FIXED_BYTES  (STAGED_BYTES + BIAS_BYTES + 1024 + 1024) /* barriers, alignment */
#define STAGES       ((SHARED_LIMIT - FIXED_BYTES) / STAGE_BYTES)
#define SHARED_BYTES (STAGES * STAGE_BYTES + FIXED_BYTES)

/* The two forms. A finisher takes its rows in groups. */
template <bool PAIRS> struct Form {
    static const int finishers = PAIRS ? UNITS : 3; /* warps */
    static const int first_finisher = PAIRS ? 4 : 1;
    static const int groups = PAIRS ? 3 : 1; /* warpgroups besides the makers */
    static const int threads = 128 * (groups + 2);
    static const int rows = PAIRS ? 2 : 4; /* of a group */
    static const int step = PAIRS ? rows : rows * finishers;
    static const int barriers = PAIRS ? UNITS : 1; /* by which the staging tile is handed over */
};

typedef struct FusedArgs {
    int m, n, k;
    int tiles_n, tiles; /* tiles of a cluster: 2 ROWS x WIDTH */
    int narrow_from;    /* first column of a tile that has NARROW columns at most */
    int period;         /* tiles after which the order of columns moves on by one */
    bf16 *y;
    const bf16 *other; /* that is read */
    const float *bias, *scale, *stats;
    int rows_per_scale;
    float *sums;    /* [row tiles][finishers][n] or NULL */
    float *moments; /* [m][tiles_n][2] */
} FusedArgs;

/* The input gradient reads the weights turned over. */
#define TURNED (KIND == FUSED_DGELU)
/* Reads `other`. */
#define READS (KIND == FUSED_DGELU || KIND == FUSED_RESIDUAL || KIND == FUSED_MOMENTS)
/* Rows of the product may have a factor. */
#define RATED (KIND == FUSED_PLAIN || KIND == FUSED_GELU)
/* What is staged goes to memory as it is: y, or `other`. */
#define KEEPS (KIND == FUSED_PLAIN || KIND == FUSED_GELU_KEEP)

#if HAVE_SM90A

/* Barriers: a stage is full, a stage is empty; per unit: it is staged, it is taken. */
typedef struct Ring {
    Shared data, staging, biases, full, empty, staged, taken;
} Ring;

template <bool PAIRS> static __device__ __forceinline__ Ring ring_init(Shared memory) {
    typedef Form<PAIRS> F;
    Ring r;
    r.data = (memory + 1023) & ~1023u;
    r.staging = r.data + STAGES * STAGE_BYTES;
    r.biases = r.staging + STAGED_BYTES;
    r.full = r.biases + BIAS_BYTES;
    r.empty = r.full + 8 * STAGES;
    r.staged = r.empty + 8 * STAGES;
    r.taken = r.staged + 8 * F::barriers;
    if (threadIdx.x == 0) {
        for (int i = 0; i < STAGES; i++) {
            barrier_init(r.full + 8 * i, 1);
            barrier_init(r.empty + 8 * i, CLUSTER * 8); /* the makers' warps of both blocks */
        }
        for (int i = 0; i < F::barriers; i++) {
            barrier_init(r.staged + 8 * i, UNITS / F::barriers);
            barrier_init(r.taken + 8 * i, F::finishers / F::barriers);
        }
        asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
    }
    cluster_sync();
    return r;
}

/* First row of the block's part of a tile. */
static __device__ __forceinline__ int tile_row(const FusedArgs &g, int tile) {
    return (tile / g.tiles_n * CLUSTER + cluster_rank()) * ROWS;
}

/* First column of a tile. Where the tiles of a row and the clusters have a common divisor, a
 * cluster would get the same few columns again and again; so the order moves on, and every cluster
 * gets its share of narrow tiles. */
template <bool PAIRS>
static __device__ __forceinline__ int tile_column(const FusedArgs &g, int tile) {
    return (tile + (PAIRS ? 0 : tile / g.period)) % g.tiles_n * WIDTH;
}

template <FusedKind KIND, bool PAIRS>
static __device__ __forceinline__ void copier_run(const Ring &r, const FusedArgs &g,
                                                  const CUtensorMap *a, const CUtensorMap *b) {
    const int rank = cluster_rank(), clusters = gridDim.x / CLUSTER;
    Turn t = {0, 1}; /* the first round finds the stages empty */
    for (int tile = blockIdx.x / CLUSTER; tile < g.tiles; tile += clusters) {
        const int m0 = tile_row(g, tile), n0 = tile_column<PAIRS>(g, tile);
        for (int k0 = 0; k0 < g.k; k0 += DEPTH) {
            const Shared full = r.full + 8 * t.stage, to = r.data + t.stage * STAGE_BYTES;
            barrier_wait(r.empty + 8 * t.stage, t.phase);
            barrier_expect(full, STAGE_BYTES);
            box_fetch(to, a, k0, m0, full);
            if (TURNED) { /* half of the k of each 64 n */
                for (int i = 0; i < WIDTH / 64; i++)
                    box_fetch_all(to + A_BYTES + i * TILE_BYTES + rank * (TILE_BYTES / 2), b,
                                  n0 + 64 * i, k0 + rank * (DEPTH / 2), full, 3);
            } else { /* half of the n */
                box_fetch_all(to + A_BYTES + rank * (WIDTH / 2) * 128, b, k0,
                              n0 + rank * (WIDTH / 2), full, 3);
            }
            turn_next<STAGES>(t);
        }
    }
}

/* The warpgroup's accumulators of one tile; FEW: of its first NARROW columns. */
template <FusedKind KIND, bool PAIRS, bool FEW>
static __device__ __forceinline__ void maker_multiply(float (&sum)[WIDTH / 2], const Ring &r,
                                                      Turn &t, int group, int k) {
    const int lane = threadIdx.x & 31;
    Shared before = 0;
    for (int k0 = 0; k0 < k; k0 += DEPTH) {
        const Shared at = r.data + t.stage * STAGE_BYTES;
        barrier_wait(r.full + 8 * t.stage, t.phase);
        const uint64_t a = operand_straight(at + group * TILE_BYTES);
        const uint64_t b = TURNED ? operand_turned(at + A_BYTES) : operand_straight(at + A_BYTES);
        wgmma_begin();
#pragma unroll
        for (int i = 0; i < DEPTH / 16; i++)
            if (PAIRS) {
                wgmma_halves<TURNED>(sum, a + i * 2, b + i * (TURNED ? 2048 >> 4 : 2), k0 + i > 0);
            } else if (FEW) {
                wgmma<TURNED>(reinterpret_cast<float(&)[NARROW / 2]>(sum), a + i * 2, b + i * 2,
                              k0 + i > 0);
            } else {
                wgmma<TURNED>(sum, a + i * 2, b + i * (TURNED ? 2048 >> 4 : 2), k0 + i > 0);
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

/* Applies the rows' factors, adds the bias, rounds and stores the warp's 16 rows: chunk c (of 8
 * columns) of row r of a box at place c ^ (r & 7). `unit`: the warp's rows in the first box. */
template <FusedKind KIND>
static __device__ __forceinline__ void maker_stage(const float (&sum)[WIDTH / 2], float2 rate,
                                                   Shared unit, Shared bias) {
    const int l = threadIdx.x & 31, row = ((l >> 3) & 1) * 8 + (l & 7);
    const Shared place = unit + row * 128 + (((l >> 4) ^ (row & 7)) << 4);
    bias += 8 * (l & 3);
    float2 next[2] = {}; /* one step ahead: the way from shared memory is long */
    if (!TURNED) next[0] = shared_pair(bias), next[1] = shared_pair(bias + 32);
#pragma unroll
    for (int i = 0; i < WIDTH / 16; i++) {
        const float2 near = next[0], far = next[1];
        if (!TURNED && i + 1 < WIDTH / 16) {
            next[0] = shared_pair(bias + 64 * (i + 1));
            next[1] = shared_pair(bias + 64 * (i + 1) + 32);
        }
        const float *s = &sum[8 * i];
        const uint32_t f0 = pack2(fmaf(s[0], rate.x, near.x), fmaf(s[1], rate.x, near.y));
        const uint32_t f1 = pack2(fmaf(s[2], rate.y, near.x), fmaf(s[3], rate.y, near.y));
        const uint32_t f2 = pack2(fmaf(s[4], rate.x, far.x), fmaf(s[5], rate.x, far.y));
        const uint32_t f3 = pack2(fmaf(s[6], rate.y, far.x), fmaf(s[7], rate.y, far.y));
        asm volatile("stmatrix.sync.aligned.m8n8.x4.shared.b16 [%0], {%1,%2,%3,%4};" ::"r"(
                         (place ^ (i % 4 * 32)) + i / 4 * BOX_BYTES),
                     "r"(f0), "r"(f1), "r"(f2), "r"(f3)
                     : "memory");
    }
}

/* The bias of a tile: fetched before the products, which hide the way to memory, and put into
 * shared memory after them. */
static __device__ __forceinline__ float2 bias_fetch(const FusedArgs &g, int n0) {
    const int c = 2 * (threadIdx.x & 127);
    float2 v = {};
    if (g.bias && n0 + c < g.n) /* n is a multiple of 8 */
        v = *reinterpret_cast<const float2 *>(g.bias + n0 + c);
    return v;
}

/* Factors of the two rows of which a lane has sums, fetched before the products too. */
template <FusedKind KIND>
static __device__ __forceinline__ float2 rates_fetch(const FusedArgs &g, int row) {
    float2 v = make_float2(1.0f, 1.0f);
    if (!RATED || !g.stats) return v;
    row += (threadIdx.x & 31) >> 2;
    if (row < g.m) v.x = g.stats[2 * row + 1];
    if (row + 8 < g.m) v.y = g.stats[2 * (row + 8) + 1];
    return v;
}

template <FusedKind KIND, bool PAIRS>
static __device__ __forceinline__ void maker_run(const Ring &r, const FusedArgs &g, int group) {
    const int clusters = gridDim.x / CLUSTER, unit = 4 * group + threadIdx.x / 32 % 4;
    const int barrier = PAIRS ? 8 * unit : 0;
    Turn t = {0, 0};
    int round = 0;
    for (int tile = blockIdx.x / CLUSTER; tile < g.tiles; tile += clusters, round ^= 1) {
        float sum[WIDTH / 2];
        const int n0 = tile_column<PAIRS>(g, tile);
        const float2 bias = TURNED ? float2{} : bias_fetch(g, n0);
        const float2 rate = rates_fetch<KIND>(g, tile_row(g, tile) + unit * UNIT_ROWS);
        if (!PAIRS && n0 >= g.narrow_from) {
            maker_multiply<KIND, PAIRS, true>(sum, r, t, group, g.k);
        } else {
            maker_multiply<KIND, PAIRS, false>(sum, r, t, group, g.k);
        }
        const Shared biases = r.biases + (2 * round + group) * (WIDTH * 4);
        if (!TURNED) {
            shared_put(biases + 8 * (threadIdx.x & 127), bias);
            meet(2 + group, 128);
        }
        barrier_wait(r.taken + barrier, round ^ 1);
        maker_stage<KIND>(sum, rate, r.staging + unit * UNIT_BYTES, biases);
        if (KEEPS) sends_fence();
        __syncwarp();
        if ((threadIdx.x & 31) == 0) barrier_arrive(r.staged + barrier);
    }
}

#endif

#endif
