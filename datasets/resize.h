/* Pillow-exact resampling of 8-bit RGB (vittt.md section 8.3): separable, horizontal pass first,
 * 8-bit rounding in between, 22-bit fixed-point weights. No differing byte against Pillow 9.4
 * (tests/golden). */
#ifndef TTV_DATASETS_RESIZE_H
#define TTV_DATASETS_RESIZE_H

#include "datasets/image.h"

typedef enum Filter { FILTER_BILINEAR, FILTER_BICUBIC, FILTER_LANCZOS } Filter;

/* A rectangle of pixels. */
typedef struct ImageRegion {
    int64_t left, top, width, height;
} ImageRegion;

/* Work memory reused between calls; zero-initialise, free at the end. One per thread. */
typedef struct ResizeScratch {
    void *memory;
    size_t bytes;
} ResizeScratch;
void resize_scratch_free(ResizeScratch *s);
/* At least `bytes` of it, contents lost: for other work on the same thread. */
Status resize_scratch_reserve(ResizeScratch *s, size_t bytes);

/* Box [left, left+box_w) x [top, top+box_h) of src (integer pixels inside src), as if cropped
 * first, resized into dst[out_h,out_w,3]. */
Status resize_box(const Image *src, int64_t left, int64_t top, int64_t box_w, int64_t box_h,
                  Filter filter, uint8_t *dst, int64_t out_w, int64_t out_h,
                  ResizeScratch *scratch);

/* The same with only `window` of the full_w x full_h result computed, into dst[window.height,
 * window.width, 3]: resize and crop in one, however large the uncropped result would be. */
Status resize_window(const Image *src, ImageRegion box, Filter filter, int64_t full_w,
                     int64_t full_h, ImageRegion window, uint8_t *dst, ResizeScratch *scratch);

#endif
