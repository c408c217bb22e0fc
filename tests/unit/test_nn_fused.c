/* Fused ops against the ops that they replace: values, gradients, and the memory left behind. */
#include <stdarg.h>
#include <stddef.h>
#include <setjmp.h>
#include <stdint.h>
#include <cmocka.h>

#include "vittt_fixture.h"

#define SAMPLES_HERE 3
#define HEIGHT       4
#define WIDTH        3
#define WIDE         8
#define TOKENS       (HEIGHT * WIDTH)
#define VALUES       (SAMPLES_HERE * TOKENS * WIDE)

/* ---- a block: position encoding, norm, branch with stochastic depth, norm ---------------------
 */

typedef struct Block {
    Var *taps, *bias, *gain, *shift, *w, *w_bias;
    Tensor scale; /* none: 1 */
} Block;

static Var *composed(Tape *t, const Block *b, Var *x) {
    Var *placed = op_cpe(t, x, HEIGHT, WIDTH, b->taps, b->bias);
    Var *n = op_layernorm(t, placed, b->gain, b->shift, 1e-6f);
    Var *sum = op_residual(t, placed, op_linear(t, n, b->w, b->w_bias), b->scale);
    return op_layernorm(t, sum, b->gain, b->shift, 1e-6f);
}

static Var *fused(Tape *t, const Block *b, Var *x) {
    Var *placed;
    Var *n = op_cpe_norm(t, x, HEIGHT, WIDTH, b->taps, b->bias, b->gain, b->shift, 1e-6f, &placed);
    Var *sum = op_linear_residual(t, n, b->w, b->w_bias, placed, b->scale);
    return op_layernorm(t, sum, b->gain, b->shift, 1e-6f);
}

enum { ALL_VALUES = VALUES + VALUES + 9 * WIDE + 3 * WIDE + WIDE * WIDE + WIDE };

/* The values of two blocks in a row, then the gradients of x and of every parameter. */
static void run_block(bool as_one, bool scaled, float *out, size_t *used) {
    Device *d;
    Params p;
    Tape *t;
    float x_in[VALUES], scale_in[SAMPLES_HERE] = {1.25f, 0, 1.25f};
    const int64_t shape[] = {SAMPLES_HERE, TOKENS, WIDE}, wide = WIDE, samples = SAMPLES_HERE;
    const Init some = {INIT_NORMAL, 0.4f};
    check_ok(device_open("cpu", &d));
    params_init(&p, d);
    Block b = {.taps = params_add(&p, "taps", 4, (int64_t[]){WIDE, 1, 3, 3}, some, 0),
               .bias = params_add(&p, "bias", 1, &wide, some, 0),
               .gain = params_add(&p, "gain", 1, &wide, some, 0),
               .shift = params_add(&p, "shift", 1, &wide, some, 0),
               .w = params_add(&p, "w", 2, (int64_t[]){WIDE, WIDE}, some, 0),
               .w_bias = params_add(&p, "w_bias", 1, &wide, some, 0)};
    Var *const params[] = {b.taps, b.bias, b.gain, b.shift, b.w, b.w_bias};
    check_ok(params_build(&p, DTYPE_F32, true));
    check_ok(params_initialise(&p, 3));
    check_ok(tape_new(d, &t));
    tape_reset(t, true);
    params_begin_step(&p);
    fill_normal(x_in, VALUES, 5, 1);
    if (scaled) b.scale = push_floats(t, scale_in, DTYPE_F32, 1, &samples);
    Var *x = tape_input_grad(t, push_floats(t, x_in, DTYPE_F32, 3, shape), "x");
    Var *y = as_one ? fused(t, &b, x) : composed(t, &b, x);
    y = as_one ? fused(t, &b, y) : composed(t, &b, y);
    Var *loss = op_mse(t, y, push_floats(t, x_in, DTYPE_F32, 3, shape));
    check_ok(tape_status(t));
    check_ok(device_pull(d, out, y->value));
    check_ok(tape_backward(t, loss, 1));
    *used = d->step.used;
    check_ok(device_pull(d, out + VALUES, x->grad));
    float *to = out + 2 * VALUES;
    for (int i = 0; i < 6; i++) {
        check_ok(device_pull(d, to, params[i]->grad));
        to += tensor_count(params[i]->grad);
    }
    tape_free(t);
    params_free(&p);
    device_close(d);
}

static void blocks_are_equal_to_their_parts(void **unused) {
    (void)unused;
    for (int scaled = 0; scaled < 2; scaled++) {
        float a[ALL_VALUES] = {0}, b[ALL_VALUES] = {0};
        size_t used_a, used_b;
        double error = 0, norm = 0;
        run_block(true, scaled, a, &used_a);
        run_block(false, scaled, b, &used_b);
        for (int i = 0; i < ALL_VALUES; i++) {
            error += ((double)a[i] - b[i]) * ((double)a[i] - b[i]);
            norm += (double)b[i] * b[i];
        }
        assert_true(norm > 1e-3);
        assert_true(error < 1e-11 * norm);
        assert_int_equal(used_a, used_b); /* everything was given back, once */
    }
}

/* ---- an MLP with a convolution in the middle ---------------------------------------------------
 */

enum { HIDDEN = 2 * WIDE, LOCAL_PARAMS = 6, LOCAL_MOST = 3 * VALUES + 1024 };

static Var *local_composed(Tape *t, const LocalMlp *p, Var *x, Var *residual, Tensor scale) {
    Var *hidden = op_gelu(t, op_linear(t, x, p->w1, p->b1));
    Var *local = op_gelu(t, op_cpe(t, hidden, HEIGHT, WIDTH, p->taps, p->bias));
    return op_linear_residual(t, local, p->w2, p->b2, residual, scale);
}

/* Values, without recording or with it, then the gradients of x, the residual and all parameters;
 * their number. */
static int64_t run_local(bool as_one, bool scaled, bool record, float *out) {
    Device *d;
    Params p;
    Tape *t;
    float in[2][VALUES], scale_in[SAMPLES_HERE] = {1.25f, 0, 1.25f};
    const int64_t shape[] = {SAMPLES_HERE, TOKENS, WIDE}, samples = SAMPLES_HERE;
    const int64_t wide = WIDE, hidden = HIDDEN;
    const Init some = {INIT_NORMAL, 0.4f};
    Tensor scale = tensor_none();
    check_ok(device_open("cpu", &d));
    params_init(&p, d);
    const LocalMlp m = {.w1 = params_add(&p, "w1", 2, (int64_t[]){HIDDEN, WIDE}, some, 0),
                        .b1 = params_add(&p, "b1", 1, &hidden, some, 0),
                        .taps = params_add(&p, "taps", 4, (int64_t[]){HIDDEN, 1, 3, 3}, some, 0),
                        .bias = params_add(&p, "bias", 1, &hidden, some, 0),
                        .w2 = params_add(&p, "w2", 2, (int64_t[]){WIDE, HIDDEN}, some, 0),
                        .b2 = params_add(&p, "b2", 1, &wide, some, 0)};
    check_ok(params_build(&p, DTYPE_F32, true));
    check_ok(params_initialise(&p, 3));
    check_ok(tape_new(d, &t));
    tape_reset(t, record);
    params_begin_step(&p);
    for (int i = 0; i < 2; i++) fill_normal(in[i], VALUES, 5 + (uint64_t)i, 1);
    if (scaled) scale = push_floats(t, scale_in, DTYPE_F32, 1, &samples);
    Var *x = tape_input_grad(t, push_floats(t, in[0], DTYPE_F32, 3, shape), "x");
    Var *residual = tape_input_grad(t, push_floats(t, in[1], DTYPE_F32, 3, shape), "residual");
    Var *y = as_one ? op_local_mlp_residual(t, x, HEIGHT, WIDTH, &m, residual, scale)
                    : local_composed(t, &m, x, residual, scale);
    check_ok(tape_status(t));
    check_ok(device_pull(d, out, y->value));
    int64_t count = VALUES;
    if (record) {
        Var *loss = op_mse(t, y, push_floats(t, in[0], DTYPE_F32, 3, shape));
        check_ok(tape_backward(t, loss, 1));
        Var *const of[] = {x, residual, m.w1, m.b1, m.taps, m.bias, m.w2, m.b2};
        for (int i = 0; i < 2 + LOCAL_PARAMS; i++) {
            assert_true(count + tensor_count(of[i]->grad) <= LOCAL_MOST);
            check_ok(device_pull(d, out + count, of[i]->grad));
            count += tensor_count(of[i]->grad);
        }
    }
    tape_free(t);
    params_free(&p);
    device_close(d);
    return count;
}

static void local_mlps_are_equal_to_their_parts(void **unused) {
    (void)unused;
    for (int i = 0; i < 4; i++) {
        static float a[LOCAL_MOST], b[LOCAL_MOST];
        const bool scaled = i & 1, record = i & 2;
        const int64_t count = run_local(true, scaled, record, a);
        double error = 0, norm = 0;
        assert_int_equal(count, run_local(false, scaled, record, b));
        for (int64_t j = 0; j < count; j++) {
            error += ((double)a[j] - b[j]) * ((double)a[j] - b[j]);
            norm += (double)b[j] * b[j];
        }
        assert_true(norm > 1e-3);
        assert_true(error < 1e-11 * norm);
    }
}

/* ---- images -----------------------------------------------------------------------------------
 */

#define SIDE  12
#define PATCH 4

static Var *image(Tape *t, Tensor u8, Tensor samples, Tensor mix, bool prepare, int64_t patch) {
    static const float mean[3] = {0.4f, 0.5f, 0.6f}, std[3] = {0.2f, 0.3f, 0.25f};
    return prepare ? op_image_prepare(t, u8, samples, mix, mean, std, patch)
                   : op_image_normalise(t, u8, mean, std, patch);
}

static void images_in_patches_are_equal_to_patches_of_images(void **unused) {
    (void)unused;
    uint8_t bytes[2 * SIDE * SIDE * 3];
    int32_t draws[2][8] = {{1, 2, 3, 4, 5, 6, 7, 0}};
    float mixing[8] = {0.3f, 1, 2, 6, 7};
    Device *d;
    Tape *t;
    check_ok(device_open("cpu", &d));
    check_ok(tape_new(d, &t));
    for (size_t i = 0; i < sizeof bytes; i++) bytes[i] = (uint8_t)(i * 37 % 251);
    for (int round = 0; round < 2; round++) {
        float a[sizeof bytes], b[sizeof bytes];
        tape_reset(t, false);
        const Tensor u8 = tensor_4d(bytes, DTYPE_U8, 2, SIDE, SIDE, 3);
        const Tensor samples = tensor_2d(draws, DTYPE_I32, 2, 8);
        const Tensor mix = tensor_1d(mixing, DTYPE_F32, 8);
        const bool prepare = round == 1;
        tape_set_act(t, DTYPE_F32);
        Var *whole = image(t, u8, samples, mix, prepare, 0);
        Var *cut = op_patchify(t, whole, PATCH), *once = image(t, u8, samples, mix, prepare, PATCH);
        check_ok(tape_status(t));
        assert_true(tensor_same_shape(cut->value, once->value));
        check_ok(device_pull(d, a, cut->value));
        check_ok(device_pull(d, b, once->value));
        assert_memory_equal(a, b, sizeof a);
    }
    tape_free(t);
    device_close(d);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(blocks_are_equal_to_their_parts),
        cmocka_unit_test(local_mlps_are_equal_to_their_parts),
        cmocka_unit_test(images_in_patches_are_equal_to_patches_of_images),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
