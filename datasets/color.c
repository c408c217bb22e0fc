/* ImageEnhance: blends with black, the mean grey, the grey and the smoothed picture. */
#include "datasets/color.h"

#include <string.h>

/* ITU-R 601 luma in 16-bit fixed point, Pillow's convert("L"). */
static int luma(const uint8_t *p) {
    return (p[0] * 19595 + p[1] * 38470 + p[2] * 7471 + 0x8000) >> 16;
}

/* from + factor * (to - from), cut to a byte by truncation. */
static uint8_t blend(int from, int to, float factor) {
    float v = (float)from + factor * (float)(to - from);
    return (uint8_t)(v <= 0 ? 0 : v >= 255 ? 255 : v);
}

void color_brightness(uint8_t *rgb, int64_t pixels, float factor) {
    for (int64_t i = 0; i < pixels * 3; i++) rgb[i] = blend(0, rgb[i], factor);
}

void color_contrast(uint8_t *rgb, int64_t pixels, float factor) {
    int64_t sum = 0;
    for (int64_t i = 0; i < pixels; i++) sum += luma(rgb + i * 3);
    int mean = (int)((double)sum / (double)pixels + 0.5);
    for (int64_t i = 0; i < pixels * 3; i++) rgb[i] = blend(mean, rgb[i], factor);
}

void color_saturation(uint8_t *rgb, int64_t pixels, float factor) {
    for (int64_t i = 0; i < pixels; i++, rgb += 3) {
        int grey = luma(rgb);
        for (int c = 0; c < 3; c++) rgb[c] = blend(grey, rgb[c], factor);
    }
}

/* One row of ImageFilter.SMOOTH, border pixels excepted. Weights and order of the sums are
 * Pillow's: row below, own, above; 1/13 and 5/13 in float. */
static void smooth_row(const uint8_t *above, const uint8_t *own, const uint8_t *below,
                       int64_t bytes, uint8_t *out) {
    const float side = 1.0f / 13.0f, centre = 5.0f / 13.0f;
    for (int64_t i = 3; i < bytes - 3; i++) {
        float v = 0.5f;
        v += below[i - 3] * side + below[i] * side + below[i + 3] * side;
        v += own[i - 3] * side + own[i] * centre + own[i + 3] * side;
        v += above[i - 3] * side + above[i] * side + above[i + 3] * side;
        out[i] = (uint8_t)(v >= 255 ? 255 : v);
    }
}

void color_sharpness(uint8_t *rgb, int64_t width, int64_t height, float factor, uint8_t *work) {
    const int64_t row = width * 3;
    memcpy(work, rgb, (size_t)(row * height));
    for (int64_t y = 1; y < height - 1; y++) {
        const uint8_t *own = rgb + y * row;
        smooth_row(own - row, own, own + row, row, work + y * row);
    }
    for (int64_t i = 0; i < row * height; i++) rgb[i] = blend(work[i], rgb[i], factor);
}
