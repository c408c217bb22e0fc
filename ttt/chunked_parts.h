/* Private to ttt/: one chunk of the chunked layer, and what both of its forms share. */
#ifndef TTV_TTT_CHUNKED_PARTS_H
#define TTV_TTT_CHUNKED_PARTS_H

#include "ttt/chunked.h"
#include "ttt/scope.h"

/* Tokens as runs: q, k, v [B*H,N,.], scalars [B*H,N,1]. */
typedef struct ChunkedRun {
    const ChunkedRule *rule;
    Tape *t;
    Scope *s;
    DType act; /* of operands */
    int64_t batch, heads, tokens;
    Var *q, *k, *v, *rate[3], *momentum;
    Var *initial[3]; /* column norms to keep: [1 or B,H,1,columns] */
} ChunkedRun;

/* Fast weights and momentum while chunks pass; NULL where there is none. */
typedef struct ChunkedNow {
    Var *weight[3], *update[3];
} ChunkedNow;

/* phi(x) of x [..,n,dk] with w0, w2 [..,dk,dh] of the operands' dtype. */
Var *chunked_phi(const ChunkedRun *r, Var *x, Var *w0, Var *w2);
/* x in the dtype of operands. */
Var *chunked_operand(const ChunkedRun *r, Var *x);
/* w / (|w|_col + 1e-5) |initial|_col of w [B or 1,H,r,c], which ends with the scope; gradients go
 * to both (4.1). */
Var *chunked_weight_norm(const ChunkedRun *r, Var *w, Var *initial);
/* Runs chunks from token `first` on, appending to `all` (NULL: none yet). */
Var *chunked_recur(const ChunkedRun *r, int64_t first, Var *all, ChunkedNow *now);
/* All whole chunks at once; the rest recurs. */
Var *chunked_scan(const ChunkedRun *r, ChunkedNow *now);

#endif
