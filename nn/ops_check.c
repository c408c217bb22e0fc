#include "nn/ops_check.h"

#include <stdio.h>

bool op_ready(Tape *t, const char *op, int required, Var *const *in) {
    if (tape_poison(t)) return false;
    for (int i = 0; i < required; i++) {
        if (in[i] && !tensor_is_none(in[i]->value)) continue;
        tape_fail(t, status_set(STATUS_INTERNAL, "%s: input %d (%s) has no value", op, i + 1,
                                in[i] && in[i]->name ? in[i]->name : "unnamed"));
        return false;
    }
    return true;
}

Var *op_refuse(Tape *t, const char *op, int inputs, Var *const *in, const char *expected) {
    char text[512] = "";
    size_t used = 0;
    for (int i = 0; i < inputs && used < sizeof text; i++) {
        if (!in[i]) continue;
        char shape[96];
        tensor_shape_text(in[i]->value, shape, sizeof shape);
        int n = snprintf(text + used, sizeof text - used, "%s%s%s%s %s", used ? ", " : "",
                         in[i]->name ? in[i]->name : "", in[i]->name ? " " : "", shape,
                         dtype_name(in[i]->value.dtype));
        used += n > 0 ? (size_t)n : 0;
    }
    return tape_fail(t, status_set(STATUS_DATA, "%s: %s: expected %s", op, text, expected));
}

Var *op_done(Tape *t, const char *op, Status s, Var *y) {
    if (s != STATUS_OK) return tape_fail(t, status_context(s, "%s", op));
    return tape_poison(t) ? tape_poison(t) : y;
}

Var *op_output_like(Tape *t, DType dtype, const Var *x) {
    return tape_output(t, dtype, x->value.rank, x->value.shape);
}
