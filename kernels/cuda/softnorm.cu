/* Soft norm of inner gradients g/(n+1), n the column norms (vittt.md 2.1, 3.1).
 * g [outer, reduce, inner]; block: 32 columns by 8 lanes over the reduced dimension. */
#include "kernels/cuda/common.cuh"

#define LANES 8

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

__global__ void __launch_bounds__(32 * LANES)
    softnorm_kernel(float *y, float *norms, const float *g, int64_t outer, int64_t reduce,
                    int64_t inner) {
    __shared__ float shared[LANES][32];
    const int64_t j = (int64_t)blockIdx.x * 32 + threadIdx.x;
    for (int64_t o = blockIdx.y; o < outer; o += gridDim.y) {
        const float *go = g + o * reduce * inner;
        float square = 0;
        if (j < inner)
            for (int64_t i = threadIdx.y; i < reduce; i += LANES)
                square += go[i * inner + j] * go[i * inner + j];
        const float n = sqrtf(lanes_sum(square, shared)), r = 1.0f / (n + 1.0f);
        if (j >= inner) continue;
        for (int64_t i = threadIdx.y; i < reduce; i += LANES)
            y[(o * reduce + i) * inner + j] = go[i * inner + j] * r;
        if (norms && threadIdx.y == 0) norms[o * inner + j] = n;
    }
}

__global__ void __launch_bounds__(32 * LANES)
    softnorm_backward_kernel(float *dg, bool add, const float *dy, const float *g,
                             const float *norms, int64_t outer, int64_t reduce, int64_t inner) {
    __shared__ float shared[LANES][32];
    const int64_t j = (int64_t)blockIdx.x * 32 + threadIdx.x;
    for (int64_t o = blockIdx.y; o < outer; o += gridDim.y) {
        const int64_t base = o * reduce * inner;
        float dot = 0;
        if (j < inner)
            for (int64_t i = threadIdx.y; i < reduce; i += LANES)
                dot += g[base + i * inner + j] * dy[base + i * inner + j];
        const float t = lanes_sum(dot, shared);
        if (j >= inner) continue;
        const float n = norms[o * inner + j], r = 1.0f / (n + 1.0f);
        const float back = n > 0 ? r * r * t / n : 0.0f;
        for (int64_t i = threadIdx.y; i < reduce; i += LANES) {
            const int64_t at = base + i * inner + j;
            const float value = r * dy[at] - back * g[at];
            dg[at] = add ? dg[at] + value : value;
        }
    }
}

static dim3 softnorm_grid(int64_t outer, int64_t inner) {
    return dim3((unsigned)ceil_div(inner, 32), (unsigned)(outer < 65535 ? outer : 65535));
}

extern "C" Status softnorm_cuda(Device *d, Tensor y, Tensor norms, Tensor g) {
    const int64_t outer = g.shape[0], reduce = g.shape[1], inner = g.shape[2];
    if (tensor_count(g) == 0) return STATUS_OK;
    softnorm_kernel<<<softnorm_grid(outer, inner), dim3(32, LANES), 0, stream_of(d)>>>(
        (float *)y.data, (float *)norms.data, (const float *)g.data, outer, reduce, inner);
    return launched("softnorm");
}

extern "C" Status softnorm_backward_cuda(Device *d, Grad dg, Tensor dy, Tensor g, Tensor norms) {
    const int64_t outer = g.shape[0], reduce = g.shape[1], inner = g.shape[2];
    if (tensor_is_none(dg.t) || tensor_count(g) == 0) return STATUS_OK;
    softnorm_backward_kernel<<<softnorm_grid(outer, inner), dim3(32, LANES), 0, stream_of(d)>>>(
        (float *)dg.t.data, dg.add, (const float *)dy.data, (const float *)g.data,
        (const float *)norms.data, outer, reduce, inner);
    return launched("softnorm_backward");
}
