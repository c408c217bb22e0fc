#include "ttt/newton_schulz.h"

#include "nn/ops_check.h"

#define FROBENIUS_OFFSET 1e-7f

NewtonSchulz newton_schulz_fixed(int steps, bool bf16) {
    NewtonSchulz s = {.steps = steps, .bf16 = bf16};
    for (int i = 0; i < NEWTON_SCHULZ_MOST; i++) {
        s.triple[i][0] = 3.4445f;
        s.triple[i][1] = -4.7750f;
        s.triple[i][2] = 2.0315f;
    }
    return s;
}

Var *newton_schulz(Tape *t, Var *g, int steps) {
    const bool bf16 = tape_act(t) == DTYPE_BF16;
    return op_newton_schulz(t, g, newton_schulz_fixed(steps, bf16), DTYPE_F32);
}

/* One step; x ends here. `tall`: more rows than columns, so the Gram matrix stands on the right. */
static Var *iterate(Tape *t, Var *x, bool tall, const float *triple) {
    Var *gram = op_matmul(t, x, tall, x, !tall, 1, DTYPE_F32);
    Var *square = op_matmul(t, gram, false, gram, false, triple[2], DTYPE_F32);
    Var *b = op_add(t, square, gram, triple[1]);
    tape_drop(t, square);
    tape_drop(t, gram);
    Var *bent = tall ? op_matmul(t, x, false, b, false, 1, DTYPE_F32)
                     : op_matmul(t, b, false, x, false, 1, DTYPE_F32);
    tape_drop(t, b);
    Var *next = op_add(t, bent, x, triple[0]);
    tape_drop(t, bent);
    tape_drop(t, x);
    return next;
}

Var *newton_schulz_composed(Tape *t, Var *g, NewtonSchulz s) {
    if (!op_ready(t, "newton_schulz_composed", 1, &g)) return tape_poison(t);
    const Tensor v = g->value;
    if (v.rank < 2 || v.dtype != DTYPE_F32)
        return op_refuse(t, "newton_schulz_composed", 1, &g, "F32 matrices [..., r, c]");
    const int64_t rows = v.shape[v.rank - 2], columns = v.shape[v.rank - 1];
    const int64_t one = rows * columns;
    Var *x = op_normalise(t, g, tensor_count(v) / one, one, 1, FROBENIUS_OFFSET);
    for (int i = 0; i < s.steps; i++) x = iterate(t, x, rows > columns, s.triple[i]);
    return x;
}
