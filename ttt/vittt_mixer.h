/* The ViTTT token mixer (vittt.md sections 2, 3, 10): a SwiGLU-like fast-weight branch per head and
 * one depthwise 3x3 fast-weight branch, both written by a single full-batch gradient step.
 *
 * Three equal forms: FUSED (one node, both backends' own kernels), COMPOSED (from ops: the
 * reference, and the one that every ablation variant trains in), PAIRS (the linear-attention,
 * token-pair form of 2.4: O(N^2), for proof and study; all variants too).
 *
 * With BF16 activations COMPOSED and PAIRS lift q, k, v to F32 before the inner step, and FUSED
 * keeps W' in F32 inside its kernel: the inner update never passes through BF16 (vittt.md 9).
 */
#ifndef TTV_TTT_VITTT_MIXER_H
#define TTV_TTT_VITTT_MIXER_H

#include "nn/ops.h"
#include "nn/params.h"
#include "ttt/query_swap.h"

typedef enum VitttForm { VITTT_FUSED, VITTT_COMPOSED, VITTT_PAIRS } VitttForm;

typedef enum VitttLoss { VITTT_DOT, VITTT_MSE, VITTT_MSE_FORK } VitttLoss;
typedef enum VitttGate {
    VITTT_GATE_BOTH,      /* base: W1 and W2 are updated */
    VITTT_GATE_STATIC,    /* V1: only W1 is updated, the gate stays W2 */
    VITTT_GATE_NONE,      /* V3 of the paper: O = Q W1', G1 = K'E */
    VITTT_GATE_NONE_FORK, /* V3 of the authors' fork: G1 = K'(E * K W1) */
} VitttGate;

/* Ablations of vittt.md section 10; all zero is the base mixer. */
typedef struct VitttVariant {
    VitttLoss loss;
    VitttGate gate;
    bool ascend_glu, ascend_dwc; /* gradient ascent */
    bool query_is_key;
    bool raw_glu, raw_dwc; /* no soft norm */
    int64_t steps; /* inner steps; 0: 1. More than one in COMPOSED alone: the token-pair form of a
                      step needs a gradient that earlier steps did not move */
} VitttVariant;

/* By the golden file's names: base, ga_fork, ga_both, q_is_k, v1_only_w1, v3_linear_paper,
 * v3_linear_fork, v6_linattn_glu_only, v6_linattn_both, v6_fork_only_w1_noclip, mse, mse_fork.
 * STATUS_USAGE when unknown. */
Status vittt_variant_by_name(const char *name, VitttVariant *out);
/* i-th name, NULL past the end. */
const char *vittt_variant_name(int i);
bool vittt_variant_is_base(VitttVariant v);

/* What one forward pass saw and, COMPOSED, wrote, for study and tests; each lives as long as the
 * tape's other values (look before tape_backward). NULL where the form or variant has none. */
typedef struct VitttTrace {
    Var *qkv, *cat;         /* packed projection [B,N,3C+3d]; what both branches read [B,N,C+d] */
    Var *g1, *g2, *u1, *u2; /* raw inner gradients G and trained weights W', F32 [B,nh,d,d] */
    Var *dwc_g, *dwc_u;     /* the same of the depthwise branch, F32 [B,d,9] */
} VitttTrace;

typedef struct VitttMixer {
    int64_t width, heads; /* C, nh; C % nh == 0 */
    Var *w1, *w2, *w3, *qkv_w, *qkv_b, *proj_w, *proj_b;
    VitttVariant variant;
    VitttForm form;        /* FUSED falls back to COMPOSED for variants other than the base */
    VitttTrace *trace;     /* optional, the caller's: filled by each pass */
    const QuerySwap *swap; /* optional, the caller's: other queries in both branches */
    Var *rope;             /* optional: rotary positions [H,W,C/2,2] of the GLU branch's q and k */
} VitttMixer;

/* Registers the mixer's parameters as <prefix>qkv.weight etc., in the published order (w1 w2 w3 qkv
 * proj), with the initial values of vittt.md 6. The other fields of *m are set to the base mixer,
 * FUSED. STATUS_USAGE when `heads` does not divide `width`. */
Status vittt_mixer_register(VitttMixer *m, Params *p, const char *prefix, int64_t width,
                            int64_t heads);

/* x [B, H*W, C] -> [B, H*W, C]. */
Var *vittt_mixer_forward(const VitttMixer *m, Tape *t, Var *x, int64_t height, int64_t width);
/* residual + scale[b] of that; scale: F32 [B] device tensor or none. */
Var *vittt_mixer_join(const VitttMixer *m, Tape *t, Var *x, int64_t height, int64_t width,
                      Var *residual, Tensor scale);
/* residual + mixer, in passes that record nothing, with layer norms within products (nn/ops.h):
 * the one in front when `qkv` is set, which is qkv.weight and qkv.bias with it folded in (x then
 * comes as it is, with its `stats`); the statistics of the result for the one behind when
 * `out_stats` is set. */
typedef struct VitttFolds {
    const NormFold *qkv;
    Var *stats, **out_stats;
    float eps; /* of the norm behind */
} VitttFolds;
Var *vittt_mixer_join_folded(const VitttMixer *m, Tape *t, Var *x, int64_t height, int64_t width,
                             Var *residual, const VitttFolds *f);

#endif
