/* Newton-Schulz of matrices of 384 x 384 (Hopper, BF16): the two blocks of a cluster take a matrix
 * through all products of all steps.
 *
 * A block has half of the rows of every result, 192 x 384, and each of its three makers 64 rows. A
 * maker has its rows of the left operand in registers as a whole; the right operand comes box by
 * box through a ring, each block bringing half of it for both. Of a result 64 columns at a time go
 * to shared memory, where the copy engine takes them to memory as right operand of a coming
 * product; at the end of the product they come back to registers as its left operand. So A and X
 * are read from memory as right operands only, and B never goes there.
 *
 * Per step A = XX';  B = aI + bA + cAA;  X <- BX. The first X is g itself: the rate 1/(|g| +
 * offset) is multiplied into the first A (twice) and the first BX. The columns of A that come first
 * are read first, so that a block waits for the other one only where a step begins.
 */
#include <string.h>

#include "kernels/cuda/newton_schulz_pair.cuh"
#include "kernels/cuda/newton_schulz_pair_ring.cuh"
#include "kernels/cuda/tensor_map.cuh"

/* A round of all clusters takes as long as so many matrices by tiles. */
#define WORTH 40

enum { MAP_G, MAP_X0, MAP_X1, MAP_A, MAP_U, MAPS_USED };

/* X and A of a cluster are in scratch, the same for all matrices that it takes. */
typedef struct PairArgs {
    CUtensorMap map[MAPS_USED];
    float *wide;  /* u in F32, or NULL: then it is map U */
    float *norms; /* or NULL */
    int n, steps;
    float triple[NEWTON_SCHULZ_MOST][3];
} PairArgs;

#if HAVE_SM90A

/* ---- fetching ------------------------------------------------------------------------------- */

static __device__ __forceinline__ int map_of_x(int step) {
    return step == 0 ? MAP_G : step % 2 ? MAP_X0 : MAP_X1;
}

/* The stage that is next to be filled. */
static __device__ __forceinline__ Shared stage_take(const Ring &r, const Turn &t) {
    barrier_wait(r.empty + 8 * t.stage, t.round ^ 1);
    barrier_expect(r.full + 8 * t.stage, STAGE_BYTES);
    return r.data + t.stage * STAGE_BYTES;
}

/* A stage: this block's box at (x, y) for both blocks. */
static __device__ __forceinline__ void stage_fetch(const Ring &r, Turn &t, int rank,
                                                   const CUtensorMap *map, int x, int y) {
    const Shared to = stage_take(r, t);
    box_fetch_all(to + rank * TILE_BYTES, map, x, y, r.full + 8 * t.stage, 3);
    turn_next(t);
}

/* Columns 64 j to 64 j + 63 of a right operand whose first row is y. */
static __device__ __forceinline__ void columns_fetch(const Ring &r, Turn &t, int rank,
                                                     const CUtensorMap *map, int j, int y) {
    for (int i = 0; i < PER_CHUNK; i++)
        stage_fetch(r, t, rank, map, j * 64, y + i * 128 + rank * 64);
}

/* What both blocks have written may be fetched. */
static __device__ __forceinline__ void done_wait(const Ring &r, int chunk, int parity) {
    barrier_wait_cluster(r.done + 8 * chunk, parity);
    asm volatile("fence.proxy.async;" ::: "memory");
}

/* Rows of X as columns of X', for A. Those of a step that was written here (`event` >= 0) are there
 * when their columns are. */
static __device__ __forceinline__ void gram_fetch(const Ring &r, Turn &t, int rank,
                                                  const CUtensorMap *map, int y, int event) {
    for (int j = 0; j < CHUNKS; j++) {
        for (int i = 0; i < PER_CHUNK; i++) {
            for (int c = 2 * i; event >= 0 && j == 0 && c < 2 * i + 2; c++)
                done_wait(r, c, event & 1);
            stage_fetch(r, t, rank, map, i * 128 + rank * 64, y + j * 64);
        }
    }
}

static __device__ void copier_run(const Ring &r, const PairArgs &g, int rank) {
    const int home = blockIdx.x / CLUSTER * SIZE;
    Turn t = {0, 0};
    int event = 0, matrices = 0; /* events: results that both blocks have written */
    for (int m = blockIdx.x / CLUSTER; m < g.n; m += gridDim.x / CLUSTER, matrices++) {
        if (matrices) barrier_wait(r.idle, (matrices & 1) ^ 1);
        barrier_expect(r.come, KEPT_BYTES);
        for (int i = 0; i < MAKERS; i++)
            for (int j = 0; j < CHUNKS; j++)
                box_fetch(kept_at(r, i, j), &g.map[MAP_G], j * 64, m * SIZE + rank * ROWS + i * 64,
                          r.come);
        for (int k = 0; k < g.steps; k++) {
            const CUtensorMap *x = &g.map[map_of_x(k)];
            const int y = k == 0 ? m * SIZE : home;
            gram_fetch(r, t, rank, x, y, k > 0 ? event++ : -1);
            for (int j = 0; j < CHUNKS; j++) {
                done_wait(r, j, event & 1);
                columns_fetch(r, t, rank, &g.map[MAP_A], j, home);
            }
            event++;
            for (int j = 0; j < CHUNKS; j++) columns_fetch(r, t, rank, x, j, y);
        }
    }
}

/* ---- results to memory ---------------------------------------------------------------------- */

/* The rows of maker `which`: all of A and X. */
static __device__ void writer_run(const Ring &r, const PairArgs &g, int rank, int which) {
    const int down = rank * ROWS + which * 64, home = blockIdx.x / CLUSTER;
    int pass = 0;
    for (int m = home; m < g.n; m += gridDim.x / CLUSTER) {
        for (int i = 0; i < 2 * g.steps; i++, pass++) {
            const bool last = i + 1 == 2 * g.steps;
            const int number = i % 2 == 0 ? MAP_A : last ? MAP_U : map_of_x(i / 2 + 1);
            for (int j = 0; j < CHUNKS; j++) {
                barrier_wait(r.staged + 8 * (which * CHUNKS + j), pass & 1);
                if (!last || !g.wide) {
                    send_box(&g.map[number], j * 64, (last ? m : home) * SIZE + down,
                             kept_at(r, which, j));
                    sends_commit();
                    sends_done();
                }
                if (last) continue;
                asm volatile("fence.proxy.async;" ::: "memory");
                for (int b = 0; b < CLUSTER; b++) barrier_tell(r.done + 8 * j, b);
            }
        }
        barrier_arrive(r.idle);
    }
}

/* ---- makers --------------------------------------------------------------------------------- */

enum { GRAM, SQUARE, STEP }; /* A, B, X */

/* What a product needs besides its operands. */
typedef struct Scale {
    float alpha;
    const float *triple; /* of B */
    float *wide;         /* of the last X, where u is F32: the strip there; or NULL */
    bool last;           /* no product follows */
} Scale;

static __device__ __forceinline__ void stage_release(const Ring &r, int stage) {
    const int lane = threadIdx.x & 31;
    if (lane < CLUSTER) barrier_arrive_at(r.empty + 8 * stage, lane);
}

/* The warp's part of 64 columns is where the copy engine may read it. */
static __device__ __forceinline__ void chunk_pass(const Ring &r, const Maker &w, int chunk) {
    asm volatile("fence.proxy.async.shared::cta;" ::: "memory");
    __syncwarp();
    if (threadIdx.x % 32 == 0) barrier_arrive(r.staged + 8 * (w.which * CHUNKS + chunk));
}

/* Results to shared memory, A and X to their writer. */
template <int KIND>
static __device__ __forceinline__ void chunk_stage(const Packed &f, const Ring &r, const Maker &w,
                                                   int chunk) {
    chunk_put(f, w, chunk);
    if (KIND != SQUARE)
        chunk_pass(r, w, chunk);
    else
        __syncwarp();
}

/* Columns of chunk j in sums. Those before, in f, are staged while the first stage runs; while the
 * last ones run, results become the next left operand as the old one is done with. */
template <int KIND>
static __device__ __forceinline__ void chunk_multiply(float (&sum)[32], Left &left, const Packed &f,
                                                      const Ring &r, Maker &w, const Scale &s,
                                                      int j) {
    constexpr int TURNED = KIND == GRAM ? 0 : 1;
    int before = 0;
#pragma unroll
    for (int i = 0; i < PER_CHUNK; i++) {
        const Shared at = r.data + w.stage * STAGE_BYTES;
        const uint64_t b = TURNED ? operand_turned(at) : operand_straight(at);
        barrier_wait(r.full + 8 * w.stage, w.round);
        wgmma_begin();
#pragma unroll
        for (int k = 0; k < 8; k++) {
            const int on = TURNED ? k * 128 : k / 4 * (TILE_BYTES >> 4) + k % 4 * 2;
            wgmma_kept<TURNED>(sum, &left[32 * i + 4 * k], b + on, i + k > 0);
        }
        wgmma_commit();
        if (i == 0 && j > 0 && !s.wide) chunk_stage<KIND>(f, r, w, j - 1);
        if (i > 0) {
            wgmma_wait<1>(); /* the stage before has been read */
            stage_release(r, before);
            if (j + 1 == CHUNKS && !s.last) {
                if (i == 1)
                    left_get<0>(left, w), left_get<1>(left, w);
                else
                    left_get<2>(left, w), left_get<3>(left, w);
            }
        }
        before = w.stage;
        if (++w.stage == STAGES) w.stage = 0, w.round ^= 1;
    }
    wgmma_wait<0>();
    sums_settle(sum);
    stage_release(r, before);
}

template <int KIND>
static __device__ __forceinline__ void product_run(Left &left, const Ring &r, Maker &w,
                                                   const Scale &s) {
    Packed f;
#pragma unroll 1
    for (int j = 0; j < CHUNKS; j++) {
        float sum[32];
        chunk_multiply<KIND>(sum, left, f, r, w, s, j);
        if (KIND == SQUARE) {
            chunk_add(f, sum, w, j, j == w.rank * MAKERS + w.which, s.triple);
        } else if (KIND == STEP && s.wide) {
            chunk_put_wide(sum, s.wide + j * 64, s.alpha);
            chunk_pass(r, w, j); /* the writer counts */
        } else {
            chunk_pack(f, sum, s.alpha);
        }
    }
    if (s.wide) return;
    chunk_stage<KIND>(f, r, w, CHUNKS - 1);
    if (s.last) return;
    left_get<4>(left, w);
#pragma unroll
    for (int i = 0; i < 16; i++) left[80 + i] = f[i];
}

/* 1 / (|g| + offset) of the matrix whose rows the left operands are, the `turn`-th of the cluster:
 * sums of all warps of both blocks, always joined in the same way. Matrices take two places and
 * barriers by turns: who writes to one for the second time was told of the matrix between by every
 * warp, and each told after it had read here. One lane tells both blocks: of two barriers in one
 * instruction racecheck traces the first alone. */
static __device__ __forceinline__ float rate_find(const Left &left, const Ring &r,
                                                  const PairArgs &g, int m, int rank, int turn) {
    const int warp = threadIdx.x / 32 - 4, lane = threadIdx.x & 31;
    const Shared summed = r.summed + (turn & 1) * 8, sums = r.sums + (turn & 1) * SUMS_BYTES;
    const float own = left_square(left);
    float sum = 0.0f;
    for (int i = 0; lane == 0 && i < CLUSTER; i++) {
        put_at(sums + 4 * (rank * WARPS + warp), i, own);
        barrier_tell(summed, i);
    }
    barrier_wait_cluster(summed, turn >> 1 & 1);
    if (lane < CLUSTER * WARPS)
        asm volatile("ld.shared.f32 %0, [%1];" : "=f"(sum) : "r"(sums + 4 * lane) : "memory");
    const float norm = sqrtf(warp_sum(sum));
    if (g.norms && rank == 0 && threadIdx.x == 128) g.norms[m] = norm;
    return 1.0f / (norm + NORM_OFFSET);
}

static __device__ __forceinline__ void maker_run(const Ring &r, const PairArgs &g, int rank,
                                                 int which) {
    const int l = threadIdx.x & 31, row = threadIdx.x / 32 % 4 * 16 + (l >> 3 & 1) * 8 + (l & 7);
    Maker w = {tile_at(kept_at(r, which, 0), row, l >> 4), which, rank, 0, 0};
    Left left;
    int turn = 0;
#pragma unroll 1
    for (int m = blockIdx.x / CLUSTER; m < g.n; m += gridDim.x / CLUSTER, turn++) {
        Scale s = {1.0f, NULL, NULL, false};
        barrier_wait(r.come, turn & 1);
        left_get<0>(left, w), left_get<1>(left, w), left_get<2>(left, w);
        left_get<3>(left, w), left_get<4>(left, w), left_get<5>(left, w);
        float rate = rate_find(left, r, g, m, rank, turn);
#pragma unroll 1
        for (int k = 0; k < g.steps; k++) {
            s.triple = g.triple[k];
            s.alpha = rate * rate;
            product_run<GRAM>(left, r, w, s);
            product_run<SQUARE>(left, r, w, s);
            s.alpha = rate;
            s.last = k + 1 == g.steps;
            if (s.last && g.wide)
                s.wide = g.wide + ((int64_t)m * SIZE + rank * ROWS + which * 64) * SIZE;
            product_run<STEP>(left, r, w, s);
            rate = 1.0f;
        }
    }
}

#endif

__global__ void __launch_bounds__(THREADS, 1) pair_kernel(const __grid_constant__ PairArgs g) {
#if HAVE_SM90A
    extern __shared__ char memory[];
    const Ring r = ring_init(shared_address(memory));
    const int role = __shfl_sync(0xffffffffu, threadIdx.x / 128, 0), rank = cluster_rank();
    if (role == 0) {
        registers_down<32>();
        if (threadIdx.x == 0)
            copier_run(r, g, rank);
        else if (threadIdx.x % 32 == 0)
            writer_run(r, g, rank, threadIdx.x / 32 - 1);
    } else {
        registers_up<160>();
        maker_run(r, g, rank, role - 1);
    }
    __syncwarp();
    cluster_sync(); /* no block ends while the other may still write to it */
#endif
}

/* ---- host ----------------------------------------------------------------------------------- */

static int64_t clusters_of(Device *d, int64_t n) {
    const int64_t most = backend_of(d)->sm_count / CLUSTER;
    return n < most ? n : most;
}

bool pair_fits(Device *d, Tensor u, Tensor g, const NewtonSchulz *s) {
    const int64_t n = g.shape[0];
    return backend_of(d)->sm90a && s->bf16 && s->steps > 0 && g.dtype == DTYPE_BF16 &&
           g.shape[1] == SIZE && g.shape[2] == SIZE && is_aligned(g.data, 16) &&
           is_aligned(u.data, 16) && n * SIZE < INT32_MAX &&
           n >= WORTH * ceil_div(n, clusters_of(d, n));
}

static Status pair_start(Device *d, const PairArgs *a, int clusters) {
    cudaLaunchAttribute attribute = {};
    cudaLaunchConfig_t config = {};
    const void *kernel = (const void *)pair_kernel;
    void *parameters[] = {(void *)a};
    attribute.id = cudaLaunchAttributeClusterDimension;
    attribute.val.clusterDim.x = CLUSTER;
    attribute.val.clusterDim.y = attribute.val.clusterDim.z = 1;
    config.blockDim = dim3(THREADS);
    config.gridDim = dim3((unsigned)(clusters * CLUSTER));
    config.dynamicSmemBytes = SHARED;
    config.stream = stream_of(d);
    config.attrs = &attribute;
    config.numAttrs = 1;
    CUDA_TRY(cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, SHARED),
             "newton_schulz");
    CUDA_TRY(cudaLaunchKernelExC(&config, kernel, parameters), "newton_schulz");
    return STATUS_OK;
}

Status pair_run(Device *d, Tensor u, Tensor norms, Tensor g, const NewtonSchulz *s) {
    const int64_t n = g.shape[0], clusters = clusters_of(d, n);
    PairArgs a;
    memset(&a, 0, sizeof a);
    a.n = (int)n, a.steps = s->steps;
    a.norms = tensor_is_none(norms) ? NULL : (float *)norms.data;
    a.wide = u.dtype == DTYPE_F32 ? (float *)u.data : NULL;
    memcpy(a.triple, s->triple, sizeof a.triple);
    TRY(map_matrix(&a.map[MAP_G], g.data, n * SIZE, SIZE, 64));
    for (int i = MAP_X0; i <= MAP_A; i++) {
        void *room;
        TRY(scratch_take(d, sizeof(bf16) * SIZE * SIZE * clusters, &room));
        TRY(map_matrix(&a.map[i], room, clusters * SIZE, SIZE, 64));
    }
    TRY(map_matrix(&a.map[MAP_U], a.wide ? g.data : u.data, n * SIZE, SIZE, 64));
    return pair_start(d, &a, (int)clusters);
}
