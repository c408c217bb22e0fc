/* What the products written for Hopper share: tiles, the ring of stages. */
#ifndef TTV_KERNELS_CUDA_GEMM_RING_CUH
#define TTV_KERNELS_CUDA_GEMM_RING_CUH

#include "kernels/cuda/tensor_map.cuh"
#include "kernels/cuda/wgmma.cuh"

#define ROWS         128 /* of a block's tile */
#define DEPTH        64  /* k per stage */
#define CLUSTER      2   /* blocks, on neighbouring rows */
#define A_BYTES      (ROWS * 128)
#define SHARED_LIMIT (227 * 1024)
#if !defined(__CUDA_ARCH__) || __CUDA_ARCH__ >= 900
#define IN_CLUSTERS __cluster_dims__(CLUSTER, 1, 1)
#else
#define IN_CLUSTERS /* an empty kernel that is never run */
#endif

#if HAVE_SM90A

/* Where a role is in the ring. */
typedef struct Turn {
    int stage, phase;
} Turn;

template <int STAGES> static __device__ __forceinline__ void turn_next(Turn &t) {
    if (++t.stage == STAGES) {
        t.stage = 0;
        t.phase ^= 1;
    }
}

/* A barrier among `count` threads of the block. */
static __device__ __forceinline__ void meet(int barrier, int count) {
    asm volatile("bar.sync %0, %1;" ::"r"(barrier), "r"(count) : "memory");
}
static __device__ __forceinline__ void shared_put(Shared at, float2 v) {
    asm volatile("st.shared.v2.f32 [%0], {%1, %2};" ::"r"(at), "f"(v.x), "f"(v.y) : "memory");
}
static __device__ __forceinline__ float2 shared_pair(Shared at) {
    float2 v;
    asm volatile("ld.shared.v2.f32 {%0, %1}, [%2];" : "=f"(v.x), "=f"(v.y) : "r"(at) : "memory");
    return v;
}
static __device__ __forceinline__ uint4 shared_chunk(Shared at) {
    uint4 v;
    asm volatile("ld.shared.v4.b32 {%0, %1, %2, %3}, [%4];"
                 : "=r"(v.x), "=r"(v.y), "=r"(v.z), "=r"(v.w)
                 : "r"(at)
                 : "memory");
    return v;
}

#endif

#endif
