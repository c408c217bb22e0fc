/* D = p' v of each chunk of tokens, with p = rate silu(a) c and [a|c] = x [W0|W2] (fastweight.md
 * 4.1, 4.4): p stays on chip (Hopper, BF16, all widths 384).
 *
 * A block has 96 columns of W0 and the same of W2 in shared memory and lets the tokens of a chunk
 * pass by, 64 at a time. One warpgroup gates: it multiplies x by the weights and writes p to shared
 * memory. Two others write: each sums up v' p for half of the channels of v, D turned over. While
 * one kind works on results the other one multiplies: p of one tile is written to D when the
 * products of the next tile are done.
 *
 * The two blocks of a cluster have the same tokens: each fetches half of a stage for both.
 */
#include <string.h>

#include "kernels/cuda/gate.cuh"
#include "kernels/cuda/tensor_map.cuh"
#include "kernels/cuda/wgmma.cuh"

#define SIZE    384
#define CLUSTER 2
#define WRITERS 2
#define THREADS (128 * (2 + WRITERS))
#define WIDTH   96                         /* hidden of a block */
#define PARTS   (SIZE / (CLUSTER * WIDTH)) /* clusters that share a chunk */
#define BOXES   (SIZE / 64)                /* of a tile of x or v */
#define GATES   (2 * WIDTH / 32)
#define W_BYTES (BOXES * GATES * NARROW_BYTES)
#define P_BYTES (WIDTH / 32 * NARROW_BYTES)
#define STAGES  7
#define SHARED  (W_BYTES + 2 * P_BYTES + STAGES * TILE_BYTES + 1024 + 256)

typedef struct WriteArgs {
    CUtensorMap x, v, w;
    int jobs, each;                   /* of all clusters, of a cluster at most */
    int tokens, chunk, chunks, heads; /* chunks: of a group */
    const float *rate;
    bf16 *d;
} WriteArgs;

#if HAVE_SM90A

/* ---- jobs ----------------------------------------------------------------------------------- */

/* A chunk and 192 hidden; those with the same weights lie one behind the other. */
typedef struct Job {
    int group, chunk, part;
} Job;

static __device__ __forceinline__ Job job_of(const WriteArgs &g, int number) {
    Job j;
    j.chunk = number % g.chunks;
    j.part = number / g.chunks % PARTS;
    j.group = number / g.chunks / PARTS;
    return j;
}

typedef struct Share {
    int first, end, tiles; /* tiles: of a job */
} Share;

static __device__ __forceinline__ Share share_of(const WriteArgs &g) {
    const int first = blockIdx.x / CLUSTER * g.each;
    const int end = first + g.each < g.jobs ? first + g.each : g.jobs;
    return {first, end > first ? end : first, g.chunk / 64};
}

/* Whether job `number` has other weights than the one before. */
static __device__ __forceinline__ bool is_fresh(const WriteArgs &g, const Share &s, int number) {
    return number == s.first || number % g.chunks == 0;
}

/* ---- shared memory -------------------------------------------------------------------------- */

/* Addresses. Barriers: of a stage full, empty; `laid`, 64 k of the weights are there; `left`,
 * nobody needs the weights; `made`, `used`, of p; `turn`, writers may begin with a tile. */
typedef struct Ring {
    Shared w, p, data, full, empty, laid, left, made, used, turn;
} Ring;

static __device__ __forceinline__ Ring ring_init(Shared memory) {
    Ring r;
    r.w = (memory + 1023) & ~1023u;
    r.p = r.w + W_BYTES;
    r.data = r.p + 2 * P_BYTES;
    r.full = r.data + STAGES * TILE_BYTES;
    r.empty = r.full + 8 * STAGES;
    r.laid = r.empty + 8 * STAGES;
    r.left = r.laid + 8 * BOXES;
    r.made = r.left + 8;
    r.used = r.made + 16;
    r.turn = r.used + 16;
    if (threadIdx.x == 0) {
        for (int i = 0; i < STAGES; i++) {
            barrier_init(r.full + 8 * i, 1);
            barrier_init(r.empty + 8 * i, 4 * CLUSTER);
        }
        for (int i = 0; i < BOXES; i++) barrier_init(r.laid + 8 * i, 1);
        barrier_init(r.left, 4);
        for (int i = 0; i < 2; i++) {
            barrier_init(r.made + 8 * i, 4);
            barrier_init(r.turn + 8 * i, 4);
            barrier_init(r.used + 8 * i, 4 * WRITERS);
        }

        asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
    }
    cluster_sync();
    return r;
}

/* Stages go by in this order: x of tile 0, x of tile 1, v of tile 0, x of tile 2, v of tile 1, ...,
 * v of the last tile. */
static __device__ __forceinline__ unsigned stage_of_x(unsigned tile) {
    return tile == 0 ? 0 : BOXES * (2 * tile - 1);
}
static __device__ __forceinline__ unsigned stage_of_v(unsigned tile, unsigned tiles) {
    return BOXES * (2 * tile + (tile + 1 < tiles ? 2 : 1));
}

static __device__ __forceinline__ Shared stage_at(const Ring &r, unsigned n) {
    return r.data + n % STAGES * TILE_BYTES;
}
static __device__ __forceinline__ void stage_wait(const Ring &r, unsigned n) {
    barrier_wait(r.full + 8 * (n % STAGES), n / STAGES & 1);
}
/* The warp has read stage n. */
static __device__ __forceinline__ void stage_release(const Ring &r, unsigned n) {
    const int lane = threadIdx.x & 31;
    if (lane < CLUSTER) barrier_arrive_at(r.empty + 8 * (n % STAGES), lane);
}

/* ---- fetching ------------------------------------------------------------------------------- */

/* Box `k` of 64 tokens from `row` on. */
static __device__ __forceinline__ void
stage_fetch(const Ring &r, unsigned n, const CUtensorMap *map, int k, int row, int rank) {
    const Shared full = r.full + 8 * (n % STAGES);
    barrier_wait(r.empty + 8 * (n % STAGES), (n / STAGES & 1) ^ 1);
    barrier_expect(full, TILE_BYTES);
    box_fetch_all(stage_at(r, n) + rank * (TILE_BYTES / 2), map, 64 * k, row + 32 * rank, full, 3);
}

/* 64 k of the block's columns of both weights. */
static __device__ __forceinline__ void weights_fetch(const Ring &r, const WriteArgs &g,
                                                     const Job &j, int k, int rank) {
    const int column = (j.part * CLUSTER + rank) * WIDTH, row = j.group % g.heads * SIZE + 64 * k;
    barrier_expect(r.laid + 8 * k, GATES * NARROW_BYTES);
    for (int i = 0; i < GATES; i++)
        box_fetch(r.w + (k * GATES + i) * NARROW_BYTES, &g.w,
                  i / (GATES / 2) * SIZE + column + i % (GATES / 2) * 32, row, r.laid + 8 * k);
}

static __device__ void copier_run(const Ring &r, const WriteArgs &g, int rank) {
    const Share s = share_of(g);
    unsigned n = 0;
    int before = -1, times = 0; /* first row of the tile before; times: weights fetched */
    for (int number = s.first; number < s.end; number++) {
        const Job j = job_of(g, number);
        const int row = (j.group * g.chunks + j.chunk) * g.chunk;
        const bool fresh = is_fresh(g, s, number);
        if (fresh && times > 0) barrier_wait(r.left, (times - 1) & 1);
        times += fresh;
        for (int tile = 0; tile < s.tiles; tile++) {
            for (int k = 0; k < BOXES; k++) {
                if (fresh && tile == 0) weights_fetch(r, g, j, k, rank);
                stage_fetch(r, n++, &g.x, k, row + 64 * tile, rank);
            }
            for (int k = 0; k < BOXES && before >= 0; k++)
                stage_fetch(r, n++, &g.v, k, before, rank);
            before = row + 64 * tile;
        }
    }
    for (int k = 0; k < BOXES && before >= 0; k++) stage_fetch(r, n++, &g.v, k, before, rank);
}

/* ---- gates ---------------------------------------------------------------------------------- */

/* 64 tokens by 96 columns of W0, then of W2. Writers may begin when one stage is left. */
static __device__ __forceinline__ void gates_multiply(float (&sum)[96], const Ring &r, unsigned n,
                                                      bool fresh, int parity, Shared turn) {
    const int lane = threadIdx.x & 31;
#pragma unroll
    for (int k = 0; k < BOXES; k++, n++) {
        const uint64_t a = operand_straight(stage_at(r, n));
        const uint64_t b = operand_narrow(r.w + k * GATES * NARROW_BYTES);
        if (fresh) barrier_wait(r.laid + 8 * k, parity);
        stage_wait(r, n);
        wgmma_begin();
#pragma unroll
        for (int i = 0; i < 4; i++) wgmma<1>(sum, a + 2 * i, b + 64 * i, k + i > 0);
        wgmma_commit();
        if (k == 0) continue;
        wgmma_wait<1>(); /* the stage before has been read */
        stage_release(r, n - 1);
    }
    if (turn && lane == 0) barrier_arrive(turn);
    wgmma_wait<0>();
    sums_settle(sum);
    stage_release(r, n - 1);
}

/* p of 16 columns at a time to shared memory, in tiles as operand_narrow has them. */
static __device__ __forceinline__ void gates_put(const float (&sum)[96], Shared p,
                                                 const float (&rate)[2]) {
    const int l = threadIdx.x & 31, row = threadIdx.x / 32 % 4 * 16 + (l >> 3 & 1) * 8 + (l & 7);
#pragma unroll
    for (int i = 0; i < WIDTH / 16; i++) {
        uint32_t f[4];
#pragma unroll
        for (int k = 0; k < 4; k++) {
            const float *a = &sum[8 * i + 2 * k], *c = a + 48;
            f[k] = pack2(gate_of(a[0], c[0], rate[k & 1]), gate_of(a[1], c[1], rate[k & 1]));
        }
        const int chunk = i % 2 * 2 + (l >> 4);
        const Shared at = p + i / 2 * NARROW_BYTES + row * 64 + ((chunk ^ (row >> 1 & 3)) << 4);
        asm volatile("stmatrix.sync.aligned.m8n8.x4.shared.b16 [%0], {%1,%2,%3,%4};" ::"r"(at),
                     "r"(f[0]), "r"(f[1]), "r"(f[2]), "r"(f[3])
                     : "memory");
    }
}

static __device__ void gates_run(const Ring &r, const WriteArgs &g) {
    const Share s = share_of(g);
    const int lane = threadIdx.x & 31, row = threadIdx.x / 32 % 4 * 16 + lane / 4;
    unsigned number = 0; /* of the tile */
    int times = 0;
    for (int job = s.first; job < s.end; job++) {
        const Job j = job_of(g, job);
        const int64_t first = (int64_t)(j.group * g.chunks + j.chunk) * g.chunk + row;
        const bool fresh = is_fresh(g, s, job);
        times += fresh;
#pragma unroll 1
        for (int tile = 0; tile < s.tiles; tile++, number++) {
            float sum[96], rate[2] = {1.0f, 1.0f};
#pragma unroll
            for (int i = 0; i < 2 && g.rate; i++) rate[i] = g.rate[first + 64 * tile + 8 * i];
            gates_multiply(sum, r, stage_of_x(number), fresh && tile == 0, (times - 1) & 1,
                           number > 0 ? r.turn + 8 * ((number - 1) & 1) : 0);
            if (tile + 1 == s.tiles && job + 1 < s.end && is_fresh(g, s, job + 1) && lane == 0)
                barrier_arrive(r.left);
            barrier_wait(r.used + 8 * (number & 1), (number >> 1 & 1) ^ 1);
            gates_put(sum, r.p + (number & 1) * P_BYTES, rate);
            sends_fence();
            __syncwarp();
            if (lane == 0) barrier_arrive(r.made + 8 * (number & 1));
        }
    }
    if (number > 0 && lane == 0)
        barrier_arrive(r.turn + 8 * ((number - 1) & 1)); /* for the last tile */
}

/* ---- D -------------------------------------------------------------------------------------- */

/* d (64 x 96) = a (64 x 16) b (16 x 96), both turned, plus d when `keep`. */
static __device__ __forceinline__ void wgmma_96(float (&d)[48], uint64_t a, uint64_t b, int keep) {
    asm volatile("{\n.reg .pred p;\nsetp.ne.b32 p, %50, 0;\n"
                 "wgmma.mma_async.sync.aligned.m64n96k16.f32.bf16.bf16 {" NAMES_32
                 ", %32, %33, %34, %35, %36, %37, %38, %39, %40, %41, %42, %43, %44, %45, %46, %47"
                 "}, %48, %49, p, 1, 1, 1, 1;\n}\n"
                 : SUMS_8(0), SUMS_8(8), SUMS_8(16), SUMS_8(24), SUMS_8(32), SUMS_8(40)
                 : "l"(a), "l"(b), "r"(keep));
}
/* 64 channels of v and the block's hidden, a tile's worth. */
static __device__ __forceinline__ void part_add(float (&sum)[48], const Ring &r, unsigned n,
                                                uint64_t p, bool keep) {
    const uint64_t a = operand_turned(stage_at(r, n));
    stage_wait(r, n);
    wgmma_begin();
#pragma unroll
    for (int i = 0; i < 4; i++) wgmma_96(sum, a + 128 * i, p + 64 * i, keep || i > 0);
    wgmma_commit();
}

/* Accumulators 4 j + 2 e and the next one are channel 16 warp + 8 e + lane / 4 and hidden 8 j + 2
 * (lane % 4) and the next one; turned over, hidden 8 j + lane / 4 and channels 8 e + 2 (lane % 4)
 * and the next one. `to`: the warp's first channel. */
static __device__ __forceinline__ void part_store(const float (&sum)[48], bf16 *to) {
    const int lane = threadIdx.x & 31;
    to += lane / 4 * SIZE + lane % 4 * 2;
#pragma unroll
    for (int j = 0; j < WIDTH / 8; j++) {
#pragma unroll
        for (int e = 0; e < 2; e++) {
            const uint32_t v = pack2(sum[4 * j + 2 * e], sum[4 * j + 2 * e + 1]);
            uint32_t turned;
            asm("movmatrix.sync.aligned.m8n8.trans.b16 %0, %1;" : "=r"(turned) : "r"(v));
            *reinterpret_cast<uint32_t *>(to + 8 * j * SIZE + 8 * e) = turned;
        }
    }
}

/* Channels 64 (2 i + which) to + 63 for i < 3. */
static __device__ void writer_run(const Ring &r, const WriteArgs &g, int rank, int which) {
    const Share s = share_of(g);
    const int warp = threadIdx.x / 32 % 4, lane = threadIdx.x & 31;
    const unsigned all = (unsigned)((s.end - s.first) * s.tiles);
    unsigned number = 0;
    float d0[48], d1[48], d2[48];
#pragma unroll 1
    for (int job = s.first; job < s.end; job++) {
        const Job j = job_of(g, job);
#pragma unroll 1
        for (int tile = 0; tile < s.tiles; tile++, number++) {
            const unsigned n = stage_of_v(number, all) + which;
            const uint64_t p = operand_narrow(r.p + (number & 1) * P_BYTES);
            barrier_wait(r.turn + 8 * (number & 1), number >> 1 & 1);
            barrier_wait(r.made + 8 * (number & 1), number >> 1 & 1);
            part_add(d0, r, n, p, tile > 0);
            part_add(d1, r, n + 2, p, tile > 0);
            wgmma_wait<1>();
            stage_release(r, n);
            part_add(d2, r, n + 4, p, tile > 0);
            wgmma_wait<1>();
            stage_release(r, n + 2);
            wgmma_wait<0>();
            stage_release(r, n + 4);
            if (lane == 0) barrier_arrive(r.used + 8 * (number & 1));
        }
        sums_settle(d0), sums_settle(d1), sums_settle(d2);
        const int64_t matrix = j.group * g.chunks + j.chunk;
        bf16 *to = g.d + (matrix * SIZE + (j.part * CLUSTER + rank) * WIDTH) * SIZE + 64 * which +
                   16 * warp;
        part_store(d0, to);
        part_store(d1, to + 128);
        part_store(d2, to + 256);
    }
}

#endif

__global__ void __launch_bounds__(THREADS, 1) write_kernel(const __grid_constant__ WriteArgs g) {
#if HAVE_SM90A
    extern __shared__ char memory[];
    const Ring r = ring_init(shared_address(memory));
    const int role = __shfl_sync(0xffffffffu, threadIdx.x / 128, 0), rank = cluster_rank();
    if (role == 0) {
        registers_down<24>();
        if (threadIdx.x == 0) copier_run(r, g, rank);
    } else if (role == 1) {
        registers_up<136>();
        gates_run(r, g);
    } else {
        registers_up<176>();
        writer_run(r, g, rank, role - 2);
    }
    __syncwarp();
    cluster_sync(); /* no block ends while the other may still write to it */
#endif
}

/* ---- the slot ------------------------------------------------------------------------------- */

static int jobs_of(Tensor y) {
    return (int)(y.shape[0] * y.shape[1]) * PARTS;
}
static int rounds_of(Device *d, int jobs) {
    return (int)ceil_div(jobs, backend_of(d)->sm_count / CLUSTER);
}

/* Also whether it leaves no more than a third of the card idle: others split chunks. */
static bool write_fits(Device *d, Tensor y, Tensor x, Tensor v, Tensor w) {
    const int64_t jobs = jobs_of(y), places = backend_of(d)->sm_count / CLUSTER;
    return backend_of(d)->sm90a && 2 * places * rounds_of(d, (int)jobs) <= 3 * jobs &&
           (size_t)SHARED <= backend_of(d)->smem_limit && x.dtype == DTYPE_BF16 &&
           y.dtype == DTYPE_BF16 && x.shape[3] == SIZE && v.shape[3] == SIZE &&
           w.shape[3] == 2 * SIZE && x.shape[2] / y.shape[1] % 64 == 0 &&
           tensor_rows(x) < INT32_MAX && is_aligned(x.data, 16) && is_aligned(v.data, 16) &&
           is_aligned(w.data, 16) && is_aligned(y.data, 16);
}

static Status write_launch(Device *d, Tensor y, Tensor x, Tensor v, Tensor w, Tensor rate) {
    WriteArgs g;
    memset(&g, 0, sizeof g);
    TRY(map_matrix(&g.x, x.data, tensor_rows(x), SIZE, 32));
    TRY(map_matrix(&g.v, v.data, tensor_rows(v), SIZE, 32));
    TRY(map_narrow(&g.w, w.data, tensor_rows(w), 2 * SIZE, 64));
    g.tokens = (int)x.shape[2], g.chunks = (int)y.shape[1];
    g.chunk = g.tokens / g.chunks, g.heads = (int)(w.shape[0] * w.shape[1]);
    g.jobs = jobs_of(y);
    g.rate = (const float *)rate.data;
    g.d = (bf16 *)y.data;
    g.each = rounds_of(d, g.jobs);
    return pairs_launch(d, "gate_write", write_kernel, (int)ceil_div(g.jobs, g.each), THREADS,
                        SHARED, g);
}

extern "C" Status gate_write_cuda(Device *d, Tensor y, Tensor x, Tensor v, Tensor w, Tensor rate) {
    if (tensor_count(y) == 0) return STATUS_OK;
    if (w.dtype != x.dtype || v.dtype != x.dtype) return refuse_dtype("gate_write", w.dtype);
    if (write_fits(d, y, x, v, w)) return write_launch(d, y, x, v, w, rate);
    const Status status = gate_write_composed(d, y, x, v, w, rate);
    scratch_done(d);
    return status;
}
