/* Writing in the span of the tokens: the same layer as with whole inner gradients, and its
 * gradients are slopes. */
#include <stdarg.h>
#include <stddef.h>
#include <setjmp.h>
#include <stdint.h>
#include <cmocka.h>

#include "lact_fixture.h"
#include "lact_nvs_fixture.h"

static void results(Layer *l, LactSpan span, double *out[LAYER_PARTS]) {
    l->lact.span = span;
    layer_results(l, out);
}

static void free_results(double *out[LAYER_PARTS]) {
    for (int k = 0; k < LAYER_PARTS; k++) free(out[k]);
}

static void check_form(const char *variant, int64_t inter_multi, int64_t writing, DType act,
                       double limit) {
    Layer l;
    layer_open(&l, 1, inter_multi, variant, act);
    l.writing = writing;
    double *a[LAYER_PARTS], *b[LAYER_PARTS];
    results(&l, LACT_SPAN_ALWAYS, a);
    results(&l, LACT_SPAN_NEVER, b);
    for (int k = 0; k < LAYER_PARTS; k++) {
        const int64_t n = k < 8 ? tensor_count(l.params.items[k]->master) : layer_count(&l);
        /* the rates' bias: what is left of terms of the size of their weights' gradient */
        const double floor = k == 6 ? norm_of(b[5], 3 * l.lact.heads * l.width) : 0;
        const double error = relative(a[k], b[k], n, floor);
        if (!(error < limit))
            print_error("%s, %d, %d tokens: result %d is off by %g\n", variant, (int)inter_multi,
                        (int)writing, k, error);
        assert_true(error < limit);
    }
    free_results(a);
    free_results(b);
    layer_close(&l);
}

/* In F32 they differ by the shift of the basis, over the tokens' smallest singular values: by 70 to
 * 160 times it at most here. */
static void span_is_whole(void **state) {
    (void)state;
    const char *const variants[] = {"base", "V2", "ascent", "query_is_key"};
    for (size_t i = 0; i < sizeof variants / sizeof *variants; i++)
        for (int64_t inter_multi = 1; inter_multi <= 2; inter_multi++)
            for (int64_t writing = 2; writing <= 8; writing += 3)
                check_form(variants[i], inter_multi, writing, DTYPE_F32,
                           200.0 * (double)TOKEN_SHIFT);
}

/* Distances of results 0 to 9 in BF16 from those of whole gradients in F32, root mean square. */
static double distance(LactSpan span, int64_t inter_multi) {
    Layer exact, rounded;
    double *a[LAYER_PARTS], *b[LAYER_PARTS], sum = 0;
    layer_open(&exact, 1, inter_multi, "base", DTYPE_F32);
    layer_open(&rounded, 1, inter_multi, "base", DTYPE_BF16);
    results(&exact, LACT_SPAN_NEVER, a);
    results(&rounded, span, b);
    for (int k = 0; k < LAYER_PARTS; k++) {
        const int64_t n = k < 8 ? tensor_count(exact.params.items[k]->master) : layer_count(&exact);
        const double floor = k == 6 ? norm_of(a[5], 3 * exact.lact.heads * exact.width) : 0;
        const double error = relative(b[k], a[k], n, floor);
        sum += error * error / LAYER_PARTS;
    }
    free_results(a);
    free_results(b);
    layer_close(&exact);
    layer_close(&rounded);
    return sqrt(sum);
}

static void span_rounds_no_more(void **state) {
    (void)state;
    for (int64_t inter_multi = 1; inter_multi <= 2; inter_multi++) {
        const double whole = distance(LACT_SPAN_NEVER, inter_multi);
        const double span = distance(LACT_SPAN_ALWAYS, inter_multi);
        print_message("BF16 is off by %.3f, in the span by %.3f\n", whole, span);
        assert_true(span < 1.5 * whole && whole < 0.5);
    }
}

/* Sizes that take the span by themselves in BF16; parameters small, as a model's. */
static void open_large(Layer *l, const char *device, DType act) {
    *l = (Layer){.batch = 8, .tokens = 160, .writing = 128, .width = 192};
    layer_open_on(l, device, 1, 1, "base", act);
    params_fill_normal(&l->params, 0.08);
}

/* A card in BF16 against the CPU in F32: no further off than with whole gradients; the CPU rounds
 * less, as its Newton-Schulz is F32 inside. The same bits twice. */
static void card_is_cpu(void **state) {
    (void)state;
    Layer exact, card;
    double *want[LAYER_PARTS], *whole[LAYER_PARTS], *span[LAYER_PARTS], *again[LAYER_PARTS];
    Device *d;
    if (device_open("cuda", &d) != STATUS_OK) {
        print_message("skipped: %s\n", status_message());
        return;
    }
    device_close(d);
    open_large(&exact, "cpu", DTYPE_F32);
    open_large(&card, "cuda", DTYPE_BF16);
    results(&exact, LACT_SPAN_NEVER, want);
    results(&card, LACT_SPAN_NEVER, whole);
    results(&card, LACT_SPAN_AUTO, span);
    results(&card, LACT_SPAN_ALWAYS, again);
    for (int k = 0; k < LAYER_PARTS; k++) {
        const int64_t n = k < 8 ? tensor_count(exact.params.items[k]->master) : layer_count(&exact);
        const double floor = k == 6 ? norm_of(want[5], 3 * exact.width) : 0;
        const double off = relative(whole[k], want[k], n, floor);
        const double there = relative(span[k], want[k], n, floor);
        print_message("result %d: off by %.4f, in the span by %.4f\n", k, off, there);
        assert_true(there < 1.1 * off + 5e-3);
        assert_memory_equal(span[k], again[k], sizeof(double) * (size_t)n);
    }
    free_results(want);
    free_results(whole);
    free_results(span);
    free_results(again);
    layer_close(&exact);
    layer_close(&card);
}

/* One view of 64 tokens writes, of width 128. */
static LactNvsConfig model_in_span(void) {
    LactNvsConfig c = tiny(2, "base");
    c.height = c.view_width = 32;
    c.width = 128;
    c.head_width = 64;
    c.fast_heads = 1;
    c.span = true;
    return c;
}

static void models_learn_alike(void **state) {
    (void)state;
    const Model sizes = {.batch = 8, .views = 2, .inputs = 1};
    LactNvsConfig c = model_in_span();
    const double span = model_overfit(sizes, c, DTYPE_BF16, 8);
    c.recompute = true;
    assert_true(model_overfit(sizes, c, DTYPE_BF16, 8) == span);
    c.recompute = c.span = false;
    const double whole = model_overfit(sizes, c, DTYPE_BF16, 8);
    const double exact = model_overfit(sizes, c, DTYPE_F32, 8);
    print_message("loss after 8 steps: F32 %.5f, BF16 %.5f, in the span %.5f\n", exact, whole,
                  span);
    assert_true(span != whole); /* the rule took it */
    assert_true(fabs(span - exact) < 0.1 * exact);
}

static void a_pass_may_run_out_of_memory(void **state) {
    (void)state;
    int refused = 0;
    for (int64_t n = 1;; n++) {
        Model m = {.batch = 8, .views = 2, .inputs = 1};
        LactNvsConfig c = model_in_span();
        c.layers = 1;
        model_open_of(&m, c, DTYPE_BF16);
        tape_reset(m.tape, true);
        Var *x = view_input(&m, 0, m.views);
        mem_fail_at(n);
        lact_nvs_forward(m.nvs, m.tape, x, m.inputs, NULL);
        const Status s = tape_status(m.tape);
        const bool failed = !mem_fail_pending();
        mem_fail_at(0);
        assert_true(s == STATUS_OK || (failed && s == STATUS_MEMORY));
        refused += s == STATUS_MEMORY;
        model_close(&m);
        if (!failed) break;
    }
    assert_true(refused > 2);
}

int main(void) {
    device_set_threads(1);
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(span_is_whole),
        cmocka_unit_test(span_rounds_no_more),
        cmocka_unit_test(card_is_cpu),
        cmocka_unit_test(models_learn_alike),
        cmocka_unit_test(a_pass_may_run_out_of_memory),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
