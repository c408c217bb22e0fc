/* The walk back over a tape: gradients, and blocks that are computed again. */
#include "nn/tape_internal.h"

/* ---- backward --------------------------------------------------------------------------- */

static Var *memory_of(Var *v) {
    return v->is_view ? v->base : v;
}

Grad tape_grad(Tape *t, Var *v) {
    if (!v || !v->wants_grad || t->status != STATUS_OK) return grad_none();
    Var *base = memory_of(v);
    if (tensor_is_none(base->grad)) {
        DType dtype = base->is_param ? DTYPE_F32 : base->value.dtype;
        Status s = tape_take(t, dtype, base->value.rank, base->value.shape, &base->grad);
        if (s != STATUS_OK) {
            tape_fail(t, s);
            return grad_none();
        }
        base->owns_grad = true;
        base->grad_ready = false;
    }
    Grad g = {tensor_of(base->grad.data, base->grad.dtype, v->value.rank, v->value.shape),
              base->grad_ready};
    base->grad_ready = true;
    return g;
}

Status tape_grad_of(Tape *t, Var *out, Tensor *grad) {
    const bool reached = out->grad_ready;
    *grad = reached ? out->grad : tape_grad(t, out).t;
    TRY(tape_status(t));
    return reached ? STATUS_OK : t->device->k->zero(t->device, *grad);
}

Grad tape_grad_last(Tape *t, Var *v, Tensor *scaled, Tensor *scale) {
    const Grad g = tape_grad(t, v);
    *scaled = *scale = tensor_none();
    if (tensor_is_none(g.t) || t->running <= t->first) return g;
    Node *n = tape_node_at(t, t->running - 1);
    if (n->out != v || !n->scale) return g;
    const Status s = tape_take(t, g.t.dtype, g.t.rank, g.t.shape, &n->scaled);
    if (s != STATUS_OK) {
        tape_fail(t, s);
        return grad_none();
    }
    *scaled = n->scaled;
    *scale = n->scale->value;
    return g;
}

Status tape_grad_pass(Tape *t, Var *to, Var *from) {
    if (!to->wants_grad) return STATUS_OK;
    Var *base = memory_of(to);
    if (tensor_is_none(base->grad) && from->owns_grad && !base->is_param &&
        base->value.dtype == from->grad.dtype) {
        base->grad =
            tensor_of(from->grad.data, from->grad.dtype, base->value.rank, base->value.shape);
        base->owns_grad = true;
        base->grad_ready = true;
        from->owns_grad = false;
        from->grad = tensor_none();
        return STATUS_OK;
    }
    Grad g = tape_grad(t, to);
    if (tensor_is_none(g.t)) return tape_status(t);
    return t->device->k->copy(t->device, g, from->grad, 1.0f);
}

/* Whether a's gradient may be read as b's: nothing stands between the running node and the one that
 * computed b, so b's gradient is used up before anything is added to a's. */
static bool can_lend(const Tape *t, const Var *a, const Var *b, const Var *out) {
    const Var *base = a->is_view ? a->base : a;
    bool takes_over = base->wants_grad && !base->is_param && tensor_is_none(base->grad) &&
                      out->owns_grad && base->value.dtype == out->grad.dtype;
    if (!takes_over || t->running == t->first) return false;
    const Node *n = tape_node_at(t, t->running - 1);
    if (n->out != b || b->is_view || !(b->owns_value || b->released) || !tensor_is_none(b->grad) ||
        b->value.dtype != out->grad.dtype)
        return false;
    for (int i = 0; i < NODE_INPUTS; i++)
        if (n->in[i] && memory_of(n->in[i]) == base) return false;
    return true;
}

Status tape_grad_fork(Tape *t, Var *a, Var *b, Var *out) {
    if (can_lend(t, a, b, out)) {
        b->grad = tensor_of(out->grad.data, out->grad.dtype, b->value.rank, b->value.shape);
        b->grad_ready = true; /* and not owned: a gives the memory back */
        return tape_grad_pass(t, a, out);
    }
    Grad g = tape_grad(t, b);
    if (!tensor_is_none(g.t)) TRY(t->device->k->copy(t->device, g, out->grad, 1.0f));
    TRY(tape_status(t));
    return tape_grad_pass(t, a, out);
}

static Status run_node(Tape *t, Node *n) {
    bool reached = n->out->grad_ready;
    for (int i = 0; i < NODE_MORE; i++) reached = reached || (n->more[i] && n->more[i]->grad_ready);
    if (!reached) return STATUS_OK;
    TRY(status_context(n->backward(t, n), "backward of %s", n->op));
    return tape_status(t); /* memory for a gradient may have run out */
}

/* An output whose node has run backward. */
static void give_output(Tape *t, Var *v, const Var *keep) {
    if (!v) return;
    tape_give_grad(t, v);
    if (v != keep) tape_give_value(t, v);
}

/* Backward of the nodes from the end down to `first`; what they held is given back, but not the
 * value of `keep`. */
static Status walk(Tape *t, int64_t first, const Var *keep) {
    const int64_t outer_first = t->first, outer_running = t->running;
    Status s = STATUS_OK;
    t->first = first;
    for (int64_t i = t->nodes - 1; i >= first && s == STATUS_OK; i--) {
        Node *n = tape_node_at(t, i);
        t->running = i;
        s = run_node(t, n);
        for (int j = 0; j < NODE_SAVED; j++) tape_give(t, n->saved[j]);
        give_output(t, n->out, keep);
        for (int j = 0; j < NODE_MORE; j++) give_output(t, n->more[j], keep);
    }
    t->first = outer_first;
    t->running = outer_running;
    return s;
}

Status tape_backward(Tape *t, Var *loss, float seed) {
    TRY(tape_status(t));
    Tensor l = loss->value;
    if (l.dtype != DTYPE_F32 || tensor_count(l) != 1)
        return status_set(STATUS_INTERNAL, "backward needs a scalar F32 loss");
    if (t->spent) return status_set(STATUS_INTERNAL, "second backward over one pass");
    t->spent = true;
    if (!loss->wants_grad) return STATUS_OK; /* nothing depends on a parameter */
    Grad g = tape_grad(t, loss);
    TRY(tape_status(t));
    Status s = t->device->k->fill(t->device, g.t, seed);
    if (s == STATUS_OK) s = walk(t, 0, memory_of(loss));
    if (s != STATUS_OK) tape_fail(t, s);
    return s;
}

/* ---- computing again instead of keeping --------------------------------------------------- */

/* Gives back what the Vars from number `first` on still hold; `keep` keeps its value. */
static void give_vars(Tape *t, int64_t first, const Var *keep) {
    for (int64_t i = first; i < t->vars; i++) {
        Var *v = tape_var_at(t, i);
        tape_give_grad(t, v);
        if (v != keep) tape_give_value(t, v);
    }
}

/* The block's nodes live behind all others while this runs. */
static Status recompute_backward(Tape *t, Node *n) {
    const int64_t first_node = t->nodes, first_var = t->vars;
    Var *x = n->in[0];
    Var *y = n->u.again.block(n->u.again.user, t, tape_view(t, x, x->value.rank, x->value.shape));
    TRY(tape_status(t));
    if (!y->wants_grad) return STATUS_OK;
    TRY(tape_grad_pass(t, y, n->out));
    TRY(walk(t, first_node, NULL));
    give_vars(t, first_var, NULL);
    t->nodes = first_node;
    t->vars = first_var;
    return STATUS_OK;
}

/* The first run records too, and what it recorded is thrown away: kernels round otherwise when
 * nothing is saved, and both runs must give the same bits. */
Var *tape_recompute(Tape *t, Var *x, TapeBlock block, void *user) {
    if (tape_poison(t)) return tape_poison(t);
    if (!t->recording) return block(user, t, x);
    const int64_t first_node = t->nodes, first_var = t->vars;
    Var *y = block(user, t, tape_view(t, x, x->value.rank, x->value.shape));
    if (tape_poison(t)) return tape_poison(t);
    if (!y->owns_value)
        return tape_fail(t, status_set(STATUS_INTERNAL, "recompute: the block computed nothing"));
    for (int64_t i = first_node; i < t->nodes; i++)
        for (int j = 0; j < NODE_SAVED; j++) tape_give(t, tape_node_at(t, i)->saved[j]);
    give_vars(t, first_var, y);
    t->nodes = first_node;
    if (!y->wants_grad) return y;
    Node *n = tape_take_node(t);
    if (!n) return tape_poison(t);
    n->op = "recompute";
    n->backward = recompute_backward;
    n->in[0] = x;
    n->out = y;
    n->u.again.block = block;
    n->u.again.user = user;
    return y;
}
