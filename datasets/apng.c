/* APNG: PNG's chunks, with frames after the first in fdAT. https://www.w3.org/TR/png-3/ */
#include "datasets/apng.h"

#include <limits.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include <zlib.h>

#include "core/file.h"
#include "core/memory.h"

enum { FILTER_SUB = 1, FILTER_UP = 2, FILTER_PAETH = 4, MAX_SIDE = 1000000 };

struct ApngWriter {
    FileWriter *file;
    ApngOptions options;
    int64_t written;   /* frames */
    uint32_t sequence; /* of fcTL and fdAT chunks */
    uint16_t delay_num, delay_den;
    uint8_t *filtered; /* the frame's rows with their filter bytes */
    uint8_t *trial;    /* one row under another filter */
    uint8_t *packed;   /* compressed; 4 bytes in front for fdAT's sequence number */
    uLong bound;       /* bytes behind those 4 */
    char shown[600];
};

static void put_32(uint8_t *to, uint32_t v) {
    for (int i = 0; i < 4; i++) to[i] = (uint8_t)(v >> (24 - 8 * i));
}

static void put_16(uint8_t *to, uint16_t v) {
    to[0] = (uint8_t)(v >> 8);
    to[1] = (uint8_t)v;
}

static Status put_chunk(ApngWriter *w, const char *type, const uint8_t *data, uint32_t size) {
    uint8_t head[8], tail[4];
    put_32(head, size);
    memcpy(head + 4, type, 4);
    uLong crc = crc32(0, head + 4, 4);
    if (size > 0) crc = crc32(crc, data, size); /* NULL would start anew */
    put_32(tail, (uint32_t)crc);
    TRY(file_writer_write(w->file, head, sizeof head));
    if (size > 0) TRY(file_writer_write(w->file, data, size));
    return file_writer_write(w->file, tail, sizeof tail);
}

/* ---- opening ---- */

static Status check_options(const ApngOptions *o, const char *shown) {
    bool sides = o->width >= 1 && o->height >= 1 && o->width <= MAX_SIDE && o->height <= MAX_SIDE;
    /* A chunk holds at most 2^31 - 1 bytes; the compressed frame may be a little larger. */
    if (!sides || o->width * o->height > INT_MAX / 4)
        return status_set(STATUS_DATA, "%s: cannot write an animation of %lld x %lld pixels", shown,
                          (long long)o->width, (long long)o->height);
    if (o->frames < 1 || o->frames > INT_MAX / 2)
        return status_set(STATUS_DATA, "%s: cannot write an animation of %lld frames", shown,
                          (long long)o->frames);
    if (!(o->fps > 0 && o->fps <= 1000) || o->loops < 0)
        return status_set(STATUS_DATA, "%s: %g frames a second, %d loops: out of range", shown,
                          o->fps, o->loops);
    return STATUS_OK;
}

/* The delay of a frame as a fraction of a second: thousandths of a frame rate where they fit. */
static void set_delay(ApngWriter *w) {
    double fps = w->options.fps;
    if (fps == floor(fps)) {
        w->delay_num = 1;
        w->delay_den = (uint16_t)fps;
    } else if (fps >= 1) {
        w->delay_num = 1000;
        w->delay_den = (uint16_t)lrint(fps >= 65 ? 65000 : fps * 1000);
        if (fps >= 65) w->delay_num = (uint16_t)lrint(65000 / fps);
    } else {
        double ms = 1000 / fps;
        w->delay_num = ms > 65535 ? 65535 : (uint16_t)lrint(ms);
        w->delay_den = 1000;
    }
}

static Status take(uint8_t **out, int64_t count) {
    void *block;
    TRY(mem_alloc(&block, count, 1, "animation frame"));
    *out = block;
    return STATUS_OK;
}

static Status take_memory(ApngWriter *w) {
    int64_t row = w->options.width * 3;
    w->bound = compressBound((uLong)((row + 1) * w->options.height));
    TRY(take(&w->filtered, (row + 1) * w->options.height));
    TRY(take(&w->trial, row));
    return take(&w->packed, (int64_t)w->bound + 4);
}

static Status put_headings(ApngWriter *w) {
    uint8_t head[13] = {0}, control[8];
    put_32(head, (uint32_t)w->options.width);
    put_32(head + 4, (uint32_t)w->options.height);
    head[8] = 8; /* bits */
    head[9] = 2; /* RGB */
    put_32(control, (uint32_t)w->options.frames);
    put_32(control + 4, (uint32_t)w->options.loops);
    TRY(file_writer_write(w->file, "\x89PNG\r\n\x1A\n", 8));
    TRY(put_chunk(w, "IHDR", head, sizeof head));
    return put_chunk(w, "acTL", control, sizeof control);
}

Status apng_open(const char *path, const ApngOptions *o, ApngWriter **out) {
    char shown[600];
    *out = NULL;
    TRY(check_options(o, text_printable(path, shown, sizeof shown)));
    void *memory;
    TRY(mem_alloc(&memory, 1, sizeof(ApngWriter), "animation"));
    ApngWriter *w = memory;
    w->options = *o;
    memcpy(w->shown, shown, sizeof shown);
    set_delay(w);
    Status s = take_memory(w);
    if (s == STATUS_OK) s = file_writer_open(path, &w->file);
    if (s == STATUS_OK) s = put_headings(w);
    if (s == STATUS_OK)
        *out = w;
    else
        apng_abort(w);
    return s;
}

/* ---- frames ---- */

static int paeth(int a, int b, int c) {
    int pa = abs(b - c), pb = abs(a - c), pc = abs(a + b - 2 * c);
    return pa <= pb && pa <= pc ? a : pb <= pc ? b : c;
}

/* The row under one filter; the sum of its bytes' distances from zero, the usual guess at how well
 * it will pack. `above` NULL: the first row. */
static int64_t filter_row(int filter, const uint8_t *row, const uint8_t *above, int64_t n,
                          uint8_t *to) {
    int64_t cost = 0;
    for (int64_t i = 0; i < n; i++) {
        int a = i >= 3 ? row[i - 3] : 0, b = above ? above[i] : 0;
        int c = i >= 3 && above ? above[i - 3] : 0;
        int guess = filter == FILTER_SUB ? a : filter == FILTER_UP ? b : paeth(a, b, c);
        to[i] = (uint8_t)(row[i] - guess);
        cost += to[i] < 128 ? to[i] : 256 - to[i];
    }
    return cost;
}

static void filter_frame(ApngWriter *w, const Image *frame) {
    static const int filters[] = {FILTER_SUB, FILTER_UP, FILTER_PAETH};
    int64_t n = frame->width * 3;
    uint8_t *to = w->filtered;
    for (int64_t y = 0; y < frame->height; y++, to += n + 1) {
        const uint8_t *row = frame->pixels + y * n, *above = y > 0 ? row - n : NULL;
        int64_t best = INT64_MAX;
        for (int i = 0; i < 3; i++) {
            int64_t cost = filter_row(filters[i], row, above, n, w->trial);
            if (cost >= best) continue;
            best = cost;
            to[0] = (uint8_t)filters[i];
            memcpy(to + 1, w->trial, (size_t)n);
        }
    }
}

static voidpf zlib_alloc(voidpf user, uInt items, uInt size) {
    (void)user;
    return mem_malloc((size_t)items * size);
}

static void zlib_free(voidpf user, voidpf block) {
    (void)user;
    mem_free(block);
}

/* All of `filtered` into `packed` behind its first 4 bytes. */
static Status pack(ApngWriter *w, uint32_t *size) {
    z_stream z = {.zalloc = zlib_alloc, .zfree = zlib_free};
    if (deflateInit(&z, Z_DEFAULT_COMPRESSION) != Z_OK)
        return status_set(STATUS_MEMORY, "%s: out of memory in zlib", w->shown);
    z.next_in = w->filtered;
    z.avail_in = (uInt)((w->options.width * 3 + 1) * w->options.height);
    z.next_out = w->packed + 4;
    z.avail_out = (uInt)w->bound;
    int result = deflate(&z, Z_FINISH);
    *size = (uint32_t)z.total_out;
    deflateEnd(&z);
    if (result == Z_STREAM_END) return STATUS_OK;
    return status_set(STATUS_INTERNAL, "%s: zlib gave up with %d", w->shown, result);
}

static Status put_frame_control(ApngWriter *w) {
    uint8_t control[26] = {0}; /* offsets 0, dispose none, blend source */
    put_32(control, w->sequence++);
    put_32(control + 4, (uint32_t)w->options.width);
    put_32(control + 8, (uint32_t)w->options.height);
    put_16(control + 20, w->delay_num);
    put_16(control + 22, w->delay_den);
    return put_chunk(w, "fcTL", control, sizeof control);
}

Status apng_frame(ApngWriter *w, const Image *frame) {
    const ApngOptions *o = &w->options;
    if (frame->width != o->width || frame->height != o->height)
        return status_set(STATUS_DATA,
                          "%s: frame %lld has %lld x %lld pixels instead of %lld x %lld", w->shown,
                          (long long)w->written, (long long)frame->width, (long long)frame->height,
                          (long long)o->width, (long long)o->height);
    if (w->written >= o->frames)
        return status_set(STATUS_DATA, "%s: more than the %lld frames announced", w->shown,
                          (long long)o->frames);
    uint32_t size = 0;
    filter_frame(w, frame);
    TRY(pack(w, &size));
    TRY(put_frame_control(w));
    if (w->written++ == 0) return put_chunk(w, "IDAT", w->packed + 4, size);
    put_32(w->packed, w->sequence++);
    return put_chunk(w, "fdAT", w->packed, size + 4);
}

/* ---- closing ---- */

static void apng_free(ApngWriter *w) {
    mem_free(w->filtered);
    mem_free(w->trial);
    mem_free(w->packed);
    mem_free(w);
}

void apng_abort(ApngWriter *w) {
    if (!w) return;
    file_writer_abort(w->file);
    apng_free(w);
}

Status apng_commit(ApngWriter *w) {
    Status s = STATUS_OK;
    if (w->written != w->options.frames)
        s = status_set(STATUS_DATA, "%s: %lld frames instead of %lld", w->shown,
                       (long long)w->written, (long long)w->options.frames);
    if (s == STATUS_OK) s = put_chunk(w, "IEND", NULL, 0);
    if (s != STATUS_OK) {
        apng_abort(w);
        return s;
    }
    s = file_writer_commit(w->file);
    apng_free(w);
    return s;
}
