/* Animated GIFs, read back by a decoder of this file's own. */
#include <stdarg.h>
#include <stddef.h>
#include <setjmp.h>
#include <stdint.h>
#include <cmocka.h>

#include <math.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "core/file.h"
#include "core/memory.h"
#include "datasets/gif.h"

typedef struct Reader {
    const uint8_t *at, *end;
    uint32_t bits;
    int bit_count, block; /* bytes left in the sub-block */
} Reader;

static int take_16(const uint8_t *p) {
    return p[0] | p[1] << 8;
}

static int next_byte(Reader *r) {
    if (r->block == 0) {
        r->block = *r->at++;
        assert_true(r->block > 0 && r->at + r->block <= r->end);
    }
    r->block--;
    return *r->at++;
}

static int next_code(Reader *r, int width) {
    while (r->bit_count < width) {
        r->bits |= (uint32_t)next_byte(r) << r->bit_count;
        r->bit_count += 8;
    }
    const int code = (int)(r->bits & ((1u << width) - 1));
    r->bits >>= width;
    r->bit_count -= width;
    return code;
}

/* The textbook's decoder: a string is the one of its prefix and one more index. */
static void decode(Reader *r, int min, uint8_t *out, int64_t count) {
    static int prefix[4096], length[4096];
    static uint8_t last[4096];
    const int clear = 1 << min;
    int width = min + 1, next = clear + 2, before = -1;
    int64_t done = 0;
    assert_int_equal(next_code(r, width), clear);
    for (int i = 0; i < clear; i++) prefix[i] = -1, length[i] = 1, last[i] = (uint8_t)i;
    for (;;) {
        const int code = next_code(r, width);
        if (code == clear) {
            width = min + 1, next = clear + 2, before = -1;
            continue;
        }
        if (code == clear + 1) break;
        assert_true(before < 0 ? code < clear : code <= next);
        if (before >= 0 && next < 4096) {
            int first = code == next ? before : code;
            while (prefix[first] >= 0) first = prefix[first];
            prefix[next] = before, length[next] = length[before] + 1, last[next] = last[first];
            next++;
            if (next == 1 << width && width < 12) width++;
        }
        assert_true(code < next && done + length[code] <= count);
        int64_t at = done + length[code];
        for (int c = code; c >= 0; c = prefix[c]) out[--at] = last[c];
        done += length[code];
        before = code;
    }
    assert_int_equal(done, count);
    assert_int_equal(r->block, 0);
    assert_int_equal(*r->at++, 0);
}

typedef struct Decoded {
    int frames, loops, delays[64];
    Image images[64];
} Decoded;

static void free_decoded(Decoded *d) {
    for (int i = 0; i < d->frames; i++) image_free(&d->images[i]);
}

static void read_frame(Reader *r, int width, int height, Image *out) {
    static uint8_t indices[1 << 20];
    uint8_t colors[256][3];
    void *pixels;
    assert_int_equal(take_16(r->at) + take_16(r->at + 2), 0);
    assert_int_equal(take_16(r->at + 4), width);
    assert_int_equal(take_16(r->at + 6), height);
    assert_int_equal(r->at[8], 0x87);
    memcpy(colors, r->at + 9, sizeof colors);
    r->at += 9 + sizeof colors;
    const int min = *r->at++;
    decode(r, min, indices, (int64_t)width * height);
    r->bits = 0, r->bit_count = 0;
    assert_int_equal(mem_alloc(&pixels, (int64_t)width * height, 3, "test"), STATUS_OK);
    *out = (Image){pixels, width, height};
    for (int64_t i = 0; i < (int64_t)width * height; i++)
        memcpy(out->pixels + 3 * i, colors[indices[i]], 3);
}

static void read_gif(const char *path, Decoded *d) {
    char *bytes;
    size_t size;
    memset(d, 0, sizeof *d);
    assert_int_equal(file_read(path, 1 << 26, &bytes, &size), STATUS_OK);
    Reader r = {(const uint8_t *)bytes + 13, (const uint8_t *)bytes + size, 0, 0, 0};
    const uint8_t *head = r.at - 13;
    assert_memory_equal(head, "GIF89a", 6);
    assert_int_equal(head[10], 0);
    assert_memory_equal(r.at, "\x21\xFF\x0BNETSCAPE2.0\x03\x01", 16);
    d->loops = take_16(r.at + 16);
    assert_int_equal(r.at[18], 0);
    r.at += 19;
    while (*r.at != ';') {
        assert_memory_equal(r.at, "\x21\xF9\x04", 3);
        d->delays[d->frames] = take_16(r.at + 4);
        assert_int_equal(r.at[7], 0);
        assert_int_equal(r.at[8], 0x2C);
        r.at += 9;
        read_frame(&r, take_16(head + 6), take_16(head + 8), &d->images[d->frames++]);
    }
    assert_ptr_equal(r.at + 1, r.end);
    mem_free(bytes);
}

static Image blank(int64_t width, int64_t height) {
    void *pixels;
    assert_int_equal(mem_alloc(&pixels, width * height, 3, "test"), STATUS_OK);
    return (Image){pixels, width, height};
}

static char path[64];

static void write_gif(const Image *frames, int count, double fps) {
    const GifOptions o = {frames[0].width, frames[0].height, fps, 0};
    GifWriter *w;
    assert_int_equal(gif_open(path, &o, &w), STATUS_OK);
    for (int i = 0; i < count; i++) assert_int_equal(gif_frame(w, &frames[i]), STATUS_OK);
    assert_int_equal(gif_commit(w), STATUS_OK);
}

static double psnr(const Image *a, const Image *b) {
    double sum = 0, n = (double)(a->width * a->height * 3);
    for (int64_t i = 0; i < a->width * a->height * 3; i++) {
        const double d = a->pixels[i] - b->pixels[i];
        sum += d * d;
    }
    return 10 * log10(255.0 * 255.0 * n / sum);
}

/* Random indices fill the string table again and again; one colour makes the longest strings. */
static void few_colours_come_back_exactly(void **state) {
    (void)state;
    Image frames[4] = {blank(97, 61), blank(97, 61), blank(97, 61), blank(97, 61)};
    uint32_t seed = 1;
    for (int64_t i = 0; i < 97 * 61; i++) {
        seed = seed * 1664525u + 1013904223u;
        const uint8_t index = (uint8_t)(seed >> 24);
        const uint8_t noise[3] = {index, (uint8_t)(255 - index), (uint8_t)(index * 7)};
        memcpy(frames[0].pixels + 3 * i, noise, 3);
        memset(frames[1].pixels + 3 * i, 77, 3);
        memset(frames[2].pixels + 3 * i, index & 1 ? 255 : 0, 3);
        memset(frames[3].pixels + 3 * i, (int)(i % 5), 3);
    }
    Decoded d;
    write_gif(frames, 4, 15);
    read_gif(path, &d);
    assert_int_equal(d.frames, 4);
    assert_int_equal(d.loops, 0);
    assert_int_equal(d.delays[0] + d.delays[1] + d.delays[2], 20); /* 3/15 s */
    for (int i = 0; i < 4; i++) {
        assert_memory_equal(d.images[i].pixels, frames[i].pixels, 97 * 61 * 3);
        image_free(&frames[i]);
    }
    free_decoded(&d);
}

/* Lengths around which codes grow and the table ends: nearly every pixel is a code here. */
static void every_length_ends_well(void **state) {
    (void)state;
    for (int64_t n = 1; n < 4100; n++) {
        static const int64_t near[] = {6, 256, 770, 1795, 3850, 4095};
        bool wanted = false;
        for (size_t i = 0; i < sizeof near / sizeof near[0]; i++)
            wanted = wanted || (n >= near[i] - 5 && n <= near[i] + 20);
        if (!wanted) continue;
        Image frame = blank(n, 1);
        Decoded d;
        uint32_t seed = 7;
        for (int64_t i = 0; i < n; i++) {
            seed = seed * 1664525u + 1013904223u;
            memset(frame.pixels + 3 * i, (int)(seed >> 24), 3);
        }
        write_gif(&frame, 1, 10);
        read_gif(path, &d);
        assert_memory_equal(d.images[0].pixels, frame.pixels, (size_t)(3 * n));
        assert_int_equal(d.delays[0], 10);
        free_decoded(&d);
        image_free(&frame);
    }
}

/* Smooth colours beyond 256: near the picture, and nearer in the mean over a few pixels. */
static void many_colours_come_back_nearly(void **state) {
    (void)state;
    Image frame = blank(128, 96);
    Decoded d;
    for (int64_t y = 0; y < 96; y++)
        for (int64_t x = 0; x < 128; x++) {
            uint8_t *p = frame.pixels + 3 * (y * 128 + x);
            p[0] = (uint8_t)(2 * x), p[1] = (uint8_t)(2 * y), p[2] = (uint8_t)(255 - x - y);
        }
    write_gif(&frame, 1, 30);
    read_gif(path, &d);
    assert_true(psnr(&frame, &d.images[0]) > 29);
    double worst = 0;
    for (int64_t y = 0; y < 96; y += 8)
        for (int64_t x = 0; x < 128; x += 8)
            for (int c = 0; c < 3; c++) {
                double off = 0;
                for (int64_t i = 0; i < 64; i++) {
                    const int64_t at = 3 * ((y + i / 8) * 128 + x + i % 8) + c;
                    off += (frame.pixels[at] - d.images[0].pixels[at]) / 64.0;
                }
                worst = fmax(worst, fabs(off));
            }
    assert_true(worst < 4);
    free_decoded(&d);
    image_free(&frame);
}

static void what_cannot_be_written(void **state) {
    (void)state;
    GifWriter *w;
    Image frame = blank(4, 4), other = blank(4, 5);
    const GifOptions bad[] = {{0, 4, 30, 0},   {65536, 4, 30, 0}, {4, 4, 0, 0},
                              {4, 4, 1001, 0}, {4, 4, 30, -1},    {4, 4, NAN, 0}};
    remove(path);
    for (size_t i = 0; i < sizeof bad / sizeof bad[0]; i++) {
        assert_int_equal(gif_open(path, &bad[i], &w), STATUS_DATA);
        assert_null(w);
    }
    const GifOptions o = {4, 4, 60, 0};
    assert_int_equal(gif_open(path, &o, &w), STATUS_OK);
    assert_int_equal(gif_frame(w, &other), STATUS_DATA);
    assert_int_equal(gif_commit(w), STATUS_DATA);
    assert_int_equal(gif_open(path, &o, &w), STATUS_OK);
    gif_abort(w);
    gif_abort(NULL);
    assert_false(file_exists(path));
    assert_int_equal(gif_open("/no/such/folder/a.gif", &o, &w), STATUS_IO);
    Decoded d;
    write_gif(&frame, 1, 60);
    read_gif(path, &d);
    assert_int_equal(d.delays[0], 2); /* less would be shown as none */
    free_decoded(&d);
    image_free(&frame);
    image_free(&other);
}

static void every_allocation_may_fail(void **state) {
    (void)state;
    const GifOptions o = {4, 4, 30, 0};
    const int64_t live = mem_live();
    for (int n = 1;; n++) {
        GifWriter *w;
        mem_fail_at(n);
        Status s = gif_open(path, &o, &w);
        const int pending = mem_fail_pending();
        mem_fail_at(0);
        gif_abort(w);
        assert_int_equal(mem_live(), live);
        if (pending) break;
        assert_int_equal(s, STATUS_MEMORY);
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(few_colours_come_back_exactly), cmocka_unit_test(every_length_ends_well),
        cmocka_unit_test(many_colours_come_back_nearly), cmocka_unit_test(what_cannot_be_written),
        cmocka_unit_test(every_allocation_may_fail),
    };
    snprintf(path, sizeof path, "/tmp/ttv-gif-%ld.gif", (long)getpid());
    const int failed = cmocka_run_group_tests(tests, NULL, NULL);
    remove(path);
    return failed;
}
