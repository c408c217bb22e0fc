/* p = rate silu(a) c with [a|c] = x [W0|W2] (fastweight.md 4.1), the gate in the product's
 * registers (Hopper, BF16): the products, twice as wide as the result, never reach memory.
 *
 * A block keeps what it needs of the weights, 128 columns of W0 and the same of W2 for all k, in
 * shared memory and lets tiles of 64 tokens pass by; at a new head they are fetched anew. Of its
 * three warpgroups the first streams, one thread of it; the others are makers that take turns, so
 * that one multiplies while the other gates its tile and stores it.
 *
 * Other sizes and F32: gate_composed.cu.
 */
#include "kernels/cuda/gate.cuh"
#include "kernels/cuda/gemm_ring.cuh"

#define THREADS     384
#define WIDTH       128              /* columns of a block's result */
#define BLOCK_BYTES (4 * TILE_BYTES) /* 64 k of the weights: W0, W0, W2, W2 */
#define MOST_STAGES 8
#define FIXED_BYTES (1024 + 256) /* alignment, barriers */
#define MOST_DEPTH  384

typedef struct GateArgs {
    int e, h, heads;   /* heads: matrices of weights */
    int tiles, per;    /* of all tokens, of the tokens of one group */
    int lanes, stages; /* blocks of the same columns */
    const float *rate;
    bf16 *p;
} GateArgs;

#if HAVE_SM90A

typedef struct Ring {
    Shared data, weights, full, empty, turn;
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

/* Tiles [first, end) of the block. */
typedef struct Share {
    int first, end, column; /* column: the block's first in the result */
} Share;

static __device__ __forceinline__ Share share_of(const GateArgs &g) {
    const int lane = blockIdx.x % g.lanes;
    Share s;
    s.first = (int)((int64_t)g.tiles * lane / g.lanes);
    s.end = (int)((int64_t)g.tiles * (lane + 1) / g.lanes);
    s.column = blockIdx.x / g.lanes * WIDTH;
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
    barrier_expect(full, g.e / DEPTH * BLOCK_BYTES + TILE_BYTES);
    for (int k = 0; k < g.e; k += DEPTH) {
        const Shared to = r.weights + k / DEPTH * BLOCK_BYTES;
#pragma unroll
        for (int i = 0; i < 4; i++)
            box_fetch(to + i * TILE_BYTES, w, i / 2 * g.h + column + i % 2 * 64, head * g.e + k,
                      full);
    }
}

static __device__ __forceinline__ void copier_run(const Ring &r, const GateArgs &g,
                                                  const CUtensorMap *x, const CUtensorMap *w) {
    const Share s = share_of(g);
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
                barrier_expect(full, TILE_BYTES);
            }
            box_fetch(r.data + t.stage * TILE_BYTES, x, k, tile * TILE_ROWS, full);
            turn_step(t, g.stages);
        }
    }
}

/* 64 rows; 128 columns of W0, then of W2. The other maker begins when nothing is left to be started
 * here. */
static __device__ __forceinline__ void tile_multiply(float (&sum)[128], const Ring &r,
                                                     const GateArgs &g, Turn &t, Shared other) {
    const int lane = threadIdx.x & 31;
    Shared before = 0;
    for (int k = 0; k < g.e; k += DEPTH) {
        barrier_wait(r.full + 8 * t.stage, t.phase);
        const uint64_t a = operand_straight(r.data + t.stage * TILE_BYTES);
        const uint64_t b = operand_turned(r.weights + k / DEPTH * BLOCK_BYTES);
        wgmma_begin();
#pragma unroll
        for (int i = 0; i < DEPTH / 16; i++) wgmma<1>(sum, a + i * 2, b + i * 128, k + i > 0);
        wgmma_commit();
        wgmma_wait<1>(); /* the products of the stage before are done */
        if (before && lane == 0) barrier_arrive(before);
        before = r.empty + 8 * t.stage;
        turn_step(t, g.stages);
    }
    if (lane == 0) barrier_arrive(other);
    wgmma_wait<0>();
    if (lane == 0) barrier_arrive(before);
}

/* Accumulators 4 j + 2 e and the next one are row 16 warp + 8 e + lane / 4 and columns 8 j + 2
 * (lane % 4) and the next one. `to`: the lane's row, its part of 32 columns. */
static __device__ __forceinline__ void tile_store(const float (&sum)[128], bf16 *to, int h,
                                                  const float (&rate)[2]) {
#pragma unroll
    for (int e = 0; e < 2; e++) {
#pragma unroll
        for (int i = 0; i < 4; i++) {
            uint32_t v[4];
#pragma unroll
            for (int k = 0; k < 4; k++) {
                const float *a = &sum[16 * i + 4 * k + 2 * e], *c = a + 64;
                v[k] = pack2(gate_of(a[0], c[0], rate[e]), gate_of(a[1], c[1], rate[e]));
            }
            *reinterpret_cast<uint4 *>(to + (int64_t)(8 * e) * h + 32 * i) = words_turn(v);
        }
    }
}

static __device__ __forceinline__ void maker_run(const Ring &r, const GateArgs &g, int which) {
    const Share s = share_of(g);
    const int lane = threadIdx.x & 31, row = threadIdx.x / 32 % 4 * 16 + lane / 4;
    Turn t = {0, 0};
    int round = which ^ 1;
    for (int tile = s.first; tile < s.end; tile++) {
        if (((tile - s.first) & 1) != which) {
            turn_skip(t, g.e / DEPTH, g.stages);
            continue;
        }
        float sum[128], rate[2] = {1.0f, 1.0f};
        const int64_t at = (int64_t)tile * TILE_ROWS + row;
#pragma unroll
        for (int i = 0; i < 2 && g.rate; i++) rate[i] = g.rate[at + 8 * i];
        barrier_wait(r.turn + 8 * which, round);
        round ^= 1;
        tile_multiply(sum, r, g, t, r.turn + 8 * (which ^ 1));
        tile_store(sum, g.p + at * g.h + s.column + lane % 4 * 8, g.h, rate);
    }
}

static __device__ __forceinline__ Ring ring_init(Shared memory, const GateArgs &g) {
    Ring r;
    r.weights = (memory + 1023) & ~1023u;
    r.data = r.weights + g.e / DEPTH * BLOCK_BYTES;
    r.full = r.data + g.stages * TILE_BYTES;
    r.empty = r.full + 8 * MOST_STAGES;
    r.turn = r.empty + 8 * MOST_STAGES;
    if (threadIdx.x == 0) {
        for (int i = 0; i < g.stages; i++) {
            barrier_init(r.full + 8 * i, 1);
            barrier_init(r.empty + 8 * i, 4); /* the warps of the maker at it */
        }
        for (int i = 0; i < 2; i++) barrier_init(r.turn + 8 * i, 4);
        asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
    }
    __syncthreads();
    return r;
}

#endif

__global__ void __launch_bounds__(THREADS, 1)
    gate_kernel(GateArgs g, const __grid_constant__ CUtensorMap x,
                const __grid_constant__ CUtensorMap w) {
#if HAVE_SM90A
    extern __shared__ char memory[];
    const Ring r = ring_init(shared_address(memory), g);
    const int role = threadIdx.x / 128;
    if (role == 0) {
        registers_down<40>();
        if (threadIdx.x == 0) copier_run(r, g, &x, &w);
    } else {
        registers_up<232>();
        maker_run(r, g, role - 1);
    }
#endif
}

/* ---- the slot ------------------------------------------------------------------------------- */

static int stages_of(Device *d, int64_t e) {
    const int64_t left = (int64_t)backend_of(d)->smem_limit - FIXED_BYTES - e / DEPTH * BLOCK_BYTES;
    const int64_t stages = left / TILE_BYTES;
    return (int)(stages < MOST_STAGES ? stages : MOST_STAGES);
}

bool gate_fits(Device *d, Tensor p, Tensor x, Tensor w) {
    const int64_t e = x.shape[3], h = p.shape[3];
    return backend_of(d)->sm90a && x.dtype == DTYPE_BF16 && e % DEPTH == 0 && e <= MOST_DEPTH &&
           h % WIDTH == 0 && h / WIDTH <= backend_of(d)->sm_count && x.shape[2] % TILE_ROWS == 0 &&
           tensor_rows(x) < INT32_MAX && is_aligned(x.data, 16) && is_aligned(w.data, 16) &&
           is_aligned(p.data, 16) && stages_of(d, e) >= 3;
}

Status gate_launch(Device *d, Tensor p, Tensor x, Tensor w, Tensor rate) {
    CUtensorMap map_x, map_w;
    TRY(map_matrix(&map_x, x.data, tensor_rows(x), tensor_last(x), TILE_ROWS));
    TRY(map_matrix(&map_w, w.data, tensor_rows(w), tensor_last(w), TILE_ROWS));
    GateArgs g = {};
    g.e = (int)x.shape[3], g.h = (int)p.shape[3], g.heads = (int)(w.shape[0] * w.shape[1]);
    g.tiles = (int)(tensor_rows(x) / TILE_ROWS), g.per = (int)(x.shape[2] / TILE_ROWS);
    g.stages = stages_of(d, g.e);
    g.rate = (const float *)rate.data;
    g.p = (bf16 *)p.data;
    const int columns = g.h / WIDTH, groups = g.tiles / g.per;
    g.lanes = backend_of(d)->sm_count / columns;
    if (groups <= g.lanes) g.lanes = g.lanes / groups * groups; /* one head for every block */
    if (g.lanes > g.tiles) g.lanes = g.tiles;
    const int bytes = FIXED_BYTES + g.e / DEPTH * BLOCK_BYTES + g.stages * TILE_BYTES;
    CUDA_TRY(cudaFuncSetAttribute(gate_kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, bytes),
             "gate_product");
    gate_kernel<<<columns * g.lanes, THREADS, bytes, stream_of(d)>>>(g, map_x, map_w);
    return launched("gate_product");
}

extern "C" Status gate_product_cuda(Device *d, Tensor p, Tensor x, Tensor w, Tensor rate) {
    if (tensor_count(p) == 0) return STATUS_OK;
    if (w.dtype != x.dtype || p.dtype != x.dtype) return refuse_dtype("gate_product", w.dtype);
    if (gate_fits(d, p, x, w)) return gate_launch(d, p, x, w, rate);
    return gate_product_composed(d, p, x, w, rate);
}
