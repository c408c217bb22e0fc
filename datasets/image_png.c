/* PNG through libpng: every colour type and depth to 8-bit RGB, without colour management (as
 * Pillow). */
#include <setjmp.h>
#include <stdio.h>
#include <string.h>

#include <png.h>

#include "core/memory.h"
#include "datasets/exif.h"
#include "datasets/image_internal.h"

enum { MAX_SIDE = 1000000, MAX_CHUNK_BYTES = 1 << 20 };

const char *image_png_library(void) {
    return "libpng " PNG_LIBPNG_VER_STRING;
}

typedef struct PngReader {
    png_structp png;
    png_infop info;
    jmp_buf escape;
    const Encoded *file;
    size_t at; /* next byte */
    bool out_of_memory;
    uint8_t *wide; /* RGBA rows when alpha is to be composited */
    int64_t rows_done;
    char message[160];
} PngReader;

static void on_error(png_structp png, png_const_charp message) {
    PngReader *r = png_get_error_ptr(png);
    snprintf(r->message, sizeof r->message, "%s", message);
    longjmp(r->escape, 1);
}

/* Warnings are about colour profiles and other extras that are not read anyway. */
static void on_warning(png_structp png, png_const_charp message) {
    (void)png;
    (void)message;
}

static void on_read(png_structp png, png_bytep out, size_t bytes) {
    PngReader *r = png_get_io_ptr(png);
    if (bytes > r->file->size - r->at) png_error(png, "the file is truncated");
    memcpy(out, r->file->bytes + r->at, bytes);
    r->at += bytes;
}

static png_voidp on_malloc(png_structp png, png_alloc_size_t bytes) {
    PngReader *r = png_get_mem_ptr(png);
    void *block = mem_malloc(bytes);
    if (block == NULL) r->out_of_memory = true;
    return block;
}

static void on_free(png_structp png, png_voidp block) {
    (void)png;
    mem_free(block);
}

/* IHDR, read by hand: decides about limits before libpng sees the file. */
Status png_probe(const Encoded *file, ImageInfo *info) {
    const unsigned char *b = file->bytes;
    if (file->size < 33 || memcmp(b + 8, "\0\0\0\x0DIHDR", 8) != 0) {
        return status_set(STATUS_DATA, "%s: bad PNG: no header chunk", file->name);
    }
    static const int channels_of[7] = {1, 0, 3, 1, 2, 0, 4};
    uint32_t width = png_get_uint_32(b + 16), height = png_get_uint_32(b + 20);
    int bits = b[24], color = b[25];
    if (width == 0 || height == 0 || width > PNG_UINT_31_MAX || height > PNG_UINT_31_MAX) {
        return status_set(STATUS_DATA, "%s: bad PNG: header says %u x %u pixels", file->name, width,
                          height);
    }
    if (color > 6 || channels_of[color] == 0 || bits == 0 || bits > 16) {
        return status_set(STATUS_DATA, "%s: bad PNG: colour type %d with %d bits", file->name,
                          color, bits);
    }
    *info = (ImageInfo){
        .format = "png",
        .width = width,
        .height = height,
        .channels = channels_of[color],
        .bits = bits,
        .orientation = exif_orientation_png(b, file->size),
        .progressive_or_interlaced = b[28] != 0,
    };
    return STATUS_OK;
}

/* Text, profiles, histograms and the like are passed over unread: nothing to inflate, nothing to
 * store. */
static void skip_extras(PngReader *r) {
    static const png_byte extras[] = "bKGD\0cHRM\0eXIf\0gAMA\0hIST\0iCCP\0iTXt\0oFFs\0pCAL\0pHYs\0"
                                     "sBIT\0sCAL\0sPLT\0sRGB\0tEXt\0tIME\0zTXt";
    int count = (int)(sizeof extras / 5);
    png_set_keep_unknown_chunks(r->png, PNG_HANDLE_CHUNK_NEVER, extras, count);
}

static void set_transforms(PngReader *r, bool keep_alpha) {
    png_set_expand(r->png); /* palette, 1/2/4 bits, tRNS */
    png_set_scale_16(r->png);
    png_set_gray_to_rgb(r->png);
    if (keep_alpha) {
        png_set_add_alpha(r->png, 255, PNG_FILLER_AFTER);
    } else {
        png_set_strip_alpha(r->png);
    }
}

static void start(PngReader *r, bool strict) {
    png_set_user_limits(r->png, MAX_SIDE, MAX_SIDE);
    png_set_chunk_cache_max(r->png, 16);
    png_set_chunk_malloc_max(r->png, MAX_CHUNK_BYTES);
    if (!strict) {
        png_set_crc_action(r->png, PNG_CRC_QUIET_USE, PNG_CRC_QUIET_USE);
        /* Inflate byte by byte: slow, but the last whole row of a truncated file is not lost in a
         * buffer. */
        png_set_compression_buffer_size(r->png, 1);
    }
    skip_extras(r);
    png_set_read_fn(r->png, r, on_read);
    png_read_info(r->png, r->info);
}

/* All passes; rows of the last pass are the finished ones. */
static void read_passes(PngReader *r, int passes, uint8_t *pixels, int64_t height,
                        size_t row_bytes) {
    for (int pass = 0; pass < passes; pass++) {
        for (int64_t y = 0; y < height; y++) {
            png_read_row(r->png, pixels + (size_t)y * row_bytes, NULL);
            if (pass == passes - 1 || r->rows_done <= y) r->rows_done = y + 1;
        }
    }
    png_read_end(r->png, NULL);
}

static void read_rows(PngReader *r, uint8_t *pixels, int64_t height, size_t row_bytes) {
    int passes = png_set_interlace_handling(r->png);
    png_read_update_info(r->png, r->info);
    if (png_get_rowbytes(r->png, r->info) != row_bytes) {
        png_error(r->png, "unexpected row size after conversion to RGB");
    }
    read_passes(r, passes, pixels, height, row_bytes);
}

static void composite(const uint8_t *rgba, int64_t pixels, unsigned background, uint8_t *rgb) {
    for (int64_t i = 0; i < pixels; i++, rgba += 4, rgb += 3) {
        unsigned alpha = rgba[3];
        for (int c = 0; c < 3; c++) {
            rgb[c] = (uint8_t)((rgba[c] * alpha + background * (255 - alpha) + 127) / 255);
        }
    }
}

/* Leaves by longjmp when libpng gives up; all state is in *r and *out. */
static Status decode_body(PngReader *r, const DecodeJob *job, const ImageInfo *info, Image *out) {
    bool keep_alpha = job->options->alpha != ALPHA_DROP;
    size_t channels = keep_alpha ? 4 : 3, row_bytes = (size_t)info->width * channels;
    start(r, job->options->strict);
    TRY(image_allocate(job, info->width, info->height, out));
    memset(out->pixels, 0, (size_t)info->height * (size_t)info->width * 3);
    if (keep_alpha) {
        void *wide;
        TRY(mem_alloc(&wide, info->height, row_bytes, "pixels with alpha"));
        r->wide = wide;
    }
    set_transforms(r, keep_alpha);
    read_rows(r, keep_alpha ? r->wide : out->pixels, info->height, row_bytes);
    return STATUS_OK;
}

/* What became of a decode that libpng gave up. */
static Status decode_broken(const PngReader *r, const DecodeJob *job) {
    if (r->out_of_memory) {
        return status_set(STATUS_MEMORY, "%s: out of memory in the PNG decoder", r->file->name);
    }
    if (!job->options->strict && r->rows_done > 0) return STATUS_OK;
    return status_set(STATUS_DATA, "%s: bad PNG: %s", r->file->name, r->message);
}

static bool reader_open(PngReader *r) {
    r->png = png_create_read_struct_2(PNG_LIBPNG_VER_STRING, r, on_error, on_warning, r, on_malloc,
                                      on_free);
    r->info = r->png != NULL ? png_create_info_struct(r->png) : NULL;
    return r->info != NULL;
}

static Status decode_png(const DecodeJob *job, const ImageInfo *info, Image *out) {
    PngReader r = {.file = &job->file};
    Status s;
    if (setjmp(r.escape) == 0) {
        s = reader_open(&r) ? decode_body(&r, job, info, out) : decode_broken(&r, job);
    } else {
        s = decode_broken(&r, job);
    }
    if (s == STATUS_OK && r.wide != NULL) {
        unsigned background = job->options->alpha == ALPHA_COMPOSITE_WHITE ? 255 : 0;
        composite(r.wide, out->width * out->height, background, out->pixels);
    }
    png_destroy_read_struct(&r.png, &r.info, NULL);
    mem_free(r.wide);
    if (s != STATUS_OK) image_discard(job, out);
    return s;
}

Status png_decode(const DecodeJob *job, Image *out) {
    ImageInfo info;
    TRY(png_probe(&job->file, &info));
    TRY(image_check_size(job, &info, PNG_PIXELS_PER_BYTE));
    return decode_png(job, &info, out);
}

/* ---- all channels and bits ---- */

/* Leaves by longjmp when libpng gives up. 8-bit rows are read into the second half of the samples
 * and widened from front to back: sample i ends at byte 2i + 1, never behind its source n + i. */
static Status decode_deep_body(PngReader *r, const ImageInfo *info, DeepImage *out) {
    start(r, true);
    png_set_expand(r->png);
    const uint16_t probe = 1;
    if (*(const uint8_t *)&probe == 1) png_set_swap(r->png); /* big-endian in the file */
    int passes = png_set_interlace_handling(r->png);
    png_read_update_info(r->png, r->info);
    int channels = png_get_channels(r->png, r->info), bits = png_get_bit_depth(r->png, r->info);
    size_t row_samples = (size_t)info->width * (size_t)channels;
    size_t row_bytes = row_samples * (size_t)bits / 8;
    if (png_get_rowbytes(r->png, r->info) != row_bytes) png_error(r->png, "unexpected row size");
    void *block;
    TRY(mem_alloc(&block, info->height, row_samples * sizeof(uint16_t), "samples"));
    *out = (DeepImage){
        block, info->width, info->height, channels - (channels + 1) % 2, channels % 2 == 0, bits};
    size_t n = row_samples * (size_t)info->height;
    uint8_t *raw = (uint8_t *)block + (bits == 8 ? n : 0);
    read_passes(r, passes, raw, info->height, row_bytes);
    if (bits == 8)
        for (size_t i = 0; i < n; i++) out->samples[i] = raw[i];
    return STATUS_OK;
}

Status png_decode_deep(const DecodeJob *job, DeepImage *out) {
    ImageInfo info;
    TRY(png_probe(&job->file, &info));
    TRY(image_check_size(job, &info, PNG_PIXELS_PER_BYTE));
    PngReader r = {.file = &job->file};
    ImageOptions strict = *job->options;
    strict.strict = true;
    DecodeJob whole = {job->file, &strict, NULL};
    Status s;
    if (setjmp(r.escape) == 0)
        s = reader_open(&r) ? decode_deep_body(&r, &info, out) : decode_broken(&r, &whole);
    else
        s = decode_broken(&r, &whole);
    png_destroy_read_struct(&r.png, &r.info, NULL);
    if (s != STATUS_OK) deep_image_free(out);
    return s;
}
