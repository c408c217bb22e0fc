#include "nn/ops.h"
#include "nn/ops_check.h"

/* ---- a part of a linear layer ----------------------------------------------------------- */

/* Several parts share one gradient, each with its own rows: the first to arrive clears it all, then
 * every one adds to its part. */
static Status linear_rows_backward(Tape *t, Node *n) {
    Device *d = tape_device(t);
    Var *x = n->in[0], *w = n->in[1];
    const int64_t first = n->i[0], rows = n->i[1];
    const Tensor dy = op_rows(n->out->grad);
    Grad dw = tape_grad(t, w);
    if (!tensor_is_none(dw.t)) {
        if (!dw.add) TRY(d->k->zero(d, dw.t));
        const Grad part = grad_add(op_rows_part(dw.t, first, rows));
        TRY(d->k->linear_dw(d, part, grad_none(), dy, op_rows(x->value)));
    }
    const Grad dx = op_rows_grad(tape_grad(t, x));
    if (tensor_is_none(dx.t)) return STATUS_OK;
    return d->k->linear_dx(d, dx, grad_none(), dy, op_rows_part(w->value, first, rows),
                           tensor_none(), ACT_NONE);
}

Var *op_linear_rows(Tape *t, Var *x, Var *w, int64_t first, int64_t rows) {
    Var *in[] = {x, w};
    if (!op_ready(t, "linear_rows", 2, in)) return tape_poison(t);
    const Tensor v = x->value;
    if (w->value.rank != 2 || v.rank < 1 || tensor_last(v) != w->value.shape[1] ||
        v.dtype != w->value.dtype || !op_is_act(v.dtype) || first < 0 || rows < 1 ||
        first > w->value.shape[0] - rows)
        return op_refuse(t, "linear_rows", 2, in,
                         "x [..., I], w [O, I] of one dtype with first + rows <= O");
    int64_t shape[TENSOR_MAX_RANK];
    for (int i = 0; i < v.rank; i++) shape[i] = v.shape[i];
    shape[v.rank - 1] = rows;
    Var *y = tape_output(t, v.dtype, v.rank, shape);
    if (tape_poison(t)) return y;
    const Status s =
        op_kernels(t)->linear(tape_device(t), op_rows(y->value), tensor_none(), op_rows(v),
                              op_rows_part(w->value, first, rows), tensor_none(), ACT_NONE);
    Node *n = s == STATUS_OK ? tape_record(t, "linear_rows", linear_rows_backward, y, 2, in) : NULL;
    if (n) {
        n->i[0] = first;
        n->i[1] = rows;
    }
    return op_done(t, "linear_rows", s, y);
}

/* ---- rates ------------------------------------------------------------------------------ */

static Status token_rates_backward(Tape *t, Node *n) {
    Device *d = tape_device(t);
    Var *x = n->in[0], *w = n->in[1], *b = n->in[2];
    const Grad dx = op_rows_grad(tape_grad(t, x)), dw = tape_grad(t, w), db = tape_grad(t, b);
    return d->k->token_rates_backward(d, dx, dw, db, op_rows(n->out->grad), op_rows(n->out->value),
                                      op_rows(x->value), w->value);
}

Var *op_token_rates(Tape *t, Var *x, Var *w, Var *b, float shift) {
    Var *in[] = {x, w, b};
    if (!op_ready(t, "token_rates", 3, in)) return tape_poison(t);
    const Tensor v = x->value;
    if (w->value.rank != 2 || v.rank < 1 || tensor_last(v) != w->value.shape[1] ||
        !op_is_act(v.dtype) || w->value.dtype != DTYPE_F32 || b->value.dtype != DTYPE_F32 ||
        tensor_count(b->value) != w->value.shape[0])
        return op_refuse(t, "token_rates", 3, in, "x [..., I], w F32 [J, I], b F32 [J]");
    int64_t shape[TENSOR_MAX_RANK];
    for (int i = 0; i < v.rank; i++) shape[i] = v.shape[i];
    shape[v.rank - 1] = w->value.shape[0];
    Var *y = tape_output(t, DTYPE_F32, v.rank, shape);
    if (tape_poison(t)) return y;
    const Status s = op_kernels(t)->token_rates(tape_device(t), op_rows(y->value), op_rows(v),
                                                w->value, b->value, shift);
    if (s == STATUS_OK) tape_record(t, "token_rates", token_rates_backward, y, 3, in);
    return op_done(t, "token_rates", s, y);
}

/* ---- two matrices side by side ---------------------------------------------------------- */

/* The backward's two matrices are columns [0, h) and [h, 2h) of the output's gradient. */
static Status side_by_side_backward(Tape *t, Node *n) {
    Device *d = tape_device(t);
    const Tensor dy = n->out->grad;
    const int64_t rows = tensor_rows(dy), h = tensor_last(dy) / 2;
    const int64_t both[] = {1, rows, 2 * h};
    Tensor wide = tensor_view(dy, 3, both);
    const bool cast = dy.dtype != DTYPE_F32;
    if (cast) {
        TRY(tape_take(t, DTYPE_F32, 3, both, &wide));
        TRY(d->k->copy(d, grad_set(wide), tensor_view(dy, 3, both), 1));
    }
    for (int i = 0; i < 2; i++) {
        const Grad g = op_view_grad(tape_grad(t, n->in[i]), 4, (int64_t[]){1, 1, rows, h});
        if (!tensor_is_none(g.t)) TRY(d->k->split_heads(d, g, wide, i * h));
    }
    if (cast) tape_give(t, wide);
    return STATUS_OK;
}

Status op_lay_side_by_side(Tape *t, Tensor y, Tensor a, Tensor b, Tensor same, Tensor c) {
    const int64_t *s = a.shape;
    y = tensor_view3(y, s[0], s[1], 2 * s[2]);
    const WeightStep parts[] = {
        {y, 0, {0}, {0}, a}, {y, s[2], {0}, {0}, b}, {same, 0, {0}, {0}, c}};
    return op_kernels(t)->weight_step(tape_device(t), tensor_is_none(same) ? 2 : 3, parts, 1, 0);
}

Var *op_side_by_side(Tape *t, Var *a, Var *b, DType dtype) {
    Var *in[] = {a, b};
    if (!op_ready(t, "side_by_side", 2, in)) return tape_poison(t);
    const Tensor v = a->value;
    if (v.rank != 3 || v.dtype != DTYPE_F32 || b->value.dtype != DTYPE_F32 ||
        !tensor_same_shape(v, b->value) || !op_is_act(dtype))
        return op_refuse(t, "side_by_side", 2, in, "two F32 [H, e, h]");
    Var *y = tape_output(t, dtype, 4, (int64_t[]){1, v.shape[0], v.shape[1], 2 * v.shape[2]});
    if (tape_poison(t)) return y;
    const Status s = op_lay_side_by_side(t, y->value, v, b->value, tensor_none(), tensor_none());
    if (s == STATUS_OK) tape_record(t, "side_by_side", side_by_side_backward, y, 2, in);
    return op_done(t, "side_by_side", s, y);
}
