/* Kernels of few tokens one behind the other (programmatic dependent launch, compute capability
 * 9.0): a kernel's blocks are placed, and its first instructions run, while the kernel before is
 * still at work. Passes over one view are bound by the gaps between kernels, not by their work.
 *
 * A kernel launched with chain_launch() calls chain_wait() in every thread before it touches memory
 * that another kernel writes or reads: from there on, all kernels before are complete. Kernels
 * launched in the usual way may stand before and behind it.
 */
#ifndef TTV_KERNELS_CUDA_CHAIN_CUH
#define TTV_KERNELS_CUDA_CHAIN_CUH

#include "kernels/cuda/common.cuh"

/* Waits for the kernels before, then lets the blocks of the next one be placed. */
static __device__ __forceinline__ void chain_wait(void) {
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 900
    asm volatile("griddepcontrol.wait;\ngriddepcontrol.launch_dependents;" ::: "memory");
#endif
}

/* Of roles that another thread of the block does not wait for. */
static __device__ __forceinline__ void chain_only_wait(void) {
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 900
    asm volatile("griddepcontrol.wait;" ::: "memory");
#endif
}

#define CHAIN_ATTRIBUTES 2

/* Space for a launch; `depth` > 1: blocks of a cluster along z. */
typedef struct ChainConfig {
    cudaLaunchConfig_t config;
    cudaLaunchAttribute attribute[CHAIN_ATTRIBUTES];
} ChainConfig;

/* `early`: placed ahead, where the card can do it. */
static inline void chain_config(ChainConfig *c, Device *d, dim3 grid, dim3 block, size_t shared,
                                bool early, unsigned depth) {
    *c = {};
    c->config.gridDim = grid, c->config.blockDim = block;
    c->config.dynamicSmemBytes = shared, c->config.stream = stream_of(d);
    c->config.attrs = c->attribute;
    if (early && backend_of(d)->compute >= 90) {
        cudaLaunchAttribute *a = &c->attribute[c->config.numAttrs++];
        a->id = cudaLaunchAttributeProgrammaticStreamSerialization;
        a->val.programmaticStreamSerializationAllowed = 1;
    }
    if (depth > 1) {
        cudaLaunchAttribute *a = &c->attribute[c->config.numAttrs++];
        a->id = cudaLaunchAttributeClusterDimension;
        a->val.clusterDim.x = a->val.clusterDim.y = 1;
        a->val.clusterDim.z = depth;
    }
}

/* Rows up to which kernels are launched ahead: beyond, their work hides the gaps. */
#define CHAIN_ROWS 4096

template <typename... P, typename... A>
static inline void chain_launch(Device *d, bool early, dim3 grid, dim3 block, size_t shared,
                                void (*kernel)(P...), A... arguments) {
    ChainConfig c;
    chain_config(&c, d, grid, block, shared, early, 1);
    (void)cudaLaunchKernelEx(&c.config, kernel, arguments...); /* launched() tells */
}

#endif
