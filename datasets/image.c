#include "datasets/image.h"

#include <stdio.h>
#include <string.h>

#include "core/file.h"
#include "core/memory.h"
#include "datasets/image_internal.h"

enum { SHOWN = 600 }; /* bytes of a name in a message, so that the reason behind it still fits */

void image_decoders(char *text, size_t size) {
    snprintf(text, size, "%s, %s", image_jpeg_library(), image_png_library());
}

ImageOptions image_options_default(void) {
    return (ImageOptions){
        .max_pixels = DEFAULT_MAX_PIXELS,
        .check_plausible = true,
        .strict = true,
        .alpha = ALPHA_DROP,
    };
}

Status image_check_size(const DecodeJob *job, const ImageInfo *info, int64_t pixels_per_byte) {
    const ImageOptions *o = job->options;
    int64_t limit = o->max_pixels > 0 ? o->max_pixels : DEFAULT_MAX_PIXELS;
    /* Sides are below 2^31, so the product fits. */
    int64_t pixels = info->width * info->height;
    if (pixels > limit) {
        return status_set(
            STATUS_DATA,
            "%s: %lld x %lld pixels are more than the limit of %lld (data.max_pixels, "
            "--max-image-pixels)",
            job->file.name, (long long)info->width, (long long)info->height, (long long)limit);
    }
    if (o->check_plausible && pixels / pixels_per_byte > (int64_t)job->file.size) {
        return status_set(STATUS_DATA,
                          "%s: the header claims %lld x %lld pixels, too many for a file of %zu "
                          "bytes (data.plausible, --no-plausible-sizes)",
                          job->file.name, (long long)info->width, (long long)info->height,
                          job->file.size);
    }
    return STATUS_OK;
}

Status image_allocate(const DecodeJob *job, int64_t width, int64_t height, Image *out) {
    ImageScratch *s = job->scratch;
    size_t bytes = (size_t)(width * height) * 3;
    void *block = s != NULL ? s->memory : NULL;
    if (s == NULL) {
        TRY(mem_grow(&block, (int64_t)bytes, 1, "pixels"));
    } else if (s->bytes < bytes) {
        image_scratch_free(s);
        block = NULL;
        TRY(mem_grow(&block, (int64_t)bytes, 1, "pixels"));
        *s = (ImageScratch){block, bytes};
    }
    *out = (Image){block, width, height};
    return STATUS_OK;
}

void image_discard(const DecodeJob *job, Image *out) {
    if (job->scratch == NULL) mem_free(out->pixels);
    *out = (Image){0};
}

void image_scratch_free(ImageScratch *s) {
    mem_free(s->memory);
    *s = (ImageScratch){0};
}

void image_free(Image *image) {
    mem_free(image->pixels);
    *image = (Image){0};
}

typedef enum Format { FORMAT_NONE, FORMAT_JPEG, FORMAT_PNG } Format;

static Format format_of(const Encoded *file) {
    if (file->size >= 2 && memcmp(file->bytes, "\xFF\xD8", 2) == 0) return FORMAT_JPEG;
    if (file->size >= 8 && memcmp(file->bytes, "\x89PNG\r\n\x1A\n", 8) == 0) return FORMAT_PNG;
    return FORMAT_NONE;
}

static Status probe(const Encoded *file, ImageInfo *info) {
    switch (format_of(file)) {
    case FORMAT_JPEG:
        return jpeg_probe(file, info);
    case FORMAT_PNG:
        return png_probe(file, info);
    case FORMAT_NONE:
        break;
    }
    return status_set(STATUS_DATA, "%s: not a JPEG or PNG image, but %s", file->name,
                      image_kind(file->bytes, file->size));
}

Status image_probe(const void *bytes, size_t size, const char *name, ImageInfo *info) {
    char shown[SHOWN];
    Encoded file = {bytes, size, text_printable(name, shown, sizeof shown)};
    *info = (ImageInfo){.orientation = 1};
    return probe(&file, info);
}

/* Where pixel (x, y) of the turned image comes from: a + x * step_x + y * step_y in the stored one.
 */
typedef struct Turn {
    int64_t start, step_x, step_y;
} Turn;

static Turn turn_of(int orientation, int64_t w, int64_t h) {
    switch (orientation) {
    case 2: /* mirrored left to right */
        return (Turn){w - 1, -1, w};
    case 3: /* upside down */
        return (Turn){w * h - 1, -1, -w};
    case 4: /* mirrored top to bottom */
        return (Turn){(h - 1) * w, 1, -w};
    case 5: /* transposed */
        return (Turn){0, w, 1};
    case 6: /* to be turned a quarter clockwise */
        return (Turn){(h - 1) * w, -w, 1};
    case 7: /* transposed along the other diagonal */
        return (Turn){w * h - 1, -w, -1};
    case 8: /* to be turned a quarter anticlockwise */
        return (Turn){w - 1, w, -1};
    default:
        return (Turn){0, 1, w};
    }
}

static Status apply_orientation(Image *image, int orientation) {
    bool swap = orientation >= 5;
    Image turned = {NULL, swap ? image->height : image->width, swap ? image->width : image->height};
    Turn turn = turn_of(orientation, image->width, image->height);
    void *block;
    TRY(mem_alloc(&block, image->width * image->height, 3, "turned pixels"));
    turned.pixels = block;
    uint8_t *to = turned.pixels;
    for (int64_t y = 0; y < turned.height; y++) {
        for (int64_t x = 0; x < turned.width; x++, to += 3) {
            memcpy(to, image->pixels + (turn.start + x * turn.step_x + y * turn.step_y) * 3, 3);
        }
    }
    mem_free(image->pixels);
    *image = turned;
    return STATUS_OK;
}

static Status decode(const DecodeJob *job, Image *out) {
    return format_of(&job->file) == FORMAT_JPEG ? jpeg_decode(job, out) : png_decode(job, out);
}

Status image_decode(const void *bytes, size_t size, const char *name, const ImageOptions *o,
                    Image *out, ImageInfo *info) {
    char shown[SHOWN];
    ImageInfo local;
    DecodeJob job = {{bytes, size, text_printable(name, shown, sizeof shown)}, o, NULL};
    if (info == NULL) info = &local;
    *info = (ImageInfo){.orientation = 1};
    *out = (Image){0};
    TRY(probe(&job.file, info));
    TRY(decode(&job, out));
    if (!o->apply_orientation || info->orientation == 1) return STATUS_OK;
    Status s = apply_orientation(out, info->orientation);
    if (s != STATUS_OK) image_free(out);
    return s;
}

Status image_decode_scratch(const void *bytes, size_t size, const char *name, const ImageOptions *o,
                            ImageScratch *scratch, Image *out) {
    char shown[SHOWN];
    ImageInfo info;
    DecodeJob job = {{bytes, size, text_printable(name, shown, sizeof shown)}, o, scratch};
    *out = (Image){0};
    if (format_of(&job.file) == FORMAT_NONE) return probe(&job.file, &info);
    return decode(&job, out);
}

Status image_read(const char *path, const ImageOptions *o, Image *out, ImageInfo *info) {
    char *bytes;
    size_t size;
    *out = (Image){0};
    TRY(file_read(path, IMAGE_MAX_FILE_BYTES, &bytes, &size));
    Status s = image_decode(bytes, size, path, o, out, info);
    mem_free(bytes);
    return s;
}
