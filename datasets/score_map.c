/* Where two pictures differ, as colours. */
#include <math.h>
#include <stdlib.h>

#include "core/memory.h"
#include "datasets/score_internal.h"

static uint8_t to_byte(double v) {
    return v <= 0 ? 0 : v >= 1 ? 255 : (uint8_t)lrint(v * 255);
}

/* Black, red, yellow, white, with even steps between. */
static void ramp(double t, uint8_t *rgb) {
    rgb[0] = to_byte(3 * t);
    rgb[1] = to_byte(3 * t - 1);
    rgb[2] = to_byte(3 * t - 2);
}

Status score_error_map(const Picture *a, const Picture *b, const ScoreOptions *o, double full,
                       Image *out) {
    *out = (Image){0};
    TRY(score_check_pair(a, b, o));
    void *block;
    TRY(mem_alloc(&block, a->width * a->height, 3, "error map"));
    *out = (Image){block, a->width, a->height};
    double scale = 1 / (full * picture_full(a) * a->colors);
    uint8_t *to = out->pixels;
    for (int64_t y = 0; y < a->height; y++) {
        for (int64_t x = 0; x < a->width; x++, to += 3) {
            int64_t sum = 0;
            for (int c = 0; c < a->colors; c++)
                sum += abs(picture_sample(a, o->alpha, x, y, c) -
                           picture_sample(b, o->alpha, x, y, c));
            ramp((double)sum * scale, to);
        }
    }
    return STATUS_OK;
}
