/* Layer norm over the last dimension: a warp per row. Rows of up to 32 * PACKS packs stay in
 * registers between the mean, the variance and the result, so memory is touched once; longer or odd
 * rows are read again from cache.
 */
#include "kernels/cuda/chain.cuh"
#include "kernels/cuda/norm.cuh"

#define WARPS 8

/* Where the rows of y lie among those of x: `run` of them, then `skipped` that are none of y's; all
 * of them (skipped 0) where y has as many as x. */
typedef struct RowRuns {
    uint32_t run, skipped;
} RowRuns;

static RowRuns runs_of(Tensor y, Tensor x) {
    if (!y.data || tensor_rows(y) == tensor_rows(x)) return {1, 0};
    return {(uint32_t)y.shape[1], (uint32_t)(x.shape[1] - y.shape[1])};
}

static __device__ __forceinline__ int64_t row_in(RowRuns r, int64_t row) {
    return r.skipped ? row + (int64_t)((uint32_t)row / r.run) * r.skipped : row;
}

/* Of a slot whose y may be the first tokens of x. */
static Status runs_check(const char *op, Tensor y, Tensor x) {
    if (!y.data || tensor_rows(y) == tensor_rows(x)) return STATUS_OK;
    const bool fits = y.rank == 3 && x.rank == 3 && y.shape[0] == x.shape[0] &&
                      y.shape[1] <= x.shape[1] && tensor_rows(x) <= INT32_MAX;
    return fits ? STATUS_OK : status_set(STATUS_INTERNAL, "%s: rows of other samples", op);
}

/* ---- layer norm, forward -------------------------------------------------------------------- */

template <typename T, int PACKS>
__global__ void __launch_bounds__(32 * WARPS)
    layernorm_kernel(T *y, float *stats, const T *x, NormArgs g, int64_t rows, RowRuns runs) {
    const int V = 16 / sizeof(T), lane = threadIdx.x;
    const int64_t row = (int64_t)blockIdx.x * WARPS + threadIdx.y;
    chain_wait();
    if (row >= rows) return;
    uint4 raw[PACKS];
    const T *in = x + row_in(runs, row) * g.width;
#pragma unroll
    for (int p = 0; p < PACKS; p++) {
        const int c = (p * 32 + lane) * V;
        raw[p] = make_uint4(0, 0, 0, 0);
        if (c < g.width) raw[p] = *reinterpret_cast<const uint4 *>(in + c);
    }
    row_norm<T, PACKS>(y ? y + row * g.width : NULL, stats ? stats + 2 * row : NULL, raw, g, lane);
}

template <typename T>
__global__ void __launch_bounds__(32 * WARPS)
    layernorm_any_kernel(T *y, float *stats, const T *x, const float *w, const float *b,
                         int64_t rows, int64_t width, float eps, RowRuns runs) {
    const int64_t row = (int64_t)blockIdx.x * WARPS + threadIdx.y;
    if (row >= rows) return;
    const T *in = x + row_in(runs, row) * width;
    float sum = 0, square = 0;
    for (int64_t c = threadIdx.x; c < width; c += 32) sum += to_float(in[c]);
    const float mean = warp_sum(sum) / width;
    for (int64_t c = threadIdx.x; c < width; c += 32) {
        const float u = to_float(in[c]) - mean;
        square += u * u;
    }
    const float rstd = rsqrtf(warp_sum(square) / width + eps);
    for (int64_t c = threadIdx.x; c < width && y; c += 32)
        from_float(y + row * width + c, (to_float(in[c]) - mean) * rstd * w[c] + b[c]);
    if (stats && threadIdx.x == 0) {
        stats[2 * row] = mean;
        stats[2 * row + 1] = rstd;
    }
}

template <typename T, int PACKS>
static void layernorm_launch(Device *d, Tensor y, Tensor stats, Tensor x, const NormArgs &g) {
    const int64_t rows = tensor_rows(y.data ? y : x);
    const dim3 block(32, WARPS);
    chain_launch(d, rows <= CHAIN_ROWS, (unsigned)ceil_div(rows, WARPS), block, 0,
                 layernorm_kernel<T, PACKS>, (T *)y.data, (float *)stats.data, (const T *)x.data, g,
                 rows, runs_of(y, x));
}

template <typename T>
static void layernorm_any(Device *d, Tensor y, Tensor stats, Tensor x, Tensor w, Tensor b,
                          float eps) {
    const int64_t rows = tensor_rows(y.data ? y : x);
    const dim3 block(32, WARPS);
    layernorm_any_kernel<T><<<(unsigned)ceil_div(rows, WARPS), block, 0, stream_of(d)>>>(
        (T *)y.data, (float *)stats.data, (const T *)x.data, (const float *)w.data,
        (const float *)b.data, rows, tensor_last(x), eps, runs_of(y, x));
}

template <typename T>
static void layernorm_pick(Device *d, bool aligned, Tensor y, Tensor stats, Tensor x, Tensor w,
                           Tensor b, float eps) {
    const NormArgs g = norm_args(w, b, tensor_last(x), eps);
    const int packs = aligned ? row_packs(tensor_last(x), 16 / sizeof(T)) : 0;
    if (packs == 0) return layernorm_any<T>(d, y, stats, x, w, b, eps);
    WITH_PACKS(packs, T, PACKS, layernorm_launch<T, PACKS>(d, y, stats, x, g));
}

extern "C" Status layernorm_cuda(Device *d, Tensor y, Tensor stats, Tensor x, Tensor w, Tensor b,
                                 float eps) {
    if (tensor_count(x) == 0) return STATUS_OK;
    if (y.data && y.dtype != x.dtype) return refuse_dtype("layernorm", y.dtype);
    TRY(runs_check("layernorm", y, x));
    const bool aligned = is_aligned(x.data, 16) && is_aligned(y.data, 16) &&
                         is_aligned(w.data, 16) && is_aligned(b.data, 16) &&
                         is_aligned(stats.data, 8);
    WITH_ACT("layernorm", x.dtype, T, layernorm_pick<T>(d, aligned, y, stats, x, w, b, eps));
    return launched("layernorm");
}

/* ---- layer norm, backward ------------------------------------------------------------------- */

/* A thread's 16 bytes of dy, x and what dx adds to, as they lie in memory, and the row's
 * statistics. */
typedef struct RowPart {
    uint4 dy, x, old;
    float2 stats;
} RowPart;

typedef struct NormBack {
    Grad dx;
    float *partial; /* [block][2][width]: sums over the block's rows; NULL: not wanted */
    const void *dy, *x;
    const float *w, *stats;
    int64_t rows;
    int width;
    void *scaled; /* scale[row / per_scale] dx, or NULL */
    const float *scale;
    uint32_t magic; /* ceil(2^32 / per_scale) */
    void *y;        /* the norm's result once more, or NULL */
    const float *b; /* or NULL */
    RowRuns runs;   /* of dy, y and stats among x and dx */
} NormBack;

/* Straight from memory: the next row is under way while this one is worked on. */
template <typename T>
static __device__ __forceinline__ void row_fetch(RowPart &r, const NormBack &g, int64_t row,
                                                 int c) {
    const int64_t at = row_in(g.runs, row) * g.width + c;
    if (c < g.width) {
        r.dy = *reinterpret_cast<const uint4 *>((const T *)g.dy + row * g.width + c);
        r.x = *reinterpret_cast<const uint4 *>((const T *)g.x + at);
        if (g.dx.add) r.old = *reinterpret_cast<const uint4 *>((const T *)g.dx.t.data + at);
    }
    r.stats = *reinterpret_cast<const float2 *>(g.stats + 2 * row);
}

/* The threads of a row meet. */
static __device__ __forceinline__ void row_meet(void) {
    asm volatile("bar.sync %0, %1;" ::"r"(threadIdx.y + 1), "r"(blockDim.x) : "memory");
}

/* Sums of (a, b) over the warps of a row, the same in every thread; `shared` has 2 x 8 pairs per
 * row of threads, used in turn, so that one barrier per call is enough. */
static __device__ __forceinline__ void row_sums(float &a, float &b, float2 *shared, int turn) {
    const int warps = blockDim.x / 32;
    a = warp_sum(a);
    b = warp_sum(b);
    if (warps == 1) return;
    float2 *at = shared + (threadIdx.y * 2 + turn) * 8;
    if (threadIdx.x % 32 == 0) at[threadIdx.x / 32] = make_float2(a, b);
    row_meet();
    a = b = 0;
    for (int w = 0; w < warps; w++) {
        a += at[w].x;
        b += at[w].y;
    }
}

/* The norm's result once more, from the normalised x. */
template <typename T, int V>
static __device__ __forceinline__ void row_again(const NormBack &g, int64_t row, int c,
                                                 const float (&n)[V], const float (&w)[V]) {
    float y[V], b[V] = {};
    if (g.b) floats_load<V>(b, g.b + c);
#pragma unroll
    for (int i = 0; i < V; i++) y[i] = fmaf(n[i], w[i], b[i]);
    pack_store<T, V>((T *)g.y + row * g.width + c, y);
}

/* scale dx of a row, of dx as it was rounded. */
template <typename T, int V>
static __device__ __forceinline__ void row_scaled(const NormBack &g, int64_t row, int c,
                                                  float (&dx)[V]) {
    const float scale = g.scale[g.magic ? __umulhi((uint32_t)row, g.magic) : (uint32_t)row];
#pragma unroll
    for (int i = 0; i < V; i++) {
        T rounded;
        from_float(&rounded, dx[i]);
        dx[i] = scale * to_float(rounded);
    }
    pack_store<T, V>((T *)g.scaled + row * g.width + c, dx);
}

/* Block: threads x = columns (V each) of a row, y = rows. AGAIN: y is written, `scaled` is not. */
template <typename T, int V, bool AGAIN>
__global__ void __launch_bounds__(384, 2) layernorm_backward_kernel(NormBack g) {
    extern __shared__ float sums[]; /* [2][width] */
    __shared__ float2 shared[16 * 12];
    const int c = threadIdx.x * V, width = g.width;
    const int64_t step = (int64_t)gridDim.x * blockDim.y;
    const float inverse = 1.0f / width;
    float dw[V] = {}, db[V] = {}, wv[V] = {};
    if (c < width) floats_load<V>(wv, g.w + c);
    int64_t row = (int64_t)blockIdx.x * blockDim.y + threadIdx.y;
    RowPart now = {}, next = {};
    if (row < g.rows) row_fetch<T>(next, g, row, c);
    for (int turn = 0; row < g.rows; row += step, turn ^= 1) {
        now = next;
        if (row + step < g.rows) row_fetch<T>(next, g, row + step, c);
        const float mean = now.stats.x, rstd = now.stats.y;
        float u[V], n[V], sum_u = 0, sum_un = 0; /* u = dy w, n = the normalised x */
#pragma unroll
        for (int i = 0; i < V; i++) {
            const float dy = raw_value<T>(now.dy, i);
            n[i] = (raw_value<T>(now.x, i) - mean) * rstd;
            dw[i] += dy * n[i];
            db[i] += dy;
            u[i] = dy * wv[i];
            sum_u += u[i];
            sum_un += u[i] * n[i];
        }
        if (AGAIN && c < width) row_again<T, V>(g, row, c, n, wv);
        if (!g.dx.t.data) continue;
        row_sums(sum_u, sum_un, shared, turn);
        if (c >= width) continue;
        sum_u *= inverse;
        sum_un *= inverse;
#pragma unroll
        for (int i = 0; i < V; i++)
            u[i] = rstd * (u[i] - sum_u - n[i] * sum_un) +
                   (g.dx.add ? raw_value<T>(now.old, i) : 0.0f);
        pack_store<T, V>((T *)g.dx.t.data + row_in(g.runs, row) * width + c, u);
        if (!AGAIN && g.scaled) row_scaled<T, V>(g, row, c, u);
    }
    float *partial = g.partial;
    if (!partial) return;
    /* As often as the rows of threads that had one more (tests/gpu/named_barriers.cu). */
    if (g.dx.t.data && blockDim.x > 32 && row - threadIdx.y < g.rows) row_meet();
    for (int y = 0; y < (int)blockDim.y; y++) {
#pragma unroll
        for (int i = 0; i < V; i++) {
            if ((int)threadIdx.y != y || c >= width) break;
            sums[c + i] = y ? sums[c + i] + dw[i] : dw[i];
            sums[width + c + i] = y ? sums[width + c + i] + db[i] : db[i];
        }
        __syncthreads();
    }
    for (int i = threadIdx.y * blockDim.x + threadIdx.x; i < 2 * width;
         i += blockDim.x * blockDim.y)
        partial[(int64_t)blockIdx.x * 2 * width + i] = sums[i];
}

template <typename T>
__global__ void __launch_bounds__(32 * WARPS)
    layernorm_dx_any_kernel(Grad dx, const T *dy, const T *x, const float *w, const float *stats,
                            int64_t rows, int64_t width, RowRuns runs) {
    const int64_t row = (int64_t)blockIdx.x * WARPS + threadIdx.y;
    if (row >= rows) return;
    const int64_t from = row_in(runs, row);
    const float mean = stats[2 * row], rstd = stats[2 * row + 1];
    float sum_u = 0, sum_un = 0;
    for (int64_t c = threadIdx.x; c < width; c += 32) {
        const float u = to_float(dy[row * width + c]) * w[c];
        sum_u += u;
        sum_un += u * (to_float(x[from * width + c]) - mean) * rstd;
    }
    sum_u = warp_sum(sum_u) / width;
    sum_un = warp_sum(sum_un) / width;
    for (int64_t c = threadIdx.x; c < width; c += 32) {
        const float u = to_float(dy[row * width + c]) * w[c];
        const float n = (to_float(x[from * width + c]) - mean) * rstd;
        float out[1] = {rstd * (u - sum_u - n * sum_un)};
        pack_put<T, 1>((T *)dx.t.data + from * width + c, out, dx.add);
    }
}

template <typename T>
__global__ void __launch_bounds__(32 * WARPS)
    layernorm_again_kernel(T *y, const T *x, const float *w, const float *b, const float *stats,
                           int64_t rows, int64_t width, RowRuns runs) {
    const int64_t row = (int64_t)blockIdx.x * WARPS + threadIdx.y;
    if (row >= rows) return;
    const int64_t from = row_in(runs, row);
    const float mean = stats[2 * row], rstd = stats[2 * row + 1];
    for (int64_t c = threadIdx.x; c < width; c += 32)
        from_float(y + row * width + c,
                   fmaf((to_float(x[from * width + c]) - mean) * rstd, w[c], b ? b[c] : 0.0f));
}

/* partial[blockIdx.y][2][width] over the rows blockIdx.y, blockIdx.y + gridDim.y, ... */
template <typename T>
__global__ void __launch_bounds__(32 * WARPS)
    layernorm_dw_any_kernel(float *partial, const T *dy, const T *x, const float *stats,
                            int64_t rows, int64_t width, RowRuns runs) {
    __shared__ float sums[2][WARPS][32];
    const int64_t c = (int64_t)blockIdx.x * 32 + threadIdx.x;
    float dw = 0, db = 0;
    if (c < width) {
        for (int64_t row = (int64_t)blockIdx.y * WARPS + threadIdx.y; row < rows;
             row += (int64_t)gridDim.y * WARPS) {
            const float g = to_float(dy[row * width + c]);
            const float value = to_float(x[row_in(runs, row) * width + c]);
            dw += g * (value - stats[2 * row]) * stats[2 * row + 1];
            db += g;
        }
    }
    sums[0][threadIdx.y][threadIdx.x] = dw;
    sums[1][threadIdx.y][threadIdx.x] = db;
    __syncthreads();
    if (threadIdx.y > 1 || c >= width) return;
    float sum = 0;
    for (int warp = 0; warp < WARPS; warp++) sum += sums[threadIdx.y][warp][threadIdx.x];
    partial[((int64_t)blockIdx.y * 2 + threadIdx.y) * width + c] = sum;
}

/* Warps for a row of 16-byte parts (at most 8), rows per block. */
template <typename T> static dim3 backward_block(int64_t width) {
    const int warps = (int)ceil_div(width * (int64_t)sizeof(T), 512);
    return dim3(32 * warps, warps > 12 ? 1 : 12 / warps);
}

template <typename T>
static void layernorm_backward_fast(Device *d, unsigned grid, const NormBack &g) {
    const dim3 block = backward_block<T>(g.width);
    const size_t shared = 2 * sizeof(float) * g.width;
    if (g.y)
        layernorm_backward_kernel<T, 16 / sizeof(T), true>
            <<<grid, block, shared, stream_of(d)>>>(g);
    else
        layernorm_backward_kernel<T, 16 / sizeof(T), false>
            <<<grid, block, shared, stream_of(d)>>>(g);
}

/* Whether rows go through the kernel above. */
static bool backward_fits(Tensor x, Tensor dy, Tensor w, Tensor dx) {
    const int64_t bytes = tensor_last(x) * (int64_t)dtype_size(x.dtype);
    return bytes % 16 == 0 && bytes <= 8 * 512 && is_aligned(x.data, 16) &&
           is_aligned(dy.data, 16) && is_aligned(w.data, 16) && is_aligned(dx.data, 16);
}

static unsigned backward_grid(Device *d, int64_t rows) {
    const int64_t most = 2 * backend_of(d)->sm_count, want = ceil_div(rows, WARPS);
    return (unsigned)(want < most ? want : most);
}

template <typename T>
static void layernorm_backward_any(Device *d, unsigned parts, Grad dx, float *partial, Tensor y,
                                   Tensor dy, Tensor x, Tensor w, Tensor b, Tensor stats) {
    const int64_t rows = tensor_rows(dy), width = tensor_last(x);
    const RowRuns runs = runs_of(dy, x);
    const dim3 block(32, WARPS);
    if (dx.t.data)
        layernorm_dx_any_kernel<T><<<(unsigned)ceil_div(rows, WARPS), block, 0, stream_of(d)>>>(
            dx, (const T *)dy.data, (const T *)x.data, (const float *)w.data,
            (const float *)stats.data, rows, width, runs);
    if (partial)
        layernorm_dw_any_kernel<T>
            <<<dim3((unsigned)ceil_div(width, 32), parts), block, 0, stream_of(d)>>>(
                partial, (const T *)dy.data, (const T *)x.data, (const float *)stats.data, rows,
                width, runs);
    if (y.data) /* last: it may be dy */
        layernorm_again_kernel<T><<<(unsigned)ceil_div(rows, WARPS), block, 0, stream_of(d)>>>(
            (T *)y.data, (const T *)x.data, (const float *)w.data, (const float *)b.data,
            (const float *)stats.data, rows, width, runs);
}

/* Rows of one scale by multiplication: exact while rows * each is below 2^32; 0 stands for 1. */
static bool magic_of(int64_t rows, int64_t each, uint32_t *magic) {
    *magic = each == 1 ? 0 : (uint32_t)ceil_div((int64_t)1 << 32, each);
    return rows < (int64_t)1 << 32 && rows <= (((int64_t)1 << 32) - 1) / each;
}

static Status scale_copy(Device *d, Tensor scaled, Tensor dx, Tensor scale) {
    const int64_t batch = tensor_count(scale), each = tensor_count(dx) / batch;
    return scale_rows_cuda(d, grad_set(tensor_view2(scaled, batch, each)),
                           tensor_view2(dx, batch, each), scale);
}

extern "C" Status layernorm_backward_cuda(Device *d, Grad dx, Grad dw, Grad db, Tensor y, Tensor dy,
                                          Tensor x, Tensor w, Tensor b, Tensor stats, Tensor scaled,
                                          Tensor scale) {
    const int64_t rows = tensor_rows(dy), width = tensor_last(x);
    const bool sums = dw.t.data || db.t.data, copy = scaled.data && dx.t.data;
    if (tensor_count(x) == 0 || (!sums && !dx.t.data && !y.data)) return STATUS_OK;
    if (dy.dtype != x.dtype || (y.data && y.dtype != x.dtype))
        return refuse_dtype("layernorm_backward", dy.dtype);
    TRY(runs_check("layernorm_backward", dy, x));
    const bool fast = backward_fits(x, dy, w, dx.t) && is_aligned(stats.data, 8) &&
                      is_aligned(y.data, 16) && is_aligned(b.data, 16);
    const unsigned grid = backward_grid(d, rows);
    NormBack g = {
        dx,   NULL,      dy.data, x.data, (const float *)w.data, (const float *)stats.data,
        rows, (int)width};
    const bool at_once = copy && fast && !y.data && is_aligned(scaled.data, 16) &&
                         magic_of(rows, rows / tensor_count(scale), &g.magic);
    g.y = y.data, g.b = (const float *)b.data;
    g.runs = runs_of(dy, x);
    if (at_once) {
        g.scaled = scaled.data;
        g.scale = (const float *)scale.data;
    }
    if (sums) TRY(scratch_take(d, sizeof(float) * 2 * width * grid, (void **)&g.partial));
    WITH_ACT("layernorm_backward", x.dtype, T, if (fast) layernorm_backward_fast<T>(d, grid, g);
             else layernorm_backward_any<T>(d, grid, dx, g.partial, y, dy, x, w, b, stats));
    Status status = launched("layernorm_backward");
    if (status == STATUS_OK && sums)
        status = reduce_partials_two(d, dw, db, g.partial, g.partial + width, grid, 2 * width);
    scratch_done(d);
    if (status == STATUS_OK && copy && !at_once) status = scale_copy(d, scaled, dx.t, scale);
    return status;
}
