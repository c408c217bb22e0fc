/* Norms of matrices and what a chain divides by, in one kernel: eight blocks of a cluster share a
 * matrix and join their sums in a fixed order.
 */
#include "kernels/cuda/newton_schulz.cuh"
#include "kernels/cuda/wgmma.cuh"

#define PARTS   8 /* blocks of a matrix */
#define THREADS 1024

#if !defined(__CUDA_ARCH__) || __CUDA_ARCH__ >= 900
#define IN_PARTS __cluster_dims__(PARTS, 1, 1)
#else
#define IN_PARTS /* an empty kernel that is never run */
#endif

/* copy (optional) = x, rounded; count is a multiple of 8. */
template <typename T>
__global__ void IN_PARTS __launch_bounds__(THREADS)
    norms_kernel(float *norms, float *rates, const T *x, bf16 *copy, int count) {
#if HAVE_SM90A
    __shared__ float sums[THREADS / 32], parts[PARTS];
    constexpr int V = 16 / (int)sizeof(T);
    const int rank = cluster_rank(), lane = threadIdx.x & 31, m = blockIdx.x / PARTS;
    const int64_t base = (int64_t)m * count;
    float sum = 0;
    cluster_sync(); /* no block's shared memory is written to before that block has begun */
#pragma unroll 4
    for (int i = (rank * THREADS + threadIdx.x) * V; i < count; i += PARTS * THREADS * V) {
        float v[V];
        pack_load<T, V>(v, x + base + i);
#pragma unroll
        for (int j = 0; j < V; j++) sum = fmaf(v[j], v[j], sum);
        if (copy) pack_store<bf16, V>(copy + base + i, v);
    }
    sum = warp_sum(sum);
    if (lane == 0) sums[threadIdx.x / 32] = sum;
    __syncthreads();
    if (threadIdx.x < 32) {
        sum = warp_sum(sums[lane]);
        if (lane == 0)
            asm volatile(
                "{\n.reg .b32 remote;\nmapa.shared::cluster.u32 remote, %0, 0;\n"
                "st.shared::cluster.f32 [remote], %1;\n}\n" ::"r"(shared_address(parts + rank)),
                "f"(sum)
                : "memory");
    }
    cluster_sync();
    if (rank > 0 || threadIdx.x > 0) return;
    sum = 0;
    for (int i = 0; i < PARTS; i++) sum += parts[i];
    norms[m] = sqrtf(sum);
    rates[m] = 1.0f / (norms[m] + NORM_OFFSET);
#endif
}

Status norms_find(const Iteration *it, float *norms, float *rates, Tensor x, void *copy) {
    const unsigned blocks = (unsigned)(it->n * PARTS);
    const int count = (int)(it->r * it->c);
    WITH_ACT("newton_schulz", x.dtype, T,
             norms_kernel<T><<<blocks, THREADS, 0, stream_of(it->d)>>>(
                 norms, rates, (const T *)x.data, (bf16 *)copy, count));
    return launched("newton_schulz");
}
