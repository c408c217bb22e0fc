/* The end of the LaCT layer: o_norm over each head, heads joined, c_proj, the residual (lact_nvs.md
 * 3.3). One node, so that the normed tokens need not be kept: one pass computes them again. */
#include "nn/ops.h"
#include "nn/ops_check.h"

/* w o r by head [B,H,m,e], and the same tokens joined [B*m,d]; of one head they are one memory. */
typedef struct OutTokens {
    Tensor heads, joined;
} OutTokens;

static Status take_tokens(Tape *t, Tensor o, OutTokens *x) {
    TRY(tape_take(t, o.dtype, 4, o.shape, &x->heads));
    x->joined = tensor_view2(x->heads, o.shape[0] * o.shape[2], o.shape[1] * o.shape[3]);
    if (o.shape[1] == 1) return STATUS_OK;
    return tape_take(t, o.dtype, 2, (int64_t[]){x->joined.shape[0], x->joined.shape[1]},
                     &x->joined);
}

static void give_tokens(Tape *t, OutTokens x) {
    if (x.joined.data != x.heads.data) tape_give(t, x.joined);
    tape_give(t, x.heads);
}

static Tensor as_packed(Tensor joined, Tensor o) {
    return tensor_view3(joined, o.shape[0], o.shape[2], joined.shape[1]);
}

static Status join_tokens(Device *d, OutTokens x, Tensor o) {
    if (o.shape[1] == 1) return STATUS_OK;
    return d->k->merge_heads(d, grad_set(as_packed(x.joined, o)), x.heads, 0);
}

static Status norm_tokens(Device *d, OutTokens x, Tensor rstd, Tensor o, Tensor w, float eps) {
    TRY(d->k->rmsnorm(d, op_rows(x.heads), rstd, op_rows(o), w, eps));
    return join_tokens(d, x, o);
}

/* in: o, o_norm, c_proj, residual; saved: rstd; f: eps */
static Status out_backward(Tape *t, Node *n) {
    Device *d = tape_device(t);
    const Tensor o = n->in[0]->value, dy = op_rows(n->out->grad), w = n->in[1]->value;
    OutTokens x;
    TRY(take_tokens(t, o, &x));
    TRY(d->k->linear_dx(d, grad_set(x.joined), grad_none(), dy, n->in[2]->value, tensor_none(),
                        ACT_NONE));
    if (o.shape[1] > 1) TRY(d->k->split_heads(d, grad_set(x.heads), as_packed(x.joined, o), 0));
    const Grad dx = op_rows_grad(tape_grad(t, n->in[0])), dw = tape_grad(t, n->in[1]);
    const Grad dproj = tape_grad(t, n->in[2]);
    const bool again = !tensor_is_none(dproj.t); /* their gradient becomes the normed tokens */
    TRY(d->k->rmsnorm_backward(d, dx, dw, again ? op_rows(x.heads) : tensor_none(),
                               op_rows(x.heads), op_rows(o), w, n->saved[0]));
    if (again) {
        TRY(join_tokens(d, x, o));
        TRY(d->k->linear_dw(d, dproj, grad_none(), dy, x.joined));
    }
    give_tokens(t, x);
    return n->in[3] ? tape_grad_pass(t, n->in[3], n->out) : STATUS_OK;
}

static Status out_forward(Tape *t, Tensor y, Tensor rstd, Var *const *in, float eps) {
    Device *d = tape_device(t);
    OutTokens x;
    TRY(take_tokens(t, in[0]->value, &x));
    TRY(norm_tokens(d, x, rstd, in[0]->value, in[1]->value, eps));
    if (in[3])
        TRY(d->k->linear_residual(d, op_rows(y), x.joined, in[2]->value, tensor_none(),
                                  op_rows(in[3]->value), tensor_none()));
    else
        TRY(d->k->linear(d, op_rows(y), tensor_none(), x.joined, in[2]->value, tensor_none(),
                         ACT_NONE));
    give_tokens(t, x);
    return STATUS_OK;
}

static bool out_fits(Var *const *in) {
    const Tensor o = in[0]->value, w = in[1]->value, proj = in[2]->value;
    if (o.rank != 4 || !op_is_act(o.dtype) || w.dtype != DTYPE_F32 ||
        tensor_count(w) != o.shape[3] || proj.rank != 2 || proj.dtype != o.dtype ||
        proj.shape[1] != o.shape[1] * o.shape[3])
        return false;
    if (!in[3]) return true;
    const Tensor r = in[3]->value;
    return r.rank == 3 && r.dtype == o.dtype && r.shape[0] == o.shape[0] &&
           r.shape[1] == o.shape[2] && r.shape[2] == proj.shape[0];
}

Var *op_lact_out(Tape *t, Var *o, Var *norm_w, float eps, Var *proj_w, Var *residual) {
    Var *in[] = {o, norm_w, proj_w, residual};
    if (!op_ready(t, "lact_out", residual ? 4 : 3, in)) return tape_poison(t);
    if (!out_fits(in))
        return op_refuse(t, "lact_out", 4, in,
                         "o [B, H, m, e], F32 [e], w [O, H*e], residual [B, m, O]");
    const int64_t *s = o->value.shape, rows = tensor_rows(o->value);
    Var *y = tape_output(t, o->value.dtype, 3, (int64_t[]){s[0], s[2], proj_w->value.shape[0]});
    if (tape_poison(t)) return y;
    Tensor rstd = tensor_none();
    Status status = STATUS_OK;
    if (tape_will_record(t, 4, in)) status = tape_take(t, DTYPE_F32, 1, &rows, &rstd);
    if (status == STATUS_OK) status = out_forward(t, y->value, rstd, in, eps);
    Node *n = status == STATUS_OK ? tape_record(t, "lact_out", out_backward, y, 4, in) : NULL;
    if (n) {
        n->saved[0] = rstd;
        n->u.f[0] = eps;
    }
    return op_done(t, "lact_out", status, y);
}
