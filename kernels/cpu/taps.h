/* 3x3 taps over one channels-last F32 image: the core of dwconv.c and of the depthwise ViTTT
 * branch. */
#ifndef TTV_KERNELS_CPU_TAPS_H
#define TTV_KERNELS_CPU_TAPS_H

#include "kernels/kernels.h"

/* Rows [first, ...) of an image of height x width pixels; `pixel` floats from one pixel to the
 * next. */
typedef struct Map {
    const float *data;
    int64_t first, height, width, channels, pixel;
} Map;

/* The same for images inside act tensors. */
typedef struct ActMap {
    Tensor t;
    int64_t at, height, width, channels,
        pixel; /* `at`: element of the first pixel's first channel */
} ActMap;

/* Rows [begin, end) of an act image as F32: in place, or copied densely into `buffer`. */
Map map_rows(const ActMap *a, int64_t begin, int64_t end, float *buffer);

/* w[9][channels] from w[channels][9]; flipped (t -> 8-t) for the adjoint. */
void taps_transpose(float *out, const float *w, int64_t channels, bool flip);

/* out[x*out_pixel + c] = sum_t w[t][c] x[row, x + t][c] (+ bias[c]) (+ the input itself), one row.
 */
void taps_row(float *out, int64_t out_pixel, const Map *x, int64_t row, const float *w,
              const float *bias, bool add_input);

/* g[9][channels] += sum over all pixels p of x[p+t] y[p]; sum_y[channels] += y (optional). */
void taps_gradient(float *g, float *sum_y, const Map *x, const Map *y);

#endif
