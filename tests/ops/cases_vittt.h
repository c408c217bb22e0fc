/* What the cases of both fused ViTTT branches share (vittt.md 2.1, 2.2, 3.1, 3.2).
 *
 * p: batch, height, width, heads, head width; p[5]: bit 1 without g, bit 2 heads whose first value
 * column is zero, so that a norm is zero.
 */
#ifndef TTV_TESTS_CASES_VITTT_H
#define TTV_TESTS_CASES_VITTT_H

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "core/memory.h"
#include "op_case.h"

typedef struct Sizes {
    VitttShape s;
    int64_t tokens, d, width, packed, cat;
    double c;
} Sizes;

static inline Sizes sizes(const Run *r) {
    const VitttShape s = {r->p[0], r->p[1], r->p[2], r->p[3], r->p[4]};
    const int64_t tokens = s.height * s.width, width = s.heads * s.head_dim;
    return (Sizes){s,
                   tokens,
                   s.head_dim,
                   width,
                   3 * width + 3 * s.head_dim,
                   width + s.head_dim,
                   1.0 / (3.0 * (double)tokens)};
}

static inline double qkv_value(int64_t i, void *user) {
    Run *r = user;
    const Sizes z = sizes(r);
    const int64_t channel = i % z.packed, from_v = channel - 2 * z.width;
    const bool glu_v = from_v >= 0 && from_v < z.width && from_v % z.d == 0;
    const double x = 2.0 * random_normal(r);
    return (r->p[5] & 2) && (glu_v || channel == 3 * z.width + 2 * z.d) ? 0.0 : x;
}

static inline Tensor packed_input(Run *r, const Sizes *z) {
    return input_of(r, "qkv", r->act, SHAPE(z->s.batch, z->s.height, z->s.width, z->packed),
                    qkv_value, r);
}

static inline double *zeros(int64_t count) {
    void *block;
    if (mem_alloc(&block, count, sizeof(double), "op case") != STATUS_OK) abort();
    return block;
}

/* The raw gradients that the forward would have kept. */
typedef struct Kept {
    double *values;
} Kept;

static inline double kept_value(int64_t i, void *user) {
    return ((const Kept *)user)->values[i];
}

/* dg = soft norm backward of -du. */
static inline void soft_backward(double *dg, const double *g, const double *norms, const double *du,
                                 int64_t rows, int64_t columns) {
    for (int64_t j = 0; j < columns; j++) {
        const double rate = 1.0 / (norms[j] + 1.0);
        double t = 0.0;
        for (int64_t i = 0; i < rows; i++) t -= g[i * columns + j] * du[i * columns + j];
        for (int64_t i = 0; i < rows; i++) {
            dg[i * columns + j] = -rate * du[i * columns + j];
            if (norms[j] > 0.0)
                dg[i * columns + j] -= rate * rate * t / norms[j] * g[i * columns + j];
        }
    }
}

#define BOTH (IN_BOTH | ANY_THREADS)

#define SHAPES(slot, body)                                                                         \
    {slot, body, {1, 1, 1, 1, 1}, BOTH, 0}, {slot, body, {2, 6, 5, 3, 8}, BOTH, 0},                \
        {slot, body, {2, 3, 4, 2, 5, 1}, BOTH, 0}, {slot, body, {2, 5, 5, 2, 32, 2}, BOTH, 0},     \
        {slot, body, {18, 4, 4, 1, 17}, BOTH, 0}, {slot, body, {1, 1, 60, 1, 64}, BOTH, 0},        \
        {slot, body, {1, 14, 14, 2, 48}, BOTH, 0}, {slot, body, {2, 14, 14, 3, 32}, BOTH, 0},      \
        {slot, body, {3, 11, 13, 2, 64}, BOTH, 0}, {                                               \
        slot, body, {1, 9, 1, 1, 3}, BOTH, 0                                                       \
    }

#define BENCH(slot, body)                                                                          \
    {slot, body, {1, 14, 14, 6, 32}, IN_BOTH | ONLY_BENCH, 0},                                     \
        {slot, body, {32, 14, 14, 6, 32}, IN_BOTH | ONLY_BENCH, 0},                                \
        {slot, body, {8, 14, 14, 12, 64}, IN_BOTH | ONLY_BENCH, 0}, {                              \
        slot, body, {64, 8, 8, 6, 32}, IN_BOTH | ONLY_BENCH, 0                                     \
    }

#endif
