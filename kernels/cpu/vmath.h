/* Scalar functions of the models, without branches or calls, so that loops over them vectorise.
 *
 * The polynomials are own fits (Lawson-weighted least squares in double precision, errors weighted
 * as the result is used). tests/unit/test_vmath.c measures them against libm in double: exp 1 ulp,
 * erf 2 ulp with fused multiply-add.
 */
#ifndef TTV_KERNELS_CPU_VMATH_H
#define TTV_KERNELS_CPU_VMATH_H

#include <math.h>
#include <stdint.h>
#include <string.h>

/* e^x; 0 below -87.33 (no subnormal results), 2.4e38 above 88.37; NaN stays. */
static inline float exp_value(float x) {
    const float low = -87.33f, high = 88.37f;
    /* 1.5 * 2^23: adding it rounds to an integer and leaves that in the lowest bits. */
    const float magic = 12582912.0f;
    float y = x < low ? low : x;
    y = y > high ? high : y;
    const float shifted = y * 1.44269504088896341f + magic, n = shifted - magic;
    /* ln 2 in two parts, the first of which n multiplies exactly. */
    const float r = (y - n * 0.693359375f) - n * -2.12194440e-4f;
    float p = 1.381314476e-3f;
    p = p * r + 8.369418792e-3f;
    p = p * r + 4.166845605e-2f;
    p = p * r + 1.666651517e-1f;
    p = p * r + 4.999999404e-1f;
    p = p * (r * r) + r;
    uint32_t bits;
    memcpy(&bits, &shifted, sizeof bits);
    bits = (bits << 23) + (127u << 23);
    float scale;
    memcpy(&scale, &bits, sizeof scale);
    return x < low ? 0.0f : (1.0f + p) * scale;
}

/* erf(x), and e^(-x^2) along with it. Up to 1: x + x P(x^2); above: 1 - e^(-x^2) Q(x). */
static inline float erf_exp_value(float x, float *power) {
    const float a = fabsf(x), s = a * a, t = a > 3.95f ? 3.95f : a, e = exp_value(-s);
    float small = 7.853907300e-5f;
    small = small * s + -8.010208840e-4f;
    small = small * s + 5.188329611e-3f;
    small = small * s + -2.685381286e-2f;
    small = small * s + 1.128358543e-1f;
    small = small * s + -3.761262596e-1f;
    small = small * s + 1.283791661e-1f;
    small = small * a + a;
    float large = -4.115113406e-4f;
    large = large * t + 6.287491880e-3f;
    large = large * t + -4.247514904e-2f;
    large = large * t + 1.683327556e-1f;
    large = large * t + -4.386903942e-1f;
    large = large * t + 7.994722724e-1f;
    large = large * t + -1.051883459f;
    large = large * t + 9.869515300e-1f;
    large = 1.0f - e * large;
    *power = e;
    return copysignf(a > 1.0f ? large : small, x);
}

static inline float erf_value(float x) {
    float power;
    return erf_exp_value(x, &power);
}

static inline float sigma_value(float x) {
    return 1.0f / (1.0f + exp_value(-x));
}

/* s(1-s) without the cancellation of 1-s. */
static inline float dsigma_value(float x) {
    const float e = exp_value(-fabsf(x)), s = 1.0f / (1.0f + e);
    return e * s * s;
}

/* log(1 + e^x) = max(x, 0) + log(1 + e), e = e^(-|x|) in (0, 1]. log(1 + e) = 2 artanh(z) with
 * z = e/(2 + e) <= 1/3, where seven terms of the series are exact to 2e-8. */
static inline float softplus_value(float x) {
    const float e = exp_value(-fabsf(x)), z = e / (2.0f + e), s = z * z;
    float p = 1.0f / 13.0f;
    p = p * s + 1.0f / 11.0f;
    p = p * s + 1.0f / 9.0f;
    p = p * s + 1.0f / 7.0f;
    p = p * s + 1.0f / 5.0f;
    p = p * s + 1.0f / 3.0f;
    p = p * s + 1.0f;
    return (x > 0.0f ? x : 0.0f) + 2.0f * z * p;
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
    return 0.5f * x * (1.0f + erf_value(x * 0.70710678118654752f));
}

static inline float dgelu_value(float x) {
    float power; /* e^(-x^2/2) */
    const float erf_part = erf_exp_value(x * 0.70710678118654752f, &power);
    return 0.5f * (1.0f + erf_part) + x * (0.39894228040143268f * power);
}

/* (2 - x^2) phi(x). */
static inline float d2gelu_value(float x) {
    return (2.0f - x * x) * (0.39894228040143268f * exp_value(-0.5f * x * x));
}

/* The tanh form of GELU is x sigma(2u), u = sqrt(2/pi)(x + 0.044715 x^3); slope and bend are those
 * of 2u. */
static inline float gelu_tanh_twice_u(float x) {
    return 1.59576912160573072f * (x + 0.044715f * x * x * x);
}
static inline float gelu_tanh_slope(float x) {
    return 1.59576912160573072f * (1.0f + 0.134145f * x * x);
}
static inline float gelu_tanh_value(float x) {
    return x * sigma_value(gelu_tanh_twice_u(x));
}
static inline float dgelu_tanh_value(float x) {
    const float w = gelu_tanh_twice_u(x);
    return sigma_value(w) + x * dsigma_value(w) * gelu_tanh_slope(x);
}
static inline float d2gelu_tanh_value(float x) {
    const float w = gelu_tanh_twice_u(x), s = sigma_value(w), s1 = dsigma_value(w);
    const float slope = gelu_tanh_slope(x), bend = 0.428128897378685f * x;
    return s1 * (2.0f * slope + x * ((1.0f - 2.0f * s) * slope * slope + bend));
}

static inline float d2sigma_value(float x) {
    return dsigma_value(x) * (1.0f - 2.0f * sigma_value(x));
}

/* Up to 0.25 the odd series, which keeps the relative precision of small values. */
static inline float tanh_value(float x) {
    const float e = exp_value(-2.0f * fabsf(x)), large = (1.0f - e) / (1.0f + e), s = x * x;
    float small = 62.0f / 2835.0f;
    small = small * s - 17.0f / 315.0f;
    small = small * s + 2.0f / 15.0f;
    small = small * s - 1.0f / 3.0f;
    small = small * (s * x) + x;
    return fabsf(x) < 0.25f ? small : copysignf(large, x);
}
static inline float dtanh_value(float x) {
    return 4.0f * dsigma_value(2.0f * x);
}
static inline float d2tanh_value(float x) {
    return -2.0f * tanh_value(x) * dtanh_value(x);
}

static inline float relu_value(float x) {
    return x > 0.0f ? x : 0.0f * x; /* NaN stays NaN */
}
static inline float step_value(float x) {
    return x > 0.0f ? 1.0f : 0.0f;
}
static inline float sign_value(float x) {
    return x > 0.0f ? 1.0f : x < 0.0f ? -1.0f : 0.0f;
}

/* 0 where there is nothing to divide by: the gradient of a norm at 0 is taken to be 0. */
static inline float rsqrt_value(float x) {
    return x > 0.0f ? 1.0f / sqrtf(x) : 0.0f * x;
}
static inline float drsqrt_value(float x) {
    const float r = x > 0.0f ? 1.0f / sqrtf(x) : 0.0f * x;
    return -0.5f * r * r * r;
}

/* Of few values (momentum factors): the library's. */
static inline float log_value(float x) {
    return logf(x < 1e-30f ? 1e-30f : x);
}
static inline float dlog_value(float x) {
    return x < 1e-30f ? 0.0f : 1.0f / x;
}

/* For BF16 values: within 6e-5 of gelu and 2e-4 of its slope, where BF16 itself rounds by up to
 * 4e-3 of the value. A third of the work: Phi(x) - 1/2 and gelu'(x) - 1/2 are odd, one polynomial
 * each. */
static inline float gelu_rough(float x) {
    float t = x > 4.5f ? 4.5f : x;
    t = t < -4.5f ? -4.5f : t;
    const float s = t * t;
    float p = 3.142749949e-11f;
    p = p * s + -3.412727656e-9f;
    p = p * s + 1.628750255e-7f;
    p = p * s + -4.530269052e-6f;
    p = p * s + 8.237962174e-5f;
    p = p * s + -1.044419012e-3f;
    p = p * s + 9.612641297e-3f;
    p = p * s + -6.603933871e-2f;
    p = p * s + 3.987516463e-1f;
    const float y = x * (p * t + 0.5f);
    const float tail = x > 0.0f ? x : 0.0f;
    return s < 20.25f ? y : tail + (t - t); /* NaN stays NaN */
}

static inline float dgelu_rough(float x) {
    float t = x > 4.5f ? 4.5f : x;
    t = t < -4.5f ? -4.5f : t;
    const float s = t * t;
    float p = -2.210821283e-11f;
    p = p * s + 2.521336251e-9f;
    p = p * s + -1.268060430e-7f;
    p = p * s + 3.721949042e-6f;
    p = p * s + -7.122212264e-5f;
    p = p * s + 9.405429591e-4f;
    p = p * s + -8.815862238e-3f;
    p = p * s + 5.860930681e-2f;
    p = p * s + -2.649256885e-1f;
    p = p * s + 7.976261377e-1f;
    const float tail = x > 0.0f ? 1.0f : 0.0f;
    return s < 20.25f ? p * t + 0.5f : tail + (t - t);
}

#endif
