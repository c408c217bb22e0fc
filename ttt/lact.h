/* The LaCT fast-weight layer, bidirectional (lact_nvs.md 3.3, 4, 9).
 *
 * n tokens write: one gradient step on the SwiGLU fast weights of each sample and head, with rates
 * per token, Newton-Schulz and weight norm. m tokens read the result.
 *
 * Two forms of one layer. Fused (nn/ops_lact.c): writing, step, reading and the way out are a node
 * each. With BF16 activations all operands and results of products are BF16, inner gradients and
 * their Newton-Schulz steps too (lact_nvs.md 4.4); rates, W + U and all norms are F32. Composed
 * from small ops: the reference, in which keys, values and everything up to o_norm are F32; the
 * linear variants have this form alone.
 *
 * Notation: d width, H heads, e = d/H, h = e * inter_multi.
 */
#ifndef TTV_TTT_LACT_H
#define TTV_TTT_LACT_H

#include "nn/ops.h"
#include "nn/params.h"
#include "ttt/query_swap.h"

/* Ablations of lact_nvs.md 9; all zero is the base layer. */
typedef struct LactVariant {
    bool only_w1;        /* V1: W0 and W2 are never written */
    bool no_weight_norm; /* V2 */
    bool linear;         /* V3: phi(x) = x, W0 and W2 unused; needs h = e */
    bool unit_rate;      /* V4 (= V5): every token writes with rate 1 */
    bool no_muon;        /* V6: the gradient itself is the step */
    bool ascend;         /* W - NS(G) */
    bool query_is_key;   /* o = f_W'(k): the projection has no query rows */
} LactVariant;

/* By the golden file's names: base, V1 to V6, ascent, query_is_key. STATUS_USAGE when unknown. */
Status lact_variant_by_name(const char *name, LactVariant *out);
/* i-th name, NULL past the end. */
const char *lact_variant_name(int i);

/* Fast weights, in either form or both; B = 1 where all samples share one. Composed: F32
 * W0 [B,H,e,h], W1 [B,H,h,e], W2 [B,H,e,h]. Fused: [W0 | W2] and W1 of the tape's activations. What
 * is not there is NULL. */
typedef struct LactFast {
    Var *w[3];
    LactWeights fused;
} LactFast;

/* What one lact_forward() saw, for study: a copy of x, f_W'(q) before o_norm (of lact_read's form),
 * how many tokens wrote, and a copy of what they wrote. Where writing and reading are two calls, x
 * has the tokens that wrote and `read` those that read; NULL otherwise. Each lives as long as the
 * tape's other values. */
typedef struct LactTrace {
    Var *x, *read, *o;
    LactFast fast;
    int64_t writing;
} LactTrace;

/* Where Newton-Schulz of a writing layer runs: whole inner gradients; in the span of the tokens
 * (nn/ops_lact_span.c) where that is less work, in BF16 alone; or always there, which takes no more
 * tokens than e. */
typedef enum LactSpan { LACT_SPAN_NEVER, LACT_SPAN_AUTO, LACT_SPAN_ALWAYS } LactSpan;

typedef struct LactLayer {
    int64_t width, heads, inter_multi;
    Var *w[3], *qkv_w, *proj_w, *rate_w, *rate_b, *norm_w;
    LactVariant variant;
    bool composed; /* the reference form, also where there is a fused one */
    LactSpan span;
    int64_t steps;         /* inner steps; 0: 1. More than one has the composed form alone */
    LactTrace *trace;      /* optional, the caller's */
    const QuerySwap *swap; /* optional, the caller's, not QUERY_KEYS, which is variant.query_is_key:
                              other queries; the composed form alone */
} LactLayer;

/* Registers w0, w1, w2, to_qkv.weight, c_proj.weight, lr_fc.weight, lr_fc.bias and o_norm.weight
 * behind `prefix`, with the start values of lact_nvs.md 6; `proj_scale` is the standard deviation
 * of c_proj. STATUS_USAGE when `heads` does not divide `width` or the variant wants other sizes. */
Status lact_register(LactLayer *m, Params *p, const char *prefix, int64_t width, int64_t heads,
                     int64_t inter_multi, LactVariant variant, float proj_scale);

/* x [B,m,d] -> [B,m,d]: the first `writing` tokens write, then all read; plus `residual` [B,m,d]
 * (may be NULL), which stays the caller's. *fast (may be NULL) receives W0', W1', W2', the caller's
 * to drop. */
Var *lact_forward(const LactLayer *m, Tape *t, Var *x, int64_t writing, Var *residual,
                  LactFast *fast);
/* lact_forward of layernorm(x; w), with x as residual: while recording, on a tape that is not
 * lavish, neither the normed rows nor a copy of the writing ones but their norm is kept. */
typedef struct LactNorm {
    Var *w; /* F32 [d] */
    float eps;
} LactNorm;
Var *lact_forward_normed(const LactLayer *m, Tape *t, Var *x, LactNorm norm, int64_t writing,
                         LactFast *fast);
/* The same in two parts: all tokens of x write and none reads; and reading alone, where without
 * recording only queries are computed. x stays the caller's. */
LactFast lact_write(const LactLayer *m, Tape *t, Var *x);
Var *lact_read(const LactLayer *m, Tape *t, Var *x, Var *residual, LactFast fast);
/* lact_forward of tokens that all write, and lact_write, with W' going to `to`, [W0' | W2']
 * [B,H,e,2h] and W1' [B,H,h,e] in the dtype of x, in memory of the caller's. Only where
 * lact_into_fits: the fused form that writes all three, nothing recorded or traced. */
bool lact_into_fits(const LactLayer *m, const Tape *t);
Var *lact_into(const LactLayer *m, Tape *t, Var *x, Var *residual, LactWeights to);
void lact_write_into(const LactLayer *m, Tape *t, Var *x, LactWeights to);
/* What lact_read does, as weights of a ViewBlock (kernels/kernels.h) and its two offsets; false
 * when it is more than that: other forms, replaced queries, a trace. */
bool lact_read_weights(const LactLayer *m, LactFast fast, ViewBlock *block, ViewForm *form);
/* Whether the steps of `writing` tokens in each of `batch` samples are made in their span. */
bool lact_writes_in_span(const LactLayer *m, DType act, int64_t batch, int64_t writing);
/* tape_drop for all of it. */
void lact_fast_drop(Tape *t, LactFast fast);

#endif
