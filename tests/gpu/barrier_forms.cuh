/* What the programs' forms of barriers share: named_barriers.cu, cluster_barriers.cu. */
#ifndef TTV_TESTS_BARRIER_FORMS_CUH
#define TTV_TESTS_BARRIER_FORMS_CUH

#include <cuda_runtime.h>

/* Runs the forms between the blocks of a cluster, prints a line for each: how many guarded ones
 * gave wrong values. 0 where the card has no clusters. */
int cluster_forms(void);

static __device__ __forceinline__ void meet(int barrier, int threads) {
    asm volatile("bar.sync %0, %1;" ::"r"(barrier), "r"(threads) : "memory");
}
static __device__ __forceinline__ void arrive(int barrier, int threads) {
    asm volatile("bar.arrive %0, %1;" ::"r"(barrier), "r"(threads) : "memory");
}
static __device__ __forceinline__ unsigned address(const void *p) {
    return (unsigned)__cvta_generic_to_shared(p);
}
static __device__ __forceinline__ void mbarrier_init(unsigned barrier, int count) {
    asm volatile("mbarrier.init.shared.b64 [%0], %1;" ::"r"(barrier), "r"(count) : "memory");
}
static __device__ __forceinline__ void mbarrier_arrive(unsigned barrier) {
    asm volatile("mbarrier.arrive.shared.b64 _, [%0];" ::"r"(barrier) : "memory");
}
static __device__ __forceinline__ void mbarrier_wait(unsigned barrier, int parity = 0) {
    int done = 0;
    for (int polls = 0; !done && polls < 1 << 26; polls++)
        asm volatile("{\n.reg .pred p;\nmbarrier.test_wait.parity.shared.b64 p, [%1], %2;\n"
                     "selp.b32 %0, 1, 0, p;\n}\n"
                     : "=r"(done)
                     : "r"(barrier), "r"(parity)
                     : "memory");
    if (!done) __trap();
}
static __device__ __forceinline__ void wait_clocks(int clocks) {
    const long long begun = clock64();
    while (clock64() - begun < clocks) {
    }
}

#endif
