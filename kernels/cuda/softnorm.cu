/* Vectors divided by their norm plus an offset, g/(n+offset): the soft norm of inner gradients
 * (vittt.md 2.1, 3.1), unit vectors of tokens and of weight columns (lact_nvs.md 3.3, 4).
 *
 * g [outer, reduce, inner]. inner > 1: a block takes 32 columns by 8 lanes over the reduced
 * dimension. inner == 1: a warp takes one vector; of long ones, such as whole matrices, a block
 * takes a part, in two launches.
 */
#include "kernels/cuda/common.cuh"

#define LANES   8
#define THREADS (32 * LANES)
#define LONG    16384 /* elements of a vector that several blocks share */
#define PART    4096  /* elements of a block's part at least */
#define PARTS   256   /* most parts of one vector */

/* Factors by column and row of g's outer dimension, which they repeat along; none: 1. */
typedef struct Gain {
    const float *c;
    int64_t period, inner;
} Gain;

static Gain gain_for(Tensor gain, int64_t inner) {
    Gain g = {(const float *)gain.data, 1, inner};
    if (g.c) g.period = tensor_count(gain) / inner;
    return g;
}

static __device__ __forceinline__ float gain_at(const Gain &g, int64_t o, int64_t j) {
    return g.c ? g.c[o % g.period * g.inner + j] : 1.0f;
}

/* ---- columns -------------------------------------------------------------------------------- */

/* Sum over the block's lanes, the same value in each thread of a column. */
static __device__ float lanes_sum(float x, float (*shared)[32]) {
    __syncthreads();
    shared[threadIdx.y][threadIdx.x] = x;
    __syncthreads();
    float sum = 0;
#pragma unroll
    for (int lane = 0; lane < LANES; lane++) sum += shared[lane][threadIdx.x];
    return sum;
}

template <typename T>
__global__ void __launch_bounds__(32 * LANES)
    softnorm_kernel(T *y, float *norms, const T *g, int64_t outer, int64_t reduce, int64_t inner,
                    Gain gain, float offset) {
    __shared__ float shared[LANES][32];
    const int64_t j = (int64_t)blockIdx.x * 32 + threadIdx.x;
    for (int64_t o = blockIdx.y; o < outer; o += gridDim.y) {
        const T *go = g + o * reduce * inner;
        float square = 0;
        if (j < inner)
            for (int64_t i = threadIdx.y; i < reduce; i += LANES) {
                const float v = to_float(go[i * inner + j]);
                square += v * v;
            }
        const float n = sqrtf(lanes_sum(square, shared));
        if (j >= inner) continue;
        const float r = gain_at(gain, o, j) / (n + offset);
        for (int64_t i = threadIdx.y; y && i < reduce; i += LANES)
            from_float(y + (o * reduce + i) * inner + j, to_float(go[i * inner + j]) * r);
        if (norms && threadIdx.y == 0) norms[o * inner + j] = n;
    }
}

template <typename T>
__global__ void __launch_bounds__(32 * LANES)
    softnorm_backward_kernel(T *dg, bool add, const T *dy, const T *g, const float *norms,
                             int64_t outer, int64_t reduce, int64_t inner, Gain gain,
                             float offset) {
    __shared__ float shared[LANES][32];
    const int64_t j = (int64_t)blockIdx.x * 32 + threadIdx.x;
    for (int64_t o = blockIdx.y; o < outer; o += gridDim.y) {
        const int64_t base = o * reduce * inner;
        float dot = 0;
        if (j < inner)
            for (int64_t i = threadIdx.y; i < reduce; i += LANES)
                dot += to_float(g[base + i * inner + j]) * to_float(dy[base + i * inner + j]);
        const float t = lanes_sum(dot, shared);
        if (j >= inner) continue;
        const float n = norms[o * inner + j], once = 1.0f / (n + offset);
        const float r = gain_at(gain, o, j) * once, back = n > 0 ? r * once * t / n : 0.0f;
        for (int64_t i = threadIdx.y; i < reduce; i += LANES) {
            const int64_t at = base + i * inner + j;
            float value[1] = {r * to_float(dy[at]) - back * to_float(g[at])};
            pack_put<T, 1>(dg + at, value, add);
        }
    }
}

/* ---- rows ----------------------------------------------------------------------------------- */

template <typename T, int V>
__global__ void __launch_bounds__(32 * LANES)
    unit_kernel(T *y, float *norms, const T *g, int64_t rows, int64_t width, Gain gain,
                float offset) {
    const int64_t row = (int64_t)blockIdx.x * LANES + threadIdx.y;
    if (row >= rows) return;
    const T *in = g + row * width;
    float square = 0, v[V];
    for (int64_t c = threadIdx.x * V; c < width; c += 32 * V) {
        pack_load<T, V>(v, in + c);
#pragma unroll
        for (int i = 0; i < V; i++) square += v[i] * v[i];
    }
    const float n = sqrtf(warp_sum(square)), r = gain_at(gain, row, 0) / (n + offset);
    for (int64_t c = threadIdx.x * V; y && c < width; c += 32 * V) {
        pack_load<T, V>(v, in + c);
#pragma unroll
        for (int i = 0; i < V; i++) v[i] *= r;
        pack_store<T, V>(y + row * width + c, v);
    }
    if (norms && threadIdx.x == 0) norms[row] = n;
}

template <typename T, int V>
__global__ void __launch_bounds__(32 * LANES)
    unit_backward_kernel(T *dg, bool add, const T *dy, const T *g, const float *norms, int64_t rows,
                         int64_t width, Gain gain, float offset) {
    const int64_t row = (int64_t)blockIdx.x * LANES + threadIdx.y;
    if (row >= rows) return;
    const T *in = g + row * width, *gradient = dy + row * width;
    float dot = 0, v[V], u[V];
    for (int64_t c = threadIdx.x * V; c < width; c += 32 * V) {
        pack_load<T, V>(v, in + c);
        pack_load<T, V>(u, gradient + c);
#pragma unroll
        for (int i = 0; i < V; i++) dot += v[i] * u[i];
    }
    const float t = warp_sum(dot), n = norms[row], once = 1.0f / (n + offset);
    const float r = gain_at(gain, row, 0) * once, back = n > 0 ? r * once * t / n : 0.0f;
    for (int64_t c = threadIdx.x * V; c < width; c += 32 * V) {
        pack_load<T, V>(v, in + c);
        pack_load<T, V>(u, gradient + c);
#pragma unroll
        for (int i = 0; i < V; i++) u[i] = r * u[i] - back * v[i];
        pack_put<T, V>(dg + row * width + c, u, add);
    }
}

/* ---- long rows: grid.x parts of grid.y rows ------------------------------------------------- */

/* Sum over the block, the same value in each thread. */
static __device__ float block_sum(float x, float *shared) {
    x = warp_sum(x);
    __syncthreads();
    if (threadIdx.x % 32 == 0) shared[threadIdx.x / 32] = x;
    __syncthreads();
    float sum = 0;
    for (int warp = 0; warp < LANES; warp++) sum += shared[warp];
    return sum;
}

/* parts[row][part] = inner product of that part of a and b. */
template <typename T>
__global__ void __launch_bounds__(THREADS)
    long_products_kernel(float *parts, const T *a, const T *b, int64_t rows, int64_t width) {
    __shared__ float shared[LANES];
    for (int64_t row = blockIdx.y; row < rows; row += gridDim.y) {
        const T *ra = a + row * width, *rb = b + row * width;
        float sum = 0;
        for (int64_t c = (int64_t)blockIdx.x * THREADS + threadIdx.x; c < width;
             c += (int64_t)gridDim.x * THREADS)
            sum += to_float(ra[c]) * to_float(rb[c]);
        sum = block_sum(sum, shared);
        if (threadIdx.x == 0) parts[row * gridDim.x + blockIdx.x] = sum;
    }
}

/* Every block adds the row's parts in one order. */
static __device__ float parts_sum(const float *parts, int64_t row, float *shared) {
    float sum = 0;
    for (int p = threadIdx.x; p < (int)gridDim.x; p += THREADS) sum += parts[row * gridDim.x + p];
    return block_sum(sum, shared);
}

template <typename T>
__global__ void __launch_bounds__(THREADS)
    long_scale_kernel(T *y, float *norms, const float *parts, const T *g, int64_t rows,
                      int64_t width, Gain gain, float offset) {
    __shared__ float shared[LANES];
    for (int64_t row = blockIdx.y; row < rows; row += gridDim.y) {
        const float n = sqrtf(parts_sum(parts, row, shared));
        const float r = gain_at(gain, row, 0) / (n + offset);
        for (int64_t c = (int64_t)blockIdx.x * THREADS + threadIdx.x; y && c < width;
             c += (int64_t)gridDim.x * THREADS)
            from_float(y + row * width + c, to_float(g[row * width + c]) * r);
        if (norms && blockIdx.x == 0 && threadIdx.x == 0) norms[row] = n;
    }
}

template <typename T>
__global__ void __launch_bounds__(THREADS)
    long_slope_kernel(T *dg, bool add, const float *parts, const T *dy, const T *g,
                      const float *norms, int64_t rows, int64_t width, Gain gain, float offset) {
    __shared__ float shared[LANES];
    for (int64_t row = blockIdx.y; row < rows; row += gridDim.y) {
        const float t = parts_sum(parts, row, shared), n = norms[row];
        const float once = 1.0f / (n + offset), r = gain_at(gain, row, 0) * once;
        const float back = n > 0 ? r * once * t / n : 0.0f;
        for (int64_t c = (int64_t)blockIdx.x * THREADS + threadIdx.x; c < width;
             c += (int64_t)gridDim.x * THREADS) {
            const int64_t at = row * width + c;
            float value[1] = {r * to_float(dy[at]) - back * to_float(g[at])};
            pack_put<T, 1>(dg + at, value, add);
        }
    }
}

static dim3 long_grid(int64_t rows, int64_t width) {
    const int64_t parts = ceil_div(width, PART);
    return dim3((unsigned)(parts < PARTS ? parts : PARTS), (unsigned)(rows < 65535 ? rows : 65535));
}

/* Takes the parts from scratch and launches their kernel. */
template <typename T>
static Status long_products(Device *d, const T *a, const T *b, int64_t rows, int64_t width,
                            float **parts) {
    const dim3 grid = long_grid(rows, width);
    TRY(scratch_take(d, sizeof(float) * rows * grid.x, (void **)parts));
    scratch_done(d);
    long_products_kernel<T><<<grid, THREADS, 0, stream_of(d)>>>(*parts, a, b, rows, width);
    return STATUS_OK;
}

template <typename T>
static Status long_forward(Device *d, Tensor y, Tensor norms, Tensor g, Tensor gain, float offset) {
    const int64_t rows = g.shape[0], width = g.shape[1];
    const T *from = (const T *)g.data;
    float *parts;
    TRY(long_products<T>(d, from, from, rows, width, &parts));
    long_scale_kernel<T><<<long_grid(rows, width), THREADS, 0, stream_of(d)>>>(
        (T *)y.data, (float *)norms.data, parts, from, rows, width, gain_for(gain, g.shape[2]),
        offset);
    return STATUS_OK;
}

template <typename T>
static Status long_backward(Device *d, Grad dg, Tensor dy, Tensor g, Tensor norms, Tensor gain,
                            float offset) {
    const int64_t rows = g.shape[0], width = g.shape[1];
    const T *from = (const T *)g.data, *gradient = (const T *)dy.data;
    float *parts;
    TRY(long_products<T>(d, from, gradient, rows, width, &parts));
    long_slope_kernel<T><<<long_grid(rows, width), THREADS, 0, stream_of(d)>>>(
        (T *)dg.t.data, dg.add, parts, gradient, from, (const float *)norms.data, rows, width,
        gain_for(gain, g.shape[2]), offset);
    return STATUS_OK;
}

/* ---- the slots ------------------------------------------------------------------------------ */

static bool is_long(Tensor g) {
    return g.shape[2] == 1 && g.shape[1] >= LONG;
}

static dim3 columns_grid(int64_t outer, int64_t inner) {
    return dim3((unsigned)ceil_div(inner, 32), (unsigned)(outer < 65535 ? outer : 65535));
}

template <typename T>
static void softnorm_launch(Device *d, Tensor y, Tensor norms, Tensor g, Tensor gain,
                            float offset) {
    const int64_t outer = g.shape[0], reduce = g.shape[1], inner = g.shape[2];
    const int V = 16 / sizeof(T);
    const dim3 block(32, LANES);
    const unsigned blocks = (unsigned)ceil_div(outer, LANES);
    T *to = (T *)y.data;
    const T *from = (const T *)g.data;
    float *kept = (float *)norms.data;
    if (inner > 1)
        softnorm_kernel<T><<<columns_grid(outer, inner), block, 0, stream_of(d)>>>(
            to, kept, from, outer, reduce, inner, gain_for(gain, g.shape[2]), offset);
    else if (reduce % V == 0 && is_aligned(to, 16) && is_aligned(from, 16))
        unit_kernel<T, V><<<blocks, block, 0, stream_of(d)>>>(to, kept, from, outer, reduce,
                                                              gain_for(gain, g.shape[2]), offset);
    else
        unit_kernel<T, 1><<<blocks, block, 0, stream_of(d)>>>(to, kept, from, outer, reduce,
                                                              gain_for(gain, g.shape[2]), offset);
}

extern "C" Status softnorm_cuda(Device *d, Tensor y, Tensor norms, Tensor g, Tensor gain,
                                float offset) {
    if (tensor_count(g) == 0) return STATUS_OK;
    if (!tensor_is_none(y) && y.dtype != g.dtype) return refuse_dtype("softnorm", y.dtype);
    WITH_ACT("softnorm", g.dtype, T,
             if (is_long(g)) TRY(long_forward<T>(d, y, norms, g, gain, offset));
             else softnorm_launch<T>(d, y, norms, g, gain, offset));
    return launched("softnorm");
}

template <typename T>
static void softnorm_backward_launch(Device *d, Grad dg, Tensor dy, Tensor g, Tensor norms,
                                     Tensor gain, float offset) {
    const int64_t outer = g.shape[0], reduce = g.shape[1], inner = g.shape[2];
    const int V = 16 / sizeof(T);
    const dim3 block(32, LANES);
    const unsigned blocks = (unsigned)ceil_div(outer, LANES);
    T *to = (T *)dg.t.data;
    const T *gradient = (const T *)dy.data, *from = (const T *)g.data;
    const float *kept = (const float *)norms.data;
    if (inner > 1)
        softnorm_backward_kernel<T><<<columns_grid(outer, inner), block, 0, stream_of(d)>>>(
            to, dg.add, gradient, from, kept, outer, reduce, inner, gain_for(gain, g.shape[2]),
            offset);
    else if (reduce % V == 0 && is_aligned(to, 16) && is_aligned(gradient, 16) &&
             is_aligned(from, 16))
        unit_backward_kernel<T, V><<<blocks, block, 0, stream_of(d)>>>(
            to, dg.add, gradient, from, kept, outer, reduce, gain_for(gain, g.shape[2]), offset);
    else
        unit_backward_kernel<T, 1><<<blocks, block, 0, stream_of(d)>>>(
            to, dg.add, gradient, from, kept, outer, reduce, gain_for(gain, g.shape[2]), offset);
}

extern "C" Status softnorm_backward_cuda(Device *d, Grad dg, Tensor dy, Tensor g, Tensor norms,
                                         Tensor gain, float offset) {
    if (tensor_is_none(dg.t) || tensor_count(g) == 0) return STATUS_OK;
    if (dy.dtype != g.dtype || dg.t.dtype != g.dtype)
        return refuse_dtype("softnorm_backward", dy.dtype);
    WITH_ACT("softnorm_backward", g.dtype, T,
             if (is_long(g)) TRY(long_backward<T>(d, dg, dy, g, norms, gain, offset));
             else softnorm_backward_launch<T>(d, dg, dy, g, norms, gain, offset));
    return launched("softnorm_backward");
}
