/* ImageOps: tables of 256 levels for each channel. */
#include "datasets/color.h"

enum { LEVELS = 256 };

typedef struct ColorTable {
    uint8_t level[3][LEVELS];
} ColorTable;

static void apply(const ColorTable *t, uint8_t *rgb, int64_t pixels) {
    for (int64_t i = 0; i < pixels; i++, rgb += 3) {
        for (int c = 0; c < 3; c++) rgb[c] = t->level[c][rgb[c]];
    }
}

/* The same table for all channels. */
static void apply_one(const uint8_t level[LEVELS], uint8_t *rgb, int64_t pixels) {
    for (int64_t i = 0; i < pixels * 3; i++) rgb[i] = level[rgb[i]];
}

typedef struct Histogram {
    int64_t count[3][LEVELS];
} Histogram;

static void count_levels(Histogram *h, const uint8_t *rgb, int64_t pixels) {
    *h = (Histogram){0};
    for (int64_t i = 0; i < pixels; i++, rgb += 3) {
        for (int c = 0; c < 3; c++) h->count[c][rgb[c]]++;
    }
}

/* Darkest and lightest level that occurs. */
static void extremes(const int64_t count[LEVELS], int *low, int *high) {
    *low = 0;
    *high = LEVELS - 1;
    while (*low < LEVELS - 1 && count[*low] == 0) ++*low;
    while (*high > 0 && count[*high] == 0) --*high;
}

static void keep(uint8_t level[LEVELS]) {
    for (int i = 0; i < LEVELS; i++) level[i] = (uint8_t)i;
}

/* The darkest level becomes 0 and the lightest 255; truncated, so that rounding errors of the
 * offset tell. */
static void stretch(const int64_t count[LEVELS], uint8_t level[LEVELS]) {
    int low, high;
    extremes(count, &low, &high);
    if (high <= low) {
        keep(level);
        return;
    }
    const double scale = 255.0 / (high - low), offset = -low * scale;
    for (int i = 0; i < LEVELS; i++) {
        const int v = (int)(i * scale + offset);
        level[i] = (uint8_t)(v < 0 ? 0 : v > 255 ? 255 : v);
    }
}

/* Cumulated counts in steps of a 255th of all pixels but those of the lightest level. */
static void flatten(const int64_t count[LEVELS], uint8_t level[LEVELS]) {
    int low, high;
    int64_t total = 0;
    extremes(count, &low, &high);
    for (int i = 0; i < LEVELS; i++) total += count[i];
    const int64_t step = (total - count[high]) / 255;
    if (high <= low || step == 0) {
        keep(level);
        return;
    }
    int64_t n = step / 2;
    for (int i = 0; i < LEVELS; i++) {
        level[i] = (uint8_t)(n / step > 255 ? 255 : n / step);
        n += count[i];
    }
}

static void remap(uint8_t *rgb, int64_t pixels,
                  void (*build)(const int64_t count[LEVELS], uint8_t level[LEVELS])) {
    Histogram h;
    ColorTable t;
    count_levels(&h, rgb, pixels);
    for (int c = 0; c < 3; c++) build(h.count[c], t.level[c]);
    apply(&t, rgb, pixels);
}

void color_autocontrast(uint8_t *rgb, int64_t pixels) {
    remap(rgb, pixels, stretch);
}

void color_equalize(uint8_t *rgb, int64_t pixels) {
    remap(rgb, pixels, flatten);
}

void color_invert(uint8_t *rgb, int64_t pixels) {
    for (int64_t i = 0; i < pixels * 3; i++) rgb[i] = (uint8_t)(255 - rgb[i]);
}

void color_posterize(uint8_t *rgb, int64_t pixels, int bits) {
    const int lost = bits < 0 ? 8 : bits > 8 ? 0 : 8 - bits;
    const uint8_t mask = (uint8_t)(255 << lost);
    for (int64_t i = 0; i < pixels * 3; i++) rgb[i] &= mask;
}

void color_solarize(uint8_t *rgb, int64_t pixels, double threshold) {
    uint8_t level[LEVELS];
    for (int i = 0; i < LEVELS; i++) level[i] = (uint8_t)(i < threshold ? i : 255 - i);
    apply_one(level, rgb, pixels);
}

void color_solarize_add(uint8_t *rgb, int64_t pixels, int amount) {
    uint8_t level[LEVELS];
    for (int i = 0; i < LEVELS; i++) {
        const int v = i < 128 ? i + amount : i;
        level[i] = (uint8_t)(v < 0 ? 0 : v > 255 ? 255 : v);
    }
    apply_one(level, rgb, pixels);
}
