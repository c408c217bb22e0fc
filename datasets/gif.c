/* GIF 89a: https://www.w3.org/Graphics/GIF/spec-gif89a.txt */
#include "datasets/gif.h"

#include <math.h>
#include <string.h>

#include "core/file.h"
#include "core/memory.h"
#include "datasets/gif_internal.h"

enum {
    MAX_SIDE = 65535,
    CODE_BITS = 8, /* of a palette index */
    CLEAR = 256,
    END = 257,
    MAX_CODES = 4096,
    WORDS = 8192, /* hash table of strings */
    BLOCK = 255,
};

struct GifWriter {
    FileWriter *file;
    GifOptions options;
    int64_t written;
    GifPalette *palette;
    uint8_t *indices;
    int *errors;
    int32_t keys[WORDS]; /* prefix code * 256 + next index; -1: free */
    int16_t codes[WORDS];
    uint8_t block[BLOCK + 1]; /* its length in front */
    uint32_t bits;
    int bit_count;
    char shown[600];
};

static void put_16(uint8_t *to, int64_t v) {
    to[0] = (uint8_t)v;
    to[1] = (uint8_t)(v >> 8);
}

/* ---- opening ---- */

static Status check_options(const GifOptions *o, const char *shown) {
    if (o->width < 1 || o->height < 1 || o->width > MAX_SIDE || o->height > MAX_SIDE)
        return status_set(STATUS_DATA, "%s: cannot write a GIF of %lld x %lld pixels", shown,
                          (long long)o->width, (long long)o->height);
    if (!(o->fps > 0 && o->fps <= 1000) || o->loops < 0 || o->loops > 65535)
        return status_set(STATUS_DATA, "%s: %g frames a second, %d loops: out of range", shown,
                          o->fps, o->loops);
    return STATUS_OK;
}

static Status take_memory(GifWriter *w) {
    void *block;
    TRY(mem_alloc(&block, 1, sizeof(GifPalette), "palette"));
    w->palette = block;
    TRY(mem_alloc(&block, w->options.width * w->options.height, 1, "animation frame"));
    w->indices = block;
    TRY(mem_alloc(&block, 2 * 3 * (w->options.width + 2), sizeof(int), "palette errors"));
    w->errors = block;
    return STATUS_OK;
}

/* No global palette; the extension says how often to play. */
static Status put_headings(GifWriter *w) {
    uint8_t head[13] = "GIF89a";
    uint8_t loop[19] = "\x21\xFF\x0BNETSCAPE2.0\x03\x01";
    put_16(head + 6, w->options.width);
    put_16(head + 8, w->options.height);
    put_16(loop + 16, w->options.loops);
    TRY(file_writer_write(w->file, head, sizeof head));
    return file_writer_write(w->file, loop, sizeof loop);
}

Status gif_open(const char *path, const GifOptions *o, GifWriter **out) {
    char shown[600];
    void *memory;
    *out = NULL;
    TRY(check_options(o, text_printable(path, shown, sizeof shown)));
    TRY(mem_alloc(&memory, 1, sizeof(GifWriter), "animation"));
    GifWriter *w = memory;
    w->options = *o;
    memcpy(w->shown, shown, sizeof shown);
    Status s = take_memory(w);
    if (s == STATUS_OK) s = file_writer_open(path, &w->file);
    if (s == STATUS_OK) s = put_headings(w);
    if (s == STATUS_OK)
        *out = w;
    else
        gif_abort(w);
    return s;
}

/* ---- LZW ---- */

static Status put_block(GifWriter *w) {
    const size_t size = w->block[0];
    if (size == 0) return STATUS_OK;
    w->block[0] = (uint8_t)size;
    Status s = file_writer_write(w->file, w->block, size + 1);
    w->block[0] = 0;
    return s;
}

static Status put_byte(GifWriter *w, uint8_t byte) {
    w->block[++w->block[0]] = byte;
    return w->block[0] == BLOCK ? put_block(w) : STATUS_OK;
}

static Status put_code(GifWriter *w, int code, int width) {
    w->bits |= (uint32_t)code << w->bit_count;
    w->bit_count += width;
    while (w->bit_count >= 8) {
        TRY(put_byte(w, (uint8_t)w->bits));
        w->bits >>= 8;
        w->bit_count -= 8;
    }
    return STATUS_OK;
}

/* Where the string is, or would be. */
static int find_word(const GifWriter *w, int32_t key) {
    uint32_t at = ((uint32_t)key * 2654435761u) >> 19;
    while (w->keys[at] >= 0 && w->keys[at] != key) at = (at + 1) % WORDS;
    return (int)at;
}

/* Codes grow by a bit when the next free one needs it; the decoder is one string behind, hence the
 * comparison before the string is added. */
static Status put_indices(GifWriter *w) {
    const int64_t count = w->options.width * w->options.height;
    int width = CODE_BITS + 1, next = END + 1, prefix = w->indices[0];
    memset(w->keys, -1, sizeof w->keys);
    TRY(put_code(w, CLEAR, width));
    for (int64_t i = 1; i < count; i++) {
        const int32_t key = prefix * 256 + w->indices[i];
        const int at = find_word(w, key);
        if (w->keys[at] == key) {
            prefix = w->codes[at];
            continue;
        }
        TRY(put_code(w, prefix, width));
        prefix = w->indices[i];
        if (next == MAX_CODES) {
            TRY(put_code(w, CLEAR, width));
            memset(w->keys, -1, sizeof w->keys);
            width = CODE_BITS + 1;
            next = END + 1;
            continue;
        }
        if (next == 1 << width) width++;
        w->keys[at] = key;
        w->codes[at] = (int16_t)next++;
    }
    TRY(put_code(w, prefix, width));
    /* The decoder has added one more string by now. */
    if (next == 1 << width && width < 12) width++;
    TRY(put_code(w, END, width));
    if (w->bit_count > 0) TRY(put_code(w, 0, 8 - w->bit_count));
    return put_block(w);
}

/* ---- frames ---- */

/* Shown until the next one is due: delays differ by a hundredth so that the rate is kept. */
static int64_t delay_of(const GifWriter *w) {
    const double fps = w->options.fps;
    const double from = 100 * (double)w->written / fps, to = 100 * (double)(w->written + 1) / fps;
    const int64_t delay = llrint(to) - llrint(from);
    return delay < 2 ? 2 : delay > 65535 ? 65535 : delay;
}

Status gif_frame(GifWriter *w, const Image *frame) {
    if (frame->width != w->options.width || frame->height != w->options.height)
        return status_set(STATUS_DATA, "%s: a frame of %lld x %lld pixels instead of %lld x %lld",
                          w->shown, (long long)frame->width, (long long)frame->height,
                          (long long)w->options.width, (long long)w->options.height);
    uint8_t control[8] = {0x21, 0xF9, 4}, place[11] = {0x2C}, zero = 0;
    gif_quantise(w->palette, frame, w->errors, w->indices);
    for (int i = w->palette->count; i < GIF_COLORS; i++) memset(w->palette->colors[i], 0, 3);
    put_16(control + 4, delay_of(w));
    put_16(place + 5, frame->width);
    put_16(place + 7, frame->height);
    place[9] = 0x80 | (CODE_BITS - 1); /* a palette of 256 colours follows */
    place[10] = CODE_BITS;
    TRY(file_writer_write(w->file, control, sizeof control));
    TRY(file_writer_write(w->file, place, 10));
    TRY(file_writer_write(w->file, w->palette->colors, sizeof w->palette->colors));
    TRY(file_writer_write(w->file, place + 10, 1));
    w->bits = 0;
    w->bit_count = 0;
    TRY(put_indices(w));
    w->written++;
    return file_writer_write(w->file, &zero, 1);
}

/* ---- closing ---- */

static void gif_free(GifWriter *w) {
    mem_free(w->palette);
    mem_free(w->indices);
    mem_free(w->errors);
    mem_free(w);
}

void gif_abort(GifWriter *w) {
    if (!w) return;
    file_writer_abort(w->file);
    gif_free(w);
}

Status gif_commit(GifWriter *w) {
    Status s = STATUS_OK;
    if (w->written == 0) s = status_set(STATUS_DATA, "%s: an animation without frames", w->shown);
    if (s == STATUS_OK) s = file_writer_write(w->file, ";", 1);
    if (s != STATUS_OK) {
        gif_abort(w);
        return s;
    }
    s = file_writer_commit(w->file);
    gif_free(w);
    return s;
}
