/* The gradient of a residual is read by two: with or without a copy in between, the same bits. */
#include <stdarg.h>
#include <stddef.h>
#include <setjmp.h>
#include <stdint.h>
#include <cmocka.h>

#include "vittt_fixture.h"

#define ROWS 5
#define WIDE 12

/* What stands between a value and the sum with its branch. */
typedef enum Shape { PLAIN, BETWEEN, DIRECT, VIEWED, TWICE, OF_VIEW, INPUT_IS_DEAF, SHAPES } Shape;

/* The residual, or the plain sum of an op that always copies. */
static Var *join(Tape *t, Var *x, Var *branch, bool residual) {
    return residual ? op_residual(t, x, branch, tensor_none()) : op_add(t, x, branch, 1);
}

static Var *build(Tape *t, Var *x, Var *w, Shape shape, bool residual) {
    const int64_t same[] = {ROWS, WIDE};
    Var *h = shape == INPUT_IS_DEAF ? x : op_scale(t, x, 0.7f);
    if (shape == DIRECT) return join(t, h, op_silu(t, h), residual);
    Var *b = op_linear(t, op_gelu(t, h), w, NULL);
    if (shape == BETWEEN) {
        Var *other = op_silu(t, h); /* adds to d h before b's backward reads d b */
        return op_add(t, join(t, h, b, residual), other, 1);
    }
    if (shape == TWICE) return op_mul(t, join(t, h, b, residual), b);
    if (shape == VIEWED) b = op_view(t, b, 2, same);
    if (shape == OF_VIEW) h = op_view(t, h, 2, same);
    return join(t, h, b, residual);
}

static void run(Shape shape, bool residual, float *out, size_t *used) {
    Device *d;
    Params p;
    Tape *t;
    float in[ROWS * WIDE];
    const int64_t sizes[] = {ROWS, WIDE};
    check_ok(device_open("cpu", &d));
    params_init(&p, d);
    Var *w = params_add(&p, "w", 2, (int64_t[]){WIDE, WIDE}, (Init){INIT_NORMAL, 0.5f}, 0);
    check_ok(params_build(&p, DTYPE_F32, true));
    check_ok(params_initialise(&p, 2));
    check_ok(tape_new(d, &t));
    tape_reset(t, true);
    params_begin_step(&p);
    fill_normal(in, ROWS * WIDE, 5, 1);
    Tensor value = push_floats(t, in, DTYPE_F32, 2, sizes);
    bool deaf = shape == INPUT_IS_DEAF;
    Var *x = deaf ? tape_input(t, value, "x") : tape_input_grad(t, value, "x");
    Var *y = build(t, x, w, shape, residual);
    y = join(t, y, op_linear(t, y, w, NULL), residual); /* a second one, over the first */
    Var *loss = op_cross_entropy(t, y, value);
    check_ok(tape_status(t));
    size_t before = d->step.used;
    check_ok(tape_backward(t, loss, 1));
    *used = d->step.used;
    assert_true(*used < before);
    check_ok(device_pull(d, out, w->grad));
    if (!deaf) check_ok(device_pull(d, out + WIDE * WIDE, x->grad));
    tape_free(t);
    params_free(&p);
    device_close(d);
}

static void forks_give_the_bits_of_sums(void **unused) {
    (void)unused;
    for (Shape shape = PLAIN; shape < SHAPES; shape++) {
        float a[WIDE * WIDE + ROWS * WIDE] = {0}, b[WIDE * WIDE + ROWS * WIDE] = {0};
        size_t used_a, used_b;
        run(shape, true, a, &used_a);
        run(shape, false, b, &used_b);
        assert_memory_equal(a, b, sizeof a);
        assert_int_equal(used_a, used_b); /* everything was given back, once */
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(forks_give_the_bits_of_sums)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
