#include "nn/ops.h"
#include "nn/ops_check.h"

/* Columns of so many bytes at once: what one product reads is then still in the cache where the
 * other kernel put it, and the memory does not grow with the batch. */
#define COLUMN_BYTES ((int64_t)64 << 20)

/* Sizes of a convolution and how many samples make one part of it. */
typedef struct Conv3 {
    int64_t batch, height, width, channels, stride, rows, columns, outputs, part;
} Conv3;

static Conv3 conv3_of(Tensor x, Tensor w, int64_t stride) {
    const int64_t *s = x.shape;
    Conv3 c = {.batch = s[0],
               .height = s[1],
               .width = s[2],
               .channels = s[3],
               .stride = stride,
               .rows = (s[1] - 1) / stride + 1,
               .columns = (s[2] - 1) / stride + 1,
               .outputs = w.shape[0]};
    const int64_t each = c.rows * c.columns * 9 * c.channels * (int64_t)dtype_size(x.dtype);
    c.part = COLUMN_BYTES / each < 1 ? 1 : COLUMN_BYTES / each;
    if (c.part > c.batch) c.part = c.batch;
    return c;
}

/* Samples [first, first + count) of a tensor that begins with the batch. */
static Tensor samples_of(Tensor t, int64_t first, int64_t count) {
    const int64_t each = tensor_count(t) / t.shape[0];
    t.data = (char *)t.data + (size_t)(first * each) * dtype_size(t.dtype);
    t.shape[0] = count;
    return t;
}

static Tensor first_columns(const Conv3 *c, Tensor columns, int64_t count) {
    const int64_t shape[] = {count, c->rows * c->columns, 9 * c->channels};
    return tensor_view3(tensor_1d(columns.data, columns.dtype, shape[0] * shape[1] * shape[2]),
                        shape[0], shape[1], shape[2]);
}

static Status take_columns(Tape *t, const Conv3 *c, DType dtype, Tensor *out) {
    const int64_t shape[] = {c->part, c->rows * c->columns, 9 * c->channels};
    return tape_take(t, dtype, 3, shape, out);
}

static Tensor as_matrix(Tensor w) {
    return tensor_view2(w, w.shape[0], 9 * w.shape[1]);
}

/* Of one part: dw from the columns of x, then the columns' own gradient in their place. */
static Status part_backward(Tape *t, const Conv3 *c, Tensor columns, Grad dx, Grad dw, Tensor dy,
                            Tensor x, Tensor w) {
    Device *d = tape_device(t);
    if (!tensor_is_none(dw.t)) {
        TRY(d->k->unfold3(d, columns, x, c->stride));
        TRY(d->k->linear_dw(d, dw, grad_none(), op_rows(dy), op_rows(columns)));
    }
    if (tensor_is_none(dx.t)) return STATUS_OK;
    TRY(d->k->linear_dx(d, grad_set(op_rows(columns)), grad_none(), op_rows(dy), w, tensor_none(),
                        ACT_NONE));
    return d->k->fold3(d, dx, columns, c->stride);
}

static Status conv3_backward(Tape *t, Node *n) {
    Var *x = n->in[0], *w = n->in[1];
    const Conv3 c = conv3_of(x->value, w->value, n->i[0]);
    Tensor columns;
    Grad dw = tape_grad(t, w), dx = tape_grad(t, x);
    TRY(tape_status(t));
    if (!tensor_is_none(dw.t)) dw.t = as_matrix(dw.t);
    TRY(take_columns(t, &c, x->value.dtype, &columns));
    for (int64_t at = 0; at < c.batch; at += c.part) {
        const int64_t count = c.batch - at < c.part ? c.batch - at : c.part;
        Grad part = dx;
        if (!tensor_is_none(dx.t)) part.t = samples_of(dx.t, at, count);
        TRY(part_backward(t, &c, first_columns(&c, columns, count), part, dw,
                          samples_of(n->out->grad, at, count), samples_of(x->value, at, count),
                          as_matrix(w->value)));
        dw.add = true;
    }
    tape_give(t, columns);
    return STATUS_OK;
}

static Status conv3_forward(Tape *t, const Conv3 *c, Tensor y, Tensor x, Tensor w) {
    Device *d = tape_device(t);
    Tensor columns;
    TRY(take_columns(t, c, x.dtype, &columns));
    for (int64_t at = 0; at < c->batch; at += c->part) {
        const int64_t count = c->batch - at < c->part ? c->batch - at : c->part;
        const Tensor part = first_columns(c, columns, count);
        TRY(d->k->unfold3(d, part, samples_of(x, at, count), c->stride));
        TRY(d->k->linear(d, op_rows(samples_of(y, at, count)), tensor_none(), op_rows(part),
                         as_matrix(w), tensor_none(), ACT_NONE));
    }
    tape_give(t, columns);
    return STATUS_OK;
}

Var *op_conv3(Tape *t, Var *x, Var *w, int64_t stride) {
    Var *in[] = {x, w};
    if (!op_ready(t, "conv3", 2, in)) return tape_poison(t);
    const Tensor v = x->value, k = w->value;
    if (v.rank != 4 || k.rank != 4 || k.shape[1] != v.shape[3] || k.shape[2] != 3 ||
        k.shape[3] != 3 || k.dtype != v.dtype || stride < 1)
        return op_refuse(t, "conv3", 2, in, "x [B, H, W, C], w [O, C, 3, 3] of one dtype");
    const Conv3 c = conv3_of(v, k, stride);
    const int64_t shape[] = {c.batch, c.rows, c.columns, c.outputs};
    Var *y = tape_output(t, v.dtype, 4, shape);
    if (tape_poison(t)) return y;
    const Status s = conv3_forward(t, &c, y->value, v, k);
    Node *n = s == STATUS_OK ? tape_record(t, "conv3", conv3_backward, y, 2, in) : NULL;
    if (n) n->i[0] = stride;
    return op_done(t, "conv3", s, y);
}

/* ---- depthwise, stride 2, between two relu -------------------------------------------------- */

static Status down_backward(Tape *t, Node *n) {
    Device *d = tape_device(t);
    Var *x = n->in[0], *w = n->in[1], *b = n->in[2];
    const int64_t channels = tensor_last(x->value), taps[] = {1, channels, 9};
    const Grad dx = tape_grad(t, x), dw = op_view_grad(tape_grad(t, w), 3, taps);
    const Grad db = tape_grad(t, b);
    TRY(tape_status(t));
    return d->k->dwconv3_down_backward(d, dx, dw, db, n->out->grad, n->out->value, x->value,
                                       tensor_view3(w->value, 1, channels, 9));
}

Var *op_dwconv_down(Tape *t, Var *x, Var *w, Var *b) {
    Var *in[] = {x, w, b};
    if (!op_ready(t, "dwconv_down", 3, in)) return tape_poison(t);
    const Tensor v = x->value;
    const int64_t channels = tensor_last(v);
    if (v.rank != 4 || tensor_count(w->value) != 9 * channels || w->value.dtype != DTYPE_F32 ||
        tensor_count(b->value) != channels || b->value.dtype != DTYPE_F32)
        return op_refuse(t, "dwconv_down", 3, in, "x [B, H, W, C], w F32 [C, 1, 3, 3], b F32 [C]");
    const int64_t shape[] = {v.shape[0], (v.shape[1] + 1) / 2, (v.shape[2] + 1) / 2, channels};
    Var *y = tape_output(t, v.dtype, 4, shape);
    if (tape_poison(t)) return y;
    const Status s = op_kernels(t)->dwconv3_down(tape_device(t), y->value, v,
                                                 tensor_view3(w->value, 1, channels, 9), b->value);
    if (s == STATUS_OK) tape_record(t, "dwconv_down", down_backward, y, 3, in);
    return op_done(t, "dwconv_down", s, y);
}
