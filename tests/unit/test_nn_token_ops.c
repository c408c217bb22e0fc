/* The ops of nn/ops_runs.c and their kin: what they refuse, what they pass on, which values they
 * give. Their gradients: tests/ops. */
#include <stdarg.h>
#include <stddef.h>
#include <setjmp.h>
#include <stdint.h>
#include <cmocka.h>

#include "nn_fixture.h"

/* An input with the values first, first + 1, ... */
static Var *counted(Tape *t, int rank, const int64_t *shape, float first) {
    Tensor x;
    check_ok(tape_take(t, DTYPE_F32, rank, shape, &x));
    float *value = x.data;
    for (int64_t i = 0; i < tensor_count(x); i++) value[i] = first + (float)i;
    return tape_input_grad(t, x, "x");
}

/* x [2,3,2], y [3,5] */
typedef Var *(*Wrong)(Tape *t, Var *x, Var *y);

static Var *slice_behind(Tape *t, Var *x, Var *y) {
    (void)y;
    return op_slice_tokens(t, x, 1, 3);
}
static Var *slice_before(Tape *t, Var *x, Var *y) {
    (void)y;
    return op_slice_tokens(t, x, -1, 2);
}
static Var *slice_nothing(Tape *t, Var *x, Var *y) {
    (void)y;
    return op_slice_tokens(t, x, 1, 0);
}
static Var *slice_overflow(Tape *t, Var *x, Var *y) {
    (void)y;
    return op_slice_tokens(t, x, 1, INT64_MAX);
}
static Var *slice_rank(Tape *t, Var *x, Var *y) {
    (void)x;
    return op_slice_tokens(t, y, 0, 1);
}
static Var *concat_rank(Tape *t, Var *x, Var *y) {
    return op_concat_tokens(t, x, y);
}
static Var *concat_width(Tape *t, Var *x, Var *y) {
    (void)y;
    const int64_t shape[] = {2, 2, 3};
    return op_concat_tokens(t, x, op_view(t, x, 3, shape));
}
static Var *concat_dtype(Tape *t, Var *x, Var *y) {
    (void)y;
    return op_concat_tokens(t, x, op_cast(t, x, DTYPE_BF16));
}
static Var *scale_count(Tape *t, Var *x, Var *y) {
    return op_scale_tokens(t, x, y);
}
static Var *scale_dtype(Tape *t, Var *x, Var *y) {
    (void)x;
    const int64_t shape[] = {5, 3};
    return op_scale_tokens(t, y, op_cast(t, op_view(t, y, 2, shape), DTYPE_BF16));
}
static Var *normalise_count(Tape *t, Var *x, Var *y) {
    (void)y;
    return op_normalise(t, x, 2, 3, 1, 1e-5f);
}
static Var *normalise_offset(Tape *t, Var *x, Var *y) {
    (void)y;
    return op_normalise(t, x, 6, 2, 1, 0.0f);
}
static Var *rmsnorm_weight(Tape *t, Var *x, Var *y) {
    return op_rmsnorm(t, x, y, 1e-5f);
}
static Var *weight_norm_shape(Tape *t, Var *x, Var *y) {
    return op_weight_norm(t, x, y, 1e-5f);
}
static Var *weight_norm_offset(Tape *t, Var *x, Var *y) {
    (void)y;
    return op_weight_norm(t, x, x, -1.0f);
}
static Var *mse_shape(Tape *t, Var *x, Var *y) {
    return op_mse(t, x, y->value);
}

static void wrong_shapes_are_refused(void **state) {
    Bench *b = *state;
    static const Wrong wrong[] = {
        slice_behind,    slice_before,      slice_nothing,      slice_overflow,
        slice_rank,      concat_rank,       concat_width,       concat_dtype,
        scale_count,     scale_dtype,       mse_shape,          rmsnorm_weight,
        normalise_count, weight_norm_shape, weight_norm_offset, normalise_offset};
    const int64_t three[] = {2, 3, 2}, two[] = {3, 5};
    for (size_t i = 0; i < sizeof wrong / sizeof wrong[0]; i++) {
        tape_reset(b->t, true);
        Var *x = counted(b->t, 3, three, 0), *y = counted(b->t, 2, two, 0);
        if (wrong[i](b->t, x, y) != tape_poison(b->t) || !tape_poison(b->t))
            fail_msg("case %zu was taken", i);
        check_fails(tape_status(b->t), STATUS_DATA, "expected");
    }
}

static void failures_pass_through(void **state) {
    Bench *b = *state;
    const int64_t three[] = {2, 3, 2};
    tape_reset(b->t, true);
    Var *x = counted(b->t, 3, three, 0), *bad = op_slice_tokens(b->t, x, 9, 1);
    Var *poison = tape_poison(b->t);
    assert_non_null(poison);
    assert_ptr_equal(op_detach(b->t, bad), poison);
    assert_ptr_equal(op_sigmoid(b->t, bad), poison);
    assert_ptr_equal(op_softplus(b->t, x), poison);
    assert_ptr_equal(op_softmax(b->t, bad, 1), poison);
    assert_ptr_equal(op_rmsnorm(b->t, bad, bad, 1e-5f), poison);
    assert_ptr_equal(op_normalise(b->t, bad, 1, 1, 1, 1), poison);
    assert_ptr_equal(op_weight_norm(b->t, bad, bad, 1), poison);
    assert_ptr_equal(op_scale_tokens(b->t, bad, bad), poison);
    assert_ptr_equal(op_concat_tokens(b->t, bad, bad), poison);
    assert_ptr_equal(op_mse(b->t, bad, bad->value), poison);
    check_fails(tape_status(b->t), STATUS_DATA, "slice_tokens: x [2, 3, 2] F32: expected");
    tape_reset(b->t, true);
    bad = op_detach(b->t, NULL);
    assert_ptr_equal(bad, tape_poison(b->t));
    check_fails(tape_status(b->t), STATUS_INTERNAL, "detach: input 1");
}

static void check_values(const Var *v, const float *wanted) {
    const float *value = v->value.data;
    for (int64_t i = 0; i < tensor_count(v->value); i++) assert_true(value[i] == wanted[i]);
}

/* Taken apart and put together again, in the other order. */
static void runs_of_tokens(void **state) {
    Bench *b = *state;
    Tape *t = b->t;
    const int64_t shape[] = {2, 3, 2};
    const float last[] = {2, 3, 4, 5, 8, 9, 10, 11};
    const float turned[] = {2, 3, 4, 5, 0, 1, 8, 9, 10, 11, 6, 7};
    tape_reset(t, false);
    Var *x = counted(t, 3, shape, 0);
    Var *head = op_slice_tokens(t, x, 0, 1), *tail = op_slice_tokens(t, x, 1, 2);
    Var *y = op_concat_tokens(t, tail, head);
    check_ok(tape_status(t));
    assert_int_equal(tail->value.shape[1], 2);
    check_values(tail, last);
    assert_int_equal(y->value.shape[1], 3);
    check_values(y, turned);
}

/* Extremes: no overflow, no 0/0. */
static void extremes(void **state) {
    Bench *b = *state;
    Tape *t = b->t;
    const int64_t four[] = {1, 4}, rows[] = {2, 2};
    tape_reset(t, false);
    Var *x = counted(t, 2, four, 0);
    const float far[] = {-1e4f, -1e4f, 1e4f, 1e4f}, zero[] = {0, 0, 0, 0};
    memcpy(x->value.data, far, sizeof far);
    const float plus[] = {0, 0, 1e4f, 1e4f}, half[] = {0, 0, 0.5f, 0.5f};
    check_values(op_softplus(t, x), plus);
    check_values(op_softmax(t, x, 1), half);
    Var *none = counted(t, 2, rows, 0);
    memcpy(none->value.data, zero, sizeof zero);
    check_values(op_normalise(t, none, 2, 2, 1, 1e-5f), zero);
    check_values(op_normalise(t, none, 1, 2, 2, 1e-5f), zero);
    check_ok(tape_status(t));
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(wrong_shapes_are_refused, bench_open, bench_close),
        cmocka_unit_test_setup_teardown(failures_pass_through, bench_open, bench_close),
        cmocka_unit_test_setup_teardown(runs_of_tokens, bench_open, bench_close),
        cmocka_unit_test_setup_teardown(extremes, bench_open, bench_close),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
