/* 16-bit floats in software: the oracle for every vectorised conversion elsewhere. */
#include "core/tensor.h"

#include <string.h>

static uint32_t bits_of(float x) {
    uint32_t u;
    memcpy(&u, &x, sizeof u);
    return u;
}

static float float_of(uint32_t u) {
    float x;
    memcpy(&x, &u, sizeof x);
    return x;
}

uint16_t bf16_from_f32(float x) {
    uint32_t u = bits_of(x);
    /* Rounding could carry a NaN's payload into infinity: keep its top bits and set the quiet bit.
     */
    if ((u & 0x7fffffffu) > 0x7f800000u) return (uint16_t)((u >> 16) | 0x40u);
    return (uint16_t)((u + 0x7fffu + ((u >> 16) & 1u)) >> 16);
}

float f32_from_bf16(uint16_t x) {
    return float_of((uint32_t)x << 16);
}

/* value / 2^shift, rounded to nearest even. */
static uint32_t shift_round(uint32_t value, unsigned shift) {
    uint32_t kept = value >> shift;
    uint32_t rest = value & ((1u << shift) - 1u);
    uint32_t half = 1u << (shift - 1);
    return kept + (rest > half || (rest == half && (kept & 1u)));
}

uint16_t f16_from_f32(float x) {
    uint32_t u = bits_of(x);
    uint32_t sign = (u >> 16) & 0x8000u;
    uint32_t magnitude = u & 0x7fffffffu;
    if (magnitude > 0x7f800000u) return (uint16_t)(sign | 0x7e00u | ((magnitude >> 13) & 0x3ffu));
    if (magnitude >= 0x47800000u) return (uint16_t)(sign | 0x7c00u); /* >= 65536, infinity */
    int exponent = (int)(magnitude >> 23) - 127;
    if (exponent >= -14) {
        /* Normal: rebias 127 -> 15; a carry out of the mantissa correctly bumps the exponent. */
        return (uint16_t)(sign | shift_round(magnitude - (112u << 23), 13));
    }
    if (exponent < -25) return (uint16_t)sign; /* below half of the smallest subnormal, 2^-24 */
    uint32_t mantissa = (magnitude & 0x7fffffu) | 0x800000u;
    return (uint16_t)(sign | shift_round(mantissa, (unsigned)(-1 - exponent)));
}

float f32_from_f16(uint16_t x) {
    uint32_t sign = (uint32_t)(x & 0x8000u) << 16;
    uint32_t exponent = (x >> 10) & 0x1fu;
    uint32_t mantissa = x & 0x3ffu;
    if (exponent == 31) return float_of(sign | 0x7f800000u | (mantissa << 13));
    if (exponent > 0) return float_of(sign | ((exponent + 112u) << 23) | (mantissa << 13));
    float magnitude = (float)mantissa * 0x1p-24f; /* exact: subnormals of f16 are normal in f32 */
    return sign ? -magnitude : magnitude;
}
