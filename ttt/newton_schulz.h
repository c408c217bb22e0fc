/* Newton-Schulz orthogonalisation of inner gradients (lact_nvs.md 4.3, 5.3; fastweight.md 4.3). */
#ifndef TTV_TTT_NEWTON_SCHULZ_H
#define TTV_TTT_NEWTON_SCHULZ_H

#include "nn/ops.h"

#define NEWTON_SCHULZ_STEPS 5

/* `steps` times the one triple of LaCT-NVS (3.4445, -4.7750, 2.0315): a checkpoint is tied to it.
 * bf16: products may round their operands, which puts U off by 2 to 4 % (lact_nvs.md 4.4). */
NewtonSchulz newton_schulz_fixed(int steps, bool bf16);

/* g F32 or BF16 [..., r, c], each matrix for itself: X = G/(|G|_F + 1e-7), then `steps` times with
 * A = XX', X <- 3.4445 X + (-4.7750 A + 2.0315 AA) X. The Gram matrix is the smaller of XX' and
 * X'X; the result is the same. With 0 steps only the division remains. F32, one node; products are
 * of BF16 operands when the tape's activations are BF16. g stays the caller's. For other triples or
 * a BF16 result: op_newton_schulz. */
Var *newton_schulz(Tape *t, Var *g, int steps);

/* The same of F32 from single ops: what the node is tested against. */
Var *newton_schulz_composed(Tape *t, Var *g, NewtonSchulz s);

#endif
