/* Batch norm over rows: a thread keeps its columns and walks down rows. Sums over rows are F32
 * within a thread (some dozens of rows), double across blocks, in a fixed order.
 */
#include "kernels/cuda/common.cuh"

#define THREADS 256
#define JOIN_Y  32

/* Threads x = packs of V columns, y = rows. */
typedef struct Walk {
    dim3 block, grid;
    int packs; /* of a row */
} Walk;

typedef struct NormBatch {
    int64_t rows;
    int width;
    const float *mean, *rstd, *w, *b;
    bool relu;
} NormBatch;

static Walk walk_of(Device *d, int64_t rows, int64_t width, int v) {
    Walk k;
    k.packs = (int)(width / v);
    const int x = k.packs < 128 ? k.packs : 128, y = THREADS / x;
    const int64_t across = ceil_div(k.packs, x);
    const int64_t most = ceil_div(6 * backend_of(d)->sm_count, across);
    const int64_t want = ceil_div(rows, 8 * (int64_t)y);
    k.block = dim3((unsigned)x, (unsigned)y);
    k.grid = dim3((unsigned)(want < most ? want : most), (unsigned)across);
    return k;
}

/* partial[blockIdx.x][2][width] = sums of a block's threads over its rows of threads. */
template <int V>
static __device__ __forceinline__ void block_sums(float *partial, float (&a)[V], float (&b)[V],
                                                  int width) {
    extern __shared__ float shared[]; /* [y][2][x * V] */
    const int line = blockDim.x * V;
#pragma unroll
    for (int i = 0; i < V; i++) {
        shared[threadIdx.y * 2 * line + threadIdx.x * V + i] = a[i];
        shared[(threadIdx.y * 2 + 1) * line + threadIdx.x * V + i] = b[i];
    }
    __syncthreads();
    for (int j = threadIdx.y * blockDim.x + threadIdx.x; j < 2 * line;
         j += blockDim.x * blockDim.y) {
        float sum = 0;
        for (int y = 0; y < (int)blockDim.y; y++) sum += shared[y * 2 * line + j];
        const int c = blockIdx.y * line + j % line;
        if (c < width) partial[((int64_t)blockIdx.x * 2 + j / line) * width + c] = sum;
    }
}

/* Sums of x - x[0] and of its square. */
template <typename T, int V>
__global__ void __launch_bounds__(THREADS)
    moments_kernel(float *partial, const T *x, int64_t rows, int width) {
    const int c = (blockIdx.y * blockDim.x + threadIdx.x) * V;
    float sum[V] = {}, square[V] = {}, shift[V], v[V];
    if (c < width) {
        pack_load<T, V>(shift, x + c);
        for (int64_t r = (int64_t)blockIdx.x * blockDim.y + threadIdx.y; r < rows;
             r += (int64_t)gridDim.x * blockDim.y) {
            pack_load<T, V>(v, x + r * width + c);
#pragma unroll
            for (int i = 0; i < V; i++) {
                const float u = v[i] - shift[i];
                sum[i] += u;
                square[i] += u * u;
            }
        }
    }
    block_sums<V>(partial, sum, square, width);
}

/* The two sums of column c over all parts, in thread y = 0. Block: 32 columns by JOIN_Y. */
static __device__ __forceinline__ void join_parts(double &a, double &b, const float *partial,
                                                  int parts, int width, int c) {
    __shared__ double sums[2][JOIN_Y][32];
    a = b = 0;
    if (c < width)
        for (int p = threadIdx.y; p < parts; p += JOIN_Y) {
            a += partial[(int64_t)p * 2 * width + c];
            b += partial[((int64_t)p * 2 + 1) * width + c];
        }
    sums[0][threadIdx.y][threadIdx.x] = a;
    sums[1][threadIdx.y][threadIdx.x] = b;
    __syncthreads();
    a = b = 0;
    if (threadIdx.y > 0) return;
    for (int y = 0; y < JOIN_Y; y++) {
        a += sums[0][y][threadIdx.x];
        b += sums[1][y][threadIdx.x];
    }
}

template <typename T>
__global__ void __launch_bounds__(32 * JOIN_Y)
    join_moments_kernel(float *stats, float *seen_mean, float *seen_var, const float *partial,
                        const T *x, int parts, int64_t rows, int width, float eps, float momentum) {
    const int c = blockIdx.x * 32 + threadIdx.x;
    double sum, square;
    join_parts(sum, square, partial, parts, width, c);
    if (threadIdx.y > 0 || c >= width) return;
    const double count = (double)rows, offset = sum / count;
    const double var = fmax(square / count - offset * offset, 0.0);
    const double mean = (double)to_float(x[c]) + offset;
    if (!isfinite(mean) || !isfinite(square)) {
        stats[c] = stats[width + c] = __int_as_float(0x7fc00000);
        return;
    }
    stats[c] = (float)mean;
    stats[width + c] = (float)(1.0 / sqrt(var + (double)eps));
    const double unbiased = rows > 1 ? var * count / (count - 1.0) : var;
    const double keep = 1.0 - (double)momentum;
    seen_mean[c] = (float)(keep * seen_mean[c] + (double)momentum * mean);
    seen_var[c] = (float)(keep * seen_var[c] + (double)momentum * unbiased);
}

__global__ void __launch_bounds__(THREADS)
    seen_moments_kernel(float *stats, const float *mean, const float *var, int width, float eps) {
    const int c = blockIdx.x * THREADS + threadIdx.x;
    if (c >= width) return;
    stats[c] = mean[c];
    stats[width + c] = 1.0f / sqrtf(var[c] + eps);
}

/* A thread's columns of the four vectors. */
template <int V> struct Columns { float mean[V], gain[V], rstd[V], b[V]; };

template <int V>
static __device__ __forceinline__ void columns_load(Columns<V> &k, const NormBatch &g, int c) {
#pragma unroll
    for (int i = 0; i < V; i++) {
        k.mean[i] = g.mean[c + i];
        k.rstd[i] = g.rstd[c + i];
        k.gain[i] = k.rstd[i] * g.w[c + i];
        k.b[i] = g.b[c + i];
    }
}

template <typename T, int V>
__global__ void __launch_bounds__(THREADS) batchnorm_kernel(T *y, const T *x, NormBatch g) {
    const int c = (blockIdx.y * blockDim.x + threadIdx.x) * V;
    if (c >= g.width) return;
    Columns<V> k;
    columns_load<V>(k, g, c);
    for (int64_t r = (int64_t)blockIdx.x * blockDim.y + threadIdx.y; r < g.rows;
         r += (int64_t)gridDim.x * blockDim.y) {
        float v[V];
        pack_load<T, V>(v, x + r * g.width + c);
#pragma unroll
        for (int i = 0; i < V; i++) {
            v[i] = fmaf(v[i] - k.mean[i], k.gain[i], k.b[i]);
            if (g.relu && v[i] <= 0) v[i] = 0;
        }
        pack_store<T, V>(y + r * g.width + c, v);
    }
}

/* e and n of the kernel's contract. */
template <typename T, int V>
static __device__ __forceinline__ void slopes(float (&e)[V], float (&n)[V], const T *dy, const T *x,
                                              int64_t at, const Columns<V> &k, bool relu) {
    pack_load<T, V>(e, dy + at);
    pack_load<T, V>(n, x + at);
#pragma unroll
    for (int i = 0; i < V; i++) {
        const float u = n[i] - k.mean[i];
        if (relu && fmaf(u, k.gain[i], k.b[i]) <= 0) e[i] = 0;
        n[i] = u * k.rstd[i];
    }
}

template <typename T, int V>
__global__ void __launch_bounds__(THREADS)
    slope_sums_kernel(float *partial, const T *dy, const T *x, NormBatch g) {
    const int c = (blockIdx.y * blockDim.x + threadIdx.x) * V;
    float db[V] = {}, dw[V] = {};
    if (c < g.width) {
        Columns<V> k;
        columns_load<V>(k, g, c);
        for (int64_t r = (int64_t)blockIdx.x * blockDim.y + threadIdx.y; r < g.rows;
             r += (int64_t)gridDim.x * blockDim.y) {
            float e[V], n[V];
            slopes<T, V>(e, n, dy, x, r * g.width + c, k, g.relu);
#pragma unroll
            for (int i = 0; i < V; i++) {
                db[i] += e[i];
                dw[i] += e[i] * n[i];
            }
        }
    }
    block_sums<V>(partial, db, dw, g.width);
}

/* means[2][width] = what dx subtracts. */
__global__ void __launch_bounds__(32 * JOIN_Y)
    join_slopes_kernel(Grad dw, Grad db, float *means, const float *partial, int parts,
                       int64_t rows, int width, bool training) {
    const int c = blockIdx.x * 32 + threadIdx.x;
    double e, en;
    join_parts(e, en, partial, parts, width, c);
    if (threadIdx.y > 0 || c >= width) return;
    float *w = (float *)dw.t.data, *b = (float *)db.t.data;
    if (b) b[c] = db.add ? b[c] + (float)e : (float)e;
    if (w) w[c] = dw.add ? w[c] + (float)en : (float)en;
    means[c] = training ? (float)(e / (double)rows) : 0;
    means[width + c] = training ? (float)(en / (double)rows) : 0;
}

template <typename T, int V>
__global__ void __launch_bounds__(THREADS)
    batchnorm_dx_kernel(Grad dx, const T *dy, const T *x, const float *means, NormBatch g) {
    const int c = (blockIdx.y * blockDim.x + threadIdx.x) * V;
    if (c >= g.width) return;
    Columns<V> k;
    float e_mean[V], en_mean[V];
    columns_load<V>(k, g, c);
#pragma unroll
    for (int i = 0; i < V; i++) {
        e_mean[i] = means[c + i];
        en_mean[i] = means[g.width + c + i];
    }
    for (int64_t r = (int64_t)blockIdx.x * blockDim.y + threadIdx.y; r < g.rows;
         r += (int64_t)gridDim.x * blockDim.y) {
        float e[V], n[V];
        slopes<T, V>(e, n, dy, x, r * g.width + c, k, g.relu);
#pragma unroll
        for (int i = 0; i < V; i++) e[i] = k.gain[i] * (e[i] - e_mean[i] - n[i] * en_mean[i]);
        pack_put<T, V>((T *)dx.t.data + r * g.width + c, e, dx.add);
    }
}

/* ---- calls ---------------------------------------------------------------------------------- */

static NormBatch norm_batch(Tensor x, const float *stats, Tensor w, Tensor b, bool relu) {
    const int64_t width = tensor_last(x);
    return {tensor_rows(x),        (int)width, stats, stats + width, (const float *)w.data,
            (const float *)b.data, relu};
}

static size_t sums_bytes(const Walk &k, int v) {
    return sizeof(float) * 2 * k.block.x * k.block.y * v;
}

template <typename T, int V>
static Status forward(Device *d, Tensor y, float *stats, float *mean, float *var, Tensor x,
                      Tensor w, Tensor b, float eps, float momentum, bool relu, bool training) {
    const int64_t rows = tensor_rows(x), width = tensor_last(x);
    const Walk k = walk_of(d, rows, width, V);
    if (training) {
        float *partial;
        TRY(scratch_take(d, sizeof(float) * 2 * width * k.grid.x, (void **)&partial));
        moments_kernel<T, V><<<k.grid, k.block, sums_bytes(k, V), stream_of(d)>>>(
            partial, (const T *)x.data, rows, (int)width);
        join_moments_kernel<T>
            <<<(unsigned)ceil_div(width, 32), dim3(32, JOIN_Y), 0, stream_of(d)>>>(
                stats, mean, var, partial, (const T *)x.data, (int)k.grid.x, rows, (int)width, eps,
                momentum);
    } else {
        seen_moments_kernel<<<(unsigned)ceil_div(width, THREADS), THREADS, 0, stream_of(d)>>>(
            stats, mean, var, (int)width, eps);
    }
    batchnorm_kernel<T, V><<<k.grid, k.block, 0, stream_of(d)>>>((T *)y.data, (const T *)x.data,
                                                                 norm_batch(x, stats, w, b, relu));
    return launched("batchnorm");
}

template <typename T> static bool in_packs(Tensor x, const void *y, const void *z) {
    constexpr int V = 16 / sizeof(T);
    return tensor_last(x) % V == 0 && is_aligned(x.data, 16) && is_aligned(y, 16) &&
           is_aligned(z, 16);
}

static Status batchnorm(Device *d, Tensor y, Tensor stats, Tensor seen_mean, Tensor seen_var,
                        Tensor x, Tensor w, Tensor b, float eps, float momentum, bool relu,
                        bool training) {
    float *kept = (float *)stats.data, *mean = (float *)seen_mean.data,
          *var = (float *)seen_var.data;
    if (!kept) TRY(scratch_take(d, sizeof(float) * 2 * tensor_last(x), (void **)&kept));
    WITH_ACT("batchnorm", x.dtype, T, {
        constexpr int V = 16 / sizeof(T);
        if (in_packs<T>(x, y.data, NULL))
            return forward<T, V>(d, y, kept, mean, var, x, w, b, eps, momentum, relu, training);
        return forward<T, 1>(d, y, kept, mean, var, x, w, b, eps, momentum, relu, training);
    });
    return STATUS_OK;
}

extern "C" Status batchnorm_cuda(Device *d, Tensor y, Tensor stats, Tensor seen_mean,
                                 Tensor seen_var, Tensor x, Tensor w, Tensor b, float eps,
                                 float momentum, bool relu, bool training) {
    if (tensor_count(x) == 0) return STATUS_OK;
    if (y.dtype != x.dtype) return refuse_dtype("batchnorm", y.dtype);
    const Status s =
        batchnorm(d, y, stats, seen_mean, seen_var, x, w, b, eps, momentum, relu, training);
    scratch_done(d);
    return s;
}

template <typename T, int V>
static Status backward(Device *d, Grad dx, Grad dw, Grad db, Tensor dy, Tensor x,
                       const NormBatch &g, bool training) {
    const Walk k = walk_of(d, g.rows, g.width, V);
    float *partial, *means;
    TRY(scratch_take(d, sizeof(float) * 2 * g.width * k.grid.x, (void **)&partial));
    TRY(scratch_take(d, sizeof(float) * 2 * g.width, (void **)&means));
    slope_sums_kernel<T, V><<<k.grid, k.block, sums_bytes(k, V), stream_of(d)>>>(
        partial, (const T *)dy.data, (const T *)x.data, g);
    join_slopes_kernel<<<(unsigned)ceil_div(g.width, 32), dim3(32, JOIN_Y), 0, stream_of(d)>>>(
        dw, db, means, partial, (int)k.grid.x, g.rows, g.width, training);
    if (dx.t.data)
        batchnorm_dx_kernel<T, V><<<k.grid, k.block, 0, stream_of(d)>>>(
            dx, (const T *)dy.data, (const T *)x.data, means, g);
    return launched("batchnorm_backward");
}

static Status batchnorm_backward(Device *d, Grad dx, Grad dw, Grad db, Tensor dy, Tensor x,
                                 const NormBatch &g, bool training) {
    WITH_ACT("batchnorm_backward", x.dtype, T, {
        constexpr int V = 16 / sizeof(T);
        if (in_packs<T>(x, dy.data, dx.t.data))
            return backward<T, V>(d, dx, dw, db, dy, x, g, training);
        return backward<T, 1>(d, dx, dw, db, dy, x, g, training);
    });
    return STATUS_OK;
}

extern "C" Status batchnorm_backward_cuda(Device *d, Grad dx, Grad dw, Grad db, Tensor dy, Tensor x,
                                          Tensor w, Tensor b, Tensor stats, bool relu,
                                          bool training) {
    if (tensor_count(x) == 0) return STATUS_OK;
    if (dy.dtype != x.dtype) return refuse_dtype("batchnorm_backward", dy.dtype);
    const NormBatch g = norm_batch(x, (const float *)stats.data, w, b, relu);
    const Status s = batchnorm_backward(d, dx, dw, db, dy, x, g, training);
    scratch_done(d);
    return s;
}
