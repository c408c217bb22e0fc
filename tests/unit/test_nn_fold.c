/* Layer norms folded into the products behind them, against the two apart. */
#include <stdarg.h>
#include <stddef.h>
#include <setjmp.h>
#include <stdint.h>
#include <cmocka.h>

#include "kernels/backend.h"
#include "vittt_model_fixture.h"

enum { ROWS = 12, IN = 40, OUT = 24 };

/* ---- one product ---------------------------------------------------------------------------- */

static Var *input_of(Tape *t, const float *v, DType dtype, int64_t rows, int64_t columns) {
    const int64_t shape[] = {rows, columns};
    const int rank = columns ? 2 : 1;
    return tape_input(t, push_floats(t, v, dtype, rank, shape), "input");
}

typedef struct Layer {
    float x[ROWS * IN], w[OUT * IN], b[OUT], gain[IN], shift[IN], back[IN * OUT], b2[IN];
} Layer;

/* Rows with a mean of `mean` times their deviation; the last row has one large value. */
static void draw_layer(Layer *l, float mean) {
    fill_normal(l->x, ROWS * IN, 1, 1);
    for (int i = 0; i < ROWS * IN; i++) l->x[i] += mean;
    l->x[ROWS * IN - 3] += 300.0f;
    fill_normal(l->w, OUT * IN, 2, 0.3);
    fill_normal(l->b, OUT, 3, 1);
    fill_normal(l->gain, IN, 4, 1);
    fill_normal(l->shift, IN, 5, 1);
    fill_normal(l->back, IN * OUT, 6, 0.3);
    fill_normal(l->b2, IN, 7, 1);
}

/* op_linear_folded and op_mlp_folded of x against layer norm and product in F32, on the same
 * rounded x and weights. */
static double distance_of(Bench *k, const Layer *l, DType act, bool mlp) {
    Tape *t = k->t;
    tape_reset(t, false);
    Var *x = input_of(t, l->x, act, ROWS, IN), *w = input_of(t, l->w, act, OUT, IN);
    Var *b = input_of(t, l->b, DTYPE_F32, OUT, 0), *gain = input_of(t, l->gain, DTYPE_F32, IN, 0);
    Var *shift = input_of(t, l->shift, DTYPE_F32, IN, 0),
        *b2 = input_of(t, l->b2, DTYPE_F32, IN, 0);
    Var *back = input_of(t, l->back, act, IN, OUT), *stats;
    NormFold f = {tensor_none(), tensor_none()};
    check_ok(norm_fold(k->d, &f, w, b, gain, shift));
    const int64_t shape[] = {ROWS, 2};
    Tensor made;
    check_ok(tape_take(t, DTYPE_F32, 2, shape, &made));
    check_ok(k->d->k->layernorm(k->d, tensor_none(), made, x->value, tensor_none(), tensor_none(),
                                1e-6f));
    stats = tape_input(t, made, "stats");
    Var *got = mlp ? op_mlp_folded(t, x, stats, &f, back, b2, 1e-6f, NULL)
                   : op_linear_folded(t, x, stats, &f);
    Var *wide = op_cast(t, x, DTYPE_F32);
    Var *normed = op_layernorm(t, wide, gain, shift, 1e-6f);
    Var *w32 = op_cast(t, w, DTYPE_F32), *back32 = op_cast(t, back, DTYPE_F32);
    Var *want = mlp ? op_mlp_residual(t, normed, w32, b, back32, b2, wide, tensor_none())
                    : op_linear(t, normed, w32, b);
    check_ok(tape_status(t));
    double *a = pull_doubles(k->d, got->value), *e = pull_doubles(k->d, want->value);
    const double out = relative(a, e, tensor_count(want->value), 0);
    free(a);
    free(e);
    return out;
}

static void products_are_close(void **state) {
    Bench *k = *state;
    Layer l;
    const float means[] = {0, 1, 30};
    for (int i = 0; i < 3; i++) {
        draw_layer(&l, means[i]);
        for (int mlp = 0; mlp < 2; mlp++) {
            const double exact = distance_of(k, &l, DTYPE_F32, mlp);
            const double rounded = distance_of(k, &l, DTYPE_BF16, mlp);
            if (!(exact < 2e-5 && rounded < 8e-3))
                print_error("mean %g, mlp %d: %g, %g\n", (double)means[i], mlp, exact, rounded);
            assert_true(exact < 2e-5 && rounded < 8e-3);
        }
    }
}

/* Rounding alone would leave some eight last digits of a sum of 768 elements. */
static void rows_sum_to_nothing(void **state) {
    Bench *k = *state;
    Tape *t = k->t;
    enum { LONG = 768, FEW = 50 };
    static float w[FEW * LONG], ones[LONG];
    fill_normal(w, FEW * LONG, 1, 1);
    for (int i = 0; i < LONG; i++) ones[i] = 1;
    tape_reset(t, false);
    Var *weights = input_of(t, w, DTYPE_BF16, FEW, LONG);
    Var *gain = input_of(t, ones, DTYPE_F32, LONG, 0);
    NormFold f = {tensor_none(), tensor_none()};
    check_ok(norm_fold(k->d, &f, weights, NULL, gain, gain));
    double *folded = pull_doubles(k->d, f.w), *from = pull_doubles(k->d, weights->value);
    for (int r = 0; r < FEW; r++) {
        double sum = 0, mean = 0;
        for (int c = 0; c < LONG; c++) mean += from[r * LONG + c] / LONG;
        for (int c = 0; c < LONG; c++) {
            const double x = folded[r * LONG + c], want = from[r * LONG + c] - mean;
            sum += x;
            assert_true(fabs(x - want) <= fabs(want) / 64 + 1e-6); /* two last digits at most */
        }
        assert_true(fabs(sum) < 2e-3); /* half a digit of an element of .5 */
    }
    free(folded);
    free(from);
}

static void recording_is_refused(void **state) {
    Bench *k = *state;
    Layer l;
    draw_layer(&l, 0);
    tape_reset(k->t, true);
    Var *x = input_of(k->t, l.x, DTYPE_F32, ROWS, IN), *w = input_of(k->t, l.w, DTYPE_F32, OUT, IN);
    Var *v = input_of(k->t, l.gain, DTYPE_F32, IN, 0);
    NormFold f = {tensor_none(), tensor_none()};
    check_ok(norm_fold(k->d, &f, w, NULL, v, v));
    assert_false(norm_folds(k->t, &f, ROWS));
    op_linear_folded(k->t, x, x, &f);
    assert_int_equal(tape_status(k->t), STATUS_DATA);
}

/* ---- a model -------------------------------------------------------------------------------- */

static bool folds_all(Device *d, int64_t rows, int64_t outputs, int64_t inputs) {
    (void)d;
    return rows > 0 && outputs > 0 && inputs > 0;
}
static bool folds_first(Device *d, int64_t rows, int64_t outputs, int64_t inputs) {
    return folds_all(d, rows, outputs, inputs) && outputs != 2 * inputs; /* not fc1 */
}
static bool folds_second(Device *d, int64_t rows, int64_t outputs, int64_t inputs) {
    return folds_all(d, rows, outputs, inputs) && outputs == 2 * inputs;
}

/* Weights that matter in every branch, and norms that do something. */
static void liven(Params *p) {
    for (int64_t i = 0; i < p->count; i++) {
        const Tensor t = p->items[i]->master;
        float *v = t.data;
        for (int64_t j = 0; j < tensor_count(t); j++) {
            Rng r = rng_stream(9, RNG_TEST, (uint64_t)i, (uint64_t)j);
            v[j] += (float)((t.rank > 1 ? 0.15 : 0.3) * rng_normal(&r));
        }
    }
    check_ok(params_refresh(p));
}

static void models_are_close(void **state) {
    (void)state;
    bool (*const ways[])(Device *, int64_t, int64_t, int64_t) = {folds_all, folds_first,
                                                                 folds_second};
    enum { PIXELS = 2 * 16 * 16 * 3, LOGITS = 2 * 8 };
    float image[PIXELS];
    Model exact, m;
    fill_normal(image, PIXELS, 11, 1);
    model_open(&exact, tiny(3, 0), DTYPE_F32, false);
    liven(&exact.params);
    double *want = logits_of(&exact, image, 2, 16, 16, false, false);
    for (int i = 0; i < 3; i++) {
        model_open(&m, tiny(3, 0), DTYPE_BF16, false);
        liven(&m.params);
        DeviceMemory memory = *m.device->memory;
        memory.folds_norms = ways[i];
        m.device->memory = &memory;
        double *apart = logits_of(&m, image, 2, 16, 16, false, false);
        check_ok(vittt_fold(m.vittt, m.device, 2));
        assert_int_equal(!tensor_is_none(m.vittt->blocks[1].fold1.w), i != 2);
        assert_int_equal(!tensor_is_none(m.vittt->blocks[1].fold2.w), i != 1);
        const int64_t growths = tape_growths(m.tape);
        double *folded = logits_of(&m, image, 2, 16, 16, false, false);
        check_ok(vittt_fold(m.vittt, m.device, 2)); /* the same weights in the same memory */
        double *again = logits_of(&m, image, 2, 16, 16, false, false);
        double *recorded = logits_of(&m, image, 2, 16, 16, true, false);
        assert_int_equal(tape_growths(m.tape), growths);
        const double a = relative(apart, want, LOGITS, 0), f = relative(folded, want, LOGITS, 0);
        if (!(f < 2e-2)) print_error("way %d: %g, apart %g\n", i, f, a);
        assert_true(f < 2e-2 && a < 2e-2);
        assert_memory_not_equal(folded, apart, LOGITS * sizeof *apart); /* it was another way */
        assert_memory_equal(folded, again, LOGITS * sizeof *apart);
        assert_memory_equal(recorded, apart, LOGITS * sizeof *apart); /* never folded */
        liven(&m.params); /* what is folded is of other weights now: not used until it is made again
                           */
        double *old = logits_of(&m, image, 2, 16, 16, false, false);
        double *changed = logits_of(&m, image, 2, 16, 16, true, false);
        assert_memory_equal(old, changed, LOGITS * sizeof *old);
        assert_memory_not_equal(old, apart, LOGITS * sizeof *old);
        check_ok(vittt_fold(m.vittt, m.device, 2));
        double *anew = logits_of(&m, image, 2, 16, 16, false, false);
        assert_memory_not_equal(anew, changed, LOGITS * sizeof *old);
        assert_true(relative(anew, changed, LOGITS, 0) < 4e-2);
        free(old);
        free(changed);
        free(anew);
        free(apart);
        free(folded);
        free(again);
        free(recorded);
        m.device->memory = exact.device->memory;
        model_close(&m);
    }
    free(want);
    model_close(&exact);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(products_are_close, bench_open, bench_close),
        cmocka_unit_test_setup_teardown(rows_sum_to_nothing, bench_open, bench_close),
        cmocka_unit_test_setup_teardown(recording_is_refused, bench_open, bench_close),
        cmocka_unit_test(models_are_close),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
