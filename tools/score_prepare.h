/* What `ttv psnr` does to pictures before they are scored, because it was asked to. */
#ifndef TTV_TOOLS_SCORE_PREPARE_H
#define TTV_TOOLS_SCORE_PREPARE_H

#include "datasets/image.h"

/* 16-bit samples rounded to 8 (scale 65535); 8-bit ones stay. */
void picture_quantise(DeepImage *p);
/* Bicubic, as Pillow's with antialiasing, to width x height. STATUS_DATA, naming the picture, for
 * 16 bits or alpha. */
Status picture_resize(DeepImage *p, int64_t width, int64_t height, const char *name);

#endif
