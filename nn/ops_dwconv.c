#include "nn/ops.h"
#include "nn/ops_check.h"

static const char TAPS[] = "x [B, H, W, C], w F32 [1 or B, C, 9]";

/* ---- conditional position encoding: y = x + w * x + b --------------------------------------- */

static Tensor as_taps(Tensor w, int64_t channels) {
    return tensor_view3(w, 1, channels, 9);
}

static Status cpe_backward(Tape *t, Node *n) {
    Device *d = tape_device(t);
    Var *x = n->in[0], *w = n->in[1], *b = n->in[2];
    const int64_t *map = n->i; /* B, H, W, C */
    int64_t taps[] = {1, map[3], 9};
    Tensor dy = tensor_view(n->out->grad, 4, map), x4 = tensor_view(x->value, 4, map);
    Grad dw = op_view_grad(tape_grad(t, w), 3, taps), db = tape_grad(t, b);
    if (!tensor_is_none(dw.t) || !tensor_is_none(db.t))
        TRY(d->k->dwconv3_taps(d, dw, db, x4, dy, 1.0f));
    Grad dx = op_view_grad(tape_grad(t, x), 4, map);
    if (tensor_is_none(dx.t)) return STATUS_OK;
    return d->k->dwconv3(d, dx, dy, as_taps(w->value, map[3]), tensor_none(), TAPS_TRANSPOSE, true);
}

Var *op_cpe(Tape *t, Var *x, int64_t height, int64_t width, Var *w, Var *b) {
    Var *in[] = {x, w, b};
    if (!op_ready(t, "cpe", 3, in)) return tape_poison(t);
    Tensor v = x->value;
    int64_t channels = tensor_last(v);
    if (v.rank != 3 || height < 1 || width < 1 || v.shape[1] != height * width ||
        tensor_count(w->value) != 9 * channels || w->value.dtype != DTYPE_F32 ||
        tensor_count(b->value) != channels || b->value.dtype != DTYPE_F32)
        return op_refuse(t, "cpe", 3, in, "x [B, H*W, C], w F32 [C, 1, 3, 3], b F32 [C]");
    Var *y = op_output_like(t, v.dtype, x);
    if (tape_poison(t)) return y;
    int64_t map[] = {v.shape[0], height, width, channels};
    Status s = op_kernels(t)->dwconv3(tape_device(t), grad_set(tensor_view(y->value, 4, map)),
                                      tensor_view(v, 4, map), as_taps(w->value, channels), b->value,
                                      TAPS_CORRELATE, true);
    Node *n = s == STATUS_OK ? tape_record(t, "cpe", cpe_backward, y, 3, in) : NULL;
    for (int i = 0; n && i < 4; i++) n->i[i] = map[i];
    return op_done(t, "cpe", s, y);
}

/* ---- fast-weight taps ------------------------------------------------------------------- */

static Status apply_backward(Tape *t, Node *n) {
    Device *d = tape_device(t);
    Var *x = n->in[0], *w = n->in[1];
    Grad dw = tape_grad(t, w);
    if (!tensor_is_none(dw.t))
        TRY(d->k->dwconv3_taps(d, dw, grad_none(), x->value, n->out->grad, 1.0f));
    Grad dx = tape_grad(t, x);
    if (tensor_is_none(dx.t)) return STATUS_OK;
    return d->k->dwconv3(d, dx, n->out->grad, w->value, tensor_none(), TAPS_TRANSPOSE, false);
}

Var *op_dwconv_apply(Tape *t, Var *x, Var *w) {
    Var *in[] = {x, w};
    if (!op_ready(t, "dwconv_apply", 2, in)) return tape_poison(t);
    Tensor v = x->value, k = w->value;
    if (v.rank != 4 || k.rank != 3 || k.shape[1] != v.shape[3] || k.shape[2] != 9 ||
        (k.shape[0] != 1 && k.shape[0] != v.shape[0]) || k.dtype != DTYPE_F32)
        return op_refuse(t, "dwconv_apply", 2, in, TAPS);
    Var *y = op_output_like(t, v.dtype, x);
    if (tape_poison(t)) return y;
    Status s = op_kernels(t)->dwconv3(tape_device(t), grad_set(y->value), v, k, tensor_none(),
                                      TAPS_CORRELATE, false);
    if (s == STATUS_OK) tape_record(t, "dwconv_apply", apply_backward, y, 2, in);
    return op_done(t, "dwconv_apply", s, y);
}

/* g[t] = alpha sum_p x[p+t] y[p]: dx[q] = sum_t alpha dg[t] y[q-t], dy[p] = sum_t alpha dg[t]
 * x[p+t]. */
static Status taps_backward(Tape *t, Node *n) {
    Device *d = tape_device(t);
    Var *x = n->in[0], *y = n->in[1];
    Tensor dg = n->out->grad, scaled;
    TRY(tape_take(t, DTYPE_F32, dg.rank, dg.shape, &scaled));
    TRY(d->k->copy(d, grad_set(scaled), dg, n->u.f[0]));
    Grad dx = tape_grad(t, x);
    if (!tensor_is_none(dx.t))
        TRY(d->k->dwconv3(d, dx, y->value, scaled, tensor_none(), TAPS_TRANSPOSE, false));
    Grad dy = tape_grad(t, y);
    if (!tensor_is_none(dy.t))
        TRY(d->k->dwconv3(d, dy, x->value, scaled, tensor_none(), TAPS_CORRELATE, false));
    tape_give(t, scaled);
    return STATUS_OK;
}

Var *op_dwconv_taps(Tape *t, Var *x, Var *y, float alpha) {
    Var *in[] = {x, y};
    if (!op_ready(t, "dwconv_taps", 2, in)) return tape_poison(t);
    if (x->value.rank != 4 || !tensor_same_shape(x->value, y->value) ||
        x->value.dtype != y->value.dtype)
        return op_refuse(t, "dwconv_taps", 2, in, "two maps [B, H, W, C] of one dtype");
    int64_t shape[] = {x->value.shape[0], x->value.shape[3], 9};
    Var *g = tape_output(t, DTYPE_F32, 3, shape);
    if (tape_poison(t)) return g;
    Status s = op_kernels(t)->dwconv3_taps(tape_device(t), grad_set(g->value), grad_none(),
                                           x->value, y->value, alpha);
    Node *n = s == STATUS_OK ? tape_record(t, "dwconv_taps", taps_backward, g, 2, in) : NULL;
    if (n) n->u.f[0] = alpha;
    return op_done(t, "dwconv_taps", s, g);
}
