/* x + MLP(layernorm(x)) as one node, so that neither the normed rows nor the hidden values need be
 * kept: the normed rows come once more out of the norm's backward. */
#include "nn/ops.h"
#include "nn/ops_check.h"

/* Inputs of the node. */
enum { X, NORM_W, NORM_B, W1, B1, W2, B2, INPUTS };

/* What a node keeps. */
enum { STATS, PRE, HIDDEN, NORMED };

static Status take_rows(Tape *t, Tensor like, int64_t width, Tensor *out) {
    return tape_take(t, like.dtype, 2, (int64_t[]){tensor_rows(like), width}, out);
}

static bool wanted(Grad a, Grad b) {
    return !tensor_is_none(a.t) || !tensor_is_none(b.t);
}

/* hidden becomes d pre. */
static Status second_layer(Tape *t, const Node *n, Tensor dy, Tensor hidden) {
    Device *d = tape_device(t);
    const Grad dw = tape_grad(t, n->in[W2]), db = tape_grad(t, n->in[B2]);
    if (wanted(dw, db)) {
        if (tensor_is_none(n->saved[HIDDEN]))
            TRY(d->k->unary(d, grad_set(hidden), UNARY_GELU, n->saved[PRE]));
        TRY(d->k->linear_dw(d, dw, db, dy, hidden));
    }
    return d->k->linear_dx(d, grad_set(hidden), tape_grad(t, n->in[B1]), dy, n->in[W2]->value,
                           n->saved[PRE], ACT_GELU);
}

/* What the first layer and the norm get from d pre; x has the residual's gradient already. */
static Status first_layer(Tape *t, const Node *n, Tensor dpre) {
    Device *d = tape_device(t);
    Var *const *in = n->in;
    const Tensor x = op_rows(in[X]->value);
    const Grad dw = tape_grad(t, in[W1]);
    const bool again = tensor_is_none(n->saved[NORMED]);
    Tensor du;
    TRY(take_rows(t, x, tensor_last(x), &du));
    TRY(d->k->linear_dx(d, grad_set(du), grad_none(), dpre, in[W1]->value, tensor_none(),
                        ACT_NONE));
    const Grad dx = op_rows_grad(tape_grad(t, in[X]));
    TRY(d->k->layernorm_backward(
        d, dx, tape_grad(t, in[NORM_W]), tape_grad(t, in[NORM_B]), again ? du : tensor_none(), du,
        x, in[NORM_W]->value, op_value(in[NORM_B]), n->saved[STATS], tensor_none(), tensor_none()));
    if (!tensor_is_none(dw.t))
        TRY(d->k->linear_dw(d, dw, grad_none(), dpre, again ? du : n->saved[NORMED]));
    tape_give(t, du);
    return STATUS_OK;
}

static Status norm_mlp_backward(Tape *t, Node *n) {
    const Tensor dy = op_rows(n->out->grad);
    Tensor hidden = n->saved[HIDDEN];
    const bool mine = tensor_is_none(hidden);
    if (mine) TRY(take_rows(t, dy, tensor_last(n->saved[PRE]), &hidden));
    TRY(second_layer(t, n, dy, hidden));
    TRY(tape_grad_pass(t, n->in[X], n->out));
    TRY(first_layer(t, n, hidden));
    if (mine) tape_give(t, hidden);
    return STATUS_OK;
}

static bool norm_mlp_fits(Var *const *in) {
    const Tensor x = in[X]->value, w1 = in[W1]->value, w2 = in[W2]->value;
    if (x.rank < 2 || !op_is_act(x.dtype) || w1.rank != 2 || w2.rank != 2 || w1.dtype != x.dtype ||
        w2.dtype != x.dtype)
        return false;
    const int64_t width = tensor_last(x), wide = w1.shape[0];
    const int64_t sizes[] = {0, width, width, 0, wide, 0, width};
    for (int i = 0; i < INPUTS; i++)
        if (sizes[i] && in[i] &&
            (tensor_count(in[i]->value) != sizes[i] || in[i]->value.dtype != DTYPE_F32))
            return false;
    return w1.shape[1] == width && w2.shape[0] == width && w2.shape[1] == wide;
}

/* Memory of saved[], of which STATS and PRE are none where nothing is recorded. */
static Status take_kept(Tape *t, bool record, Tensor x, int64_t wide, Tensor *saved) {
    const int64_t pairs[] = {tensor_rows(x), 2};
    if (record) TRY(tape_take(t, DTYPE_F32, 2, pairs, &saved[STATS]));
    if (record) TRY(take_rows(t, x, wide, &saved[PRE]));
    TRY(take_rows(t, x, tensor_last(x), &saved[NORMED]));
    return STATUS_OK;
}

static Status norm_mlp_forward(Tape *t, Tensor y, Tensor *saved, Var *const *in, float eps) {
    Device *d = tape_device(t);
    const Tensor x = op_rows(in[X]->value), w1 = in[W1]->value;
    Tensor zeros = op_value(in[NORM_B]);
    bool taken = false;
    if (!in[NORM_B]) TRY(op_zero_bias(t, tensor_last(x), &zeros, &taken));
    TRY(d->k->layernorm(d, saved[NORMED], saved[STATS], x, in[NORM_W]->value, zeros, eps));
    if (taken) tape_give(t, zeros);
    TRY(take_rows(t, x, w1.shape[0], &saved[HIDDEN]));
    TRY(d->k->linear(d, saved[HIDDEN], saved[PRE], saved[NORMED], w1, op_value(in[B1]), ACT_GELU));
    return d->k->linear_residual(d, op_rows(y), saved[HIDDEN], in[W2]->value, op_value(in[B2]), x,
                                 tensor_none());
}

Var *op_norm_mlp(Tape *t, Var *x, Var *norm_w, Var *norm_b, float eps, Var *w1, Var *b1, Var *w2,
                 Var *b2) {
    Var *in[] = {x, norm_w, norm_b, w1, b1, w2, b2}, *needed[] = {x, norm_w, w1, w2};
    if (!op_ready(t, "norm_mlp", 4, needed)) return tape_poison(t);
    if (!norm_mlp_fits(in))
        return op_refuse(t, "norm_mlp", INPUTS, in,
                         "x [..., I], F32 norms [I], w1 [H, I] and w2 [I, H] of x's dtype, b1 F32 "
                         "[H], b2 F32 [I]");
    Var *y = op_output_like(t, x->value.dtype, x);
    if (tape_poison(t)) return y;
    Tensor saved[NODE_SAVED] = {{0}};
    const bool record = tape_will_record(t, INPUTS, in);
    Status s = take_kept(t, record, x->value, w1->value.shape[0], saved);
    if (s == STATUS_OK) s = norm_mlp_forward(t, y->value, saved, in, eps);
    Node *n = s == STATUS_OK ? tape_record(t, "norm_mlp", norm_mlp_backward, y, INPUTS, in) : NULL;
    const TapeThrift thrift = tape_thrift(t);
    const bool kept[] = {true, true, thrift < TAPE_FRUGAL, thrift == TAPE_LAVISH};
    for (size_t i = 0; i < sizeof kept / sizeof *kept && s == STATUS_OK; i++) {
        if (n && kept[i])
            n->saved[i] = saved[i];
        else
            tape_give(t, saved[i]);
    }
    return op_done(t, "norm_mlp", s, y);
}
