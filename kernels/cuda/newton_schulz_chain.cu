/* The kernel of newton_schulz_chain.cuh, and its launch. */
#include "kernels/cuda/newton_schulz_order.cuh"
#include "kernels/cuda/newton_schulz_tile.cuh"

#define STAGES      5
#define STAGE_BYTES (4 * TILE_BYTES)
#define THREADS     384
#define SHARED      (STAGES * STAGE_BYTES + 2 * STAGE_BYTES + 1024 + 256)

#if HAVE_SM90A

/* ---- where a tile is ------------------------------------------------------------------------ */

/* The tile of block `rank` in a set. */
static __device__ __forceinline__ Spot spot_of(const Chain &c, int set, int rank) {
    const int whole = c.group * c.sets_each, group = set / whole, first = group * c.group;
    const int size = min(c.group, c.n - first);
    int left = set - group * whole;
    Spot s;
    s.phase = 0;
    while (left >= size * c.phase[s.phase].sets) left -= size * c.phase[s.phase++].sets;
    const Phase &p = c.phase[s.phase];
    s.matrix = first + left / p.sets;
    left %= p.sets;
    if (p.symmetric) {
        const int own = c.cover[left][rank];
        s.real = own != NOBODY;
        s.row = (s.real ? own : c.cover[left][0]) * p.halves * BOX;
        s.column = c.cover[left][CLUSTER] * TILE;
    } else {
        s.row = (left / p.across * CLUSTER + rank) * p.halves * BOX;
        s.column = left % p.across * TILE;
        s.real = s.row < c.r;
    }
    return s;
}

static __device__ __forceinline__ int stages_of(const Phase &p) {
    return p.terms * (p.depth / DEPTH);
}

/* Addresses of shared memory. Barriers of a stage: full, empty. Of each maker: `turn`, the other
 * one has waited for all its stages; `loaded`, the staging tile holds s; `staged`, it holds a
 * result; `taken`, that result has been read. */
typedef struct Ring {
    Shared data, staging, full, empty, turn, loaded, staged, taken;
} Ring;

/* What a copier has come to. */
typedef struct Copied {
    int set, step, slot;
    Spot next;
    bool ready;
} Copied;

/* Operands of one term of a tile. The blocks of a cluster have the same tile column: each fetches
 * half of b for both. The next tile is looked up while the last stages are in flight. */
static __device__ __forceinline__ void term_fetch(const Ring &r, const Chain &c, const Spot &s,
                                                  int rank, int term, Copied &n) {
    const Phase &p = c.phase[s.phase];
    const CUtensorMap *a = &c.map[p.a[term]], *b = &c.map[p.b[term]];
    const int y = s.matrix * c.r, a_y = y + s.row, column = s.column + rank * BOX, depth = p.depth;
    const int halves = p.halves, bytes = (halves + 2) * TILE_BYTES;
    const bool turned = p.turned, last = term + 1 == p.terms && n.set + n.step < c.sets;
    for (int k = 0; k < depth; k += DEPTH, n.slot++) {
        const int stage = n.slot % STAGES;
        const Shared full = r.full + 8 * stage, to = r.data + stage * STAGE_BYTES;
        barrier_wait(r.empty + 8 * stage, n.slot / STAGES & 1 ^ 1);
        barrier_expect(full, bytes);
        box_fetch(to, a, k, a_y, full);
        if (halves == 2) box_fetch(to + TILE_BYTES, a, k, a_y + BOX, full);
        box_fetch_all(to + (2 + rank) * TILE_BYTES, b, turned ? column : k,
                      turned ? y + k : y + column, full, 3);
        if (last && k == depth / DEPTH / 2 * DEPTH) n.next = spot_of(c, n.set + n.step, rank);
        if (last && k + DEPTH == depth) n.ready = is_ready(c, n.next.phase, n.next.matrix);
    }
}

static __device__ __forceinline__ void copier_run(const Ring &r, const Chain &c, int rank) {
    Copied n = {(int)blockIdx.x / CLUSTER, (int)gridDim.x / CLUSTER, 0, {}, false};
    n.next = spot_of(c, n.set, rank);
    for (; n.set < c.sets; n.set += n.step) {
        const Spot s = n.next;
        const int terms = c.phase[s.phase].terms;
        while (!n.ready) n.ready = is_ready(c, s.phase, s.matrix);
        n.ready = false;
        for (int term = 0; term < terms; term++) term_fetch(r, c, s, rank, term, n);
    }
}

/* ---- roles ---------------------------------------------------------------------------------- */

/* sum[half]: rows 64 half to 64 half + 63 of the tile. Barriers of stages tell odd rounds from even
 * ones, no more, so a maker begins to wait for its stages when the other one has no more to wait
 * for. */
template <int HALVES>
static __device__ __forceinline__ void tile_multiply(float (&sum)[HALVES][64], const Ring &r,
                                                     int slot, int stages, int turned,
                                                     Shared other) {
    const int lane = threadIdx.x & 31;
    Shared before = 0;
    for (int i = 0; i < stages; i++, slot++) {
        const int stage = slot % STAGES;
        const Shared at = r.data + stage * STAGE_BYTES, b_at = at + 2 * TILE_BYTES;
        barrier_wait(r.full + 8 * stage, slot / STAGES & 1);
        stage_multiply(sum, operand_straight(at), operand_straight(at + TILE_BYTES),
                       turned ? operand_turned(b_at) : operand_straight(b_at), i > 0, turned);
        wgmma_wait<1>(); /* the stage before has been read */
        if (before && lane < CLUSTER) barrier_arrive_at(before, lane);
        before = r.empty + 8 * stage;
    }
    if (lane == 0) barrier_arrive(other);
    wgmma_wait<0>();
    if (lane < CLUSTER) barrier_arrive_at(before, lane);
}

/* down x right boxes of the staging tile, those that lie in the matrix, to rows from `row`, columns
 * from `column`. */
static __device__ __forceinline__ void staging_store(const CUtensorMap *map, Shared staging,
                                                     int down, int right, int y, int row,
                                                     int column, int rows, int columns) {
    for (int i = 0; i < down; i++)
        for (int j = 0; j < right; j++)
            if (row + i * BOX < rows && column + j * BOX < columns)
                box_store(map, column + j * BOX, y + row + i * BOX,
                          staging + (2 * i + j) * TILE_BYTES);
    boxes_commit();
}

/* The mirror image of a tile of 64 x 128, beside it, to rows from `row`, columns from `column`. */
static __device__ __forceinline__ void beside_store(const CUtensorMap *map, Shared staging, int y,
                                                    int row, int column, int rows) {
    for (int i = 0; i < 2; i++)
        if (row + i * BOX < rows)
            box_store(map, column, y + row + i * BOX, staging + (2 + i) * TILE_BYTES);
    boxes_commit();
}

/* What is added to a tile, into the staging tile. */
static __device__ __forceinline__ void addend_fetch(const Chain &c, const Spot &s, Shared staging,
                                                    Shared loaded) {
    const Phase &p = c.phase[s.phase];
    while (!is_ready(c, s.phase, s.matrix)) continue;
    barrier_expect(loaded, 2 * p.halves * TILE_BYTES);
    for (int i = 0; i < 2 * p.halves; i++)
        box_fetch(staging + i * TILE_BYTES, &c.map[p.s], s.column + i % 2 * BOX,
                  s.matrix * c.r + s.row + i / 2 * BOX, loaded);
}

/* Writes the tiles of a maker, and before that brings what is added to them. */
static __device__ __forceinline__ void writer_run(const Ring &r, const Chain &c, int rank,
                                                  int which) {
    const Shared staging = r.staging + which * STAGE_BYTES;
    const Shared staged = r.staged + 8 * which, taken = r.taken + 8 * which;
    const int clusters = gridDim.x / CLUSTER;
    int passes = 0;
    for (int set = blockIdx.x / CLUSTER + which * clusters; set < c.sets; set += 2 * clusters) {
        const Spot s = spot_of(c, set, rank);
        const Phase &p = c.phase[s.phase];
        const int y = s.matrix * c.r, halves = p.halves;
        if (!s.real) continue;
        if (p.s != NOBODY) addend_fetch(c, s, staging, r.loaded + 8 * which);
        barrier_wait(staged, passes++ & 1);
        if (p.out != NOBODY)
            staging_store(&c.map[p.out], staging, halves, 2, y, s.row, s.column, c.r, p.columns);
        if (halves == 1 && is_mirrored(p, s))
            beside_store(&c.map[p.out], staging, y, s.column, s.row, c.r);
        boxes_wait_read();
        barrier_arrive(taken);
        if (halves == 2 && is_mirrored(p, s)) {
            barrier_wait(staged, passes++ & 1);
            staging_store(&c.map[p.out], staging, 2, 2, y, s.column, s.row, c.r, p.columns);
            boxes_wait_read();
            barrier_arrive(taken);
        }
        boxes_wait();
        done_add(c, s.phase, s.matrix);
    }
}

/* The staging tile is the copy engine's, to read and to write. */
static __device__ __forceinline__ void staging_pass(Shared staged) {
    asm volatile("fence.proxy.async.shared::cta;" ::: "memory");
    barrier_arrive(staged);
}

/* What a maker has seen of the barriers between it and its writer. */
typedef struct Seen {
    int passes, loads;
} Seen;

template <int HALVES>
static __device__ __forceinline__ void tile_finish(float (&sum)[HALVES][64], const Ring &r,
                                                   const Chain &c, const Spot &s, int which,
                                                   Seen &seen) {
    const Phase &p = c.phase[s.phase];
    const Shared staging = r.staging + which * STAGE_BYTES;
    const Shared staged = r.staged + 8 * which, taken = r.taken + 8 * which;
    float rate = p.power > 0 ? c.rates[s.matrix] : 1.0f;
    if (p.power == 2) rate *= rate;
    if (p.carry)
        tile_carry(sum, c, p, s, rate * p.alpha, rate * p.kappa);
    else
        tile_scale(sum, rate * p.alpha);
    barrier_wait(taken, seen.passes++ & 1 ^ 1);
    if (p.s != NOBODY) {
        barrier_wait(r.loaded + 8 * which, seen.loads++ & 1);
        tile_add(sum, staging, rate * p.beta);
    }
    if (p.gamma != 0.0f && s.row / TILE == s.column / TILE)
        tile_identity(sum, s.row - s.column, rate * p.gamma);
    if (p.wide) tile_put_wide(sum, c, p, s);
    if (p.out != NOBODY) tile_stage<false, HALVES>(sum, staging);
    if (HALVES == 1 && is_mirrored(p, s)) tile_stage<true, HALVES>(sum, staging);
    staging_pass(staged);
    if (HALVES == 1 || !is_mirrored(p, s)) return;
    barrier_wait(taken, seen.passes++ & 1 ^ 1);
    tile_stage<true, HALVES>(sum, staging);
    staging_pass(staged);
}

/* MIXED: some phases have tiles of 64 rows. */
template <bool MIXED>
static __device__ __forceinline__ void maker_run(const Ring &r, const Chain &c, int rank,
                                                 int which) {
    int slot = 0, turn = 0, round = which ^ 1;
    Seen seen = {0, 0};
    for (int set = blockIdx.x / CLUSTER; set < c.sets; set += gridDim.x / CLUSTER, turn ^= 1) {
        const Spot s = spot_of(c, set, rank);
        const Phase &p = c.phase[s.phase];
        if (turn == which) {
            barrier_wait(r.turn + 8 * which, round);
            const Shared other = r.turn + 8 * (which ^ 1);
            if (MIXED && p.halves == 1) {
                float sum[1][64];
                tile_multiply<1>(sum, r, slot, stages_of(p), p.turned, other);
                if (s.real) tile_finish(sum, r, c, s, which, seen);
            } else {
                float sum[2][64];
                tile_multiply<2>(sum, r, slot, stages_of(p), p.turned, other);
                if (s.real) tile_finish(sum, r, c, s, which, seen);
            }
            round ^= 1;
        }
        slot += stages_of(p);
    }
}

static __device__ __forceinline__ Ring ring_init(Shared memory) {
    Ring r;
    r.data = (memory + 1023) & ~1023u;
    r.staging = r.data + STAGES * STAGE_BYTES;
    r.full = r.staging + 2 * STAGE_BYTES;
    r.empty = r.full + 8 * STAGES;
    r.turn = r.empty + 8 * STAGES;
    r.loaded = r.turn + 16, r.staged = r.loaded + 16, r.taken = r.staged + 16;
    if (threadIdx.x == 0) {
        for (int i = 0; i < 2; i++) {
            barrier_init(r.turn + 8 * i, 4); /* a maker's warps */
            barrier_init(r.loaded + 8 * i, 1);
            barrier_init(r.staged + 8 * i, 128);
            barrier_init(r.taken + 8 * i, 1);
        }
        for (int i = 0; i < STAGES; i++) {
            barrier_init(r.full + 8 * i, 1);
            barrier_init(r.empty + 8 * i, 4 * CLUSTER); /* the warps of the makers at it */
        }
        asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
    }
    cluster_sync();
    return r;
}

#endif

template <bool MIXED>
__global__ void __launch_bounds__(THREADS, 1) chain_kernel(const __grid_constant__ Chain c) {
#if HAVE_SM90A
    extern __shared__ char memory[];
    const Ring r = ring_init(shared_address(memory));
    const int role = threadIdx.x / 128, rank = cluster_rank();
    if (role == 0) {
        registers_down<56>();
        const int warp = __shfl_sync(~0u, threadIdx.x / 32, 0);
        if (is_elected()) {
            if (warp == 0)
                copier_run(r, c, rank);
            else if (warp < 3)
                writer_run(r, c, rank, warp - 1);
        }
    } else {
        registers_up<224>();
        maker_run<MIXED>(r, c, rank, role - 1);
    }
    __syncwarp();
    cluster_sync(); /* no block ends while the other may still write to it */
#endif
}

/* ---- host ----------------------------------------------------------------------------------- */

Status chain_start(Device *d, const Chain *c, const void *kernel, int threads, int shared) {
    cudaLaunchAttribute attribute = {};
    cudaLaunchConfig_t config = {};
    int most = 0;
    void *parameters[] = {(void *)c};
    attribute.id = cudaLaunchAttributeClusterDimension;
    attribute.val.clusterDim.x = CLUSTER;
    attribute.val.clusterDim.y = attribute.val.clusterDim.z = 1;
    config.blockDim = dim3((unsigned)threads);
    config.gridDim = dim3((unsigned)(backend_of(d)->sm_count / CLUSTER * CLUSTER));
    config.dynamicSmemBytes = (size_t)shared;
    config.stream = stream_of(d);
    config.attrs = &attribute;
    config.numAttrs = 1;
    CUDA_TRY(cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, shared),
             "newton_schulz");
    CUDA_TRY(cudaOccupancyMaxActiveClusters(&most, kernel, &config), "newton_schulz");
    if (most > backend_of(d)->sm_count / CLUSTER) most = backend_of(d)->sm_count / CLUSTER;
    if (most < 1) return status_set(STATUS_DEVICE, "newton_schulz: no room for a cluster");
    if (most > c->sets) most = c->sets;
    config.gridDim = dim3((unsigned)(most * CLUSTER));
    CUDA_TRY(cudaLaunchKernelExC(&config, kernel, parameters), "newton_schulz");
    return STATUS_OK;
}

Status chain_launch(Device *d, const Chain *c, int halves) {
    const void *kernel =
        halves == 2 ? (const void *)chain_kernel<false> : (const void *)chain_kernel<true>;
    return chain_start(d, c, kernel, THREADS, SHARED);
}
