/* Private to ttt/: the one step in which the COMPOSED and the PAIRS form of a branch differ.
 *
 * Every branch writes a linear map with keys K and values P and reads it with queries Q:
 *
 *     G = -c K'P,   W' = W -+ softnorm(G),   Y = Q W'
 *
 * The state form builds W' (O(N f m)); the pair form never does: Y = Q W +- c r * (Q K') P
 * (O(N^2)). For the GLU branch a feature is a channel of the head and P is V*A or V*Z1*D; for the
 * depthwise branch, per channel, the 9 features are the neighbours of a pixel and P is V itself
 * (vittt.md 2.4).
 */
#ifndef TTV_TTT_VITTT_FORMS_H
#define TTV_TTT_VITTT_FORMS_H

#include "ttt/vittt_mixer.h"

/* How a branch steps. */
typedef struct FastStep {
    float rate;  /* c = s/N = 1/(3N) */
    bool ascend; /* W' = W + softnorm(G) */
    bool raw;    /* no soft norm */
} FastStep;

/* q, k F32 [B,h,N,f], p F32 [B,h,N,m], w F32 [1,h,f,m] -> Y F32 [B,h,N,m]. *g and *u (may be NULL)
 * receive G and W'; without them both are dropped. */
Var *fast_read_state(Tape *t, Var *q, Var *k, Var *p, Var *w, FastStep s, Var **g, Var **u);

/* W' alone. */
Var *fast_write_state(Tape *t, Var *k, Var *p, Var *w, FastStep s);

/* The same Y through `scores` = Q K' [B,h,N,N]; no W' exists. */
Var *fast_read_pairs(Tape *t, Var *q, Var *k, Var *scores, Var *p, Var *w, FastStep s);

/* Depthwise branch in pair form: q, k, v F32 [B,N,d] maps, w3 [d,1,3,3] -> F32 [B,d,N,1]. */
Var *dwc_pairs(Tape *t, Var *q, Var *k, Var *v, Var *w3, int64_t height, int64_t width, FastStep s);

/* One GLU branch, q, k, v F32 [B,h,N,d] -> O [B,h,N,d], and one depthwise branch, q, k, v F32
 * [B,N,d] -> [B,H,W,d] ([B,d,N,1] in PAIRS), COMPOSED or PAIRS by m->form, with the weights of m
 * (w1, w2 and w3) and its variant. */
Var *vittt_glu_branch(const VitttMixer *m, Tape *t, Var *q, Var *k, Var *v);
Var *vittt_dwc_branch(const VitttMixer *m, Tape *t, Var *q, Var *k, Var *v, int64_t height,
                      int64_t width);

/* cat [B,N,C+d] in the dtype of the packed qkv [B,N,3C+3d], both branches, COMPOSED or PAIRS by
 * m->form. */
Var *vittt_inner_composed(const VitttMixer *m, Tape *t, Var *qkv, int64_t height, int64_t width);

/* Gives v back unless it is NULL. */
static inline void drop(Tape *t, Var *v) {
    if (v) {
        tape_drop(t, v);
    }
}

#endif
