/* Private to ttt/: the chunked layer without gradients, on the kernels' own slots. Tensors are of
 * the step arena; G = B*H groups lie one behind the other. */
#ifndef TTV_TTT_CHUNKED_FUSED_H
#define TTV_TTT_CHUNKED_FUSED_H

#include "ttt/chunked.h"

typedef struct Fused {
    const ChunkedRule *rule;
    Tape *t;
    Device *d;
    const ChunkedTokens *in;
    DType act, steps; /* of operands; of inner gradients and steps */
    int64_t batch, heads, groups, tokens;
    int64_t dk, dv, hidden;
    bool gates;  /* W0 and W2 are written */
    bool ends;   /* nobody wants the states after the parallel chunks */
    int written; /* matrices: 3 or 1 */
    /* The state. Weights F32 and as operands: [W0|W2] [B or 1,H,dk,2h], and W1 (recurrent). Until
     * the first step they are the caller's, afterwards [B,H,..] in `own`; P of all matrices one
     * behind the other, W0, W2, W1. */
    Tensor weight[3], own[3], update, own_update, w02, w1, own_w02, own_w1;
    Tensor kept[3]; /* column norms */
} Fused;

/* Whether the layer can run so: nothing is recorded, and sizes suit. */
bool chunked_fused_fits(const ChunkedRule *rule, const Tape *t, const ChunkedTokens *in);
/* As chunked_forward, of inputs that were checked. */
Var *chunked_fused(const ChunkedRule *rule, ChunkedForm form, Tape *t, const ChunkedTokens *in,
                   ChunkedState *end);

/* ---- between chunked_fused.c and chunked_fused_recur.c ---- */

Status fused_take(const Fused *f, DType dtype, int64_t a, int64_t b, int64_t c, int64_t d,
                  Tensor *out);
/* What W1 is multiplied by: phi of x [b,H,n,dk] times rate [b,H,n] (none: 1), in *out; which is x
 * itself where nothing is to be done, otherwise the caller's to give back. */
Status fused_features(const Fused *f, Tensor x, Tensor rate, Tensor *out);
/* W1 as the products' operand. */
Status fused_w1(Fused *f);
/* Tokens [first, first + chunks * n), chunk after chunk, into y [G,N,dv]. */
Status fused_recur(Fused *f, int64_t first, int64_t chunks, int64_t n, Tensor y);

#endif
