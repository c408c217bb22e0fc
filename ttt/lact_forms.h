/* Private to ttt/: the update of the fast weights. */
#ifndef TTV_TTT_LACT_FORMS_H
#define TTV_TTT_LACT_FORMS_H

#include "ttt/lact.h"

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
