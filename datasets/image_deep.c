/* Pictures with all their channels and bits, for scoring. */
#include <string.h>

#include "core/file.h"
#include "core/memory.h"
#include "datasets/image_internal.h"

void deep_image_free(DeepImage *image) {
    mem_free(image->samples);
    *image = (DeepImage){0};
}

/* libjpeg replicates grey, so its first channel is the grey one. */
static Status from_rgb(const Image *rgb, int colors, DeepImage *out) {
    int64_t pixels = rgb->width * rgb->height;
    void *block;
    TRY(mem_alloc(&block, pixels, (size_t)colors * sizeof(uint16_t), "samples"));
    *out = (DeepImage){block, rgb->width, rgb->height, colors, false, 8};
    for (int64_t i = 0; i < pixels; i++)
        for (int c = 0; c < colors; c++) out->samples[i * colors + c] = rgb->pixels[i * 3 + c];
    return STATUS_OK;
}

static Status decode_jpeg(const void *bytes, size_t size, const char *name, const ImageOptions *o,
                          DeepImage *out) {
    ImageOptions plain = *o;
    plain.apply_orientation = false;
    Image rgb;
    ImageInfo info;
    TRY(image_decode(bytes, size, name, &plain, &rgb, &info));
    Status s = from_rgb(&rgb, info.channels == 1 ? 1 : 3, out);
    image_free(&rgb);
    return status_context(s, "%s", name);
}

Status image_decode_deep(const void *bytes, size_t size, const char *name, const ImageOptions *o,
                         DeepImage *out) {
    char shown[600];
    ImageInfo info;
    *out = (DeepImage){0};
    TRY(image_probe(bytes, size, name, &info));
    if (strcmp(info.format, "png") != 0) return decode_jpeg(bytes, size, name, o, out);
    DecodeJob job = {{bytes, size, text_printable(name, shown, sizeof shown)}, o, NULL};
    return png_decode_deep(&job, out);
}

Status image_read_deep(const char *path, const ImageOptions *o, DeepImage *out) {
    char *bytes;
    size_t size;
    *out = (DeepImage){0};
    TRY(file_read(path, IMAGE_MAX_FILE_BYTES, &bytes, &size));
    Status s = image_decode_deep(bytes, size, path, o, out);
    mem_free(bytes);
    return s;
}
