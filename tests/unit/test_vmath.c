/* The CPU's own exp, erf and their kin against libm in double, and the rounding to BF16. */
#include <stdarg.h>
#include <stddef.h>
#include <setjmp.h>
#include <stdint.h>
#include <cmocka.h>
#include <math.h>
#include <stdio.h>
#include <string.h>

#include "core/tensor.h"
#include "kernels/cpu/values.h"
#include "kernels/cpu/vmath.h"

/* |value - exact| in units of the last place of exact. */
static double ulps(float value, double exact) {
    const float rounded = fabsf((float)exact);
    const double unit = (double)nextafterf(rounded, INFINITY) - (double)rounded;
    return fabs((double)value - exact) / unit;
}

static double worst(float (*f)(float), double (*exact)(double), float low, float high) {
    const int steps = 400000;
    double most = 0.0;
    for (int i = 0; i <= steps; i++) {
        const float x = low + (high - low) * (float)i / (float)steps;
        most = fmax(most, ulps(f(x), exact((double)x)));
    }
    return most;
}

static float exp_f(float x) {
    return exp_value(x);
}
static float erf_f(float x) {
    return erf_value(x);
}
static float sigma_f(float x) {
    return sigma_value(x);
}
static double sigma_exact(double x) {
    return 1.0 / (1.0 + exp(-x));
}

static float dsigma_f(float x) {
    return dsigma_value(x);
}
static double dsigma_exact(double x) {
    const double e = exp(-fabs(x));
    return e / ((1.0 + e) * (1.0 + e));
}
static float softplus_f(float x) {
    return softplus_value(x);
}
static double softplus_exact(double x) {
    return fmax(x, 0.0) + log1p(exp(-fabs(x)));
}

static void exp_is_accurate(void **state) {
    (void)state;
    assert_true(worst(exp_f, exp, -87.0f, 88.0f) <= 2.0);
    assert_true(worst(exp_f, exp, -1.0f, 1.0f) <= 2.0);
    assert_true(exp_value(0.0f) == 1.0f);
    assert_true(exp_value(-200.0f) == 0.0f);
    assert_true(exp_value(-INFINITY) == 0.0f);
    assert_true(exp_value(INFINITY) > 1e38f);
    assert_true(isnan(exp_value(NAN)));
}

static void erf_is_accurate(void **state) {
    (void)state;
    assert_true(worst(erf_f, erf, -6.0f, 6.0f) <= 2.0);
    assert_true(worst(erf_f, erf, -1e-3f, 1e-3f) <= 2.0);
    assert_true(erf_value(0.0f) == 0.0f);
    assert_true(erf_value(1e-30f) > 1.1e-30f);
    assert_true(erf_value(INFINITY) == 1.0f);
    assert_true(erf_value(-INFINITY) == -1.0f);
    assert_true(isnan(erf_value(NAN)));
}

static void sigma_is_accurate(void **state) {
    (void)state;
    assert_true(worst(sigma_f, sigma_exact, -80.0f, 80.0f) <= 4.0);
    assert_true(sigma_value(1000.0f) == 1.0f);
    assert_true(sigma_value(-1000.0f) < 1e-37f);
    assert_true(silu_value(-1000.0f) > -1e-34f);
    assert_true(gelu_value(-1000.0f) == 0.0f);
    assert_true(gelu_value(1000.0f) == 1000.0f);
    assert_true(dgelu_value(1000.0f) == 1.0f);
    assert_true(dgelu_value(-1000.0f) == 0.0f);
}

static void sigma_kin_is_accurate(void **state) {
    (void)state;
    assert_true(worst(dsigma_f, dsigma_exact, -80.0f, 80.0f) <= 6.0);
    assert_true(dsigma_value(0.0f) == 0.25f);
    assert_true(dsigma_value(1000.0f) == 0.0f && dsigma_value(-1000.0f) == 0.0f);
    assert_true(worst(softplus_f, softplus_exact, -80.0f, 80.0f) <= 6.0);
    assert_true(worst(softplus_f, softplus_exact, -2.0f, 2.0f) <= 6.0);
    assert_true(softplus_value(1000.0f) == 1000.0f);
    assert_true(softplus_value(-1000.0f) == 0.0f);
    assert_true(softplus_value(INFINITY) == INFINITY);
    assert_true(isnan(softplus_value(NAN)));
}

/* Every upper half with lower halves around the ties, against core's conversion. */
static void bf16_rounds_like_core(void **state) {
    (void)state;
    static const uint32_t low[] = {0, 1, 0x7fff, 0x8000, 0x8001, 0xffff};
    for (uint32_t high = 0; high < 0x10000; high++) {
        for (size_t i = 0; i < sizeof low / sizeof low[0]; i++) {
            const uint32_t bits = (high << 16) | low[i];
            float x;
            memcpy(&x, &bits, sizeof x);
            const uint16_t wanted = bf16_from_f32(x), got = bf16_round(x);
            if (isnan(x)) {
                assert_true(isnan(bf16_value(got)));
            } else {
                assert_int_equal(got, wanted);
            }
        }
        assert_true(isnan(bf16_value((uint16_t)high)) ||
                    bf16_value((uint16_t)high) == f32_from_bf16((uint16_t)high));
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(exp_is_accurate),       cmocka_unit_test(erf_is_accurate),
        cmocka_unit_test(sigma_is_accurate),     cmocka_unit_test(sigma_kin_is_accurate),
        cmocka_unit_test(bf16_rounds_like_core),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
