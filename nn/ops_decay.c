/* Prefixes of tokens (fastweight.md 2.4, 2.5). */
#include "nn/ops.h"
#include "nn/ops_check.h"

/* [G,N,C] and log decays [G,N,C] or [G,N,1], all F32. */
static bool decay_fits(const Var *x, const Var *f) {
    const Tensor v = x->value;
    if (v.rank != 3 || v.dtype != DTYPE_F32) return false;
    if (!f) return true;
    const Tensor d = f->value;
    return d.rank == 3 && d.dtype == DTYPE_F32 && d.shape[0] == v.shape[0] &&
           d.shape[1] == v.shape[1] && (d.shape[2] == v.shape[2] || d.shape[2] == 1);
}

static Status scan_backward(Tape *t, Node *n) {
    Device *d = tape_device(t);
    Var *x = n->in[0], *f = n->in[1], *start = n->in[2];
    const Grad dx = tape_grad(t, x), df = tape_grad(t, f), dstart = tape_grad(t, start);
    return d->k->decay_scan_backward(d, dx, df, dstart, n->out->grad, n->out->value, op_value(f),
                                     op_value(start));
}

Var *op_decay_scan(Tape *t, Var *x, Var *f, Var *start) {
    Var *in[] = {x, f, start};
    if (!op_ready(t, "decay_scan", 1, in)) return tape_poison(t);
    if (!decay_fits(x, f) || (start && (start->value.dtype != DTYPE_F32 || start->value.rank != 2 ||
                                        start->value.shape[0] != x->value.shape[0] ||
                                        start->value.shape[1] != x->value.shape[2])))
        return op_refuse(t, "decay_scan", 3, in,
                         "F32 x [G,N,C], f [G,N,C] or [G,N,1], start [G,C]");
    Var *y = op_output_like(t, DTYPE_F32, x);
    if (tape_poison(t)) return y;
    Status s =
        op_kernels(t)->decay_scan(tape_device(t), y->value, x->value, op_value(f), op_value(start));
    if (s == STATUS_OK) tape_record(t, "decay_scan", scan_backward, y, 3, in);
    return op_done(t, "decay_scan", s, y);
}

static Status reverse_backward(Tape *t, Node *n) {
    Device *d = tape_device(t);
    return d->k->reverse_tokens(d, tape_grad(t, n->in[0]), n->out->grad);
}

Var *op_reverse_tokens(Tape *t, Var *x) {
    if (!op_ready(t, "reverse_tokens", 1, &x)) return tape_poison(t);
    if (!decay_fits(x, NULL)) return op_refuse(t, "reverse_tokens", 1, &x, "F32 [G,N,C]");
    Var *y = op_output_like(t, DTYPE_F32, x);
    if (tape_poison(t)) return y;
    Status s = op_kernels(t)->reverse_tokens(tape_device(t), grad_set(y->value), x->value);
    if (s == STATUS_OK) tape_record(t, "reverse_tokens", reverse_backward, y, 1, &x);
    return op_done(t, "reverse_tokens", s, y);
}

static Status scores_backward(Tape *t, Node *n) {
    Device *d = tape_device(t);
    Var *q = n->in[0], *k = n->in[1], *l = n->in[2];
    /* In this order: where q is k, the kernel sets dq, then adds dk. */
    const Grad dq = tape_grad(t, q), dk = tape_grad(t, k), dl = tape_grad(t, l);
    return d->k->decay_scores_backward(d, dq, dk, dl, n->out->grad, q->value, k->value,
                                       op_value(l));
}

Var *op_decay_scores(Tape *t, Var *q, Var *k, Var *l) {
    Var *in[] = {q, k, l};
    if (!op_ready(t, "decay_scores", 2, in)) return tape_poison(t);
    if (!decay_fits(q, l) || !tensor_same_shape(q->value, k->value) || k->value.dtype != DTYPE_F32)
        return op_refuse(t, "decay_scores", 3, in, "F32 q and k [G,N,C], l [G,N,C] or [G,N,1]");
    const int64_t n = q->value.shape[1], shape[] = {q->value.shape[0], n, n};
    Var *a = tape_output(t, DTYPE_F32, 3, shape);
    if (tape_poison(t)) return a;
    Status s =
        op_kernels(t)->decay_scores(tape_device(t), a->value, q->value, k->value, op_value(l));
    if (s == STATUS_OK) tape_record(t, "decay_scores", scores_backward, a, 3, in);
    return op_done(t, "decay_scores", s, a);
}
