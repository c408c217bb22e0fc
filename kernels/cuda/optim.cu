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

/* ---- Muon: matrix i / n of a group, whose elements lie `stride` apart in the flat blocks ---- */

typedef struct MuonArgs {
    float *flat;    /* the momentum, or the weights */
    const float *g; /* gradients; of a step lr[1] */
    const float *control;
    bf16 *shadow;
    int64_t all, n, stride;
    float a, b; /* momentum; or scale and weight decay */
} MuonArgs;

template <typename T, int V>
__global__ void __launch_bounds__(THREADS) muon_momentum_kernel(T *u, MuonArgs a) {
    const int64_t i = ((int64_t)blockIdx.x * THREADS + threadIdx.x) * V;
    if (i >= a.all) return;
    const float clip = a.control[1];
    const int64_t matrix = i / a.n, at = matrix * a.stride + (i - matrix * a.n);
    float m[V], x[V] = {};
    if (clip != 0) {
        pack_load<float, V>(m, a.flat + at);
        pack_load<float, V>(x, a.g + at);
#pragma unroll
        for (int k = 0; k < V; k++) {
            x[k] *= clip * (1.0f - a.a);
            m[k] = a.a * m[k] + x[k];
            x[k] += a.a * m[k];
        }
        pack_store<float, V>(a.flat + at, m);
    }
    pack_store<T, V>(u + i, x);
}

template <typename T, int V>
__global__ void __launch_bounds__(THREADS) muon_step_kernel(const T *u, MuonArgs a) {
    const int64_t i = ((int64_t)blockIdx.x * THREADS + threadIdx.x) * V;
    if (i >= a.all || a.control[1] == 0) return;
    const float lr = a.g[0], keep = 1.0f - lr * a.b, step = lr * a.a;
    const int64_t matrix = i / a.n, at = matrix * a.stride + (i - matrix * a.n);
    float p[V], x[V];
    pack_load<float, V>(p, a.flat + at);
    pack_load<T, V>(x, u + i);
#pragma unroll
    for (int k = 0; k < V; k++) p[k] = p[k] * keep - step * x[k];
    pack_store<float, V>(a.flat + at, p);
    if (a.shadow) pack_store<bf16, V>(a.shadow + at, p);
}

/* Four at a time where all matrices begin and end on it. */
static bool muon_packed(const MuonArgs *a, Tensor u, const void *g) {
    return a->n % 4 == 0 && a->stride % 4 == 0 && is_aligned(a->flat, 16) && is_aligned(g, 16) &&
           is_aligned(u.data, 4 * dtype_size(u.dtype)) && is_aligned(a->shadow, 8);
}

template <typename T>
static void muon_momentum_launch(Device *d, Tensor u, const MuonArgs &a, bool packed) {
    const unsigned blocks = (unsigned)ceil_div(a.all, packed ? 4 * THREADS : THREADS);
    if (packed)
        muon_momentum_kernel<T, 4><<<blocks, THREADS, 0, stream_of(d)>>>((T *)u.data, a);
    else
        muon_momentum_kernel<T, 1><<<blocks, THREADS, 0, stream_of(d)>>>((T *)u.data, a);
}

template <typename T>
static void muon_step_launch(Device *d, Tensor u, const MuonArgs &a, bool packed) {
    const unsigned blocks = (unsigned)ceil_div(a.all, packed ? 4 * THREADS : THREADS);
    if (packed)
        muon_step_kernel<T, 4><<<blocks, THREADS, 0, stream_of(d)>>>((const T *)u.data, a);
    else
        muon_step_kernel<T, 1><<<blocks, THREADS, 0, stream_of(d)>>>((const T *)u.data, a);
}

static MuonArgs muon_args(Tensor u, Tensor flat, Tensor control, int64_t stride) {
    MuonArgs a = {};
    a.flat = (float *)flat.data;
    a.control = (const float *)control.data;
    a.all = tensor_count(u), a.n = u.shape[1] * u.shape[2], a.stride = stride;
    return a;
}

extern "C" Status muon_momentum_cuda(Device *d, Tensor u, Tensor m, Tensor g, Tensor control,
                                     int64_t stride, float momentum) {
    MuonArgs a = muon_args(u, m, control, stride);
    if (a.all == 0) return STATUS_OK;
    a.g = (const float *)g.data;
    a.a = momentum;
    const bool packed = muon_packed(&a, u, a.g);
    if (u.dtype == DTYPE_BF16)
        muon_momentum_launch<bf16>(d, u, a, packed);
    else
        muon_momentum_launch<float>(d, u, a, packed);
    return launched("muon_momentum");
}

extern "C" Status muon_step_cuda(Device *d, Tensor p, Tensor shadow, Tensor u, Tensor lr,
                                 Tensor control, int64_t stride, float scale, float weight_decay) {
    MuonArgs a = muon_args(u, p, control, stride);
    if (a.all == 0) return STATUS_OK;
    a.g = (const float *)lr.data;
    a.shadow = (bf16 *)shadow.data;
    a.a = scale, a.b = weight_decay;
    const bool packed = muon_packed(&a, u, a.flat);
    if (u.dtype == DTYPE_BF16)
        muon_step_launch<bf16>(d, u, a, packed);
    else
        muon_step_launch<float>(d, u, a, packed);
    return launched("muon_step");
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
    for (int k = 0; k < V; k++) a[k] = x[k] + decay * (a[k] - x[k]);
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
