/* Gradient norm with its clip coefficient, and AdamW over a flat range. */
#include <math.h>

#include "kernels/cuda/common.cuh"

#define THREADS 256

static __device__ double block_sum(double x) {
    __shared__ double shared[THREADS / 32];
#pragma unroll
    for (int mask = 16; mask > 0; mask >>= 1) x += __shfl_xor_sync(0xffffffffu, x, mask);
    if (threadIdx.x % 32 == 0) shared[threadIdx.x / 32] = x;
    __syncthreads();
    double sum = 0;
    for (int w = 0; w < THREADS / 32; w++) sum += shared[w];
    return sum;
}

/* In double, since squares of finite gradients may overflow F32 where their norm does not. */
template <int V>
__global__ void __launch_bounds__(THREADS)
    square_sum_kernel(double *sums, const float *g, int64_t n) {
    double total = 0;
    const int64_t step = (int64_t)gridDim.x * THREADS * V;
    for (int64_t i = ((int64_t)blockIdx.x * THREADS + threadIdx.x) * V; i < n; i += step) {
        float v[V];
        pack_load<float, V>(v, g + i);
#pragma unroll
        for (int k = 0; k < V; k++) total += (double)v[k] * v[k];
    }
    total = block_sum(total);
    if (threadIdx.x == 0) sums[blockIdx.x] = total;
}

__global__ void __launch_bounds__(THREADS)
    control_kernel(float *control, int64_t *taken, const double *sums, int count, float max_norm,
                   float skip_norm, float beta1, float beta2) {
    double total = 0;
    for (int i = threadIdx.x; i < count; i += THREADS) total += sums[i];
    total = block_sum(total);
    if (threadIdx.x > 0) return;
    const float norm = (float)sqrt(total);
    const bool usable = isfinite(norm) && !(skip_norm > 0 && norm > skip_norm);
    if (usable) taken[0]++;
    const double k = (double)(taken[0] > 0 ? taken[0] : 1);
    control[0] = norm;
    control[1] = !usable ? 0.0f : max_norm > 0 ? fminf(1.0f, max_norm / (norm + 1e-6f)) : 1.0f;
    control[2] = (float)(1.0 / (1.0 - pow((double)beta1, k)));
    control[3] = (float)(1.0 / (1.0 - pow((double)beta2, k)));
}

extern "C" Status grad_norm_cuda(Device *d, Tensor control, Tensor taken, Tensor g, float max_norm,
                                 float skip_norm, float beta1, float beta2) {
    const int64_t n = tensor_count(g);
    const bool packed = n % 4 == 0 && is_aligned(g.data, 16);
    const int64_t most = 8 * backend_of(d)->sm_count;
    const int64_t want = ceil_div(n > 0 ? n : 1, packed ? 4 * THREADS : THREADS);
    const int grid = (int)(want < most ? want : most);
    double *sums;
    TRY(scratch_take(d, sizeof(double) * grid, (void **)&sums));
    if (packed)
        square_sum_kernel<4><<<grid, THREADS, 0, stream_of(d)>>>(sums, (const float *)g.data, n);
    else
        square_sum_kernel<1><<<grid, THREADS, 0, stream_of(d)>>>(sums, (const float *)g.data, n);
    control_kernel<<<1, THREADS, 0, stream_of(d)>>>((float *)control.data, (int64_t *)taken.data,
                                                    sums, grid, max_norm, skip_norm, beta1, beta2);
    scratch_done(d);
    return launched("grad_norm");
}

typedef struct AdamArgs {
    float *p, *m, *v;
    bf16 *shadow;
    const float *g, *lr, *control;
    int64_t n;
    float beta1, beta2, eps, weight_decay;
} AdamArgs;

template <int V> __global__ void __launch_bounds__(THREADS) adamw_kernel(AdamArgs a) {
    if (a.control[1] == 0) return;
    const int64_t i = ((int64_t)blockIdx.x * THREADS + threadIdx.x) * V;
    if (i >= a.n) return;
    const float clip = a.control[1], lr = a.lr[0], step = lr * a.control[2];
    const float root = sqrtf(a.control[3]), keep = 1.0f - lr * a.weight_decay;
    float p[V], m[V], v[V], g[V];
    pack_load<float, V>(p, a.p + i);
    pack_load<float, V>(m, a.m + i);
    pack_load<float, V>(v, a.v + i);
    pack_load<float, V>(g, a.g + i);
#pragma unroll
    for (int k = 0; k < V; k++) {
        g[k] *= clip;
        m[k] = a.beta1 * m[k] + (1.0f - a.beta1) * g[k];
        v[k] = a.beta2 * v[k] + (1.0f - a.beta2) * g[k] * g[k];
        p[k] = p[k] * keep - step * m[k] / (sqrtf(v[k]) * root + a.eps);
    }
    pack_store<float, V>(a.p + i, p);
    pack_store<float, V>(a.m + i, m);
    pack_store<float, V>(a.v + i, v);
    if (a.shadow) pack_store<bf16, V>(a.shadow + i, p);
}

extern "C" Status adamw_cuda(Device *d, Tensor p, Tensor m, Tensor v, Tensor shadow, Tensor g,
                             Tensor lr, Tensor control, float beta1, float beta2, float eps,
                             float weight_decay) {
    const AdamArgs a = {(float *)p.data,
                        (float *)m.data,
                        (float *)v.data,
                        (bf16 *)shadow.data,
                        (const float *)g.data,
                        (const float *)lr.data,
                        (const float *)control.data,
                        tensor_count(p),
                        beta1,
                        beta2,
                        eps,
                        weight_decay};
    if (a.n == 0) return STATUS_OK;
    const bool packed = a.n % 4 == 0 && is_aligned(a.p, 16) && is_aligned(a.m, 16) &&
                        is_aligned(a.v, 16) && is_aligned(a.g, 16) && is_aligned(a.shadow, 8);
    if (packed)
        adamw_kernel<4><<<(unsigned)ceil_div(a.n, 4 * THREADS), THREADS, 0, stream_of(d)>>>(a);
    else
        adamw_kernel<1><<<(unsigned)ceil_div(a.n, THREADS), THREADS, 0, stream_of(d)>>>(a);
    return launched("adamw");
}

template <int V>
__global__ void __launch_bounds__(THREADS)
    ema_kernel(float *average, const float *p, int64_t n, float decay) {
    const int64_t i = ((int64_t)blockIdx.x * THREADS + threadIdx.x) * V;
    if (i >= n) return;
    float a[V], x[V];
    pack_load<float, V>(a, average + i);
    pack_load<float, V>(x, p + i);
#pragma unroll
    for (int k = 0; k < V; k++) a[k] = decay * a[k] + (1.0f - decay) * x[k];
    pack_store<float, V>(average + i, a);
}

extern "C" Status ema_cuda(Device *d, Tensor average, Tensor p, float decay) {
    const int64_t n = tensor_count(p);
    if (n == 0) return STATUS_OK;
    float *a = (float *)average.data;
    const float *x = (const float *)p.data;
    if (n % 4 == 0 && is_aligned(a, 16) && is_aligned(x, 16))
        ema_kernel<4>
            <<<(unsigned)ceil_div(n, 4 * THREADS), THREADS, 0, stream_of(d)>>>(a, x, n, decay);
    else
        ema_kernel<1><<<(unsigned)ceil_div(n, THREADS), THREADS, 0, stream_of(d)>>>(a, x, n, decay);
    return launched("ema");
}
