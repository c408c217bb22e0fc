#include "nn/ops.h"
#include "nn/ops_check.h"

#define MOMENTUM 0.1f /* of the statistics seen (vittt.md 4.2) */

typedef enum Mode { RELU = 1, TRAINING = 2 } Mode;

static Status batchnorm_backward(Tape *t, Node *n) {
    Device *d = tape_device(t);
    Var *x = n->in[0], *w = n->in[1], *b = n->in[2];
    const Grad dx = op_rows_grad(tape_grad(t, x)), dw = tape_grad(t, w), db = tape_grad(t, b);
    TRY(tape_status(t));
    return d->k->batchnorm_backward(d, dx, dw, db, op_rows(n->out->grad), op_rows(x->value),
                                    w->value, b->value, n->saved[0], n->i[0] & RELU,
                                    n->i[0] & TRAINING);
}

Var *op_batchnorm(Tape *t, Var *x, Var *w, Var *b, Var *seen_mean, Var *seen_var, float eps,
                  bool relu, bool training) {
    Var *in[] = {x, w, b, seen_mean, seen_var};
    if (!op_ready(t, "batchnorm", 5, in)) return tape_poison(t);
    const int64_t channels = tensor_last(x->value);
    bool fits = x->value.rank >= 2;
    for (int i = 1; i < 5; i++)
        fits = fits && tensor_count(in[i]->value) == channels && in[i]->value.dtype == DTYPE_F32;
    if (!fits) return op_refuse(t, "batchnorm", 5, in, "x [..., C], four vectors F32 [C]");
    Var *y = op_output_like(t, x->value.dtype, x);
    if (tape_poison(t)) return y;
    const int64_t shape[] = {2, channels};
    Tensor stats = tensor_none();
    Status s = STATUS_OK;
    if (training || tape_will_record(t, 3, in)) s = tape_take(t, DTYPE_F32, 2, shape, &stats);
    if (s == STATUS_OK)
        s = op_kernels(t)->batchnorm(tape_device(t), op_rows(y->value), stats, seen_mean->value,
                                     seen_var->value, op_rows(x->value), w->value, b->value, eps,
                                     MOMENTUM, relu, training);
    Node *n = s == STATUS_OK ? tape_record(t, "batchnorm", batchnorm_backward, y, 3, in) : NULL;
    if (n) {
        n->saved[0] = stats;
        n->i[0] = (relu ? RELU : 0) | (training ? TRAINING : 0);
    } else if (!tensor_is_none(stats)) {
        tape_give(t, stats);
    }
    return op_done(t, "batchnorm", s, y);
}
