/* Decoding: JPEG and PNG bytes to 8-bit RGB, with limits before any allocation.
 *
 * The type is read from magic bytes, never from the name. Grey is replicated, palettes are
 * expanded, 16-bit is rounded to 8 (scale 65535), alpha is dropped like Pillow's convert("RGB") (or
 * composited, by policy), CMYK/YCCK become RGB by the Adobe marker's rules. EXIF orientation is
 * ignored or applied by policy; a broken EXIF block never fails the image.
 */
#ifndef TTV_DATASETS_IMAGE_H
#define TTV_DATASETS_IMAGE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "core/status.h"

typedef struct Image {
    uint8_t *pixels; /* [height, width, 3]; mem_free through image_free */
    int64_t width, height;
} Image;

typedef enum AlphaPolicy { ALPHA_DROP, ALPHA_COMPOSITE_BLACK, ALPHA_COMPOSITE_WHITE } AlphaPolicy;

typedef struct ImageOptions {
    int64_t max_pixels;   /* 0: 178,956,970 */
    bool check_plausible; /* refuse more pixels per byte than the coding can reach: 8,256 (PNG), 170
                             (JPEG 4:2:0) */
    bool apply_orientation; /* EXIF */
    bool strict; /* decoder warnings (truncated data...) are errors; false: keep what decoded */
    AlphaPolicy alpha;
} ImageOptions;
/* Strict, plausibility checked, orientation ignored, alpha dropped. */
ImageOptions image_options_default(void);

/* What the header says. */
typedef struct ImageInfo {
    const char *format;    /* "jpeg", "png" */
    int64_t width, height; /* as stored */
    int channels, bits;
    int orientation; /* EXIF 1..8; 1 when absent or broken */
    bool progressive_or_interlaced;
} ImageInfo;

/* Messages start with `name`. STATUS_DATA for anything that is not a whole, plausible JPEG or PNG:
 * the text says what the bytes are (GIF, WebP, HTML, text, empty, ...). */
Status image_probe(const void *bytes, size_t size, const char *name, ImageInfo *info);
Status image_decode(const void *bytes, size_t size, const char *name, const ImageOptions *o,
                    Image *out, ImageInfo *info);
/* "libjpeg-turbo 2.1.5, libpng 1.6.39": pixels of one file may differ by a level between versions,
 * so results name them. */
void image_decoders(char *text, size_t size);
/* Memory that decoded pixels are put into again and again; zero-initialise, free at the end. One
 * per thread. */
typedef struct ImageScratch {
    uint8_t *memory;
    size_t bytes;
} ImageScratch;
void image_scratch_free(ImageScratch *s);

/* Like image_decode, but the pixels live in `scratch` until its next use (never image_free `out`),
 * and no orientation is applied. */
Status image_decode_scratch(const void *bytes, size_t size, const char *name, const ImageOptions *o,
                            ImageScratch *scratch, Image *out);

/* What bytes are, for messages: "a GIF image", "an HTML page", "an empty file", ... never NULL. */
const char *image_kind(const void *bytes, size_t size);

/* Larger files are refused unread. */
#define IMAGE_MAX_FILE_BYTES ((size_t)512 << 20)

/* Reads a regular file; FIFOs, folders and devices are refused. */
Status image_read(const char *path, const ImageOptions *o, Image *out, ImageInfo *info);
void image_free(Image *image);

/* Samples as they are stored: no grey made RGB, no 16 bits rounded, no alpha dropped. Palettes and
 * depths below 8 bits are expanded to 8, a transparent colour becomes alpha, CMYK becomes RGB. EXIF
 * orientation is ignored. For scoring (datasets/score.h). */
typedef struct DeepImage {
    uint16_t *samples; /* [height, width, colors + alpha]; mem_free through deep_image_free */
    int64_t width, height;
    int colors; /* 1: grey, 3: RGB */
    bool alpha; /* one more channel behind the colours */
    int bits;   /* 8 or 16 */
} DeepImage;

/* Of the options only max_pixels, check_plausible and (for JPEG) strict count; a PNG must be whole.
 */
Status image_decode_deep(const void *bytes, size_t size, const char *name, const ImageOptions *o,
                         DeepImage *out);
Status image_read_deep(const char *path, const ImageOptions *o, DeepImage *out);
void deep_image_free(DeepImage *image);

/* 8-bit RGB PNG, atomic. */
Status image_write_png(const char *path, const Image *image);
/* The same bytes in memory (mem_free). */
Status image_encode_png(const Image *image, void **bytes, size_t *size);

#endif
