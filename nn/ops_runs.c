#include "nn/ops.h"
#include "nn/ops_check.h"

/* ---- a factor per token ----------------------------------------------------------------- */

static Status scale_backward(Tape *t, Node *n) {
    Device *d = tape_device(t);
    Var *x = n->in[0], *s = n->in[1];
    Tensor dy = op_rows(n->out->grad);
    TRY(d->k->scale_rows(d, op_rows_grad(tape_grad(t, x)), dy, s->value));
    return d->k->row_dot(d, tape_grad(t, s), dy, op_rows(x->value));
}

Var *op_scale_tokens(Tape *t, Var *x, Var *s) {
    Var *in[] = {x, s};
    if (!op_ready(t, "scale_tokens", 2, in)) return tape_poison(t);
    if (!op_is_act(x->value.dtype) || s->value.dtype != DTYPE_F32 ||
        tensor_count(s->value) != tensor_rows(x->value))
        return op_refuse(t, "scale_tokens", 2, in, "x [..., C] and one F32 factor for each row");
    Var *y = op_output_like(t, x->value.dtype, x);
    if (tape_poison(t)) return y;
    Status status = op_kernels(t)->scale_rows(tape_device(t), grad_set(op_rows(y->value)),
                                              op_rows(x->value), s->value);
    if (status == STATUS_OK) tape_record(t, "scale_tokens", scale_backward, y, 2, in);
    return op_done(t, "scale_tokens", status, y);
}

/* ---- runs of tokens --------------------------------------------------------------------- */

/* All tokens of a sample as one packed row, of which a run of tokens is one head: so split_heads
 * and merge_heads copy runs. */
static Tensor packed_tokens(Tensor x) {
    return tensor_3d(x.data, x.dtype, 1, x.shape[0], x.shape[1] * x.shape[2]);
}
static Tensor token_run(Tensor x) {
    return tensor_4d(x.data, x.dtype, 1, 1, x.shape[0], x.shape[1] * x.shape[2]);
}

/* Several slices share one gradient, each with its own tokens: the first to arrive clears it all,
 * then every one adds to its part. */
static Status slice_backward(Tape *t, Node *n) {
    Device *d = tape_device(t);
    Grad g = tape_grad(t, n->in[0]);
    if (tensor_is_none(g.t)) return STATUS_OK;
    if (!g.add) TRY(d->k->zero(d, g.t));
    return d->k->merge_heads(d, grad_add(packed_tokens(g.t)), token_run(n->out->grad), n->i[0]);
}

Var *op_slice_tokens(Tape *t, Var *x, int64_t first, int64_t count) {
    if (!op_ready(t, "slice_tokens", 1, &x)) return tape_poison(t);
    Tensor v = x->value;
    if (v.rank != 3 || !op_is_act(v.dtype) || first < 0 || count < 1 || first > v.shape[1] ||
        count > v.shape[1] - first)
        return op_refuse(t, "slice_tokens", 1, &x, "[B, N, C] with first + count <= N");
    int64_t shape[] = {v.shape[0], count, v.shape[2]}, offset = first * v.shape[2];
    Var *y = tape_output(t, v.dtype, 3, shape);
    if (tape_poison(t)) return y;
    Status s = op_kernels(t)->split_heads(tape_device(t), grad_set(token_run(y->value)),
                                          packed_tokens(v), offset);
    Node *n = s == STATUS_OK ? tape_record(t, "slice_tokens", slice_backward, y, 1, &x) : NULL;
    if (n) n->i[0] = offset;
    return op_done(t, "slice_tokens", s, y);
}

/* dx (+)= the run of dy that starts at `offset`. */
static Status take_run(Device *d, Grad dx, Tensor dy, int64_t offset) {
    if (tensor_is_none(dx.t)) return STATUS_OK;
    return d->k->split_heads(d, (Grad){token_run(dx.t), dx.add}, packed_tokens(dy), offset);
}

static Status concat_backward(Tape *t, Node *n) {
    Device *d = tape_device(t);
    TRY(take_run(d, tape_grad(t, n->in[0]), n->out->grad, 0));
    return take_run(d, tape_grad(t, n->in[1]), n->out->grad, n->i[0]);
}

Var *op_concat_tokens(Tape *t, Var *a, Var *b) {
    Var *in[] = {a, b};
    if (!op_ready(t, "concat_tokens", 2, in)) return tape_poison(t);
    Tensor va = a->value, vb = b->value;
    if (va.rank != 3 || vb.rank != 3 || !op_is_act(va.dtype) || va.dtype != vb.dtype ||
        va.shape[0] != vb.shape[0] || va.shape[2] != vb.shape[2])
        return op_refuse(t, "concat_tokens", 2, in, "[B, N, C] and [B, M, C] of one dtype");
    int64_t shape[] = {va.shape[0], va.shape[1] + vb.shape[1], va.shape[2]};
    Var *y = tape_output(t, va.dtype, 3, shape);
    if (tape_poison(t)) return y;
    Device *d = tape_device(t);
    const Grad to = grad_set(packed_tokens(y->value));
    const int64_t behind = va.shape[1] * va.shape[2];
    Status s = d->k->merge_heads(d, to, token_run(va), 0);
    if (s == STATUS_OK) s = d->k->merge_heads(d, to, token_run(vb), behind);
    Node *n = s == STATUS_OK ? tape_record(t, "concat_tokens", concat_backward, y, 2, in) : NULL;
    if (n) n->i[0] = behind;
    return op_done(t, "concat_tokens", s, y);
}
