#include "datasets/y4m.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

#include "core/file.h"
#include "core/memory.h"

typedef struct Colour {
    double r, g, b; /* 0 to 255 */
} Colour;

static uint8_t rounded(double x) {
    return (uint8_t)lrint(x);
}

static Colour pixel(const uint8_t *p) {
    return (Colour){p[0], p[1], p[2]};
}

/* ITU-R BT.601, 65.481 = 219 * 0.299 and so on, of r, g, b in 0..1. */
static uint8_t luma(Colour c) {
    return rounded(16 + (65.481 * c.r + 128.553 * c.g + 24.966 * c.b) / 255);
}
static uint8_t chroma_blue(Colour c) {
    return rounded(128 + (-37.797 * c.r - 74.203 * c.g + 112.0 * c.b) / 255);
}
static uint8_t chroma_red(Colour c) {
    return rounded(128 + (112.0 * c.r - 93.786 * c.g - 18.214 * c.b) / 255);
}

/* Mean of the pixels of a 2x2 block that are there. */
static Colour block_mean(const uint8_t *rgb, int64_t width, int64_t height, int64_t x, int64_t y) {
    Colour sum = {0, 0, 0};
    int count = 0;
    for (int64_t j = y; j < y + 2 && j < height; j++)
        for (int64_t i = x; i < x + 2 && i < width; i++) {
            const Colour c = pixel(rgb + (j * width + i) * 3);
            sum = (Colour){sum.r + c.r, sum.g + c.g, sum.b + c.b};
            count++;
        }
    return (Colour){sum.r / count, sum.g / count, sum.b / count};
}

/* Y, then Cb, then Cr; their bytes. */
static int64_t convert(const uint8_t *rgb, int64_t width, int64_t height, uint8_t *out) {
    const int64_t half_width = (width + 1) / 2, half_height = (height + 1) / 2;
    uint8_t *blue = out + width * height, *red = blue + half_width * half_height;
    for (int64_t i = 0; i < width * height; i++) out[i] = luma(pixel(rgb + 3 * i));
    for (int64_t y = 0; y < half_height; y++)
        for (int64_t x = 0; x < half_width; x++) {
            const Colour c = block_mean(rgb, width, height, 2 * x, 2 * y);
            blue[y * half_width + x] = chroma_blue(c);
            red[y * half_width + x] = chroma_red(c);
        }
    return width * height + 2 * half_width * half_height;
}

static Status write_frames(FileWriter *w, const uint8_t *frames, int64_t count, int64_t width,
                           int64_t height, double fps, uint8_t *planes) {
    char head[128];
    long long rate = llrint(fps * 1000), unit = 1000;
    if (rate % 1000 == 0) {
        rate /= 1000;
        unit = 1;
    }
    snprintf(head, sizeof head, "YUV4MPEG2 W%lld H%lld F%lld:%lld Ip A1:1 C420jpeg\n",
             (long long)width, (long long)height, rate, unit);
    TRY(file_writer_write(w, head, strlen(head)));
    for (int64_t i = 0; i < count; i++) {
        const int64_t bytes = convert(frames + i * width * height * 3, width, height, planes);
        TRY(file_writer_write(w, "FRAME\n", 6));
        TRY(file_writer_write(w, planes, (size_t)bytes));
    }
    return STATUS_OK;
}

Status y4m_write(const char *path, const uint8_t *frames, int64_t count, int64_t width,
                 int64_t height, double fps) {
    FileWriter *w;
    void *planes;
    if (width < 1 || height < 1 || !(fps >= 0.001 && fps <= 1000))
        return status_set(STATUS_DATA, "%s: no video of %lldx%lld pixels, %g frames a second", path,
                          (long long)width, (long long)height, fps);
    TRY(mem_alloc(&planes, (width + 1) * (height + 1), 2, "a video frame"));
    Status s = file_writer_open(path, &w);
    if (s == STATUS_OK) {
        s = write_frames(w, frames, count, width, height, fps, planes);
        if (s == STATUS_OK)
            s = file_writer_commit(w);
        else
            file_writer_abort(w);
    }
    mem_free(planes);
    return s;
}
