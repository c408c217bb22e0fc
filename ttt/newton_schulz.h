/* Newton-Schulz orthogonalisation (lact_nvs.md 4.3, 5.3), from ops: the gradient is the tape's. */
#ifndef TTV_TTT_NEWTON_SCHULZ_H
#define TTV_TTT_NEWTON_SCHULZ_H

#include "nn/ops.h"

#define NEWTON_SCHULZ_STEPS 5

/* g F32 [..., r, c], each matrix for itself: X = G/(|G|_F + 1e-7), then `steps` times with
 * A = XX', X <- 3.4445 X + (-4.7750 A + 2.0315 AA) X. The Gram matrix is the smaller of XX' and
 * X'X; the result is the same. With 0 steps only the division remains. g stays the caller's. */
Var *newton_schulz(Tape *t, Var *g, int steps);

#endif
