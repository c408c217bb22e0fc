#include "core_fixture.h"

#include <math.h>

#include "core/rng.h"

enum { DRAWS = 200000 };

static void philox_matches_known_answers(void **state) {
    (void)state;
    static const struct {
        uint32_t counter[4], key[2], out[4];
    } vectors[] = {
        /* kat_vectors of Random123 */
        {{0, 0, 0, 0}, {0, 0}, {0x6627e8d5, 0xe169c58d, 0xbc57ac4c, 0x9b00dbd8}},
        {{0xffffffff, 0xffffffff, 0xffffffff, 0xffffffff},
         {0xffffffff, 0xffffffff},
         {0x408f276d, 0x41c83b0e, 0xa20bc7c6, 0x6d5451fd}},
        {{0x243f6a88, 0x85a308d3, 0x13198a2e, 0x03707344},
         {0xa4093822, 0x299f31d0},
         {0xd16cfe09, 0x94fdcceb, 0x5001e420, 0x24126ea1}},
    };
    for (int i = 0; i < COUNT(vectors); i++) {
        uint32_t out[4];
        philox4x32(vectors[i].counter, vectors[i].key, out);
        assert_memory_equal(out, vectors[i].out, sizeof out);
    }
}

static void streams_are_repeatable_and_differ(void **state) {
    (void)state;
    Rng a = rng_stream(7, RNG_AUGMENT, 3, 41), b = a;
    uint64_t first[8];
    for (int i = 0; i < 8; i++) first[i] = rng_u32(&a);
    for (int i = 0; i < 8; i++) assert_int_equal(rng_u32(&b), first[i]);
    Rng others[] = {
        rng_stream(8, RNG_AUGMENT, 3, 41),
        rng_stream(7, RNG_SHUFFLE, 3, 41),
        rng_stream(7, RNG_AUGMENT, 4, 41),
        rng_stream(7, RNG_AUGMENT, 3, 42),
        rng_stream(7 + (1ull << 32), RNG_AUGMENT, 3, 41),
        rng_stream(7, RNG_AUGMENT, 3, 41 + (1ull << 32)),
    };
    for (int i = 0; i < COUNT(others); i++) assert_int_not_equal(rng_u32(&others[i]), first[0]);
}

static void block_numbers_carry(void **state) {
    (void)state;
    Rng r = rng_stream(1, RNG_TEST, 2, 3);
    r.counter[0] = UINT32_MAX;
    rng_u32(&r);
    assert_int_equal(r.counter[0], 0);
    assert_int_equal(r.counter[1], RNG_TEST + (1u << 30));
}

typedef struct Moments {
    double mean, variance, min, max;
} Moments;

static Moments measure(Rng *r, double (*draw)(Rng *r)) {
    Moments m = {.min = INFINITY, .max = -INFINITY};
    double sum = 0, squares = 0;
    for (int i = 0; i < DRAWS; i++) {
        double x = draw(r);
        sum += x;
        squares += x * x;
        m.min = fmin(m.min, x);
        m.max = fmax(m.max, x);
    }
    m.mean = sum / DRAWS;
    m.variance = squares / DRAWS - m.mean * m.mean;
    return m;
}

/* Five standard errors: fixed streams, so this passes always or never. */
static void assert_moments(Moments m, double mean, double variance, double fourth_factor) {
    assert_true(fabs(m.mean - mean) < 5 * sqrt(variance / DRAWS));
    assert_true(fabs(m.variance - variance) < 5 * variance * sqrt(fourth_factor / DRAWS));
}

static double draw_range(Rng *r) {
    return rng_range(r, -2, 6);
}
static double draw_trunc(Rng *r) {
    return rng_trunc_normal(r, -2, 2);
}
static double draw_trunc_skew(Rng *r) {
    return rng_trunc_normal(r, -0.3, 1.5);
}
static double draw_tail(Rng *r) {
    return rng_trunc_normal(r, 5, INFINITY);
}
static double draw_low_tail(Rng *r) {
    return rng_trunc_normal(r, -3, -1);
}
static double draw_narrow(Rng *r) {
    return rng_trunc_normal(r, 0.1, 0.2);
}
static double draw_beta_half(Rng *r) {
    return rng_beta(r, 0.8, 0.8);
}
static double draw_beta(Rng *r) {
    return rng_beta(r, 2, 5);
}

static double density(double x) {
    return exp(-x * x / 2) / sqrt(2 * M_PI);
}
static double tail(double x) {
    return erfc(x / sqrt(2)) / 2;
}

/* Mean and variance of N(0,1) cut to [a,b] (Johnson, Kotz, Balakrishnan). */
static void assert_trunc(Moments m, double a, double b) {
    double mass = tail(a) - tail(b), fa = density(a), fb = isinf(b) ? 0 : density(b);
    double mean = (fa - fb) / mass;
    double variance = 1 + (a * fa - (isinf(b) ? 0 : b * fb)) / mass - mean * mean;
    assert_moments(m, mean, variance, 8);
    assert_true(m.min >= a && m.max <= b);
}

static void distributions_have_their_moments(void **state) {
    (void)state;
    Rng r = rng_stream(11, RNG_TEST, 0, 0);
    Moments m = measure(&r, rng_uniform);
    assert_moments(m, 0.5, 1.0 / 12, 1);
    assert_true(m.min >= 0 && m.max < 1);
    m = measure(&r, draw_range);
    assert_moments(m, 2, 64.0 / 12, 1);
    assert_true(m.min >= -2 && m.max < 6);
    m = measure(&r, rng_normal);
    assert_moments(m, 0, 1, 2);
    assert_true(m.max > 3.5 && m.min < -3.5);
    assert_trunc(measure(&r, draw_trunc), -2, 2);
    assert_trunc(measure(&r, draw_trunc_skew), -0.3, 1.5);
    assert_trunc(measure(&r, draw_tail), 5, INFINITY);
    assert_trunc(measure(&r, draw_low_tail), -3, -1);
    assert_trunc(measure(&r, draw_narrow), 0.1, 0.2);
    assert_true(rng_trunc_normal(&r, 3, 3) == 3);
    m = measure(&r, draw_beta_half); /* mean a/(a+b), variance ab/((a+b)^2 (a+b+1)) */
    assert_moments(m, 0.5, 0.25 / 2.6, 2);
    m = measure(&r, draw_beta);
    assert_moments(m, 2.0 / 7, 10.0 / (49 * 8), 3);
    assert_true(m.min >= 0 && m.max <= 1);
}

static void extreme_betas_stay_in_range(void **state) {
    (void)state;
    Rng r = rng_stream(12, RNG_TEST, 0, 0);
    static const double values[] = {0, 1e-300, 1e-3, 1, 1e6};
    for (int i = 0; i < COUNT(values); i++) {
        for (int j = 0; j < COUNT(values); j++) {
            for (int k = 0; k < 100; k++) {
                double x = rng_beta(&r, values[i], values[j]);
                assert_true(x >= 0 && x <= 1);
            }
        }
    }
}

static void integers_are_uniform(void **state) {
    (void)state;
    Rng r = rng_stream(13, RNG_TEST, 0, 0);
    int counts[7] = {0};
    for (int i = 0; i < 70000; i++) counts[rng_below(&r, 7)]++;
    double chi2 = 0;
    for (int i = 0; i < 7; i++) chi2 += (counts[i] - 10000.0) * (counts[i] - 10000.0) / 10000.0;
    assert_true(chi2 < 22.5); /* 6 degrees of freedom, p = 0.001 */
    assert_int_equal(rng_below(&r, 1), 0);
    uint64_t n = (1ull << 63) + 1;
    for (int i = 0; i < 1000; i++) assert_true(rng_below(&r, n) < n);
}

static void permutations_are_fair(void **state) {
    (void)state;
    Rng r = rng_stream(14, RNG_SHUFFLE, 0, 0);
    int counts[24] = {0};
    for (int k = 0; k < 24000; k++) {
        int64_t p[4];
        int seen = 0, rank = 0;
        rng_permutation(&r, p, 4);
        for (int i = 0; i < 4; i++) seen |= 1 << p[i];
        assert_int_equal(seen, 15);
        for (int i = 0; i < 4; i++) { /* Lehmer code: the number of this order among 24 */
            int smaller = 0;
            for (int j = i + 1; j < 4; j++) smaller += p[j] < p[i];
            rank = rank * (4 - i) + smaller;
        }
        counts[rank]++;
    }
    double chi2 = 0;
    for (int i = 0; i < 24; i++) chi2 += (counts[i] - 1000.0) * (counts[i] - 1000.0) / 1000.0;
    assert_true(chi2 < 49.7); /* 23 degrees of freedom, p = 0.001 */
    rng_permutation(&r, NULL, 0);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(philox_matches_known_answers),
        cmocka_unit_test(streams_are_repeatable_and_differ),
        cmocka_unit_test(block_numbers_carry),
        cmocka_unit_test(distributions_have_their_moments),
        cmocka_unit_test(extreme_betas_stay_in_range),
        cmocka_unit_test(integers_are_uniform),
        cmocka_unit_test(permutations_are_fair),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
