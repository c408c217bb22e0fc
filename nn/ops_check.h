/* What every op needs besides its kernel; for nn/ops_*.c (and op files of the rooms above) only.
 *
 * An op reads: refuse what does not fit, take the output, run the kernel, record. On any failure it
 * returns the poison Var.
 */
#ifndef TTV_NN_OPS_CHECK_H
#define TTV_NN_OPS_CHECK_H

#include "nn/tape.h"

/* Whether an op may run: the tape is healthy and no input is missing. NULL entries are allowed for
 * optional inputs, which come after the first `required`. */
bool op_ready(Tape *t, const char *op, int required, Var *const *in);

/* "op: x [2, 3] F32, w [4, 5] F32: expected ..."; fails the tape. */
Var *op_refuse(Tape *t, const char *op, int inputs, Var *const *in, const char *expected);

/* y when s is STATUS_OK and the tape is healthy, otherwise fails the tape with the op's name in
 * front. */
Var *op_done(Tape *t, const char *op, Status s, Var *y);

/* y = f(x) for every element, whose gradient is dy derivative(x). */
Var *op_unary(Tape *t, const char *op, Var *x, UnaryKind f, UnaryKind derivative);

/* Output of x's shape and the given dtype. */
Var *op_output_like(Tape *t, DType dtype, const Var *x);

/* The bias of a layer without one: zeros, so that kernels know one form only. *taken: of the step,
 * to be given back. */
Status op_zero_bias(Tape *t, int64_t width, Tensor *out, bool *taken);

/* The kernel behind op_side_by_side: y [1,H,e,2h] act = [a|b] of F32 [H,e,h]; and same [H,h,e] = c
 * (may be none). */
Status op_lay_side_by_side(Tape *t, Tensor y, Tensor a, Tensor b, Tensor same, Tensor c);

/* Rows [first, first + rows) of a matrix. */
static inline Tensor op_rows_part(Tensor w, int64_t first, int64_t rows) {
    char *data = (char *)w.data + (size_t)(first * w.shape[1]) * dtype_size(w.dtype);
    return tensor_2d(data, w.dtype, rows, w.shape[1]);
}

/* Tensor as a matrix [rows, last]. */
static inline Tensor op_rows(Tensor x) {
    return tensor_view2(x, tensor_rows(x), tensor_last(x));
}
static inline Grad op_rows_grad(Grad g) {
    if (!tensor_is_none(g.t)) g.t = op_rows(g.t);
    return g;
}
/* g under another shape; none stays none. */
static inline Grad op_view_grad(Grad g, int rank, const int64_t *shape) {
    if (!tensor_is_none(g.t)) g.t = tensor_view(g.t, rank, shape);
    return g;
}
static inline Tensor op_value(const Var *v) {
    return v ? v->value : tensor_none();
}
static inline bool op_is_act(DType d) {
    return d == DTYPE_F32 || d == DTYPE_BF16;
}
/* The kernels of the tape's device. */
static inline const Kernels *op_kernels(const Tape *t) {
    return tape_device(t)->k;
}

#endif
