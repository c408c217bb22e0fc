/* 3x3 convolutions with padding 1: columns of the map and a product of matrices. */
#include "kernels/cpu/places.h"
#include "kernels/cpu/table.h"

static float value_at(const Tensor *t, int64_t at) {
    return t->dtype == DTYPE_F32 ? ((const float *)t->data)[at]
                                 : bf16_value(((const uint16_t *)t->data)[at]);
}

/* ---- columns -------------------------------------------------------------------------------- */

/* y[B*Ho*Wo,9C] = what lies around each place of x, 0 outside the map; column 9c + tap, the order
 * of the weight. */
static void unfold(Tensor y, Tensor x, int64_t stride) {
    const Places p = places_of(x, stride);
    const int64_t places = p.batch * p.rows * p.columns, size = (int64_t)dtype_size(x.dtype);
#pragma omp parallel for schedule(static) if (places * p.channels >= PARALLEL_MIN / 8)
    for (int64_t i = 0; i < places; i++) {
        char *out = (char *)y.data + i * 9 * p.channels * size;
        for (int t = 0; t < 9; t++) {
            const int64_t at = around(&p, i, t);
            if (x.dtype == DTYPE_F32) {
                for (int64_t c = 0; c < p.channels; c++)
                    ((float *)out)[9 * c + t] = at < 0 ? 0.0f : ((const float *)x.data)[at + c];
            } else {
                for (int64_t c = 0; c < p.channels; c++)
                    ((uint16_t *)out)[9 * c + t] = at < 0 ? 0 : ((const uint16_t *)x.data)[at + c];
            }
        }
    }
}

/* The adjoint: dx (+)= each column at the place it came from. */
static void fold(Grad dx, Tensor dy, int64_t stride) {
    const Places p = places_of(dx.t, stride);
    const int64_t pixels = p.batch * p.height * p.width, c = p.channels;
#pragma omp parallel for schedule(static) if (pixels * c >= PARALLEL_MIN / 8)
    for (int64_t q = 0; q < pixels; q++) {
        int64_t from[9];
        for (int t = 0; t < 9; t++) from[t] = looking(&p, q, t);
        for (int64_t start = 0; start < c; start += CHUNK) {
            float sum[CHUNK] = {0};
            const int64_t n = min_i64(CHUNK, c - start);
            for (int t = 0; t < 9; t++) {
                if (from[t] < 0) continue;
                const int64_t at = (from[t] * c + start) * 9 + t;
                for (int64_t k = 0; k < n; k++) sum[k] += value_at(&dy, at + 9 * k);
            }
            values_write(&dx, q * c + start, n, sum);
        }
    }
}

/* ---- the convolution: columns of some samples at a time, and a product ------------------------
 */

/* Columns of so many bytes: what one product reads is then still in the cache where the other loop
 * put it. */
#define COLUMN_BYTES ((int64_t)1 << 20)

static int64_t part_of(const Places *p, DType dtype) {
    const int64_t each = p->rows * p->columns * 9 * p->channels * (int64_t)dtype_size(dtype);
    return min_i64(p->batch, max_i64(1, COLUMN_BYTES / each));
}

static Tensor rows_of(Tensor t) {
    return tensor_view2(t, tensor_rows(t), tensor_last(t));
}

/* Kernels that a part calls empty the scratch: its columns are taken again before each, at the same
 * place, and keep what they hold. */
static Status take_columns(Device *d, const Places *p, int64_t samples, DType dtype, Tensor *out) {
    const int64_t shape[] = {samples * p->rows * p->columns, 9 * p->channels};
    return arena_tensor(&d->scratch, dtype, 2, shape, out);
}

static Status conv3(Device *d, Tensor y, Tensor x, Tensor w, int64_t stride) {
    const Places p = places_of(x, stride);
    const int64_t part = part_of(&p, x.dtype);
    const Tensor matrix = tensor_view2(w, w.shape[0], 9 * p.channels);
    for (int64_t at = 0; at < p.batch; at += part) {
        const int64_t count = min_i64(part, p.batch - at);
        Tensor columns;
        TRY(take_columns(d, &p, count, x.dtype, &columns));
        unfold(columns, tensor_part(x, at, count), stride);
        TRY(linear_cpu(d, rows_of(tensor_part(y, at, count)), tensor_none(), columns, matrix,
                       tensor_none(), ACT_NONE));
    }
    return STATUS_OK;
}

Status conv3_cpu(Device *d, Tensor y, Tensor x, Tensor w, int64_t stride) {
    if (!act_dtype(x.dtype) || y.dtype != x.dtype || w.dtype != x.dtype)
        return refuse_dtype("conv3", x.dtype);
    return scratch_done(d, conv3(d, y, x, w, stride));
}

static Status part_backward(Device *d, Grad dx, Grad dw, Tensor dy, Tensor x, Tensor matrix,
                            int64_t stride) {
    const Places p = places_of(x, stride);
    Tensor columns;
    TRY(take_columns(d, &p, p.batch, x.dtype, &columns));
    if (dw.t.data) {
        unfold(columns, x, stride);
        TRY(linear_dw_cpu(d, dw, grad_none(), rows_of(dy), columns));
        if (dx.t.data) TRY(take_columns(d, &p, p.batch, x.dtype, &columns));
    }
    if (!dx.t.data) return STATUS_OK;
    TRY(linear_dx_cpu(d, grad_set(columns), grad_none(), rows_of(dy), matrix, tensor_none(),
                      ACT_NONE));
    fold(dx, columns, stride);
    return STATUS_OK;
}

static Status conv3_backward(Device *d, Grad dx, Grad dw, Tensor dy, Tensor x, Tensor w,
                             int64_t stride) {
    const Places p = places_of(x, stride);
    const int64_t part = part_of(&p, x.dtype);
    const Tensor matrix = tensor_view2(w, w.shape[0], 9 * p.channels);
    if (dw.t.data) dw.t = tensor_view2(dw.t, w.shape[0], 9 * p.channels);
    for (int64_t at = 0; at < p.batch; at += part) {
        const int64_t count = min_i64(part, p.batch - at);
        Grad to = dx;
        if (dx.t.data) to.t = tensor_part(dx.t, at, count);
        arena_reset(&d->scratch);
        TRY(part_backward(d, to, dw, tensor_part(dy, at, count), tensor_part(x, at, count), matrix,
                          stride));
        dw.add = true;
    }
    return STATUS_OK;
}

Status conv3_backward_cpu(Device *d, Grad dx, Grad dw, Tensor dy, Tensor x, Tensor w,
                          int64_t stride) {
    if (!act_dtype(x.dtype) || dy.dtype != x.dtype || w.dtype != x.dtype)
        return refuse_dtype("conv3_backward", dy.dtype);
    return scratch_done(d, conv3_backward(d, dx, dw, dy, x, w, stride));
}
