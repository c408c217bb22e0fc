/* Factor and inverse of slot token_basis on Hopper, from the Gram matrix.
 *
 * Blocks of a cluster share a matrix, a warp has two strips of 16 rows of it. Column after column
 * of 64: strips below the diagonal take what stands in S less the products of the columns before,
 * are multiplied by the inverse of the diagonal block and are rows of R; strips above are columns
 * of the inverse, which obey the same recurrence from zero. With Y_t the inverse of R_tt, X = R^-1'
 * and sums over the block columns k before t:
 *
 *   R_it = (S_it - sum R_ik R_tk') Y_t'
 *   X_jt = -(sum X_jk R_tk') Y_t'
 *
 * So each warp does one thing, and all read row t of R from shared memory.
 *
 * Four more warps factor the diagonal block, in every block of the cluster for itself. Meanwhile
 * the others sum the next column as far as it is known, so that only its last product is left when
 * the diagonal is done; row t + 1 of that product goes from block to block directly. Warps that
 * hand something on arrive at an mbarrier: a cluster's own barrier would cost a fence of the whole
 * card for every thread.
 *
 * S is scaled by its diagonal to SCALE^2 there, so that FP16 holds every number (parts.cuh). A
 * strip's block of S becomes its block of R or X, in the same place.
 */
#include "kernels/cuda/token_basis.cuh"
#include "kernels/cuda/token_basis_results.cuh"

#if HAVE_SM90A

static __device__ __forceinline__ Shared there(Shared at, int rank) {
    Shared remote;
    asm volatile("mapa.shared::cluster.u32 %0, %1, %2;" : "=r"(remote) : "r"(at), "r"(rank));
    return remote;
}

/* What the warp's lanes stored in the cluster's memory comes before its arrival at a barrier of all
 * blocks. */
static __device__ __forceinline__ void shared_arrive(Shared barrier, int size) {
    __syncwarp();
    if ((threadIdx.x & 31) > 0) return;
    asm volatile("fence.acq_rel.cluster;" ::: "memory");
#pragma unroll 1
    for (int rank = 0; rank < size; rank++)
        asm volatile("mbarrier.arrive.release.cluster.shared::cluster.b64 _, [%0];" ::"r"(
                         there(barrier, rank))
                     : "memory");
}

/* -C of the diagonal block into the memory of all blocks of the cluster. */
static __device__ __forceinline__ void diagonal_share(const Sums (&sum)[PAIR], const Strip &w,
                                                      int t, int size) {
    const int lane = threadIdx.x & 31, row = (w.at & 3) * STRIP + lane / 4;
    const Shared to = shared_address(space(t)->c + row * PITCH + 2 * (lane & 3));
#pragma unroll 1
    for (int rank = 0; rank < size; rank++) {
        const Shared remote = there(to, rank);
#pragma unroll
        for (int i = 0; i < 16 * PAIR; i++) {
            const float *v = sum[i / 16][i % 16 / 2] + 2 * (i & 1);
            asm volatile(
                "st.shared::cluster.v2.f32 [%0], {%1, %2};" ::"r"(
                    remote + 4 * ((STRIP * (i / 16) + 8 * (i & 1)) * PITCH + 8 * (i % 16 / 2))),
                "f"(v[0]), "f"(v[1])
                : "memory");
        }
    }
    shared_arrive(diagonal_barrier(t), size);
}

/* The strips' block of row t + 1 likewise. */
static __device__ __forceinline__ void last_share(const Parts (&v)[PAIR], const Strip &w,
                                                  int size) {
    const Shared to = shared_address(row_block(HELD) + (w.at & 3) * IMAGE);
#pragma unroll 1
    for (int rank = 0; rank < size; rank++) {
        const Shared remote = there(to, rank);
#pragma unroll
        for (int i = 0; i < 8 * PAIR; i++) {
            const Parts &p = v[i / 8];
            const uint4 o = chunk_turn(i % 8 < 4 ? p.high[i & 3] : p.low[i & 3]);
            asm volatile("st.shared::cluster.v4.b32 [%0], {%1, %2, %3, %4};" ::"r"(
                             remote + STRIP_BYTES * (i / 8) + 512 * (i % 8)),
                         "r"(o.x), "r"(o.y), "r"(o.z), "r"(o.w)
                         : "memory");
        }
    }
    shared_arrive(last_barrier(), size);
}

/* Y_t as images of B, by the owners. */
static __device__ __forceinline__ void inverse_image(int t) {
    const int lane = threadIdx.x & 31;
#pragma unroll
    for (int i = threadIdx.x / 32; i < 16; i += WARPS) {
        const int tile = i & 3, strip = i / 4;
        const float *y =
            space(t)->y + (STRIP * strip + lane / 4) * PITCH + 16 * tile + 2 * (lane & 3);
        uint4 high, low;
        parts_of(high.x, low.x, y[0], y[1]);
        parts_of(high.y, low.y, y[8 * PITCH], y[8 * PITCH + 1]);
        parts_of(high.z, low.z, y[8], y[9]);
        parts_of(high.w, low.w, y[8 * PITCH + 8], y[8 * PITCH + 9]);
        inverse_images()[strip * IMAGE + 32 * tile + lane] = chunk_turn(high);
        inverse_images()[strip * IMAGE + LOW + 32 * tile + lane] = chunk_turn(low);
    }
}

/* The strip of a diagonal block: its rows of Y_t'. */
static __device__ __forceinline__ void diagonal_parts(Parts &p, const Strip &w, int strip, int t) {
    const int lane = threadIdx.x & 31, base = ((w.at + strip) & 3) * STRIP;
    const float *y = space(t)->y + 2 * (lane & 3) * PITCH + base + lane / 4;
#pragma unroll
    for (int i = 0; i < 4; i++) {
        const float *k = y + 16 * i * PITCH;
        parts_of(p.high[i].x, p.low[i].x, k[0], k[PITCH]);
        parts_of(p.high[i].y, p.low[i].y, k[8], k[PITCH + 8]);
        parts_of(p.high[i].z, p.low[i].z, k[8 * PITCH], k[9 * PITCH]);
        parts_of(p.high[i].w, p.low[i].w, k[8 * PITCH + 8], k[9 * PITCH + 8]);
    }
}

/* v = -sum Y_t', 16 columns at a time from the last ones on: those need all parts of the sum. */
static __device__ __forceinline__ void strips_turn(Parts (&v)[PAIR], const Sums (&sum)[PAIR],
                                                   const Strip &w, int t) {
    const uint4 *y = inverse_images() + (threadIdx.x & 31);
#pragma unroll
    for (int p = 0; p < PAIR; p++)
#pragma unroll
        for (int i = 0; i < 4; i++)
            tile_parts(v[p].high[i], v[p].low[i], sum[p][2 * i], sum[p][2 * i + 1], -1.0f);
#pragma unroll
    for (int j = 3; j >= 0; j--) {
        float out[PAIR][2][4] = {};
        float(*const to[PAIR])[4] = {out[0], out[1]};
#pragma unroll
        for (int i = 0; i <= j; i++) {
            const uint4 high[PAIR] = {v[0].high[i], v[1].high[i]},
                        low[PAIR] = {v[0].low[i], v[1].low[i]};
            tiles_multiply<PAIR, 1, IMAGE>(to, high, low, y + j * IMAGE + 32 * i);
        }
        float2 left = make_float2(1.0f, 1.0f), right = left;
        if (w.block > t) { /* R has nothing below a pivot that was held */
            const float *kept = space(t)->kept + 16 * j + 2 * (threadIdx.x & 3);
            left = *(const float2 *)kept, right = *(const float2 *)(kept + 8);
        }
#pragma unroll
        for (int p = 0; p < PAIR; p++) {
            float(&a)[4] = out[p][0], (&b)[4] = out[p][1];
            a[0] *= left.x, a[1] *= left.y, a[2] *= left.x, a[3] *= left.y;
            b[0] *= right.x, b[1] *= right.y, b[2] *= right.x, b[3] *= right.y;
            tile_parts(v[p].high[j], v[p].low[j], a, b, 1.0f);
        }
    }
}

/* Column t is in memory: says one thread for all owners to all blocks. */
static __device__ __forceinline__ void column_stored(int size) {
    meet(2, OWNERS);
    if (threadIdx.x > 0) return;
    asm volatile("fence.acq_rel.gpu;" ::: "memory");
#pragma unroll 1
    for (int rank = 0; rank < size; rank++)
        asm volatile("mbarrier.arrive.release.cluster.shared::cluster.b64 _, [%0];" ::"r"(
                         there(stored_barrier(), rank))
                     : "memory");
}

/* next += the last product, of column t. */
static __device__ __forceinline__ void last_add(Sums (&next)[PAIR], const Parts (&v)[PAIR],
                                                const Strip &w, int t, bool more, int size) {
    if (more) {

        barrier_wait(last_barrier(), t & 1);
#pragma unroll
        for (int i = 0; i < 4; i++) {
            const uint4 high[PAIR] = {v[0].high[i], v[1].high[i]},
                        low[PAIR] = {v[0].low[i], v[1].low[i]};
            tiles_add(next, high, low, row_block(HELD) + 32 * i);
        }
    }
    __syncwarp();
    if ((threadIdx.x & 31) > 0) return;
#pragma unroll 1
    for (int rank = 0; rank < size; rank++) barrier_arrive_at(free_barrier(), rank);
}

/* Column t, whose sums are known: v = the strips' blocks of R or X. */
static __device__ __forceinline__ void column_turn(Parts (&v)[PAIR], const Sums (&sum)[PAIR],
                                                   const Strip &w, int t, int size) {
    meet(3, THREADS);
    inverse_image(t);
    meet(2, OWNERS);
    if (t > 0) barrier_wait(free_barrier(), (t - 1) & 1);
    if (w.block == t) {
#pragma unroll
        for (int p = 0; p < PAIR; p++) diagonal_parts(v[p], w, p, t);
    } else {
        strips_turn(v, sum, w, t);
    }
    if (w.has && w.block == t + 1) last_share(v, w, size);
}

/* ... to memory. */
static __device__ __forceinline__ void column_put(const Parts (&v)[PAIR], const FactorArgs &a,
                                                  const Strip &w, int t, int size) {
#pragma unroll
    for (int p = 0; p < PAIR; p++) {
#pragma unroll
        for (int i = 0; i < 4; i++) {
            if (!w.has) continue;
            uint4 *to = images(a, w, p) + t * IMAGE + 32 * i;
            to[0] = chunk_turn(v[p].high[i]);
            to[LOW] = chunk_turn(v[p].low[i]);
        }
    }
    column_stored(size);
    if (t + 2 < a.n / SIDE) { /* what the next sums read, while results are written */
        barrier_wait(stored_barrier(), t & 1);
        row_fetch(a, w, t + 2, 0, t + 1 < HELD ? t + 1 : HELD);
    }
    if (w.has && w.block != t) strips_put(v, a, w, t);
}

/* What the owners do: sums of column t, then the column before, then what the sums lack of it. */
static __device__ __forceinline__ void owners_run(const FactorArgs &a, const Strip &w, int size) {
    const int blocks = a.n / SIDE;
    Sums sum[PAIR] = {};
#pragma unroll 1
    for (int t = 0; t <= blocks; t++) {
        Sums next[PAIR] = {};
        Parts v[PAIR];
        if (t < blocks) strips_sum(next, a, w, t);
        if (t > 0) {
            column_turn(v, sum, w, t - 1, size);
            if (w.has && w.block == t - 1) diagonal_put(a, w, t - 1);
            last_add(next, v, w, t - 1, t < blocks, size);
        }
        if (w.has && w.block == t) diagonal_share(next, w, t, size);
        if (t > 0) column_put(v, a, w, t - 1, size);
#pragma unroll
        for (int p = 0; p < PAIR; p++)
#pragma unroll
            for (int i = 0; i < 32; i++) sum[p][i / 4][i % 4] = next[p][i / 4][i % 4];
    }
}

/* What the others do. */
static __device__ __forceinline__ void diagonal_run(int t) {
    const Shared here = diagonal_barrier(t);

    barrier_wait(here, t / 2 & 1);
    block_factor(space(t), LEAST);
    meet(3, THREADS);
}

static __device__ __forceinline__ void barriers_init(int size) {
    if (threadIdx.x > 0) return;
    barrier_init(diagonal_barrier(0), SIDE / STRIP / PAIR); /* warps that have a block's strips */
    barrier_init(diagonal_barrier(1), SIDE / STRIP / PAIR);
    barrier_init(last_barrier(), SIDE / STRIP / PAIR);
    barrier_init(stored_barrier(), size);
    barrier_init(free_barrier(), size * WARPS);
    asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
}

#endif

__global__ void __launch_bounds__(THREADS, 1) factor_kernel(const FactorArgs a) {
#if HAVE_SM90A
    extern __shared__ __align__(16) uint8_t memory[];
    const int size = cluster_size(a.n), rank = cluster_rank();
    const Strip w = strip_init(a, rank, size);
    strip_rates(a, w);
    barriers_init(size);
    cluster_sync(); /* no block's shared memory is written to before that block has begun */
    const int blocks = a.n / SIDE;
    if (threadIdx.x >= OWNERS) {
        registers_down<72>();
#pragma unroll 1
        for (int t = 0; t < blocks; t++) diagonal_run(t);
    } else {
        registers_up<216>();
        owners_run(a, w, size);
    }
    cluster_sync(); /* no block ends while another may write to its memory */
#endif
}

Status basis_factor(Device *d, BasisSizes b, bf16 *r, bf16 *inv, bf16 *rest, float *s) {
    const FactorArgs a = {r, inv, rest, (uint4 *)s, b.n};
    const int bytes = RATES_AT + (int)sizeof(float) * b.n, size = cluster_size(b.n);
    CUDA_TRY(
        cudaFuncSetAttribute(factor_kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, bytes),
        "token_basis");
    cudaLaunchAttribute attribute;
    attribute.id = cudaLaunchAttributeClusterDimension;
    attribute.val.clusterDim.x = (unsigned)size;
    attribute.val.clusterDim.y = attribute.val.clusterDim.z = 1;
    cudaLaunchConfig_t config = {};
    config.gridDim = dim3((unsigned)(b.count * size)), config.blockDim = dim3(THREADS);
    config.dynamicSmemBytes = (size_t)bytes, config.stream = stream_of(d);
    config.attrs = &attribute, config.numAttrs = 1;
    CUDA_TRY(cudaLaunchKernelEx(&config, factor_kernel, a), "token_basis");
    return launched("token_basis");
}
