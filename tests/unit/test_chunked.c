/* The fused form of the chunked layer against the composed one: every variant and form, chunks that
 * do not divide the sequence, shared and own weights, states handed in; and that it gives all its
 * memory back. */
#include <math.h>
#include <stdarg.h>
#include <stddef.h>
#include <setjmp.h>
#include <stdint.h>
#include <cmocka.h>

#include "ttt/chunked.h"
#include "vittt_fixture.h"

typedef struct Case {
    int variant;
    ChunkedForm form;
    int64_t batch, heads, tokens, chunk, dk, hidden, dv, owners; /* owners: B of the weights */
    bool inclusive, ascend, states, plain; /* states: P and initial weights; plain: without rates */
    int64_t steps;
} Case;

static const Case cases[] = {
    {0, CHUNKED_RECURRENT, 2, 2, 11, 4, 6, 6, 6, 1, false, false, false, false, 1},
    {0, CHUNKED_RECURRENT, 1, 3, 12, 4, 5, 5, 5, 1, true, true, true, false, 1},
    {0, CHUNKED_RECURRENT, 2, 1, 9, 0, 4, 4, 4, 2, true, false, true, true, 3},
    {0, CHUNKED_RECURRENT, 1, 1, 7, 3, 4, 6, 5, 1, false, false, false, false, 1}, /* composed */
    {1, CHUNKED_RECURRENT, 2, 2, 11, 4, 6, 9, 5, 2, false, false, true, false, 2},
    {2, CHUNKED_RECURRENT, 2, 2, 11, 4, 6, 9, 5, 1, true, false, false, false, 1},
    {2, CHUNKED_PARALLEL, 2, 2, 11, 4, 6, 9, 5, 1, true, false, true, false, 1},
    {2, CHUNKED_PARALLEL, 1, 2, 12, 4, 6, 9, 5, 1, false, true, false, true, 1},
    {3, CHUNKED_PARALLEL, 2, 3, 13, 5, 6, 6, 5, 2, false, false, true, false, 1},
    {3, CHUNKED_PARALLEL, 2, 1, 3, 5, 6, 6, 5, 1, false, false, false, false, 1},
    {4, CHUNKED_RECURRENT, 1, 2, 10, 3, 6, 6, 6, 1, true, false, true, true, 1},
    {5, CHUNKED_PARALLEL, 1, 1, 10, 3, 6, 6, 4, 1, false, false, false, true, 1},
    {6, CHUNKED_RECURRENT, 2, 2, 10, 3, 6, 6, 4, 1, false, false, false, true, 1},
    {6, CHUNKED_PARALLEL, 2, 2, 10, 3, 6, 6, 4, 1, true, false, false, true, 1},
};
enum { CASES = sizeof cases / sizeof *cases };

/* Normal values of the given spread; `positive`: between 0 and 1. */
static Var *values(Tape *t, DType dtype, int rank, const int64_t *shape, uint64_t seed,
                   bool positive) {
    int64_t n = 1;
    for (int i = 0; i < rank; i++) n *= shape[i];
    float *x = malloc(sizeof *x * (size_t)n);
    fill_normal(x, n, seed, 0.7);
    for (int64_t i = 0; positive && i < n; i++) x[i] = 1.0f / (1.0f + expf(x[i]));
    Var *v = tape_input(t, push_floats(t, x, dtype, rank, shape), "x");
    free(x);
    return v;
}

static void inputs_of(const Case *c, Tape *t, DType act, ChunkedTokens *in) {
    const int64_t b = c->batch, h = c->heads, n = c->tokens;
    const bool moving = c->variant < 5, linear = c->variant >= 3;
    *in = (ChunkedTokens){.q = values(t, act, 4, (int64_t[]){b, h, n, c->dk}, 1, false),
                          .k = values(t, act, 4, (int64_t[]){b, h, n, c->dk}, 2, false),
                          .v = values(t, act, 4, (int64_t[]){b, h, n, c->dv}, 3, false)};
    if (moving) in->momentum = values(t, DTYPE_F32, 3, (int64_t[]){b, h, n}, 4, true);
    for (int j = 0; j < 3; j++) {
        const int64_t rows = j == 1 ? c->hidden : c->dk, columns = j == 1 ? c->dv : c->hidden;
        const int64_t own[] = {c->owners, h, rows, columns}, all[] = {b, h, rows, columns};
        if (!c->plain) in->rate[j] = values(t, DTYPE_F32, 3, (int64_t[]){b, h, n}, 5 + j, true);
        if (linear && j != 1) continue;
        in->weight[j] = values(t, DTYPE_F32, 4, own, 8 + j, false);
        if (!c->states) continue;
        in->initial[j] = values(t, DTYPE_F32, 4, own, 11 + j, false);
        if (moving) in->update[j] = values(t, DTYPE_F32, 4, all, 14 + j, false);
    }
}

static double distance(Tape *t, Var *got, Var *want) {
    double *a = pull_doubles(tape_device(t), got->value);
    double *b = pull_doubles(tape_device(t), want->value);
    const double off = relative(a, b, tensor_count(want->value), 0);
    free(a);
    free(b);
    return off;
}

static void compare(Tape *t, int i, const char *what, Var *got, Var *want, double limit) {
    assert_int_equal(got == NULL, want == NULL);
    if (!want) return;
    assert_true(tensor_same_shape(got->value, want->value));
    const double off = distance(t, got, want);
    if (!(off <= limit)) print_error("case %d, %s: %g\n", i, what, off);
    assert_true(off <= limit);
}

static void run_case(Tape *t, int i, DType act, double limit) {
    const Case *c = &cases[i];
    ChunkedRule rule;
    ChunkedTokens in;
    ChunkedState end[2];
    Var *y[2];
    check_ok(chunked_variant(c->variant, &rule));
    rule.chunk = c->chunk;
    rule.inclusive = c->inclusive;
    rule.ascend = c->ascend;
    rule.steps = c->steps;
    rule.newton_schulz.bf16 = act == DTYPE_BF16;
    tape_reset(t, false);
    inputs_of(c, t, act, &in);
    for (int k = 0; k < 2; k++) {
        rule.composed = k;
        y[k] = chunked_forward(&rule, c->form, t, &in, &end[k]);
        check_ok(tape_status(t));
    }
    compare(t, i, "out", y[0], y[1], limit);
    for (int j = 0; j < 3; j++) {
        compare(t, i, "weight", end[0].weight[j], end[1].weight[j], limit);
        compare(t, i, "update", end[0].update[j], end[1].update[j], limit);
    }
    /* alone, and then all of its memory is back */
    const size_t used = tape_device(t)->step.used;
    rule.composed = false;
    Var *again = chunked_forward(&rule, c->form, t, &in, NULL);
    tape_drop(t, again->base ? again->base : again);
    check_ok(tape_status(t));
    if (tape_device(t)->step.used != used) print_error("case %d keeps memory\n", i);
    assert_int_equal(tape_device(t)->step.used, used);
}

static void forms_agree(void **state) {
    Bench *b = *state;
    for (int i = 0; i < CASES; i++) run_case(b->t, i, DTYPE_F32, 3e-5);
}

static void forms_agree_in_bf16(void **state) {
    Bench *b = *state;
    tape_set_act(b->t, DTYPE_BF16);
    /* Newton-Schulz raises what was rounded where few tokens leave directions empty */
    for (int i = 0; i < CASES; i++)
        run_case(b->t, i, DTYPE_BF16, cases[i].variant == 6 ? 0.01 : 0.3);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(forms_agree, bench_open, bench_close),
        cmocka_unit_test_setup_teardown(forms_agree_in_bf16, bench_open, bench_close),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
