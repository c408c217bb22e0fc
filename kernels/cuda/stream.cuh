/* Loads of what no kernel reads again soon: marked as first to go, so that the second-level cache
 * keeps what kernels write for the next one.
 */
#ifndef TTV_KERNELS_CUDA_STREAM_CUH
#define TTV_KERNELS_CUDA_STREAM_CUH

#include "kernels/cuda/common.cuh"

/* As pack_load. */
template <typename T, int V>
static __device__ __forceinline__ void pack_load_once(float (&out)[V], const T *p) {
    if constexpr (V * sizeof(T) == sizeof(uint4)) {
        union {
            uint4 raw;
            T v[V];
        } pack;
        pack.raw = __ldcs(reinterpret_cast<const uint4 *>(p));
#pragma unroll
        for (int i = 0; i < V; i++) out[i] = to_float(pack.v[i]);
    } else {
        pack_load<T, V>(out, p);
    }
}

static __device__ __forceinline__ uint4 load_once(const void *p) {
    return __ldcs(static_cast<const uint4 *>(p));
}

#endif
