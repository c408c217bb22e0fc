/* Newton-Schulz against doubles; its node against the same from single ops; on a card the products
 * of BF16 operands against F32, at the size of LaCT-NVS. */
#include <stdarg.h>
#include <stddef.h>
#include <setjmp.h>
#include <stdint.h>
#include <cmocka.h>

#include "ttt/newton_schulz.h"
#include "vittt_fixture.h"

/* c = a b' in doubles; a [n,k], b [m,k]. */
static void product_abt(const double *a, const double *b, int n, int m, int k, double *c) {
    for (int i = 0; i < n; i++)
        for (int j = 0; j < m; j++) {
            double sum = 0;
            for (int p = 0; p < k; p++) sum += a[i * k + p] * b[j * k + p];
            c[i * m + j] = sum;
        }
}

/* By the letter of lact_nvs.md 4.3, always with X X'; x [r,c] in place. */
static void reference_newton_schulz(double *x, int r, int c, int steps) {
    double *gram = malloc(sizeof *gram * (size_t)(r * r)),
           *square = malloc(sizeof *gram * (size_t)(r * r));
    double *next = malloc(sizeof *gram * (size_t)(r * c));
    const double scale = norm_of(x, r * c) + 1e-7;
    for (int i = 0; i < r * c; i++) x[i] /= scale;
    for (int s = 0; s < steps; s++) {
        product_abt(x, x, r, r, c, gram);
        product_abt(gram, gram, r, r, r, square); /* symmetric */
        for (int i = 0; i < r; i++)
            for (int j = 0; j < c; j++) {
                double sum = 3.4445 * x[i * c + j];
                for (int p = 0; p < r; p++)
                    sum += (-4.7750 * gram[i * r + p] + 2.0315 * square[i * r + p]) * x[p * c + j];
                next[i * c + j] = sum;
            }
        memcpy(x, next, sizeof *x * (size_t)(r * c));
    }
    free(gram);
    free(square);
    free(next);
}

static void newton_schulz_against_doubles(void **state) {
    (void)state;
    const int sizes[][2] = {{8, 8}, {5, 13}, {13, 5}, {1, 7}, {7, 1}, {1, 1}, {33, 20}};
    Device *d;
    Tape *t;
    check_ok(device_open("cpu", &d));
    check_ok(tape_new(d, &t));
    for (size_t k = 0; k < sizeof sizes / sizeof sizes[0]; k++) {
        for (int steps = 0; steps <= NEWTON_SCHULZ_STEPS; steps += NEWTON_SCHULZ_STEPS) {
            const int r = sizes[k][0], c = sizes[k][1];
            const int64_t shape[] = {3, 2, r, c}, all = 6 * r * c;
            float *g = malloc(sizeof *g * (size_t)all);
            double *want = malloc(sizeof *want * (size_t)all);
            fill_normal(g, all, k, 3);
            for (int i = 0; i < r * c; i++) g[i] = 0; /* no gradient at all: X = 0, not NaN */
            for (int64_t i = 0; i < all; i++) want[i] = (double)g[i];
            for (int i = 0; i < 6; i++) reference_newton_schulz(want + i * r * c, r, c, steps);
            tape_reset(t, false);
            Var *x =
                newton_schulz(t, tape_input(t, push_floats(t, g, DTYPE_F32, 4, shape), "G"), steps);
            check_ok(tape_status(t));
            double *got = pull_doubles(d, x->value);
            assert_true(relative(got, want, all, 0) < 5e-6);
            free(got);
            free(want);
            free(g);
        }
    }
    tape_free(t);
    device_close(d);
}

/* sum(x * r) as F32 [1]. */
static Var *weighted_sum(Tape *t, Var *x, Tensor r) {
    const int64_t n = tensor_count(r);
    Var *row = op_view(t, x, 2, (int64_t[]){1, n});
    Var *column = op_view(t, tape_input(t, r, "r"), 2, (int64_t[]){n, 1});
    return op_view(t, op_matmul(t, row, false, column, false, 1, DTYPE_F32), 1, (int64_t[]){1});
}

typedef struct Outcome {
    double *u, *dg;
} Outcome;

static void outcome_free(Outcome r) {
    free(r.u);
    free(r.dg);
}

typedef enum Form { COMPOSED, NODE } Form;

/* Value and gradient of one form; g and r are [matrices, rows, columns]. */
static Outcome run(Tape *t, Form form, NewtonSchulz s, const float *g, const float *r,
                   const int64_t *shape) {
    tape_reset(t, true);
    Var *in = tape_input_grad(t, push_floats(t, g, DTYPE_F32, 3, shape), "G");
    const Tensor weights = push_floats(t, r, DTYPE_F32, 3, shape);
    Var *u =
        form == NODE ? op_newton_schulz(t, in, s, DTYPE_F32) : newton_schulz_composed(t, in, s);
    Var *loss = weighted_sum(t, u, weights);
    check_ok(tape_status(t));
    Outcome result = {.u = pull_doubles(tape_device(t), u->value)};
    check_ok(tape_backward(t, loss, 1));
    result.dg = pull_doubles(tape_device(t), in->grad);
    return result;
}

static void node_is_its_composition(void **state) {
    (void)state;
    const int64_t shapes[][3] = {{3, 8, 8}, {2, 5, 13}, {2, 13, 5}, {1, 1, 7}, {2, 40, 33}};
    Device *d;
    Tape *t;
    check_ok(device_open("cpu", &d));
    check_ok(tape_new(d, &t));
    for (size_t i = 0; i < sizeof shapes / sizeof *shapes; i++) {
        for (int steps = 0; steps <= NEWTON_SCHULZ_STEPS; steps++) {
            const int64_t n = shapes[i][0] * shapes[i][1] * shapes[i][2];
            const NewtonSchulz s = newton_schulz_fixed(steps, false);
            float *g = malloc(sizeof *g * (size_t)n), *r = malloc(sizeof *r * (size_t)n);
            fill_normal(g, n, i, 0.01);
            fill_normal(r, n, 100 + i, 1);
            const Outcome a = run(t, COMPOSED, s, g, r, shapes[i]);
            const Outcome b = run(t, NODE, s, g, r, shapes[i]);
            assert_true(relative(b.u, a.u, n, 0) < 2e-5);
            assert_true(relative(b.dg, a.dg, n, 1e-3 * norm_of(a.dg, n)) < 2e-5 ||
                        shapes[i][1] == 1); /* a vector's gradient is what cancelling leaves */
            outcome_free(a);
            outcome_free(b);
            free(g);
            free(r);
        }
    }
    tape_free(t);
    device_close(d);
}

/* A matrix of zeros has neither a result nor a gradient (fastweight.md 4.3). */
static void nothing_comes_of_zeros(void **state) {
    (void)state;
    const int64_t shape[] = {2, 3, 4};
    float g[24] = {0}, r[24];
    Device *d;
    Tape *t;
    check_ok(device_open("cpu", &d));
    check_ok(tape_new(d, &t));
    fill_normal(g + 12, 12, 1, 1);
    fill_normal(r, 24, 2, 1);
    const Outcome a = run(t, NODE, newton_schulz_fixed(5, false), g, r, shape);
    for (int i = 0; i < 12; i++) assert_true(a.u[i] == 0 && a.dg[i] == 0);
    assert_true(norm_of(a.u + 12, 12) > 1 && norm_of(a.dg + 12, 12) > 0);
    outcome_free(a);
    tape_free(t);
    device_close(d);
}

static void mistakes_are_refused(void **state) {
    (void)state;
    float g[4] = {1, 2, 3, 4};
    Device *d;
    Tape *t;
    check_ok(device_open("cpu", &d));
    check_ok(tape_new(d, &t));
    for (int i = 0; i < 3; i++) {
        tape_reset(t, false);
        const int64_t shape[] = {2, 2};
        Var *in = tape_input(t, push_floats(t, g, DTYPE_F32, i == 0 ? 1 : 2, shape), "G");
        const NewtonSchulz s = newton_schulz_fixed(i == 1 ? 9 : 5, false);
        op_newton_schulz(t, in, s, i == 2 ? DTYPE_I32 : DTYPE_F32);
        assert_int_equal(tape_status(t), STATUS_DATA);
        assert_non_null(strstr(status_message(), "newton_schulz"));
    }
    tape_free(t);
    device_close(d);
}

/* Inner gradients of few tokens: sums of `rank` products of a column and a row. */
static void fill_low_rank(float *g, int64_t rank, const int64_t *shape) {
    const int64_t rows = shape[1], columns = shape[2], most = rows > columns ? rows : columns;
    float *k = malloc(sizeof *k * (size_t)most), *v = malloc(sizeof *v * (size_t)most);
    memset(g, 0, sizeof *g * (size_t)(shape[0] * rows * columns));
    for (int64_t m = 0; m < shape[0] * rank; m++) {
        float *to = g + m / rank * rows * columns;
        fill_normal(k, rows, 1000 + 2 * (uint64_t)m, 0.03);
        fill_normal(v, columns, 1001 + 2 * (uint64_t)m, 0.03);
        for (int64_t i = 0; i < rows; i++)
            for (int64_t j = 0; j < columns; j++) to[i * columns + j] += (k[i] + 0.03f) * v[j];
    }
    free(k);
    free(v);
}

/* U within 5 % (lact_nvs.md 4.4), the gradient at a cosine above 0.9 (fastweight.md 9). */
static void check_bf16(Tape *t, int64_t matrices, int64_t rows, int64_t columns, int64_t rank) {
    const int64_t shape[] = {matrices, rows, columns}, n = matrices * rows * columns;
    float *g = malloc(sizeof *g * (size_t)n), *r = malloc(sizeof *r * (size_t)n);
    fill_normal(g, n, (uint64_t)n, 0.001);
    if (rank) fill_low_rank(g, rank, shape);
    fill_normal(r, n, (uint64_t)n + 1, 1);
    const Outcome a = run(t, NODE, newton_schulz_fixed(5, false), g, r, shape);
    const Outcome b = run(t, NODE, newton_schulz_fixed(5, true), g, r, shape);
    double dot = 0;
    for (int64_t i = 0; i < n; i++) dot += a.dg[i] * b.dg[i];
    const double off = relative(b.u, a.u, n, 0);
    const double cosine = dot / (norm_of(a.dg, n) * norm_of(b.dg, n));
    print_message(
        "%lld x %lld x %lld, rank %lld: U off by %.2e, gradient by %.2e, its cosine %.5f\n",
        (long long)matrices, (long long)rows, (long long)columns, (long long)rank, off,
        relative(b.dg, a.dg, n, 0), cosine);
    assert_true(off < 0.05);
    assert_true(cosine > 0.9);
    outcome_free(a);
    outcome_free(b);
    free(g);
    free(r);
}

static void bf16_on_a_card(void **state) {
    (void)state;
    Device *d;
    Tape *t;
    if (device_open("cuda", &d) != STATUS_OK) {
        print_message("skipped: %s\n", status_message());
        return;
    }
    check_ok(tape_new(d, &t));
    check_bf16(t, 3, 768, 768, 0);
    check_bf16(t, 2, 768, 768, 512);
    check_bf16(t, 1, 256, 256, 0);
    check_bf16(t, 2, 768, 1536, 0);
    check_bf16(t, 2, 1536, 768, 0);
    check_bf16(t, 2, 320, 448, 200);
    check_bf16(t, 24, 768, 768, 0);
    tape_free(t);
    device_close(d);
}

int main(void) {
    device_set_threads(1);
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(newton_schulz_against_doubles),
        cmocka_unit_test(node_is_its_composition),
        cmocka_unit_test(nothing_comes_of_zeros),
        cmocka_unit_test(mistakes_are_refused),
        cmocka_unit_test(bf16_on_a_card),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
