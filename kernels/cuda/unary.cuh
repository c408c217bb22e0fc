/* Functions of one variable that only the graph learner uses (fastweight.md 0, 2): exact, from the
 * library's own functions. */
#ifndef TTV_KERNELS_CUDA_UNARY_CUH
#define TTV_KERNELS_CUDA_UNARY_CUH

#include "kernels/cuda/common.cuh"

/* x sigma(2u), u = sqrt(2/pi)(x + 0.044715 x^3): value, slope or bend. */
static __device__ __noinline__ float gelu_tanh_function(UnaryKind f, float x) {
    const float w = 1.59576912160573072f * (x + 0.044715f * x * x * x);
    const float e = expf(-fabsf(w)), t = 1.0f / (1.0f + e), s = w > 0.0f ? t : e * t;
    const float s1 = e * t * t, slope = 1.59576912160573072f * (1.0f + 0.134145f * x * x);
    if (f == UNARY_GELU_TANH) return x * s;
    if (f == UNARY_DGELU_TANH) return s + x * s1 * slope;
    return s1 * (2.0f * slope + x * ((1.0f - 2.0f * s) * slope * slope + 0.428128897378685f * x));
}

static __device__ __noinline__ float graph_function(UnaryKind f, float x) {
    if (f >= UNARY_GELU_TANH && f <= UNARY_D2GELU_TANH) return gelu_tanh_function(f, x);
    if (f == UNARY_D2GELU) return (2.0f - x * x) * 0.39894228040143268f * expf(-0.5f * x * x);
    if (f == UNARY_EXP) return expf(x);
    if (f == UNARY_RELU) return x > 0.0f ? x : 0.0f * x;
    if (f == UNARY_STEP) return x > 0.0f ? 1.0f : 0.0f;
    if (f == UNARY_SIGN) return x > 0.0f ? 1.0f : x < 0.0f ? -1.0f : 0.0f;
    if (f == UNARY_RSQRT || f == UNARY_DRSQRT) {
        const float r = x > 0.0f ? 1.0f / sqrtf(x) : 0.0f * x;
        return f == UNARY_RSQRT ? r : -0.5f * r * r * r;
    }
    if (f == UNARY_LOG) return logf(x < 1e-30f ? 1e-30f : x);
    if (f == UNARY_DLOG) return x < 1e-30f ? 0.0f : 1.0f / x;
    if (f == UNARY_D2SIGMOID) {
        const float e = expf(-fabsf(x)), t = 1.0f / (1.0f + e), s = x > 0.0f ? t : e * t;
        return e * t * t * (1.0f - 2.0f * s);
    }
    const float e = expf(-2.0f * fabsf(x)), t = 1.0f / (1.0f + e), d = 4.0f * e * t * t;
    if (f == UNARY_TANH) return tanhf(x);
    return f == UNARY_DTANH ? d : -2.0f * tanhf(x) * d;
}

#endif
