/* The inner step of every variant composed from ops: the reference of the fused node. The gradient
 * through the inner step is the tape's (vittt.md 3 in closed form). */
#include "ttt/vittt_forms.h"

Var *fast_read_state(Tape *t, Var *q, Var *k, Var *p, Var *w, FastStep s, Var **g_out,
                     Var **u_out) {
    Var *g = op_matmul(t, k, true, p, false, -s.rate, DTYPE_F32);
    const int64_t *n = g->value.shape;
    Var *step = s.raw ? g : op_softnorm(t, g, n[0] * n[1], n[2], n[3]);
    Var *u = op_add(t, w, step, s.ascend ? 1 : -1);
    if (step != g) drop(t, step);
    Var *y = op_matmul(t, q, false, u, false, 1, DTYPE_F32);
    if (g_out) {
        *g_out = g;
    } else {
        drop(t, g);
    }
    if (u_out) {
        *u_out = u;
    } else {
        drop(t, u);
    }
    return y;
}

Var *fast_write_state(Tape *t, Var *k, Var *p, Var *w, FastStep s) {
    Var *g = op_matmul(t, k, true, p, false, -s.rate, DTYPE_F32);
    const int64_t *n = g->value.shape;
    Var *step = s.raw ? g : op_softnorm(t, g, n[0] * n[1], n[2], n[3]);
    Var *u = op_add(t, w, step, s.ascend ? 1 : -1);
    if (step != g) drop(t, step);
    drop(t, g);
    return u;
}

/* Queries, keys and values of one GLU branch, [B,nh,N,d], their scores in PAIRS, and the weights
 * before the last step. */
typedef struct Glu {
    const VitttMixer *m;
    Tape *t;
    Var *q, *k, *v, *scores, *w1, *w2;
    FastStep step;
} Glu;

static bool is_gated(const Glu *b) {
    return b->m->variant.gate == VITTT_GATE_BOTH || b->m->variant.gate == VITTT_GATE_STATIC;
}

static Var *glu_read(const Glu *b, Var *p, Var *w, Var **g, Var **u) {
    if (b->m->form == VITTT_PAIRS)
        return fast_read_pairs(b->t, b->q, b->k, b->scores, p, w, b->step);
    return fast_read_state(b->t, b->q, b->k, p, w, b->step, g, u);
}

/* e with E = -c e: V itself for the dot product, V minus the prediction for the squared errors
 * (vittt.md 10). Returns b->v when there is nothing to subtract. */
static Var *glu_error(const Glu *b, Var *z1, Var *a) {
    if (b->m->variant.loss == VITTT_DOT) return b->v;
    if (b->m->variant.loss == VITTT_MSE_FORK) return op_add(b->t, b->v, a, -1);
    if (!is_gated(b)) return op_add(b->t, b->v, z1, -1);
    Var *prediction = op_mul(b->t, z1, a);
    Var *e = op_add(b->t, b->v, prediction, -1);
    drop(b->t, prediction);
    return e;
}

/* What the keys' features are multiplied with in G1 and G2: P1 = e A (or e, e Z1), P2 = e Z1 D;
 * p2 NULL where W2 is not written. */
typedef struct GluTerms {
    Var *p1, *p2;
} GluTerms;

static GluTerms glu_terms(const Glu *b) {
    Tape *t = b->t;
    const VitttVariant *v = &b->m->variant;
    const bool gated = is_gated(b), both = v->gate == VITTT_GATE_BOTH;
    const bool needs_z1 = both || v->gate == VITTT_GATE_NONE_FORK || v->loss == VITTT_MSE;
    const bool needs_a = gated || v->loss == VITTT_MSE_FORK;
    Var *z1 = needs_z1 ? op_matmul(t, b->k, false, b->w1, false, 1, DTYPE_F32) : NULL;
    Var *z2 = needs_a ? op_matmul(t, b->k, false, b->w2, false, 1, DTYPE_F32) : NULL;
    Var *a = needs_a ? op_silu(t, z2) : NULL;
    Var *e = glu_error(b, z1, a);
    GluTerms out = {e, NULL};
    if (gated) {
        out.p1 = op_mul(t, e, a);
    } else if (v->gate == VITTT_GATE_NONE_FORK) {
        out.p1 = op_mul(t, e, z1);
    }
    drop(t, a);
    if (both) {
        Var *ez = op_mul(t, e, z1), *slope = op_silu_grad(t, z2);
        out.p2 = op_mul(t, ez, slope); /* V Z1 D */
        drop(t, ez);
        drop(t, slope);
    }
    if (e != b->v && e != out.p1) drop(t, e);
    drop(t, z1);
    drop(t, z2);
    return out;
}

static void terms_drop(const Glu *b, GluTerms p) {
    if (p.p1 != b->v) drop(b->t, p.p1);
    drop(b->t, p.p2);
}

/* One inner step that nobody reads: W1 and W2 move. */
static void glu_advance(Glu *b) {
    const GluTerms p = glu_terms(b);
    Var *w1 = fast_write_state(b->t, b->k, p.p1, b->w1, b->step);
    Var *w2 = p.p2 ? fast_write_state(b->t, b->k, p.p2, b->w2, b->step) : b->w2;
    terms_drop(b, p);
    if (b->w1 != b->m->w1) drop(b->t, b->w1);
    if (b->w2 != b->m->w2 && w2 != b->w2) drop(b->t, b->w2);
    b->w1 = w1;
    b->w2 = w2;
}

/* O [B,nh,N,d] of vittt.md 2.1 and its variants. */
static Var *glu_branch(Glu *b) {
    Tape *t = b->t;
    VitttTrace *trace = b->m->trace;
    for (int64_t i = 1; i < b->m->variant.steps; i++) glu_advance(b);
    const GluTerms p = glu_terms(b);
    Var *y = glu_read(b, p.p1, b->w1, trace ? &trace->g1 : NULL, trace ? &trace->u1 : NULL);
    if (is_gated(b)) { /* silu(Q W2'): the gate at read-out; W2' = W2 where the gate is static */
        Var *y2 =
            p.p2 ? glu_read(b, p.p2, b->w2, trace ? &trace->g2 : NULL, trace ? &trace->u2 : NULL)
                 : op_matmul(t, b->q, false, b->w2, false, 1, DTYPE_F32);
        Var *gate = op_silu(t, y2);
        drop(t, y2);
        Var *gated = op_mul(t, y, gate);
        drop(t, y);
        drop(t, gate);
        y = gated;
    }
    terms_drop(b, p);
    if (b->w1 != b->m->w1) drop(t, b->w1);
    if (b->w2 != b->m->w2) drop(t, b->w2);
    return y;
}

/* c = s/N, s = 1/3. */
static float rate_of(int64_t tokens) {
    return (float)(1.0 / (3.0 * (double)tokens));
}

Var *vittt_glu_branch(const VitttMixer *m, Tape *t, Var *q, Var *k, Var *v) {
    if (tape_poison(t)) return tape_poison(t);
    if (m->form == VITTT_PAIRS && m->variant.steps > 1)
        return tape_fail(t,
                         status_set(STATUS_USAGE, "several inner steps have no token-pair form"));
    Glu b = {.m = m,
             .t = t,
             .q = q,
             .k = k,
             .v = v,
             .w1 = m->w1,
             .w2 = m->w2,
             .step = {rate_of(v->value.shape[2]), m->variant.ascend_glu, m->variant.raw_glu}};
    if (m->form == VITTT_PAIRS) b.scores = op_matmul(t, q, false, k, true, 1, DTYPE_F32);
    Var *y = glu_branch(&b);
    drop(t, b.scores);
    return y;
}

/* Depthwise branch in state form (vittt.md 2.2): q, k, v [B,N,d] -> [B,H,W,d]. */
static Var *dwc_state(const VitttMixer *m, Tape *t, Var *q, Var *k, Var *v, int64_t height,
                      int64_t width, FastStep s) {
    const int64_t batch = v->value.shape[0], d = v->value.shape[2];
    const int64_t map[] = {batch, height, width, d};
    Var *g = op_dwconv_taps(t, op_view(t, k, 4, map), op_view(t, v, 4, map), -s.rate);
    Var *step = s.raw ? g : op_softnorm(t, g, batch * d, 9, 1);
    /* G does not depend on the kernel: several steps are one that is as long (fastweight.md 5). */
    const float length = (float)(m->variant.steps > 1 ? m->variant.steps : 1);
    Var *u =
        op_add(t, op_view(t, m->w3, 3, (int64_t[]){1, d, 9}), step, s.ascend ? length : -length);
    if (step != g) drop(t, step);
    Var *o = op_dwconv_apply(t, op_view(t, q, 4, map), u);
    if (m->trace) {
        m->trace->dwc_g = g;
        m->trace->dwc_u = u;
    } else {
        drop(t, g);
        drop(t, u);
    }
    return o;
}

Var *vittt_dwc_branch(const VitttMixer *m, Tape *t, Var *q, Var *k, Var *v, int64_t height,
                      int64_t width) {
    if (tape_poison(t)) return tape_poison(t);
    const FastStep s = {rate_of(height * width), m->variant.ascend_dwc, m->variant.raw_dwc};
    return m->form == VITTT_PAIRS ? dwc_pairs(t, q, k, v, m->w3, height, width, s)
                                  : dwc_state(m, t, q, k, v, height, width, s);
}

/* The branch of packed qkv; never a view, so that the caller can drop it. */
static Var *dwc_of_packed(const VitttMixer *m, Tape *t, Var *packed, int64_t height,
                          int64_t width) {
    const int64_t c = m->width, d = c / m->heads;
    const int64_t tokens[] = {packed->value.shape[0], height * width, d};
    Var *k = op_split_heads(t, packed, 3 * c + d, 1, d);
    Var *q = m->variant.query_is_key ? k : op_split_heads(t, packed, 3 * c, 1, d);
    Var *v = op_split_heads(t, packed, 3 * c + 2 * d, 1, d);
    Var *k3 = op_view(t, k, 3, tokens), *v3 = op_view(t, v, 3, tokens);
    Var *q3 = q == k ? k3 : op_view(t, q, 3, tokens);
    Var *o = vittt_dwc_branch(m, t, q3, k3, v3, height, width);
    if (q != k) drop(t, q);
    drop(t, k);
    drop(t, v);
    return o;
}

/* cat [B,N,C+d] from packed qkv; everything in between is F32. */
Var *vittt_inner_composed(const VitttMixer *m, Tape *t, Var *qkv, int64_t height, int64_t width) {
    const int64_t c = m->width, d = c / m->heads;
    const VitttVariant *v = &m->variant;
    const DType act = qkv->value.dtype;
    Var *packed = act == DTYPE_F32 ? qkv : op_cast(t, qkv, DTYPE_F32);
    Var *k = op_split_heads(t, packed, c, m->heads, d);
    Var *q = v->query_is_key ? k : op_split_heads(t, packed, 0, m->heads, d);
    Var *values = op_split_heads(t, packed, 2 * c, m->heads, d);
    Var *glu = vittt_glu_branch(m, t, q, k, values);
    if (q != k) drop(t, q);
    drop(t, k);
    drop(t, values);
    Var *dwc = dwc_of_packed(m, t, packed, height, width);
    if (packed != qkv) drop(t, packed);
    const int64_t extra[] = {qkv->value.shape[0], 1, height * width, d};
    Var *cat = op_merge_heads(t, glu, m->form == VITTT_PAIRS ? dwc : op_view(t, dwc, 4, extra));
    drop(t, glu);
    drop(t, dwc);
    if (act == DTYPE_F32) return cat;
    Var *rounded = op_cast(t, cat, act);
    drop(t, cat);
    return rounded;
}
