/* The tape: sticky errors with messages, ownership of memory, views, no allocation after the first
 * pass. */
#include <stdarg.h>
#include <stddef.h>
#include <setjmp.h>
#include <stdint.h>
#include <cmocka.h>

#include "nn_fixture.h"

static Tensor take(Tape *t, int rank, const int64_t *shape) {
    Tensor x;
    check_ok(tape_take(t, DTYPE_F32, rank, shape, &x));
    check_ok(tape_device(t)->k->zero(tape_device(t), x));
    return x;
}

static void first_error_sticks(void **state) {
    Bench *b = *state;
    const int64_t x[] = {2, 3}, w[] = {4, 5};
    tape_reset(b->t, true);
    Var *vx = tape_input(b->t, take(b->t, 2, x), "x"),
        *vw = tape_input(b->t, take(b->t, 2, w), "w");
    Var *bad = op_linear(b->t, vx, vw, NULL);
    assert_ptr_equal(bad, tape_poison(b->t));
    status_set(STATUS_IO, "something else");
    Var *worse = op_mul(b->t, bad, vw); /* at once, without looking */
    assert_ptr_equal(worse, bad);
    assert_ptr_equal(op_view(b->t, bad, 1, x), bad);
    assert_int_equal(tape_backward(b->t, bad, 1), STATUS_DATA);
    check_fails(tape_status(b->t), STATUS_DATA, "linear: x [2, 3] F32, w [4, 5] F32: expected");
    tape_reset(b->t, true);
    check_ok(tape_status(b->t));
}

#define FOUR ((const int64_t[]){2, 2})
static const float no_mean[3] = {0}, unit_std[3] = {1, 1, 1};

/* Calls that do not fit x [2, 3] and y [2, 2]. */
typedef Var *Misfit(Tape *t, Var *x, Var *y);

#define MISFIT(name, call)                                                                         \
    static Var *name(Tape *t, Var *x, Var *y) {                                                    \
        (void)y;                                                                                   \
        return call;                                                                               \
    }

MISFIT(bad_add, op_add(t, x, y, 1))
MISFIT(bad_mul, op_mul(t, x, y))
MISFIT(bad_residual, op_residual(t, x, y, tensor_none()))
MISFIT(bad_residual_mask, op_residual(t, x, x, y->value))
MISFIT(bad_view, op_view(t, x, 2, FOUR))
MISFIT(bad_matmul, op_matmul(t, x, false, y, false, 1, DTYPE_F32))
MISFIT(bad_linear, op_linear(t, x, y, NULL))
MISFIT(bad_mlp, op_mlp(t, x, y, y, y, y))
MISFIT(bad_layernorm, op_layernorm(t, x, y, y, 1e-6f))
MISFIT(bad_softnorm, op_softnorm(t, x, 2, 2, 2))
MISFIT(bad_cpe, op_cpe(t, x, 1, 2, y, y))
MISFIT(bad_dwconv_apply, op_dwconv_apply(t, x, y))
MISFIT(bad_dwconv_taps, op_dwconv_taps(t, x, y, 1))
MISFIT(bad_split_heads, op_split_heads(t, x, 0, 1, 4))
MISFIT(bad_merge_heads, op_merge_heads(t, x, y))
MISFIT(bad_mean_tokens, op_mean_tokens(t, x))
MISFIT(bad_image_normalise, op_image_normalise(t, x->value, no_mean, unit_std, 0))
MISFIT(bad_patchify, op_patchify(t, x, 2))
MISFIT(bad_cross_entropy, op_cross_entropy(t, x, y->value))
MISFIT(bad_image_prepare, op_image_prepare(t, x->value, y->value, y->value, no_mean, unit_std, 0))

static const struct {
    const char *name;
    Misfit *call;
} misfits[] = {
    {"add", bad_add},
    {"mul", bad_mul},
    {"residual", bad_residual},
    {"residual_mask", bad_residual_mask},
    {"view", bad_view},
    {"matmul", bad_matmul},
    {"linear", bad_linear},
    {"mlp", bad_mlp},
    {"layernorm", bad_layernorm},
    {"softnorm", bad_softnorm},
    {"cpe", bad_cpe},
    {"dwconv_apply", bad_dwconv_apply},
    {"dwconv_taps", bad_dwconv_taps},
    {"split_heads", bad_split_heads},
    {"merge_heads", bad_merge_heads},
    {"mean_tokens", bad_mean_tokens},
    {"image_normalise", bad_image_normalise},
    {"patchify", bad_patchify},
    {"cross_entropy", bad_cross_entropy},
    {"image_prepare", bad_image_prepare},
};

static void every_op_refuses_wrong_shapes(void **state) {
    Tape *t = ((Bench *)*state)->t;
    const int64_t shape[] = {2, 3};
    for (size_t i = 0; i < sizeof misfits / sizeof misfits[0]; i++) {
        tape_reset(t, true);
        Var *x = tape_input_grad(t, take(t, 2, shape), "x");
        Var *y = tape_input_grad(t, take(t, 2, FOUR), "y");
        Var *r = misfits[i].call(t, x, y); /* first: without an error there is no poison */
        if (!r || r != tape_poison(t)) fail_msg("%s took it", misfits[i].name);
        assert_int_not_equal(tape_status(t), STATUS_OK); /* tells this tape's error again */
        assert_non_null(strstr(status_message(), "expected"));
    }
}

static void odd_inputs_are_refused(void **state) {
    Tape *t = ((Bench *)*state)->t;
    const int64_t shape[] = {2, 3};
    const VitttShape s = {1, 2, 2, 1, 4};
    tape_reset(t, true);
    Var *x = tape_input(t, take(t, 2, shape), "x");
    Var *refused = op_vittt_inner(t, x, x, x, x, s);
    assert_ptr_equal(refused, tape_poison(t));
    tape_reset(t, true);
    x = tape_input(t, take(t, 2, shape), "x");
    refused = op_mul(t, x, NULL);
    assert_ptr_equal(refused, tape_poison(t));
    check_fails(tape_status(t), STATUS_INTERNAL, "mul: input 2");
}

static Var *chain(Tape *t, Var *x, int length) {
    int64_t row[] = {1, tensor_count(x->value)}, one = 1;
    Var *y = op_view(t, x, 2, row);
    for (int i = 0; i < length; i++)
        y = op_gelu(t, op_residual(t, y, op_silu(t, y), tensor_none()));
    return op_view(t, op_matmul(t, y, false, y, true, 1, DTYPE_F32), 1, &one);
}

static void backward_gives_all_memory_back(void **state) {
    Bench *b = *state;
    const int64_t shape[] = {5, 40};
    tape_reset(b->t, true);
    Var *x = tape_input_grad(b->t, take(b->t, 2, shape), "x");
    size_t inputs = b->d->step.used;
    Var *loss = chain(b->t, x, 10);
    check_ok(tape_status(b->t));
    size_t forward = b->d->step.used;
    check_ok(tape_backward(b->t, loss, 1));
    /* What is left: the input, its gradient, and the loss. */
    assert_int_equal(b->d->step.used, inputs + 1024 + 256);
    assert_true(b->d->step.peak < forward + 5 * 1024); /* the backward lives in what it frees */
    assert_false(tensor_is_none(x->grad));
    assert_false(tensor_is_none(loss->base->value));
    assert_int_equal(tape_backward(b->t, loss, 1), STATUS_INTERNAL); /* the values are gone */
}

static void inference_drops_memory(void **state) {
    Bench *b = *state;
    const int64_t shape[] = {5, 40};
    tape_reset(b->t, false);
    Var *x = tape_input_grad(b->t, take(b->t, 2, shape), "x");
    size_t before = b->d->step.used;
    Var *y = op_silu(b->t, x);
    Var *view = op_view(b->t, y, 1, (int64_t[]){200});
    assert_int_equal(tape_nodes(b->t), 0);
    tape_drop(b->t, view); /* no effect: the base may be in use */
    assert_false(tensor_is_none(view->value));
    tape_drop(b->t, y);
    tape_drop(b->t, y);
    tape_drop(b->t, x); /* inputs stay the caller's */
    assert_int_equal(b->d->step.used, before);
    assert_false(tensor_is_none(x->value));
    tape_reset(b->t, true);
    x = tape_input_grad(b->t, take(b->t, 2, shape), "x");
    y = op_silu(b->t, x);
    tape_drop(b->t, y); /* recording: the backward needs it */
    assert_false(tensor_is_none(y->value));
}

static void views_share_the_gradient(void **state) {
    Bench *b = *state;
    Tape *t = b->t;
    const int64_t shape[] = {2, 3}, row[] = {1, 6}, column[] = {6, 1}, one = 1;
    float values[] = {1, 2, 3, 4, 5, 6}, got[6];
    tape_reset(t, true);
    Tensor x = take(t, 2, shape);
    check_ok(device_push(b->d, x, values));
    Var *in = tape_input_grad(t, x, "x");
    Var *r = op_view(t, op_view(t, in, 2, column), 2, row); /* a view of a view */
    assert_ptr_equal(r->base, in);
    Var *l = op_matmul(t, r, false, op_view(t, in, 2, column), false, 1, DTYPE_F32);
    check_ok(tape_backward(t, op_view(t, l, 1, &one), 0.5f));
    check_ok(device_pull(b->d, got, in->grad));
    for (int i = 0; i < 6; i++) assert_true(got[i] == values[i]); /* 0.5 d(x.x) */
}

static void residual_hands_its_gradient_on(void **state) {
    Bench *b = *state;
    const int64_t shape[] = {1, 64};
    tape_reset(b->t, true);
    Var *x = tape_input_grad(b->t, take(b->t, 2, shape), "x");
    Var *y = op_residual(b->t, op_scale(b->t, x, 1), op_scale(b->t, x, 1), tensor_none());
    int64_t one = 1;
    Var *loss = op_view(b->t, op_matmul(b->t, y, false, y, true, 1, DTYPE_F32), 1, &one);
    size_t peak = b->d->step.used;
    check_ok(tape_backward(b->t, loss, 1));
    assert_true(b->d->step.peak <= peak + 3 * 256); /* dloss, dy, dbranch; dx is dy */
}

static void second_pass_allocates_nothing(void **state) {
    Bench *b = *state;
    const int64_t shape[] = {5, 40};
    const void *places[2];
    int64_t growths = 0;
    for (int pass = 0; pass < 3; pass++) {
        int64_t live = mem_live();
        if (pass > 0) mem_fail_at(1); /* the very first allocation would fail */
        tape_reset(b->t, true);
        Tensor in;
        check_ok(tape_take(b->t, DTYPE_F32, 2, shape, &in));
        check_ok(b->d->k->zero(b->d, in));
        Var *x = tape_input_grad(b->t, in, "x");
        check_ok(tape_backward(b->t, chain(b->t, x, 200), 1)); /* over several chunks of nodes */
        if (pass > 0) {
            assert_true(mem_fail_pending());
            mem_fail_at(0);
            assert_int_equal(mem_live(), live);
            assert_int_equal(tape_growths(b->t), growths);
            assert_ptr_equal(x->grad.data, places[1]);
            assert_ptr_equal(in.data, places[0]);
        }
        growths = tape_growths(b->t);
        places[0] = in.data;
        places[1] = x->grad.data;
    }
}

static void allocation_failures_are_reported(void **state) {
    (void)state;
    for (int64_t n = 1; n < 200; n++) {
        int64_t live = mem_live();
        Device *d;
        Tape *t;
        check_ok(device_open("cpu", &d));
        mem_fail_at(n);
        Status s = tape_new(d, &t);
        if (s == STATUS_OK) {
            const int64_t shape[] = {1, 300};
            Tensor in;
            tape_reset(t, true);
            s = tape_take(t, DTYPE_F32, 2, shape, &in);
            if (s == STATUS_OK) s = d->k->zero(d, in);
            if (s == STATUS_OK) s = tape_backward(t, chain(t, tape_input_grad(t, in, "x"), 150), 1);
            tape_free(t);
        }
        bool pending = mem_fail_pending();
        mem_fail_at(0);
        if (!pending && s != STATUS_OK) assert_int_equal(s, STATUS_MEMORY);
        device_close(d);
        assert_int_equal(mem_live(), live);
        if (pending) {
            check_ok(s);
            return;
        }
    }
    fail_msg("the failures never end");
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(first_error_sticks, bench_open, bench_close),
        cmocka_unit_test_setup_teardown(every_op_refuses_wrong_shapes, bench_open, bench_close),
        cmocka_unit_test_setup_teardown(odd_inputs_are_refused, bench_open, bench_close),
        cmocka_unit_test_setup_teardown(backward_gives_all_memory_back, bench_open, bench_close),
        cmocka_unit_test_setup_teardown(inference_drops_memory, bench_open, bench_close),
        cmocka_unit_test_setup_teardown(views_share_the_gradient, bench_open, bench_close),
        cmocka_unit_test_setup_teardown(residual_hands_its_gradient_on, bench_open, bench_close),
        cmocka_unit_test_setup_teardown(second_pass_allocates_nothing, bench_open, bench_close),
        cmocka_unit_test_setup_teardown(allocation_failures_are_reported, bench_open, bench_close),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
