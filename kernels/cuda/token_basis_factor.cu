/* Factor and inverse of slot token_basis on Hopper, from the Gram matrix.
 *
 * Blocks of a cluster share a matrix, a warp has a strip of 16 rows of it. Column after column of
 * 64: strips below the diagonal take what stands in S less the products of the columns before, are
 * multiplied by the inverse of the diagonal block and are rows of R; strips above are columns of
 * the inverse, which obey the same recurrence from zero (t: the block column) R_it = (S_it - sum_k
 * R_ik R_tk') Y_t',   X_jt = -(sum_k X_jk R_tk') Y_t',   X = R^-1', Y_t the inverse of R_tt. So
 * each warp does one thing, and all read row t of R from shared memory.
 *
 * Four more warps factor the diagonal block, in every block of the cluster for itself. Meanwhile
 * the others sum the next column as far as it is known, so that only its last product is left when
 * the diagonal is done; row t + 1 of that product goes from block to block directly.
 *
 * S is scaled by its diagonal to SCALE^2 there, so that FP16 holds every number (parts.cuh). A
 * strip's block of S becomes its block of R or X, in the same place.
 */
#include "kernels/cuda/token_basis.cuh"
#include "kernels/cuda/token_basis_block.cuh"
#include "kernels/cuda/token_basis_parts.cuh"

#define SCALE       16.0f
#define LEAST       (0.5f * TOKEN_SHIFT * SCALE * SCALE)
#define SMALLEST    (2.0f * TOKEN_LEAST * TOKEN_LEAST / TOKEN_SHIFT) /* diagonal: the same pivot */
#define WARPS       16
#define OWNERS      (32 * WARPS) /* threads that have strips */
#define THREADS     (OWNERS + WORKERS)
#define HELD        6 /* known blocks of row t in shared memory at a time; one more: the last */
#define STRIP_BYTES (IMAGE * 16)
#define ROW_BYTES   ((HELD + 1) * 4 * STRIP_BYTES)
#define SPACE_AT    (ROW_BYTES + 4 * STRIP_BYTES)
#define RATES_AT    (SPACE_AT + (int)sizeof(BlockSpace))

typedef struct FactorArgs {
    bf16 *r, *inv, *rest;
    uint4 *s; /* [matrix][strip][block][IMAGE]: S, then parts */
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
    uint4 *all, *own; /* images: of the matrix; of the strip, this lane's chunk */
    float *rates;     /* [n] what rows and columns of S are multiplied by */
    uint4 *shared;    /* row t of R, then Y_t: images [block][strip of four] */
    uint4 *y;
    BlockSpace *space;
    int64_t matrix; /* n n elements */
} Strip;

/* A strip's block as an operand. */
typedef struct Parts {
    uint4 high[4], low[4];
} Parts;

/* Element (i, i) of S lies in the fragment of one lane. */
static __device__ __forceinline__ void strip_rates(const FactorArgs &a, const Strip &w) {
    const float *s = (const float *)w.all;
    for (int i = threadIdx.x; i < a.n; i += THREADS) {
        const int64_t image = (int64_t)(i / STRIP) * (a.n / SIDE) + i / SIDE;
        const int column = i % SIDE, lane = 4 * (i % 8) + column % 8 / 2;
        const int at = (column / 8 * 32 + lane) * 4 + i % STRIP / 8 * 2 + column % 2;
        w.rates[i] = SCALE * rsqrtf(fmaxf(s[image * IMAGE * 4 + at], SMALLEST));
    }
}

/* sum = -S, or 0 above the diagonal. */
static __device__ __forceinline__ void strip_begin(Sums &sum, const Strip &w, int t) {
    const int lane = threadIdx.x & 31, row = w.row + lane / 4, column = SIDE * t + 2 * (lane & 3);
    const float4 *s = (const float4 *)w.own + t * IMAGE;
    const bool real = w.block >= t;
    float4 v[8];
#pragma unroll
    for (int i = 0; i < 8; i++) v[i] = real ? s[32 * i] : make_float4(0.0f, 0.0f, 0.0f, 0.0f);
    const float up = -w.rates[row], down = -w.rates[row + 8];
#pragma unroll
    for (int i = 0; i < 8; i++) {
        const int k = column + 8 * i;
        const float2 rate = *(const float2 *)(w.rates + k);
        sum[i][0] = v[i].x * up * rate.x * (row == k ? 1.0f + TOKEN_SHIFT : 1.0f);
        sum[i][1] = v[i].y * up * rate.y * (row == k + 1 ? 1.0f + TOKEN_SHIFT : 1.0f);
        sum[i][2] = v[i].z * down * rate.x * (row + 8 == k ? 1.0f + TOKEN_SHIFT : 1.0f);
        sum[i][3] = v[i].w * down * rate.y * (row + 8 == k + 1 ? 1.0f + TOKEN_SHIFT : 1.0f);
    }
}

/* Blocks k0 to k0 + many - 1 of row t into shared memory, by the owners. */
static __device__ __forceinline__ void row_fetch(const FactorArgs &a, const Strip &w, int t, int k0,
                                                 int many) {
    const int blocks = a.n / SIDE;
    const uint4 *from = w.all + (4 * t * blocks + k0) * IMAGE;
    const Shared to = shared_address(w.shared);
    const int strip = threadIdx.x / 128, first = threadIdx.x % 128; /* 128 threads a strip */
    for (int i = first; i < many * IMAGE; i += OWNERS / 4)
        copy_chunk(to + 16 * ((i / IMAGE * 4 + strip) * IMAGE + i % IMAGE),
                   from + (int64_t)strip * blocks * IMAGE + i, true);
    copies_commit();
    copies_wait<0>();
}

/* sum += a block of the strip times block `place` of row t, turned. */
static __device__ __forceinline__ void tile_add(Sums &sum, const uint4 &high, const uint4 &low,
                                                const uint4 *b) {
#pragma unroll
    for (int j = 0; j < 4; j++)
        tile_multiply(sum + 2 * j, high, low, b[j * IMAGE], b[j * IMAGE + LOW]);
}
static __device__ __forceinline__ const uint4 *row_block(const Strip &w, int place) {
    return w.shared + place * 4 * IMAGE + (threadIdx.x & 31);
}
static __device__ __forceinline__ void strip_add(Sums &sum, const Strip &w, int k, int place) {
    const uint4 *from = w.own + k * IMAGE, *b = row_block(w, place);
#pragma unroll
    for (int i = 0; i < 4; i++) tile_add(sum, from[32 * i], from[LOW + 32 * i], b + 32 * i);
}

/* Column t as far as columns before t - 1 go. */
static __device__ __forceinline__ void strip_sum(Sums &sum, const FactorArgs &a, const Strip &w,
                                                 int t) {
    const int first = w.block < t ? w.block : 0;
    if (w.has) strip_begin(sum, w, t);
    for (int k0 = 0; k0 < t - 1; k0 += HELD) {
        const int many = t - 1 - k0 < HELD ? t - 1 - k0 : HELD;
        if (k0 > 0) meet(2, OWNERS);
        row_fetch(a, w, t, k0, many);
        meet(2, OWNERS);
        if (w.has)
            for (int k = first > k0 ? first : k0; k < k0 + many; k++) strip_add(sum, w, k, k - k0);
    }
}

static __device__ __forceinline__ Shared there(Shared at, int rank) {
    Shared remote;
    asm volatile("mapa.shared::cluster.u32 %0, %1, %2;" : "=r"(remote) : "r"(at), "r"(rank));
    return remote;
}

/* C of the diagonal block into the memory of all blocks of the cluster. */
static __device__ __forceinline__ void diagonal_share(const Sums &sum, const Strip &w, int size) {
    const int lane = threadIdx.x & 31, row = (w.at & 3) * STRIP + lane / 4;
    const Shared to = shared_address(w.space->c + row * PITCH + 2 * (lane & 3));
    for (int rank = 0; rank < size; rank++) {
        const Shared remote = there(to, rank);
#pragma unroll
        for (int i = 0; i < 8; i++)
#pragma unroll
            for (int half = 0; half < 2; half++)
                asm volatile("st.shared::cluster.v2.f32 [%0], {%1, %2};" ::"r"(
                                 remote + 4 * (8 * half * PITCH + 8 * i)),
                             "f"(-sum[i][2 * half]), "f"(-sum[i][2 * half + 1])
                             : "memory");
    }
}

/* The strip's block of row t + 1 likewise. */
static __device__ __forceinline__ void last_share(const Parts &p, const Strip &w, int size) {
    const Shared to = shared_address(row_block(w, HELD) + (w.at & 3) * IMAGE);
    for (int rank = 0; rank < size; rank++) {
        const Shared remote = there(to, rank);
#pragma unroll
        for (int i = 0; i < 8; i++) {
            const uint4 v = i < 4 ? p.high[i & 3] : p.low[i & 3];
            asm volatile(
                "st.shared::cluster.v4.b32 [%0], {%1, %2, %3, %4};" ::"r"(remote + 512 * i),
                "r"(v.x), "r"(v.y), "r"(v.z), "r"(v.w)
                : "memory");
        }
    }
}

/* Y_t as images of B, by the owners. */
static __device__ __forceinline__ void inverse_image(const Strip &w) {
    const int lane = threadIdx.x & 31, tile = threadIdx.x / 32 & 3, strip = threadIdx.x / 128;
    const float *y = w.space->y + (STRIP * strip + lane / 4) * PITCH + 16 * tile + 2 * (lane & 3);
    uint4 high, low;
    parts_of(high.x, low.x, y[0], y[1]);
    parts_of(high.y, low.y, y[8 * PITCH], y[8 * PITCH + 1]);
    parts_of(high.z, low.z, y[8], y[9]);
    parts_of(high.w, low.w, y[8 * PITCH + 8], y[8 * PITCH + 9]);
    w.y[strip * IMAGE + 32 * tile + lane] = high;
    w.y[strip * IMAGE + LOW + 32 * tile + lane] = low;
}

/* The strip of a diagonal block: its rows of Y_t', and the results. */
static __device__ __forceinline__ void diagonal_put(Parts &p, const FactorArgs &a, const Strip &w,
                                                    int t) {
    const int lane = threadIdx.x & 31, base = (w.at & 3) * STRIP;
    const float *y = w.space->y, *c = w.space->c;
#pragma unroll
    for (int i = 0; i < 4; i++) {
        const float *k = y + (16 * i + 2 * (lane & 3)) * PITCH + base + lane / 4;
        parts_of(p.high[i].x, p.low[i].x, k[0], k[PITCH]);
        parts_of(p.high[i].y, p.low[i].y, k[8], k[PITCH + 8]);
        parts_of(p.high[i].z, p.low[i].z, k[8 * PITCH], k[9 * PITCH]);
        parts_of(p.high[i].w, p.low[i].w, k[8 * PITCH + 8], k[9 * PITCH + 8]);
    }
    const float *rates = w.rates + SIDE * t;
    const float2 right = *(const float2 *)(rates + 2 * lane);
    for (int i = base; i < base + STRIP; i++) {
        const int64_t at = w.matrix + (int64_t)(SIDE * t + i) * a.n + SIDE * t + 2 * lane;
        const float2 f = *(const float2 *)(c + i * PITCH + 2 * lane),
                     v = *(const float2 *)(y + i * PITCH + 2 * lane);
        const float back = 1.0f / rates[i], v0 = v.x * right.x, v1 = v.y * right.y;
        const uint32_t high = pack2(v0, v1);
        *(uint32_t *)(a.r + at) = pack2(f.x * back, f.y * back);
        *(uint32_t *)(a.inv + at) = high;
        *(uint32_t *)(a.rest + at) = pack2(v0 - low_of(high), v1 - high_of(high));
    }
}

/* p = -sum Y_t', 16 columns at a time from the last ones on: those need all parts of the sum. */
static __device__ __forceinline__ void strip_turn(Parts &p, const Sums &sum, const Strip &w,
                                                  int t) {
    const uint4 *y = w.y + (threadIdx.x & 31);
#pragma unroll
    for (int i = 0; i < 4; i++) tile_parts(p.high[i], p.low[i], sum[2 * i], sum[2 * i + 1], -1.0f);
#pragma unroll
    for (int j = 3; j >= 0; j--) {
        float out[2][4] = {};
#pragma unroll
        for (int i = 0; i <= j; i++)
            tile_multiply(out, p.high[i], p.low[i], y[j * IMAGE + 32 * i],
                          y[j * IMAGE + LOW + 32 * i]);
        if (w.block > t) { /* R has nothing below a pivot that was held */
            const float *kept = w.space->kept + 16 * j + 2 * (threadIdx.x & 3);
#pragma unroll
            for (int h = 0; h < 8; h++) out[h / 4][h % 4] *= kept[8 * (h / 4) + (h & 1)];
        }
        tile_parts(p.high[j], p.low[j], out[0], out[1], 1.0f);
    }
}

/* rate x two values. */
static __device__ __forceinline__ float2 whole(uint32_t high, uint32_t low, float rate) {
    const float2 h = __half22float2(*reinterpret_cast<const __half2 *>(&high)),
                 l = __half22float2(*reinterpret_cast<const __half2 *>(&low));
    return make_float2((h.x + l.x) * rate, (h.y + l.y) * rate);
}

/* Rows of R; or columns of the inverse, turned, and zeros for what stands above the diagonal: two
 * values of row m in columns k and k + 1. */
static __device__ __forceinline__ void pair_put(const FactorArgs &a, const Strip &w, int t,
                                                float2 v, int m, int k) {
    const int64_t n = a.n, at = w.matrix + (w.row + m) * n + SIDE * t + k;
    const int r = (threadIdx.x & 31) / 4, q = 2 * (threadIdx.x & 3);
    const uint32_t high = pack2(v.x, v.y);
    if (w.block > t) {
        *(uint32_t *)(a.r + at + r * n + q) = high;
        return;
    }
    const uint32_t left = pack2(v.x - low_of(high), v.y - high_of(high));
    const int64_t over = w.matrix + (SIDE * t + k + r) * n + w.row + m + q;
    *(uint32_t *)(a.r + at + r * n + q) = 0;
    *(uint32_t *)(a.inv + at + r * n + q) = 0;
    *(uint32_t *)(a.inv + over) = turned(high);
    *(uint32_t *)(a.rest + over) = turned(left);
}

static __device__ __forceinline__ void strip_put(const Parts &p, const FactorArgs &a,
                                                 const Strip &w, int t) {
    const int m = w.row + (threadIdx.x & 31) / 4;
    float up = w.rates[m], down = w.rates[m + 8];
    if (w.block > t) up = 1.0f / up, down = 1.0f / down;
#pragma unroll
    for (int i = 0; i < 4; i++) {
        pair_put(a, w, t, whole(p.high[i].x, p.low[i].x, up), 0, 16 * i);
        pair_put(a, w, t, whole(p.high[i].y, p.low[i].y, down), 8, 16 * i);
        pair_put(a, w, t, whole(p.high[i].z, p.low[i].z, up), 0, 16 * i + 8);
        pair_put(a, w, t, whole(p.high[i].w, p.low[i].w, down), 8, 16 * i + 8);
    }
}

static __device__ __forceinline__ Strip strip_init(const FactorArgs &a, uint8_t *memory, int rank,
                                                   int size) {
    const int blocks = a.n / SIDE, g = blockIdx.x / size;
    Strip w;
    w.at = threadIdx.x / 32 * size + rank;
    w.has = threadIdx.x < OWNERS && w.at < a.n / STRIP;
    w.row = w.at * STRIP, w.block = w.at / 4;
    w.matrix = (int64_t)g * a.n * a.n;
    w.all = a.s + (int64_t)g * (a.n / STRIP) * blocks * IMAGE;
    w.own = w.all + w.at * blocks * IMAGE + (threadIdx.x & 31);
    w.shared = (uint4 *)memory;
    w.y = (uint4 *)(memory + ROW_BYTES);
    w.space = (BlockSpace *)(memory + SPACE_AT);
    w.rates = (float *)(memory + RATES_AT);
    return w;
}

/* What the owners do in column t, whose sums are known: their blocks of R and X, and the sums of
 * column t + 1. */
static __device__ __forceinline__ void column_run(Sums &sum, const FactorArgs &a, const Strip &w,
                                                  int t, int size) {
    const bool more = t + 1 < a.n / SIDE, diagonal = w.has && w.block == t;
    Sums next = {};
    Parts p;
    if (diagonal) diagonal_share(sum, w, size);
    cluster_sync();
    if (more) strip_sum(next, a, w, t + 1);
    meet(3, THREADS);
    inverse_image(w);
    meet(2, OWNERS);
    if (diagonal)
        diagonal_put(p, a, w, t);
    else
        strip_turn(p, sum, w, t);
    if (w.has && w.block == t + 1) last_share(p, w, size);
    cluster_sync();
    if (!w.has) return;
#pragma unroll
    for (int i = 0; i < 4; i++) {
        if (more) tile_add(next, p.high[i], p.low[i], row_block(w, HELD) + 32 * i);
        w.own[t * IMAGE + 32 * i] = p.high[i];
        w.own[t * IMAGE + LOW + 32 * i] = p.low[i];
    }
    if (!diagonal) strip_put(p, a, w, t);
#pragma unroll
    for (int i = 0; i < 8; i++)
#pragma unroll
        for (int j = 0; j < 4; j++) sum[i][j] = next[i][j];
}

/* What the others do: the same barriers. */
static __device__ __forceinline__ void diagonal_run(const Strip &w) {
    cluster_sync();
    block_factor(w.space, LEAST);
    meet(3, THREADS);
    cluster_sync();
}

#endif

__global__ void __launch_bounds__(THREADS, 1) factor_kernel(const FactorArgs a) {
#if HAVE_SM90A
    extern __shared__ __align__(16) uint8_t memory[];
    const int size = cluster_size(a.n), rank = size > 1 ? cluster_rank() : 0;
    const Strip w = strip_init(a, memory, rank, size);
    strip_rates(a, w);
    __syncthreads();
    const int blocks = a.n / SIDE;
    if (threadIdx.x >= OWNERS) {
        cluster_sync();
#pragma unroll 1
        for (int t = 0; t < blocks; t++) diagonal_run(w);
        return;
    }
    Sums sum = {};
    if (w.has) strip_begin(sum, w, 0);
    cluster_sync(); /* no block's shared memory is written to before that block has begun */
#pragma unroll 1
    for (int t = 0; t < blocks; t++) column_run(sum, a, w, t, size);
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
