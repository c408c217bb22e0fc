/* The two passes of the resampler on rows of bytes. Private to datasets/. */
#ifndef TTV_DATASETS_RESIZE_PASSES_H
#define TTV_DATASETS_RESIZE_PASSES_H

#include <stddef.h>
#include <stdint.h>

/* Weights are integers of 22 fractional bits: 255 * 2^22 * (sum of |weights|, below 2) fits 32
 * bits. */
enum { RESIZE_FRACTION_BITS = 22 };

/* Output i (of `count`) is the weighted sum of inputs [start[i], start[i] + taps[i]). starts and
 * ends do not decrease. */
typedef struct ResizeTaps {
    int64_t count, stride; /* weights of output i are weights[i * stride ...] */
    const int32_t *start, *taps, *weights;
} ResizeTaps;

/* Work memory of horizontal_pass for rows of in_width and h->count pixels. */
size_t horizontal_pass_bytes(int64_t in_width, int64_t out_width);

/* src[rows, *, 3] with rows `pitch` bytes apart -> dst[rows, count, 3]. */
void horizontal_pass(const ResizeTaps *h, const uint8_t *src, int64_t pitch, int64_t rows,
                     uint8_t *dst, uint8_t *work);

/* src, whose first row is input row `origin`, -> dst[count, row_bytes]. */
void vertical_pass(const ResizeTaps *v, const uint8_t *src, int64_t pitch, int64_t origin,
                   int64_t row_bytes, uint8_t *dst);

#endif
