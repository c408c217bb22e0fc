/* The plain ViTTT model: stochastic depth, learning, memory that runs out. */
#include <stdarg.h>
#include <stddef.h>
#include <setjmp.h>
#include <stdint.h>
#include <cmocka.h>

#include "core/memory.h"
#include "nn/optim.h"
#include "vittt_model_fixture.h"

/* ---- stochastic depth ---------------------------------------------------------------------------
 */

static void drop_path_scales(void **state) {
    (void)state;
    enum { DEPTH = 5, BATCH = 400 };
    Model m;
    model_open(&m, tiny(DEPTH, 0.4), DTYPE_F32, false);
    check_ok(vittt_draw_drop_path(m.vittt, m.device, 3, 7, 1, BATCH));
    double *scale = pull_doubles(m.device, m.vittt->drop_scale);
    for (int branch = 0; branch < 2 * DEPTH; branch++) {
        const double rate = (float)(0.4 * (branch / 2) / (DEPTH - 1));
        int64_t kept = 0;
        for (int i = 0; i < BATCH; i++) {
            const double s = scale[branch * BATCH + i];
            assert_true(s == 0 || fabs(s - 1 / (1 - rate)) < 1e-6);
            kept += s != 0;
        }
        assert_true(fabs((double)kept / BATCH - (1 - rate)) <
                    5 * sqrt(rate * (1 - rate) / BATCH) + 1e-9);
    }
    /* two draws per block, not one; another step draws anew; the same step the same */
    assert_memory_not_equal(scale + 8 * BATCH, scale + 9 * BATCH, BATCH * sizeof *scale);
    check_ok(vittt_draw_drop_path(m.vittt, m.device, 3, 8, 1, BATCH));
    double *other = pull_doubles(m.device, m.vittt->drop_scale);
    assert_memory_not_equal(scale, other, 2 * DEPTH * BATCH * sizeof *scale);
    free(other);
    /* a sample's draw does not depend on how many there are */
    check_ok(vittt_draw_drop_path(m.vittt, m.device, 3, 7, 1, BATCH + 13));
    double *larger = pull_doubles(m.device, m.vittt->drop_scale);
    for (int branch = 0; branch < 2 * DEPTH; branch++)
        assert_memory_equal(larger + branch * (BATCH + 13), scale + branch * BATCH,
                            BATCH * sizeof *scale);
    free(larger);
    free(scale);
    model_close(&m);
}

/* A sample whose branches are all dropped but block 0's goes through block 0 and position encodings
 * only: the scale reaches the right branch of the right sample. */
static void drop_path_acts_per_sample(void **state) {
    (void)state;
    Model m;
    model_open(&m, tiny(3, 0.6), DTYPE_F32, false);
    float image[8 * 16 * 16 * 3];
    fill_normal(image, 16 * 16 * 3, 5, 1);
    for (int i = 1; i < 8; i++)
        memcpy(image + i * 768, image, 768 * sizeof *image); /* eight times the same picture */
    check_ok(vittt_draw_drop_path(m.vittt, m.device, 11, 0, 0, 8));
    double *scale = pull_doubles(m.device, m.vittt->drop_scale);
    double *y = logits_of(&m, image, 8, 16, 16, false, true);
    int equal = 0, different = 0;
    for (int a = 0; a < 8; a++) {
        for (int b = 0; b < a; b++) {
            bool same = true;
            for (int branch = 0; branch < 6; branch++)
                same = same && scale[branch * 8 + a] == scale[branch * 8 + b];
            const double distance = relative(y + a * 8, y + b * 8, 8, 0);
            assert_true(same ? distance < 1e-5 : distance > 1e-5);
            equal += same;
            different += !same;
        }
    }
    assert_true(equal > 0 && different > 0);
    double *eval = logits_of(&m, image, 8, 16, 16, false, false);
    assert_true(relative(eval, eval + 8, 8, 0) < 1e-5); /* evaluation drops nothing */
    free(eval);
    free(y);
    free(scale);
    model_close(&m);
}

/* ---- learning -------------------------------------------------------------------------------- */

static double train_step(Model *m, AdamW *o, const float *image, const float *targets, double lr) {
    Tape *t = m->tape;
    params_begin_step(&m->params);
    tape_reset(t, true);
    Var *x =
        tape_input(t, push_floats(t, image, tape_act(t), 4, (int64_t[]){8, 16, 16, 3}), "image");
    Tensor wanted = push_floats(t, targets, DTYPE_F32, 2, (int64_t[]){8, 8});
    Var *loss = op_cross_entropy(t, vittt_forward(m->vittt, t, x, true), wanted);
    check_ok(tape_status(t));
    double *value = pull_doubles(m->device, loss->value);
    const double result = value[0];
    free(value);
    check_ok(tape_backward(t, loss, 1));
    check_ok(params_finish_grads(&m->params));
    check_ok(adamw_step(o, lr));
    return result;
}

static double overfit(DType act, const char *mixer, int steps, int64_t stem) {
    Model m;
    VitttConfig c = tiny(2, 0);
    c.stem_depth = stem;
    c.stem_width = 16;
    snprintf(c.mixer, sizeof c.mixer, "%s", mixer);
    model_open(&m, c, act, true);
    AdamW o;
    check_ok(adamw_init(&o, &m.params, (AdamWOptions){0.9f, 0.999f, 1e-8f, 0.05f, 5.0f, 0}));
    float image[8 * 16 * 16 * 3], targets[64] = {0};
    fill_normal(image, 8 * 16 * 16 * 3, 5, 1);
    for (int i = 0; i < 8; i++) targets[i * 8 + (i * 3) % 8] = 1;
    double loss = train_step(&m, &o, image, targets, 3e-3);
    assert_true(fabs(loss - log(8)) < 0.2); /* knows nothing at the start */
    int64_t growths = 0;
    for (int i = 0; i < steps; i++) {
        loss = train_step(&m, &o, image, targets, 3e-3);
        if (i == 0) growths = tape_growths(m.tape);
    }
    assert_int_equal(tape_growths(m.tape), growths); /* step 2 and later take no memory */
    model_close(&m);
    return loss;
}

static void one_batch_is_learnt(void **state) {
    (void)state;
    const double f32 = overfit(DTYPE_F32, "base", 200, 0);
    const double bf16 = overfit(DTYPE_BF16, "base", 200, 0);
    if (!(f32 < 0.02 && bf16 < 0.03)) print_error("loss %g, bf16 %g\n", f32, bf16);
    assert_true(f32 < 0.02 && bf16 < 0.03);
    const double stem = overfit(DTYPE_BF16, "base", 200, 2);
    if (!(stem < 0.03)) print_error("with a stem: loss %g\n", stem);
    assert_true(stem < 0.03);
}

static void every_variant_learns(void **state) {
    (void)state;
    for (int i = 1; vittt_variant_name(i); i++) {
        const double loss = overfit(DTYPE_F32, vittt_variant_name(i), 60, 0);
        if (!(loss < 0.5)) print_error("%s: loss %g\n", vittt_variant_name(i), loss);
        assert_true(loss < 0.5);
    }
}

/* ---- out of memory --------------------------------------------------------------------------- */

static void every_allocation_may_fail(void **state) {
    (void)state;
    Device *d;
    check_ok(device_open("cpu", &d));
    const VitttConfig c = tiny(2, 0.1);
    const int64_t alive = mem_live();
    int64_t failures = 0;
    for (bool failed = true; failed; failures += failed) {
        Params p;
        Vittt *m = NULL;
        params_init(&p, d);
        mem_fail_at(failures + 1);
        Status s = vittt_new(&c, &p, &m);
        failed = !mem_fail_pending();
        mem_fail_at(0);
        assert_int_equal(s, failed ? STATUS_MEMORY : STATUS_OK);
        if (s == STATUS_OK) vittt_free(m);
        params_free(&p);
        assert_int_equal(mem_live(), alive);
    }
    assert_true(failures > 76); /* 38 parameters with their names */
    device_close(d);
}

static void a_pass_may_run_out_of_memory(void **state) {
    (void)state;
    float image[16 * 16 * 3];
    fill_normal(image, 16 * 16 * 3, 5, 1);
    for (int form = VITTT_FUSED; form <= VITTT_PAIRS; form++) {
        int refused = 0;
        for (int64_t n = 1;; n++) {
            Model m;
            VitttConfig c = tiny(2, 0.1);
            c.form = form;
            model_open(&m, c, DTYPE_F32, true);
            tape_reset(m.tape, true);
            Tensor x = push_floats(m.tape, image, DTYPE_F32, 4, (int64_t[]){1, 16, 16, 3});
            mem_fail_at(n);
            Status s = vittt_draw_drop_path(m.vittt, m.device, 1, 0, 0, 1);
            if (s == STATUS_OK) {
                vittt_forward(m.vittt, m.tape, tape_input(m.tape, x, "image"), true);
                s = tape_status(m.tape);
            }
            const bool failed = !mem_fail_pending();
            mem_fail_at(0);
            /* OK also where the arena can do without, as in keeping a free list */
            assert_true(s == STATUS_OK || (failed && s == STATUS_MEMORY));
            refused += s == STATUS_MEMORY;
            model_close(&m);
            if (!failed) break;
        }
        assert_true(refused > 2);
    }
}

int main(void) {
    /* Thousands of tiny products: on a busy machine a second thread is only waited for. */
    device_set_threads(1);
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(drop_path_scales),          cmocka_unit_test(drop_path_acts_per_sample),
        cmocka_unit_test(one_batch_is_learnt),       cmocka_unit_test(every_variant_learns),
        cmocka_unit_test(every_allocation_may_fail), cmocka_unit_test(a_pass_may_run_out_of_memory),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
