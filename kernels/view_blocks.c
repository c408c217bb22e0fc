#include "kernels/view_blocks.h"

/* The first rows x columns elements of some memory. */
static Tensor part(Tensor memory, int64_t rows, int64_t columns) {
    return tensor_2d(memory.data, memory.dtype, rows, columns);
}

/* x += proj_w attention(LN(x)) */
static Status attend(Device *d, Tensor x, const ViewBlock *b, const ViewForm *f) {
    const int64_t rows = tensor_rows(x), width = tensor_last(x), l = f->window;
    const Tensor packed = part(f->wide, rows, 3 * width), none = tensor_none();
    TRY(d->k->layernorm(d, f->u, none, x, b->norm_w[0], f->zeros, f->norm_eps));
    TRY(d->k->linear(d, packed, none, f->u, b->qkv_w, none, ACT_NONE));
    TRY(d->k->attention(d, tensor_view3(f->o, rows / l, l, width), none,
                        tensor_view3(packed, rows / l, l, 3 * width), b->q_norm_w, b->k_norm_w,
                        f->heads, f->head_eps));
    return d->k->linear_residual(d, x, f->o, b->proj_w, none, x, none);
}

/* x += out_w norm(f(q)), q = unit silu(query_w LN(x)); B samples of n tokens. */
static Status read(Device *d, Tensor x, int64_t samples, const ViewBlock *b, const ViewForm *f) {
    const int64_t rows = tensor_rows(x), width = tensor_last(x), n = rows / samples;
    const int64_t heads = b->back.shape[1], h = b->back.shape[2], e = b->back.shape[3];
    const DType act = x.dtype;
    const Tensor none = tensor_none(), q = part(f->wide, rows, width);
    const Tensor ab = tensor_4d(f->wide.data, act, samples, heads, n, 2 * h);
    const Tensor p = tensor_4d((char *)f->wide.data + tensor_bytes(ab), act, samples, heads, n, h);
    const Tensor u = tensor_4d(f->u.data, act, samples, heads, n, e);
    const Tensor o = tensor_4d(f->o.data, act, samples, heads, n, e);
    TRY(d->k->layernorm(d, f->u, none, x, b->norm_w[1], f->zeros, f->norm_eps));
    TRY(d->k->linear(d, q, none, f->u, b->query_w, none, ACT_NONE));
    TRY(d->k->silu_heads(d, u, tensor_view3(q, samples, n, width), 0, f->unit_offset));
    TRY(d->k->matmul(d, grad_set(ab), u, false, b->gates, false, 1));
    TRY(d->k->lact_gate(d, tensor_view2(p, rows * heads, h),
                        tensor_view2(ab, rows * heads, 2 * h)));
    TRY(d->k->matmul(d, grad_set(o), p, false, b->back, false, 1));
    TRY(d->k->rmsnorm(d, tensor_view2(u, rows * heads, e), none, tensor_view2(o, rows * heads, e),
                      b->out_norm_w, f->out_eps));
    if (heads > 1) TRY(d->k->merge_heads(d, grad_set(tensor_view3(f->o, samples, n, width)), u, 0));
    return d->k->linear_residual(d, x, heads > 1 ? f->o : f->u, b->out_w, none, x, none);
}

/* x += fc_out_w gelu(fc_w LN(x)) */
static Status feed_forward(Device *d, Tensor x, const ViewBlock *b, const ViewForm *f) {
    const Tensor hidden = part(f->wide, tensor_rows(x), b->fc_w.shape[0]), none = tensor_none();
    TRY(d->k->layernorm(d, f->u, none, x, b->norm_w[2], f->zeros, f->norm_eps));
    TRY(d->k->linear(d, hidden, none, f->u, b->fc_w, none, ACT_GELU));
    return d->k->linear_residual(d, x, hidden, b->fc_out_w, none, x, none);
}

Status view_colours_composed(Device *d, Tensor x, const ViewForm *f) {
    const int64_t rows = tensor_rows(x), columns = tensor_last(f->colours);
    const Tensor z = part(f->wide, rows, columns), none = tensor_none();
    const Grad to = grad_set(tensor_view2(f->colours, rows, columns));
    TRY(d->k->layernorm(d, f->u, none, tensor_view2(x, rows, tensor_last(x)), f->end_norm_w,
                        f->zeros, f->norm_eps));
    TRY(d->k->linear(d, z, none, f->u, f->colours_w, none, ACT_NONE));
    TRY(d->k->copy(d, to, z, 1));
    return d->k->unary(d, to, UNARY_SIGMOID, to.t);
}

Status view_blocks_composed(Device *d, Tensor x, int count, const ViewBlock *block,
                            const ViewForm *form) {
    const Tensor rows = tensor_view2(x, tensor_rows(x), tensor_last(x));
    for (int i = 0; i < count; i++) {
        TRY(attend(d, rows, &block[i], form));
        TRY(read(d, rows, x.shape[0], &block[i], form));
        TRY(feed_forward(d, rows, &block[i], form));
    }
    return tensor_is_none(form->colours) ? STATUS_OK : view_colours_composed(d, x, form);
}
