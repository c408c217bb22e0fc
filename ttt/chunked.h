/* LaCT over a sequence of chunks (fastweight.md 4): SwiGLU or linear fast weights, rates per token,
 * momentum, Newton-Schulz and weight norm, each a switch. The vision layer of ttt/lact.h is the
 * full-set case of this one, with projections around it.
 *
 * Two equal forms: RECURRENT runs chunk after chunk; PARALLEL, where only W1 is written from a
 * gradient that does not depend on W, makes all chunks' gradients at once, then the momentum and
 * the sum of the updates as prefixes over the chunks (4.4).
 *
 * Tokens are F32 or BF16 (products then have BF16 operands); states are F32. Composed from ops,
 * which have gradients; where nothing is recorded, fused (chunked_fused.h): the same sums with
 * fewer passes, steps rounded to BF16 where tokens and Newton-Schulz are BF16.
 */
#ifndef TTV_TTT_CHUNKED_H
#define TTV_TTT_CHUNKED_H

#include "nn/ops.h"

typedef enum ChunkedForm { CHUNKED_RECURRENT, CHUNKED_PARALLEL } ChunkedForm;

typedef struct ChunkedRule {
    bool static_gates;   /* W0 and W2 are never written (variants 1 and up) */
    bool no_weight_norm; /* 2 and up */
    bool linear;         /* phi(x) = x, W0 and W2 unused (3 and up) */
    bool no_muon;        /* the gradient itself is the step (6) */
    bool detach_norm;    /* no gradient through the norms that weights are kept at */
    bool inclusive; /* tokens read behind their own chunk's write (vision); otherwise before it */
    bool ascend;
    bool composed; /* the reference form, also where there is a fused one */
    int64_t chunk; /* tokens; 0: all */
    int64_t steps; /* inner steps per chunk, >= 1 */
    NewtonSchulz newton_schulz;
} ChunkedRule;

/* The cumulative variants 0 to 6 of 4.2. Rates and momentum are the caller's: from variant 4 on
 * without rates, from 5 on without momentum. STATUS_USAGE for other numbers. */
Status chunked_variant(int variant, ChunkedRule *out);

typedef struct ChunkedTokens {
    Var *q, *k, *v; /* [B,H,N,dk], [B,H,N,dk], [B,H,N,dv], F32 or BF16 */
    Var *rate[3];   /* F32 [B,H,N] of W0, W1, W2; NULL: 1 */
    Var *momentum;  /* F32 [B,H,N], whose mean over a chunk is its factor; NULL: none */
    Var *weight[3]; /* F32 [B or 1,H,dk,dh], [B or 1,H,dh,dv], [B or 1,H,dk,dh]; linear: W1 alone */
    Var *update[3]; /* the momentum's state, [B,H,...] as the weights; NULL: 0 */
    Var *initial[3]; /* whose column norms the weights keep; NULL: those of `weight` */
} ChunkedTokens;

/* After the last chunk, the caller's to drop; NULL where nothing is written. */
typedef struct ChunkedState {
    Var *weight[3], *update[3];
} ChunkedState;

/* -> [B,H,N,dv] in the dtype of v. *end may be NULL. STATUS_USAGE: PARALLEL where a chunk's
 * gradient depends on the weights (W0, W2 written; weight norm; several steps), shapes that do not
 * fit. */
Var *chunked_forward(const ChunkedRule *rule, ChunkedForm form, Tape *t, const ChunkedTokens *in,
                     ChunkedState *end);
bool chunked_has_parallel(const ChunkedRule *rule);

/* Weights of the chunks' updates in a token-pair reading of W1 without Newton-Schulz (4.4): C[i,j],
 * of update j in what chunk i reads, = sum over l <= i (l < i exclusive) of prod_{j<m<=l} alpha_m.
 * alpha [chunks] and out [chunks, chunks] on the host. */
void chunked_pair_weights(const double *alpha, int64_t chunks, bool inclusive, double *out);

#endif
