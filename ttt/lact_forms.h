/* Private to ttt/: what the forms of the LaCT layer share. */
#ifndef TTV_TTT_LACT_FORMS_H
#define TTV_TTT_LACT_FORMS_H

#include "ttt/lact.h"

#define LACT_UNIT_OFFSET   1e-5f /* of |q| and |k| */
#define LACT_COLUMN_OFFSET 1e-5f /* of the weight norm */
#define LACT_NORM_EPS      1e-5f /* of o_norm */
/* softplus of it is 0.01, the rate at the start: a constant of the model, not a parameter. */
#define LACT_RATE_SHIFT (-4.600166019324897f)

/* Rows of q, k and v in the projection: the last two thirds are k and v, or all of it. */
static inline int64_t lact_key_channel(const LactLayer *m) {
    return m->qkv_w->value.shape[0] - 2 * m->width;
}
static inline int64_t lact_query_channel(const LactLayer *m) {
    return m->variant.query_is_key ? lact_key_channel(m) : 0;
}

/* ---- the composed form (lact_composed.c, lact_update.c) ---------------------------------- */

/* lact_forward, lact_write and lact_read, of inputs that fit. */
Var *lact_composed_forward(const LactLayer *m, Tape *t, Var *x, int64_t writing, Var *residual,
                           LactFast *fast);
LactFast lact_composed_write(const LactLayer *m, Tape *t, Var *x);
Var *lact_composed_read(const LactLayer *m, Tape *t, Var *x, Var *residual, LactFast fast);

/* What writing tokens bring: keys and values F32 [B,H,n,e]; rates F32 [B,n,3H], NULL: all 1. */
typedef struct LactTokens {
    Var *k, *v, *rates;
} LactTokens;

/* W0', W1', W2' (lact_nvs.md 4); the tokens stay the caller's. */
LactFast lact_update(const LactLayer *m, Tape *t, LactTokens in);

/* The layer's own weights as [1,H,.,.]. */
LactFast lact_initial(const LactLayer *m, Tape *t);

/* F32 filled with one value, for an op whose backward does not read it: give the memory back with
 * tape_give(t, v->value) after that op. */
Var *lact_constant(Tape *t, int rank, const int64_t *shape, float value);

#endif
