/* The fused product: persistent blocks of three warpgroups, in clusters of two.
 *
 * - The copier, one thread, streams tiles of a and b through a ring in shared memory. The blocks
 *   of a cluster work on neighbouring rows with the same b; each fetches half of it for both.
 * - The makers, two warpgroups, multiply (64 rows each of the block's 128 x WIDTH results), add the
 *   bias, round, and leave the result in a staging tile.
 * - The finishers, three warps, apply f to the staging tile and write to memory, while the makers
 *   are at the next tile.
 */
#include "kernels/cuda/gemm_fused.cuh"
#include "kernels/cuda/gemm_ring.cuh"

#define THREADS   384
#define FINISHERS 3                            /* warps */
#define BATCH     (KIND == FUSED_GELU ? 4 : 6) /* rows of a finisher at a time */

typedef struct FusedArgs {
    int m, n, k;
    int tiles_n, tiles; /* tiles of a cluster: 2 ROWS x WIDTH */
    bf16 *y, *other;
    const float *bias;
} FusedArgs;

/* The input gradient reads the weights turned over. */
#define TURNED (KIND == FUSED_DGELU)

template <int WIDTH> struct FusedShape {
    static const int stage_bytes = A_BYTES + WIDTH * 128;
    static const int staging_bytes = ROWS * WIDTH * 2;
    static const int stages = (225 * 1024 - staging_bytes) / stage_bytes;
    static const int shared = stages * stage_bytes + staging_bytes + 1024 + 1024;
};

#if HAVE_SM90A

/* Barriers: a stage is full, a stage is empty, the staging tile is full, it is empty. */
typedef struct Ring {
    Shared data, staging, full, empty, staged, taken;
} Ring;

template <int WIDTH, FusedKind KIND>
static __device__ __forceinline__ void copier_run(const Ring &r, const FusedArgs &g,
                                                  const CUtensorMap *a, const CUtensorMap *b) {
    typedef FusedShape<WIDTH> S;
    const int rank = cluster_rank(), clusters = gridDim.x / CLUSTER;
    Turn t = {0, 1}; /* the first round finds the stages empty */
    for (int tile = blockIdx.x / CLUSTER; tile < g.tiles; tile += clusters) {
        const int m0 = (tile / g.tiles_n * CLUSTER + rank) * ROWS, n0 = tile % g.tiles_n * WIDTH;
        for (int k0 = 0; k0 < g.k; k0 += DEPTH) {
            const Shared full = r.full + 8 * t.stage, to = r.data + t.stage * S::stage_bytes;
            barrier_wait(r.empty + 8 * t.stage, t.phase);
            barrier_expect(full, S::stage_bytes);
            box_fetch(to, a, k0, m0, full);
            if (TURNED) { /* half of the k of each 64 n */
                for (int i = 0; i < WIDTH / 64; i++)
                    box_fetch_all(to + A_BYTES + i * TILE_BYTES + rank * (TILE_BYTES / 2), b,
                                  n0 + 64 * i, k0 + rank * (DEPTH / 2), full, 3);
            } else { /* half of the n */
                box_fetch_all(to + A_BYTES + rank * (WIDTH / 2) * 128, b, k0,
                              n0 + rank * (WIDTH / 2), full, 3);
            }
            turn_next<S::stages>(t);
        }
    }
}

/* The warpgroup's accumulators of one tile. */
template <int WIDTH, FusedKind KIND>
static __device__ __forceinline__ void maker_multiply(float (&sum)[WIDTH / 2], const Ring &r,
                                                      Turn &t, int group, int k) {
    typedef FusedShape<WIDTH> S;
    const int lane = threadIdx.x & 31;
    Shared before = 0;
    for (int k0 = 0; k0 < k; k0 += DEPTH) {
        const Shared at = r.data + t.stage * S::stage_bytes;
        barrier_wait(r.full + 8 * t.stage, t.phase);
        const uint64_t a = operand_straight(at + group * TILE_BYTES);
        const uint64_t b = TURNED ? operand_turned(at + A_BYTES) : operand_straight(at + A_BYTES);
        wgmma_begin();
#pragma unroll
        for (int i = 0; i < DEPTH / 16; i++)
            wgmma<TURNED ? 1 : 0>(sum, a + i * 2, b + i * (TURNED ? 2048 >> 4 : 2), k0 + i > 0);
        wgmma_commit();
        wgmma_wait<1>(); /* the products of the stage before are done: both blocks may refill it */
        if (before && lane < CLUSTER) barrier_arrive_at(before, lane);
        before = r.empty + 8 * t.stage;
        turn_next<S::stages>(t);
    }
    wgmma_wait<0>();
    if (lane < CLUSTER) barrier_arrive_at(before, lane);
}

/* Chunk of 8 columns of a row of the staging tile. */
template <int WIDTH>
static __device__ __forceinline__ Shared staging_at(Shared staging, int row, int chunk) {
    return staging + row * (WIDTH * 2) + ((chunk ^ (row & 7)) << 4);
}

/* Adds the bias, rounds and stores the warp's 16 rows. */
template <int WIDTH>
static __device__ __forceinline__ void maker_stage(const float (&sum)[WIDTH / 2], Shared staging,
                                                   const float *bias, int n0, int n, int row0) {
    const int l = threadIdx.x & 31, q = l & 3;
    const int row = row0 + ((l >> 3) & 1) * 8 + (l & 7), right = l >> 4;
#pragma unroll
    for (int i = 0; i < WIDTH / 16; i++) {
        float add[4] = {};
        const int c = n0 + 16 * i + 2 * q;
        if (bias && c < n) { /* n is a multiple of 8 */
            const float2 v = *reinterpret_cast<const float2 *>(bias + c);
            add[0] = v.x, add[1] = v.y;
        }
        if (bias && c + 8 < n) {
            const float2 v = *reinterpret_cast<const float2 *>(bias + c + 8);
            add[2] = v.x, add[3] = v.y;
        }
        const float *s = &sum[8 * i];
        const uint32_t f0 = pack2(s[0] + add[0], s[1] + add[1]);
        const uint32_t f1 = pack2(s[2] + add[0], s[3] + add[1]);
        const uint32_t f2 = pack2(s[4] + add[2], s[5] + add[3]);
        const uint32_t f3 = pack2(s[6] + add[2], s[7] + add[3]);
        asm volatile("stmatrix.sync.aligned.m8n8.x4.shared.b16 [%0], {%1,%2,%3,%4};" ::"r"(
                         staging_at<WIDTH>(staging, row, 2 * i + right)),
                     "r"(f0), "r"(f1), "r"(f2), "r"(f3)
                     : "memory");
    }
}

template <int WIDTH, FusedKind KIND>
static __device__ __forceinline__ void maker_run(const Ring &r, const FusedArgs &g, int group) {
    const int clusters = gridDim.x / CLUSTER, warp = threadIdx.x / 32 % 4;
    Turn t = {0, 0};
    int round = 0;
    for (int tile = blockIdx.x / CLUSTER; tile < g.tiles; tile += clusters, round ^= 1) {
        float sum[WIDTH / 2];
        maker_multiply<WIDTH, KIND>(sum, r, t, group, g.k);
        barrier_wait(r.taken, round ^ 1);
        maker_stage<WIDTH>(sum, r.staging, g.bias, tile % g.tiles_n * WIDTH, g.n,
                           group * 64 + warp * 16);
        barrier_arrive(r.staged);
    }
}

/* f of a pair of elements. */
template <FusedKind KIND>
static __device__ __forceinline__ uint32_t finish_pair(uint32_t p, uint32_t o) {
    const float x[2] = {low_of(p), high_of(p)}, y[2] = {low_of(o), high_of(o)};
    float out[2];
#pragma unroll
    for (int i = 0; i < 2; i++)
        out[i] = KIND == FUSED_GELU ? gelu_quick(x[i]) : x[i] * gelu_slope_quick(y[i]);
    return pack2(out[0], out[1]);
}

/* What a finisher's lane reads and writes of a tile: every third row, 8 columns (16 bytes). */
typedef struct Finish {
    int64_t at;    /* of the first row, in y */
    int row, rows; /* its first row, rows of the tile; no rows for a lane beyond the last column */
    int m0;
} Finish;

template <int WIDTH>
static __device__ __forceinline__ Finish finish_init(const FusedArgs &g, int tile) {
    const int lane = threadIdx.x & 31, c = tile % g.tiles_n * WIDTH + 8 * lane;
    Finish f;
    f.m0 = (tile / g.tiles_n * CLUSTER + cluster_rank()) * ROWS;
    f.row = threadIdx.x / 32 - 1;
    f.rows = 8 * lane < WIDTH && c < g.n ? min(ROWS, g.m - f.m0) : 0;
    f.at = (int64_t)(f.m0 + f.row) * g.n + c;
    return f;
}

/* `other` of the batch that begins `first` rows of this warp on. */
template <FusedKind KIND>
static __device__ __forceinline__ void finish_fetch(uint4 (&other)[BATCH], const Finish &f,
                                                    const FusedArgs &g, int first) {
#pragma unroll
    for (int i = 0; i < BATCH; i++) {
        const int step = (first + i) * FINISHERS;
        if (f.row + step < f.rows)
            other[i] = *reinterpret_cast<const uint4 *>(g.other + f.at + (int64_t)step * g.n);
    }
}

template <FusedKind KIND>
static __device__ __forceinline__ void finish_put(bf16 *out, const Finish &f, const FusedArgs &g,
                                                  int first, const uint4 (&v)[BATCH]) {
#pragma unroll
    for (int i = 0; i < BATCH; i++) {
        const int step = (first + i) * FINISHERS;
        if (f.row + step < f.rows)
            *reinterpret_cast<uint4 *>(out + f.at + (int64_t)step * g.n) = v[i];
    }
}

/* A batch of rows: all are read, then worked on, then written, so that they overlap. */
template <int WIDTH, FusedKind KIND>
static __device__ __forceinline__ void finish_batch(const char *staging, const Finish &f,
                                                    const FusedArgs &g, int first,
                                                    const uint4 (&other)[BATCH]) {
    const int lane = min((int)threadIdx.x & 31, WIDTH / 8 - 1);
    uint4 v[BATCH];
#pragma unroll
    for (int i = 0; i < BATCH; i++) {
        const int row = min(f.row + (first + i) * FINISHERS, ROWS - 1);
        v[i] =
            *reinterpret_cast<const uint4 *>(staging + row * (WIDTH * 2) + (lane ^ (row & 7)) * 16);
    }
    if (KIND == FUSED_GELU && g.other) finish_put<KIND>(g.other, f, g, first, v);
#pragma unroll
    for (int i = 0; i < BATCH; i++) {
        v[i].x = finish_pair<KIND>(v[i].x, other[i].x);
        v[i].y = finish_pair<KIND>(v[i].y, other[i].y);
        v[i].z = finish_pair<KIND>(v[i].z, other[i].z);
        v[i].w = finish_pair<KIND>(v[i].w, other[i].w);
    }
    finish_put<KIND>(g.y, f, g, first, v);
}

/* What is read does not wait for the makers, so the first batch is fetched before. */
template <int WIDTH, FusedKind KIND>
static __device__ __forceinline__ void finisher_run(const Ring &r, const char *staging,
                                                    const FusedArgs &g) {
    const int clusters = gridDim.x / CLUSTER;
    const bool reads = KIND != FUSED_GELU;
    int round = 0;
    for (int tile = blockIdx.x / CLUSTER; tile < g.tiles; tile += clusters, round ^= 1) {
        const Finish f = finish_init<WIDTH>(g, tile);
        uint4 other[BATCH] = {}, next[BATCH] = {};
        if (reads) finish_fetch<KIND>(next, f, g, 0);
        barrier_wait(r.staged, round);
        for (int first = 0; first * FINISHERS + f.row < f.rows; first += BATCH) {
#pragma unroll
            for (int i = 0; i < BATCH; i++) other[i] = next[i];
            if (reads) finish_fetch<KIND>(next, f, g, first + BATCH);
            finish_batch<WIDTH, KIND>(staging, f, g, first, other);
        }
        barrier_arrive(r.taken);
    }
}

template <int WIDTH> static __device__ __forceinline__ Ring ring_init(Shared memory) {
    typedef FusedShape<WIDTH> S;
    Ring r;
    r.data = (memory + 1023) & ~1023u;
    r.staging = r.data + S::stages * S::stage_bytes;
    r.full = r.staging + S::staging_bytes;
    r.empty = r.full + 8 * S::stages;
    r.staged = r.empty + 8 * S::stages;
    r.taken = r.staged + 8;
    if (threadIdx.x == 0) {
        for (int i = 0; i < S::stages; i++) {
            barrier_init(r.full + 8 * i, 1);
            barrier_init(r.empty + 8 * i, CLUSTER * 8); /* the makers' warps of both blocks */
        }
        barrier_init(r.staged, 256);
        barrier_init(r.taken, 32 * FINISHERS);
        asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
    }
    cluster_sync();
    return r;
}

#endif

template <int WIDTH, FusedKind KIND>
__global__ void IN_CLUSTERS __launch_bounds__(THREADS, 1)
    gemm_fused_kernel(FusedArgs g, const __grid_constant__ CUtensorMap a,
                      const __grid_constant__ CUtensorMap b) {
#if HAVE_SM90A
    extern __shared__ char memory[];
    const Ring r = ring_init<WIDTH>(shared_address(memory));
    const char *staging = memory + (r.staging - shared_address(memory));
    const int role = threadIdx.x / 128;
    if (role == 0) {
        registers_down<104>();
        if (threadIdx.x >= 32) {
            finisher_run<WIDTH, KIND>(r, staging, g);
        } else if (threadIdx.x == 0) {
            copier_run<WIDTH, KIND>(r, g, &a, &b);
        }
    } else {
        registers_up<200>();
        maker_run<WIDTH, KIND>(r, g, role - 1);
    }
    __syncwarp();
    cluster_sync(); /* no block ends while the other may still write to it */
#endif
}

/* Whether the code that was loaded for this card is the one for sm_90a. */
__global__ void feature_kernel(int *has) {
    *has = HAVE_SM90A;
}

/* ---- host
 * ------------------------------------------------------------------------------------------- */

Status gemm_fused_probe(CudaBackend *b) {
    int *has, answer = 0;
    if (b->compute != 90) return STATUS_OK;
    CUDA_TRY(cudaMalloc((void **)&has, sizeof(int)), "asking for sm_90a");
    feature_kernel<<<1, 1, 0, b->stream>>>(has);
    cudaError_t code =
        cudaMemcpyAsync(&answer, has, sizeof(int), cudaMemcpyDeviceToHost, b->stream);
    if (code == cudaSuccess) code = cudaStreamSynchronize(b->stream);
    (void)cudaFree(has);
    CUDA_TRY(code, "asking for sm_90a");
    b->sm90a = answer == 1;
    return STATUS_OK;
}

typedef CUresult (*EncodeTiled)(CUtensorMap *, CUtensorMapDataType, cuuint32_t, void *,
                                const cuuint64_t *, const cuuint64_t *, const cuuint32_t *,
                                const cuuint32_t *, CUtensorMapInterleave, CUtensorMapSwizzle,
                                CUtensorMapL2promotion, CUtensorMapFloatOOBfill);

Status map_matrix(CUtensorMap *map, const void *p, int64_t rows, int64_t columns, int box_rows) {
    static EncodeTiled encode; /* the driver's function: the same for all devices */
    if (!encode) {
        void *entry = NULL;
        cudaDriverEntryPointQueryResult found;
        CUDA_TRY(cudaGetDriverEntryPointByVersion("cuTensorMapEncodeTiled", &entry, 12000,
                                                  cudaEnableDefault, &found),
                 "looking for cuTensorMapEncodeTiled");
        if (!entry) return status_set(STATUS_DEVICE, "the driver has no cuTensorMapEncodeTiled");
        encode = (EncodeTiled)entry;
    }
    const cuuint64_t size[2] = {(cuuint64_t)columns, (cuuint64_t)rows};
    const cuuint64_t pitch[1] = {(cuuint64_t)columns * sizeof(bf16)};
    const cuuint32_t box[2] = {64, (cuuint32_t)box_rows}, step[2] = {1, 1};
    const CUresult code =
        encode(map, CU_TENSOR_MAP_DATA_TYPE_BFLOAT16, 2, (void *)p, size, pitch, box, step,
               CU_TENSOR_MAP_INTERLEAVE_NONE, CU_TENSOR_MAP_SWIZZLE_128B,
               CU_TENSOR_MAP_L2_PROMOTION_L2_256B, CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE);
    if (code != CUDA_SUCCESS)
        return status_set(STATUS_DEVICE, "describing a matrix to the copy engine: error %d", code);
    return STATUS_OK;
}

template <int WIDTH, FusedKind KIND> static Status fused_launch(Device *d, const FusedCall *call) {
    typedef FusedShape<WIDTH> S;
    CUtensorMap a, b;
    TRY(map_matrix(&a, call->a, call->m, call->k, ROWS));
    if (TURNED) {
        TRY(map_matrix(&b, call->b, call->k, call->n, DEPTH / 2));
    } else {
        TRY(map_matrix(&b, call->b, call->n, call->k, WIDTH / 2));
    }
    FusedArgs g = {};
    g.m = (int)call->m, g.n = (int)call->n, g.k = (int)call->k;
    g.tiles_n = (int)ceil_div(call->n, WIDTH);
    g.tiles = (int)ceil_div(call->m, CLUSTER * ROWS) * g.tiles_n;
    g.y = (bf16 *)call->y, g.other = (bf16 *)call->other;
    g.bias = call->bias;
    const int most = backend_of(d)->sm_count / CLUSTER, clusters = g.tiles < most ? g.tiles : most;
    CUDA_TRY(cudaFuncSetAttribute(gemm_fused_kernel<WIDTH, KIND>,
                                  cudaFuncAttributeMaxDynamicSharedMemorySize, S::shared),
             "a fused product");
    gemm_fused_kernel<WIDTH, KIND>
        <<<CLUSTER * clusters, THREADS, S::shared, stream_of(d)>>>(g, a, b);
    return launched("a fused product");
}

/* Columns per tile: the width that wastes least, the widest of those. */
static int fused_width(int64_t n) {
    const int widths[3] = {256, 192, 128};
    int best = 0;
    for (int i = 1; i < 3; i++)
        if (ceil_div(n, widths[i]) * widths[i] < ceil_div(n, widths[best]) * widths[best]) best = i;
    /* a narrower tile reads more per product: it must save at least a tenth */
    const int64_t wide = ceil_div(n, 256) * 256, narrow = ceil_div(n, widths[best]) * widths[best];
    return 10 * narrow <= 9 * wide ? widths[best] : 256;
}

/* The finishers need about 13 us for a tile of 256 columns (H200): with fewer k the makers would
 * wait for them longer than separate kernels take (k = 384: 0.22 ms against 0.18; k = 768: 0.49
 * against 0.51). */
bool gemm_fused_fits(Device *d, const FusedCall *g) {
    return backend_of(d)->sm90a && g->m >= 1024 && g->n >= 128 && g->k >= 640 && g->n % 8 == 0 &&
           g->k % 8 == 0 && g->m < INT32_MAX / 2 && is_aligned(g->a, 16) && is_aligned(g->b, 16) &&
           is_aligned(g->y, 16) && is_aligned(g->other, 16) && is_aligned(g->bias, 8);
}

template <int WIDTH> static Status fused_pick(Device *d, const FusedCall *g) {
    return g->kind == FUSED_GELU ? fused_launch<WIDTH, FUSED_GELU>(d, g)
                                 : fused_launch<WIDTH, FUSED_DGELU>(d, g);
}

Status gemm_fused(Device *d, const FusedCall *g) {
    switch (fused_width(g->n)) {
    case 128:
        return fused_pick<128>(d, g);
    case 192:
        return fused_pick<192>(d, g);
    default:
        return fused_pick<256>(d, g);
    }
}
