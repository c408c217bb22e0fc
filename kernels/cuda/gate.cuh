/* What the gated products share (gate_product.cu, gate_read.cu, gate_write.cu), and their forms for
 * all sizes and F32: products into scratch and passes over them (gate_composed.cu).
 */
#ifndef TTV_KERNELS_CUDA_GATE_CUH
#define TTV_KERNELS_CUDA_GATE_CUH

#include "kernels/cuda/common.cuh"

/* The kernel of gate_product and whether it can. */
bool gate_fits(Device *d, Tensor p, Tensor x, Tensor w);
Status gate_launch(Device *d, Tensor p, Tensor x, Tensor w, Tensor rate);

/* Slots; those of read and write leave scratch to be given back. */
Status gate_product_composed(Device *d, Tensor p, Tensor x, Tensor w, Tensor rate);
Status gate_read_composed(Device *d, Tensor y, Tensor x, Tensor w, Tensor s);
Status gate_write_composed(Device *d, Tensor y, Tensor x, Tensor v, Tensor w, Tensor rate);

static __device__ __forceinline__ float gate_of(float a, float c, float rate) {
    return rate * a * logistic(a) * c;
}

/* Four words that lane q of four has of four blocks of 8 columns become all words of block q. */
static __device__ __forceinline__ uint4 words_turn(const uint32_t (&v)[4]) {
    const bool odd = threadIdx.x & 1, high = threadIdx.x & 2;
    const uint32_t r0 = __shfl_xor_sync(0xffffffffu, odd ? v[0] : v[1], 1);
    const uint32_t r1 = __shfl_xor_sync(0xffffffffu, odd ? v[2] : v[3], 1);
    const uint32_t ax = odd ? r0 : v[0], ay = odd ? v[1] : r0; /* block q % 2 */
    const uint32_t bx = odd ? r1 : v[2], by = odd ? v[3] : r1; /* block 2 + q % 2 */
    const uint32_t rx = __shfl_xor_sync(0xffffffffu, high ? ax : bx, 2);
    const uint32_t ry = __shfl_xor_sync(0xffffffffu, high ? ay : by, 2);
    return high ? make_uint4(rx, ry, bx, by) : make_uint4(ax, ay, rx, ry);
}

/* One launch of clusters of two blocks. */
template <typename A>
static inline Status pairs_launch(Device *d, const char *name, void (*kernel)(A), int clusters,
                                  int threads, int shared, const A &arguments) {
    cudaLaunchAttribute attribute = {};
    cudaLaunchConfig_t config = {};
    attribute.id = cudaLaunchAttributeClusterDimension;
    attribute.val.clusterDim.x = 2;
    attribute.val.clusterDim.y = attribute.val.clusterDim.z = 1;
    config.gridDim = dim3((unsigned)(2 * clusters)), config.blockDim = dim3((unsigned)threads);
    config.dynamicSmemBytes = (size_t)shared;
    config.stream = stream_of(d);
    config.attrs = &attribute, config.numAttrs = 1;
    CUDA_TRY(cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, shared),
             name);
    CUDA_TRY(cudaLaunchKernelEx(&config, kernel, arguments), name);
    return STATUS_OK;
}

/* Hides where a value comes from: addresses are not to be worked out ahead, results not to be
 * rounded later, in registers that are needed. */
template <typename T> static __device__ __forceinline__ void settle(T &value) {
    asm volatile("" : "+r"(value));
}

#endif
