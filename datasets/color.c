#include "datasets/color.h"

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
