/* The LaCT layer: identities of lact_nvs.md 3.5 and 9, mistakes, running out of memory. */
#include <stdarg.h>
#include <stddef.h>
#include <setjmp.h>
#include <stdint.h>
#include <cmocka.h>

#include <stdio.h>

#include "lact_fixture.h"

static void write_then_read_is_forward(void **state) {
    (void)state;
    for (int i = 0; lact_variant_name(i); i++) {
        for (int recording = 0; recording < 2; recording++) {
            Layer l;
            layer_open(&l, 2, 1, lact_variant_name(i), DTYPE_F32);
            double *whole = layer_infer(&l, l.x);
            Tape *t = l.tape;
            tape_reset(t, recording);
            Var *x = layer_input(&l, l.x, l.tokens);
            Var *writers = op_slice_tokens(t, x, 0, l.writing);
            LactFast fast = lact_write(&l.lact, t, writers);
            Var *y = lact_read(&l.lact, t, x, NULL, fast);
            check_ok(tape_status(t));
            double *parts = pull_doubles(l.device, y->value);
            assert_true(relative(parts, whole, layer_count(&l), 0) < 2e-6);
            free(parts);
            free(whole);
            layer_close(&l);
        }
    }
}

/* Weights of the fused form in memory of the caller's. */
static LactWeights weights_room(Layer *l, DType act, int64_t h) {
    Tape *t = l->tape;
    const int64_t heads = l->lact.heads, e = l->width / heads;
    Tensor gates, back;
    check_ok(tape_take(t, act, 4, (int64_t[]){l->batch, heads, e, 2 * h}, &gates));
    check_ok(tape_take(t, act, 4, (int64_t[]){l->batch, heads, h, e}, &back));
    return (LactWeights){tape_input(t, gates, "gates"), tape_input(t, back, "back")};
}

/* `limit`: of the distance to lact_forward and lact_write, relative. */
static void scene_is_forward(const char *name, int64_t inter, DType act, double limit) {
    Layer l;
    layer_open(&l, 2, inter, name, act);
    l.writing = l.tokens;
    double *whole = layer_infer(&l, l.x);
    Tape *t = l.tape;
    tape_reset(t, false);
    assert_true(lact_into_fits(&l.lact, t));
    Var *x = layer_input(&l, l.x, l.tokens);
    const LactWeights to = weights_room(&l, act, inter * l.width / 2),
                      alone = weights_room(&l, act, inter * l.width / 2);
    Var *y = lact_into(&l.lact, t, x, NULL, to);
    lact_write_into(&l.lact, t, x, alone);
    const LactFast fast = lact_write(&l.lact, t, x);
    check_ok(tape_status(t));
    double *parts = pull_doubles(l.device, y->value);
    assert_true(relative(parts, whole, layer_count(&l), 0) < limit);
    const Var *const got[] = {to.gates, to.back, alone.gates, alone.back};
    const Var *const want[] = {fast.fused.gates, fast.fused.back};
    for (int j = 0; j < 4; j++) {
        double *a = pull_doubles(l.device, got[j]->value);
        double *b = pull_doubles(l.device, want[j % 2]->value);
        assert_true(relative(a, b, tensor_count(got[j]->value), 0) < limit);
        free(a);
        free(b);
    }
    free(parts);
    free(whole);
    layer_close(&l);
}

static void a_scene_is_forward(void **state) {
    (void)state;
    const char *const names[] = {"base", "ascent", "query_is_key"};
    for (int i = 0; i < 3; i++)
        for (int64_t inter = 1; inter < 3; inter++) {
            scene_is_forward(names[i], inter, DTYPE_F32, 2e-6);
            scene_is_forward(names[i], inter, DTYPE_BF16, 4e-3); /* a rounding */
        }
    Layer l;
    layer_open(&l, 2, 1, "V1", DTYPE_F32);
    tape_reset(l.tape, false);
    assert_false(lact_into_fits(&l.lact, l.tape)); /* W0 and W2 stay as they are */
    check_ok(lact_variant_by_name("base", &l.lact.variant));
    tape_reset(l.tape, true);
    assert_false(lact_into_fits(&l.lact, l.tape));
    layer_close(&l);
}

/* Guards against a switch that nobody reads; V5 is V4 (no momentum to leave out). */
static void variants_differ(void **state) {
    (void)state;
    enum { MOST = 16 };
    double *y[MOST];
    int n = 0;
    Layer l;
    layer_open(&l, 2, 1, "base", DTYPE_F32);
    for (; lact_variant_name(n); n++) {
        assert_true(n < MOST);
        check_ok(lact_variant_by_name(lact_variant_name(n), &l.lact.variant));
        y[n] = layer_infer(&l, l.x);
    }
    assert_int_equal(n, 9);
    for (int i = 0; i < n; i++)
        for (int j = 0; j < i; j++) {
            const bool equal = i == 5 && j == 4;
            const double apart = relative(y[i], y[j], layer_count(&l), 0);
            assert_true(equal ? apart == 0 : apart > 1e-4);
        }
    for (int i = 0; i < n; i++) free(y[i]);
    layer_close(&l);
}

/* Readers do not reach each other, samples do not mix, and the order of writers is nothing. */
static void who_writes_and_who_reads(void **state) {
    (void)state;
    Layer l;
    layer_open(&l, 2, 2, "base", DTYPE_F32);
    const int64_t row = l.tokens * l.width, n = layer_count(&l);
    double *before = layer_infer(&l, l.x);
    float *x = malloc(sizeof *x * (size_t)n);
    memcpy(x, l.x, sizeof *x * (size_t)n);
    for (int64_t k = 0; k < l.width; k++) x[(l.tokens - 1) * l.width + k] += 1; /* last reader */
    double *after = layer_infer(&l, x);
    assert_true(relative(after, before, row - l.width, 0) < 1e-6);
    assert_true(relative(after + row - l.width, before + row - l.width, l.width, 0) > 1e-2);
    assert_true(relative(after + row, before + row, row, 0) < 1e-6);
    free(after);
    memcpy(x, l.x, sizeof *x * (size_t)n);
    for (int64_t k = 0; k < l.width; k++) { /* two writers of sample 0 change places */
        x[k] = l.x[3 * l.width + k];
        x[3 * l.width + k] = l.x[k];
    }
    after = layer_infer(&l, x);
    assert_true(relative(after + l.width, before + l.width, 2 * l.width, 0) < 1e-4);
    assert_true(relative(after + 4 * l.width, before + 4 * l.width, row - 4 * l.width, 0) < 1e-4);
    free(after);
    free(before);
    free(x);
    layer_close(&l);
}

/* Tokens of zero have no keys and write nothing; a column of zeros in W stays zero. */
static void zeros_are_harmless(void **state) {
    (void)state;
    for (int i = 0; lact_variant_name(i); i++) {
        Layer l;
        layer_open(&l, 2, 1, lact_variant_name(i), DTYPE_F32);
        memset(l.x, 0, sizeof *l.x * (size_t)layer_count(&l));
        float *w = params_find(&l.params, "f.w1")->master.data;
        for (int r = 0; r < 4; r++) w[4 * r + 1] = 0;
        Var *input;
        layer_backward(&l, &input);
        check_ok(params_check_finite(&l.params));
        double *dx = pull_doubles(l.device, input->grad);
        for (int64_t k = 0; k < layer_count(&l); k++) assert_true(isfinite(dx[k]));
        free(dx);
        layer_close(&l);
    }
}

/* Products in BF16, the inner step in F32. */
static void bf16_is_close(void **state) {
    (void)state;
    Layer f32, bf16;
    layer_open(&f32, 2, 2, "base", DTYPE_F32);
    layer_open(&bf16, 2, 2, "base", DTYPE_BF16);
    double *a = layer_infer(&f32, f32.x), *b = layer_infer(&bf16, bf16.x);
    assert_true(relative(b, a, layer_count(&f32), 0) < 5e-2);
    Var *input;
    layer_backward(&bf16, &input);
    check_ok(tape_status(bf16.tape));
    free(a);
    free(b);
    layer_close(&f32);
    layer_close(&bf16);
}

/* Without recording nothing but x and y stays in the arena. */
static void inference_gives_memory_back(void **state) {
    (void)state;
    for (int i = 0; lact_variant_name(i); i++) {
        Layer l;
        layer_open(&l, 2, 1, lact_variant_name(i), DTYPE_F32);
        free(layer_infer(&l, l.x));
        const size_t one = ((size_t)layer_count(&l) * sizeof(float) + 255) / 256 * 256;
        if (l.device->step.used > 2 * one)
            print_error("%s: %zu bytes left\n", lact_variant_name(i),
                        l.device->step.used - 2 * one);
        assert_true(l.device->step.used <= 2 * one);
        layer_close(&l);
    }
}

static void names_and_mistakes(void **state) {
    (void)state;
    LactVariant v;
    check_ok(lact_variant_by_name("V6", &v));
    assert_true(v.only_w1 && v.no_weight_norm && v.linear && v.unit_rate && v.no_muon);
    assert_int_equal(lact_variant_by_name("ascend", &v), STATUS_USAGE);
    assert_non_null(strstr(status_message(), "did you mean 'ascent'"));
    assert_int_equal(lact_variant_by_name("qqqqqqqqqqq", &v), STATUS_USAGE);
    assert_non_null(strstr(status_message(), "query_is_key"));
    assert_null(lact_variant_name(-1));
    Layer l;
    layer_open(&l, 2, 1, "query_is_key", DTYPE_F32);
    assert_int_equal(l.lact.qkv_w->value.shape[0], 2 * l.width); /* k and v rows only */
    tape_reset(l.tape, false);
    lact_forward(&l.lact, l.tape, layer_input(&l, l.x, l.tokens), l.tokens + 1, NULL, NULL);
    assert_int_equal(tape_status(l.tape), STATUS_DATA);
    assert_non_null(strstr(status_message(), "10 writing tokens"));
    LactLayer other;
    check_ok(lact_variant_by_name("V3", &v));
    assert_int_equal(lact_register(&other, &l.params, "b.", 8, 2, 2, v, 1), STATUS_USAGE);
    assert_non_null(strstr(status_message(), "need inter_multi 1"));
    assert_int_equal(lact_register(&other, &l.params, "b.", 8, 3, 1, v, 1), STATUS_USAGE);
    assert_non_null(strstr(status_message(), "not a multiple of 3 heads"));
    layer_close(&l);
}

/* ---- out of memory -------------------------------------------------------------------------- */

static void a_pass_may_run_out_of_memory(void **state) {
    (void)state;
    const char *const names[] = {"base", "V6"};
    for (int i = 0; i < 2; i++) {
        int refused = 0;
        for (int64_t n = 1;; n++) {
            Layer l;
            layer_open(&l, 2, 1, names[i], DTYPE_F32);
            tape_reset(l.tape, true);
            Var *x = layer_input(&l, l.x, l.tokens);
            mem_fail_at(n);
            lact_forward(&l.lact, l.tape, x, l.writing, NULL, NULL);
            const Status s = tape_status(l.tape);
            const bool failed = !mem_fail_pending();
            mem_fail_at(0);
            assert_true(s == STATUS_OK || (failed && s == STATUS_MEMORY));
            refused += s == STATUS_MEMORY;
            layer_close(&l);
            if (!failed) break;
        }
        assert_true(refused > 0);
    }
}

int main(void) {
    device_set_threads(1); /* tiny products: a second thread is only waited for */
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(write_then_read_is_forward),
        cmocka_unit_test(a_scene_is_forward),
        cmocka_unit_test(variants_differ),
        cmocka_unit_test(who_writes_and_who_reads),
        cmocka_unit_test(zeros_are_harmless),
        cmocka_unit_test(bf16_is_close),
        cmocka_unit_test(inference_gives_memory_back),
        cmocka_unit_test(names_and_mistakes),
        cmocka_unit_test(a_pass_may_run_out_of_memory),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
