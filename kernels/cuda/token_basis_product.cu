/* q = (inv + rest) x of slot token_basis on Hopper.
 *
 * inv is lower triangular and its rows cancel in the sum, so it comes as two BF16 parts. A tile is
 * 128 rows of q: two warpgroups have 64 rows each and stop at their own diagonal block, one thread
 * copies both parts and the tokens of 64 k at a time into a ring. Blocks go from tile to tile, the
 * longest sums first, so that the ring is full again when a tile's rows are written.
 */
#include "kernels/cuda/gemm_ring.cuh"
#include "kernels/cuda/token_basis.cuh"

#define WORKERS     256  /* threads that multiply */
#define STAGE_BYTES 1024 /* of a warp: 16 rows of 32 columns */

/* Columns of a tile, stages of the ring, blocks of a multiprocessor. */
template <int WIDE_, int RING_, int BLOCKS_> struct Form {
    static const int wide = WIDE_, ring = RING_, blocks = BLOCKS_;
    static const int stage_bytes = 2 * A_BYTES + WIDE_ * 128;
    static const int shared_bytes = RING_ * stage_bytes + 1024 + 128 + WORKERS / 32 * STAGE_BYTES;
};
typedef Form<128, 2, 2> Narrow;
typedef Form<256, 3, 1> Wide;

typedef struct ProductArgs {
    bf16 *q;
    int n, c, across, count, tiles; /* tiles of a row, matrices, tiles in all */
} ProductArgs;

#if HAVE_SM90A

typedef struct Stages {
    Shared data, full, empty;
} Stages;

/* Where a tile is. */
typedef struct Place {
    int base, tile, column, blocks; /* first row of the matrix; tile of its rows; k in blocks */
} Place;

/* The block's tile of a round: rounds go to and fro, which evens out what blocks have to do. */
static __device__ __forceinline__ int tile_of(int round) {
    const int at = round & 1 ? gridDim.x - 1 - blockIdx.x : blockIdx.x;
    return round * gridDim.x + at;
}

static __device__ __forceinline__ Place place_of(const ProductArgs &a, int tile, int wide) {
    const int each = a.across * a.count, last = a.n / 64;
    Place p;
    p.tile = (a.n + ROWS - 1) / ROWS - 1 - tile / each;
    p.base = tile % each / a.across * a.n;
    p.column = tile % a.across * wide;
    p.blocks = 2 * p.tile + 2 < last ? 2 * p.tile + 2 : last;
    return p;
}

template <class F>
static __device__ __forceinline__ void copier(const Stages &r, const ProductArgs &a,
                                              const CUtensorMap *inv, const CUtensorMap *rest,
                                              const CUtensorMap *x) {
    Turn t = {0, 1};
    for (int round = 0; round * (int)gridDim.x < a.tiles; round++) {
        if (tile_of(round) >= a.tiles) continue;
        const Place p = place_of(a, tile_of(round), F::wide);
        const int row = p.base + p.tile * ROWS;
        for (int k = 0; k < p.blocks; k++) {
            const Shared full = r.full + 8 * t.stage, to = r.data + t.stage * F::stage_bytes;
            barrier_wait(r.empty + 8 * t.stage, t.phase);
            barrier_expect(full, F::stage_bytes);
            box_fetch(to, inv, 64 * k, row, full);
            box_fetch(to + A_BYTES, rest, 64 * k, row, full);
            for (int i = 0; i < F::wide / 64; i++)
                box_fetch(to + 2 * A_BYTES + i * TILE_BYTES, x, p.column + 64 * i, p.base + 64 * k,
                          full);
            turn_next<F::ring>(t);
        }
    }
}

/* All stages of the tile go by; those behind the group's own diagonal hold nothing for it. */
template <class F>
static __device__ __forceinline__ void multiply(float (&sum)[F::wide / 2], const Stages &r, Turn &t,
                                                int group, int own, int blocks) {
    Shared before = 0;
    for (int k = 0; k < blocks; k++) {
        const Shared at = r.data + t.stage * F::stage_bytes;
        barrier_wait(r.full + 8 * t.stage, t.phase);
        if (k < own) {
            const uint64_t a = operand_straight(at + group * TILE_BYTES),
                           b = operand_turned(at + 2 * A_BYTES);
            const uint64_t low = operand_straight(at + A_BYTES + group * TILE_BYTES);
            wgmma_begin();
#pragma unroll
            for (int i = 0; i < 4; i++) {
                wgmma<1>(sum, a + 2 * i, b + 128 * i, k + i > 0);
                wgmma<1>(sum, low + 2 * i, b + 128 * i, 1);
            }
            wgmma_commit();
        }
        if (F::ring > 2 && k < own)
            wgmma_wait<1>();
        else
            wgmma_wait<0>();
        /* of a longer ring the stage before is free now, this one is in use */
        const Shared done = F::ring > 2 ? before : r.empty + 8 * t.stage;
        if (done && (threadIdx.x & 31) == 0) barrier_arrive(done);
        before = r.empty + 8 * t.stage;
        turn_next<F::ring>(t);
    }
    wgmma_wait<0>();
    if (F::ring > 2 && (threadIdx.x & 31) == 0) barrier_arrive(before);
#pragma unroll
    for (int i = 0; i < F::wide / 2; i++) asm volatile("" : "+f"(sum[i])::"memory");
}

/* 16 rows of sums to memory, 32 columns at a time. */
template <class F>
static __device__ __forceinline__ void rows_put(bf16 *to, const float (&sum)[F::wide / 2],
                                                Shared staged, int c, int column) {
    const int lane = threadIdx.x & 31, r = lane / 4, row = lane / 4, chunk = lane & 3;
#pragma unroll
    for (int j = 0; j < F::wide / 32; j++) {
        if (column + 32 * j >= c) break;
#pragma unroll
        for (int i = 0; i < 4; i++) {
            const float *v = sum + 16 * j + 4 * i;
            const Shared at = staged + 64 * r + ((i ^ (r >> 1 & 3)) << 4) + 4 * (lane & 3);
            asm volatile("st.shared.b32 [%0], %1;" ::"r"(at), "r"(pack2(v[0], v[1])) : "memory");
            asm volatile("st.shared.b32 [%0], %1;" ::"r"(at + 512), "r"(pack2(v[2], v[3]))
                         : "memory");
        }
        __syncwarp();
        const Shared from = staged + 64 * row + ((chunk ^ (row >> 1 & 3)) << 4);
        bf16 *here = to + (int64_t)row * c + 32 * j + 8 * chunk;
        *(uint4 *)here = shared_chunk(from);
        *(uint4 *)(here + 8 * (int64_t)c) = shared_chunk(from + 512);
        __syncwarp();
    }
}

#endif

template <class F>
__global__ void __launch_bounds__(WORKERS + 32, F::blocks)
    product_kernel(const ProductArgs a, const __grid_constant__ CUtensorMap inv,
                   const __grid_constant__ CUtensorMap rest,
                   const __grid_constant__ CUtensorMap x) {
#if HAVE_SM90A
    extern __shared__ uint8_t memory[];
    Stages r;
    r.data = (shared_address(memory) + 1023) & ~1023u;
    r.full = r.data + F::ring * F::stage_bytes;
    r.empty = r.full + 8 * F::ring;
    if (threadIdx.x == 0) {
        for (int i = 0; i < F::ring; i++) {
            barrier_init(r.full + 8 * i, 1);
            barrier_init(r.empty + 8 * i, WORKERS / 32);
        }
        asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
    }
    __syncthreads();
    const int group = threadIdx.x / 128;
    if (group == WORKERS / 128) {
        if (threadIdx.x == WORKERS) copier<F>(r, a, &inv, &rest, &x);
        return;
    }
    const Shared staged = r.full + 64 + threadIdx.x / 32 * STAGE_BYTES;
    Turn t = {0, 0};
    for (int round = 0; round * (int)gridDim.x < a.tiles; round++) {
        if (tile_of(round) >= a.tiles) continue;
        const Place p = place_of(a, tile_of(round), F::wide);
        float sum[F::wide / 2];
        multiply<F>(sum, r, t, group, 2 * p.tile + group + 1, p.blocks);
        const int row = p.tile * ROWS + 64 * group;
        if (row >= a.n) continue;
        const int first = p.base + row + threadIdx.x % 128 / 32 * 16;
        rows_put<F>(a.q + (int64_t)first * a.c + p.column, sum, staged, a.c, p.column);
    }
#endif
}

template <class F>
static Status product_run(Device *d, BasisSizes b, bf16 *q, const bf16 *inv, const bf16 *rest,
                          const bf16 *x) {
    CUtensorMap map_inv, map_rest, map_x;
    const int64_t rows = (int64_t)b.count * b.n;
    TRY(map_matrix(&map_inv, inv, rows, b.n, ROWS));
    TRY(map_matrix(&map_rest, rest, rows, b.n, ROWS));
    TRY(map_matrix(&map_x, x, rows, b.c, 64));
    CUDA_TRY(cudaFuncSetAttribute(product_kernel<F>, cudaFuncAttributeMaxDynamicSharedMemorySize,
                                  F::shared_bytes),
             "token_basis");
    const int across = (int)ceil_div(b.c, F::wide);
    const int tiles = across * b.count * (int)ceil_div(b.n, ROWS);
    const int most = F::blocks * backend_of(d)->sm_count;
    const ProductArgs a = {q, b.n, b.c, across, b.count, tiles};
    product_kernel<F>
        <<<(unsigned)(tiles < most ? tiles : most), WORKERS + 32, F::shared_bytes, stream_of(d)>>>(
            a, map_inv, map_rest, map_x);
    return launched("token_basis");
}

Status basis_product(Device *d, BasisSizes b, bf16 *q, const bf16 *inv, const bf16 *rest,
                     const bf16 *x) {
    const int64_t tiles = b.count * ceil_div(b.n, ROWS) * ceil_div(b.c, Wide::wide);
    return b.c % Wide::wide == 0 && tiles >= 2 * backend_of(d)->sm_count
               ? product_run<Wide>(d, b, q, inv, rest, x)
               : product_run<Narrow>(d, b, q, inv, rest, x);
}
