/* Factor and inverse of slot token_basis on Hopper, from the Gram matrix.
 *
 * Blocks of a cluster share a matrix, a warp has a strip of 16 rows of it. Column after column of 64:
 * strips below the diagonal take what stands in S less the products of the columns before, are
 * multiplied by the inverse of the diagonal block and are rows of R; strips above are columns of the
 * inverse, which obey the same recurrence from zero (lower case t: the block column)
 *   R_it = (S_it - sum_k R_ik R_tk') Y_t',   X_jt = -(sum_k X_jk R_tk') Y_t',   X = R^-1',
 * Y_t the inverse of R_tt. So each warp does one thing, and both read row t of R from shared memory.
 * The diagonal block is factored by every block of the cluster for itself.
 *
 * S is scaled by its diagonal to SCALE^2 there, so that FP16 holds every number (parts.cuh).
 */
#include "kernels/cuda/token_basis.cuh"
#include "kernels/cuda/token_basis_block.cuh"
#include "kernels/cuda/token_basis_parts.cuh"

#define SCALE       16.0f
#define LEAST       (0.5f * TOKEN_SHIFT * SCALE * SCALE)
#define SMALLEST    (2.0f * TOKEN_LEAST * TOKEN_LEAST / TOKEN_SHIFT) /* diagonal: the same pivot */
#define WARPS       16
#define THREADS     (32 * WARPS)
#define HELD        7                /* blocks of row t in shared memory at a time */
#define STRIP_BYTES (IMAGE * 16)
#define ROW_BYTES   (HELD * 4 * STRIP_BYTES)
#define SPACE_AT    (ROW_BYTES + 4 * STRIP_BYTES)
#define RATES_AT    (SPACE_AT + (int)sizeof(BlockSpace))

typedef struct FactorArgs {
    bf16 *r, *inv, *rest;
    const float *s;
    uint4 *parts; /* [matrix][strip][block][IMAGE] */
    int n;
} FactorArgs;

static __host__ __device__ int cluster_size(int n) {
    return n <= 256 ? 1 : n <= 512 ? 2 : 4;
}

#if HAVE_SM90A

/* What a warp knows of its strip, and of the block's memory. */
typedef struct Strip {
    int at, row, block; /* strip, its first row, its block of rows */
    bool has;
    uint4 *own;    /* images, this lane's chunk */
    float *rates;  /* [n] what rows and columns of S are multiplied by */
    uint4 *shared; /* row t of R, then Y_t: images [block][strip of four] */
    uint4 *y;
    BlockSpace *space;
    int64_t matrix; /* n n elements */
} Strip;

static __device__ __forceinline__ void strip_rates(const FactorArgs &a, const Strip &w) {
    const float *s = a.s + w.matrix;
    for (int i = threadIdx.x; i < a.n; i += THREADS)
        w.rates[i] = SCALE * rsqrtf(fmaxf(s[(int64_t)i * a.n + i], SMALLEST));
}

/* sum = -S, or 0 above the diagonal. */
static __device__ __forceinline__ void strip_begin(Sums &sum, const FactorArgs &a, const Strip &w,
                                                   int t) {
    const int lane = threadIdx.x & 31, row = w.row + lane / 4, column = SIDE * t + 2 * (lane & 3);
    const float *s = a.s + w.matrix + (int64_t)row * a.n + column;
    const bool real = w.has && w.block >= t;
#pragma unroll
    for (int i = 0; i < 8; i++) {
#pragma unroll
        for (int half = 0; half < 2; half++) {
            float2 v = make_float2(0.0f, 0.0f);
            if (real) {
                v = *(const float2 *)(s + 8 * half * (int64_t)a.n + 8 * i);
                const int m = row + 8 * half, k = column + 8 * i;
                v.x *= -w.rates[m] * w.rates[k] * (m == k ? 1.0f + TOKEN_SHIFT : 1.0f);
                v.y *= -w.rates[m] * w.rates[k + 1] * (m == k + 1 ? 1.0f + TOKEN_SHIFT : 1.0f);
            }
            sum[i][2 * half] = v.x, sum[i][2 * half + 1] = v.y;
        }
    }
}

/* Blocks k0 to k0 + many - 1 of row t into shared memory. */
static __device__ __forceinline__ void row_fetch(const FactorArgs &a, const Strip &w, int t, int k0,
                                                 int many) {
    const int blocks = a.n / SIDE;
    const uint4 *from = a.parts + ((w.matrix / STRIP / SIDE) + (4 * t * blocks + k0)) * IMAGE;
    const Shared to = shared_address(w.shared);
    for (int i = threadIdx.x; i < 4 * many * IMAGE; i += THREADS) {
        const int strip = i / (many * IMAGE), rest = i % (many * IMAGE);
        const int place = (rest / IMAGE * 4 + strip) * IMAGE + rest % IMAGE;
        copy_chunk(to + 16 * place, from + (int64_t)strip * blocks * IMAGE + rest, true);
    }
    copies_commit();
    copies_wait<0>();
}

/* sum += the strip's block k times block `place` of row t, turned. */
static __device__ __forceinline__ void strip_add(Sums &sum, const Strip &w, int k, int place) {
    const uint4 *from = w.own + k * IMAGE, *b = w.shared + place * 4 * IMAGE + (threadIdx.x & 31);
    uint4 high[4], low[4];
#pragma unroll
    for (int i = 0; i < 4; i++) high[i] = from[32 * i], low[i] = from[LOW + 32 * i];
#pragma unroll
    for (int i = 0; i < 4; i++)
#pragma unroll
        for (int j = 0; j < 4; j++)
            tile_multiply(sum + 2 * j, high[i], low[i], b[j * IMAGE + 32 * i],
                          b[j * IMAGE + LOW + 32 * i]);
}

/* The columns before t. */
static __device__ __forceinline__ void strip_sum(Sums &sum, const FactorArgs &a, const Strip &w,
                                                 int t) {
    for (int k0 = 0; k0 < t; k0 += HELD) {
        const int many = t - k0 < HELD ? t - k0 : HELD;
        row_fetch(a, w, t, k0, many);
        __syncthreads();
        const int first = w.block < t ? w.block : 0;
        if (w.has)
            for (int k = first > k0 ? first : k0; k < k0 + many; k++) strip_add(sum, w, k, k - k0);
        __syncthreads();
    }
}

/* C of the diagonal block into the memory of all blocks of the cluster. */
static __device__ __forceinline__ void diagonal_share(const Sums &sum, const Strip &w, int size) {
    const int lane = threadIdx.x & 31, row = (w.at & 3) * STRIP + lane / 4;
    const Shared to = shared_address(w.space->c + row * PITCH + 2 * (lane & 3));
    for (int rank = 0; rank < size; rank++) {
        Shared there;
        asm volatile("mapa.shared::cluster.u32 %0, %1, %2;" : "=r"(there) : "r"(to), "r"(rank));
#pragma unroll
        for (int i = 0; i < 8; i++)
#pragma unroll
            for (int half = 0; half < 2; half++)
                asm volatile("st.shared::cluster.v2.f32 [%0], {%1, %2};" ::"r"(
                                 there + 4 * (8 * half * PITCH + 8 * i)),
                             "f"(-sum[i][2 * half]), "f"(-sum[i][2 * half + 1])
                             : "memory");
    }
}

/* Y_t as images of B, by all threads. */
static __device__ __forceinline__ void inverse_image(const Strip &w) {
    for (int i = threadIdx.x; i < 512; i += THREADS) {
        const int lane = i & 31, tile = i / 32 & 3, strip = i / 128;
        const float *y = w.space->y + (STRIP * strip + lane / 4) * PITCH + 16 * tile + 2 * (lane & 3);
        uint4 high, low;
        parts_of(high.x, low.x, y[0], y[1]);
        parts_of(high.y, low.y, y[8 * PITCH], y[8 * PITCH + 1]);
        parts_of(high.z, low.z, y[8], y[9]);
        parts_of(high.w, low.w, y[8 * PITCH + 8], y[8 * PITCH + 9]);
        w.y[strip * IMAGE + 32 * tile + lane] = high;
        w.y[strip * IMAGE + LOW + 32 * tile + lane] = low;
    }
}

/* The strip of a diagonal block: rows of Y_t' as an image of A, and the results. */
static __device__ __forceinline__ void diagonal_put(const FactorArgs &a, const Strip &w, int t) {
    const int lane = threadIdx.x & 31, base = (w.at & 3) * STRIP;
    const float *y = w.space->y, *c = w.space->c;
    const int j = base + lane / 4;
#pragma unroll
    for (int tile = 0; tile < 4; tile++) {
        const float *k = y + (16 * tile + 2 * (lane & 3)) * PITCH + j;
        uint4 high, low;
        parts_of(high.x, low.x, k[0], k[PITCH]);
        parts_of(high.y, low.y, k[8], k[PITCH + 8]);
        parts_of(high.z, low.z, k[8 * PITCH], k[9 * PITCH]);
        parts_of(high.w, low.w, k[8 * PITCH + 8], k[9 * PITCH + 8]);
        w.own[t * IMAGE + 32 * tile] = high;
        w.own[t * IMAGE + LOW + 32 * tile] = low;
    }
    const float *rates = w.rates + SIDE * t;
    const float right0 = rates[2 * lane], right1 = rates[2 * lane + 1];
    for (int i = base; i < base + STRIP; i++) {
        const int64_t at = w.matrix + (int64_t)(SIDE * t + i) * a.n + SIDE * t + 2 * lane;
        const float2 f = *(const float2 *)(c + i * PITCH + 2 * lane),
                     v = *(const float2 *)(y + i * PITCH + 2 * lane);
        const float back = 1.0f / rates[i], v0 = v.x * right0, v1 = v.y * right1;
        const uint32_t high = pack2(v0, v1);
        *(uint32_t *)(a.r + at) = pack2(f.x * back, f.y * back);
        *(uint32_t *)(a.inv + at) = high;
        *(uint32_t *)(a.rest + at) = pack2(v0 - low_of(high), v1 - high_of(high));
    }
}

/* sum = -sum Y_t', and its image. */
static __device__ __forceinline__ void strip_turn(Sums &sum, const Strip &w, int t) {
    Sums out = {};
    const uint4 *y = w.y + (threadIdx.x & 31);
#pragma unroll
    for (int i = 0; i < 4; i++) {
        uint4 high, low;
        tile_parts(high, low, sum, i, -1.0f);
#pragma unroll
        for (int j = i; j < 4; j++)
            tile_multiply(out + 2 * j, high, low, y[j * IMAGE + 32 * i],
                          y[j * IMAGE + LOW + 32 * i]);
    }
#pragma unroll
    for (int i = 0; i < 4; i++) {
        uint4 high, low;
        tile_parts(high, low, out, i, 1.0f);
        w.own[t * IMAGE + 32 * i] = high;
        w.own[t * IMAGE + LOW + 32 * i] = low;
    }
#pragma unroll
    for (int i = 0; i < 8; i++)
#pragma unroll
        for (int j = 0; j < 4; j++) sum[i][j] = out[i][j];
}

/* Rows of R; or columns of the inverse, turned, and zeros for what stands above the diagonal. */
static __device__ __forceinline__ void strip_put(const Sums &v, const FactorArgs &a, const Strip &w,
                                                 int t) {
    const int lane = threadIdx.x & 31, m = w.row + lane / 4, low = 2 * (lane & 3);
    const float rate[2] = {w.rates[m], w.rates[m + 8]};
    const int64_t at = w.matrix + (int64_t)m * a.n + SIDE * t + low;
    if (w.block > t) {
        const float back[2] = {1.0f / rate[0], 1.0f / rate[1]};
#pragma unroll
        for (int i = 0; i < 8; i++)
#pragma unroll
            for (int half = 0; half < 2; half++)
                *(uint32_t *)(a.r + at + 8 * half * (int64_t)a.n + 8 * i) =
                    pack2(v[i][2 * half] * back[half], v[i][2 * half + 1] * back[half]);
        return;
    }
    const int64_t over = w.matrix + (int64_t)(SIDE * t + lane / 4) * a.n + w.row + low;
#pragma unroll
    for (int i = 0; i < 8; i++) {
#pragma unroll
        for (int half = 0; half < 2; half++) {
            const float v0 = v[i][2 * half] * rate[half], v1 = v[i][2 * half + 1] * rate[half];
            const uint32_t high = pack2(v0, v1), left = pack2(v0 - low_of(high), v1 - high_of(high));
            const int64_t up = at + 8 * half * (int64_t)a.n + 8 * i;
            *(uint32_t *)(a.r + up) = 0;
            *(uint32_t *)(a.inv + up) = 0;
            *(uint32_t *)(a.inv + over + 8 * i * (int64_t)a.n + 8 * half) = turned(high);
            *(uint32_t *)(a.rest + over + 8 * i * (int64_t)a.n + 8 * half) = turned(left);
        }
    }
}

static __device__ __forceinline__ Strip strip_init(const FactorArgs &a, uint8_t *memory, int rank,
                                                   int size) {
    const int blocks = a.n / SIDE, g = blockIdx.x / size;
    Strip w;
    w.at = threadIdx.x / 32 * size + rank;
    w.has = w.at < a.n / STRIP;
    w.row = w.at * STRIP, w.block = w.at / 4;
    w.matrix = (int64_t)g * a.n * a.n;
    w.own = a.parts + ((int64_t)g * (a.n / STRIP) + w.at) * blocks * IMAGE + (threadIdx.x & 31);
    w.shared = (uint4 *)memory;
    w.y = (uint4 *)(memory + ROW_BYTES);
    w.space = (BlockSpace *)(memory + SPACE_AT);
    w.rates = (float *)(memory + RATES_AT);
    return w;
}

#endif

__global__ void __launch_bounds__(THREADS, 1) factor_kernel(const FactorArgs a) {
#if HAVE_SM90A
    extern __shared__ __align__(16) uint8_t memory[];
    const int size = cluster_size(a.n), rank = size > 1 ? cluster_rank() : 0;
    const Strip w = strip_init(a, memory, rank, size);
    strip_rates(a, w);
    cluster_sync();
    for (int t = 0; t < a.n / SIDE; t++) {
        Sums sum;
        strip_begin(sum, a, w, t);
        strip_sum(sum, a, w, t);
        const bool diagonal = w.has && w.block == t;
        if (diagonal) diagonal_share(sum, w, size);
        cluster_sync();
        if (threadIdx.x < WORKERS) block_factor(w.space, LEAST);
        __syncthreads();
        inverse_image(w);
        if (diagonal) diagonal_put(a, w, t);
        __syncthreads();
        if (w.has && !diagonal) {
            strip_turn(sum, w, t);
            strip_put(sum, a, w, t);
        }
        cluster_sync();
    }
#endif
}

size_t basis_parts_bytes(BasisSizes b) {
    return (size_t)b.count * (size_t)b.n * (size_t)b.n * 4;
}

Status basis_factor(Device *d, BasisSizes b, bf16 *r, bf16 *inv, bf16 *rest, const float *s,
                    void *parts) {
    const FactorArgs a = {r, inv, rest, s, (uint4 *)parts, b.n};
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
