/* Places of a 3x3 convolution with padding 1 on a map: for kernels/cpu/ only. */
#ifndef TTV_KERNELS_CPU_PLACES_H
#define TTV_KERNELS_CPU_PLACES_H

#include "kernels/cpu/values.h"

/* A map and the places of a convolution on it. */
typedef struct Places {
    int64_t batch, height, width, channels, stride, rows, columns;
} Places;

static inline Places places_of(Tensor x, int64_t stride) {
    return (Places){x.shape[0],
                    x.shape[1],
                    x.shape[2],
                    x.shape[3],
                    stride,
                    div_up(x.shape[1], stride),
                    div_up(x.shape[2], stride)};
}

/* Element of the first channel at tap t around place i of the batch; -1: outside the map. */
static inline int64_t around(const Places *p, int64_t i, int t) {
    const int64_t each = p->rows * p->columns, row = i % each / p->columns;
    const int64_t y = row * p->stride + t / 3 - 1, x = i % p->columns * p->stride + t % 3 - 1;
    if (y < 0 || y >= p->height || x < 0 || x >= p->width) return -1;
    return ((i / each * p->height + y) * p->width + x) * p->channels;
}

/* The place whose tap t looks at pixel q, or -1. */
static inline int64_t looking(const Places *p, int64_t q, int t) {
    const int64_t each = p->height * p->width;
    const int64_t y = q % each / p->width - (t / 3 - 1), x = q % p->width - (t % 3 - 1);
    if (y < 0 || x < 0 || y % p->stride || x % p->stride) return -1;
    const int64_t row = y / p->stride, column = x / p->stride;
    if (row >= p->rows || column >= p->columns) return -1;
    return (q / each * p->rows + row) * p->columns + column;
}

#endif
