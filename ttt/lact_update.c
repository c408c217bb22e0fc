/* One gradient step on the fast weights (lact_nvs.md 4): G0, G1, G2 from the old weights, then
 * W' = weight norm of W + NS(G). The gradient through all of it is the tape's (section 5). */
#include "nn/ops_check.h"
#include "ttt/lact_forms.h"
#include "ttt/newton_schulz.h"

#define COLUMN_OFFSET 1e-5f
/* Turns 0/0 into 0 and changes no other quotient. */
#define TINY 1e-30f

Var *lact_constant(Tape *t, int rank, const int64_t *shape, float value) {
    if (tape_poison(t)) return tape_poison(t);
    Tensor c;
    Status s = tape_take(t, DTYPE_F32, rank, shape, &c);
    if (s == STATUS_OK) s = op_kernels(t)->fill(tape_device(t), c, value);
    if (s != STATUS_OK) return tape_fail(t, s);
    return tape_input(t, c, "constant");
}

LactFast lact_initial(const LactLayer *m, Tape *t) {
    LactFast w;
    for (int j = 0; j < 3; j++) {
        const int64_t *s = m->w[j]->value.shape;
        w.w[j] = op_view(t, m->w[j], 4, (int64_t[]){1, s[0], s[1], s[2]});
    }
    return w;
}

/* |w|_col in every element of its column, [batch,...], without gradient; w [1,H,r,c]. The norm is
 * the sum of w * w/|w|, and a product with ones both sums a column and repeats the sum. */
static Var *column_norms(Tape *t, Var *w, int64_t batch) {
    if (tape_poison(t)) return tape_poison(t);
    const int64_t *s = w->value.shape;
    const int64_t square[] = {1, 1, s[2], s[2]}, full[] = {batch, s[1], s[2], s[3]};
    Var *fixed = op_detach(t, w);
    Var *unit = op_normalise(t, fixed, s[1], s[2], s[3], TINY);
    Var *product = op_mul(t, fixed, unit);
    tape_drop(t, unit);
    Var *ones = lact_constant(t, 4, square, 1);
    Var *norms = op_matmul(t, ones, false, product, false, 1, DTYPE_F32);
    tape_drop(t, product);
    if (tape_poison(t)) return tape_poison(t);
    tape_give(t, ones->value);
    if (batch == 1) return norms;
    Var *zeros = lact_constant(t, 4, full, 0);
    Var *repeated = op_add(t, norms, zeros, 1);
    tape_drop(t, norms);
    if (tape_poison(t)) return tape_poison(t);
    tape_give(t, zeros->value);
    return repeated;
}

/* M/(|M|_col + 1e-5) * |W|_col; moved [B,H,r,c] ends here. */
static Var *weight_norm(Tape *t, Var *moved, Var *w) {
    if (tape_poison(t)) return tape_poison(t);
    const int64_t *s = moved->value.shape;
    Var *unit = op_normalise(t, moved, s[0] * s[1], s[2], s[3], COLUMN_OFFSET);
    Var *norms = column_norms(t, w, s[0]);
    Var *y = op_mul(t, unit, norms);
    tape_drop(t, moved);
    tape_drop(t, unit);
    tape_drop(t, norms);
    return y;
}

/* W' from W and the gradient g, which ends here. */
static Var *step(const LactLayer *m, Tape *t, Var *w, Var *g) {
    const LactVariant *v = &m->variant;
    Var *u = v->no_muon ? g : newton_schulz(t, g, NEWTON_SCHULZ_STEPS);
    Var *moved = op_add(t, w, u, v->ascend ? -1 : 1);
    if (u != g) tape_drop(t, u);
    tape_drop(t, g);
    return v->no_weight_norm ? moved : weight_norm(t, moved, w);
}

/* (eta_j * x)' y: [B,H,n,a], [B,H,n,b] -> [B,H,a,b]. */
static Var *rated_product(const LactLayer *m, Tape *t, LactTokens in, int j, Var *x, Var *y) {
    if (!in.rates) return op_matmul(t, x, true, y, false, 1, DTYPE_F32);
    Var *eta = op_split_heads(t, in.rates, j * m->heads, m->heads, 1);
    Var *scaled = op_scale_tokens(t, x, eta);
    tape_drop(t, eta);
    Var *g = op_matmul(t, scaled, true, y, false, 1, DTYPE_F32);
    tape_drop(t, scaled);
    return g;
}

/* W0' and W2', from A = K W0, C = K W2 and S = silu(A). */
static void update_gates(const LactLayer *m, Tape *t, LactTokens in, LactFast w, Var *a, Var *c,
                         Var *s, LactFast *out) {
    Var *to = op_matmul(t, in.v, false, w.w[1], true, 1, DTYPE_F32); /* T = V W1' */
    Var *ts = op_mul(t, to, s);
    out->w[2] = step(m, t, w.w[2], rated_product(m, t, in, 2, in.k, ts));
    tape_drop(t, ts);
    Var *tc = op_mul(t, to, c);
    tape_drop(t, to);
    Var *slope = op_silu_grad(t, a);
    Var *tcd = op_mul(t, tc, slope);
    tape_drop(t, tc);
    tape_drop(t, slope);
    out->w[0] = step(m, t, w.w[0], rated_product(m, t, in, 0, in.k, tcd));
    tape_drop(t, tcd);
}

LactFast lact_update(const LactLayer *m, Tape *t, LactTokens in) {
    const LactFast w = lact_initial(m, t);
    LactFast out = w; /* what is not written stays as it is */
    if (m->variant.linear) {
        out.w[1] = step(m, t, w.w[1], rated_product(m, t, in, 1, in.k, in.v));
        return out;
    }
    Var *a = op_matmul(t, in.k, false, w.w[0], false, 1, DTYPE_F32);
    Var *c = op_matmul(t, in.k, false, w.w[2], false, 1, DTYPE_F32);
    Var *s = op_silu(t, a);
    Var *p = op_mul(t, s, c);
    out.w[1] = step(m, t, w.w[1], rated_product(m, t, in, 1, p, in.v));
    tape_drop(t, p);
    if (!m->variant.only_w1) update_gates(m, t, in, w, a, c, s, &out);
    tape_drop(t, a);
    tape_drop(t, c);
    tape_drop(t, s);
    return out;
}
