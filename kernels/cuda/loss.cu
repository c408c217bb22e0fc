/* Softmax cross-entropy with soft targets, a block per row; the mean square error. */
#include "kernels/cuda/common.cuh"

#define THREADS 256

/* Over the block's threads, the same value in each; `shared` has one float per warp. */
static __device__ float block_sum(float x, float *shared) {
    x = warp_sum(x);
    __syncthreads();
    if (threadIdx.x % 32 == 0) shared[threadIdx.x / 32] = x;
    __syncthreads();
    float sum = 0;
    for (int w = 0; w < THREADS / 32; w++) sum += shared[w];
    return sum;
}
static __device__ float block_max(float x, float *shared) {
    x = warp_max(x);
    __syncthreads();
    if (threadIdx.x % 32 == 0) shared[threadIdx.x / 32] = x;
    __syncthreads();
    float most = shared[0];
    for (int w = 1; w < THREADS / 32; w++) most = fmaxf(most, shared[w]);
    return most;
}

/* Largest logit and the sum of exp(logit - largest). */
static __device__ void softmax_scale(const float *z, int64_t classes, float *shared, float *most,
                                     float *total) {
    float m = -INFINITY, sum = 0;
    for (int64_t c = threadIdx.x; c < classes; c += THREADS) m = fmaxf(m, z[c]);
    m = block_max(m, shared);
    for (int64_t c = threadIdx.x; c < classes; c += THREADS) sum += expf(z[c] - m);
    *most = m;
    *total = block_sum(sum, shared);
}

__global__ void __launch_bounds__(THREADS)
    row_loss_kernel(float *losses, const float *logits, const float *targets, int64_t classes) {
    __shared__ float shared[THREADS / 32];
    const float *z = logits + blockIdx.x * classes, *t = targets + blockIdx.x * classes;
    float most, total;
    softmax_scale(z, classes, shared, &most, &total);
    const float log_total = logf(total);
    float sum = 0;
    for (int64_t c = threadIdx.x; c < classes; c += THREADS)
        sum -= t[c] * (z[c] - most - log_total);
    sum = block_sum(sum, shared);
    if (threadIdx.x == 0) losses[blockIdx.x] = sum;
}

__global__ void __launch_bounds__(THREADS)
    mean_loss_kernel(float *loss, const float *losses, int64_t parts, int64_t count) {
    __shared__ float shared[THREADS / 32];
    float sum = 0;
    for (int64_t p = threadIdx.x; p < parts; p += THREADS) sum += losses[p];
    sum = block_sum(sum, shared);
    if (threadIdx.x == 0) loss[0] = sum / count;
}

extern "C" Status cross_entropy_cuda(Device *d, Tensor loss, Tensor logits, Tensor targets) {
    const int64_t rows = logits.shape[0], classes = logits.shape[1];
    if (rows == 0) return STATUS_OK;
    float *losses;
    TRY(scratch_take(d, sizeof(float) * rows, (void **)&losses));
    row_loss_kernel<<<(unsigned)rows, THREADS, 0, stream_of(d)>>>(
        losses, (const float *)logits.data, (const float *)targets.data, classes);
    mean_loss_kernel<<<1, THREADS, 0, stream_of(d)>>>((float *)loss.data, losses, rows, rows);
    scratch_done(d);
    return launched("cross_entropy");
}

__global__ void __launch_bounds__(THREADS)
    cross_entropy_backward_kernel(float *dlogits, bool add, const float *dloss, const float *logits,
                                  const float *targets, int64_t rows, int64_t classes) {
    __shared__ float shared[THREADS / 32];
    const int64_t base = blockIdx.x * classes;
    float most, total, sum = 0;
    softmax_scale(logits + base, classes, shared, &most, &total);
    for (int64_t c = threadIdx.x; c < classes; c += THREADS) sum += targets[base + c];
    sum = block_sum(sum, shared);
    const float scale = dloss[0] / rows;
    for (int64_t c = threadIdx.x; c < classes; c += THREADS) {
        const float p = expf(logits[base + c] - most) / total;
        float value[1] = {scale * (p * sum - targets[base + c])};
        pack_put<float, 1>(dlogits + base + c, value, add);
    }
}

extern "C" Status cross_entropy_backward_cuda(Device *d, Grad dlogits, Tensor dloss, Tensor logits,
                                              Tensor targets) {
    const int64_t rows = logits.shape[0], classes = logits.shape[1];
    if (tensor_is_none(dlogits.t) || rows == 0) return STATUS_OK;
    cross_entropy_backward_kernel<<<(unsigned)rows, THREADS, 0, stream_of(d)>>>(
        (float *)dlogits.t.data, dlogits.add, (const float *)dloss.data, (const float *)logits.data,
        (const float *)targets.data, rows, classes);
    return launched("cross_entropy_backward");
}

/* ---- mean square error ---------------------------------------------------------------------- */

#define PARTS 1024 /* most blocks of mse */
#define EACH  4096 /* elements that a block takes at least */

template <typename T>
__global__ void __launch_bounds__(THREADS)
    square_errors_kernel(float *sums, const T *x, const float *target, int64_t count) {
    __shared__ float shared[THREADS / 32];
    float sum = 0;
    for (int64_t i = (int64_t)blockIdx.x * THREADS + threadIdx.x; i < count;
         i += (int64_t)gridDim.x * THREADS) {
        const float off = to_float(x[i]) - target[i];
        sum += off * off;
    }
    sum = block_sum(sum, shared);
    if (threadIdx.x == 0) sums[blockIdx.x] = sum;
}

extern "C" Status mse_cuda(Device *d, Tensor loss, Tensor x, Tensor target) {
    const int64_t count = tensor_count(x), wanted = ceil_div(count, EACH);
    if (count == 0) return STATUS_OK;
    if (target.dtype != DTYPE_F32) return refuse_dtype("mse", target.dtype);
    const unsigned parts = (unsigned)(wanted < PARTS ? wanted : PARTS);
    float *sums;
    TRY(scratch_take(d, sizeof(float) * parts, (void **)&sums));
    scratch_done(d);
    WITH_ACT("mse", x.dtype, T,
             square_errors_kernel<T><<<parts, THREADS, 0, stream_of(d)>>>(
                 sums, (const T *)x.data, (const float *)target.data, count));
    mean_loss_kernel<<<1, THREADS, 0, stream_of(d)>>>((float *)loss.data, sums, parts, count);
    return launched("mse");
}

template <typename T>
__global__ void __launch_bounds__(THREADS)
    mse_backward_kernel(T *dx, bool add, const float *dloss, const T *x, const float *target,
                        int64_t count) {
    const int64_t i = (int64_t)blockIdx.x * THREADS + threadIdx.x;
    if (i >= count) return;
    float value[1] = {2.0f * dloss[0] / count * (to_float(x[i]) - target[i])};
    pack_put<T, 1>(dx + i, value, add);
}

extern "C" Status mse_backward_cuda(Device *d, Grad dx, Tensor dloss, Tensor x, Tensor target) {
    const int64_t count = tensor_count(x);
    if (tensor_is_none(dx.t) || count == 0) return STATUS_OK;
    if (dx.t.dtype != x.dtype || target.dtype != DTYPE_F32)
        return refuse_dtype("mse_backward", dx.t.dtype);
    WITH_ACT("mse_backward", x.dtype, T,
             mse_backward_kernel<T>
             <<<(unsigned)ceil_div(count, THREADS), THREADS, 0, stream_of(d)>>>(
                 (T *)dx.t.data, dx.add, (const float *)dloss.data, (const T *)x.data,
                 (const float *)target.data, count));
    return launched("mse_backward");
}
