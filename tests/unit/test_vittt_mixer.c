/* The three forms of the ViTTT mixer are one function; identities of vittt.md 10 and 13. */
#include <stdarg.h>
#include <stddef.h>
#include <setjmp.h>
#include <stdint.h>
#include <cmocka.h>

#include "vittt_fixture.h"

static const Size sizes[] = {
    {2, 6, 5, 24, 3},  /* d = 8, the golden file's */
    {1, 1, 1, 4, 1},   /* one token */
    {3, 2, 7, 15, 5},  /* d = 3 */
    {2, 3, 3, 7, 1},   /* d = 7, one head */
    {1, 5, 4, 40, 2},  /* d = 20 */
    {2, 1, 9, 12, 12}, /* d = 1, one row */
    {1, 8, 9, 66, 2},  /* d = 33 */
};

/* f32 sums in another order. */
#define SAME 2e-5

static void forms_agree(void **state) {
    (void)state;
    for (size_t i = 0; i < sizeof sizes / sizeof sizes[0]; i++) {
        Fixture f;
        fixture_open(&f, sizes[i], DTYPE_F32, 0.5);
        Result composed = fixture_run(&f, VITTT_COMPOSED);
        Result fused = fixture_run(&f, VITTT_FUSED);
        Result pairs = fixture_run(&f, VITTT_PAIRS);
        const char *worst = "";
        double a = result_distance(&fused, &composed, &worst);
        if (a > SAME) print_error("size %d: fused differs by %g in %s\n", (int)i, a, worst);
        double b = result_distance(&pairs, &composed, &worst);
        if (b > SAME) print_error("size %d: pairs differ by %g in %s\n", (int)i, b, worst);
        assert_true(a <= SAME && b <= SAME);
        result_free(&composed);
        result_free(&fused);
        result_free(&pairs);
        fixture_close(&f);
    }
}

static void pairs_agree_for_every_variant(void **state) {
    (void)state;
    const Size size = {2, 3, 5, 12, 2};
    for (int i = 0; vittt_variant_name(i); i++) {
        Fixture f;
        fixture_open(&f, size, DTYPE_F32, 0.4);
        check_ok(vittt_variant_by_name(vittt_variant_name(i), &f.mixer.variant));
        Result composed = fixture_run(&f, VITTT_COMPOSED);
        Result pairs = fixture_run(&f, VITTT_PAIRS);
        Result fused = fixture_run(&f, VITTT_FUSED); /* falls back */
        const char *worst = "";
        double a = result_distance(&pairs, &composed, &worst);
        double b = result_distance(&fused, &composed, &worst);
        if (a > SAME || b > SAME)
            print_error("%s: %g, %g in %s\n", vittt_variant_name(i), a, b, worst);
        assert_true(a <= SAME && b <= SAME);
        result_free(&composed);
        result_free(&pairs);
        result_free(&fused);
        fixture_close(&f);
    }
}

/* Variants that are different functions must differ: guards against a flag that nobody reads. */
static void variants_differ(void **state) {
    (void)state;
    enum { MOST = 16 };
    Fixture f;
    fixture_open(&f, (Size){2, 3, 4, 12, 2}, DTYPE_F32, 0.5);
    double *y[MOST];
    int n = 0;
    for (; vittt_variant_name(n); n++) {
        assert_true(n < MOST);
        check_ok(vittt_variant_by_name(vittt_variant_name(n), &f.mixer.variant));
        y[n] = fixture_infer(&f, VITTT_COMPOSED, f.x, 2);
    }
    assert_int_equal(n, 12);
    for (int i = 0; i < n; i++)
        for (int j = 0; j < i; j++) assert_true(relative(y[i], y[j], fixture_count(&f), 0) > 1e-4);
    for (int i = 0; i < n; i++) free(y[i]);
    fixture_close(&f);
}

static void scale_rows(Fixture *f, const char *name, int64_t first, int64_t rows, float factor) {
    Param *p = params_find(&f->params, name);
    const int64_t width = p->master.rank == 1 ? 1 : p->master.shape[1];
    float *values = malloc(tensor_bytes(p->master));
    check_ok(device_pull(f->device, values, p->master));
    for (int64_t i = first * width; i < (first + rows) * width; i++) values[i] *= factor;
    check_ok(device_push(f->device, p->master, values));
    check_ok(params_refresh(&f->params));
    free(values);
}

/* Ascent is the base model with the v1 rows of qkv negated (vittt.md 10, point 3). */
static void ascent_is_negated_values(void **state) {
    (void)state;
    Fixture f;
    fixture_open(&f, (Size){2, 4, 3, 18, 3}, DTYPE_F32, 0.5);
    check_ok(vittt_variant_by_name("ga_fork", &f.mixer.variant));
    double *ascent = fixture_infer(&f, VITTT_COMPOSED, f.x, 2);
    scale_rows(&f, "attn.qkv.weight", 2 * 18, 18, -1);
    scale_rows(&f, "attn.qkv.bias", 2 * 18, 18, -1);
    f.mixer.variant = (VitttVariant){0};
    for (int form = VITTT_FUSED; form <= VITTT_PAIRS; form++) {
        double *negated = fixture_infer(&f, (VitttForm)form, f.x, 2);
        assert_true(relative(negated, ascent, fixture_count(&f), 0) < 1e-5);
        free(negated);
    }
    free(ascent);
    fixture_close(&f);
}

static void samples_do_not_mix(void **state) {
    (void)state;
    const Size size = {3, 4, 5, 24, 3};
    Fixture f;
    fixture_open(&f, size, DTYPE_F32, 0.5);
    const int64_t each = fixture_count(&f) / 3;
    for (int form = VITTT_FUSED; form <= VITTT_PAIRS; form++) {
        double *all = fixture_infer(&f, (VitttForm)form, f.x, 3);
        for (int b = 0; b < 3; b++) {
            double *one = fixture_infer(&f, (VitttForm)form, f.x + b * each, 1);
            assert_true(relative(one, all + b * each, each, 0) < 1e-6);
            free(one);
        }
        free(all);
    }
    fixture_close(&f);
}

/* Recording or not, the same numbers; without recording nothing but the result stays in the arena.
 */
static void inference_gives_memory_back(void **state) {
    (void)state;
    Fixture f;
    fixture_open(&f, (Size){2, 6, 5, 24, 3}, DTYPE_F32, 0.5);
    for (int i = 0; vittt_variant_name(i); i++) {
        check_ok(vittt_variant_by_name(vittt_variant_name(i), &f.mixer.variant));
        for (int form = i ? VITTT_COMPOSED : VITTT_FUSED; form <= VITTT_COMPOSED; form++) {
            Result recorded = fixture_run(&f, (VitttForm)form);
            double *y = fixture_infer(&f, (VitttForm)form, f.x, 2);
            assert_memory_equal(y, recorded.values[0], (size_t)recorded.counts[0] * sizeof *y);
            /* x and y, each rounded up to 256 bytes */
            const size_t one = (size_t)fixture_count(&f) * sizeof(float);
            assert_true(f.device->step.used <= 2 * (one + 256));
            free(y);
            result_free(&recorded);
        }
    }
    fixture_close(&f);
}

/* v = 0 writes nothing, the norm of G is 0 and nothing may become NaN (vittt.md 3.1: second term
 * 0). */
static void zero_values_are_harmless(void **state) {
    (void)state;
    Fixture f;
    fixture_open(&f, (Size){2, 3, 4, 12, 2}, DTYPE_F32, 0.5);
    scale_rows(&f, "attn.qkv.weight", 24, 12, 0);
    scale_rows(&f, "attn.qkv.bias", 24, 12, 0);
    scale_rows(&f, "attn.qkv.weight", 48, 6, 0);
    scale_rows(&f, "attn.qkv.bias", 48, 6, 0);
    Result composed = fixture_run(&f, VITTT_COMPOSED);
    for (int form = VITTT_FUSED; form <= VITTT_PAIRS; form++) {
        Result r = fixture_run(&f, (VitttForm)form);
        const char *worst = "";
        double a = result_distance(&r, &composed, &worst);
        if (!(a <= SAME)) print_error("form %d: %g in %s\n", form, a, worst);
        assert_true(a <= SAME);
        result_free(&r);
    }
    result_free(&composed);
    fixture_close(&f);
}

static void names_and_mistakes(void **state) {
    (void)state;
    VitttVariant v;
    assert_int_equal(vittt_variant_by_name("q_is_k", &v), STATUS_OK);
    assert_true(v.query_is_key && !vittt_variant_is_base(v));
    assert_int_equal(vittt_variant_by_name("v1_only_w", &v), STATUS_USAGE);
    assert_non_null(strstr(status_message(), "did you mean 'v1_only_w1'"));
    assert_int_equal(vittt_variant_by_name("zzzzzzzzzzzz", &v), STATUS_USAGE);
    assert_non_null(strstr(status_message(), "v3_linear_fork"));
    assert_null(vittt_variant_name(-1));
    assert_null(vittt_variant_name(12));

    Fixture f;
    fixture_open(&f, (Size){1, 3, 4, 12, 2}, DTYPE_F32, 0.5);
    tape_reset(f.tape, false);
    const int64_t shape[] = {1, 12, 12};
    Var *x = tape_input(f.tape, push_floats(f.tape, f.x, DTYPE_F32, 3, shape), "x");
    vittt_mixer_forward(&f.mixer, f.tape, x, 3, 5);
    assert_int_equal(tape_status(f.tape), STATUS_DATA);
    assert_non_null(strstr(status_message(), "3*5"));
    VitttMixer other;
    assert_int_equal(vittt_mixer_register(&other, &f.params, "bad.", 12, 5), STATUS_USAGE);
    assert_non_null(strstr(status_message(), "not a multiple of 5 heads"));
    fixture_close(&f);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(forms_agree),
        cmocka_unit_test(pairs_agree_for_every_variant),
        cmocka_unit_test(variants_differ),
        cmocka_unit_test(ascent_is_negated_values),
        cmocka_unit_test(samples_do_not_mix),
        cmocka_unit_test(inference_gives_memory_back),
        cmocka_unit_test(zero_values_are_harmless),
        cmocka_unit_test(names_and_mistakes),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
