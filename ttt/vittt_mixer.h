/* The ViTTT token mixer (vittt.md sections 2, 3, 10): a SwiGLU-like fast-weight branch per head and one
 * depthwise 3x3 fast-weight branch, both written by a single full-batch gradient step.
 *
 * Three equal forms: FUSED (one node, both backends' own kernels), COMPOSED (from ops: the reference, and
 * the only one for the ablation variants), PAIRS (the linear-attention, token-pair form of 2.4: O(N^2), for
 * proof and study).
 */
#ifndef TTV_TTT_VITTT_MIXER_H
#define TTV_TTT_VITTT_MIXER_H

#include "nn/ops.h"
#include "nn/params.h"

typedef enum VitttForm { VITTT_FUSED, VITTT_COMPOSED, VITTT_PAIRS } VitttForm;

typedef enum VitttLoss { VITTT_DOT, VITTT_MSE, VITTT_MSE_FORK } VitttLoss;
typedef enum VitttGate {
    VITTT_GATE_BOTH,         /* base: W1 and W2 are updated */
    VITTT_GATE_STATIC,       /* V1: only W1 is updated, the gate stays W2 */
    VITTT_GATE_NONE,         /* V3 of the paper: O = Q W1', G1 = K'E */
    VITTT_GATE_NONE_FORK,    /* V3 of the authors' fork: G1 = K'(E * K W1) */
} VitttGate;

/* Ablations of vittt.md section 10; all zero is the base mixer. */
typedef struct VitttVariant {
    VitttLoss loss;
    VitttGate gate;
    bool ascend_glu, ascend_dwc;         /* gradient ascent */
    bool query_is_key;
    bool raw_glu, raw_dwc;               /* no soft norm */
} VitttVariant;

/* By the golden file's names: base, ga_fork, ga_both, q_is_k, v1_only_w1, v3_linear_paper, v3_linear_fork,
 * v6_linattn_glu_only, v6_linattn_both, v6_fork_only_w1_noclip, mse, mse_fork. STATUS_USAGE when unknown. */
Status vittt_variant_by_name(const char *name, VitttVariant *out);
/* i-th name, NULL past the end. */
const char *vittt_variant_name(int i);

typedef struct VitttMixer {
    int64_t width, heads; /* C, nh; C % nh == 0 */
    Var *w1, *w2, *w3, *qkv_w, *qkv_b, *proj_w, *proj_b;
    VitttVariant variant;
    VitttForm form; /* FUSED falls back to COMPOSED for variants other than the base */
} VitttMixer;

/* Registers the mixer's parameters as <prefix>qkv.weight etc., in the published order (w1 w2 w3 qkv proj). */
Status vittt_mixer_register(VitttMixer *m, Params *p, const char *prefix, int64_t width, int64_t heads);

/* x [B, H*W, C] -> [B, H*W, C]. */
Var *vittt_mixer_forward(const VitttMixer *m, Tape *t, Var *x, int64_t height, int64_t width);

#endif
