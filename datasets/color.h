/* Colour changes of 8-bit RGB with the arithmetic of Pillow's ImageEnhance and ImageOps: not a byte
 * differs (tests/data/images/color.tsv, policy.tsv). All work in place. */
#ifndef TTV_DATASETS_COLOR_H
#define TTV_DATASETS_COLOR_H

#include <stdint.h>

/* ImageEnhance: factor 1 changes nothing, 0 gives black, the mean grey, the grey image, the
 * smoothed image. `work` holds as many bytes as the picture. */
void color_brightness(uint8_t *rgb, int64_t pixels, float factor);
void color_contrast(uint8_t *rgb, int64_t pixels, float factor);
void color_saturation(uint8_t *rgb, int64_t pixels, float factor);
void color_sharpness(uint8_t *rgb, int64_t width, int64_t height, float factor, uint8_t *work);

/* ImageOps: each channel through a table of 256 levels. */
void color_autocontrast(uint8_t *rgb, int64_t pixels);
void color_equalize(uint8_t *rgb, int64_t pixels);
void color_invert(uint8_t *rgb, int64_t pixels);
void color_posterize(uint8_t *rgb, int64_t pixels, int bits);        /* keeps 0 to 8 bits */
void color_solarize(uint8_t *rgb, int64_t pixels, double threshold); /* inverts from there on */
void color_solarize_add(uint8_t *rgb, int64_t pixels, int amount);   /* to levels below 128 */

#endif
