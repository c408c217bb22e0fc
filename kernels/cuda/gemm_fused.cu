/* Products with what follows in one kernel: persistent blocks in clusters of two.
 *
 * - The copier, one thread, streams tiles of a and b through a ring in shared memory. The blocks
 *   of a cluster work on neighbouring rows with the same b; each fetches half of it for both.
 * - The makers, eight warps, multiply (16 rows each of the block's 128 x 256 results), add the
 * bias, round, and leave the result in a staging tile.
 * - The finishers apply f to the staging tile and write to memory, while the makers are at the next
 *   tile. Numbers that are kept as they were staged, the copy engine takes from there.
 *
 * Two forms. Three finishers beside the copier: 384 threads, so that a maker may have 256 columns
 * in one instruction (it needs 154 registers a thread where the kernel begins) and reads its rows
 * of a once. Or eight, each the partner of one maker, for what takes longer than the products: the
 * makers then multiply 128 columns at a time.
 */
#include "kernels/cuda/gelu_pair.cuh"
#include "kernels/cuda/gemm_fused_tile.cuh"

#if HAVE_SM90A

/* f of a pair of elements. */
template <FusedKind KIND>
static __device__ __forceinline__ uint32_t finish_pair(uint32_t p, uint32_t o, float scale) {
    if (KIND == FUSED_PLAIN) return p;
    if (KIND == FUSED_GELU || KIND == FUSED_GELU_KEEP) return gelu_pair(p);
    if (KIND == FUSED_DGELU) return gelu_slope_pair(p, o);
    return pack2(fmaf(scale, low_of(p), low_of(o)), fmaf(scale, high_of(p), high_of(o)));
}

/* What a finisher's lane has of a tile: 8 columns (16 bytes) of the rows of its warp. Warps take
 * groups of four rows by turns. */
typedef struct Finish {
    unsigned at;  /* in y: the lane's columns of the first row */
    int rows;     /* of the matrix from there on; none for a lane beyond the last column */
    int row0, n0; /* of the tile */
    float scale[2];
    int boundary; /* the row from which on the second scale holds */
} Finish;

template <FusedKind KIND, bool PAIRS>
static __device__ __forceinline__ Finish finish_init(const FusedArgs &g, int tile) {
    Finish f = {};
    f.row0 = tile_row(g, tile);
    f.n0 = tile_column<PAIRS>(g, tile);
    const int column = f.n0 + 8 * (threadIdx.x & 31);
    f.rows = column < g.n ? g.m - f.row0 : 0;
    f.at = (unsigned)f.row0 * g.n + column;
    if (KIND == FUSED_RESIDUAL) {
        f.scale[0] = f.scale[1] = 1.0f;
        if (g.scale && f.row0 < g.m) {
            const int first = f.row0 / g.rows_per_scale;
            f.boundary = (first + 1) * g.rows_per_scale - f.row0;
            f.scale[0] = g.scale[first];
            if (f.row0 + f.boundary < g.m) f.scale[1] = g.scale[first + 1];
        }
    }
    return f;
}

static __device__ __forceinline__ uint4 finish_fetch(const Finish &f, const FusedArgs &g, int row,
                                                     int end) {
    if (row >= end || row >= f.rows) return make_uint4(0, 0, 0, 0);
    return *reinterpret_cast<const uint4 *>(g.other + f.at + (unsigned)(row * g.n));
}

static __device__ __forceinline__ void sums_add(float (&sum)[8], uint4 v) {
    sum[0] += low_of(v.x), sum[1] += high_of(v.x), sum[2] += low_of(v.y), sum[3] += high_of(v.y);
    sum[4] += low_of(v.z), sum[5] += high_of(v.z), sum[6] += low_of(v.w), sum[7] += high_of(v.w);
}

/* v[2 SIZE] summed over pairs of lanes, of which each is left with half of the values. */
template <int SIZE> static __device__ __forceinline__ void moments_fold(float (&v)[8]) {
    const bool upper = threadIdx.x & (4 * SIZE);
#pragma unroll
    for (int i = 0; i < SIZE; i++) {
        const float give = upper ? v[i] : v[SIZE + i], keep = upper ? v[SIZE + i] : v[i];
        v[i] = keep + __shfl_xor_sync(0xffffffffu, give, 4 * SIZE);
    }
}

/* Sums of y and of its squares over the tile's columns of four rows, v[2 i] and v[2 i + 1] of row
 * `row` + i. Not around a mean: the relative error of a variance is some 1e-7 (1 + mean^2 /
 * variance), and rows of BF16 whose mean is 300 times their deviation have no digit of it anyway.
 */
static __device__ __forceinline__ void moments_put(const FusedArgs &g, const Finish &f, int row,
                                                   float (&v)[8]) {
    const int lane = threadIdx.x & 31, mine = f.row0 + row + lane / 8;
    moments_fold<4>(v);
    moments_fold<2>(v);
    moments_fold<1>(v);
    v[0] += __shfl_xor_sync(0xffffffffu, v[0], 2);
    v[0] += __shfl_xor_sync(0xffffffffu, v[0], 1);
    if (lane % 4 == 0 && mine < g.m)
        g.moments[2 * (mine * g.tiles_n + f.n0 / WIDTH) + lane / 4 % 2] = v[0];
}

/* A pair of p + o, before it is rounded added to the two moments of its row. */
static __device__ __forceinline__ uint32_t moments_add(float *moment, uint32_t p, uint32_t o) {
    const float low = low_of(p) + low_of(o), high = high_of(p) + high_of(o);
    moment[0] += low + high;
    moment[1] = fmaf(high, high, fmaf(low, low, moment[1]));
    return pack2(low, high);
}

/* What comes of a finisher's 8 columns of a row; FUSED_MOMENTS: and of its moments. */
template <FusedKind KIND>
static __device__ __forceinline__ uint4 finish_chunk(uint4 p, uint4 o, float scale, bool real,
                                                     float *moment) {
    if (KIND != FUSED_MOMENTS)
        return make_uint4(finish_pair<KIND>(p.x, o.x, scale), finish_pair<KIND>(p.y, o.y, scale),
                          finish_pair<KIND>(p.z, o.z, scale), finish_pair<KIND>(p.w, o.w, scale));
    const uint4 y = make_uint4(moments_add(moment, p.x, o.x), moments_add(moment, p.y, o.y),
                               moments_add(moment, p.z, o.z), moments_add(moment, p.w, o.w));
    if (!real) moment[0] = moment[1] = 0; /* columns beyond the last may hold anything */
    return y;
}

/* A group of rows. `other` is fetched for the group `ahead` rows on as soon as it is used up. */
template <FusedKind KIND, bool SUMS, int COUNT>
static __device__ __forceinline__ void finish_group(Shared lane, const Finish &f,
                                                    const FusedArgs &g, int row, int end, int ahead,
                                                    uint4 (&other)[COUNT], float (&sum)[8]) {
    const Shared place = (lane ^ ((row & (8 - COUNT)) << 4)) + row * 128;
    unsigned at = f.at + (unsigned)(row * g.n);
    uint4 v[COUNT];
    float moment[8] = {};
#pragma unroll
    for (int i = 0; i < COUNT; i++) v[i] = shared_chunk((place ^ (i << 4)) + i * 128);
#pragma unroll
    for (int i = 0; i < COUNT; i++, at += g.n) {
        const bool real = row + i < f.rows;
        const float scale = row + i < f.boundary ? f.scale[0] : f.scale[1];
        const uint4 y = finish_chunk<KIND>(v[i], other[i], scale, real, moment + 2 * (i % 4));
        if (READS) other[i] = finish_fetch(f, g, row + i + ahead, end);
        if (SUMS && real) sums_add(sum, y);
        if (real) *reinterpret_cast<uint4 *>(g.y + at) = y;
    }
    if (KIND == FUSED_MOMENTS) moments_put(g, f, row, moment);
}

/* Groups of rows from `row` on, `step` apart, two at a time where they read. What is read does not
 * wait for the makers. */
template <FusedKind KIND, bool SUMS, bool PAIRS>
static __device__ __forceinline__ void finish_tile(const Ring &r, Shared lane, const FusedArgs &g,
                                                   const Finish &f, int row, int end, int step,
                                                   int barrier, int round, float (&sum)[8]) {
    const int count = Form<PAIRS>::rows;
    uint4 near[count] = {}, far[count] = {};
#pragma unroll
    for (int i = 0; i < count && READS; i++) {
        near[i] = finish_fetch(f, g, row + i, end);
        far[i] = finish_fetch(f, g, row + step + i, end);
    }
    barrier_wait(r.staged + barrier, round);
    if (KIND == FUSED_PLAIN) return;
    if (READS) {
#pragma unroll 1
        for (; row < end; row += 2 * step) {
            finish_group<KIND, SUMS, count>(lane, f, g, row, end, 2 * step, near, sum);
            if (row + step < end)
                finish_group<KIND, SUMS, count>(lane, f, g, row + step, end, 2 * step, far, sum);
        }
    } else {
#pragma unroll 1
        for (; row < end; row += step)
            finish_group<KIND, SUMS, count>(lane, f, g, row, end, step, near, sum);
    }
}

/* The last tile of a cluster: the makers, with nothing else to do, finish rows too. */
#define HELPED      (KIND == FUSED_GELU || KIND == FUSED_RESIDUAL || KIND == FUSED_MOMENTS)
#define MAKER_WARPS 8
#define ALL_WARPS   (MAKER_WARPS + Form<false>::finishers)

static __device__ __forceinline__ Shared finish_place(const Ring &r) {
    const int lane = threadIdx.x & 31;
    return r.staging + lane / 8 * BOX_BYTES + (lane & 7) * 16;
}

template <FusedKind KIND>
static __device__ __forceinline__ void maker_help(const Ring &r, const FusedArgs &g, int warp) {
    const int clusters = gridDim.x / CLUSTER, first = blockIdx.x / CLUSTER;
    const int more = (g.tiles - 1 - first) / clusters;
    const Finish f = finish_init<KIND, false>(g, first + more * clusters);
    float sum[8];
    finish_tile<KIND, false, false>(r, finish_place(r), g, f, warp * Form<false>::rows, ROWS,
                                    ALL_WARPS * Form<false>::rows, 0, more & 1, sum);
}

/* Units first, first + step, ... of the staging tile to memory as they are. */
static __device__ __forceinline__ void units_send(Shared staging, const Finish &f,
                                                  const FusedArgs &g, const CUtensorMap *kept,
                                                  int first, int step) {
    for (int u = first; u < UNITS && f.row0 + u * UNIT_ROWS < g.m; u += step)
        for (int i = 0; i < WIDTH / 64; i++)
            if (f.n0 + 64 * i < g.n)
                send_box(kept, f.n0 + 64 * i, f.row0 + u * UNIT_ROWS,
                         staging + u * UNIT_BYTES + i * BOX_BYTES);
    sends_commit();
}

template <FusedKind KIND, bool SUMS, bool PAIRS>
static __device__ __forceinline__ void finisher_run(const Ring &r, const FusedArgs &g,
                                                    const CUtensorMap *kept) {
    typedef Form<PAIRS> F;
    const int clusters = gridDim.x / CLUSTER, lane = threadIdx.x & 31;
    const int warp = threadIdx.x / 32 - F::first_finisher, barrier = PAIRS ? 8 * warp : 0;
    const Shared place = finish_place(r);
    int round = 0, turn = warp; /* whose the first group is changes with every tile */
    for (int tile = blockIdx.x / CLUSTER; tile < g.tiles; tile += clusters, round ^= 1) {
        const Finish f = finish_init<KIND, PAIRS>(g, tile);
        const bool helped = HELPED && tile + clusters >= g.tiles;
        const int row = PAIRS ? warp * UNIT_ROWS : (helped ? MAKER_WARPS + warp : turn) * F::rows;
        const int end = PAIRS ? row + UNIT_ROWS : ROWS;
        const int step = helped ? ALL_WARPS * F::rows : F::step;
        float sum[8] = {};
        if (KEEPS) {
            barrier_wait(r.staged + barrier, round);
            if (lane == 0) units_send(r.staging, f, g, kept, warp, F::finishers);
        }
        finish_tile<KIND, SUMS, PAIRS>(r, place, g, f, row, end, step, barrier, round, sum);
        __syncwarp();
        if (lane == 0) {
            if (KEEPS) sends_read();
            barrier_arrive(r.taken + barrier);
        }
        if (SUMS && f.rows > 0) {
            const int64_t part = (int64_t)(f.row0 / ROWS) * F::finishers + warp;
            float4 *to = reinterpret_cast<float4 *>(g.sums + part * g.n + f.n0 + 8 * lane);
            to[0] = make_float4(sum[0], sum[1], sum[2], sum[3]);
            to[1] = make_float4(sum[4], sum[5], sum[6], sum[7]);
        }
        turn = turn + 1 == F::finishers ? 0 : turn + 1;
    }
    sends_done();
}

#endif

template <FusedKind KIND, bool SUMS, bool PAIRS>
__global__ void IN_CLUSTERS __launch_bounds__(Form<PAIRS>::threads, 1)
    gemm_fused_kernel(FusedArgs g, const __grid_constant__ CUtensorMap a,
                      const __grid_constant__ CUtensorMap b,
                      const __grid_constant__ CUtensorMap kept) {
#if HAVE_SM90A
    typedef Form<PAIRS> F;
    extern __shared__ char memory[];
    const Ring r = ring_init<PAIRS>(shared_address(memory));
    const int role = threadIdx.x / 128;
    if (role == 0) {
        registers_down<PAIRS ? 24 : 104>();
        if (!PAIRS && threadIdx.x >= 32) {
            finisher_run<KIND, SUMS, PAIRS>(r, g, &kept);
        } else if (threadIdx.x == 0) {
            copier_run<KIND, PAIRS>(r, g, &a, &b);
        }
    } else if (role < F::groups) {
        registers_down<PAIRS ? 56 : 104>();
        finisher_run<KIND, SUMS, PAIRS>(r, g, &kept);
    } else {
        registers_up<PAIRS ? 168 : 200>();
        /* taken from one lane, so that the compiler knows that it is the warp's */
        maker_run<KIND, PAIRS>(r, g, __shfl_sync(0xffffffffu, role - F::groups, 0));
        if (HELPED) maker_help<KIND>(r, g, threadIdx.x / 32 - 4 * F::groups);
    }
    __syncwarp();
    cluster_sync(); /* no block ends while the other may still write to it */
#endif
}

/* ---- host ----------------------------------------------------------------------------------- */

static int common_divisor(int a, int b) {
    return b ? common_divisor(b, a % b) : a;
}

template <FusedKind KIND, bool SUMS, bool PAIRS>
static Status fused_launch(Device *d, const FusedCall *call) {
    typedef Form<PAIRS> F;
    CUtensorMap a, b, kept;
    TRY(map_matrix(&a, call->a, call->m, call->k, ROWS));
    if (TURNED) {
        TRY(map_matrix(&b, call->b, call->k, call->n, DEPTH / 2));
    } else {
        TRY(map_matrix(&b, call->b, call->n, call->k, WIDTH / 2));
    }
    TRY(map_matrix(&kept, KIND == FUSED_GELU_KEEP ? call->other : call->y, call->m, call->n,
                   UNIT_ROWS));
    FusedArgs g = {};
    g.m = (int)call->m, g.n = (int)call->n, g.k = (int)call->k;
    g.tiles_n = (int)ceil_div(call->n, WIDTH);
    g.tiles = (int)ceil_div(call->m, CLUSTER * ROWS) * g.tiles_n;
    g.y = (bf16 *)call->y, g.other = (const bf16 *)call->other;
    g.bias = call->bias, g.scale = call->scale, g.stats = call->stats;
    g.sums = call->sums, g.moments = call->moments;
    g.rows_per_scale = (int)(call->rows_per_scale > 0 ? call->rows_per_scale : 1);
    const int most = backend_of(d)->sm_count / CLUSTER, clusters = g.tiles < most ? g.tiles : most;
    const int rest = g.n % WIDTH, round = g.tiles_n / common_divisor(g.tiles_n, clusters);
    const bool narrow = rest > 0 && rest <= NARROW;
    g.narrow_from = narrow ? g.n - rest : INT32_MAX;
    g.period = narrow ? round * clusters : INT32_MAX;
    CUDA_TRY(cudaFuncSetAttribute(gemm_fused_kernel<KIND, SUMS, PAIRS>,
                                  cudaFuncAttributeMaxDynamicSharedMemorySize, SHARED_BYTES),
             "a fused product");
    gemm_fused_kernel<KIND, SUMS, PAIRS>
        <<<CLUSTER * clusters, F::threads, SHARED_BYTES, stream_of(d)>>>(g, a, b, kept);
    return launched("a fused product");
}

/* Where what the finishers do takes longer than the products. Measured at the size of fc1 of
 * ViTTT-B, batch 256, on one H200 at its power limit (docs/performance.md): in pairs GELU' takes
 * 0.41 ms against 0.48, GELU with the pre-activation 0.43 against 0.45, GELU alone the same in
 * both, the bare product of fc2 0.39 against 0.36. */
#define PAIRED(KIND) (KIND == FUSED_DGELU || KIND == FUSED_GELU_KEEP)

int64_t gemm_fused_sums(int64_t m) {
    return ceil_div(m, ROWS) * Form<PAIRED(FUSED_DGELU)>::finishers;
}

int64_t gemm_fused_moments(int64_t n) {
    return ceil_div(n, WIDTH);
}

/* Whether the last round of tiles leaves few clusters without work. */
static bool fused_fills(Device *d, const FusedCall *g) {
    const int64_t tiles = ceil_div(g->m, CLUSTER * ROWS) * ceil_div(g->n, WIDTH);
    const int64_t clusters = backend_of(d)->sm_count / CLUSTER;
    return 10 * tiles >= 9 * ceil_div(tiles, clusters) * clusters;
}

/* What cuBLASLt does in one pass too is left to it where tiles of this size do not fill the card.
 */
bool gemm_fused_fits(Device *d, const FusedCall *g) {
    const int64_t covered = ceil_div(g->n, WIDTH) * WIDTH;
    const bool alone = g->kind == FUSED_PLAIN || (g->kind == FUSED_RESIDUAL && !g->scale);
    return backend_of(d)->sm90a && g->m >= 1024 && g->k >= 128 && 10 * g->n > 9 * covered &&
           g->n % 8 == 0 && g->k % 8 == 0 && g->m * g->n < INT32_MAX &&
           (!g->scale || g->rows_per_scale >= ROWS) && (!alone || fused_fills(d, g)) &&
           is_aligned(g->a, 16) && is_aligned(g->b, 16) && is_aligned(g->y, 16) &&
           is_aligned(g->other, 16) && is_aligned(g->bias, 8);
}

bool gemm_fused_folds(Device *d, int64_t m, int64_t n, int64_t k) {
    FusedCall g = {};
    g.m = m, g.n = n, g.k = k;
    g.kind = FUSED_PLAIN;
    return gemm_fused_fits(d, &g);
}

template <FusedKind KIND, bool SUMS> static Status fused_run(Device *d, const FusedCall *g) {
    return fused_launch<KIND, SUMS, PAIRED(KIND)>(d, g);
}

Status gemm_fused(Device *d, const FusedCall *g) {
    switch (g->kind) {
    case FUSED_PLAIN:
        return fused_run<FUSED_PLAIN, false>(d, g);
    case FUSED_GELU:
        return g->other ? fused_run<FUSED_GELU_KEEP, false>(d, g)
                        : fused_run<FUSED_GELU, false>(d, g);
    case FUSED_DGELU:
        return g->sums ? fused_run<FUSED_DGELU, true>(d, g) : fused_run<FUSED_DGELU, false>(d, g);
    default:
        return g->moments ? fused_run<FUSED_MOMENTS, false>(d, g)
                          : fused_run<FUSED_RESIDUAL, false>(d, g);
    }
}
