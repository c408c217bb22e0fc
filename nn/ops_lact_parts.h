/* What the two forms of writing share (ops_lact.c, ops_lact_span.c): from the projection to what
 * the inner gradients are products of, and back. For these two files alone.
 */
#ifndef TTV_NN_OPS_LACT_PARTS_H
#define TTV_NN_OPS_LACT_PARTS_H

#include "nn/ops.h"
#include "nn/ops_check.h"

typedef struct WriteSizes {
    int64_t batch, heads, tokens, e, h;
    DType act;
    bool gates; /* W0 and W2 are written too */
} WriteSizes;

/* Keys and the values behind them, in one piece, and each by itself; the weights as the products
 * take them, W0 beside W2. */
typedef struct WriteOperands {
    Tensor tokens, k, v, w02, w1;
} WriteOperands;

/* How many gradients there are. */
static inline int64_t write_parts(const WriteSizes *s) {
    return s->gates ? 3 : 1;
}
static inline Status take4(Tape *t, DType dtype, int64_t a, int64_t b, int64_t c, int64_t d,
                           Tensor *out) {
    return tape_take(t, dtype, 4, (int64_t[]){a, b, c, d}, out);
}
/* Some of the matrices that lie one behind the other: `count` times `each` from first * each on,
 * each [r,c]. */
static inline Tensor part4(Tensor x, int64_t first, int64_t count, int64_t each, int64_t r,
                           int64_t c) {
    char *data = (char *)x.data + (size_t)(first * each * r * c) * dtype_size(x.dtype);
    return tensor_4d(data, x.dtype, count, each, r, c);
}

/* Sizes by the inputs packed, rates, w0, w1, w2, and whether those fit (`exact`: no other channels
 * in front). */
WriteSizes lact_write_sizes(Var *const *in, bool only_w1);
bool lact_write_fits(Var *const *in, bool exact);
/* Where G0 and G2, and G1 lie in the outputs. */
void lact_parts_of(const WriteSizes *s, Tensor gates, Tensor back, Tensor *first, Tensor *last);

/* o: keys and values. */
Status lact_take_tokens(Tape *t, const WriteSizes *s, Tensor packed, float offset,
                        WriteOperands *o);
/* o: all of it; kept: ac, t, w02, w1; e of slot lact_write. */
Status lact_write_products(Tape *t, const WriteSizes *s, Var *const *in, float offset,
                           WriteOperands *o, Tensor kept[4], Tensor *e);

/* Gradients of the outputs in the operands' dtype, taken where that is another one. */
Status lact_as_operands(Tape *t, const WriteSizes *s, Tensor g, Tensor *out);
/* From the gradients of e on: those of rates, ac, t and the shared weights; o has the keys and
 * values. */
Status lact_slopes_of_products(Tape *t, Node *n, const WriteSizes *s, const WriteOperands *o,
                               Tensor e, Tensor *dac, Tensor *dt);
/* The gradients of keys and values stand in o->k and o->v but for those through ac and t: these,
 * and what the projection gets of all. */
Status lact_slopes_of_tokens(Tape *t, Node *n, const WriteSizes *s, const WriteOperands *o,
                             Tensor dac, Tensor dt, float offset);

#endif
