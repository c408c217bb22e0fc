/* Scalar functions of the models, written without branches or calls so that loops over them
 * vectorise. */
#ifndef TTV_KERNELS_CPU_VMATH_H
#define TTV_KERNELS_CPU_VMATH_H

#include <math.h>

static inline float sigma_value(float x) {
    return 1.0f / (1.0f + expf(-x));
}

static inline float silu_value(float x) {
    return x * sigma_value(x);
}

static inline float dsilu_value(float x) {
    const float s = sigma_value(x);
    return s * (1.0f + x * (1.0f - s));
}

static inline float d2silu_value(float x) {
    const float s = sigma_value(x);
    return s * (1.0f - s) * (2.0f + x * (1.0f - 2.0f * s));
}

static inline float gelu_value(float x) {
    return 0.5f * x * (1.0f + erff(x * 0.70710678118654752f));
}

static inline float dgelu_value(float x) {
    const float density = 0.39894228040143268f * expf(-0.5f * x * x);
    return 0.5f * (1.0f + erff(x * 0.70710678118654752f)) + x * density;
}

#endif
