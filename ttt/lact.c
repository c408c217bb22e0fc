/* The LaCT layer: parameters, and the fused form (lact_nvs.md 3.3). */
#include "ttt/lact.h"

#include <math.h>
#include <stdio.h>

#include "nn/ops_check.h"
#include "ttt/lact_forms.h"
#include "ttt/newton_schulz.h"

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

/* ---- the fused form ----------------------------------------------------------------------- */

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

/* In BF16 it costs a basis of the tokens and products with it; few matrices do not fill a card. Not
 * by the device, so that plans, cards and the CPU agree. */
#define SPAN_MATRICES 16 /* keys' and values' */
#define SPAN_MULTIPLE 64

bool lact_writes_in_span(const LactLayer *m, DType act, int64_t batch, int64_t writing) {
    const int64_t n = writing, e = m->width / m->heads;
    if (m->span == LACT_SPAN_NEVER || m->variant.only_w1) return false;
    if (m->span == LACT_SPAN_ALWAYS) return true;
    return act == DTYPE_BF16 && 4 * n <= 3 * e && n % SPAN_MULTIPLE == 0 &&
           e % SPAN_MULTIPLE == 0 && 2 * batch * m->heads >= SPAN_MATRICES;
}

/* Steps U of the tokens x, whose keys and values before silu are the last channels of packed. */
static LactGradients write_steps(const LactLayer *m, Tape *t, Var *x, Var *packed) {
    const LactVariant *v = &m->variant;
    const DType inner = x->value.dtype;
    Var *rates = op_token_rates(t, x, m->rate_w, m->rate_b, LACT_RATE_SHIFT);
    const NewtonSchulz steps = newton_schulz_fixed(NEWTON_SCHULZ_STEPS, inner == DTYPE_BF16);
    if (lact_writes_in_span(m, inner, x->value.shape[0], x->value.shape[1])) {
        const LactGradients u =
            op_lact_steps(t, packed, rates, m->w, LACT_UNIT_OFFSET, steps, inner);
        tape_drop(t, rates);
        return u;
    }
    LactGradients g = op_lact_write(t, packed, rates, m->w, LACT_UNIT_OFFSET, v->only_w1, inner);
    tape_drop(t, rates);
    LactGradients u = {0};
    if (g.gates) u.gates = op_newton_schulz(t, g.gates, steps, inner);
    if (g.gates) tape_drop(t, g.gates);
    if (g.back) u.back = op_newton_schulz(t, g.back, steps, inner);
    if (g.back) tape_drop(t, g.back);
    return u;
}

static float step_sign(const LactLayer *m) {
    return m->variant.ascend ? -1.0f : 1.0f;
}
static float step_offset(const LactLayer *m) {
    return m->variant.no_weight_norm ? 0.0f : LACT_COLUMN_OFFSET;
}

static LactFast write_tokens(const LactLayer *m, Tape *t, Var *x) {
    Var *packed = op_linear_rows(t, x, m->qkv_w, lact_key_channel(m), 2 * m->width);
    const LactGradients u = write_steps(m, t, x, packed);
    tape_drop(t, packed);
    if (tape_poison(t)) return (LactFast){.fused = {tape_poison(t), tape_poison(t)}};
    LactFast fast = {.fused =
                         op_lact_step(t, u, m->w, step_sign(m), step_offset(m), x->value.dtype)};
    /* their backward works from G */
    if (u.gates) tape_release(t, u.gates);
    if (u.back) tape_release(t, u.back);
    return fast;
}

/* f_W'(q), through o_norm and c_proj, of tokens whose queries are the first channels of packed. */
static Var *read_packed(const LactLayer *m, Tape *t, Var *packed, Var *residual, LactWeights w) {
    Var *o = op_lact_read(t, packed, w, LACT_UNIT_OFFSET);
    tape_drop(t, packed);
    Var *y = op_lact_out(t, o, m->norm_w, LACT_NORM_EPS, m->proj_w, residual);
    if (m->trace) {
        m->trace->o = o;
    } else {
        tape_drop(t, o);
    }
    return y;
}

static Var *read_tokens(const LactLayer *m, Tape *t, Var *x, Var *residual, LactWeights w) {
    Var *packed = op_linear_rows(t, x, m->qkv_w, lact_query_channel(m), m->width);
    return read_packed(m, t, packed, residual, w);
}

/* ---- write and read ----------------------------------------------------------------------- */

void lact_fast_drop(Tape *t, LactFast fast) {
    Var *const all[] = {fast.w[0], fast.w[1], fast.w[2], fast.fused.gates, fast.fused.back};
    for (int i = 0; i < 5; i++)
        if (all[i]) tape_drop(t, all[i]);
}

static bool is_fused(const LactLayer *m) {
    const LactVariant *v = &m->variant;
    const bool plain = m->steps <= 1 && !m->swap;
    return !m->composed && plain && !v->linear && !v->unit_rate && !v->no_muon;
}

/* Copies of the written weights, which their reader may give back. */
static LactFast copy_of(Tape *t, LactFast f) {
    LactFast c = {.w = {NULL}};
    for (int j = 0; j < 3; j++)
        if (f.w[j]) c.w[j] = op_scale(t, f.w[j], 1);
    if (f.fused.gates) c.fused.gates = op_scale(t, f.fused.gates, 1);
    if (f.fused.back) c.fused.back = op_scale(t, f.fused.back, 1);
    return c;
}

LactFast lact_write(const LactLayer *m, Tape *t, Var *x) {
    if (!input_fits(m, t, x, 1)) return (LactFast){.fused = {tape_poison(t), tape_poison(t)}};
    const LactFast fast = is_fused(m) ? write_tokens(m, t, x) : lact_composed_write(m, t, x);
    if (m->trace)
        *m->trace = (LactTrace){
            .x = op_scale(t, x, 1), .fast = copy_of(t, fast), .writing = x->value.shape[1]};
    return fast;
}

Var *lact_read(const LactLayer *m, Tape *t, Var *x, Var *residual, LactFast fast) {
    if (!input_fits(m, t, x, 1)) return tape_poison(t);
    if (m->trace) m->trace->read = op_scale(t, x, 1);
    if (is_fused(m) && fast.fused.gates) return read_tokens(m, t, x, residual, fast.fused);
    if (!fast.w[0])
        return tape_fail(t,
                         status_set(STATUS_INTERNAL, "LaCT layer: fast weights of another form"));
    return lact_composed_read(m, t, x, residual, fast);
}

bool lact_read_weights(const LactLayer *m, LactFast fast, ViewBlock *block, ViewForm *form) {
    if (!is_fused(m) || !fast.fused.gates || m->trace) return false;
    const Tensor all = m->qkv_w->value;
    const int64_t skip = lact_query_channel(m) * m->width;
    char *rows = (char *)all.data + (size_t)skip * dtype_size(all.dtype);
    block->query_w = tensor_2d(rows, all.dtype, m->width, m->width);
    block->gates = fast.fused.gates->value;
    block->back = fast.fused.back->value;
    block->out_norm_w = m->norm_w->value;
    block->out_w = m->proj_w->value;
    form->unit_offset = LACT_UNIT_OFFSET;
    form->out_eps = LACT_NORM_EPS;
    return true;
}

/* The queries are projected last: their gradient is then the first to reach x and covers all
 * tokens, so that the part of the writing tokens is added to it and nothing need be cleared. */
Var *lact_forward(const LactLayer *m, Tape *t, Var *x, int64_t writing, Var *residual,
                  LactFast *fast) {
    if (!input_fits(m, t, x, writing)) return tape_poison(t);
    if (m->trace) *m->trace = (LactTrace){.x = op_scale(t, x, 1), .writing = writing};
    if (!is_fused(m)) {
        LactFast written;
        Var *y = lact_composed_forward(m, t, x, writing, residual, &written);
        if (m->trace) m->trace->fast = copy_of(t, written);
        if (fast) *fast = written;
        for (int j = 0; j < 3 && !fast; j++) tape_drop(t, written.w[j]);
        return y;
    }
    const bool all = writing == x->value.shape[1];
    Var *writers = all ? x : op_slice_tokens(t, x, 0, writing);
    if (tape_poison(t)) return tape_poison(t);
    const LactFast written = write_tokens(m, t, writers);
    if (!all) tape_drop(t, writers);
    if (tape_poison(t)) return tape_poison(t);
    if (m->trace) m->trace->fast = copy_of(t, written);
    Var *y = read_tokens(m, t, x, residual, written.fused);
    if (fast) {
        *fast = written;
    } else {
        lact_fast_drop(t, written);
    }
    return y;
}

/* The normed rows are not kept, and the writing tokens are normed where they are taken. */
Var *lact_forward_normed(const LactLayer *m, Tape *t, Var *x, LactNorm norm, int64_t writing,
                         LactFast *fast) {
    if (!input_fits(m, t, x, writing)) return tape_poison(t);
    if (!is_fused(m) || m->trace || tape_thrift(t) == TAPE_LAVISH || !tape_recording(t)) {
        Var *u = op_layernorm(t, x, norm.w, NULL, norm.eps);
        Var *y = lact_forward(m, t, u, writing, x, fast);
        tape_drop(t, u);
        return y;
    }
    const LactFast written = write_tokens(m, t, op_norm_tokens(t, x, writing, norm.w, norm.eps));
    Var *packed =
        op_norm_linear_rows(t, x, norm.w, norm.eps, m->qkv_w, lact_query_channel(m), m->width);
    if (tape_poison(t)) return tape_poison(t);
    if (fast) *fast = written;
    return read_packed(m, t, packed, x, written.fused);
}

/* ---- a scene ------------------------------------------------------------------------------ */

bool lact_into_fits(const LactLayer *m, const Tape *t) {
    return is_fused(m) && !m->trace && !m->variant.only_w1 && !tape_recording(t);
}

static void step_to(const LactLayer *m, Tape *t, LactGradients u, LactWeights to) {
    if (!tape_poison(t)) op_lact_step_to(t, u, m->w, step_sign(m), step_offset(m), to);
    if (u.gates) tape_drop(t, u.gates);
    if (u.back) tape_drop(t, u.back);
}

/* Queries, keys and values are one product. */
Var *lact_into(const LactLayer *m, Tape *t, Var *x, Var *residual, LactWeights to) {
    if (!input_fits(m, t, x, 1)) return tape_poison(t);
    Var *packed = op_linear_rows(t, x, m->qkv_w, 0, m->qkv_w->value.shape[0]);
    step_to(m, t, write_steps(m, t, x, packed), to);
    return read_packed(m, t, packed, residual, to);
}

void lact_write_into(const LactLayer *m, Tape *t, Var *x, LactWeights to) {
    if (!input_fits(m, t, x, 1)) return;
    Var *packed = op_linear_rows(t, x, m->qkv_w, lact_key_channel(m), 2 * m->width);
    step_to(m, t, write_steps(m, t, x, packed), to);
    tape_drop(t, packed);
}
