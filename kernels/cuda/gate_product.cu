/* p = rate silu(a) c with [a|c] = x [W0|W2] (fastweight.md 4.1), the gate in the product's
 * registers (Hopper, BF16): the products, twice as wide as the result, never reach memory.
 *
 * A block keeps what it needs of the weights, 64 columns of W0 and the same of W2 for all k, in
 * shared memory and lets tiles of 128 tokens pass by; at a new head they are fetched anew. The two
 * blocks of a cluster have neighbouring columns and the same tokens: each fetches half of them for
 * both. Of a block's three warpgroups the first streams, one thread of it; the others are makers
 * that take turns, so that one multiplies while the other gates its tile and stores it.
 *
 * Other sizes and F32: a product into scratch and a pass over it.
 */
#include "kernels/cuda/gemm_ring.cuh"
#ifdef GATE_TRIAL
#include <stdio.h>
#endif

#define THREADS     384
#define GATE        64               /* columns of a block's result */
#define BLOCK_BYTES (2 * TILE_BYTES) /* 64 k of the weights; a stage: 64 k of 128 tokens */
#define MOST_STAGES 6
#define FIXED_BYTES (2 * BLOCK_BYTES + 1024 + 256) /* staging of both makers, alignment, barriers  \
                                                    */
#define MOST_DEPTH 512

typedef struct GateArgs {
    int e, h, heads;   /* heads: matrices of weights */
    int tiles, per;    /* of all tokens, of the tokens of one group */
    int lanes, stages; /* clusters of the same columns */
    const float *rate;
} GateArgs;

#if HAVE_SM90A

#ifdef GATE_TRIAL
static __device__ __forceinline__ void trial_wait(Shared barrier, int parity) {
    for (int i = 0; i < (1 << 22); i++) {
        int done;
        asm volatile(
            "{\n.reg .pred done;\nmbarrier.try_wait.parity.shared::cta.b64 done, [%1], %2;\n"
            "selp.b32 %0, 1, 0, done;\n}\n"
            : "=r"(done)
            : "r"(barrier), "r"(parity)
            : "memory");
        if (done) return;
    }
    printf("gate trial: block %d thread %d barrier %u parity %d\n", blockIdx.x, threadIdx.x,
           barrier, parity);
    asm volatile("trap;");
}
#define barrier_wait trial_wait
#endif

typedef struct Ring {
    Shared data, weights, staging, full, empty, turn;
} Ring;

static __device__ __forceinline__ void turn_step(Turn &t, int stages) {
    if (++t.stage == stages) {
        t.stage = 0;
        t.phase ^= 1;
    }
}
static __device__ __forceinline__ void turn_skip(Turn &t, int steps, int stages) {
    for (t.stage += steps; t.stage >= stages; t.stage -= stages) t.phase ^= 1;
}

/* Tiles [first, end) of the block's cluster. */
typedef struct Share {
    int first, end, column; /* column: the block's first in the result */
} Share;

static __device__ __forceinline__ Share share_of(const GateArgs &g, int rank) {
    const int cluster = blockIdx.x / CLUSTER, lane = cluster % g.lanes;
    Share s;
    s.first = (int)((int64_t)g.tiles * lane / g.lanes);
    s.end = (int)((int64_t)g.tiles * (lane + 1) / g.lanes);
    s.column = (cluster / g.lanes * CLUSTER + rank) * GATE;
    return s;
}

static __device__ __forceinline__ int head_of(const GateArgs &g, int tile) {
    return tile / g.per % g.heads;
}

/* The weights of a head, counted by the barrier of the stage that is filled next; nobody reads the
 * old ones when all stages have been given back. */
static __device__ __forceinline__ void weights_fetch(const Ring &r, const GateArgs &g,
                                                     const CUtensorMap *w, int head, int column,
                                                     Turn t) {
    const Shared full = r.full + 8 * t.stage;
    for (int i = 0; i < g.stages; i++) {
        barrier_wait(r.empty + 8 * t.stage, t.phase);
        turn_step(t, g.stages);
    }
    barrier_expect(full, (g.e / DEPTH + 1) * BLOCK_BYTES);
    for (int k = 0; k < g.e; k += DEPTH) {
        const Shared to = r.weights + k / DEPTH * BLOCK_BYTES;
        box_fetch(to, w, column, head * g.e + k, full);
        box_fetch(to + TILE_BYTES, w, g.h + column, head * g.e + k, full);
    }
}

static __device__ __forceinline__ void copier_run(const Ring &r, const GateArgs &g,
                                                  const CUtensorMap *x, const CUtensorMap *w) {
    const int rank = cluster_rank();
    const Share s = share_of(g, rank);
    Turn t = {0, 1}; /* the first round finds the stages empty */
    int head = -1;
    for (int tile = s.first; tile < s.end; tile++) {
        bool fresh = head_of(g, tile) != head;
        if (fresh) {
            head = head_of(g, tile);
            weights_fetch(r, g, w, head, s.column, t);
        }
        for (int k = 0; k < g.e; k += DEPTH, fresh = false) {
            const Shared full = r.full + 8 * t.stage;
            if (!fresh) {
                barrier_wait(r.empty + 8 * t.stage, t.phase);
                barrier_expect(full, BLOCK_BYTES);
            }
            box_fetch_all(r.data + t.stage * BLOCK_BYTES + rank * TILE_BYTES, x, k,
                          tile * ROWS + rank * TILE_ROWS, full, 3);
            turn_step(t, g.stages);
        }
    }
}

/* sum[half]: 64 rows, columns of W0, then of W2. The other maker begins when nothing is left to be
 * started here. */
static __device__ __forceinline__ void tile_multiply(float (&sum)[2][64], const Ring &r,
                                                     const GateArgs &g, Turn &t, Shared other) {
    const int lane = threadIdx.x & 31;
    Shared before = 0;
    for (int k = 0; k < g.e; k += DEPTH) {
        const Shared at = r.data + t.stage * BLOCK_BYTES;
        barrier_wait(r.full + 8 * t.stage, t.phase);
        const uint64_t a0 = operand_straight(at), a1 = operand_straight(at + TILE_BYTES);
        const uint64_t b = operand_turned(r.weights + k / DEPTH * BLOCK_BYTES);
        wgmma_begin();
#pragma unroll
        for (int i = 0; i < DEPTH / 16; i++) {
            wgmma<1>(sum[0], a0 + i * 2, b + i * 128, k + i > 0);
            wgmma<1>(sum[1], a1 + i * 2, b + i * 128, k + i > 0);
        }
        wgmma_commit();
        wgmma_wait<1>(); /* the products of the stage before are done: both blocks may refill it */
        if (before && lane < CLUSTER) barrier_arrive_at(before, lane);
        before = r.empty + 8 * t.stage;
        turn_step(t, g.stages);
    }
    if (lane == 0) barrier_arrive(other);
    wgmma_wait<0>();
    if (lane < CLUSTER) barrier_arrive_at(before, lane);
}

static __device__ __forceinline__ float gate_of(float a, float c, float rate) {
    return rate * a * logistic(a) * c;
}

/* The gated tile, rounded, in the staging tile: 128 rows of 64 columns. Accumulators 4 j + 2 e and
 * the next one of half h are row 64 h + 16 warp + 8 e + lane / 4 and columns 8 j + 2 (lane % 4) and
 * the next one. */
static __device__ __forceinline__ void tile_stage(const float (&sum)[2][64], Shared staging,
                                                  const float (&rate)[4]) {
    const int l = threadIdx.x & 31, row = threadIdx.x / 32 % 4 * 16 + (l >> 3 & 1) * 8 + (l & 7);
#pragma unroll
    for (int h = 0; h < 2; h++) {
#pragma unroll
        for (int i = 0; i < 4; i++) {
            uint32_t f[4];
#pragma unroll
            for (int k = 0; k < 4; k++) {
                const float *a = &sum[h][8 * i + 2 * k], *c = a + 32;
                const float eta = rate[2 * h + (k & 1)];
                f[k] = pack2(gate_of(a[0], c[0], eta), gate_of(a[1], c[1], eta));
            }
            asm volatile("stmatrix.sync.aligned.m8n8.x4.shared.b16 [%0], {%1,%2,%3,%4};" ::"r"(
                             tile_at(staging + h * TILE_BYTES, row, 2 * i + (l >> 4))),
                         "r"(f[0]), "r"(f[1]), "r"(f[2]), "r"(f[3])
                         : "memory");
        }
    }
}

/* Among the threads of a maker. */
static __device__ __forceinline__ void meet(int which) {
    asm volatile("bar.sync %0, 128;" ::"r"(1 + which) : "memory");
}

static __device__ __forceinline__ void staging_store(const CUtensorMap *p, Shared staging,
                                                     int column, int row) {
#pragma unroll
    for (int h = 0; h < 2; h++)
        asm volatile("cp.async.bulk.tensor.2d.global.shared::cta.bulk_group [%0, {%1, %2}], "
                     "[%3];" ::"l"(p),
                     "r"(column), "r"(row + h * TILE_ROWS), "r"(staging + h * TILE_BYTES)
                     : "memory");
    asm volatile("cp.async.bulk.commit_group;" ::: "memory");
}
static __device__ __forceinline__ void staging_wait(void) {
    asm volatile("cp.async.bulk.wait_group.read 0;" ::: "memory");
}

static __device__ __forceinline__ void maker_run(const Ring &r, const GateArgs &g,
                                                 const CUtensorMap *p, int which) {
    const Share s = share_of(g, cluster_rank());
    const bool elected = threadIdx.x % 128 == 0;
    const Shared staging = r.staging + which * BLOCK_BYTES;
    Turn t = {0, 0};
    int round = which ^ 1;
    for (int tile = s.first; tile < s.end; tile++) {
        if (((tile - s.first) & 1) != which) {
            turn_skip(t, g.e / DEPTH, g.stages);
            continue;
        }
        float sum[2][64], rate[4] = {1.0f, 1.0f, 1.0f, 1.0f};
        const int row = threadIdx.x / 32 % 4 * 16 + (threadIdx.x & 31) / 4;
#pragma unroll
        for (int i = 0; i < 4 && g.rate; i++)
            rate[i] = g.rate[(int64_t)tile * ROWS + i / 2 * TILE_ROWS + i % 2 * 8 + row];
        barrier_wait(r.turn + 8 * which, round);
        round ^= 1;
        tile_multiply(sum, r, g, t, r.turn + 8 * (which ^ 1));
        if (elected) staging_wait(); /* what was stored before has been read */
        meet(which);
        tile_stage(sum, staging, rate);
        asm volatile("fence.proxy.async.shared::cta;" ::: "memory");
        meet(which);
        if (elected) staging_store(p, staging, s.column, tile * ROWS);
    }
    if (elected) staging_wait();
}

static __device__ __forceinline__ Ring ring_init(Shared memory, const GateArgs &g) {
    Ring r;
    r.weights = (memory + 1023) & ~1023u;
    r.data = r.weights + g.e / DEPTH * BLOCK_BYTES;
    r.staging = r.data + g.stages * BLOCK_BYTES;
    r.full = r.staging + 2 * BLOCK_BYTES;
    r.empty = r.full + 8 * MOST_STAGES;
    r.turn = r.empty + 8 * MOST_STAGES;
    if (threadIdx.x == 0) {
        for (int i = 0; i < g.stages; i++) {
            barrier_init(r.full + 8 * i, 1);
            barrier_init(r.empty + 8 * i, 4 * CLUSTER); /* the warps of the makers at it */
        }
        for (int i = 0; i < 2; i++) barrier_init(r.turn + 8 * i, 4);
        asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
    }
    cluster_sync();
    return r;
}

#endif

__global__ void IN_CLUSTERS __launch_bounds__(THREADS, 1)
    gate_kernel(GateArgs g, const __grid_constant__ CUtensorMap x,
                const __grid_constant__ CUtensorMap w, const __grid_constant__ CUtensorMap p) {
#if HAVE_SM90A
    extern __shared__ char memory[];
    const Ring r = ring_init(shared_address(memory), g);
    const int role = threadIdx.x / 128;
    if (role == 0) {
        registers_down<40>();
        if (threadIdx.x == 0) copier_run(r, g, &x, &w);
    } else {
        registers_up<232>();
        maker_run(r, g, &p, role - 1);
    }
    __syncwarp();
    cluster_sync(); /* no block ends while the other may still write to it */
#endif
}

/* ---- other sizes ---------------------------------------------------------------------------- */

#define PASS_THREADS 256
#define AT_ONCE      ((int64_t)1 << 30) /* bytes of products in scratch */

template <typename T, int V>
__global__ void __launch_bounds__(PASS_THREADS)
    gate_pass_kernel(T *p, const T *ab, const float *rate, int64_t rows, int width) {
    const int64_t i = ((int64_t)blockIdx.x * PASS_THREADS + threadIdx.x) * V;
    if (i >= rows * width) return;
    const int64_t row = i / width, from = i + row * width;
    const float eta = rate ? rate[row] : 1.0f;
    float a[V], c[V];
    pack_load<T, V>(a, ab + from);
    pack_load<T, V>(c, ab + from + width);
#pragma unroll
    for (int k = 0; k < V; k++) a[k] = eta * a[k] * logistic(a[k]) * c[k];
    pack_store<T, V>(p + i, a);
}

static Tensor rows_from(Tensor x, int64_t at, int64_t a, int64_t b, int64_t c, int64_t d) {
    char *data = (char *)x.data + at * (int64_t)dtype_size(x.dtype);
    return tensor_4d(data, x.dtype, a, b, c, d);
}

/* Groups [g, g + n) of all; n is 1 or all there are. */
static Status gate_groups(Device *d, Tensor p, Tensor x, Tensor w, Tensor rate, int64_t g,
                          int64_t n) {
    const int64_t tokens = x.shape[2], e = x.shape[3], h = p.shape[3], rows = n * tokens;
    const int64_t heads = w.shape[0] * w.shape[1];
    const bool all = n > 1;
    Tensor ab;
    const int64_t shape[] = {all ? x.shape[0] : 1, all ? x.shape[1] : 1, tokens, 2 * h};
    TRY(arena_tensor(&d->scratch, x.dtype, 4, shape, &ab));
    const Tensor from = rows_from(x, g * tokens * e, shape[0], shape[1], tokens, e);
    const Tensor own = all ? w : rows_from(w, g % heads * e * 2 * h, 1, 1, e, 2 * h);
    TRY(matmul_cuda(d, grad_set(ab), from, false, own, false,
                    1.0f)); /* empties scratch: see below */
    const float *eta = (const float *)rate.data;
    if (eta) eta += g * tokens;
    const int64_t at = g * tokens * h;
    const bool packed = h * (int64_t)dtype_size(x.dtype) % 16 == 0 && is_aligned(p.data, 16);
    WITH_ACT("gate_product", x.dtype, T, constexpr int V = 16 / sizeof(T);
             const unsigned blocks = (unsigned)ceil_div(rows * h, PASS_THREADS * (packed ? V : 1));
             T *to = (T *)p.data + at; const T *in = (const T *)ab.data;
             if (packed) gate_pass_kernel<T, V>
             <<<blocks, PASS_THREADS, 0, stream_of(d)>>>(to, in, eta, rows, (int)h);
             else gate_pass_kernel<T, 1>
             <<<blocks, PASS_THREADS, 0, stream_of(d)>>>(to, in, eta, rows, (int)h));
    return launched("gate_product");
}

/* ---- the slot ------------------------------------------------------------------------------- */

static int stages_of(Device *d, int64_t e) {
    const int64_t left = (int64_t)backend_of(d)->smem_limit - FIXED_BYTES - e / DEPTH * BLOCK_BYTES;
    const int64_t stages = left / BLOCK_BYTES;
    return (int)(stages < MOST_STAGES ? stages : MOST_STAGES);
}

static bool gate_fits(Device *d, Tensor p, Tensor x, Tensor w) {
    const int64_t e = x.shape[3], h = p.shape[3];
    return backend_of(d)->sm90a && x.dtype == DTYPE_BF16 && e % DEPTH == 0 && e <= MOST_DEPTH &&
           h % (CLUSTER * GATE) == 0 && h / (CLUSTER * GATE) <= backend_of(d)->sm_count / CLUSTER &&
           x.shape[2] % ROWS == 0 && tensor_rows(x) < INT32_MAX && is_aligned(x.data, 16) &&
           is_aligned(w.data, 16) && is_aligned(p.data, 16) && stages_of(d, e) >= 3;
}

static Status gate_launch(Device *d, Tensor p, Tensor x, Tensor w, Tensor rate) {
    CUtensorMap map_x, map_w, map_p;
    TRY(map_matrix(&map_x, x.data, tensor_rows(x), x.shape[3], TILE_ROWS));
    TRY(map_matrix(&map_w, w.data, tensor_rows(w), w.shape[3], TILE_ROWS));
    TRY(map_matrix(&map_p, p.data, tensor_rows(p), p.shape[3], TILE_ROWS));
    GateArgs g = {};
    g.e = (int)x.shape[3], g.h = (int)p.shape[3], g.heads = (int)(w.shape[0] * w.shape[1]);
    g.tiles = (int)(tensor_rows(x) / ROWS), g.per = (int)(x.shape[2] / ROWS);
    g.stages = stages_of(d, g.e);
    g.rate = (const float *)rate.data;
    const int pairs = g.h / (CLUSTER * GATE);
    g.lanes = backend_of(d)->sm_count / CLUSTER / pairs;
    if (g.lanes > g.tiles) g.lanes = g.tiles;
    const int bytes = FIXED_BYTES + (g.e / DEPTH + g.stages) * BLOCK_BYTES;
    CUDA_TRY(cudaFuncSetAttribute(gate_kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, bytes),
             "gate_product");
    gate_kernel<<<CLUSTER * pairs * g.lanes, THREADS, bytes, stream_of(d)>>>(g, map_x, map_w,
                                                                             map_p);
    return launched("gate_product");
}

extern "C" Status gate_product_cuda(Device *d, Tensor p, Tensor x, Tensor w, Tensor rate) {
    if (tensor_count(p) == 0) return STATUS_OK;
    if (w.dtype != x.dtype || p.dtype != x.dtype) return refuse_dtype("gate_product", w.dtype);
    if (gate_fits(d, p, x, w)) return gate_launch(d, p, x, w, rate);
    const int64_t groups = x.shape[0] * x.shape[1];
    const int64_t bytes = 2 * tensor_rows(p) * p.shape[3] * (int64_t)dtype_size(p.dtype);
    const int64_t n = bytes <= AT_ONCE ? groups : 1;
    for (int64_t i = 0; i < groups; i += n) TRY(gate_groups(d, p, x, w, rate, i, n));
    return STATUS_OK;
}
