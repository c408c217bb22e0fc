/* LaCT-NVS: joint pass against reconstruct and render; identities of lact_nvs.md 3.5; learning;
 * running out of memory. */
#include <stdarg.h>
#include <stddef.h>
#include <setjmp.h>
#include <stdint.h>
#include <cmocka.h>

#include "lact_nvs_fixture.h"
#include "nn/optim.h"

static double *joint(Model *m, LactState *state, int64_t *count) {
    tape_reset(m->tape, false);
    Var *rgb = lact_nvs_forward(m->nvs, m->tape, view_input(m, 0, m->views), m->inputs, state);
    check_ok(tape_status(m->tape));
    *count = tensor_count(rgb->value);
    return pull_doubles(m->device, rgb->value);
}

/* ---- the passes ----------------------------------------------------------------------------- */

static void joint_is_reconstruct_and_render(void **state) {
    (void)state;
    const char *const variants[] = {"base", "V1", "V6", "query_is_key"};
    for (int i = 0; i < 4; i++) {
        for (int layers = 1; layers <= 3; layers += 2) {
            Model m;
            LactState *together, *alone;
            int64_t n;
            model_open(&m, tiny(layers, variants[i]), DTYPE_F32);
            check_ok(lact_nvs_state_new(m.nvs, m.device, m.batch, &together));
            check_ok(lact_nvs_state_new(m.nvs, m.device, m.batch, &alone));
            double *whole = joint(&m, together, &n);
            assert_int_equal(n, m.batch * 2 * 8 * 12 * 3);
            tape_reset(m.tape, false);
            check_ok(lact_reconstruct(m.nvs, m.tape, view_input(&m, 0, m.inputs), alone));
            for (int64_t k = 0; k < 3 * layers; k++) {
                Tensor a = lact_state_tensor(together, k / 3, (int)(k % 3));
                Tensor b = lact_state_tensor(alone, k / 3, (int)(k % 3));
                double *x = pull_doubles(m.device, a), *y = pull_doubles(m.device, b);
                assert_true(relative(y, x, tensor_count(a), 0) < 2e-6);
                free(x);
                free(y);
            }
            tape_reset(m.tape, false);
            Var *rgb = lact_render(m.nvs, m.tape, view_input(&m, m.inputs, 2), alone);
            check_ok(tape_status(m.tape));
            double *parts = pull_doubles(m.device, rgb->value);
            assert_true(relative(parts, whole, n, 0) < 2e-6);
            free(parts);
            free(whole);
            lact_state_free(together);
            lact_state_free(alone);
            model_close(&m);
        }
    }
}

/* Target views do not see each other; the order of input views does not matter. */
static void views_are_sets(void **state) {
    (void)state;
    Model m;
    int64_t n;
    model_open(&m, tiny(2, "base"), DTYPE_F32);
    const int64_t size = view_size(&m), view = 8 * 12 * 3;
    double *before = joint(&m, NULL, &n);
    for (int64_t k = 0; k < size; k++) m.tokens[4 * size + k] += 1; /* last target of sample 0 */
    double *after = joint(&m, NULL, &n);
    assert_true(relative(after, before, view, 0) < 1e-6);
    assert_true(relative(after + view, before + view, view, 0) > 1e-4);
    free(after);
    for (int64_t k = 0; k < size; k++) {
        m.tokens[4 * size + k] -= 1;
        const float first = m.tokens[k];
        m.tokens[k] = m.tokens[2 * size + k];
        m.tokens[2 * size + k] = first;
    }
    after = joint(&m, NULL, &n);
    assert_true(relative(after, before, n, 0) < 1e-5);
    free(after);
    free(before);
    model_close(&m);
}

static void wrong_tokens_are_refused(void **state) {
    (void)state;
    Model m;
    LactState *other;
    model_open(&m, tiny(2, "base"), DTYPE_F32);
    tape_reset(m.tape, false);
    lact_nvs_forward(m.nvs, m.tape, view_input(&m, 0, 3), 3, NULL); /* no target */
    assert_int_equal(tape_status(m.tape), STATUS_DATA);
    assert_non_null(strstr(status_message(), "at least 4 views"));
    tape_reset(m.tape, false);
    lact_nvs_forward(m.nvs, m.tape, view_input(&m, 0, 3), 0, NULL);
    assert_non_null(strstr(status_message(), "no input view"));
    check_ok(lact_state_new(m.device, 3, 2, 2, 8, 8, &other));
    tape_reset(m.tape, false);
    assert_int_equal(lact_reconstruct(m.nvs, m.tape, view_input(&m, 0, 3), other), STATUS_DATA);
    assert_non_null(
        strstr(status_message(), "of 3 layers, 2 heads, 8 x 8; the model has 2 layers"));
    lact_state_free(other);
    check_ok(lact_nvs_state_new(m.nvs, m.device, 1, &other));
    tape_reset(m.tape, false);
    lact_render(m.nvs, m.tape, view_input(&m, 3, 2), other);
    assert_int_equal(tape_status(m.tape), STATUS_DATA);
    assert_non_null(strstr(status_message(), "views of 2 scenes, the state holds 1"));
    lact_state_free(other);
    model_close(&m);
}

static void inference_gives_memory_back(void **state) {
    (void)state;
    int64_t n;
    size_t used[2];
    for (int i = 0; i < 2; i++) {
        Model m;
        model_open(&m, tiny(i ? 6 : 2, "base"), DTYPE_F32);
        free(joint(&m, NULL, &n));
        used[i] = m.device->step.used;
        model_close(&m);
    }
    assert_int_equal(used[0], used[1]); /* tokens and result, whatever the depth */
}

/* ---- training ------------------------------------------------------------------------------- */

static const Model USUAL = {.batch = 2, .views = 5, .inputs = 3};

/* Colours between 0.1 and 0.9 have the variance 0.053. */
static void one_batch_is_learnt(void **state) {
    (void)state;
    const double f32 = model_overfit(USUAL, tiny(2, "base"), DTYPE_F32, 120);
    const double bf16 = model_overfit(USUAL, tiny(2, "base"), DTYPE_BF16, 120);
    if (!(f32 < 0.01 && bf16 < 0.01)) print_error("loss %g, bf16 %g\n", f32, bf16);
    assert_true(f32 < 0.01 && bf16 < 0.01);
}

static void every_variant_learns(void **state) {
    (void)state;
    for (int i = 1; lact_variant_name(i); i++) {
        const double loss = model_overfit(USUAL, tiny(1, lact_variant_name(i)), DTYPE_F32, 60);
        if (!(loss < 0.04)) print_error("%s: loss %g\n", lact_variant_name(i), loss);
        assert_true(loss < 0.04);
    }
}

static void recomputing_changes_no_bit(void **state) {
    (void)state;
    LactNvsConfig c = tiny(2, "base");
    const double kept = model_overfit(USUAL, c, DTYPE_F32, 5);
    c.recompute = true;
    assert_true(model_overfit(USUAL, c, DTYPE_F32, 5) == kept);
}

/* Gradients of all parameters, one behind the other, of a loss that weighs what comes out. */
static double *gradients_of(LactNvsConfig c, int64_t *count) {
    Model m = USUAL;
    model_open_of(&m, c, DTYPE_F32);
    params_begin_step(&m.params);
    tape_reset(m.tape, true);
    Var *rgb = lact_nvs_forward(m.nvs, m.tape, view_input(&m, 0, m.views), m.inputs, NULL);
    *count = tensor_count(rgb->value);
    float *weights = malloc(sizeof *weights * (size_t)*count);
    fill_normal(weights, *count, 31, 1);
    const Tensor dy = push_floats(m.tape, weights, DTYPE_F32, rgb->value.rank, rgb->value.shape);
    check_ok(tape_backward(m.tape, sum_of_products(m.tape, rgb, dy), 1));
    check_ok(params_finish_grads(&m.params));
    double *out = pull_doubles(m.device, m.params.grad);
    *count = tensor_count(m.params.grad);
    free(weights);
    model_close(&m);
    return out;
}

/* A frugal tape norms again where the LaCT layer and the MLP begin, and writing tokens by
 * themselves: the norms' gradients are sums of other parts. */
static void a_frugal_tape_has_the_same_gradients(void **state) {
    (void)state;
    int64_t count;
    LactNvsConfig c = tiny(2, "base");
    double *lavish = gradients_of(c, &count);
    c.frugal = true;
    double *frugal = gradients_of(c, &count);
    c.recompute = true;
    double *again = gradients_of(c, &count);
    assert_true(relative(frugal, lavish, count, 0) < 1e-5);
    assert_memory_equal(again, frugal, sizeof *again * (size_t)count);
    assert_memory_not_equal(lavish, frugal, sizeof *again * (size_t)count); /* another way */
    free(lavish);
    free(frugal);
    free(again);
}

/* ---- out of memory -------------------------------------------------------------------------- */

static void every_allocation_may_fail(void **state) {
    (void)state;
    Device *d;
    check_ok(device_open("cpu", &d));
    const LactNvsConfig c = tiny(2, "base");
    const int64_t alive = mem_live();
    int64_t failures = 0;
    for (bool failed = true; failed; failures += failed) {
        Params p;
        LactNvs *m = NULL;
        params_init(&p, d);
        mem_fail_at(failures + 1);
        Status s = lact_nvs_new(&c, &p, &m);
        failed = !mem_fail_pending();
        mem_fail_at(0);
        assert_int_equal(s, failed ? STATUS_MEMORY : STATUS_OK);
        if (s == STATUS_OK) lact_nvs_free(m);
        params_free(&p);
        assert_int_equal(mem_live(), alive);
    }
    assert_true(failures > 76); /* 38 parameters with their names */
    device_close(d);
}

static void a_pass_may_run_out_of_memory(void **state) {
    (void)state;
    for (int recompute = 0; recompute < 2; recompute++) {
        int refused = 0;
        for (int64_t n = 1;; n++) {
            Model m;
            LactState *fast;
            LactNvsConfig c = tiny(2, "base");
            c.recompute = recompute;
            model_open(&m, c, DTYPE_F32);
            check_ok(lact_nvs_state_new(m.nvs, m.device, m.batch, &fast));
            tape_reset(m.tape, true);
            Var *x = view_input(&m, 0, m.views);
            mem_fail_at(n);
            lact_nvs_forward(m.nvs, m.tape, x, m.inputs, recompute ? NULL : fast);
            const Status s = tape_status(m.tape);
            const bool failed = !mem_fail_pending();
            mem_fail_at(0);
            assert_true(s == STATUS_OK || (failed && s == STATUS_MEMORY));
            refused += s == STATUS_MEMORY;
            lact_state_free(fast);
            model_close(&m);
            if (!failed) break;
        }
        assert_true(refused > 2);
    }
}

int main(void) {
    device_set_threads(1); /* tiny products: a second thread is only waited for */
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(joint_is_reconstruct_and_render),
        cmocka_unit_test(views_are_sets),
        cmocka_unit_test(wrong_tokens_are_refused),
        cmocka_unit_test(inference_gives_memory_back),
        cmocka_unit_test(one_batch_is_learnt),
        cmocka_unit_test(every_variant_learns),
        cmocka_unit_test(recomputing_changes_no_bit),
        cmocka_unit_test(a_frugal_tape_has_the_same_gradients),
        cmocka_unit_test(every_allocation_may_fail),
        cmocka_unit_test(a_pass_may_run_out_of_memory),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
