#include "ttt/newton_schulz.h"

#include "nn/ops_check.h"

#define FROBENIUS_OFFSET 1e-7f

/* The quintic of Muon: one triple for all steps (a checkpoint is tied to it). */
static const float linear = 3.4445f, cubic = -4.7750f, quintic = 2.0315f;

/* One step; x ends here. `tall`: more rows than columns, so the Gram matrix stands on the right. */
static Var *iterate(Tape *t, Var *x, bool tall) {
    Var *gram = op_matmul(t, x, tall, x, !tall, 1, DTYPE_F32);
    Var *square = op_matmul(t, gram, false, gram, false, quintic, DTYPE_F32);
    Var *b = op_add(t, square, gram, cubic);
    tape_drop(t, square);
    tape_drop(t, gram);
    Var *bent = tall ? op_matmul(t, x, false, b, false, 1, DTYPE_F32)
                     : op_matmul(t, b, false, x, false, 1, DTYPE_F32);
    tape_drop(t, b);
    Var *next = op_add(t, bent, x, linear);
    tape_drop(t, bent);
    tape_drop(t, x);
    return next;
}

Var *newton_schulz(Tape *t, Var *g, int steps) {
    if (!op_ready(t, "newton_schulz", 1, &g)) return tape_poison(t);
    const Tensor v = g->value;
    if (v.rank < 2 || v.dtype != DTYPE_F32)
        return op_refuse(t, "newton_schulz", 1, &g, "F32 matrices [..., r, c]");
    const int64_t rows = v.shape[v.rank - 2], columns = v.shape[v.rank - 1];
    const int64_t one = rows * columns;
    Var *x = op_normalise(t, g, tensor_count(v) / one, one, 1, FROBENIUS_OFFSET);
    for (int i = 0; i < steps; i++) x = iterate(t, x, rows > columns);
    return x;
}
