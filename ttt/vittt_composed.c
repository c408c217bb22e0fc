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

/* Queries, keys and values of one GLU branch, [B,nh,N,d], and their scores in PAIRS. */
typedef struct Glu {
    const VitttMixer *m;
    Tape *t;
    Var *q, *k, *v, *scores;
    FastStep step;
} Glu;

static Var *glu_read(const Glu *b, Var *p, Var *w, Var **g, Var **u) {
    if (b->m->form == VITTT_PAIRS)
        return fast_read_pairs(b->t, b->q, b->k, b->scores, p, w, b->step);
    return fast_read_state(b->t, b->q, b->k, p, w, b->step, g, u);
}

/* e with E = -c e: V itself for the dot product, V minus the prediction for the squared errors
 * (vittt.md 10). Returns b->v when there is nothing to subtract. */
static Var *glu_error(const Glu *b, Var *z1, Var *a, bool gated) {
    if (b->m->variant.loss == VITTT_DOT) return b->v;
    if (b->m->variant.loss == VITTT_MSE_FORK) return op_add(b->t, b->v, a, -1);
    if (!gated) return op_add(b->t, b->v, z1, -1);
    Var *prediction = op_mul(b->t, z1, a);
    Var *e = op_add(b->t, b->v, prediction, -1);
    drop(b->t, prediction);
    return e;
}

/* silu(Q W2'): the gate at read-out; W2' = W2 where the gate is static. */
static Var *glu_gate(const Glu *b, Var *e, Var *z1, Var *z2) {
    Tape *t = b->t;
    VitttTrace *trace = b->m->trace;
    Var *y2;
    if (b->m->variant.gate == VITTT_GATE_BOTH) {
        Var *ez = op_mul(t, e, z1);
        Var *slope = op_silu_grad(t, z2);
        Var *p2 = op_mul(t, ez, slope); /* V Z1 D */
        drop(t, ez);
        drop(t, slope);
        y2 = glu_read(b, p2, b->m->w2, trace ? &trace->g2 : NULL, trace ? &trace->u2 : NULL);
        drop(t, p2);
    } else {
        y2 = op_matmul(t, b->q, false, b->m->w2, false, 1, DTYPE_F32);
    }
    Var *gate = op_silu(t, y2);
    drop(t, y2);
    return gate;
}

/* O [B,nh,N,d] of vittt.md 2.1 and its variants. */
static Var *glu_branch(const Glu *b) {
    Tape *t = b->t;
    const VitttVariant *v = &b->m->variant;
    VitttTrace *trace = b->m->trace;
    const bool gated = v->gate == VITTT_GATE_BOTH || v->gate == VITTT_GATE_STATIC;
    const bool needs_z1 =
        v->gate == VITTT_GATE_BOTH || v->gate == VITTT_GATE_NONE_FORK || v->loss == VITTT_MSE;
    const bool needs_a = gated || v->loss == VITTT_MSE_FORK;
    Var *z1 = needs_z1 ? op_matmul(t, b->k, false, b->m->w1, false, 1, DTYPE_F32) : NULL;
    Var *z2 = needs_a ? op_matmul(t, b->k, false, b->m->w2, false, 1, DTYPE_F32) : NULL;
    Var *a = needs_a ? op_silu(t, z2) : NULL;
    Var *e = glu_error(b, z1, a, gated);
    Var *p1 = e;
    if (gated) {
        p1 = op_mul(t, e, a);
    } else if (v->gate == VITTT_GATE_NONE_FORK) {
        p1 = op_mul(t, e, z1);
    }
    drop(t, a);
    Var *y = glu_read(b, p1, b->m->w1, trace ? &trace->g1 : NULL, trace ? &trace->u1 : NULL);
    if (p1 != e) drop(t, p1);
    if (gated) {
        Var *gate = glu_gate(b, e, z1, z2);
        Var *gated_y = op_mul(t, y, gate);
        drop(t, y);
        drop(t, gate);
        y = gated_y;
    }
    if (e != b->v) drop(t, e);
    drop(t, z1);
    drop(t, z2);
    return y;
}

/* Depthwise branch in state form (vittt.md 2.2): q, k, v [B,N,d] -> [B,H,W,d]. */
static Var *dwc_state(const VitttMixer *m, Tape *t, Var *q, Var *k, Var *v, int64_t height,
                      int64_t width, FastStep s) {
    const int64_t batch = v->value.shape[0], d = v->value.shape[2];
    const int64_t map[] = {batch, height, width, d};
    Var *g = op_dwconv_taps(t, op_view(t, k, 4, map), op_view(t, v, 4, map), -s.rate);
    Var *step = s.raw ? g : op_softnorm(t, g, batch * d, 9, 1);
    Var *u = op_add(t, op_view(t, m->w3, 3, (int64_t[]){1, d, 9}), step, s.ascend ? 1 : -1);
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

/* [B,H,W,d], or [B,d,N,1] in PAIRS; never a view, so that the caller can drop it. */
static Var *dwc_branch(const VitttMixer *m, Tape *t, Var *packed, int64_t height, int64_t width,
                       FastStep s) {
    const int64_t c = m->width, d = c / m->heads;
    const int64_t tokens[] = {packed->value.shape[0], height * width, d};
    Var *k = op_split_heads(t, packed, 3 * c + d, 1, d);
    Var *q = m->variant.query_is_key ? k : op_split_heads(t, packed, 3 * c, 1, d);
    Var *v = op_split_heads(t, packed, 3 * c + 2 * d, 1, d);
    Var *k3 = op_view(t, k, 3, tokens), *v3 = op_view(t, v, 3, tokens);
    Var *q3 = q == k ? k3 : op_view(t, q, 3, tokens);
    Var *o = m->form == VITTT_PAIRS ? dwc_pairs(t, q3, k3, v3, m->w3, height, width, s)
                                    : dwc_state(m, t, q3, k3, v3, height, width, s);
    if (q != k) drop(t, q);
    drop(t, k);
    drop(t, v);
    return o;
}

/* cat [B,N,C+d] from packed qkv; everything in between is F32. */
Var *vittt_inner_composed(const VitttMixer *m, Tape *t, Var *qkv, int64_t height, int64_t width) {
    const int64_t c = m->width, d = c / m->heads;
    const float rate = (float)(1.0 / (3.0 * (double)(height * width)));
    const VitttVariant *v = &m->variant;
    if (m->trace) {
        *m->trace = (VitttTrace){0};
    }
    const DType act = qkv->value.dtype;
    Var *packed = act == DTYPE_F32 ? qkv : op_cast(t, qkv, DTYPE_F32);
    Glu b = {.m = m, .t = t, .step = {rate, v->ascend_glu, v->raw_glu}};
    b.k = op_split_heads(t, packed, c, m->heads, d);
    b.q = v->query_is_key ? b.k : op_split_heads(t, packed, 0, m->heads, d);
    b.v = op_split_heads(t, packed, 2 * c, m->heads, d);
    if (m->form == VITTT_PAIRS) b.scores = op_matmul(t, b.q, false, b.k, true, 1, DTYPE_F32);
    Var *glu = glu_branch(&b);
    drop(t, b.scores);
    if (b.q != b.k) drop(t, b.q);
    drop(t, b.k);
    drop(t, b.v);
    Var *dwc = dwc_branch(m, t, packed, height, width, (FastStep){rate, v->ascend_dwc, v->raw_dwc});
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
