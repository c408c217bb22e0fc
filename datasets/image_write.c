/* 8-bit RGB PNG, to a file atomically or to memory. */
#include <setjmp.h>
#include <stdio.h>
#include <string.h>

#include <png.h>

#include "core/file.h"
#include "core/memory.h"
#include "datasets/image.h"

typedef struct PngWriter {
    png_structp png;
    png_infop info;
    jmp_buf escape;
    FileWriter *file; /* NULL: to memory */
    void *memory;
    size_t used, room;
    Status status; /* of the file or memory, when that is what failed */
    bool out_of_memory, done;
    char message[160];
} PngWriter;

static void on_error(png_structp png, png_const_charp message) {
    PngWriter *w = png_get_error_ptr(png);
    snprintf(w->message, sizeof w->message, "%s", message);
    longjmp(w->escape, 1);
}

static void on_warning(png_structp png, png_const_charp message) {
    (void)png;
    (void)message;
}

static Status append(PngWriter *w, const void *data, size_t bytes) {
    if (w->used + bytes > w->room) {
        const size_t room = 2 * (w->used + bytes);
        TRY(mem_grow(&w->memory, (int64_t)room, 1, "a PNG"));
        w->room = room;
    }
    memcpy((char *)w->memory + w->used, data, bytes);
    w->used += bytes;
    return STATUS_OK;
}

static void on_write(png_structp png, png_bytep data, size_t bytes) {
    PngWriter *w = png_get_io_ptr(png);
    w->status = w->file ? file_writer_write(w->file, data, bytes) : append(w, data, bytes);
    if (w->status != STATUS_OK) png_error(png, "write failed");
}

/* file_writer_commit() is what makes bytes durable. */
static void on_flush(png_structp png) {
    (void)png;
}

static png_voidp on_malloc(png_structp png, png_alloc_size_t bytes) {
    PngWriter *w = png_get_mem_ptr(png);
    void *block = mem_malloc(bytes);
    if (block == NULL) w->out_of_memory = true;
    return block;
}

static void on_free(png_structp png, png_voidp block) {
    (void)png;
    mem_free(block);
}

static void write_body(PngWriter *w, const Image *image) {
    png_set_write_fn(w->png, w, on_write, on_flush);
    png_set_IHDR(w->png, w->info, (png_uint_32)image->width, (png_uint_32)image->height, 8,
                 PNG_COLOR_TYPE_RGB, PNG_INTERLACE_NONE, PNG_COMPRESSION_TYPE_DEFAULT,
                 PNG_FILTER_TYPE_DEFAULT);
    png_write_info(w->png, w->info);
    for (int64_t y = 0; y < image->height; y++) {
        png_write_row(w->png, image->pixels + y * image->width * 3);
    }
    png_write_end(w->png, NULL);
}

static Status write_failed(const PngWriter *w) {
    if (w->status != STATUS_OK) return w->status; /* its message is set */
    if (w->out_of_memory) return status_set(STATUS_MEMORY, "out of memory in the PNG writer");
    return status_set(STATUS_DATA, "PNG writer: %s", w->message);
}

static Status write_png(PngWriter *w, const Image *image) {
    if (setjmp(w->escape) == 0) {
        w->png = png_create_write_struct_2(PNG_LIBPNG_VER_STRING, w, on_error, on_warning, w,
                                           on_malloc, on_free);
        w->info = w->png != NULL ? png_create_info_struct(w->png) : NULL;
        if (w->info != NULL) write_body(w, image);
        w->done = w->info != NULL;
    }
    png_destroy_write_struct(&w->png, &w->info);
    return w->done ? STATUS_OK : write_failed(w);
}

static Status check_sides(const Image *image, const char *name) {
    if (image->width >= 1 && image->height >= 1 && image->width <= 1000000 &&
        image->height <= 1000000)
        return STATUS_OK;
    return status_set(STATUS_DATA, "%s: cannot write a PNG of %lld x %lld pixels", name,
                      (long long)image->width, (long long)image->height);
}

Status image_write_png(const char *path, const Image *image) {
    PngWriter w = {.file = NULL};
    char shown[600];
    TRY(check_sides(image, text_printable(path, shown, sizeof shown)));
    TRY(file_writer_open(path, &w.file));
    Status s = write_png(&w, image);
    if (s == STATUS_OK) return file_writer_commit(w.file);
    file_writer_abort(w.file);
    return status_context(s, "%s", shown);
}

Status image_encode_png(const Image *image, void **bytes, size_t *size) {
    PngWriter w = {.file = NULL};
    *bytes = NULL;
    TRY(check_sides(image, "picture"));
    Status s = write_png(&w, image);
    if (s != STATUS_OK) {
        mem_free(w.memory);
        return s;
    }
    *bytes = w.memory;
    *size = w.used;
    return STATUS_OK;
}
