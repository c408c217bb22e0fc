/* The LaCT layer: parameters, projections, rates and reading (lact_nvs.md 3.3). */
#include "ttt/lact.h"

#include <math.h>
#include <stdio.h>

#include "nn/ops_check.h"
#include "ttt/lact_forms.h"

#define UNIT_OFFSET 1e-5f /* of |q| and |k| */
#define NORM_EPS    1e-5f /* of o_norm */
/* softplus of it is 0.01, the rate at the start: a constant of the model, not a parameter. */
#define RATE_SHIFT (-4.600166019324897f)

/* ---- parameters --------------------------------------------------------------------------- */

static Status check_sizes(const char *prefix, int64_t width, int64_t heads, int64_t inter_multi,
                          LactVariant variant) {
    if (width < 1 || heads < 1 || inter_multi < 1 || width % heads != 0)
        return status_set(STATUS_USAGE, "%s: width %lld is not a multiple of %lld heads", prefix,
                          (long long)width, (long long)heads);
    if (variant.linear && inter_multi != 1)
        return status_set(STATUS_USAGE, "%s: variants V3 to V6 need inter_multi 1, not %lld",
                          prefix, (long long)inter_multi);
    return STATUS_OK;
}

Status lact_register(LactLayer *m, Params *p, const char *prefix, int64_t width, int64_t heads,
                     int64_t inter_multi, LactVariant variant, float proj_scale) {
    TRY(check_sizes(prefix, width, heads, inter_multi, variant));
    const int64_t d = width, e = width / heads, h = e * inter_multi;
    const int64_t packed = (variant.query_is_key ? 2 : 3) * d;
    const Init by_e = {INIT_NORMAL, sqrtf(2.0f / (float)e)},
               by_h = {INIT_NORMAL, sqrtf(2.0f / (float)h)}, normal = {INIT_NORMAL, 0.02f},
               proj = {INIT_NORMAL, proj_scale}, zero = {INIT_ZERO, 0}, one = {INIT_ONE, 0};
    const struct {
        const char *name;
        Var **var;
        int rank, flags;
        Init init;
        int64_t shape[3];
    } wanted[] = {
        {"w0", &m->w[0], 3, 0, by_e, {heads, e, h}},
        {"w1", &m->w[1], 3, 0, by_h, {heads, h, e}},
        {"w2", &m->w[2], 3, 0, by_e, {heads, e, h}},
        {"to_qkv.weight", &m->qkv_w, 2, PARAM_MATMUL, normal, {packed, d}},
        {"c_proj.weight", &m->proj_w, 2, PARAM_MATMUL, proj, {d, d}},
        {"lr_fc.weight", &m->rate_w, 2, 0, normal, {3 * heads, d}},
        {"lr_fc.bias", &m->rate_b, 1, 0, zero, {3 * heads}},
        {"o_norm.weight", &m->norm_w, 1, 0, one, {e}},
    };
    *m =
        (LactLayer){.width = width, .heads = heads, .inter_multi = inter_multi, .variant = variant};
    for (size_t i = 0; i < sizeof wanted / sizeof wanted[0]; i++) {
        char name[256];
        snprintf(name, sizeof name, "%s%s", prefix, wanted[i].name);
        int flags = wanted[i].flags | (params_decays(name, wanted[i].rank) ? PARAM_DECAY : 0);
        *wanted[i].var =
            params_add(p, name, wanted[i].rank, wanted[i].shape, wanted[i].init, flags);
    }
    return p->status;
}

/* ---- projections -------------------------------------------------------------------------- */

static bool input_fits(const LactLayer *m, Tape *t, const Var *x, int64_t writing) {
    if (tape_poison(t)) return false;
    const Tensor *v = &x->value;
    if (v->rank == 3 && v->shape[2] == m->width && writing >= 1 && writing <= v->shape[1])
        return true;
    char text[64];
    tape_fail(t, status_set(STATUS_DATA,
                            "LaCT layer: input is %s with %lld writing tokens, expected [B, m, "
                            "%lld] and 1 to m of them",
                            tensor_shape_text(*v, text, sizeof text), (long long)writing,
                            (long long)m->width));
    return false;
}

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
    Var *y = op_normalise(t, x, tensor_rows(x->value), e, 1, UNIT_OFFSET);
    tape_drop(t, x);
    return y;
}

/* Rows of q, k and v in the projection: the last two thirds are k and v, or all of it. */
static int64_t key_channel(const LactLayer *m) {
    return m->qkv_w->value.shape[0] - 2 * m->width;
}
static int64_t query_channel(const LactLayer *m) {
    return m->variant.query_is_key ? key_channel(m) : 0;
}

/* eta F32 [B,n,3H], NULL where every rate is 1. */
static Var *rates_of(const LactLayer *m, Tape *t, Var *x) {
    if (m->variant.unit_rate || tape_poison(t)) return NULL;
    Var *wide = op_cast(t, x, DTYPE_F32);
    Var *shift = lact_constant(t, 1, (int64_t[]){3 * m->heads}, RATE_SHIFT);
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

/* ---- write and read ----------------------------------------------------------------------- */

/* packed [B,n,P] of the tokens x [B,n,d], which write. */
static LactFast write_packed(const LactLayer *m, Tape *t, Var *packed, Var *x) {
    LactTokens in = {.k = heads_of(m, t, packed, key_channel(m), true),
                     .v = heads_of(m, t, packed, key_channel(m) + m->width, false),
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
static Var *read_queries(const LactLayer *m, Tape *t, Var *q, LactFast fast, DType act) {
    Var *o = evaluate(m, t, q, fast);
    tape_drop(t, q);
    Var *normed = op_rmsnorm(t, o, m->norm_w, NORM_EPS);
    tape_drop(t, o);
    Var *merged = op_merge_heads(t, normed, NULL);
    tape_drop(t, normed);
    if (tape_poison(t)) return tape_poison(t);
    Var *rounded = op_cast(t, merged, act);
    if (rounded != merged) tape_drop(t, merged);
    Var *y = op_linear(t, rounded, m->proj_w, NULL);
    tape_drop(t, rounded);
    return y;
}

LactFast lact_write(const LactLayer *m, Tape *t, Var *x) {
    if (!input_fits(m, t, x, 1))
        return (LactFast){{tape_poison(t), tape_poison(t), tape_poison(t)}};
    Var *packed = project(m, t, x, m->qkv_w->value.shape[0]);
    LactFast fast = write_packed(m, t, packed, x);
    tape_drop(t, packed);
    return fast;
}

Var *lact_read(const LactLayer *m, Tape *t, Var *x, LactFast fast) {
    if (!input_fits(m, t, x, 1)) return tape_poison(t);
    /* Queries, or keys in their place, are the first rows either way, unless a layer that was built
     * with queries does without them. */
    Var *packed = project(m, t, x, query_channel(m) + m->width);
    Var *q = heads_of(m, t, packed, query_channel(m), true);
    tape_drop(t, packed);
    return read_queries(m, t, q, fast, x->value.dtype);
}

Var *lact_forward(const LactLayer *m, Tape *t, Var *x, int64_t writing, LactFast *fast) {
    if (!input_fits(m, t, x, writing)) return tape_poison(t);
    const bool all = writing == x->value.shape[1];
    Var *packed = project(m, t, x, m->qkv_w->value.shape[0]);
    Var *writers = all ? packed : op_slice_tokens(t, packed, 0, writing);
    Var *x_in = all ? x : op_slice_tokens(t, x, 0, writing);
    LactFast written = write_packed(m, t, writers, x_in);
    if (!all) {
        tape_drop(t, writers);
        tape_drop(t, x_in);
    }
    Var *q = heads_of(m, t, packed, query_channel(m), true);
    tape_drop(t, packed);
    Var *y = read_queries(m, t, q, written, x->value.dtype);
    for (int j = 0; j < 3 && !fast; j++) tape_drop(t, written.w[j]);
    if (fast) *fast = written;
    return y;
}
