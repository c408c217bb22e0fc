#include "nn/ops.h"
#include "nn/ops_check.h"

static Status layernorm_backward(Tape *t, Node *n) {
    Device *d = tape_device(t);
    Var *x = n->in[0], *w = n->in[1], *b = n->in[2];
    Grad dx = op_rows_grad(tape_grad(t, x)), dw = tape_grad(t, w), db = tape_grad(t, b);
    return d->k->layernorm_backward(d, dx, dw, db, op_rows(n->out->grad), op_rows(x->value),
                                    w->value, n->saved[0]);
}

/* The bias of a layer without one: zeros, so that kernels know one form only. */
static Status zero_bias(Tape *t, int64_t width, Tensor *out) {
    TRY(tape_take(t, DTYPE_F32, 1, &width, out));
    return op_kernels(t)->zero(tape_device(t), *out);
}

Var *op_layernorm(Tape *t, Var *x, Var *w, Var *b, float eps) {
    Var *in[] = {x, w, b};
    if (!op_ready(t, "layernorm", b ? 3 : 2, in)) return tape_poison(t);
    int64_t width = tensor_last(x->value);
    if (!op_is_act(x->value.dtype) || tensor_count(w->value) != width ||
        w->value.dtype != DTYPE_F32 ||
        (b && (tensor_count(b->value) != width || b->value.dtype != DTYPE_F32)))
        return op_refuse(t, "layernorm", 3, in, "x [..., C], w and b F32 [C]");
    Var *y = op_output_like(t, x->value.dtype, x);
    if (tape_poison(t)) return y;
    Tensor stats = tensor_none(), bias = op_value(b);
    int64_t shape[] = {tensor_rows(x->value), 2};
    Status s = b ? STATUS_OK : zero_bias(t, width, &bias);
    if (s == STATUS_OK && tape_will_record(t, 3, in)) s = tape_take(t, DTYPE_F32, 2, shape, &stats);
    if (s == STATUS_OK)
        s = op_kernels(t)->layernorm(tape_device(t), op_rows(y->value), stats, op_rows(x->value),
                                     w->value, bias, eps);
    if (s == STATUS_OK && !b) tape_give(t, bias);
    Node *n = s == STATUS_OK ? tape_record(t, "layernorm", layernorm_backward, y, 3, in) : NULL;
    if (n) n->saved[0] = stats;
    return op_done(t, "layernorm", s, y);
}

static Status softnorm_backward(Tape *t, Node *n) {
    Device *d = tape_device(t);
    Grad dg = op_view_grad(tape_grad(t, n->in[0]), 3, n->i);
    return d->k->softnorm_backward(d, dg, tensor_view(n->out->grad, 3, n->i),
                                   tensor_view(n->in[0]->value, 3, n->i), n->saved[0]);
}

Var *op_softnorm(Tape *t, Var *g, int64_t outer, int64_t reduce, int64_t inner) {
    if (!op_ready(t, "softnorm", 1, &g)) return tape_poison(t);
    int64_t shape[] = {outer, reduce, inner}, norm_shape[] = {outer, inner}, count;
    Status s = shape_count(3, shape, &count);
    if (s != STATUS_OK || count != tensor_count(g->value) || g->value.dtype != DTYPE_F32)
        return op_refuse(t, "softnorm", 1, &g, "F32 with outer * reduce * inner elements");
    Var *y = op_output_like(t, DTYPE_F32, g);
    if (tape_poison(t)) return y;
    Tensor norms = tensor_none();
    if (tape_will_record(t, 1, &g)) s = tape_take(t, DTYPE_F32, 2, norm_shape, &norms);
    if (s == STATUS_OK)
        s = op_kernels(t)->softnorm(tape_device(t), tensor_view(y->value, 3, shape), norms,
                                    tensor_view(g->value, 3, shape));
    Node *n = s == STATUS_OK ? tape_record(t, "softnorm", softnorm_backward, y, 1, &g) : NULL;
    if (n) {
        n->saved[0] = norms;
        for (int i = 0; i < 3; i++) n->i[i] = shape[i];
    }
    return op_done(t, "softnorm", s, y);
}
