/* BF16 activations: close to F32 as a whole, and the inner update survives (vittt.md 9). */
#include <stdarg.h>
#include <stddef.h>
#include <setjmp.h>
#include <stdint.h>
#include <cmocka.h>

#include "ttt/vittt_forms.h"
#include "vittt_fixture.h"

static void mixer_is_close_to_f32(void **state) {
    (void)state;
    const Size size = {2, 6, 5, 24, 3};
    Fixture exact, rounded;
    fixture_open(&exact, size, DTYPE_F32, 0.3);
    fixture_open(&rounded, size, DTYPE_BF16, 0.3);
    Result want = fixture_run(&exact, VITTT_COMPOSED);
    for (int form = VITTT_FUSED; form <= VITTT_PAIRS; form++) {
        Result got = fixture_run(&rounded, (VitttForm)form);
        const char *worst = "";
        double d = result_distance(&got, &want, &worst);
        if (!(d < 0.05)) print_error("form %d: %g in %s\n", form, d, worst);
        assert_true(d < 0.05 && d > 1e-5);
        result_free(&got);
    }
    result_free(&want);
    fixture_close(&exact);
    fixture_close(&rounded);
}

/* ---- does the update survive? ---------------------------------------------------------------
 *
 * As at the start of training, W' - W is far below the rounding step of W in BF16. c = cat with V
 * minus cat without V is what the update does to the output; Q'c sums it over the tokens, so that
 * the rounding of the outputs (independent per token) averages out and a rounding of W' (the same
 * for all tokens) does not. */

enum { SIDE = 48, TOKENS = SIDE * SIDE, HEAD = 8, PACKED = 6 * HEAD, CAT = 2 * HEAD };

typedef struct Inputs {
    float *qkv, *silent; /* [1,N,6d], BF16-exact; `silent` has v1 = 0 */
    float w1[HEAD * HEAD], w2[HEAD * HEAD], w3[HEAD * 9];
} Inputs;

static void make_inputs(Inputs *in) {
    in->qkv = malloc((size_t)TOKENS * PACKED * sizeof(float));
    in->silent = malloc((size_t)TOKENS * PACKED * sizeof(float));
    fill_normal(in->qkv, (int64_t)TOKENS * PACKED, 1, 1);
    for (int64_t i = 0; i < (int64_t)TOKENS * PACKED; i++) {
        int64_t channel = i % PACKED;
        bool value = channel >= 2 * HEAD && channel < 3 * HEAD;
        if (value) in->qkv[i] = 0.06f * in->qkv[i] + 0.006f;
        in->qkv[i] = f32_from_bf16(bf16_from_f32(in->qkv[i]));
        in->silent[i] = value ? 0 : in->qkv[i];
    }
    fill_normal(in->w1, HEAD * HEAD, 2, 0.2);
    fill_normal(in->w2, HEAD * HEAD, 3, 0.2);
    fill_normal(in->w3, HEAD * 9, 4, 0.2);
}

static double *run_inner(Tape *t, const Inputs *in, const float *qkv, DType act, VitttForm form) {
    tape_reset(t, false);
    tape_set_act(t, act);
    const VitttShape shape = {1, SIDE, SIDE, 1, HEAD};
    VitttMixer m = {.width = HEAD, .heads = 1, .form = form};
    Var *packed = tape_input(t, push_floats(t, qkv, act, 3, (int64_t[]){1, TOKENS, PACKED}), "qkv");
    m.w1 = tape_input(t, push_floats(t, in->w1, DTYPE_F32, 4, (int64_t[]){1, 1, HEAD, HEAD}), "w1");
    m.w2 = tape_input(t, push_floats(t, in->w2, DTYPE_F32, 4, (int64_t[]){1, 1, HEAD, HEAD}), "w2");
    m.w3 = tape_input(t, push_floats(t, in->w3, DTYPE_F32, 4, (int64_t[]){HEAD, 1, 3, 3}), "w3");
    Var *cat = form == VITTT_FUSED ? op_vittt_inner(t, packed, m.w1, m.w2, m.w3, shape)
                                   : vittt_inner_composed(&m, t, packed, SIDE, SIDE);
    check_ok(tape_status(t));
    assert_int_equal(cat->value.dtype, act);
    return pull_doubles(tape_device(t), cat->value);
}

/* Q'(with - without) over the GLU channels: [d,d]. */
static void read_out(const Inputs *in, const double *with, const double *without, double *out) {
    memset(out, 0, HEAD * HEAD * sizeof *out);
    for (int64_t n = 0; n < TOKENS; n++)
        for (int i = 0; i < HEAD; i++)
            for (int j = 0; j < HEAD; j++)
                out[i * HEAD + j] +=
                    (double)in->qkv[n * PACKED + i] * (with[n * CAT + j] - without[n * CAT + j]);
}

/* The GLU branch in double precision (vittt.md 2.1), W' rounded to BF16 when asked: what a careless
 * kernel would do. Channels [0,d) of [N,2d]. */
static double *careless(const Inputs *in, const float *qkv, bool round) {
    double *cat = calloc((size_t)TOKENS * CAT, sizeof *cat);
    double u1[HEAD][HEAD], u2[HEAD][HEAD];
    for (int j = 0; j < HEAD; j++) {
        double g1[HEAD] = {0}, g2[HEAD] = {0};
        for (int64_t n = 0; n < TOKENS; n++) {
            const float *k = qkv + n * PACKED + HEAD, *v = k + HEAD;
            double z1 = 0, z2 = 0;
            for (int i = 0; i < HEAD; i++) {
                z1 += (double)k[i] * in->w1[i * HEAD + j];
                z2 += (double)k[i] * in->w2[i * HEAD + j];
            }
            double s = 1 / (1 + exp(-z2)), e = -(double)v[j] / (3.0 * TOKENS);
            for (int i = 0; i < HEAD; i++) {
                g1[i] += k[i] * e * z2 * s;
                g2[i] += k[i] * e * z1 * s * (1 + z2 * (1 - s));
            }
        }
        double n1 = norm_of(g1, HEAD), n2 = norm_of(g2, HEAD);
        for (int i = 0; i < HEAD; i++) {
            float a = (float)(in->w1[i * HEAD + j] - g1[i] / (n1 + 1));
            float b = (float)(in->w2[i * HEAD + j] - g2[i] / (n2 + 1));
            u1[i][j] = round ? f32_from_bf16(bf16_from_f32(a)) : a;
            u2[i][j] = round ? f32_from_bf16(bf16_from_f32(b)) : b;
        }
    }
    for (int64_t n = 0; n < TOKENS; n++)
        for (int j = 0; j < HEAD; j++) {
            double y1 = 0, y2 = 0;
            for (int i = 0; i < HEAD; i++) {
                y1 += qkv[n * PACKED + i] * u1[i][j];
                y2 += qkv[n * PACKED + i] * u2[i][j];
            }
            cat[n * CAT + j] = y1 * y2 / (1 + exp(-y2));
        }
    return cat;
}

static void inner_update_survives_bf16(void **state) {
    (void)state;
    Device *d;
    Tape *t;
    check_ok(device_open("cpu", &d));
    check_ok(tape_new(d, &t));
    Inputs in;
    make_inputs(&in);
    double want[HEAD * HEAD], got[HEAD * HEAD];
    double *with = careless(&in, in.qkv, false), *without = careless(&in, in.silent, false);
    read_out(&in, with, without, want);
    free(with);
    free(without);

    with = careless(&in, in.qkv, true), without = careless(&in, in.silent, true);
    read_out(&in, with, without, got);
    free(with);
    free(without);
    double lost = relative(got, want, HEAD * HEAD, 0);
    assert_true(lost > 0.6); /* the test can tell */

    for (int form = VITTT_FUSED; form <= VITTT_COMPOSED; form++) {
        const DType acts[] = {DTYPE_F32, DTYPE_BF16};
        for (int a = 0; a < 2; a++) {
            with = run_inner(t, &in, in.qkv, acts[a], (VitttForm)form);
            without = run_inner(t, &in, in.silent, acts[a], (VitttForm)form);
            read_out(&in, with, without, got);
            double error = relative(got, want, HEAD * HEAD, 0);
            if (!(error < (a ? 0.2 : 1e-3)))
                print_error("form %d, %s: %g (W' in BF16: %g)\n", form, dtype_name(acts[a]), error,
                            lost);
            assert_true(error < (a ? 0.2 : 1e-3));
            free(with);
            free(without);
        }
    }
    free(in.qkv);
    free(in.silent);
    tape_free(t);
    device_close(d);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(mixer_is_close_to_f32),
        cmocka_unit_test(inner_update_survives_bf16),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
