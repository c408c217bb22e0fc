/* PSNR and MSE of a pair; the contract is users_expect.md section 7. */
#include "datasets/score.h"

#include <math.h>

#include "datasets/score_internal.h"

Picture picture_of_image(const Image *image, const char *name) {
    return (Picture){.name = name,
                     .bytes = image->pixels,
                     .width = image->width,
                     .height = image->height,
                     .colors = 3,
                     .bits = 8};
}

Picture picture_of_deep(const DeepImage *image, const char *name) {
    return (Picture){.name = name,
                     .words = image->samples,
                     .width = image->width,
                     .height = image->height,
                     .colors = image->colors,
                     .alpha = image->alpha,
                     .bits = image->bits};
}

static Status check_alpha(const Picture *p, ScoreAlpha alpha) {
    if (!p->alpha || alpha != SCORE_ALPHA_ERROR) return STATUS_OK;
    return status_set(STATUS_DATA, "%s: has an alpha channel (--alpha ignore or composite)",
                      p->name);
}

static const char *colors_word(const Picture *p) {
    return p->colors == 1 ? "grey" : "RGB";
}

Status score_check_pair(const Picture *a, const Picture *b, const ScoreOptions *o) {
    if (a->width != b->width || a->height != b->height)
        return status_set(STATUS_DATA, "%s: %lld x %lld pixels, but %s has %lld x %lld", b->name,
                          (long long)b->width, (long long)b->height, a->name, (long long)a->width,
                          (long long)a->height);
    if (a->colors != b->colors)
        return status_set(STATUS_DATA, "%s: is %s, but %s is %s", b->name, colors_word(b), a->name,
                          colors_word(a));
    if (a->bits != b->bits)
        return status_set(STATUS_DATA, "%s: has %d bits, but %s has %d", b->name, b->bits, a->name,
                          a->bits);
    TRY(check_alpha(a, o->alpha));
    return check_alpha(b, o->alpha);
}

static Status check_border(const Picture *a, int64_t border) {
    if (border >= 0 && border < (a->width + 1) / 2 && border < (a->height + 1) / 2)
        return STATUS_OK;
    return status_set(STATUS_DATA, "%s: a border of %lld pixels leaves nothing of %lld x %lld",
                      a->name, (long long)border, (long long)a->width, (long long)a->height);
}

/* Row sums are exact integers: 65535^2 times a row of 2^31 samples is below 2^63. */
static double sum_squares(const Picture *a, const Picture *b, const ScoreOptions *o, Score *out) {
    double total = 0;
    for (int64_t y = o->border; y < a->height - o->border; y++) {
        int64_t row = 0;
        for (int64_t x = o->border; x < a->width - o->border; x++) {
            for (int c = 0; c < a->colors; c++) {
                int va = picture_sample(a, o->alpha, x, y, c);
                int vb = picture_sample(b, o->alpha, x, y, c);
                int64_t d = va - vb;
                row += d * d;
                if (va > out->largest_a) out->largest_a = va;
                if (vb > out->largest_b) out->largest_b = vb;
            }
        }
        total += (double)row;
    }
    return total;
}

/* Largest samples were taken along with sum_squares(). */
static double sum_luma(const Picture *a, const Picture *b, const ScoreOptions *o) {
    double total = 0;
    for (int64_t y = o->border; y < a->height - o->border; y++) {
        double row = 0;
        for (int64_t x = o->border; x < a->width - o->border; x++) {
            const double d = picture_luma(a, o->alpha, x, y) - picture_luma(b, o->alpha, x, y);
            row += d * d;
        }
        total += row;
    }
    return total;
}

void score_values(const Picture *p, const ScoreOptions *o, float *out) {
    const double full = picture_full(p);
    for (int64_t y = o->border; y < p->height - o->border; y++)
        for (int64_t x = o->border; x < p->width - o->border; x++)
            for (int c = 0; c < 3; c++)
                *out++ = (float)(picture_sample(p, o->alpha, x, y, p->colors == 3 ? c : 0) / full);
}

Status score_pictures(const Picture *a, const Picture *b, const ScoreOptions *o, Score *out) {
    *out = (Score){.ssim = NAN, .lpips = NAN, .colors = score_channels(a, o), .bits = a->bits};
    TRY(score_check_pair(a, b, o));
    TRY(check_border(a, o->border));
    out->width = a->width - 2 * o->border;
    out->height = a->height - 2 * o->border;
    out->samples = out->width * out->height * out->colors;
    bool scaled = o->range == 1;
    double range = o->range > 0 && !scaled ? o->range : picture_full(a);
    out->range = scaled ? 1 : range;
    double sum = sum_squares(a, b, o, out);
    if (o->luma && a->colors == 3) sum = sum_luma(a, b, o);
    double mse = sum / (double)out->samples;
    out->identical = sum == 0;
    out->squared_error = sum / (range * range);
    out->mse = scaled ? mse / (range * range) : mse;
    out->psnr = out->identical ? INFINITY : 10 * log10(range * range / mse);
    bool fits = out->width >= SSIM_WINDOW && out->height >= SSIM_WINDOW;
    return o->ssim && fits ? ssim_of(a, b, o, range, &out->ssim) : STATUS_OK;
}

const char *score_alarm(int largest, int bits) {
    if (largest == 0) return "is all black";
    if (largest == 1) return "holds no sample above 1: written as 0..1 instead of 0..255?";
    if (bits == 16 && largest <= 255)
        return "has 16 bits, but no sample above 255: is it scaled to 0..65535?";
    return NULL;
}
