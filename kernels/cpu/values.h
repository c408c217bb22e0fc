/* Reading and writing act tensors (F32 or BF16) as rows of F32 values.
 *
 * Kernels compute on F32 rows of at most CHUNK values. For an F32 tensor the row is the tensor
 * itself; for BF16 it is a small buffer that stays in the first-level cache.
 */
#ifndef TTV_KERNELS_CPU_VALUES_H
#define TTV_KERNELS_CPU_VALUES_H

#include <string.h>

#include "kernels/device.h"

#define CHUNK 1024

/* Elements of work below which waking the other threads costs more than it saves. */
#define PARALLEL_MIN ((int64_t)16384)

static inline int64_t min_i64(int64_t a, int64_t b) {
    return a < b ? a : b;
}
static inline int64_t max_i64(int64_t a, int64_t b) {
    return a > b ? a : b;
}
static inline int64_t div_up(int64_t a, int64_t b) {
    return (a + b - 1) / b;
}

static inline float bf16_value(uint16_t x) {
    const uint32_t bits = (uint32_t)x << 16;
    float value;
    memcpy(&value, &bits, sizeof value);
    return value;
}

static inline uint16_t bf16_round(float x) {
    uint32_t bits;
    memcpy(&bits, &x, sizeof bits);
    const uint32_t rounded = bits + 0x7fffu + ((bits >> 16) & 1u);
    const uint32_t quiet = bits | 0x400000u; /* a NaN stays one */
    return (uint16_t)((x != x ? quiet : rounded) >> 16);
}

static inline bool act_dtype(DType t) {
    return t == DTYPE_F32 || t == DTYPE_BF16;
}

static inline char *element(const Tensor *t, int64_t at) {
    return (char *)t->data + (size_t)at * (t->dtype == DTYPE_F32 ? 4 : 2);
}

/* Elements [at, at+n) of t as F32: in place, or converted into `buffer`. */
static inline const float *values_read(const Tensor *t, int64_t at, int64_t n, float *buffer) {
    if (t->dtype == DTYPE_F32) return (const float *)t->data + at;
    const uint16_t *x = (const uint16_t *)t->data + at;
#pragma omp simd
    for (int64_t i = 0; i < n; i++) buffer[i] = bf16_value(x[i]);
    return buffer;
}

/* Where to compute values for [at, ...) of g: in place when they can be stored as they are. */
static inline float *values_target(const Grad *g, int64_t at, float *buffer) {
    return g->t.dtype == DTYPE_F32 && !g->add ? (float *)g->t.data + at : buffer;
}

/* Stores or accumulates n values; nothing to do when they were computed in place. */
static inline void values_write(const Grad *g, int64_t at, int64_t n, const float *values) {
    if (g->t.dtype == DTYPE_F32) {
        float *y = (float *)g->t.data + at;
        if (g->add) {
#pragma omp simd
            for (int64_t i = 0; i < n; i++) y[i] += values[i];
        } else if (values != y) {
            memcpy(y, values, (size_t)n * sizeof *y);
        }
        return;
    }
    uint16_t *y = (uint16_t *)g->t.data + at;
    if (g->add) {
#pragma omp simd
        for (int64_t i = 0; i < n; i++) y[i] = bf16_round(bf16_value(y[i]) + values[i]);
    } else {
#pragma omp simd
        for (int64_t i = 0; i < n; i++) y[i] = bf16_round(values[i]);
    }
}

static inline Status refuse_dtype(const char *kernel, DType t) {
    return status_set(STATUS_INTERNAL, "kernel %s does not take %s on the CPU", kernel,
                      dtype_name(t));
}

/* Ends a kernel that took d->scratch. */
static inline Status scratch_done(Device *d, Status status) {
    arena_reset(&d->scratch);
    return status;
}

static inline Status scratch_floats(Device *d, int64_t count, float **out) {
    return arena_take(&d->scratch, (size_t)count * sizeof(float), (void **)out);
}

#endif
