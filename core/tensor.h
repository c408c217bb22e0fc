/* Tensor: a value that describes dense memory owned by someone else (an arena, a file map, a
 * caller).
 *
 * Row-major, last index fastest, rank 0 to 4. Copying a Tensor copies the description only.
 * [B,H,W,C] and [B,H*W,C] are two views of the same bytes.
 */
#ifndef TTV_CORE_TENSOR_H
#define TTV_CORE_TENSOR_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "core/status.h"

typedef enum DType {
    DTYPE_F32,
    DTYPE_BF16,
    DTYPE_F16,
    DTYPE_F64,
    DTYPE_I64,
    DTYPE_I32,
    DTYPE_U8
} DType;

#define TENSOR_MAX_RANK 4

typedef struct Tensor {
    void *data; /* NULL: "no tensor" where a function says that one is optional */
    int64_t shape[TENSOR_MAX_RANK];
    int rank;
    DType dtype;
} Tensor;

/* Where a gradient goes. t.data == NULL: not wanted. add false: overwrite; true: accumulate. */
typedef struct Grad {
    Tensor t;
    bool add;
} Grad;

size_t dtype_size(DType dtype);
const char *dtype_name(DType dtype); /* "F32", "BF16", ...: the safetensors names */

/* Descriptions over given memory. */
Tensor tensor_0d(void *data, DType dtype);
Tensor tensor_1d(void *data, DType dtype, int64_t a);
Tensor tensor_2d(void *data, DType dtype, int64_t a, int64_t b);
Tensor tensor_3d(void *data, DType dtype, int64_t a, int64_t b, int64_t c);
Tensor tensor_4d(void *data, DType dtype, int64_t a, int64_t b, int64_t c, int64_t d);
Tensor tensor_of(void *data, DType dtype, int rank, const int64_t *shape);
Tensor tensor_none(void);

int64_t tensor_count(Tensor t); /* product of the shape; 1 for rank 0 */
size_t tensor_bytes(Tensor t);
int64_t tensor_last(Tensor t); /* size of the last dimension (1 for rank 0) */
int64_t tensor_rows(Tensor t); /* count / last: the tensor as a matrix of rows */
bool tensor_same_shape(Tensor a, Tensor b);
bool tensor_is_none(Tensor t);

/* The same bytes under another shape; the count must agree (checked by assert: a program error). */
Tensor tensor_view(Tensor t, int rank, const int64_t *shape);
Tensor tensor_view2(Tensor t, int64_t a, int64_t b);
Tensor tensor_view3(Tensor t, int64_t a, int64_t b, int64_t c);
Tensor tensor_view4(Tensor t, int64_t a, int64_t b, int64_t c, int64_t d);
/* [first, first + count) of the first dimension, which is not 0, e.g. some samples of a batch. */
Tensor tensor_part(Tensor t, int64_t first, int64_t count);

/* Writes "[2, 3, 4]" into text (cut at `size`); returns text. */
char *tensor_shape_text(Tensor t, char *text, size_t size);

/* Product with overflow check; STATUS_DATA when a dimension is negative or the product overflows.
 */
Status shape_count(int rank, const int64_t *shape, int64_t *count);

/* Conversions, round to nearest even, NaN kept. */
uint16_t bf16_from_f32(float x);
float f32_from_bf16(uint16_t x);
uint16_t f16_from_f32(float x);
float f32_from_f16(uint16_t x);

static inline Grad grad_none(void) {
    return (Grad){{0}, false};
}
static inline Grad grad_set(Tensor t) {
    return (Grad){t, false};
}
static inline Grad grad_add(Tensor t) {
    return (Grad){t, true};
}

#endif
