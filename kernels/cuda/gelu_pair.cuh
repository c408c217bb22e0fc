/* GELU and its derivative for pairs of BF16 numbers, with as few instructions as BF16 results need:
 * beside the tensor cores of a fused product every one of them costs (docs/performance.md).
 *
 * With a = |x|: 1 - Phi(a) = 2^q(a), and s(a) = Phi(-a) - a phi(a) = (0.7518 - a) 2^r(a), where
 * 0.7518 is the zero of s. q and r are polynomials of degree 5 and 3, fitted so that the largest
 * error is least: 6e-5 of 1 - Phi(a) up to a = 4 (beyond, a (1 - Phi(a)) is below 1.3e-4), 1.5e-4
 * of the slope. Both fall without end, so that large arguments come out right.
 */
#ifndef TTV_KERNELS_CUDA_GELU_PAIR_CUH
#define TTV_KERNELS_CUDA_GELU_PAIR_CUH

#include "kernels/cuda/mma.cuh"

static __device__ __forceinline__ uint32_t pair_fma(uint32_t a, uint32_t b, uint32_t c) {
    uint32_t d;
    asm("fma.rn.bf16x2 %0, %1, %2, %3;" : "=r"(d) : "r"(a), "r"(b), "r"(c));
    return d;
}

static __device__ __forceinline__ float gelu_tail(float a) {
    float q = fmaf(-0.000342753512f, a, 0.00604064124f);
    q = fmaf(q, a, -0.0489442682f);
    q = fmaf(q, a, -0.463179966f);
    q = fmaf(q, a, -1.14960552f);
    return exponential2(fmaf(q, a, -1.00009001f));
}

/* max(x, 0) - a (1 - Phi(a)) */
static __device__ __forceinline__ uint32_t gelu_pair(uint32_t x) {
    const uint32_t a = x & 0x7fff7fffu, zero = 0;
    const float low = low_of(a), high = high_of(a);
    const uint32_t below = pack2(low * gelu_tail(low), high * gelu_tail(high));
    uint32_t above;
    asm("max.bf16x2 %0, %1, %2;" : "=r"(above) : "r"(x), "r"(zero));
    return pair_fma(below, 0xbf80bf80u, above);
}

static __device__ __forceinline__ float slope_tail(float a) {
    float r = fmaf(-0.0178274155f, a, -0.598779084f);
    r = fmaf(r, a, -0.371578811f);
    return (0.751791525f - a) * exponential2(fmaf(r, a, -0.58884542f));
}

/* p GELU'(x): p s(a) where x is negative, else p - p s(a). */
static __device__ __forceinline__ uint32_t gelu_slope_pair(uint32_t p, uint32_t x) {
    const uint32_t a = x & 0x7fff7fffu;
    const uint32_t s = pack2(slope_tail(low_of(a)), slope_tail(high_of(a)));
    uint32_t negative; /* all bits of each half */
    asm("prmt.b32 %0, %1, %1, 0xbb99;" : "=r"(negative) : "r"(x));
    return pair_fma(p ^ (~negative & 0x80008000u), s, p & ~negative);
}

#endif
