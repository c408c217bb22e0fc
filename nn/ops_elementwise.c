#include "nn/ops.h"
#include "nn/ops_check.h"

/* Same shape, or b repeated over the leading dimension of 1 that a has. */
static bool add_fits(Tensor a, Tensor b) {
    if (a.rank != b.rank || a.dtype != b.dtype || !op_is_act(a.dtype)) return false;
    for (int i = 0; i < a.rank; i++)
        if (a.shape[i] != b.shape[i] && !(i == 0 && a.shape[0] == 1)) return false;
    return true;
}

static Status add_backward(Tape *t, Node *n) {
    Device *d = tape_device(t);
    Var *a = n->in[0], *b = n->in[1];
    TRY(d->k->copy(d, tape_grad(t, b), n->out->grad, n->u.f[0]));
    if (tensor_same_shape(a->value, n->out->value)) return tape_grad_pass(t, a, n->out);
    return d->k->sum_batch(d, tape_grad(t, a), n->out->grad, 1.0f);
}

Var *op_add(Tape *t, Var *a, Var *b, float alpha) {
    Var *in[] = {a, b};
    if (!op_ready(t, "add", 2, in)) return tape_poison(t);
    if (!add_fits(a->value, b->value))
        return op_refuse(t, "add", 2, in,
                         "equal shapes and dtypes (a leading 1 of the first repeats)");
    Var *y = op_output_like(t, b->value.dtype, b);
    if (tape_poison(t)) return y;
    Status s = op_kernels(t)->add(tape_device(t), y->value, a->value, b->value, alpha);
    Node *n = s == STATUS_OK ? tape_record(t, "add", add_backward, y, 2, in) : NULL;
    if (n) n->u.f[0] = alpha;
    return op_done(t, "add", s, y);
}

static Status mul_backward(Tape *t, Node *n) {
    Device *d = tape_device(t);
    Var *a = n->in[0], *b = n->in[1];
    TRY(d->k->mul(d, tape_grad(t, a), n->out->grad, b->value));
    return d->k->mul(d, tape_grad(t, b), n->out->grad, a->value);
}

Var *op_mul(Tape *t, Var *a, Var *b) {
    Var *in[] = {a, b};
    if (!op_ready(t, "mul", 2, in)) return tape_poison(t);
    if (!tensor_same_shape(a->value, b->value) || a->value.dtype != b->value.dtype)
        return op_refuse(t, "mul", 2, in, "equal shapes and dtypes");
    Var *y = op_output_like(t, a->value.dtype, a);
    if (tape_poison(t)) return y;
    Status s = op_kernels(t)->mul(tape_device(t), grad_set(y->value), a->value, b->value);
    if (s == STATUS_OK) tape_record(t, "mul", mul_backward, y, 2, in);
    return op_done(t, "mul", s, y);
}

static Status scale_backward(Tape *t, Node *n) {
    Device *d = tape_device(t);
    return d->k->copy(d, tape_grad(t, n->in[0]), n->out->grad, n->u.f[0]);
}

static Var *scaled_copy(Tape *t, const char *op, Var *x, float alpha, DType dtype) {
    if (!op_ready(t, op, 1, &x)) return tape_poison(t);
    if (!op_is_act(x->value.dtype) || !op_is_act(dtype))
        return op_refuse(t, op, 1, &x, "F32 or BF16");
    Var *y = op_output_like(t, dtype, x);
    if (tape_poison(t)) return y;
    Status s = op_kernels(t)->copy(tape_device(t), grad_set(y->value), x->value, alpha);
    Node *n = s == STATUS_OK ? tape_record(t, op, scale_backward, y, 1, &x) : NULL;
    if (n) n->u.f[0] = alpha;
    return op_done(t, op, s, y);
}

Var *op_scale(Tape *t, Var *x, float alpha) {
    return scaled_copy(t, "scale", x, alpha, x->value.dtype);
}

Var *op_cast(Tape *t, Var *x, DType dtype) {
    if (x->value.dtype == dtype) return x;
    return scaled_copy(t, "cast", x, 1.0f, dtype);
}

/* ---- functions of one variable: y = f(x), dx = dy f'(x) --------------------------------- */

static Status unary_backward(Tape *t, Node *n) {
    Device *d = tape_device(t);
    Var *x = n->in[0];
    return d->k->unary_mul(d, tape_grad(t, x), (UnaryKind)n->i[0], x->value, n->out->grad);
}

Var *op_unary(Tape *t, const char *op, Var *x, UnaryKind f, UnaryKind derivative) {
    if (!op_ready(t, op, 1, &x)) return tape_poison(t);
    Var *y = op_output_like(t, x->value.dtype, x);
    if (tape_poison(t)) return y;
    Status s = op_kernels(t)->unary(tape_device(t), grad_set(y->value), f, x->value);
    Node *n = s == STATUS_OK ? tape_record(t, op, unary_backward, y, 1, &x) : NULL;
    if (n) n->i[0] = derivative;
    return op_done(t, op, s, y);
}

Var *op_silu(Tape *t, Var *x) {
    return op_unary(t, "silu", x, UNARY_SILU, UNARY_DSILU);
}
Var *op_silu_grad(Tape *t, Var *x) {
    return op_unary(t, "silu_grad", x, UNARY_DSILU, UNARY_D2SILU);
}
Var *op_gelu(Tape *t, Var *x) {
    return op_unary(t, "gelu", x, UNARY_GELU, UNARY_DGELU);
}

Var *op_sigmoid(Tape *t, Var *x) {
    return op_unary(t, "sigmoid", x, UNARY_SIGMOID, UNARY_DSIGMOID);
}
Var *op_softplus(Tape *t, Var *x) {
    return op_unary(t, "softplus", x, UNARY_SOFTPLUS, UNARY_SIGMOID);
}

/* ---- residual with stochastic depth (vittt.md 4.1) -------------------------------------- */

static Status residual_backward(Tape *t, Node *n) {
    Device *d = tape_device(t);
    Var *x = n->in[0], *branch = n->in[1], *scale = n->in[2];
    if (!scale) return tape_grad_fork(t, x, branch, n->out);
    TRY(d->k->scale_rows(d, tape_grad(t, branch), n->out->grad, op_value(scale)));
    return tape_grad_pass(t, x, n->out);
}

Var *op_residual(Tape *t, Var *x, Var *branch, Tensor scale) {
    Var *in[] = {x, branch, NULL};
    if (!op_ready(t, "residual", 2, in)) return tape_poison(t);
    if (!tensor_is_none(scale)) {
        in[2] = tape_input(t, scale, "scale");
        if (tape_poison(t)) return in[2];
        if (scale.dtype != DTYPE_F32 || tensor_count(scale) != x->value.shape[0])
            return op_refuse(t, "residual", 3, in, "one F32 scale for each sample");
    }
    if (!tensor_same_shape(x->value, branch->value) || x->value.dtype != branch->value.dtype)
        return op_refuse(t, "residual", 2, in, "equal shapes and dtypes");
    Var *y = op_output_like(t, x->value.dtype, x);
    if (tape_poison(t)) return y;
    Status s = op_kernels(t)->residual(tape_device(t), y->value, x->value, branch->value, scale);
    if (s == STATUS_OK) tape_record(t, "residual", residual_backward, y, 3, in);
    return op_done(t, "residual", s, y);
}

/* ---- the same memory -------------------------------------------------------------------- */

Var *op_view(Tape *t, Var *x, int rank, const int64_t *shape) {
    if (tape_poison(t)) return tape_poison(t);
    int64_t count;
    Status s = rank < 0 || rank > TENSOR_MAX_RANK
                   ? status_set(STATUS_INTERNAL, "rank %d is not supported", rank)
                   : shape_count(rank, shape, &count);
    if (s != STATUS_OK) return tape_fail(t, status_context(s, "view"));
    if (count != tensor_count(x->value))
        return op_refuse(t, "view", 1, &x, "as many elements as the new shape has");
    return tape_view(t, x, rank, shape);
}

Var *op_detach(Tape *t, Var *x) {
    if (!op_ready(t, "detach", 1, &x)) return tape_poison(t);
    Var *y = tape_view(t, x, x->value.rank, x->value.shape);
    if (!tape_poison(t)) y->wants_grad = false;
    return y;
}
