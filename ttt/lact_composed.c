/* The LaCT layer composed from small ops: projections, rates and reading (lact_nvs.md 3.3). */
#include "nn/ops_check.h"
#include "ttt/lact_forms.h"

/* ---- projections -------------------------------------------------------------------------- */

/* silu(x W') in F32 with all rows of W_qkv; or only its first `rows`, by a copy of them, which has
 * no use for gradients. */
static Var *project(const LactLayer *m, Tape *t, Var *x, int64_t rows) {
    const int64_t all = m->qkv_w->value.shape[0], d = m->width;
    Var *w = m->qkv_w, *part = NULL;
    if (rows < all && !tape_recording(t)) {
        part = op_slice_tokens(t, op_view(t, w, 3, (int64_t[]){1, all, d}), 0, rows);
        w = op_view(t, part, 2, (int64_t[]){rows, d});
    }
    Var *u = op_linear(t, x, w, NULL);
    if (part) tape_drop(t, part);
    Var *s = op_silu(t, u);
    tape_drop(t, u);
    if (tape_poison(t) || s->value.dtype == DTYPE_F32) return s;
    Var *wide = op_cast(t, s, DTYPE_F32);
    tape_drop(t, s);
    return wide;
}

/* Heads of `packed` from channel `at`; of unit length when `unit`. */
static Var *heads_of(const LactLayer *m, Tape *t, Var *packed, int64_t at, bool unit) {
    Var *x = op_split_heads(t, packed, at, m->heads, m->width / m->heads);
    if (tape_poison(t) || !unit) return x;
    const int64_t e = tensor_last(x->value);
    Var *y = op_normalise(t, x, tensor_rows(x->value), e, 1, LACT_UNIT_OFFSET);
    tape_drop(t, x);
    return y;
}

/* eta F32 [B,n,3H], NULL where every rate is 1. */
static Var *rates_of(const LactLayer *m, Tape *t, Var *x) {
    if (m->variant.unit_rate || tape_poison(t)) return NULL;
    Var *wide = op_cast(t, x, DTYPE_F32);
    Var *shift = lact_constant(t, 1, (int64_t[]){3 * m->heads}, LACT_RATE_SHIFT);
    Var *bias = op_add(t, m->rate_b, shift, 1);
    Var *z = op_linear(t, wide, m->rate_w, bias);
    if (tape_poison(t)) return tape_poison(t);
    tape_give(t, shift->value);
    tape_drop(t, bias);
    if (wide != x) tape_drop(t, wide);
    Var *eta = op_softplus(t, z);
    tape_drop(t, z);
    return eta;
}

/* q [B,H,m,e] of unit length from `packed` [B,m,P], which ends here. */
static Var *queries_of(const LactLayer *m, Tape *t, Var *packed) {
    const int64_t at = lact_query_channel(m);
    if (m->swap) {
        const QueryPlace place = {at, at, m->heads, m->width / m->heads};
        Var *other = query_swap(t, packed, m->swap, place);
        tape_drop(t, packed);
        packed = other;
    }
    Var *q = heads_of(m, t, packed, at, true);
    tape_drop(t, packed);
    return q;
}

/* ---- write and read ----------------------------------------------------------------------- */

/* packed [B,n,P] of the tokens x [B,n,d], which write. */
static LactFast write_packed(const LactLayer *m, Tape *t, Var *packed, Var *x) {
    LactTokens in = {.k = heads_of(m, t, packed, lact_key_channel(m), true),
                     .v = heads_of(m, t, packed, lact_key_channel(m) + m->width, false),
                     .rates = rates_of(m, t, x)};
    LactFast fast = lact_update(m, t, in);
    tape_drop(t, in.k);
    tape_drop(t, in.v);
    if (in.rates) tape_drop(t, in.rates);
    return fast;
}

/* f_W'(q) [B,H,m,e]. */
static Var *evaluate(const LactLayer *m, Tape *t, Var *q, LactFast fast) {
    if (m->variant.linear) return op_matmul(t, q, false, fast.w[1], false, 1, DTYPE_F32);
    Var *a = op_matmul(t, q, false, fast.w[0], false, 1, DTYPE_F32);
    Var *s = op_silu(t, a);
    tape_drop(t, a);
    Var *b = op_matmul(t, q, false, fast.w[2], false, 1, DTYPE_F32);
    Var *p = op_mul(t, s, b);
    tape_drop(t, s);
    tape_drop(t, b);
    Var *o = op_matmul(t, p, false, fast.w[1], false, 1, DTYPE_F32);
    tape_drop(t, p);
    return o;
}

/* q F32 [B,H,m,e], which ends here, to y [B,m,d] of the tape's activations. */
static Var *read_queries(const LactLayer *m, Tape *t, Var *q, LactFast fast, DType act,
                         Var *residual) {
    Var *o = evaluate(m, t, q, fast);
    tape_drop(t, q);
    Var *normed = op_rmsnorm(t, o, m->norm_w, LACT_NORM_EPS);
    if (m->trace) {
        m->trace->o = o;
    } else {
        tape_drop(t, o);
    }
    Var *merged = op_merge_heads(t, normed, NULL);
    tape_drop(t, normed);
    if (tape_poison(t)) return tape_poison(t);
    Var *rounded = op_cast(t, merged, act);
    if (rounded != merged) tape_drop(t, merged);
    Var *y = residual ? op_linear_residual(t, rounded, m->proj_w, NULL, residual, tensor_none())
                      : op_linear(t, rounded, m->proj_w, NULL);
    tape_drop(t, rounded);
    return y;
}

LactFast lact_composed_write(const LactLayer *m, Tape *t, Var *x) {
    Var *packed = project(m, t, x, m->qkv_w->value.shape[0]);
    LactFast fast = write_packed(m, t, packed, x);
    tape_drop(t, packed);
    return fast;
}

Var *lact_composed_read(const LactLayer *m, Tape *t, Var *x, Var *residual, LactFast fast) {
    /* Queries, or keys in their place, are the first rows either way, unless a layer that was built
     * with queries does without them. */
    Var *packed = project(m, t, x, lact_query_channel(m) + m->width);
    Var *q = queries_of(m, t, packed);
    return read_queries(m, t, q, fast, x->value.dtype, residual);
}

Var *lact_composed_forward(const LactLayer *m, Tape *t, Var *x, int64_t writing, Var *residual,
                           LactFast *fast) {
    const bool all = writing == x->value.shape[1];
    Var *packed = project(m, t, x, m->qkv_w->value.shape[0]);
    Var *writers = all ? packed : op_slice_tokens(t, packed, 0, writing);
    Var *x_in = all ? x : op_slice_tokens(t, x, 0, writing);
    LactFast written = write_packed(m, t, writers, x_in);
    if (!all) {
        tape_drop(t, writers);
        tape_drop(t, x_in);
    }
    Var *q = queries_of(m, t, packed);
    Var *y = read_queries(m, t, q, written, x->value.dtype, residual);
    for (int j = 0; j < 3 && !fast; j++) tape_drop(t, written.w[j]);
    if (fast) *fast = written;
    return y;
}
