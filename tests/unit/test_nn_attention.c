/* op_attention against the ops that it replaces: values and gradients, also where a second op reads
 * the packed projection; what it refuses. Kernels: tests/ops. */
#include <stdarg.h>
#include <stddef.h>
#include <setjmp.h>
#include <stdint.h>
#include <cmocka.h>

#include "nn_fixture.h"

#define EPS 1.1920929e-7f

enum { WINDOWS = 2, TOKENS = 37, HEADS = 3, WIDTH = 8, CHANNELS = HEADS * WIDTH };
enum { PACKED = WINDOWS * TOKENS * 3 * CHANNELS, RESULT = WINDOWS * TOKENS * CHANNELS };

typedef Var *(*Form)(Tape *t, Var *packed, Var *q_w, Var *k_w);

static Var *fused(Tape *t, Var *packed, Var *q_w, Var *k_w) {
    return op_attention(t, packed, q_w, k_w, HEADS, EPS);
}

static Var *composed(Tape *t, Var *packed, Var *q_w, Var *k_w) {
    Var *x[3], *w[3] = {q_w, k_w, NULL};
    for (int i = 0; i < 3; i++) {
        x[i] = op_split_heads(t, packed, i * CHANNELS, HEADS, WIDTH);
        if (w[i]) x[i] = op_rmsnorm(t, x[i], w[i], EPS);
    }
    Var *scores = op_matmul(t, x[0], false, x[1], true, 1, DTYPE_F32);
    Var *p = op_softmax(t, scores, 1.0f / sqrtf((float)WIDTH));
    Var *o =
        op_matmul(t, op_cast(t, p, x[2]->value.dtype), false, x[2], false, 1, x[2]->value.dtype);
    return op_merge_heads(t, o, NULL);
}

typedef struct Result {
    float o[RESULT], packed[PACKED], q_w[WIDTH], k_w[WIDTH];
} Result;

static Var *drawn(Tape *t, DType dtype, int rank, const int64_t *shape, uint64_t seed, float mean,
                  bool wanted) {
    Tensor x;
    check_ok(tape_take(t, dtype, rank, shape, &x));
    Rng rng = rng_stream(seed, RNG_TEST, 0, 0);
    for (int64_t i = 0; i < tensor_count(x); i++) {
        const float value = mean + (float)rng_normal(&rng);
        if (dtype == DTYPE_F32)
            ((float *)x.data)[i] = value;
        else
            ((uint16_t *)x.data)[i] = bf16_from_f32(value);
    }
    return wanted ? tape_input_grad(t, x, "x") : tape_input(t, x, "x");
}

static void numbers_of(Tensor t, float *out) {
    for (int64_t i = 0; i < tensor_count(t); i++)
        out[i] =
            t.dtype == DTYPE_F32 ? ((float *)t.data)[i] : f32_from_bf16(((uint16_t *)t.data)[i]);
}

/* Loss: the sum of r o, and of r^ packed when `twice`. */
static void run(Form form, DType act, bool norm, bool twice, Result *out) {
    Device *d;
    Tape *t;
    const int64_t one = 1, row[] = {1, RESULT}, column[] = {RESULT, 1}, width = WIDTH;
    const int64_t shape[] = {WINDOWS, TOKENS, 3 * CHANNELS}, flat[] = {1, PACKED};
    check_ok(device_open("cpu", &d));
    check_ok(tape_new(d, &t));
    tape_reset(t, true);
    Var *packed = drawn(t, act, 3, shape, 1, 0, true);
    Var *q_w = norm ? drawn(t, DTYPE_F32, 1, &width, 2, 1, true) : NULL;
    Var *k_w = norm ? drawn(t, DTYPE_F32, 1, &width, 3, 1, true) : NULL;
    Var *o = form(t, packed, q_w, k_w);
    Var *r = drawn(t, act, 2, column, 4, 0, false);
    Var *loss = op_matmul(t, op_view(t, o, 2, row), false, r, false, 1, DTYPE_F32);
    if (twice) {
        Var *s = drawn(t, act, 2, (int64_t[]){PACKED, 1}, 5, 0, false);
        Var *more = op_matmul(t, op_view(t, packed, 2, flat), false, s, false, 1, DTYPE_F32);
        loss = op_add(t, loss, more, 1);
    }
    check_ok(tape_status(t));
    numbers_of(o->value, out->o);
    check_ok(tape_backward(t, op_view(t, loss, 1, &one), 1.0f));
    numbers_of(packed->grad, out->packed);
    if (norm) numbers_of(q_w->grad, out->q_w);
    if (norm) numbers_of(k_w->grad, out->k_w);
    tape_free(t);
    device_close(d);
}

static void compare(const char *what, const float *a, const float *b, int64_t n, double limit) {
    double off = 0, norm = 0;
    for (int64_t i = 0; i < n; i++) {
        off += (a[i] - b[i]) * (double)(a[i] - b[i]);
        norm += b[i] * (double)b[i];
    }
    if (!(sqrt(off) <= limit * sqrt(norm)))
        print_error("%s: relative difference %.3g\n", what, sqrt(off / norm));
    assert_true(sqrt(off) <= limit * sqrt(norm));
}

static void test_equals_composition(void **state) {
    (void)state;
    static Result a, b;
    for (int i = 0; i < 8; i++) {
        const bool norm = i & 1, twice = i & 2;
        const DType act = i & 4 ? DTYPE_BF16 : DTYPE_F32;
        const double limit = act == DTYPE_BF16 ? 1.5e-2 : 3e-6;
        run(fused, act, norm, twice, &a);
        run(composed, act, norm, twice, &b);
        compare("o", a.o, b.o, RESULT, limit);
        compare("packed", a.packed, b.packed, PACKED, limit);
        if (norm) compare("q_w", a.q_w, b.q_w, WIDTH, limit);
        if (norm) compare("k_w", a.k_w, b.k_w, WIDTH, limit);
    }
}

static void test_refuses(void **state) {
    (void)state;
    Device *d;
    Tape *t;
    const int64_t shape[] = {1, 2, 12}, width = 2;
    check_ok(device_open("cpu", &d));
    check_ok(tape_new(d, &t));
    for (int i = 0; i < 4; i++) {
        tape_reset(t, false);
        Var *packed = drawn(t, DTYPE_F32, i == 0 ? 2 : 3, i == 0 ? shape + 1 : shape, 1, 0, false);
        Var *w = drawn(t, DTYPE_F32, 1, &width, 2, 0, false);
        /* rank; channels that 5 heads do not divide; weights of another width; one weight alone */
        op_attention(t, packed, w, i == 3 ? NULL : w, i == 1 ? 5 : i == 2 ? 1 : 2, EPS);
        check_fails(tape_status(t), STATUS_DATA, "attention");
    }
    tape_free(t);
    device_close(d);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_equals_composition),
        cmocka_unit_test(test_refuses),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
