/* Blocks that are computed again in the backward: the same gradients to the bit, less memory. */
#include <stdarg.h>
#include <stddef.h>
#include <setjmp.h>
#include <stdint.h>
#include <cmocka.h>

#include <string.h>

#include "vision/vittt.h"
#include "vittt_fixture.h"

#define BATCH 3

typedef struct Run {
    float *grads;
    float loss;
    int64_t flat;
    size_t peak;
} Run;

static VitttConfig config(const char *mixer, int form, bool recompute) {
    VitttConfig c = {.preset = "custom",
                     .image_size = 32,
                     .patch = 8,
                     .width = 32,
                     .depth = 4,
                     .heads = 2,
                     .mlp_ratio = 4,
                     .classes = 5,
                     .drop_path = 0.4,
                     .form = form};
    snprintf(c.mixer, sizeof c.mixer, "%s", mixer);
    c.recompute = recompute;
    return c;
}

static Tensor values(Device *d, Tape *t, DType dtype, int rank, const int64_t *shape) {
    Tensor x;
    check_ok(tape_take(t, dtype, rank, shape, &x));
    const int64_t n = tensor_count(x);
    unsigned char *bytes = malloc((size_t)n);
    float *floats = malloc((size_t)n * sizeof *floats);
    Rng r = rng_stream(3, RNG_TEST, 0, 0);
    for (int64_t i = 0; i < n; i++)
        floats[i] = (float)(bytes[i] = (unsigned char)rng_u32(&r)) / 600;
    check_ok(device_push(d, x, dtype == DTYPE_U8 ? (void *)bytes : (void *)floats));
    free(bytes);
    free(floats);
    return x;
}

static Run run(const char *device, VitttConfig c, DType act) {
    const float mean[3] = {0.4f, 0.5f, 0.6f}, std[3] = {0.2f, 0.3f, 0.2f};
    const int64_t image[] = {BATCH, 32, 32, 3}, target[] = {BATCH, 5};
    Device *d;
    Params p;
    Vittt *m;
    Tape *t;
    Run r = {0};
    check_ok(device_open(device, &d));
    params_init(&p, d);
    check_ok(vittt_new(&c, &p, &m));
    check_ok(params_build(&p, act, true));
    check_ok(params_initialise(&p, 7));
    check_ok(vittt_draw_drop_path(m, d, 1, 0, 0, BATCH));
    check_ok(tape_new(d, &t));
    tape_set_act(t, act);
    tape_reset(t, true);
    params_begin_step(&p);
    Tensor pixels = values(d, t, DTYPE_U8, 4, image), targets = values(d, t, DTYPE_F32, 2, target);
    Var *logits = vittt_forward(m, t, op_image_normalise(t, pixels, mean, std, 0), true);
    Var *loss = op_cross_entropy(t, logits, targets);
    check_ok(tape_status(t));
    check_ok(tape_backward(t, loss, 0.5f));
    check_ok(params_finish_grads(&p));
    r.flat = p.flat;
    r.peak = d->step.peak;
    r.grads = malloc((size_t)p.flat * sizeof *r.grads);
    check_ok(device_pull(d, r.grads, p.grad));
    check_ok(device_pull(d, &r.loss, loss->value));
    tape_free(t);
    vittt_free(m);
    params_free(&p);
    device_close(d);
    return r;
}

static void check_equal(const char *device, const char *mixer, int form, DType act) {
    Run kept = run(device, config(mixer, form, false), act);
    Run again = run(device, config(mixer, form, true), act);
    assert_true(kept.loss == again.loss && isfinite(kept.loss));
    assert_int_equal(kept.flat, again.flat);
    assert_memory_equal(kept.grads, again.grads, (size_t)kept.flat * sizeof(float));
    assert_true(again.peak < 0.6 * (double)kept.peak);
    free(kept.grads);
    free(again.grads);
}

static void gradients_are_bit_equal(void **unused) {
    (void)unused;
    check_equal("cpu", "base", VITTT_FUSED, DTYPE_F32);
    check_equal("cpu", "base", VITTT_FUSED, DTYPE_BF16);
    check_equal("cpu", "base", VITTT_COMPOSED, DTYPE_F32);
    check_equal("cpu", "mse", VITTT_COMPOSED, DTYPE_F32);
}

static void gradients_are_bit_equal_on_a_card(void **unused) {
    (void)unused;
    Device *d;
    if (device_open("cuda", &d) != STATUS_OK) skip();
    device_close(d);
    check_equal("cuda", "base", VITTT_FUSED, DTYPE_F32);
    check_equal("cuda", "base", VITTT_FUSED, DTYPE_BF16);
}

/* ---- the tape alone --------------------------------------------------------------------- */

typedef struct Layer {
    Var *w;
    int runs;
    bool nested, broken;
} Layer;

static Var *layer(void *user, Tape *t, Var *x) {
    Layer *l = user;
    l->runs++;
    if (l->broken && l->runs > 1)
        return tape_fail(t, status_set(STATUS_MEMORY, "no room the second time"));
    Var *h = op_silu(t, op_linear(t, x, l->w, NULL));
    Layer inner = *l;
    inner.nested = false;
    if (l->nested) { /* a block within a block */
        static Layer kept;
        kept = inner;
        h = tape_recompute(t, h, layer, &kept);
    }
    return op_residual(t, x, h, tensor_none());
}

static void blocks_may_nest_and_share_x(void **unused) {
    (void)unused;
    float result[2][36 + 18];
    for (int again = 0; again < 2; again++) {
        Device *d;
        Params p;
        Tape *t;
        check_ok(device_open("cpu", &d));
        params_init(&p, d);
        Layer l = {.nested = true};
        l.w = params_add(&p, "w", 2, (int64_t[]){6, 6}, (Init){INIT_NORMAL, 0.5f}, 0);
        check_ok(params_build(&p, DTYPE_F32, true));
        check_ok(params_initialise(&p, 2));
        check_ok(tape_new(d, &t));
        tape_reset(t, true);
        params_begin_step(&p);
        float in[18];
        fill_normal(in, 18, 5, 1);
        Var *x = tape_input_grad(t, push_floats(t, in, DTYPE_F32, 2, (int64_t[]){3, 6}), "x");
        Var *y = again ? tape_recompute(t, x, layer, &l) : layer(&l, t, x);
        y = op_add(t, y, x, 0.5f); /* x has a second use */
        Tensor targets = push_floats(t, in, DTYPE_F32, 2, (int64_t[]){3, 6});
        check_ok(tape_status(t));
        check_ok(tape_backward(t, op_cross_entropy(t, y, targets), 1));
        assert_int_equal(l.runs, again ? 2 : 1);
        check_ok(device_pull(d, result[again], l.w->grad));
        check_ok(device_pull(d, result[again] + 36, x->grad));
        tape_free(t);
        params_free(&p);
        device_close(d);
    }
    assert_memory_equal(result[0], result[1], sizeof result[0]);
}

static void a_failure_in_the_second_run_is_reported(void **unused) {
    (void)unused;
    Device *d;
    Params p;
    Tape *t;
    check_ok(device_open("cpu", &d));
    params_init(&p, d);
    Layer l = {.broken = true};
    l.w = params_add(&p, "w", 2, (int64_t[]){6, 6}, (Init){INIT_NORMAL, 0.5f}, 0);
    check_ok(params_build(&p, DTYPE_F32, true));
    check_ok(tape_new(d, &t));
    tape_reset(t, true);
    params_begin_step(&p);
    const float in[18] = {0};
    Tensor x = push_floats(t, in, DTYPE_F32, 2, (int64_t[]){3, 6});
    Var *y = tape_recompute(t, tape_input(t, x, "x"), layer, &l);
    Status s = tape_backward(t, op_cross_entropy(t, y, x), 1);
    assert_int_equal(s, STATUS_MEMORY);
    assert_non_null(strstr(status_message(), "backward of recompute: "));
    tape_free(t);
    params_free(&p);
    device_close(d);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(gradients_are_bit_equal),
        cmocka_unit_test(gradients_are_bit_equal_on_a_card),
        cmocka_unit_test(blocks_may_nest_and_share_x),
        cmocka_unit_test(a_failure_in_the_second_run_is_reported),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
