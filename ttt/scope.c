#include "ttt/scope.h"

#include "core/memory.h"
#include "nn/ops_check.h"

Status scope_new(Tape *t, Scope **out) {
    TRY(mem_alloc((void **)out, 1, sizeof **out, "values of a fast-weight layer"));
    (*out)->t = t;
    return STATUS_OK;
}

Var *scope_keep(Scope *s, Var *v) {
    if (v && s->count < SCOPE_ITEMS) s->items[s->count++].v = v;
    return v;
}

Var *scope_release(Scope *s, Var *v) {
    for (int i = 0; i < s->count; i++)
        if (s->items[i].v == v) s->items[i].v = NULL;
    return v;
}

Var *scope_constant(Scope *s, int rank, const int64_t *shape, float value) {
    Tape *t = s->t;
    if (tape_poison(t)) return tape_poison(t);
    Tensor memory;
    Status status = tape_take(t, DTYPE_F32, rank, shape, &memory);
    if (status == STATUS_OK) status = op_kernels(t)->fill(tape_device(t), memory, value);
    if (status != STATUS_OK) return tape_fail(t, status);
    Var *v = tape_input(t, memory, "constant");
    if (s->count < SCOPE_ITEMS && !tape_poison(t)) {
        s->items[s->count].constant = true;
        s->items[s->count++].v = v;
    }
    return v;
}

void scope_end(Scope *s) {
    for (int i = s->count - 1; i >= 0; i--) {
        if (!s->items[i].v) continue;
        if (!s->items[i].constant)
            tape_drop(s->t, s->items[i].v);
        else if (!tape_recording(s->t) && !tape_poison(s->t))
            tape_give(s->t, s->items[i].v->value);
        s->items[i].constant = false;
    }
    s->count = 0;
}
