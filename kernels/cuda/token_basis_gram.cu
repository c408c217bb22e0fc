/* S = x x' of slot token_basis on Hopper: at and below the diagonal, in F32.
 *
 * A block makes 128 x 128 of S, two warpgroups with 64 rows each; one thread copies 64 columns of
 * both rows' tokens at a time into a ring, and two blocks share a multiprocessor. Sums leave as
 * they lie in registers: warps of basis_factor read them in the same way (BASIS_SUMS).
 */
#include "kernels/cuda/gemm_ring.cuh"
#include "kernels/cuda/token_basis.cuh"

#define RING         3
#define RING_BYTES   (2 * A_BYTES)
#define WORKERS      256 /* threads that multiply */
#define SHARED_BYTES (RING * RING_BYTES + 1024 + 64)

#if HAVE_SM90A

typedef struct Stages {
    Shared data, full, empty;
} Stages;

static __device__ __forceinline__ void copier(const Stages &r, const CUtensorMap *x, int row,
                                              int column, int c) {
    const int bytes = row == column ? A_BYTES : RING_BYTES;
    Turn t = {0, 1};
    for (int k = 0; k < c; k += DEPTH) {
        const Shared full = r.full + 8 * t.stage, to = r.data + t.stage * RING_BYTES;
        barrier_wait(r.empty + 8 * t.stage, t.phase);
        barrier_expect(full, bytes);
        box_fetch(to, x, k, row, full);
        if (row != column) box_fetch(to + A_BYTES, x, k, column, full);
        turn_next<RING>(t);
    }
}

static __device__ __forceinline__ void multiply(float (&sum)[64], const Stages &r, int group,
                                                bool same, int c) {
    Turn t = {0, 0};
    for (int k = 0; k < c; k += DEPTH) {
        const Shared at = r.data + t.stage * RING_BYTES;
        barrier_wait(r.full + 8 * t.stage, t.phase);
        const uint64_t a = operand_straight(at + group * TILE_BYTES),
                       b = operand_straight(same ? at : at + A_BYTES);
        wgmma_begin();
#pragma unroll
        for (int i = 0; i < DEPTH / 16; i++) wgmma<0>(sum, a + 2 * i, b + 2 * i, k + i > 0);
        wgmma_commit();
        wgmma_wait<0>();
        if ((threadIdx.x & 31) == 0) barrier_arrive(r.empty + 8 * t.stage);
        turn_next<RING>(t);
    }
    sums_settle(sum);
}

#endif

/* Grid: tiles at and below the diagonal, row after row; matrices. */
__global__ void __launch_bounds__(WORKERS + 32, 2)
    gram_kernel(float4 *s, const __grid_constant__ CUtensorMap x, int n, int c) {
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
    int tile = 0, other = blockIdx.x;
    while (other > tile) other -= ++tile;
    const int row = tile * ROWS, column = other * ROWS, base = blockIdx.y * n;
    const int group = threadIdx.x / 128;
    if (group == WORKERS / 128) {
        if (threadIdx.x == WORKERS) copier(r, &x, base + row, base + column, c);
        return;
    }
    float sum[64];
    multiply(sum, r, group, row == column, c);
    const int first = row + 64 * group, strips = n / 16, blocks = n / 64;
    if (first >= n) return;
    const int strip = first / 16 + threadIdx.x % 128 / 32;
#pragma unroll
    for (int half = 0; half < 2; half++) {
        const int block = column / 64 + half;
        if (block >= blocks) break;
        float4 *to = s + BASIS_SUMS((int64_t)blockIdx.y * strips + strip, block, blocks) +
                     (threadIdx.x & 31);
#pragma unroll
        for (int i = 0; i < 8; i++) {
            const float *v = sum + 32 * half + 4 * i;
            to[32 * i] = make_float4(v[0], v[1], v[2], v[3]);
        }
    }
#endif
}

Status basis_gram(Device *d, BasisSizes b, float *s, const bf16 *x) {
    CUtensorMap map;
    TRY(map_matrix(&map, x, (int64_t)b.count * b.n, b.c, ROWS));
    CUDA_TRY(cudaFuncSetAttribute(gram_kernel, cudaFuncAttributeMaxDynamicSharedMemorySize,
                                  SHARED_BYTES),
             "token_basis");
    const unsigned tiles = (unsigned)ceil_div(b.n, ROWS);
    const dim3 grid(tiles * (tiles + 1) / 2, (unsigned)b.count);
    gram_kernel<<<grid, WORKERS + 32, SHARED_BYTES, stream_of(d)>>>((float4 *)s, map, b.n, b.c);
    return launched("token_basis");
}
