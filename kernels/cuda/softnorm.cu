/* Vectors divided by their norm plus an offset, g/(n+offset): the soft norm of inner gradients
 * (vittt.md 2.1, 3.1), unit vectors of tokens and of weight columns (lact_nvs.md 3.3, 4).
 *
 * g [outer, reduce, inner]. inner > 1: a block takes 32 columns by 8 lanes over the reduced
 * dimension. inner == 1: a warp takes one vector.
 */
#include "kernels/cuda/common.cuh"

#define LANES 8

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
                    float offset) {
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
        const float n = sqrtf(lanes_sum(square, shared)), r = 1.0f / (n + offset);
        if (j >= inner) continue;
        for (int64_t i = threadIdx.y; i < reduce; i += LANES)
            from_float(y + (o * reduce + i) * inner + j, to_float(go[i * inner + j]) * r);
        if (norms && threadIdx.y == 0) norms[o * inner + j] = n;
    }
}

template <typename T>
__global__ void __launch_bounds__(32 * LANES)
    softnorm_backward_kernel(T *dg, bool add, const T *dy, const T *g, const float *norms,
                             int64_t outer, int64_t reduce, int64_t inner, float offset) {
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
        const float n = norms[o * inner + j], r = 1.0f / (n + offset);
        const float back = n > 0 ? r * r * t / n : 0.0f;
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
    unit_kernel(T *y, float *norms, const T *g, int64_t rows, int64_t width, float offset) {
    const int64_t row = (int64_t)blockIdx.x * LANES + threadIdx.y;
    if (row >= rows) return;
    const T *in = g + row * width;
    float square = 0, v[V];
    for (int64_t c = threadIdx.x * V; c < width; c += 32 * V) {
        pack_load<T, V>(v, in + c);
#pragma unroll
        for (int i = 0; i < V; i++) square += v[i] * v[i];
    }
    const float n = sqrtf(warp_sum(square)), r = 1.0f / (n + offset);
    for (int64_t c = threadIdx.x * V; c < width; c += 32 * V) {
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
                         int64_t width, float offset) {
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
    const float t = warp_sum(dot), n = norms[row], r = 1.0f / (n + offset);
    const float back = n > 0 ? r * r * t / n : 0.0f;
    for (int64_t c = threadIdx.x * V; c < width; c += 32 * V) {
        pack_load<T, V>(v, in + c);
        pack_load<T, V>(u, gradient + c);
#pragma unroll
        for (int i = 0; i < V; i++) u[i] = r * u[i] - back * v[i];
        pack_put<T, V>(dg + row * width + c, u, add);
    }
}

/* ---- the slots ------------------------------------------------------------------------------ */

static dim3 columns_grid(int64_t outer, int64_t inner) {
    return dim3((unsigned)ceil_div(inner, 32), (unsigned)(outer < 65535 ? outer : 65535));
}

template <typename T>
static void softnorm_launch(Device *d, Tensor y, Tensor norms, Tensor g, float offset) {
    const int64_t outer = g.shape[0], reduce = g.shape[1], inner = g.shape[2];
    const int V = 16 / sizeof(T);
    const dim3 block(32, LANES);
    const unsigned blocks = (unsigned)ceil_div(outer, LANES);
    T *to = (T *)y.data;
    const T *from = (const T *)g.data;
    float *kept = (float *)norms.data;
    if (inner > 1)
        softnorm_kernel<T><<<columns_grid(outer, inner), block, 0, stream_of(d)>>>(
            to, kept, from, outer, reduce, inner, offset);
    else if (reduce % V == 0 && is_aligned(to, 16) && is_aligned(from, 16))
        unit_kernel<T, V>
            <<<blocks, block, 0, stream_of(d)>>>(to, kept, from, outer, reduce, offset);
    else
        unit_kernel<T, 1>
            <<<blocks, block, 0, stream_of(d)>>>(to, kept, from, outer, reduce, offset);
}

extern "C" Status softnorm_cuda(Device *d, Tensor y, Tensor norms, Tensor g, float offset) {
    if (tensor_count(g) == 0) return STATUS_OK;
    if (y.dtype != g.dtype) return refuse_dtype("softnorm", y.dtype);
    WITH_ACT("softnorm", g.dtype, T, softnorm_launch<T>(d, y, norms, g, offset));
    return launched("softnorm");
}

template <typename T>
static void softnorm_backward_launch(Device *d, Grad dg, Tensor dy, Tensor g, Tensor norms,
                                     float offset) {
    const int64_t outer = g.shape[0], reduce = g.shape[1], inner = g.shape[2];
    const int V = 16 / sizeof(T);
    const dim3 block(32, LANES);
    const unsigned blocks = (unsigned)ceil_div(outer, LANES);
    T *to = (T *)dg.t.data;
    const T *gradient = (const T *)dy.data, *from = (const T *)g.data;
    const float *kept = (const float *)norms.data;
    if (inner > 1)
        softnorm_backward_kernel<T><<<columns_grid(outer, inner), block, 0, stream_of(d)>>>(
            to, dg.add, gradient, from, kept, outer, reduce, inner, offset);
    else if (reduce % V == 0 && is_aligned(to, 16) && is_aligned(gradient, 16) &&
             is_aligned(from, 16))
        unit_backward_kernel<T, V><<<blocks, block, 0, stream_of(d)>>>(to, dg.add, gradient, from,
                                                                       kept, outer, reduce, offset);
    else
        unit_backward_kernel<T, 1><<<blocks, block, 0, stream_of(d)>>>(to, dg.add, gradient, from,
                                                                       kept, outer, reduce, offset);
}

extern "C" Status softnorm_backward_cuda(Device *d, Grad dg, Tensor dy, Tensor g, Tensor norms,
                                         float offset) {
    if (tensor_is_none(dg.t) || tensor_count(g) == 0) return STATUS_OK;
    if (dy.dtype != g.dtype || dg.t.dtype != g.dtype)
        return refuse_dtype("softnorm_backward", dy.dtype);
    WITH_ACT("softnorm_backward", g.dtype, T,
             softnorm_backward_launch<T>(d, dg, dy, g, norms, offset));
    return launched("softnorm_backward");
}
