#include "nn/ops.h"
#include "nn/ops_check.h"

static const char TAPS[] = "x [B, H, W, C], w F32 [1 or B, C, 9]";

/* ---- conditional position encoding: y = x + w * x + b --------------------------------------- */

static Tensor as_taps(Tensor w, int64_t channels) {
    return tensor_view3(w, 1, channels, 9);
}

/* Gradients of the taps, the bias and x from dy, the gradient of x + w * x + b. */
static Status cpe_gradients(Tape *t, const Node *n, Tensor dy) {
    Device *d = tape_device(t);
    Var *x = n->in[0], *w = n->in[1], *b = n->in[2];
    const int64_t *map = n->i; /* B, H, W, C */
    int64_t taps[] = {1, map[3], 9};
    Grad dw = op_view_grad(tape_grad(t, w), 3, taps), db = tape_grad(t, b);
    Tensor scaled, scale;
    Grad dx = op_view_grad(tape_grad_last(t, x, &scaled, &scale), 4, map);
    TRY(tape_status(t));
    if (!tensor_is_none(scaled)) scaled = tensor_view(scaled, 4, map);
    return d->k->dwconv3_backward(d, dx, dw, db, tensor_view(dy, 4, map),
                                  tensor_view(x->value, 4, map), as_taps(w->value, map[3]), true,
                                  scaled, scale);
}

static Status cpe_backward(Tape *t, Node *n) {
    return cpe_gradients(t, n, n->out->grad);
}

static bool cpe_fits(Tensor v, int64_t height, int64_t width, Tensor w, Tensor b) {
    const int64_t channels = tensor_last(v);
    return v.rank == 3 && height >= 1 && width >= 1 && v.shape[1] == height * width &&
           tensor_count(w) == 9 * channels && w.dtype == DTYPE_F32 && tensor_count(b) == channels &&
           b.dtype == DTYPE_F32;
}

Var *op_cpe(Tape *t, Var *x, int64_t height, int64_t width, Var *w, Var *b) {
    Var *in[] = {x, w, b};
    if (!op_ready(t, "cpe", 3, in)) return tape_poison(t);
    Tensor v = x->value;
    if (!cpe_fits(v, height, width, w->value, b->value))
        return op_refuse(t, "cpe", 3, in, "x [B, H*W, C], w F32 [C, 1, 3, 3], b F32 [C]");
    Var *y = op_output_like(t, v.dtype, x);
    if (tape_poison(t)) return y;
    int64_t map[] = {v.shape[0], height, width, tensor_last(v)};
    Status s = op_kernels(t)->dwconv3(tape_device(t), grad_set(tensor_view(y->value, 4, map)),
                                      tensor_view(v, 4, map), as_taps(w->value, map[3]), b->value,
                                      TAPS_CORRELATE, true);
    Node *n = s == STATUS_OK ? tape_record(t, "cpe", cpe_backward, y, 3, in) : NULL;
    for (int i = 0; n && i < 4; i++) n->i[i] = map[i];
    return op_done(t, "cpe", s, y);
}

/* The gradient of the norm joins what reached the sum itself. */
static Status cpe_norm_backward(Tape *t, Node *n) {
    Device *d = tape_device(t);
    Var *sum = n->more[0], *gain = n->in[3], *shift = n->in[4];
    if (n->out->grad_ready) {
        Grad dsum = op_rows_grad(tape_grad(t, sum)), dw = tape_grad(t, gain),
             db = tape_grad(t, shift);
        TRY(tape_status(t));
        TRY(d->k->layernorm_backward(d, dsum, dw, db, tensor_none(), op_rows(n->out->grad),
                                     op_rows(sum->value), gain->value, tensor_none(), n->saved[0],
                                     tensor_none(), tensor_none()));
    }
    return cpe_gradients(t, n, sum->grad);
}

Var *op_cpe_norm(Tape *t, Var *x, int64_t height, int64_t width, Var *w, Var *b, Var *gain,
                 Var *shift, float eps, Var **sum) {
    Var *in[] = {x, w, b, gain, shift};
    *sum = tape_poison(t);
    if (!op_ready(t, "cpe_norm", 5, in)) return *sum = tape_poison(t);
    const Tensor v = x->value;
    const int64_t channels = tensor_last(v);
    if (!cpe_fits(v, height, width, w->value, b->value) || tensor_count(gain->value) != channels ||
        gain->value.dtype != DTYPE_F32 || tensor_count(shift->value) != channels ||
        shift->value.dtype != DTYPE_F32)
        return *sum = op_refuse(t, "cpe_norm", 5, in,
                                "x [B, H*W, C], w F32 [C, 1, 3, 3], b, gain and shift F32 [C]");
    const int64_t map[] = {v.shape[0], height, width, channels};
    const int64_t stats_shape[] = {tensor_rows(v), 2};
    *sum = op_output_like(t, v.dtype, x);
    Var *y = op_output_like(t, v.dtype, x);
    if (tape_poison(t)) return *sum = tape_poison(t);
    Tensor stats = tensor_none();
    Status s =
        tape_will_record(t, 5, in) ? tape_take(t, DTYPE_F32, 2, stats_shape, &stats) : STATUS_OK;
    if (s == STATUS_OK)
        s = op_kernels(t)->dwconv3_norm(tape_device(t), tensor_view((*sum)->value, 4, map),
                                        tensor_view(y->value, 4, map), stats,
                                        tensor_view(v, 4, map), as_taps(w->value, channels),
                                        b->value, gain->value, shift->value, eps);
    Node *n = s == STATUS_OK ? tape_record(t, "cpe_norm", cpe_norm_backward, y, 5, in) : NULL;
    tape_record_more(n, *sum);
    for (int i = 0; n && i < 4; i++) n->i[i] = map[i];
    if (n) n->saved[0] = stats;
    y = op_done(t, "cpe_norm", s, y);
    if (tape_poison(t)) *sum = y;
    return y;
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
