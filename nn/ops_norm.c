#include "nn/ops.h"
#include "nn/ops_check.h"

/* ---- layer norm ------------------------------------------------------------------------- */

static Status layernorm_backward(Tape *t, Node *n) {
    Device *d = tape_device(t);
    Var *x = n->in[0], *w = n->in[1], *b = n->in[2];
    Tensor scaled, scale;
    Grad dx = op_rows_grad(tape_grad_last(t, x, &scaled, &scale));
    Grad dw = tape_grad(t, w), db = tape_grad(t, b);
    TRY(tape_status(t));
    if (!tensor_is_none(scaled)) scaled = op_rows(scaled);
    return d->k->layernorm_backward(d, dx, dw, db, tensor_none(), op_rows(n->out->grad),
                                    op_rows(x->value), w->value, tensor_none(), n->saved[0], scaled,
                                    scale);
}

Status op_zero_bias(Tape *t, int64_t width, Tensor *out, bool *taken) {
    TRY(tape_zeros(t, width, out));
    *taken = tensor_is_none(*out);
    if (!*taken) return STATUS_OK;
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
    bool taken = false;
    Status s = b ? STATUS_OK : op_zero_bias(t, width, &bias, &taken);
    if (s == STATUS_OK && tape_will_record(t, 3, in)) s = tape_take(t, DTYPE_F32, 2, shape, &stats);
    if (s == STATUS_OK)
        s = op_kernels(t)->layernorm(tape_device(t), op_rows(y->value), stats, op_rows(x->value),
                                     w->value, bias, eps);
    if (s == STATUS_OK && taken) tape_give(t, bias);
    Node *n = s == STATUS_OK ? tape_record(t, "layernorm", layernorm_backward, y, 3, in) : NULL;
    if (n) n->saved[0] = stats;
    return op_done(t, "layernorm", s, y);
}

/* ---- layer norm and the linear layer behind it ------------------------------------------- */

/* The gradient of the part of w that was used, if it is wanted: of several parts the first to
 * arrive clears all. */
static Status part_gradient(Tape *t, const Node *n, Tensor dy, Tensor u) {
    Device *d = tape_device(t);
    Grad dw = tape_grad(t, n->in[3]);
    const Grad db = tape_grad(t, n->in[4]);
    if (tensor_is_none(dw.t) && tensor_is_none(db.t)) return STATUS_OK;
    if (!tensor_is_none(dw.t) && n->i[1] < dw.t.shape[0]) {
        if (!dw.add) TRY(d->k->zero(d, dw.t));
        dw = grad_add(op_rows_part(dw.t, n->i[0], n->i[1]));
    }
    return d->k->linear_dw(d, dw, db, dy, u);
}

/* in: x, norm_w, norm_b, w, b; saved: stats, u (of a lavish tape); i: rows of w */
static Status norm_linear_backward(Tape *t, Node *n) {
    Device *d = tape_device(t);
    Var *const *in = n->in;
    const Tensor x = op_rows(in[0]->value), dy = op_rows(n->out->grad);
    Tensor u = n->saved[1];
    const bool kept = !tensor_is_none(u);
    if (!kept) TRY(tape_take(t, x.dtype, 2, x.shape, &u));
    if (kept) TRY(part_gradient(t, n, dy, u));
    TRY(d->k->linear_dx(d, grad_set(u), grad_none(), dy,
                        op_rows_part(in[3]->value, n->i[0], n->i[1]), tensor_none(), ACT_NONE));
    const Grad dx = op_rows_grad(tape_grad(t, in[0]));
    /* which leaves u once more; also where nobody asks, so that bits do not hang on that */
    TRY(d->k->layernorm_backward(d, dx, tape_grad(t, in[1]), tape_grad(t, in[2]),
                                 kept ? tensor_none() : u, u, x, in[1]->value, op_value(in[2]),
                                 n->saved[0], tensor_none(), tensor_none()));
    if (!kept) TRY(part_gradient(t, n, dy, u));
    if (!kept) tape_give(t, u);
    return STATUS_OK;
}

static bool norm_linear_fits(Var *const *in, int64_t first, int64_t rows) {
    const Tensor x = in[0]->value, w = in[3]->value;
    const int64_t width = tensor_last(x);
    for (int i = 1; i < 3; i++)
        if (in[i] && (tensor_count(in[i]->value) != width || in[i]->value.dtype != DTYPE_F32))
            return false;
    return op_is_act(x.dtype) && w.rank == 2 && w.shape[1] == width && w.dtype == x.dtype &&
           first >= 0 && rows >= 1 && first <= w.shape[0] - rows &&
           (!in[4] ||
            (in[4]->value.dtype == DTYPE_F32 && tensor_count(in[4]->value) == w.shape[0]));
}

/* saved: stats, u */
static Status norm_linear_forward(Tape *t, Var *y, bool record, Tensor w, Var *const *in, float eps,
                                  Tensor saved[2]) {
    Device *d = tape_device(t);
    const Tensor x = op_rows(in[0]->value);
    Tensor bias = op_value(in[2]);
    const int64_t pairs[] = {x.shape[0], 2};
    bool taken = false;
    TRY(tape_take(t, x.dtype, 2, x.shape, &saved[1]));
    if (!in[2]) TRY(op_zero_bias(t, x.shape[1], &bias, &taken));
    if (record) TRY(tape_take(t, DTYPE_F32, 2, pairs, &saved[0]));
    TRY(d->k->layernorm(d, saved[1], saved[0], x, in[1]->value, bias, eps));
    if (taken) tape_give(t, bias);
    return d->k->linear(d, op_rows(y->value), tensor_none(), saved[1], w, op_value(in[4]),
                        ACT_NONE);
}

static Var *norm_linear(Tape *t, const char *op, Var *const *in, float eps, int64_t first,
                        int64_t rows) {
    const Tensor x = in[0]->value;
    int64_t shape[TENSOR_MAX_RANK];
    for (int i = 0; i < x.rank; i++) shape[i] = x.shape[i];
    shape[x.rank - 1] = rows;
    Var *y = tape_output(t, x.dtype, x.rank, shape);
    if (tape_poison(t)) return y;
    Tensor saved[2] = {tensor_none(), tensor_none()};
    const bool record = tape_will_record(t, 5, in);
    const Tensor w = op_rows_part(in[3]->value, first, rows);
    const Status s = norm_linear_forward(t, y, record, w, in, eps, saved);
    Node *n = s == STATUS_OK ? tape_record(t, op, norm_linear_backward, y, 5, in) : NULL;
    if (n) {
        n->i[0] = first;
        n->i[1] = rows;
        n->saved[0] = saved[0];
    }
    if (n && tape_thrift(t) == TAPE_LAVISH)
        n->saved[1] = saved[1];
    else if (s == STATUS_OK)
        tape_give(t, saved[1]);
    return op_done(t, op, s, y);
}

Var *op_norm_linear(Tape *t, Var *x, Var *norm_w, Var *norm_b, float eps, Var *w, Var *b) {
    Var *in[] = {x, norm_w, norm_b, w, b}, *needed[] = {x, norm_w, w};
    if (!op_ready(t, "norm_linear", 3, needed)) return tape_poison(t);
    const int64_t rows = w->value.shape[0];
    if (!norm_linear_fits(in, 0, rows))
        return op_refuse(t, "norm_linear", 5, in,
                         "x [..., I], F32 norms [I], w [O, I] of x's dtype, b F32 [O]");
    return norm_linear(t, "norm_linear", in, eps, 0, rows);
}

Var *op_norm_linear_rows(Tape *t, Var *x, Var *norm_w, float eps, Var *w, int64_t first,
                         int64_t rows) {
    Var *in[] = {x, norm_w, NULL, w, NULL}, *needed[] = {x, norm_w, w};
    if (!op_ready(t, "norm_linear_rows", 3, needed)) return tape_poison(t);
    if (!norm_linear_fits(in, first, rows))
        return op_refuse(t, "norm_linear_rows", 5, in,
                         "x [..., I], F32 norm [I], w [O, I] of x's dtype with first + rows <= O");
    return norm_linear(t, "norm_linear_rows", in, eps, first, rows);
}

/* ---- layer norm of the first tokens ------------------------------------------------------- */

static Status norm_tokens_backward(Tape *t, Node *n) {
    Device *d = tape_device(t);
    Grad dx = tape_grad(t, n->in[0]);
    const Grad dw = tape_grad(t, n->in[1]);
    TRY(tape_status(t));
    if (!tensor_is_none(dx.t) && !dx.add) {
        TRY(d->k->zero(d, dx.t));
        dx.add = true;
    }
    return d->k->layernorm_backward(d, dx, dw, grad_none(), tensor_none(), n->out->grad,
                                    n->in[0]->value, n->in[1]->value, tensor_none(), n->saved[0],
                                    tensor_none(), tensor_none());
}

Var *op_norm_tokens(Tape *t, Var *x, int64_t count, Var *w, float eps) {
    Var *in[] = {x, w};
    if (!op_ready(t, "norm_tokens", 2, in)) return tape_poison(t);
    const Tensor v = x->value;
    if (!op_is_act(v.dtype) || v.rank != 3 || count < 1 || count > v.shape[1] ||
        tensor_count(w->value) != v.shape[2] || w->value.dtype != DTYPE_F32)
        return op_refuse(t, "norm_tokens", 2, in, "x [B, N, C] of at least so many tokens, w [C]");
    Var *y = tape_output(t, v.dtype, 3, (int64_t[]){v.shape[0], count, v.shape[2]});
    if (tape_poison(t)) return y;
    Tensor stats = tensor_none(), zeros;
    const int64_t pairs[] = {v.shape[0] * count, 2};
    bool taken = false;
    Status s = op_zero_bias(t, v.shape[2], &zeros, &taken);
    if (s == STATUS_OK && tape_will_record(t, 2, in)) s = tape_take(t, DTYPE_F32, 2, pairs, &stats);
    if (s == STATUS_OK)
        s = op_kernels(t)->layernorm(tape_device(t), y->value, stats, v, w->value, zeros, eps);
    if (s == STATUS_OK && taken) tape_give(t, zeros);
    Node *n = s == STATUS_OK ? tape_record(t, "norm_tokens", norm_tokens_backward, y, 2, in) : NULL;
    if (n) n->saved[0] = stats;
    return op_done(t, "norm_tokens", s, y);
}

/* ---- vectors divided by their norm plus an offset --------------------------------------- */

/* saved: norms, gain */
static Status softnorm_backward(Tape *t, Node *n) {
    Device *d = tape_device(t);
    Grad dg = op_view_grad(tape_grad(t, n->in[0]), 3, n->i);
    return d->k->softnorm_backward(d, dg, tensor_view(n->out->grad, 3, n->i),
                                   tensor_view(n->in[0]->value, 3, n->i), n->saved[0], n->saved[1],
                                   n->u.f[0]);
}

/* g has the elements of `shape` [outer, reduce, inner]; the gain, if any, becomes the op's. */
static Var *normalise(Tape *t, const char *op, Var *g, const int64_t *shape, Tensor gain,
                      float offset) {
    const int64_t norm_shape[] = {shape[0], shape[2]};
    Var *y = op_output_like(t, g->value.dtype, g);
    if (tape_poison(t)) return y;
    Tensor norms = tensor_none();
    Status s = STATUS_OK;
    if (tape_will_record(t, 1, &g)) s = tape_take(t, DTYPE_F32, 2, norm_shape, &norms);
    if (s == STATUS_OK)
        s = op_kernels(t)->softnorm(tape_device(t), tensor_view(y->value, 3, shape), norms,
                                    tensor_view(g->value, 3, shape), gain, offset);
    Node *n = s == STATUS_OK ? tape_record(t, op, softnorm_backward, y, 1, &g) : NULL;
    if (n) {
        n->saved[0] = norms;
        n->saved[1] = gain;
        n->u.f[0] = offset;
        for (int i = 0; i < 3; i++) n->i[i] = shape[i];
    } else {
        tape_give(t, gain);
    }
    return op_done(t, op, s, y);
}

static bool has_count(Tensor x, const int64_t *shape) {
    int64_t count;
    return shape_count(3, shape, &count) == STATUS_OK && count == tensor_count(x);
}

Var *op_softnorm(Tape *t, Var *g, int64_t outer, int64_t reduce, int64_t inner) {
    if (!op_ready(t, "softnorm", 1, &g)) return tape_poison(t);
    const int64_t shape[] = {outer, reduce, inner};
    if (!has_count(g->value, shape) || g->value.dtype != DTYPE_F32)
        return op_refuse(t, "softnorm", 1, &g, "F32 with outer * reduce * inner elements");
    return normalise(t, "softnorm", g, shape, tensor_none(), 1.0f);
}

Var *op_normalise(Tape *t, Var *x, int64_t outer, int64_t reduce, int64_t inner, float offset) {
    if (!op_ready(t, "normalise", 1, &x)) return tape_poison(t);
    const int64_t shape[] = {outer, reduce, inner};
    if (!has_count(x->value, shape) || !op_is_act(x->value.dtype) || !(offset > 0.0f))
        return op_refuse(t, "normalise", 1, &x,
                         "F32 or BF16 with outer * reduce * inner elements, an offset above 0");
    return normalise(t, "normalise", x, shape, tensor_none(), offset);
}

/* Matrices x [..., r, c] as [outer, r, c]. */
static bool as_matrices(Tensor x, int64_t shape[3]) {
    if (x.rank < 2 || tensor_count(x) == 0) return false;
    shape[1] = x.shape[x.rank - 2];
    shape[2] = x.shape[x.rank - 1];
    shape[0] = tensor_count(x) / (shape[1] * shape[2]);
    return true;
}

Var *op_weight_norm(Tape *t, Var *x, Var *like, float offset) {
    Var *in[] = {x, like};
    if (!op_ready(t, "weight_norm", 2, in)) return tape_poison(t);
    int64_t shape[3], wanted[3];
    if (!as_matrices(x->value, shape) || !as_matrices(like->value, wanted) ||
        shape[1] != wanted[1] || shape[2] != wanted[2] || shape[0] % wanted[0] != 0 ||
        !op_is_act(x->value.dtype) || like->value.dtype != DTYPE_F32 || !(offset > 0.0f))
        return op_refuse(
            t, "weight_norm", 2, in,
            "[..., r, c], F32 [..., r, c] with leading dimensions that repeat to those "
            "of the first, an offset above 0");
    const int64_t gain_shape[] = {wanted[0], wanted[2]};
    Tensor gain;
    Status s = tape_take(t, DTYPE_F32, 2, gain_shape, &gain);
    if (s == STATUS_OK)
        s = op_kernels(t)->softnorm(tape_device(t), tensor_none(), gain,
                                    tensor_view(like->value, 3, wanted), tensor_none(), offset);
    if (s != STATUS_OK) return op_done(t, "weight_norm", s, NULL);
    return normalise(t, "weight_norm", x, shape, gain, offset);
}

/* ---- root-mean-square norm -------------------------------------------------------------- */

static Status rmsnorm_backward(Tape *t, Node *n) {
    Device *d = tape_device(t);
    Var *x = n->in[0], *w = n->in[1];
    Grad dx = op_rows_grad(tape_grad(t, x)), dw = tape_grad(t, w);
    return d->k->rmsnorm_backward(d, dx, dw, tensor_none(), op_rows(n->out->grad),
                                  op_rows(x->value), w->value, n->saved[0]);
}

Var *op_rmsnorm(Tape *t, Var *x, Var *w, float eps) {
    Var *in[] = {x, w};
    if (!op_ready(t, "rmsnorm", 2, in)) return tape_poison(t);
    if (!op_is_act(x->value.dtype) || tensor_count(w->value) != tensor_last(x->value) ||
        w->value.dtype != DTYPE_F32)
        return op_refuse(t, "rmsnorm", 2, in, "x [..., C], w F32 [C]");
    Var *y = op_output_like(t, x->value.dtype, x);
    if (tape_poison(t)) return y;
    Tensor rstd = tensor_none();
    int64_t rows = tensor_rows(x->value);
    Status s = STATUS_OK;
    if (tape_will_record(t, 2, in)) s = tape_take(t, DTYPE_F32, 1, &rows, &rstd);
    if (s == STATUS_OK)
        s = op_kernels(t)->rmsnorm(tape_device(t), op_rows(y->value), rstd, op_rows(x->value),
                                   w->value, eps);
    Node *n = s == STATUS_OK ? tape_record(t, "rmsnorm", rmsnorm_backward, y, 2, in) : NULL;
    if (n) n->saved[0] = rstd;
    return op_done(t, "rmsnorm", s, y);
}

/* ---- softmax ---------------------------------------------------------------------------- */

static Status softmax_backward(Tape *t, Node *n) {
    Device *d = tape_device(t);
    Grad dx = op_rows_grad(tape_grad(t, n->in[0]));
    return d->k->softmax_backward(d, dx, op_rows(n->out->grad), op_rows(n->out->value), n->u.f[0]);
}

Var *op_softmax(Tape *t, Var *x, float scale) {
    if (!op_ready(t, "softmax", 1, &x)) return tape_poison(t);
    if (!op_is_act(x->value.dtype) || x->value.rank < 1)
        return op_refuse(t, "softmax", 1, &x, "F32 or BF16 [..., C]");
    Var *y = op_output_like(t, x->value.dtype, x);
    if (tape_poison(t)) return y;
    Status s = op_kernels(t)->softmax(tape_device(t), op_rows(y->value), op_rows(x->value), scale);
    Node *n = s == STATUS_OK ? tape_record(t, "softmax", softmax_backward, y, 1, &x) : NULL;
    if (n) n->u.f[0] = scale;
    return op_done(t, "softmax", s, y);
}
