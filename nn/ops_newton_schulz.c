#include "nn/ops.h"
#include "nn/ops_check.h"

/* x [..., r, c] as [matrices, r, c]. */
static Tensor matrices(Tensor x) {
    const int64_t rows = x.shape[x.rank - 2], columns = x.shape[x.rank - 1];
    const int64_t shape[] = {tensor_count(x) / (rows * columns), rows, columns};
    return tensor_view(x, 3, shape);
}

/* saved: norms */
static Status newton_schulz_backward(Tape *t, Node *n) {
    Device *d = tape_device(t);
    const Tensor g = matrices(n->in[0]->value);
    const Grad dg = op_view_grad(tape_grad(t, n->in[0]), 3, g.shape);
    return d->k->newton_schulz_backward(d, dg, tensor_none(), matrices(n->out->grad), g,
                                        n->saved[0], n->u.newton_schulz);
}

Var *op_newton_schulz(Tape *t, Var *g, NewtonSchulz s, DType out) {
    if (!op_ready(t, "newton_schulz", 1, &g)) return tape_poison(t);
    if (g->value.rank < 2 || !op_is_act(g->value.dtype) || !op_is_act(out) || s.steps < 0 ||
        s.steps > NEWTON_SCHULZ_MOST)
        return op_refuse(t, "newton_schulz", 1, &g,
                         "F32 or BF16 matrices [..., r, c], 0 to 8 steps, an F32 or BF16 result");
    Var *u = op_output_like(t, out, g);
    if (tape_poison(t)) return u;
    const Tensor in = matrices(g->value);
    Tensor norms = tensor_none();
    Status status = STATUS_OK;
    if (tape_will_record(t, 1, &g)) status = tape_take(t, DTYPE_F32, 1, in.shape, &norms);
    if (status == STATUS_OK)
        status = op_kernels(t)->newton_schulz(tape_device(t), matrices(u->value), norms, in, s);
    Node *n = status == STATUS_OK
                  ? tape_record(t, "newton_schulz", newton_schulz_backward, u, 1, &g)
                  : NULL;
    if (n) {
        n->saved[0] = norms;
        n->u.newton_schulz = s;
    }
    return op_done(t, "newton_schulz", status, u);
}
