/* Private to ttt/: values that end together, so that composed layers give their memory back without
 * a drop behind every line. While the tape records, dropping has no effect, and constants stay for
 * the backward.
 */
#ifndef TTV_TTT_SCOPE_H
#define TTV_TTT_SCOPE_H

#include "nn/ops.h"

#define SCOPE_ITEMS 768
typedef struct Scope {
    Tape *t;
    int count;
    struct {
        Var *v;
        bool constant;
    } items[SCOPE_ITEMS];
} Scope;

/* v, dropped with the scope. Beyond SCOPE_ITEMS values stay until tape_reset(). */
Var *scope_keep(Scope *s, Var *v);
/* v again, outliving the scope. */
Var *scope_release(Scope *s, Var *v);
/* F32 filled with one value. */
Var *scope_constant(Scope *s, int rank, const int64_t *shape, float value);
void scope_end(Scope *s);

/* A scope of its own, for code whose stack should stay small; mem_free() it behind scope_end(). */
Status scope_new(Tape *t, Scope **out);

#endif
