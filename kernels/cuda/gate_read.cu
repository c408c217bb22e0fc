/* y = p S with p = silu(a) c, [a|c] = x [W0|W2] and a matrix S for each chunk of tokens
 * (fastweight.md 4.1, 4.4): p stays in registers (Hopper, BF16, all widths 384).
 *
 * A block has 128 tokens; each of its two makers 64 of them, whose rows of x lie in shared memory.
 * Of the weights 64 columns of W0 and the same of W2 pass by, 64 k at a time; what a maker has
 * summed up of them is gated and rounded where it lies, which is how a left operand has to lie.
 * After six such strips p is complete and S passes by, 64 columns at a time. A maker has sums of
 * two strips: while products of one run, those of the one before are gated, or stored.
 *
 * The two blocks of a cluster have the same weights and S: each fetches half of a stage for both.
 */
#include <string.h>

#include "kernels/cuda/gate.cuh"
#include "kernels/cuda/tensor_map.cuh"
#include "kernels/cuda/wgmma.cuh"

#define SIZE         384
#define CHUNKS       (SIZE / 64)
#define CLUSTER      2
#define MAKERS       2
#define THREADS      (128 * (MAKERS + 1))
#define WARPS        (4 * MAKERS) /* of makers */
#define STAGES       8
#define STAGE_BYTES  (2 * TILE_BYTES)
#define GATE_STEPS   CHUNKS        /* stages of a strip: 64 k, 64 columns of W0 and of W2 */
#define READ_STEPS   (CHUNKS / 2)  /* of S: 128 k, 64 columns */
#define NEXT_X       (STAGES + 1)  /* stage of S at which nobody needs x any more */
#define OWN_ROWS     (64 * MAKERS) /* of a block */
#define CLUSTER_ROWS (CLUSTER * OWN_ROWS)
#define X_BYTES      (CHUNKS * TILE_BYTES) /* of a maker */
#define X_BOXES      (MAKERS * CHUNKS)
#define SHARED       (MAKERS * X_BYTES + STAGES * STAGE_BYTES + 1024 + 256)

typedef struct ReadArgs {
    CUtensorMap x, w, s;
    int tiles, tokens, chunk, heads; /* tiles: of a cluster; heads: matrices of weights */
    bf16 *y;
} ReadArgs;

#if HAVE_SM90A

/* ---- shared memory -------------------------------------------------------------------------- */

/* Addresses. Barriers: of a stage full, empty; rows of x are there, have been read (each maker). */
typedef struct Ring {
    Shared x, data, full, empty, come, gone;
} Ring;

static __device__ __forceinline__ Ring ring_init(Shared memory) {
    Ring r;
    r.x = (memory + 1023) & ~1023u;
    r.data = r.x + MAKERS * X_BYTES;
    r.full = r.data + STAGES * STAGE_BYTES;
    r.empty = r.full + 8 * STAGES;
    r.come = r.empty + 8 * STAGES;
    r.gone = r.come + 8 * MAKERS;
    if (threadIdx.x == 0) {
        for (int i = 0; i < STAGES; i++) {
            barrier_init(r.full + 8 * i, 1);
            barrier_init(r.empty + 8 * i, CLUSTER * WARPS);
        }
        for (int i = 0; i < MAKERS; i++) {
            barrier_init(r.come + 8 * i, 1);
            barrier_init(r.gone + 8 * i, 4);
        }
        asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
    }
    cluster_sync();
    return r;
}

/* ---- fetching ------------------------------------------------------------------------------- */

/* Stage n of all is free to be filled. */
static __device__ __forceinline__ Shared stage_take(const Ring &r, int n) {
    const int at = n % STAGES;
    barrier_wait(r.empty + 8 * at, (n / STAGES & 1) ^ 1);
    barrier_expect(r.full + 8 * at, STAGE_BYTES);
    return r.data + at * STAGE_BYTES;
}

/* Rows of x of the block's tile number `round` may come. */
static __device__ __forceinline__ void rows_begin(const Ring &r, int round) {
    for (int i = 0; i < MAKERS; i++) {
        barrier_wait(r.gone + 8 * i, (round & 1) ^ 1);
        barrier_expect(r.come + 8 * i, X_BYTES);
    }
}

/* Box `number` of the tile that begins at row `first`. */
static __device__ __forceinline__ void rows_fetch(const Ring &r, const ReadArgs &g, int first,
                                                  int number) {
    const int which = number % MAKERS, k = number / MAKERS;
    box_fetch(r.x + which * X_BYTES + k * TILE_BYTES, &g.x, 64 * k, first + 64 * which,
              r.come + 8 * which);
}

/* Boxes of x go between the stages, one at a time: all at once they would keep stages waiting. */
static __device__ void copier_run(const Ring &r, const ReadArgs &g, int rank) {
    const int step = gridDim.x / CLUSTER;
    int n = 0, round = 0, from = 0, box = X_BOXES; /* the box of x that is next, and its tile */
    for (int tile = blockIdx.x / CLUSTER; tile < g.tiles; tile += step) {
        const int first = tile * CLUSTER_ROWS, own = first + rank * OWN_ROWS;
        const int head = first / g.tokens % g.heads, chunk = first / g.chunk;
        if (round == 0) {
            rows_begin(r, round++);
            for (int i = 0; i < X_BOXES; i++) rows_fetch(r, g, own, i);
        }
        for (int k = 0; k < CHUNKS * GATE_STEPS; k++, n++) {
            if (box < X_BOXES) rows_fetch(r, g, from, box++);
            const Shared to = stage_take(r, n);
            box_fetch_all(to + rank * TILE_BYTES, &g.w, rank * SIZE + k / GATE_STEPS * 64,
                          head * SIZE + k % GATE_STEPS * 64, r.full + 8 * (n % STAGES), 3);
        }
        for (int k = 0; k < CHUNKS * READ_STEPS; k++, n++) {
            if (k == NEXT_X && tile + step < g.tiles) {
                rows_begin(r, round++);
                from = own + step * CLUSTER_ROWS, box = 0;
            }
            if (box < X_BOXES) rows_fetch(r, g, from, box++);
            const Shared to = stage_take(r, n);
            box_fetch_all(to + rank * TILE_BYTES, &g.s, k / READ_STEPS * 64,
                          chunk * SIZE + k % READ_STEPS * 128 + rank * 64,
                          r.full + 8 * (n % STAGES), 3);
        }
    }
}

/* ---- makers --------------------------------------------------------------------------------- */

/* p of 64 tokens, left operand of S: 16 hidden for every four. */
typedef uint32_t Left[4 * SIZE / 16];

typedef struct Maker {
    Shared x;
    int which;
    unsigned n; /* stages that have passed */
} Maker;

static __device__ __forceinline__ Shared stage_wait(const Ring &r, unsigned n) {
    barrier_wait(r.full + 8 * (n % STAGES), n / STAGES & 1);
    return r.data + n % STAGES * STAGE_BYTES;
}
/* The warp has read stage n. */
static __device__ __forceinline__ void stage_release(const Ring &r, unsigned n) {
    const int lane = threadIdx.x & 31;
    if (lane < CLUSTER) barrier_arrive_at(r.empty + 8 * (n % STAGES), lane);
}
/* The stage before the newest has been read. */
static __device__ __forceinline__ void stage_leave(const Ring &r, unsigned n) {
    wgmma_wait<1>();
    stage_release(r, n - 1);
}

/* COUNT pairs from FIRST on of a strip: columns of W0 in sums 0 to 31, of W2 behind them. */
template <int FIRST, int COUNT>
static __device__ __forceinline__ void gate_some(uint32_t *p, const float (&sum)[64]) {
#pragma unroll
    for (int i = FIRST; i < FIRST + COUNT; i++) {
        p[i] = pack2(gate_of(sum[2 * i], sum[32 + 2 * i], 1.0f),
                     gate_of(sum[2 * i + 1], sum[33 + 2 * i], 1.0f));
        settle(p[i]);
    }
}

/* A strip's products, while the one before is gated. */
template <int STRIP>
static __device__ __forceinline__ void strip_run(float (&sum)[64], float (&before)[64], Left &p,
                                                 const Ring &r, Maker &m) {
    uint32_t *const to = &p[STRIP > 0 ? 16 * (STRIP - 1) : 0];
#pragma unroll
    for (int k = 0; k < GATE_STEPS; k++) {
        settle(m.x);
        const uint64_t a = operand_straight(m.x + k * TILE_BYTES);
        const uint64_t b = operand_turned(stage_wait(r, m.n));
        wgmma_begin();
#pragma unroll
        for (int i = 0; i < 4; i++) wgmma<1>(sum, a + 2 * i, b + 128 * i, k + i > 0);
        wgmma_commit();
        if (STRIP > 0 || k > 0) stage_leave(r, m.n);
        if (STRIP > 0 && k == 0) sums_settle(before), gate_some<0, 4>(to, before);
        if (STRIP > 0 && k == 1) gate_some<4, 4>(to, before);
        if (STRIP > 0 && k == 2) gate_some<8, 4>(to, before);
        if (STRIP > 0 && k == 3) gate_some<12, 4>(to, before);
        settle(++m.n);
    }
}

/* Of 64 columns half of the rows. `to`: the lane's first row, its part of 32 columns. */
template <int HALF>
static __device__ __forceinline__ void columns_store(const float (&sum)[32], bf16 *to) {
#pragma unroll
    for (int i = 0; i < 2; i++) {
        uint32_t v[4];
#pragma unroll
        for (int k = 0; k < 4; k++) {
            const float *a = &sum[16 * i + 4 * k + 2 * HALF];
            v[k] = pack2(a[0], a[1]);
        }
        *reinterpret_cast<uint4 *>(to + 8 * HALF * SIZE + 32 * i) = words_turn(v);
    }
}

/* Stage k of 64 columns of p S. */
template <int K>
static __device__ __forceinline__ void columns_multiply(float (&sum)[32], const Left &p,
                                                        const Ring &r, Maker &m) {
    const uint64_t b = operand_turned(stage_wait(r, m.n));
    wgmma_begin();
#pragma unroll
    for (int i = 0; i < 8; i++)
        wgmma_kept<1>(sum, &p[32 * K + 4 * i], b + i / 4 * (TILE_BYTES >> 4) + i % 4 * 128,
                      K + i > 0);
    wgmma_commit();
    stage_leave(r, m.n);
    settle(++m.n);
}

/* The first columns of p S, while the last strip, `gates`, becomes part of p. */
static __device__ __forceinline__ void columns_first(float (&sum)[32], float (&gates)[64], Left &p,
                                                     const Ring &r, Maker &m) {
    columns_multiply<0>(sum, p, r, m);
    if (threadIdx.x % 32 == 0) barrier_arrive(r.gone + 8 * m.which);
    sums_settle(gates);
    gate_some<0, 8>(&p[80], gates);
    columns_multiply<1>(sum, p, r, m);
    gate_some<8, 8>(&p[80], gates);
    columns_multiply<2>(sum, p, r, m);
}

/* 64 columns of p S, while those before are stored. */
static __device__ __forceinline__ void columns_run(float (&sum)[32], float (&before)[32],
                                                   const Left &p, const Ring &r, Maker &m,
                                                   bf16 *to) {
    columns_multiply<0>(sum, p, r, m);
    sums_settle(before);
    columns_store<0>(before, to);
    columns_multiply<1>(sum, p, r, m);
    columns_store<1>(before, to);
    columns_multiply<2>(sum, p, r, m);
}

static __device__ void maker_run(const Ring &r, const ReadArgs &g, int rank, int which) {
    const int lane = threadIdx.x & 31, row = threadIdx.x / 32 % 4 * 16 + lane / 4;
    Maker m = {r.x + which * X_BYTES, which, 0u};
    Left p;
    int round = 0;
#pragma unroll 1
    for (int tile = blockIdx.x / CLUSTER; tile < g.tiles; tile += gridDim.x / CLUSTER, round ^= 1) {
        const int64_t at = (int64_t)tile * CLUSTER_ROWS + rank * OWN_ROWS + which * 64 + row;
        bf16 *to = g.y + at * SIZE + lane % 4 * 8;
        float even[64], odd[64], first[32], second[32];
        barrier_wait(r.come + 8 * which, round);
        strip_run<0>(even, odd, p, r, m), strip_run<1>(odd, even, p, r, m);
        strip_run<2>(even, odd, p, r, m), strip_run<3>(odd, even, p, r, m);
        strip_run<4>(even, odd, p, r, m), strip_run<5>(odd, even, p, r, m);
        columns_first(first, odd, p, r, m);
#pragma unroll
        for (int j = 0; j + 2 < CHUNKS; j += 2, to += 128) {
            columns_run(second, first, p, r, m, to);
            columns_run(first, second, p, r, m, to + 64);
        }
        columns_run(second, first, p, r, m, to);
        wgmma_wait<0>();
        stage_release(r, m.n - 1);
        sums_settle(second);
        columns_store<0>(second, to + 64);
        columns_store<1>(second, to + 64);
    }
}

#endif

__global__ void __launch_bounds__(THREADS, 1) read_kernel(const __grid_constant__ ReadArgs g) {
#if HAVE_SM90A
    extern __shared__ char memory[];
    const Ring r = ring_init(shared_address(memory));
    const int role = __shfl_sync(0xffffffffu, threadIdx.x / 128, 0), rank = cluster_rank();
    if (role == 0) {
        registers_down<24>();
        if (threadIdx.x == 0) copier_run(r, g, rank);
    } else {
        registers_up<240>();
        maker_run(r, g, rank, role - 1);
    }
    __syncwarp();
    cluster_sync(); /* no block ends while the other may still write to it */
#endif
}

/* ---- the slot ------------------------------------------------------------------------------- */

static bool read_fits(Device *d, Tensor y, Tensor x, Tensor w, Tensor s) {
    const int64_t chunk = x.shape[2] / s.shape[1];
    return backend_of(d)->sm90a && (size_t)SHARED <= backend_of(d)->smem_limit &&
           x.dtype == DTYPE_BF16 && x.shape[3] == SIZE && w.shape[3] == 2 * SIZE &&
           s.shape[2] == SIZE && s.shape[3] == SIZE && chunk % CLUSTER_ROWS == 0 &&
           tensor_rows(x) < INT32_MAX && tensor_rows(s) < INT32_MAX && is_aligned(x.data, 16) &&
           is_aligned(w.data, 16) && is_aligned(s.data, 16) && is_aligned(y.data, 16);
}

static Status read_launch(Device *d, Tensor y, Tensor x, Tensor w, Tensor s) {
    ReadArgs g;
    memset(&g, 0, sizeof g);
    TRY(map_matrix(&g.x, x.data, tensor_rows(x), SIZE, 64));
    TRY(map_matrix(&g.w, w.data, tensor_rows(w), 2 * SIZE, 64));
    TRY(map_matrix(&g.s, s.data, tensor_rows(s), SIZE, 64));
    g.tokens = (int)x.shape[2], g.chunk = (int)(x.shape[2] / s.shape[1]);
    g.heads = (int)(w.shape[0] * w.shape[1]);
    g.tiles = (int)(tensor_rows(x) / CLUSTER_ROWS);
    g.y = (bf16 *)y.data;
    const int most = backend_of(d)->sm_count / CLUSTER, clusters = g.tiles < most ? g.tiles : most;
    return pairs_launch(d, "gate_read", read_kernel, clusters, THREADS, SHARED, g);
}

extern "C" Status gate_read_cuda(Device *d, Tensor y, Tensor x, Tensor w, Tensor s) {
    if (tensor_count(y) == 0) return STATUS_OK;
    if (w.dtype != x.dtype || s.dtype != x.dtype || y.dtype != x.dtype)
        return refuse_dtype("gate_read", s.dtype);
    if (read_fits(d, y, x, w, s)) return read_launch(d, y, x, w, s);
    const Status status = gate_read_composed(d, y, x, w, s);
    scratch_done(d);
    return status;
}
