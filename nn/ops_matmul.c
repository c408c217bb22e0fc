#include "nn/ops.h"
#include "nn/ops_check.h"

/* ---- batched products ------------------------------------------------------------------- */

/* x with leading dimensions of 1 in front, up to `rank`. */
static Tensor lift(Tensor x, int rank) {
    int64_t shape[TENSOR_MAX_RANK] = {0};
    int missing = rank - x.rank;
    for (int i = 0; i < rank; i++) shape[i] = i < missing ? 1 : x.shape[i - missing];
    return tensor_view(x, rank, shape);
}

/* Shape of op(a) op(b); false when they do not fit. a and b have one rank. */
static bool product_shape(Tensor a, bool ta, Tensor b, bool tb, int64_t *shape) {
    int r = a.rank;
    for (int i = 0; i < r - 2; i++) {
        if (a.shape[i] != b.shape[i] && a.shape[i] != 1 && b.shape[i] != 1) return false;
        shape[i] = a.shape[i] == 1 ? b.shape[i] : a.shape[i];
    }
    shape[r - 2] = a.shape[ta ? r - 1 : r - 2];
    shape[r - 1] = b.shape[tb ? r - 2 : r - 1];
    return a.shape[ta ? r - 2 : r - 1] == b.shape[tb ? r - 1 : r - 2];
}

/* x itself, or a copy in F32 (to be given back when it is another tensor). */
static Status in_f32(Tape *t, Tensor x, Tensor *out) {
    *out = x;
    if (x.dtype == DTYPE_F32) return STATUS_OK;
    TRY(tape_take(t, DTYPE_F32, x.rank, x.shape, out));
    return op_kernels(t)->copy(tape_device(t), grad_set(*out), x, 1.0f);
}

/* One gradient product. When the output of the op is F32 over BF16 operands (or the gradient's
 * dtype differs from the operands'), everything goes through F32 copies: rounding an inner gradient
 * to BF16 would wipe it out (vittt.md 9). */
static Status gradient_product(Tape *t, Grad g, Tensor a, bool ta, Tensor b, bool tb, float alpha) {
    Device *d = tape_device(t);
    if (tensor_is_none(g.t)) return STATUS_OK;
    if (a.dtype == b.dtype && (g.t.dtype == a.dtype || g.t.dtype == DTYPE_F32))
        return d->k->matmul(d, g, a, ta, b, tb, alpha);
    Tensor a32, b32, c = g.t;
    TRY(in_f32(t, a, &a32));
    TRY(in_f32(t, b, &b32));
    if (g.t.dtype != DTYPE_F32) TRY(tape_take(t, DTYPE_F32, g.t.rank, g.t.shape, &c));
    TRY(d->k->matmul(d, (Grad){c, c.data == g.t.data && g.add}, a32, ta, b32, tb, alpha));
    if (c.data != g.t.data) {
        TRY(d->k->copy(d, g, c, 1.0f));
        tape_give(t, c);
    }
    if (b32.data != b.data) tape_give(t, b32);
    if (a32.data != a.data) tape_give(t, a32);
    return STATUS_OK;
}

/* C = alpha op(A) op(B): dA and dB are products of dC with the other factor, in the order that the
 * transpositions ask for; broadcast leading dimensions are summed by the kernel. */
static Status matmul_backward(Tape *t, Node *n) {
    bool ta = n->i[0], tb = n->i[1];
    float alpha = n->u.f[0];
    Var *va = n->in[0], *vb = n->in[1];
    int rank = n->out->value.rank;
    Tensor a = lift(va->value, rank), b = lift(vb->value, rank), dc = n->out->grad;
    Grad da = op_view_grad(tape_grad(t, va), rank, a.shape);
    if (ta)
        TRY(gradient_product(t, da, b, tb, dc, true, alpha));
    else
        TRY(gradient_product(t, da, dc, false, b, !tb, alpha));
    Grad db = op_view_grad(tape_grad(t, vb), rank, b.shape);
    if (tb) return gradient_product(t, db, dc, true, a, ta, alpha);
    return gradient_product(t, db, a, !ta, dc, false, alpha);
}

Var *op_matmul(Tape *t, Var *a, bool ta, Var *b, bool tb, float alpha, DType out) {
    Var *in[] = {a, b};
    if (!op_ready(t, "matmul", 2, in)) return tape_poison(t);
    int rank = a->value.rank > b->value.rank ? a->value.rank : b->value.rank;
    int64_t shape[TENSOR_MAX_RANK];
    if (a->value.rank < 2 || b->value.rank < 2 || a->value.dtype != b->value.dtype ||
        (out != a->value.dtype && out != DTYPE_F32))
        return op_refuse(t, "matmul", 2, in,
                         "matrices of one dtype, and that or F32 as the result");
    Tensor la = lift(a->value, rank), lb = lift(b->value, rank);
    if (!product_shape(la, ta, lb, tb, shape))
        return op_refuse(t, "matmul", 2, in, "fitting inner and leading dimensions");
    Var *y = tape_output(t, out, rank, shape);
    if (tape_poison(t)) return y;
    Status s = op_kernels(t)->matmul(tape_device(t), grad_set(y->value), la, ta, lb, tb, alpha);
    Node *n = s == STATUS_OK ? tape_record(t, "matmul", matmul_backward, y, 2, in) : NULL;
    if (n) {
        n->i[0] = ta;
        n->i[1] = tb;
        n->u.f[0] = alpha;
    }
    return op_done(t, "matmul", s, y);
}

/* ---- linear layers ---------------------------------------------------------------------- */

/* w [O,I] with a dtype equal to x's, b F32 [O] or none. */
static bool linear_fits(Tensor x, Tensor w, const Var *b) {
    return w.rank == 2 && x.rank >= 1 && tensor_last(x) == w.shape[1] && x.dtype == w.dtype &&
           op_is_act(x.dtype) &&
           (!b || (b->value.dtype == DTYPE_F32 && tensor_count(b->value) == w.shape[0]));
}

/* Gradients of x w' + b from dy. */
static Status linear_gradients(Tape *t, Tensor dy, Var *x, Var *w, Var *b) {
    Device *d = tape_device(t);
    Grad dw = tape_grad(t, w), db = tape_grad(t, b);
    if (!tensor_is_none(dw.t) || !tensor_is_none(db.t))
        TRY(d->k->linear_dw(d, dw, db, dy, op_rows(x->value)));
    Grad dx = op_rows_grad(tape_grad(t, x));
    if (tensor_is_none(dx.t)) return STATUS_OK;
    return d->k->linear_dx(d, dx, grad_none(), dy, w->value, tensor_none(), ACT_NONE);
}

static Status linear_backward(Tape *t, Node *n) {
    return linear_gradients(t, op_rows(n->out->grad), n->in[0], n->in[1], n->in[2]);
}

/* Output of x's shape with `last` in the last place. */
static Var *output_wide(Tape *t, Tensor x, int64_t last) {
    int64_t shape[TENSOR_MAX_RANK];
    for (int i = 0; i < x.rank; i++) shape[i] = x.shape[i];
    shape[x.rank - 1] = last;
    return tape_output(t, x.dtype, x.rank, shape);
}

Var *op_linear(Tape *t, Var *x, Var *w, Var *b) {
    Var *in[] = {x, w, b};
    if (!op_ready(t, "linear", b ? 3 : 2, in)) return tape_poison(t);
    if (!linear_fits(x->value, w->value, b))
        return op_refuse(t, "linear", 3, in, "x [..., I], w [O, I] of one dtype, b F32 [O]");
    Var *y = output_wide(t, x->value, w->value.shape[0]);
    if (tape_poison(t)) return y;
    Status s = op_kernels(t)->linear(tape_device(t), op_rows(y->value), tensor_none(),
                                     op_rows(x->value), w->value, op_value(b), ACT_NONE);
    if (s == STATUS_OK) tape_record(t, "linear", linear_backward, y, 3, in);
    return op_done(t, "linear", s, y);
}

/* ---- a branch and the residual around it (vittt.md 4.1) ---------------------------------- */

/* d branch as a matrix: dy itself, or scale[b] dy in memory to be given back, which the node behind
 * may have written already. */
static Status branch_gradient(Tape *t, const Node *n, const Var *scale, Tensor *out) {
    const Tensor dy = n->out->grad;
    *out = op_rows(tensor_is_none(n->scaled) ? dy : n->scaled);
    if (!scale || !tensor_is_none(n->scaled)) return STATUS_OK;
    Tensor scaled;
    TRY(tape_take(t, dy.dtype, dy.rank, dy.shape, &scaled));
    *out = op_rows(scaled);
    return op_kernels(t)->scale_rows(tape_device(t), grad_set(scaled), dy, scale->value);
}

/* The residual's gradient: dy, which nobody reads after this. */
static Status residual_gradient(Tape *t, Node *n, Var *residual, Tensor branch) {
    if (branch.data != n->out->grad.data) tape_give(t, branch);
    return tape_grad_pass(t, residual, n->out);
}

/* Puts residual and scale behind the `count` inputs; false, with the tape failed, when they do not
 * fit a branch with the rows of x and `outputs` columns. */
static bool residual_fits(Tape *t, const char *op, int count, Var **in, Var *residual,
                          int64_t outputs, Tensor scale) {
    const Tensor x = in[0]->value, r = residual->value;
    in[count] = residual;
    if (!tensor_is_none(scale)) in[count + 1] = tape_input(t, scale, "scale");
    if (tape_poison(t)) return false;
    if (r.rank >= 2 && tensor_last(r) == outputs && tensor_rows(r) == tensor_rows(x) &&
        r.dtype == x.dtype &&
        (tensor_is_none(scale) || (scale.dtype == DTYPE_F32 && tensor_count(scale) == r.shape[0])))
        return true;
    op_refuse(t, op, count + 2, in,
              "a residual [B, ..., O] with the branch's rows and dtype, one F32 scale for each "
              "sample");
    return false;
}

static Status linear_residual_backward(Tape *t, Node *n) {
    Tensor branch;
    TRY(branch_gradient(t, n, n->in[4], &branch));
    TRY(linear_gradients(t, branch, n->in[0], n->in[1], n->in[2]));
    return residual_gradient(t, n, n->in[3], branch);
}

Var *op_linear_residual(Tape *t, Var *x, Var *w, Var *b, Var *residual, Tensor scale) {
    Var *in[] = {x, w, b, NULL, NULL}, *needed[] = {x, w, residual};
    const char *op = "linear_residual";
    if (!op_ready(t, op, 3, needed)) return tape_poison(t);
    if (!linear_fits(x->value, w->value, b))
        return op_refuse(t, op, 3, in, "x [..., I], w [O, I] of one dtype, b F32 [O]");
    if (!residual_fits(t, op, 3, in, residual, w->value.shape[0], scale)) return tape_poison(t);
    Var *y = op_output_like(t, x->value.dtype, residual);
    if (tape_poison(t)) return y;
    Status s =
        op_kernels(t)->linear_residual(tape_device(t), op_rows(y->value), op_rows(x->value),
                                       w->value, op_value(b), op_rows(residual->value), scale);
    Node *n = s == STATUS_OK ? tape_record(t, op, linear_residual_backward, y, 5, in) : NULL;
    if (n) n->scale = in[4];
    return op_done(t, op, s, y);
}

/* ---- two layers with GELU between them ---------------------------------------------------- */

/* saved: pre, hidden. Computing the hidden values again saves a fifth of the memory of a ViTTT step
 * and costs 3 % of its time: a frugal tape does. d pre takes their place as soon as they are used
 * up.
 */
static Status mlp_gradients(Tape *t, Tensor dy, const Node *n) {
    Device *d = tape_device(t);
    Var *x = n->in[0], *w1 = n->in[1], *b1 = n->in[2], *w2 = n->in[3], *b2 = n->in[4];
    const Tensor pre = n->saved[0];
    Tensor hidden = n->saved[1];
    const bool again = tensor_is_none(hidden);
    if (again) TRY(tape_take(t, pre.dtype, pre.rank, pre.shape, &hidden));
    Grad dw2 = tape_grad(t, w2), db2 = tape_grad(t, b2);
    if (!tensor_is_none(dw2.t) || !tensor_is_none(db2.t)) {
        if (again) TRY(d->k->unary(d, grad_set(hidden), UNARY_GELU, pre));
        TRY(d->k->linear_dw(d, dw2, db2, dy, hidden));
    }
    TRY(d->k->linear_dx(d, grad_set(hidden), tape_grad(t, b1), dy, w2->value, pre, ACT_GELU));
    TRY(linear_gradients(t, hidden, x, w1, NULL));
    if (again) tape_give(t, hidden);
    return STATUS_OK;
}

static Status mlp_backward(Tape *t, Node *n) {
    return mlp_gradients(t, op_rows(n->out->grad), n);
}

static Status mlp_residual_backward(Tape *t, Node *n) {
    Tensor branch;
    TRY(branch_gradient(t, n, n->in[6], &branch));
    TRY(mlp_gradients(t, branch, n));
    return residual_gradient(t, n, n->in[5], branch);
}

/* The two products; `pre` none when nothing is recorded; in[5], in[6]: residual and scale or NULL.
 */
static Status mlp_forward(Tape *t, Tensor y, Tensor pre, Tensor hidden, Var *const *in) {
    Device *d = tape_device(t);
    const Tensor w2 = in[3]->value, b2 = op_value(in[4]);
    TRY(d->k->linear(d, hidden, pre, op_rows(in[0]->value), in[1]->value, op_value(in[2]),
                     ACT_GELU));
    if (!in[5]) return d->k->linear(d, op_rows(y), tensor_none(), hidden, w2, b2, ACT_NONE);
    return d->k->linear_residual(d, op_rows(y), hidden, w2, b2, op_rows(in[5]->value),
                                 op_value(in[6]));
}

static bool mlp_fits(Var *const *in) {
    const Tensor x = in[0]->value, v1 = in[1]->value, v2 = in[3]->value;
    return linear_fits(x, v1, in[2]) && v2.rank == 2 && v2.shape[1] == v1.shape[0] &&
           v2.dtype == v1.dtype && (!in[4] || tensor_count(in[4]->value) == v2.shape[0]);
}

/* Both ops: in[5] NULL without a residual. */
static Var *mlp(Tape *t, const char *op, Status (*backward)(Tape *, Node *), Var *const *in) {
    const Tensor x = in[0]->value, w1 = in[1]->value;
    Var *y = in[5] ? op_output_like(t, x.dtype, in[5]) : output_wide(t, x, in[3]->value.shape[0]);
    if (tape_poison(t)) return y;
    Tensor pre = tensor_none(), hidden;
    bool record = tape_will_record(t, 7, in);
    int64_t shape[] = {tensor_rows(x), w1.shape[0]};
    Status s = tape_take(t, x.dtype, 2, shape, &hidden);
    if (s == STATUS_OK && record) s = tape_take(t, x.dtype, 2, shape, &pre);
    if (s == STATUS_OK) s = mlp_forward(t, y->value, pre, hidden, in);
    Node *n = s == STATUS_OK ? tape_record(t, op, backward, y, 7, in) : NULL;
    if (n) {
        n->saved[0] = pre;
        n->scale = in[6];
    }
    if (n && tape_thrift(t) < TAPE_FRUGAL)
        n->saved[1] = hidden;
    else if (s == STATUS_OK)
        tape_give(t, hidden);
    return op_done(t, op, s, y);
}

#define MLP_EXPECTED "x [..., I], w1 [H, I], b1 [H], w2 [O, H], b2 [O]"

Var *op_mlp(Tape *t, Var *x, Var *w1, Var *b1, Var *w2, Var *b2) {
    Var *in[] = {x, w1, b1, w2, b2, NULL, NULL}, *needed[] = {x, w1, w2};
    if (!op_ready(t, "mlp", 3, needed)) return tape_poison(t);
    if (!mlp_fits(in)) return op_refuse(t, "mlp", 5, in, MLP_EXPECTED);
    return mlp(t, "mlp", mlp_backward, in);
}

Var *op_mlp_residual(Tape *t, Var *x, Var *w1, Var *b1, Var *w2, Var *b2, Var *residual,
                     Tensor scale) {
    Var *in[] = {x, w1, b1, w2, b2, NULL, NULL}, *needed[] = {x, w1, w2, residual};
    const char *op = "mlp_residual";
    if (!op_ready(t, op, 4, needed)) return tape_poison(t);
    if (!mlp_fits(in)) return op_refuse(t, op, 5, in, MLP_EXPECTED);
    if (!residual_fits(t, op, 5, in, residual, w2->value.shape[0], scale)) return tape_poison(t);
    return mlp(t, op, mlp_residual_backward, in);
}

/* ---- the same with a 3x3 convolution in the middle (vittt.md 4.2) -------------------------- */

/* Inputs of the node. */
enum { LOCAL_X, LOCAL_W1, LOCAL_B1, LOCAL_TAPS, LOCAL_BIAS, LOCAL_W2, LOCAL_B2, LOCAL_RESIDUAL };

/* Hidden values as a map; n->i: B, H, W, hidden channels. */
static Tensor local_map(const int64_t *map, Tensor x) {
    return tensor_view4(x, map[0], map[1], map[2], map[3]);
}

/* saved: pre, h = gelu(pre), sum = h + dwconv(h). gelu(sum) is computed again. `a` and `b` are
 * memory for hidden values. */
static Status local_mlp_gradients(Tape *t, Tensor dy, const Node *n, Tensor a, Tensor b) {
    Device *d = tape_device(t);
    Var *const *in = n->in;
    const Tensor pre = n->saved[0], hidden = n->saved[1], sum = n->saved[2];
    const int64_t taps[] = {1, n->i[3], 9};
    const Grad dw2 = tape_grad(t, in[LOCAL_W2]), db2 = tape_grad(t, in[LOCAL_B2]);
    if (!tensor_is_none(dw2.t) || !tensor_is_none(db2.t)) {
        TRY(d->k->unary(d, grad_set(a), UNARY_GELU, sum));
        TRY(d->k->linear_dw(d, dw2, db2, dy, a));
    }
    TRY(d->k->linear_dx(d, grad_set(a), grad_none(), dy, in[LOCAL_W2]->value, sum, ACT_GELU));
    const Grad dw = op_view_grad(tape_grad(t, in[LOCAL_TAPS]), 3, taps);
    const Grad db = tape_grad(t, in[LOCAL_BIAS]);
    TRY(tape_status(t));
    TRY(d->k->dwconv3_backward(
        d, grad_set(local_map(n->i, b)), dw, db, local_map(n->i, a), local_map(n->i, hidden),
        tensor_view3(in[LOCAL_TAPS]->value, 1, n->i[3], 9), true, tensor_none(), tensor_none()));
    TRY(d->k->unary_mul(d, grad_set(a), UNARY_DGELU, pre, b));
    return linear_gradients(t, a, in[LOCAL_X], in[LOCAL_W1], in[LOCAL_B1]);
}

static Status local_mlp_backward(Tape *t, Node *n) {
    const Tensor pre = n->saved[0];
    Tensor branch, a, b;
    TRY(branch_gradient(t, n, n->scale, &branch));
    TRY(tape_take(t, pre.dtype, 2, pre.shape, &a));
    TRY(tape_take(t, pre.dtype, 2, pre.shape, &b));
    TRY(local_mlp_gradients(t, branch, n, a, b));
    tape_give(t, b);
    tape_give(t, a);
    return residual_gradient(t, n, n->in[LOCAL_RESIDUAL], branch);
}

/* saved: three tensors of hidden values, [0] none when nothing is recorded. The last product reads
 * a fourth, or writes over the first. */
static Status local_mlp_forward(Tape *t, Tensor y, const Tensor saved[3], const int64_t *map,
                                Var *const *in, Tensor scale) {
    Device *d = tape_device(t);
    const Tensor pre = saved[0], hidden = saved[1], sum = saved[2];
    Tensor local = hidden;
    const bool record = !tensor_is_none(pre);
    TRY(d->k->linear(d, hidden, pre, op_rows(in[LOCAL_X]->value), in[LOCAL_W1]->value,
                     op_value(in[LOCAL_B1]), ACT_GELU));
    TRY(d->k->dwconv3(d, grad_set(local_map(map, sum)), local_map(map, hidden),
                      tensor_view3(in[LOCAL_TAPS]->value, 1, map[3], 9), in[LOCAL_BIAS]->value,
                      TAPS_CORRELATE, true));
    if (record) TRY(tape_take(t, hidden.dtype, 2, hidden.shape, &local));
    TRY(d->k->unary(d, grad_set(local), UNARY_GELU, sum));
    TRY(d->k->linear_residual(d, op_rows(y), local, in[LOCAL_W2]->value, op_value(in[LOCAL_B2]),
                              op_rows(in[LOCAL_RESIDUAL]->value), scale));
    if (record) tape_give(t, local);
    return STATUS_OK;
}

static bool local_mlp_fits(const int64_t *map, Var *const *in) {
    const Tensor x = in[LOCAL_X]->value, w1 = in[LOCAL_W1]->value, w2 = in[LOCAL_W2]->value;
    const Tensor taps = in[LOCAL_TAPS]->value, bias = in[LOCAL_BIAS]->value;
    return linear_fits(x, w1, in[LOCAL_B1]) && x.rank == 3 && x.shape[1] == map[1] * map[2] &&
           w2.rank == 2 && w2.shape[1] == w1.shape[0] && w2.dtype == w1.dtype &&
           tensor_count(taps) == 9 * w1.shape[0] && taps.dtype == DTYPE_F32 &&
           tensor_count(bias) == w1.shape[0] && bias.dtype == DTYPE_F32;
}

Var *op_local_mlp_residual(Tape *t, Var *x, int64_t height, int64_t width, const LocalMlp *p,
                           Var *residual, Tensor scale) {
    Var *in[] = {x, p->w1, p->b1, p->taps, p->bias, p->w2, p->b2, NULL, NULL};
    Var *needed[] = {x, p->w1, p->taps, p->bias, p->w2, residual};
    const char *op = "local_mlp_residual";
    if (!op_ready(t, op, 6, needed)) return tape_poison(t);
    const int64_t map[] = {x->value.shape[0], height, width, p->w1->value.shape[0]};
    if (!local_mlp_fits(map, in))
        return op_refuse(t, op, 7, in,
                         "x [B, H*W, I], w1 [H, I], b1 F32 [H], taps F32 [H, 1, 3, 3], bias F32 "
                         "[H], w2 [O, H], b2 F32 [O]");
    if (!residual_fits(t, op, 7, in, residual, p->w2->value.shape[0], scale)) return tape_poison(t);
    Var *y = op_output_like(t, x->value.dtype, residual);
    if (tape_poison(t)) return y;
    const bool record = tape_will_record(t, 8, in);
    const int64_t shape[] = {tensor_rows(x->value), map[3]};
    Tensor saved[3] = {tensor_none()};
    Status s = STATUS_OK;
    for (int i = record ? 0 : 1; i < 3 && s == STATUS_OK; i++)
        s = tape_take(t, x->value.dtype, 2, shape, &saved[i]);
    if (s == STATUS_OK) s = local_mlp_forward(t, y->value, saved, map, in, scale);
    Node *n = s == STATUS_OK ? tape_record(t, op, local_mlp_backward, y, 8, in) : NULL;
    for (int i = 0; n && i < 4; i++) n->i[i] = map[i];
    for (int i = 0; n && i < 3; i++) n->saved[i] = saved[i];
    for (int i = 1; !n && s == STATUS_OK && i < 3; i++) tape_give(t, saved[i]);
    if (n) n->scale = in[8];
    return op_done(t, op, s, y);
}
