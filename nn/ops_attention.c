#include "nn/ops.h"
#include "nn/ops_check.h"

/* saved: lse; u.f[0] eps, i[0] heads. The kernel sets dpacked, so a second consumer of packed goes
 * through a temporary; it is taken even when packed itself wants no gradient. */
static Status attention_backward(Tape *t, Node *n) {
    Device *d = tape_device(t);
    Var *packed = n->in[0], *q_w = n->in[1], *k_w = n->in[2];
    const Grad dpacked = tape_grad(t, packed), dq = tape_grad(t, q_w), dk = tape_grad(t, k_w);
    const Tensor x = packed->value;
    Tensor target = dpacked.t;
    const bool temporary = tensor_is_none(dpacked.t) || dpacked.add;
    if (temporary) TRY(tape_take(t, x.dtype, x.rank, x.shape, &target));
    TRY(d->k->attention_backward(d, target, dq, dk, n->out->grad, n->out->value, n->saved[0], x,
                                 op_value(q_w), op_value(k_w), n->i[0], n->u.f[0]));
    if (!temporary) return STATUS_OK;
    if (!tensor_is_none(dpacked.t)) TRY(d->k->copy(d, dpacked, target, 1.0f));
    tape_give(t, target);
    return STATUS_OK;
}

static bool attention_fits(Var *packed, Var *q_w, Var *k_w, int64_t heads) {
    const Tensor x = packed->value;
    if (x.rank != 3 || !op_is_act(x.dtype) || heads < 1 || x.shape[2] < 1 ||
        x.shape[2] % (3 * heads) != 0 || !q_w != !k_w)
        return false;
    const int64_t width = x.shape[2] / (3 * heads);
    return !q_w || (tensor_count(q_w->value) == width && tensor_count(k_w->value) == width &&
                    q_w->value.dtype == DTYPE_F32 && k_w->value.dtype == DTYPE_F32);
}

Var *op_attention(Tape *t, Var *packed, Var *q_w, Var *k_w, int64_t heads, float eps) {
    Var *in[] = {packed, q_w, k_w};
    const int inputs = q_w && k_w ? 3 : 1;
    if (!op_ready(t, "attention", inputs, in)) return tape_poison(t);
    if (!attention_fits(packed, q_w, k_w, heads))
        return op_refuse(t, "attention", 3, in,
                         "packed [W, l, 3 * heads * dh], q_w and k_w F32 [dh] or neither");
    const int64_t *s = packed->value.shape;
    Var *o = tape_output(t, packed->value.dtype, 3, (int64_t[]){s[0], s[1], s[2] / 3});
    if (tape_poison(t)) return o;
    Tensor lse = tensor_none();
    Status e = STATUS_OK;
    if (tape_will_record(t, inputs, in))
        e = tape_take(t, DTYPE_F32, 3, (int64_t[]){s[0], heads, s[1]}, &lse);
    if (e == STATUS_OK)
        e = op_kernels(t)->attention(tape_device(t), o->value, lse, packed->value, op_value(q_w),
                                     op_value(k_w), heads, eps);
    Node *n =
        e == STATUS_OK ? tape_record(t, "attention", attention_backward, o, inputs, in) : NULL;
    if (n) {
        n->saved[0] = lse;
        n->i[0] = heads;
        n->u.f[0] = eps;
    }
    return op_done(t, "attention", e, o);
}
