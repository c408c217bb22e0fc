#include "tools/score_prepare.h"

#include "core/memory.h"
#include "datasets/resize.h"

void picture_quantise(DeepImage *p) {
    if (p->bits != 16) return;
    const int64_t count = p->width * p->height * (p->colors + (p->alpha ? 1 : 0));
    for (int64_t i = 0; i < count; i++) p->samples[i] = (uint16_t)((p->samples[i] + 128) / 257);
    p->bits = 8;
}

/* To 8-bit RGB, resized, and back; grey goes through as three equal channels. */
static Status resize(const DeepImage *p, uint8_t *rgb, uint8_t *small, int64_t width,
                     int64_t height, uint16_t *out) {
    const Image image = {rgb, p->width, p->height};
    ResizeScratch scratch = {0};
    for (int64_t i = 0; i < p->width * p->height; i++)
        for (int c = 0; c < 3; c++)
            rgb[3 * i + c] = (uint8_t)p->samples[p->colors * i + (p->colors == 3 ? c : 0)];
    Status s = resize_box(&image, 0, 0, p->width, p->height, FILTER_BICUBIC, small, width, height,
                          &scratch);
    resize_scratch_free(&scratch);
    for (int64_t i = 0; s == STATUS_OK && i < width * height; i++)
        for (int c = 0; c < p->colors; c++) out[p->colors * i + c] = small[3 * i + c];
    return s;
}

Status picture_resize(DeepImage *p, int64_t width, int64_t height, const char *name) {
    if (p->bits != 8 || p->alpha)
        return status_set(
            STATUS_DATA, "%s: has %s: only 8-bit pictures without alpha are resized%s", name,
            p->alpha ? "an alpha channel" : "16 bits", p->alpha ? "" : " (--quantize 8bit)");
    void *bytes, *samples;
    const int64_t before = p->width * p->height * 3, after = width * height * 3;
    TRY(mem_alloc(&bytes, before + after, 1, "a resized picture"));
    Status s =
        mem_alloc(&samples, width * height * p->colors, sizeof(uint16_t), "a resized picture");
    if (s == STATUS_OK) {
        s = resize(p, bytes, (uint8_t *)bytes + before, width, height, samples);
        if (s == STATUS_OK) {
            deep_image_free(&(DeepImage){.samples = p->samples});
            p->samples = samples;
            p->width = width;
            p->height = height;
        } else {
            mem_free(samples);
        }
    }
    mem_free(bytes);
    return s;
}
