/* Colour changes of 8-bit RGB with the arithmetic of Pillow's ImageEnhance. */
#ifndef TTV_DATASETS_COLOR_H
#define TTV_DATASETS_COLOR_H

#include <stdint.h>

/* In place; factor 1 changes nothing, 0 gives black, the mean grey, the grey image. */
void color_brightness(uint8_t *rgb, int64_t pixels, float factor);
void color_contrast(uint8_t *rgb, int64_t pixels, float factor);
void color_saturation(uint8_t *rgb, int64_t pixels, float factor);

#endif
