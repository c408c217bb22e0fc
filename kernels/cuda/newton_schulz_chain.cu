/* The kernel of newton_schulz_chain.cuh, and its launch. */
#include "kernels/cuda/newton_schulz_order.cuh"
#include "kernels/cuda/newton_schulz_tile.cuh"

#define STAGES      5
#define STAGE_BYTES (4 * TILE_BYTES)
#define THREADS     384
#define SHARED      (STAGES * STAGE_BYTES + 2 * STAGE_BYTES + 1024 + 256)

#if HAVE_SM90A

/* ---- where a tile is ------------------------------------------------------------------------ */

/* The tile of block `rank` in a set: 64 HALVES rows. */
template <int HALVES> static __device__ Spot spot_of(const Chain &c, int set, int rank) {
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
        s.row = (s.real ? own : c.cover[left][0]) * HALVES * BOX;
        s.column = c.cover[left][CLUSTER] * TILE;
    } else {
        s.row = (left / p.across * CLUSTER + rank) * HALVES * BOX;
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

/* The blocks of a cluster have the same tile column: each fetches half of b for both. The next tile
 * is looked up while stages are in flight. */
template <int HALVES> static __device__ void copier_run(const Ring &r, const Chain &c, int rank) {
    const int step = gridDim.x / CLUSTER;
    int slot = 0, set = blockIdx.x / CLUSTER;
    Spot s = spot_of<HALVES>(c, set, rank), next = s;
    bool ready = false;
    for (; set < c.sets; set += step, s = next) {
        const Phase &p = c.phase[s.phase];
        const int y = s.matrix * c.r, per_term = p.depth / DEPTH, stages = stages_of(p);
        while (!ready) ready = is_ready(c, s.phase, s.matrix);
        ready = false;
        for (int i = 0; i < stages; i++, slot++) {
            if (i == stages / 2 && set + step < c.sets) next = spot_of<HALVES>(c, set + step, rank);
            if (i == stages - 1 && set + step < c.sets)
                ready = is_ready(c, next.phase, next.matrix);
            const int stage = slot % STAGES, term = i >= per_term;
            const int k = (i - term * per_term) * DEPTH;
            const CUtensorMap *a = &c.map[p.a[term]], *b = &c.map[p.b[term]];
            const Shared full = r.full + 8 * stage, to = r.data + stage * STAGE_BYTES;
            barrier_wait(r.empty + 8 * stage, slot / STAGES & 1 ^ 1);
            barrier_expect(full, (HALVES + 2) * TILE_BYTES);
#pragma unroll
            for (int j = 0; j < HALVES; j++)
                box_fetch(to + j * TILE_BYTES, a, k, y + s.row + j * BOX, full);
            const int column = s.column + rank * BOX;
            box_fetch_all(to + (2 + rank) * TILE_BYTES, b, p.turned ? column : k,
                          p.turned ? y + k : y + column, full, 3);
        }
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

/* Writes the tiles of a maker, and before that brings what is added to them. */
template <int HALVES>
static __device__ void writer_run(const Ring &r, const Chain &c, int rank, int which) {
    const Shared staging = r.staging + which * STAGE_BYTES, loaded = r.loaded + 8 * which;
    const Shared staged = r.staged + 8 * which, taken = r.taken + 8 * which;
    const int clusters = gridDim.x / CLUSTER;
    int passes = 0;
    for (int set = blockIdx.x / CLUSTER + which * clusters; set < c.sets; set += 2 * clusters) {
        const Spot s = spot_of<HALVES>(c, set, rank);
        const Phase &p = c.phase[s.phase];
        const int y = s.matrix * c.r;
        if (!s.real) continue;
        if (p.s != NOBODY) {
            while (!is_ready(c, s.phase, s.matrix)) continue;
            barrier_expect(loaded, 2 * HALVES * TILE_BYTES);
            for (int i = 0; i < 2 * HALVES; i++)
                box_fetch(staging + i * TILE_BYTES, &c.map[p.s], s.column + i % 2 * BOX,
                          y + s.row + i / 2 * BOX, loaded);
        }
        barrier_wait(staged, passes++ & 1);
        if (p.out != NOBODY)
            staging_store(&c.map[p.out], staging, HALVES, 2, y, s.row, s.column, c.r, p.columns);
        boxes_wait_read();
        barrier_arrive(taken);
        if (is_mirrored(p, s)) {
            barrier_wait(staged, passes++ & 1);
            staging_store(&c.map[p.out], staging, 2, HALVES, y, s.column, s.row, c.r, p.columns);
            boxes_wait_read();
            barrier_arrive(taken);
        }
        boxes_wait();
        done_add(c.done + s.phase * c.n + s.matrix);
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
    staging_pass(staged);
    if (!is_mirrored(p, s)) return;
    barrier_wait(taken, seen.passes++ & 1 ^ 1);
    tile_stage<true, HALVES>(sum, staging);
    staging_pass(staged);
}

template <int HALVES>
static __device__ __forceinline__ void maker_run(const Ring &r, const Chain &c, int rank,
                                                 int which) {
    int slot = 0, turn = 0, round = which ^ 1;
    Seen seen = {0, 0};
    for (int set = blockIdx.x / CLUSTER; set < c.sets; set += gridDim.x / CLUSTER, turn ^= 1) {
        const Spot s = spot_of<HALVES>(c, set, rank);
        const Phase &p = c.phase[s.phase];
        const int stages = stages_of(p);
        if (turn == which) {
            float sum[HALVES][64];
            barrier_wait(r.turn + 8 * which, round);
            tile_multiply<HALVES>(sum, r, slot, stages, p.turned, r.turn + 8 * (which ^ 1));
            round ^= 1;
            if (s.real) tile_finish(sum, r, c, s, which, seen);
        }
        slot += stages;
    }
}

template <int HALVES> static __device__ __forceinline__ Ring ring_init(Shared memory) {
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

template <int HALVES>
__global__ void __launch_bounds__(THREADS, 1) chain_kernel(const __grid_constant__ Chain c) {
#if HAVE_SM90A
    extern __shared__ char memory[];
    const Ring r = ring_init<HALVES>(shared_address(memory));
    const int role = threadIdx.x / 128, rank = cluster_rank();
    if (role == 0) {
        registers_down<56>();
        const int warp = threadIdx.x / 32;
        if (threadIdx.x == 0) {
            copier_run<HALVES>(r, c, rank);
        } else if (threadIdx.x % 32 == 0 && warp < 3) {
            writer_run<HALVES>(r, c, rank, warp - 1);
        }
    } else {
        registers_up<224>();
        maker_run<HALVES>(r, c, rank, role - 1);
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
        halves == 2 ? (const void *)chain_kernel<2> : (const void *)chain_kernel<1>;
    return chain_start(d, c, kernel, THREADS, SHARED);
}
