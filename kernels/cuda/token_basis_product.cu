/* q = (inv + rest) x of slot token_basis on Hopper.
 *
 * inv is lower triangular and its rows cancel in the sum, so it comes as two BF16 parts. A block
 * makes 128 x 128 of q: two warpgroups have 64 rows each and stop at their own diagonal block, one
 * thread copies both parts and the tokens of 64 k at a time into a ring of two stages, and two
 * blocks share a multiprocessor.
 */
#include "kernels/cuda/gemm_ring.cuh"
#include "kernels/cuda/token_basis.cuh"

#define WIDE         128
#define RING         2
#define RING_BYTES   (2 * A_BYTES + WIDE * 128)
#define WORKERS      256 /* threads that multiply */
#define SHARED_BYTES (RING * RING_BYTES + 1024 + 64)

#if HAVE_SM90A

typedef struct Stages {
    Shared data, full, empty;
} Stages;

static __device__ __forceinline__ void copier(const Stages &r, const CUtensorMap *inv,
                                              const CUtensorMap *rest, const CUtensorMap *x,
                                              int base, int row, int column, int blocks) {
    Turn t = {0, 1};
    for (int k = 0; k < blocks; k++) {
        const Shared full = r.full + 8 * t.stage, to = r.data + t.stage * RING_BYTES;
        barrier_wait(r.empty + 8 * t.stage, t.phase);
        barrier_expect(full, RING_BYTES);
        box_fetch(to, inv, 64 * k, base + row, full);
        box_fetch(to + A_BYTES, rest, 64 * k, base + row, full);
        for (int i = 0; i < WIDE / 64; i++)
            box_fetch(to + 2 * A_BYTES + i * TILE_BYTES, x, column + 64 * i, base + 64 * k, full);
        turn_next<RING>(t);
    }
}

/* All stages of the block go by; those behind the group's own diagonal hold nothing for it. */
static __device__ __forceinline__ void multiply(float (&sum)[64], const Stages &r, int group,
                                                int own, int blocks) {
    Turn t = {0, 0};
    for (int k = 0; k < blocks; k++) {
        const Shared at = r.data + t.stage * RING_BYTES;
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
            wgmma_wait<0>();
        }
        if ((threadIdx.x & 31) == 0) barrier_arrive(r.empty + 8 * t.stage);
        turn_next<RING>(t);
    }
    sums_settle(sum);
}

#endif

__global__ void __launch_bounds__(WORKERS + 32, 2)
    product_kernel(bf16 *q, const __grid_constant__ CUtensorMap inv,
                   const __grid_constant__ CUtensorMap rest, const __grid_constant__ CUtensorMap x,
                   int n, int c) {
#if HAVE_SM90A
    extern __shared__ uint8_t memory[];
    Stages r;
    r.data = (shared_address(memory) + 1023) & ~1023u;
    r.full = r.data + RING * RING_BYTES;
    r.empty = r.full + 8 * RING;
    if (threadIdx.x == 0) {
        for (int i = 0; i < RING; i++) {
            barrier_init(r.full + 8 * i, 1);
            barrier_init(r.empty + 8 * i, WORKERS / 32);
        }
        asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
    }
    __syncthreads();
    /* the longest sums first */
    const int tile = gridDim.y - 1 - blockIdx.y, row = tile * ROWS, column = blockIdx.x * WIDE;
    const int base = blockIdx.z * n, last = n / 64, group = threadIdx.x / 128;
    const int blocks = 2 * tile + 2 < last ? 2 * tile + 2 : last;
    if (group == WORKERS / 128) {
        if (threadIdx.x == WORKERS) copier(r, &inv, &rest, &x, base, row, column, blocks);
        return;
    }
    float sum[64];
    multiply(sum, r, group, 2 * tile + group + 1, blocks);
    const int warp = threadIdx.x % 128 / 32, lane = threadIdx.x & 31;
    const int m = row + 64 * group + 16 * warp + lane / 4, at = column + 2 * (lane & 3);
    if (row + 64 * group >= n) return;
    bf16 *to = q + (int64_t)(base + m) * c + at;
#pragma unroll
    for (int i = 0; i < WIDE / 8; i++) {
        if (column + 8 * i >= c) break;
        *(uint32_t *)(to + 8 * i) = pack2(sum[4 * i], sum[4 * i + 1]);
        *(uint32_t *)(to + 8 * (int64_t)c + 8 * i) = pack2(sum[4 * i + 2], sum[4 * i + 3]);
    }
#endif
}

Status basis_product(Device *d, BasisSizes b, bf16 *q, const bf16 *inv, const bf16 *rest,
                     const bf16 *x) {
    CUtensorMap map_inv, map_rest, map_x;
    const int64_t rows = (int64_t)b.count * b.n;
    TRY(map_matrix(&map_inv, inv, rows, b.n, ROWS));
    TRY(map_matrix(&map_rest, rest, rows, b.n, ROWS));
    TRY(map_matrix(&map_x, x, rows, b.c, 64));
    CUDA_TRY(cudaFuncSetAttribute(product_kernel, cudaFuncAttributeMaxDynamicSharedMemorySize,
                                  SHARED_BYTES),
             "token_basis");
    const dim3 grid((unsigned)ceil_div(b.c, WIDE), (unsigned)ceil_div(b.n, ROWS),
                    (unsigned)b.count);
    product_kernel<<<grid, WORKERS + 32, SHARED_BYTES, stream_of(d)>>>(q, map_inv, map_rest, map_x,
                                                                       b.n, b.c);
    return launched("token_basis");
}
