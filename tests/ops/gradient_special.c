/* Ops that finite differences do not fit. */
#include <math.h>
#include <stdio.h>
#include <string.h>

#include "gradient.h"

/* The gradient of a cast is the cast back: through BF16 it is the upstream gradient rounded once.
 */
int check_cast(Device *d) {
    Tape *t;
    float x[3] = {1.0f, -2.5f, 0.1f}, r[3] = {0.3f, 1.0f, -7.1f}, got[3];
    int64_t n = 3, row[] = {1, 3}, column[] = {3, 1}, one = 1;
    if (tape_new(d, &t) != STATUS_OK) return 1;
    tape_reset(t, true);
    Tensor tx, tr;
    bool ok = tape_take(t, DTYPE_F32, 1, &n, &tx) == STATUS_OK &&
              tape_take(t, DTYPE_F32, 1, &n, &tr) == STATUS_OK &&
              device_push(d, tx, x) == STATUS_OK && device_push(d, tr, r) == STATUS_OK;
    Var *in = tape_input_grad(t, tx, "x");
    Var *y = op_cast(t, op_cast(t, in, DTYPE_BF16), DTYPE_F32);
    Var *l = op_matmul(t, op_view(t, y, 2, row), false,
                       op_view(t, tape_input(t, tr, "r"), 2, column), false, 1.0f, DTYPE_F32);
    ok = ok && tape_backward(t, op_view(t, l, 1, &one), 1.0f) == STATUS_OK &&
         device_pull(d, got, in->grad) == STATUS_OK;
    for (int i = 0; ok && i < 3; i++) ok = got[i] == f32_from_bf16(bf16_from_f32(r[i]));
    if (!ok) printf("FAIL cast: %s\n", status_message());
    tape_free(t);
    return !ok;
}

/* d/dx sum r x c = r c, c a constant that happens to hold x. */
int check_detach(Device *d) {
    Tape *t;
    float x[3] = {1.0f, -2.5f, 0.5f}, r[3] = {0.25f, 1.0f, -7.0f}, got[3];
    int64_t n = 3, row[] = {1, 3}, column[] = {3, 1}, one = 1;
    if (tape_new(d, &t) != STATUS_OK) return 1;
    tape_reset(t, true);
    Tensor tx, tr;
    bool ok = tape_take(t, DTYPE_F32, 1, &n, &tx) == STATUS_OK &&
              tape_take(t, DTYPE_F32, 1, &n, &tr) == STATUS_OK &&
              device_push(d, tx, x) == STATUS_OK && device_push(d, tr, r) == STATUS_OK;
    Var *in = tape_input_grad(t, tx, "x");
    Var *held = op_scale(t, in, 2.0f); /* the tape's own memory: it must outlive its last reader */
    Var *y = op_mul(t, op_mul(t, in, op_detach(t, held)), op_detach(t, op_detach(t, in)));
    Var *l = op_matmul(t, op_view(t, y, 2, row), false,
                       op_view(t, tape_input(t, tr, "r"), 2, column), false, 1.0f, DTYPE_F32);
    ok = ok && tape_backward(t, op_view(t, l, 1, &one), 1.0f) == STATUS_OK &&
         device_pull(d, got, in->grad) == STATUS_OK;
    for (int i = 0; ok && i < 3; i++) ok = got[i] == r[i] * 2.0f * x[i] * x[i];
    if (!ok) printf("FAIL detach: %s\n", status_message());
    tape_free(t);
    return !ok;
}

/* Asking for the gradient of an image is an error with a message, not a wrong number. */
int check_patchify_refuses(Device *d) {
    Tape *t;
    int64_t shape[] = {1, 2, 2, 3}, row[] = {1, 12}, one = 1;
    if (tape_new(d, &t) != STATUS_OK) return 1;
    tape_reset(t, true);
    Tensor x;
    bool ok = tape_take(t, DTYPE_F32, 4, shape, &x) == STATUS_OK && d->k->zero(d, x) == STATUS_OK;
    Var *y = op_view(t, op_patchify(t, tape_input_grad(t, x, "image"), 2), 2, row);
    Var *l = op_view(t, op_matmul(t, y, false, y, true, 1.0f, DTYPE_F32), 1, &one);
    ok = ok && tape_status(t) == STATUS_OK && tape_backward(t, l, 1.0f) == STATUS_INTERNAL &&
         strstr(status_message(), "backward of patchify");
    if (!ok) printf("FAIL patchify: %s\n", status_message());
    tape_free(t);
    return !ok;
}
