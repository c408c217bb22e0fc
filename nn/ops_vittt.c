#include "nn/ops.h"
#include "nn/ops_check.h"

static bool sizes_fit(Tensor qkv, VitttShape s) {
    if (s.batch < 1 || s.height < 1 || s.width < 1 || s.heads < 1 || s.head_dim < 1) return false;
    int64_t channels = s.heads * s.head_dim;
    return qkv.rank == 3 && qkv.shape[0] == s.batch && qkv.shape[1] == s.height * s.width &&
           qkv.shape[2] == 3 * channels + 3 * s.head_dim;
}

static bool weights_fit(Tensor w1, Tensor w2, Tensor w3, VitttShape s) {
    int64_t square = s.heads * s.head_dim * s.head_dim;
    return tensor_count(w1) == square && tensor_count(w2) == square &&
           tensor_count(w3) == 9 * s.head_dim && w1.dtype == DTYPE_F32 && w2.dtype == DTYPE_F32 &&
           w3.dtype == DTYPE_F32;
}

/* The kernels' views: w1, w2 [1,nh,d,d]; w3 [d,9]. */
static Tensor as_heads(Tensor w, VitttShape s) {
    return tensor_view4(w, 1, s.heads, s.head_dim, s.head_dim);
}
static Tensor as_kernel(Tensor w, VitttShape s) {
    return tensor_view2(w, s.head_dim, 9);
}
static Grad as_heads_grad(Grad g, VitttShape s) {
    if (!tensor_is_none(g.t)) g.t = as_heads(g.t, s);
    return g;
}
static Grad as_kernel_grad(Grad g, VitttShape s) {
    if (!tensor_is_none(g.t)) g.t = as_kernel(g.t, s);
    return g;
}

/* Together the two kernels write every channel of dqkv, so there is nothing to clear first. They
 * cannot accumulate: a second consumer of qkv goes through a temporary. The kernels write dqkv
 * always, so it is taken even when qkv itself wants no gradient. */
static Status inner_backward(Tape *t, Node *n) {
    Device *d = tape_device(t);
    VitttShape s = n->u.vittt;
    Var *qkv = n->in[0], *w1 = n->in[1], *w2 = n->in[2], *w3 = n->in[3];
    Grad dqkv = tape_grad(t, qkv);
    Tensor target = dqkv.t, dcat = n->out->grad;
    bool temporary = tensor_is_none(dqkv.t) || dqkv.add;
    if (temporary) TRY(tape_take(t, qkv->value.dtype, qkv->value.rank, qkv->value.shape, &target));
    TRY(d->k->vittt_glu_backward(d, s, target, as_heads_grad(tape_grad(t, w1), s),
                                 as_heads_grad(tape_grad(t, w2), s), dcat, qkv->value, n->saved[0],
                                 as_heads(w1->value, s), as_heads(w2->value, s)));
    TRY(d->k->vittt_dwc_backward(d, s, target, as_kernel_grad(tape_grad(t, w3), s), dcat,
                                 qkv->value, n->saved[1], as_kernel(w3->value, s)));
    if (!temporary) return STATUS_OK;
    if (!tensor_is_none(dqkv.t)) TRY(d->k->copy(d, dqkv, target, 1.0f));
    tape_give(t, target);
    return STATUS_OK;
}

/* Raw inner gradients of both branches, which the backward needs. */
static Status take_gradients(Tape *t, VitttShape s, Tensor *glu, Tensor *dwc) {
    /* [B,nh,2,d,d] has a rank of five: kept as [B,nh,2,d*d]. */
    int64_t glu_shape[] = {s.batch, s.heads, 2, s.head_dim * s.head_dim};
    int64_t dwc_shape[] = {s.batch, s.head_dim, 9};
    TRY(tape_take(t, DTYPE_F32, 4, glu_shape, glu));
    return tape_take(t, DTYPE_F32, 3, dwc_shape, dwc);
}

Var *op_vittt_inner(Tape *t, Var *qkv, Var *w1, Var *w2, Var *w3, VitttShape s) {
    Var *in[] = {qkv, w1, w2, w3};
    if (!op_ready(t, "vittt_inner", 4, in)) return tape_poison(t);
    if (!sizes_fit(qkv->value, s) || !weights_fit(w1->value, w2->value, w3->value, s))
        return op_refuse(
            t, "vittt_inner", 4, in,
            "qkv [B, H*W, 3*C + 3*d], w1 and w2 F32 [1, heads, d, d], w3 F32 [d, 1, 3, 3]");
    int64_t shape[] = {s.batch, s.height * s.width, (s.heads + 1) * s.head_dim};
    Var *cat = tape_output(t, qkv->value.dtype, 3, shape);
    if (tape_poison(t)) return cat;
    Device *d = tape_device(t);
    Tensor glu = tensor_none(), dwc = tensor_none();
    Status e = STATUS_OK;
    if (tape_will_record(t, 4, in)) e = take_gradients(t, s, &glu, &dwc);
    if (e == STATUS_OK)
        e = d->k->vittt_glu(d, s, cat->value, glu, qkv->value, as_heads(w1->value, s),
                            as_heads(w2->value, s));
    if (e == STATUS_OK)
        e = d->k->vittt_dwc(d, s, cat->value, dwc, qkv->value, as_kernel(w3->value, s));
    Node *n = e == STATUS_OK ? tape_record(t, "vittt_inner", inner_backward, cat, 4, in) : NULL;
    if (n) {
        n->u.vittt = s;
        n->saved[0] = glu;
        n->saved[1] = dwc;
    }
    return op_done(t, "vittt_inner", e, cat);
}
