#include <math.h>

#include "op_case.h"

/* p: rows, classes; p[2]: spread of the logits. Targets are soft, some exactly 0, and need not sum
 * to 1. */

static double target_value(int64_t i, void *user) {
    Run *r = user;
    return i % 3 == 1 ? 0.0 : random_uniform(r);
}

static double log_partition(const double *x, int64_t n) {
    double top = x[0], sum = 0.0;
    for (int64_t i = 1; i < n; i++) top = fmax(top, x[i]);
    for (int64_t i = 0; i < n; i++) sum += exp(x[i] - top);
    return top + log(sum);
}

static void cross_entropy_body(Run *r) {
    const int64_t rows = r->p[0], classes = r->p[1];
    Tensor logits = input(r, "logits", DTYPE_F32, SHAPE(rows, classes), (double)r->p[2]);
    Tensor targets = input_of(r, "targets", DTYPE_F32, SHAPE(rows, classes), target_value, r);
    Tensor loss = output(r, "loss", DTYPE_F32, SHAPE(1));
    CALL(r, cross_entropy, loss, logits, targets);
    double *e = r->reference ? expected(r, loss) : NULL;
    for (int64_t i = 0; e && i < rows; i++) {
        const double *x = values(r, logits) + i * classes, log_sum = log_partition(x, classes);
        for (int64_t c = 0; c < classes; c++)
            e[0] -= values(r, targets)[i * classes + c] * (x[c] - log_sum) / (double)rows;
    }
}

static void cross_entropy_backward_body(Run *r) {
    const int64_t rows = r->p[0], classes = r->p[1];
    Tensor dloss = input(r, "dloss", DTYPE_F32, SHAPE(1), 1.0);
    Tensor logits = input(r, "logits", DTYPE_F32, SHAPE(rows, classes), (double)r->p[2]);
    Tensor targets = input_of(r, "targets", DTYPE_F32, SHAPE(rows, classes), target_value, r);
    Grad dlogits = gradient(r, "dlogits", DTYPE_F32, SHAPE(rows, classes));
    CALL(r, cross_entropy_backward, dlogits, dloss, logits, targets);
    double *e = r->reference ? expected(r, dlogits.t) : NULL;
    for (int64_t i = 0; e && i < rows; i++) {
        const double *x = values(r, logits) + i * classes, *t = values(r, targets) + i * classes;
        const double log_sum = log_partition(x, classes);
        double mass = 0.0;
        for (int64_t c = 0; c < classes; c++) mass += t[c];
        for (int64_t c = 0; c < classes; c++)
            e[i * classes + c] =
                values(r, dloss)[0] / (double)rows * (exp(x[c] - log_sum) * mass - t[c]);
    }
}

#define F32 (IN_F32 | ANY_THREADS)

const OpCase cases_loss[] = {
    {"cross_entropy", cross_entropy_body, {1, 1, 1}, F32, 0},
    {"cross_entropy", cross_entropy_body, {3, 11, 2}, F32, 0},
    {"cross_entropy", cross_entropy_body, {37, 1000, 10}, F32, 0},
    {"cross_entropy", cross_entropy_body, {5, 17, 1000}, F32, 0},
    {"cross_entropy_backward", cross_entropy_backward_body, {1, 1, 1}, F32, 0},
    {"cross_entropy_backward", cross_entropy_backward_body, {3, 11, 2}, F32, 0},
    {"cross_entropy_backward", cross_entropy_backward_body, {37, 1000, 10}, F32, 0},
    {"cross_entropy_backward", cross_entropy_backward_body, {5, 17, 1000}, F32, 0},
    {0},
};
