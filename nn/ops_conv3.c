#include "nn/ops.h"
#include "nn/ops_check.h"

static Status conv3_backward(Tape *t, Node *n) {
    Device *d = tape_device(t);
    Var *x = n->in[0], *w = n->in[1];
    const Grad dw = tape_grad(t, w), dx = tape_grad(t, x);
    TRY(tape_status(t));
    return d->k->conv3_backward(d, dx, dw, n->out->grad, x->value, w->value, n->i[0]);
}

Var *op_conv3(Tape *t, Var *x, Var *w, int64_t stride) {
    Var *in[] = {x, w};
    if (!op_ready(t, "conv3", 2, in)) return tape_poison(t);
    const Tensor v = x->value, k = w->value;
    if (v.rank != 4 || k.rank != 4 || k.shape[1] != v.shape[3] || k.shape[2] != 3 ||
        k.shape[3] != 3 || k.dtype != v.dtype || stride < 1)
        return op_refuse(t, "conv3", 2, in, "x [B, H, W, C], w [O, C, 3, 3] of one dtype");
    const int64_t shape[] = {v.shape[0], (v.shape[1] - 1) / stride + 1,
                             (v.shape[2] - 1) / stride + 1, k.shape[0]};
    Var *y = tape_output(t, v.dtype, 4, shape);
    if (tape_poison(t)) return y;
    const Status s = op_kernels(t)->conv3(tape_device(t), y->value, v, k, stride);
    Node *n = s == STATUS_OK ? tape_record(t, "conv3", conv3_backward, y, 2, in) : NULL;
    if (n) n->i[0] = stride;
    return op_done(t, "conv3", s, y);
}

/* ---- depthwise, stride 2, between two relu -------------------------------------------------- */

static Status down_backward(Tape *t, Node *n) {
    Device *d = tape_device(t);
    Var *x = n->in[0], *w = n->in[1], *b = n->in[2];
    const int64_t channels = tensor_last(x->value), taps[] = {1, channels, 9};
    const Grad dx = tape_grad(t, x), dw = op_view_grad(tape_grad(t, w), 3, taps);
    const Grad db = tape_grad(t, b);
    TRY(tape_status(t));
    return d->k->dwconv3_down_backward(d, dx, dw, db, n->out->grad, n->out->value, x->value,
                                       tensor_view3(w->value, 1, channels, 9));
}

Var *op_dwconv_down(Tape *t, Var *x, Var *w, Var *b) {
    Var *in[] = {x, w, b};
    if (!op_ready(t, "dwconv_down", 3, in)) return tape_poison(t);
    const Tensor v = x->value;
    const int64_t channels = tensor_last(v);
    if (v.rank != 4 || tensor_count(w->value) != 9 * channels || w->value.dtype != DTYPE_F32 ||
        tensor_count(b->value) != channels || b->value.dtype != DTYPE_F32)
        return op_refuse(t, "dwconv_down", 3, in, "x [B, H, W, C], w F32 [C, 1, 3, 3], b F32 [C]");
    const int64_t shape[] = {v.shape[0], (v.shape[1] + 1) / 2, (v.shape[2] + 1) / 2, channels};
    Var *y = tape_output(t, v.dtype, 4, shape);
    if (tape_poison(t)) return y;
    const Status s = op_kernels(t)->dwconv3_down(tape_device(t), y->value, v,
                                                 tensor_view3(w->value, 1, channels, 9), b->value);
    if (s == STATUS_OK) tape_record(t, "dwconv_down", down_backward, y, 3, in);
    return op_done(t, "dwconv_down", s, y);
}
