/* One gradient step on the fast weights (lact_nvs.md 4): G0, G1, G2 from the old weights, then
 * W' = weight norm of W + NS(G). The gradient through all of it is the tape's (section 5). */
#include "nn/ops_check.h"
#include "ttt/lact_forms.h"
#include "ttt/newton_schulz.h"

Var *lact_constant(Tape *t, int rank, const int64_t *shape, float value) {
    if (tape_poison(t)) return tape_poison(t);
    Tensor c;
    Status s = tape_take(t, DTYPE_F32, rank, shape, &c);
    if (s == STATUS_OK) s = op_kernels(t)->fill(tape_device(t), c, value);
    if (s != STATUS_OK) return tape_fail(t, s);
    return tape_input(t, c, "constant");
}

LactFast lact_initial(const LactLayer *m, Tape *t) {
    LactFast w = {.w = {NULL}};
    for (int j = 0; j < 3; j++) {
        const int64_t *s = m->w[j]->value.shape;
        w.w[j] = op_view(t, m->w[j], 4, (int64_t[]){1, s[0], s[1], s[2]});
    }
    return w;
}

/* W' from W and the gradient g, which ends here; columns get the norms of `start`. */
static Var *step(const LactLayer *m, Tape *t, Var *w, Var *start, Var *g) {
    const LactVariant *v = &m->variant;
    Var *u = v->no_muon ? g : newton_schulz(t, g, NEWTON_SCHULZ_STEPS);
    Var *moved = op_add(t, w, u, v->ascend ? -1 : 1);
    if (u != g) tape_drop(t, u);
    tape_drop(t, g);
    if (v->no_weight_norm) return moved;
    Var *kept = op_weight_norm(t, moved, start, LACT_COLUMN_OFFSET);
    tape_drop(t, moved);
    return kept;
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
    const LactFast start = lact_initial(m, t);
    Var *to = op_matmul(t, in.v, false, w.w[1], true, 1, DTYPE_F32); /* T = V W1' */
    Var *ts = op_mul(t, to, s);
    out->w[2] = step(m, t, w.w[2], start.w[2], rated_product(m, t, in, 2, in.k, ts));
    tape_drop(t, ts);
    Var *tc = op_mul(t, to, c);
    tape_drop(t, to);
    Var *slope = op_silu_grad(t, a);
    Var *tcd = op_mul(t, tc, slope);
    tape_drop(t, tc);
    tape_drop(t, slope);
    out->w[0] = step(m, t, w.w[0], start.w[0], rated_product(m, t, in, 0, in.k, tcd));
    tape_drop(t, tcd);
}

/* One inner step from w. */
static LactFast advance(const LactLayer *m, Tape *t, LactTokens in, LactFast w) {
    const LactFast start = lact_initial(m, t);
    LactFast out = w; /* what is not written stays as it is */
    if (m->variant.linear) {
        out.w[1] = step(m, t, w.w[1], start.w[1], rated_product(m, t, in, 1, in.k, in.v));
        return out;
    }
    Var *a = op_matmul(t, in.k, false, w.w[0], false, 1, DTYPE_F32);
    Var *c = op_matmul(t, in.k, false, w.w[2], false, 1, DTYPE_F32);
    Var *s = op_silu(t, a);
    Var *p = op_mul(t, s, c);
    out.w[1] = step(m, t, w.w[1], start.w[1], rated_product(m, t, in, 1, p, in.v));
    tape_drop(t, p);
    if (!m->variant.only_w1) update_gates(m, t, in, w, a, c, s, &out);
    tape_drop(t, a);
    tape_drop(t, c);
    tape_drop(t, s);
    return out;
}

LactFast lact_update(const LactLayer *m, Tape *t, LactTokens in) {
    LactFast w = advance(m, t, in, lact_initial(m, t));
    for (int64_t i = 1; i < m->steps; i++) {
        const LactFast before = w;
        w = advance(m, t, in, before);
        for (int j = 0; j < 3; j++)
            if (w.w[j] != before.w[j]) tape_drop(t, before.w[j]);
    }
    return w;
}
