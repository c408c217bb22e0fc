/* The nodes of the fused LaCT layer: what they refuse, values that a tape gives back early, a node
 * with two outputs of which one is used. Their gradients: tests/ops/gradient_cases.c. */
#include <stdarg.h>
#include <stddef.h>
#include <setjmp.h>
#include <stdint.h>
#include <cmocka.h>

#include "vittt_fixture.h"

/* Random values of up to four dimensions; 0 ends the shape. */
static Var *random_var(Tape *t, DType dtype, int64_t a, int64_t b, int64_t c, int64_t d) {
    const int64_t shape[] = {a, b, c, d};
    int rank = 0;
    int64_t n = 1;
    for (; rank < 4 && shape[rank]; rank++) n *= shape[rank];
    float *x = malloc(sizeof *x * (size_t)n);
    fill_normal(x, n, (uint64_t)n, 0.5);
    Var *v = tape_input_grad(t, push_floats(t, x, dtype, rank, shape), "x");
    free(x);
    return v;
}

#define F32(a, b, c, d)  random_var(t, DTYPE_F32, a, b, c, d)
#define BF16(a, b, c, d) random_var(t, DTYPE_BF16, a, b, c, d)

/* What op number i makes of inputs that do not fit; NULL past the end. */
static Var *wrong(Tape *t, int i) {
    Var *w[] = {F32(2, 3, 5, 0), F32(2, 5, 3, 0), F32(2, 3, 5, 0)};
    Var *turned[] = {w[0], w[0], w[2]};
    const LactGradients u = {F32(4, 2, 3, 5), F32(2, 2, 5, 3)};
    switch (i) {
    case 0: /* rows past the end */
        return op_linear_rows(t, F32(4, 3, 0, 0), F32(6, 3, 0, 0), 5, 2);
    case 1:
        return op_linear_rows(t, F32(4, 3, 0, 0), F32(6, 4, 0, 0), 0, 2);
    case 2:
        return op_token_rates(t, F32(4, 3, 0, 0), F32(6, 3, 0, 0), F32(5, 0, 0, 0), 0);
    case 3:
        return op_side_by_side(t, w[0], w[1], DTYPE_F32);
    case 4: /* packed has room for one head only */
        return op_lact_write(t, F32(2, 4, 6, 0), F32(2, 4, 6, 0), w, 1e-5f, false, DTYPE_F32).back;
    case 5: /* rates of one head */
        return op_lact_write(t, F32(2, 4, 12, 0), F32(2, 4, 3, 0), w, 1e-5f, false, DTYPE_F32)
            .gates;
    case 6:
        return op_lact_write(t, F32(2, 4, 12, 0), F32(2, 4, 6, 0), turned, 1e-5f, false, DTYPE_F32)
            .gates;
    case 7: /* BF16 gradients of F32 tokens */
        return op_lact_write(t, F32(2, 4, 12, 0), F32(2, 4, 6, 0), w, 1e-5f, false, DTYPE_BF16)
            .gates;
    case 8:
        return op_lact_step(t, (LactGradients){u.gates, NULL}, w, 1, 0, DTYPE_F32).gates;
    case 9:
        return op_lact_step(t, (LactGradients){u.back, u.back}, w, 1, 0, DTYPE_F32).gates;
    case 10:
        return op_lact_step(t, u, turned, 1, 0, DTYPE_F32).back;
    case 11: /* gates of three samples */
        return op_lact_read(t, F32(2, 4, 6, 0), (LactWeights){F32(3, 2, 3, 10), F32(2, 2, 5, 3)},
                            1e-5f);
    case 12:
        return op_lact_read(t, BF16(2, 4, 6, 0), (LactWeights){F32(2, 2, 3, 10), F32(2, 2, 5, 3)},
                            1e-5f);
    case 13:
        return op_lact_out(t, F32(2, 2, 4, 3), F32(3, 0, 0, 0), 1e-5f, F32(6, 5, 0, 0), NULL);
    case 14:
        return op_lact_out(t, F32(2, 2, 4, 3), F32(3, 0, 0, 0), 1e-5f, F32(6, 6, 0, 0),
                           F32(2, 3, 6, 0));
    default:
        return NULL;
    }
}

static void wrong_shapes_are_refused(void **state) {
    Bench *b = *state;
    int count = 0;
    for (;; count++) {
        tape_reset(b->t, true);
        Var *r = wrong(b->t, count);
        if (!r) break;
        if (r != tape_poison(b->t)) fail_msg("case %d was taken", count);
        assert_int_equal(tape_status(b->t), STATUS_DATA);
        assert_non_null(strstr(status_message(), "expected"));
    }
    assert_int_equal(count, 15);
    Tape *t = b->t; /* still poisoned nowhere: the inputs alone were made */
    assert_null(tape_poison(t));
}

/* A poisoned tape passes through every op. */
static void poison_passes(void **state) {
    Bench *b = *state;
    Tape *t = b->t;
    tape_reset(t, true);
    Var *x = F32(2, 4, 6, 0), *w[] = {x, x, x};
    Var *p = tape_fail(t, status_set(STATUS_DATA, "on purpose"));
    assert_ptr_equal(op_linear_rows(t, x, p, 0, 1), p);
    assert_ptr_equal(op_token_rates(t, x, x, p, 0), p);
    assert_ptr_equal(op_side_by_side(t, x, p, DTYPE_F32), p);
    const LactGradients g = op_lact_write(t, x, p, w, 1, false, DTYPE_F32);
    assert_true(g.gates == p && g.back == p);
    const LactWeights y = op_lact_step(t, g, w, 1, 0, DTYPE_F32);
    assert_true(y.gates == p && y.back == p);
    assert_ptr_equal(op_lact_read(t, x, y, 1), p);
    assert_ptr_equal(op_lact_out(t, x, x, 1, p, NULL), p);
}

static void a_released_value_lets_gradients_pass(void **state) {
    Bench *b = *state;
    Tape *t = b->t;
    double *gradient[2];
    size_t used[2];
    for (int release = 0; release < 2; release++) {
        tape_reset(t, true);
        Var *x = F32(5, 7, 0, 0), *branch = op_scale(t, x, 1.5f);
        Var *y = op_residual(t, x, branch, tensor_none());
        if (release) tape_release(t, branch);
        used[release] = b->d->step.used;
        Var *loss = op_mse(t, y, x->value);
        check_ok(tape_backward(t, loss, 1));
        gradient[release] = pull_doubles(b->d, x->grad);
        tape_release(t, x); /* an input is the caller's */
        assert_non_null(x->value.data);
    }
    assert_true(used[1] < used[0]);
    for (int i = 0; i < 35; i++) assert_true(gradient[0][i] == gradient[1][i]);
    free(gradient[0]);
    free(gradient[1]);
}

/* A frugal tape computes hidden values again: less memory, the same gradients. */
static void a_frugal_tape_keeps_less(void **state) {
    Bench *b = *state;
    Tape *t = b->t;
    double *gradient[2];
    size_t used[2];
    for (int frugal = 0; frugal < 2; frugal++) {
        tape_set_thrift(t, frugal ? TAPE_FRUGAL : TAPE_LAVISH);
        assert_true(tape_thrift(t) == (frugal ? TAPE_FRUGAL : TAPE_LAVISH));
        tape_reset(t, true);
        Var *x = F32(50, 7, 0, 0), *w1 = F32(28, 7, 0, 0), *w2 = F32(7, 28, 0, 0);
        Var *loss = op_mse(t, op_mlp(t, x, w1, NULL, w2, NULL), x->value);
        used[frugal] = b->d->step.used;
        check_ok(tape_backward(t, loss, 1));
        gradient[frugal] = pull_doubles(b->d, x->grad);
    }
    tape_set_thrift(t, TAPE_LAVISH);
    assert_true(used[0] - used[1] >= 50 * 28 * sizeof(float));
    assert_true(relative(gradient[1], gradient[0], 350, 0) < 1e-6);
    free(gradient[0]);
    free(gradient[1]);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(wrong_shapes_are_refused, bench_open, bench_close),
        cmocka_unit_test_setup_teardown(poison_passes, bench_open, bench_close),
        cmocka_unit_test_setup_teardown(a_released_value_lets_gradients_pass, bench_open,
                                        bench_close),
        cmocka_unit_test_setup_teardown(a_frugal_tape_keeps_less, bench_open, bench_close),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
