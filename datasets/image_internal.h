/* What the decoders share; private to datasets/. */
#ifndef TTV_DATASETS_IMAGE_INTERNAL_H
#define TTV_DATASETS_IMAGE_INTERNAL_H

#include "datasets/image.h"

/* A file image in memory. `name` is printable. */
typedef struct Encoded {
    const unsigned char *bytes;
    size_t size;
    const char *name;
} Encoded;

/* One decoding job. */
typedef struct DecodeJob {
    Encoded file;
    const ImageOptions *options;
    ImageScratch *scratch; /* NULL: out->pixels is a fresh block */
} DecodeJob;

/* Pixels per encoded byte that no PNG exceeds: deflate reaches 1032:1, a byte holds 8 pixels
 * (users_expect.md R12). JPEG: see jpeg_pixels_per_byte(). */
enum { PNG_PIXELS_PER_BYTE = 8256, DEFAULT_MAX_PIXELS = 178956970 };

/* Name and version of the libraries. */
const char *image_jpeg_library(void);
const char *image_png_library(void);

/* The limits, from header numbers alone, before anything is allocated. */
Status image_check_size(const DecodeJob *job, const ImageInfo *info, int64_t pixels_per_byte);
/* Pixels in the job's scratch or on the heap; contents undefined. */
Status image_allocate(const DecodeJob *job, int64_t width, int64_t height, Image *out);
/* Undoes image_allocate after a failed decode. */
void image_discard(const DecodeJob *job, Image *out);

Status jpeg_probe(const Encoded *file, ImageInfo *info);
Status jpeg_decode(const DecodeJob *job, Image *out);
Status png_probe(const Encoded *file, ImageInfo *info);
Status png_decode(const DecodeJob *job, Image *out);
Status png_decode_deep(const DecodeJob *job, DeepImage *out);

#endif
