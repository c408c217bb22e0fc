#include "nn/ops.h"
#include "nn/ops_check.h"

/* [H, W, C/2, 2] or [N, C/2, 2] as the kernel's [N, C/2, 2]. */
static Tensor by_token(Tensor table) {
    const int64_t pairs = table.shape[table.rank - 2];
    return tensor_view3(table, tensor_count(table) / (2 * pairs), pairs, 2);
}

static Status rope_backward(Tape *t, Node *n) {
    Device *d = tape_device(t);
    const Grad dx = tape_grad(t, n->in[0]);
    TRY(tape_status(t));
    return d->k->rope(d, dx, n->out->grad, by_token(n->in[1]->value), true);
}

Var *op_rope(Tape *t, Var *x, Var *table) {
    Var *in[] = {x, table};
    if (!op_ready(t, "rope", 2, in)) return tape_poison(t);
    const Tensor v = x->value, r = table->value;
    if (v.rank != 3 || r.rank < 3 || r.dtype != DTYPE_F32 || tensor_last(r) != 2 ||
        by_token(r).shape[0] != v.shape[1] || 4 * by_token(r).shape[1] > v.shape[2])
        return op_refuse(t, "rope", 2, in, "x [B, N, P], table F32 [N, C/2, 2] with 2 C <= P");
    Var *y = op_output_like(t, v.dtype, x);
    if (tape_poison(t)) return y;
    const Status s = op_kernels(t)->rope(tape_device(t), grad_set(y->value), v, by_token(r), false);
    /* The table is a constant, though it may be a parameter: it has no gradient. */
    Node *n = s == STATUS_OK ? tape_record(t, "rope", rope_backward, y, 1, in) : NULL;
    if (n) n->in[1] = table;
    return op_done(t, "rope", s, y);
}
