#include "core/tensor.h"

#include <assert.h>
#include <stdio.h>
#include <string.h>

size_t dtype_size(DType dtype) {
    switch (dtype) {
    case DTYPE_F64:
    case DTYPE_I64:
        return 8;
    case DTYPE_F32:
    case DTYPE_I32:
        return 4;
    case DTYPE_BF16:
    case DTYPE_F16:
        return 2;
    case DTYPE_U8:
        return 1;
    }
    return 0;
}

const char *dtype_name(DType dtype) {
    switch (dtype) {
    case DTYPE_F32:
        return "F32";
    case DTYPE_BF16:
        return "BF16";
    case DTYPE_F16:
        return "F16";
    case DTYPE_F64:
        return "F64";
    case DTYPE_I64:
        return "I64";
    case DTYPE_I32:
        return "I32";
    case DTYPE_U8:
        return "U8";
    }
    return "?";
}

Tensor tensor_of(void *data, DType dtype, int rank, const int64_t *shape) {
    assert(rank >= 0 && rank <= TENSOR_MAX_RANK);
    Tensor t = {.data = data, .rank = rank, .dtype = dtype};
    for (int i = 0; i < rank; i++) t.shape[i] = shape[i];
    return t;
}

Tensor tensor_0d(void *data, DType dtype) {
    return tensor_of(data, dtype, 0, NULL);
}

Tensor tensor_1d(void *data, DType dtype, int64_t a) {
    return tensor_of(data, dtype, 1, (const int64_t[]){a});
}

Tensor tensor_2d(void *data, DType dtype, int64_t a, int64_t b) {
    return tensor_of(data, dtype, 2, (const int64_t[]){a, b});
}

Tensor tensor_3d(void *data, DType dtype, int64_t a, int64_t b, int64_t c) {
    return tensor_of(data, dtype, 3, (const int64_t[]){a, b, c});
}

Tensor tensor_4d(void *data, DType dtype, int64_t a, int64_t b, int64_t c, int64_t d) {
    return tensor_of(data, dtype, 4, (const int64_t[]){a, b, c, d});
}

Tensor tensor_none(void) {
    return (Tensor){0};
}

int64_t tensor_count(Tensor t) {
    int64_t count = 1;
    for (int i = 0; i < t.rank; i++) count *= t.shape[i];
    return count;
}

size_t tensor_bytes(Tensor t) {
    return (size_t)tensor_count(t) * dtype_size(t.dtype);
}

int64_t tensor_last(Tensor t) {
    return t.rank > 0 ? t.shape[t.rank - 1] : 1;
}

int64_t tensor_rows(Tensor t) {
    int64_t rows = 1;
    for (int i = 0; i + 1 < t.rank; i++) rows *= t.shape[i];
    return rows;
}

bool tensor_same_shape(Tensor a, Tensor b) {
    return a.rank == b.rank && memcmp(a.shape, b.shape, (size_t)a.rank * sizeof a.shape[0]) == 0;
}

bool tensor_is_none(Tensor t) {
    return t.data == NULL;
}

Tensor tensor_view(Tensor t, int rank, const int64_t *shape) {
    Tensor view = tensor_of(t.data, t.dtype, rank, shape);
    assert(tensor_count(view) == tensor_count(t));
    return view;
}

Tensor tensor_part(Tensor t, int64_t first, int64_t count) {
    const int64_t each = tensor_count(t) / t.shape[0];
    t.data = (char *)t.data + (size_t)(first * each) * dtype_size(t.dtype);
    t.shape[0] = count;
    return t;
}

Tensor tensor_view2(Tensor t, int64_t a, int64_t b) {
    return tensor_view(t, 2, (const int64_t[]){a, b});
}

Tensor tensor_view3(Tensor t, int64_t a, int64_t b, int64_t c) {
    return tensor_view(t, 3, (const int64_t[]){a, b, c});
}

Tensor tensor_view4(Tensor t, int64_t a, int64_t b, int64_t c, int64_t d) {
    return tensor_view(t, 4, (const int64_t[]){a, b, c, d});
}

char *tensor_shape_text(Tensor t, char *text, size_t size) {
    char full[TENSOR_MAX_RANK * 24 + 4] = "[";
    size_t used = 1;
    for (int i = 0; i < t.rank; i++) {
        used += (size_t)snprintf(full + used, sizeof full - used, "%s%lld", i > 0 ? ", " : "",
                                 (long long)t.shape[i]);
    }
    snprintf(full + used, sizeof full - used, "]");
    snprintf(text, size, "%s", full);
    return text;
}

Status shape_count(int rank, const int64_t *shape, int64_t *count) {
    int64_t product = 1;
    bool overflow = false;
    bool empty = false;
    for (int i = 0; i < rank; i++) {
        if (shape[i] < 0) {
            return status_set(STATUS_DATA, "dimension %d is negative (%lld)", i,
                              (long long)shape[i]);
        }
        if (shape[i] == 0) empty = true;
        if (__builtin_mul_overflow(product, shape[i], &product)) overflow = true;
    }
    /* An empty tensor has no elements, but [2^62, 2^62, 0] is still nonsense: refused alike. */
    if (overflow) return status_set(STATUS_DATA, "the number of elements overflows 64 bits");
    *count = empty ? 0 : product;
    return STATUS_OK;
}
