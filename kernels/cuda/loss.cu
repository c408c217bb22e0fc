/* Softmax cross-entropy with soft targets: a block per row. */
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
    mean_loss_kernel(float *loss, const float *losses, int64_t rows) {
    __shared__ float shared[THREADS / 32];
    float sum = 0;
    for (int64_t r = threadIdx.x; r < rows; r += THREADS) sum += losses[r];
    sum = block_sum(sum, shared);
    if (threadIdx.x == 0) loss[0] = sum / rows;
}

extern "C" Status cross_entropy_cuda(Device *d, Tensor loss, Tensor logits, Tensor targets) {
    const int64_t rows = logits.shape[0], classes = logits.shape[1];
    if (rows == 0) return STATUS_OK;
    float *losses;
    TRY(scratch_take(d, sizeof(float) * rows, (void **)&losses));
    row_loss_kernel<<<(unsigned)rows, THREADS, 0, stream_of(d)>>>(
        losses, (const float *)logits.data, (const float *)targets.data, classes);
    mean_loss_kernel<<<1, THREADS, 0, stream_of(d)>>>((float *)loss.data, losses, rows);
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
