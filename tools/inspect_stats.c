/* Minimum, maximum, mean and deviation of a tensor inside a mapped file, where it may be unaligned.
 */
#include "tools/inspect.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

double entry_value(const SafeEntry *e, int64_t i) {
    const unsigned char *p = e->data + (size_t)i * dtype_size(e->dtype);
    float f;
    double d;
    uint16_t half;
    int32_t n32;
    int64_t n64;
    switch (e->dtype) {
    case DTYPE_F32:
        memcpy(&f, p, sizeof f);
        return f;
    case DTYPE_F64:
        memcpy(&d, p, sizeof d);
        return d;
    case DTYPE_F16:
        memcpy(&half, p, sizeof half);
        return f32_from_f16(half);
    case DTYPE_BF16:
        memcpy(&half, p, sizeof half);
        return f32_from_bf16(half);
    case DTYPE_I32:
        memcpy(&n32, p, sizeof n32);
        return n32;
    case DTYPE_I64:
        memcpy(&n64, p, sizeof n64);
        return (double)n64;
    case DTYPE_U8:
        return *p;
    }
    return 0;
}

TensorStats tensor_stats(const SafeEntry *e) {
    TensorStats s = {0};
    int64_t finite = 0;
    double squares = 0; /* Welford: a plain sum of squares cancels for large means */
    s.count = (int64_t)(e->bytes / dtype_size(e->dtype));
    for (int64_t i = 0; i < s.count; i++) {
        double x = entry_value(e, i);
        if (!isfinite(x)) {
            s.nonfinite++;
            continue;
        }
        if (finite == 0 || x < s.min) s.min = x;
        if (finite == 0 || x > s.max) s.max = x;
        double step = x - s.mean;
        s.mean += step / (double)++finite;
        squares += step * (x - s.mean);
    }
    if (finite > 0) s.std = sqrt(squares / (double)finite);
    return s;
}

bool entry_same_shape(const SafeEntry *a, const SafeEntry *b) {
    return a->rank == b->rank &&
           memcmp(a->shape, b->shape, sizeof *a->shape * (size_t)a->rank) == 0;
}

char *entry_shape_text(const SafeEntry *e, char *text, size_t size) {
    size_t used = (size_t)snprintf(text, size, "[");
    for (int i = 0; i < e->rank && used < size; i++)
        used += (size_t)snprintf(text + used, size - used, "%s%lld", i ? ", " : "",
                                 (long long)e->shape[i]);
    if (used < size) snprintf(text + used, size - used, "]");
    return text;
}
