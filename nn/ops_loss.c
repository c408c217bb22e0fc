#include "nn/ops.h"
#include "nn/ops_check.h"

static Status cross_entropy_backward(Tape *t, Node *n) {
    Device *d = tape_device(t);
    Var *logits = n->in[0], *targets = n->in[1];
    return d->k->cross_entropy_backward(d, tape_grad(t, logits), n->out->grad, logits->value,
                                        targets->value);
}

Var *op_cross_entropy(Tape *t, Var *logits, Tensor targets) {
    if (tape_poison(t)) return tape_poison(t);
    Var *in[] = {logits, tape_input(t, targets, "targets")};
    if (!op_ready(t, "cross_entropy", 2, in)) return tape_poison(t);
    if (logits->value.rank != 2 || !tensor_same_shape(logits->value, targets) ||
        logits->value.dtype != DTYPE_F32 || targets.dtype != DTYPE_F32)
        return op_refuse(t, "cross_entropy", 2, in, "F32 logits and targets [B, classes]");
    int64_t one = 1;
    Var *loss = tape_output(t, DTYPE_F32, 1, &one);
    if (tape_poison(t)) return loss;
    Status s = op_kernels(t)->cross_entropy(tape_device(t), loss->value, logits->value, targets);
    if (s == STATUS_OK) tape_record(t, "cross_entropy", cross_entropy_backward, loss, 2, in);
    return op_done(t, "cross_entropy", s, loss);
}

static Status mse_backward(Tape *t, Node *n) {
    Device *d = tape_device(t);
    Var *x = n->in[0], *target = n->in[1];
    return d->k->mse_backward(d, tape_grad(t, x), n->out->grad, x->value, target->value);
}

Var *op_mse(Tape *t, Var *x, Tensor target) {
    if (tape_poison(t)) return tape_poison(t);
    Var *in[] = {x, tape_input(t, target, "target")};
    if (!op_ready(t, "mse", 2, in)) return tape_poison(t);
    if (!op_is_act(x->value.dtype) || target.dtype != DTYPE_F32 ||
        !tensor_same_shape(x->value, target))
        return op_refuse(t, "mse", 2, in, "an F32 target of the same shape");
    int64_t one = 1;
    Var *loss = tape_output(t, DTYPE_F32, 1, &one);
    if (tape_poison(t)) return loss;
    Status s = op_kernels(t)->mse(tape_device(t), loss->value, x->value, target);
    if (s == STATUS_OK) tape_record(t, "mse", mse_backward, loss, 2, in);
    return op_done(t, "mse", s, loss);
}
