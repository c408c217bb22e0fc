/* Pictures for `ttv bench loader`: JPEG files of ImageNet's usual size and weight, made on the
 * spot, so that the loader can be measured without a data set. Decoding time depends on the number
 * of coefficients, hence on the bytes per pixel, hence on noise: a flat picture would flatter the
 * decoder.
 */
#include "tools/bench.h"

#include <math.h>
#include <setjmp.h>
#include <stdio.h>
#include <string.h>

#include <jpeglib.h>

#include "core/file.h"
#include "core/memory.h"
#include "core/rng.h"

enum { WIDTH = 500, HEIGHT = 375, OCTAVES = 7, QUALITY = 95, TAR_BLOCK = 512 };

/* Adds bilinear noise with `cell` pixels between lattice points to one channel. */
static void add_octave(float *pixels, int channel, int cell, float amplitude, Rng *rng,
                       float *lattice) {
    int columns = WIDTH / cell + 2, rows = HEIGHT / cell + 2;
    for (int i = 0; i < columns * rows; i++)
        lattice[i] = (float)rng_range(rng, -amplitude, amplitude);
    for (int y = 0; y < HEIGHT; y++) {
        int row = y / cell;
        float fy = (float)(y % cell) / (float)cell;
        const float *top = lattice + (ptrdiff_t)row * columns, *bottom = top + columns;
        for (int x = 0; x < WIDTH; x++) {
            int column = x / cell;
            float fx = (float)(x % cell) / (float)cell;
            float upper = top[column] + fx * (top[column + 1] - top[column]);
            float lower = bottom[column] + fx * (bottom[column + 1] - bottom[column]);
            pixels[3 * (y * WIDTH + x) + channel] += upper + fy * (lower - upper);
        }
    }
}

/* Luminance noise falls with frequency as in photographs; colour varies slowly. */
static void draw_picture(uint8_t *rgb, float *pixels, float *lattice, Rng *rng) {
    memset(pixels, 0, sizeof(float) * 3 * WIDTH * HEIGHT);
    for (int octave = 0; octave < OCTAVES; octave++)
        add_octave(pixels, 0, 128 >> octave, 90.0f * powf(0.62f, (float)octave), rng, lattice);
    for (int channel = 1; channel < 3; channel++)
        for (int octave = 0; octave < 4; octave++)
            add_octave(pixels, channel, 128 >> octave, 50.0f * powf(0.5f, (float)octave), rng,
                       lattice);
    for (int i = 0; i < WIDTH * HEIGHT; i++) {
        float grain = 8.0f * ((float)(rng_u32(rng) >> 16) * 0x1p-15f - 1.0f);
        float luma = 128.0f + pixels[3 * i] + grain;
        float channels[3] = {luma + pixels[3 * i + 1], luma, luma + pixels[3 * i + 2]};
        for (int c = 0; c < 3; c++)
            rgb[3 * i + c] = (uint8_t)fminf(fmaxf(channels[c], 0.0f), 255.0f);
    }
}

typedef struct Encoder {
    struct jpeg_error_mgr errors; /* first: libjpeg hands it back */
    jmp_buf escape;
} Encoder;

static void encoder_exit(j_common_ptr c) {
    char text[JMSG_LENGTH_MAX];
    c->err->format_message(c, text);
    status_set(STATUS_INTERNAL, "cannot encode a test picture: %s", text);
    longjmp(((Encoder *)(void *)c->err)->escape, 1);
}

/* `jpeg` has room for the raw picture, more than the file can need; *size is what was used. */
static Status encode_picture(const uint8_t *rgb, unsigned char *jpeg, size_t *size) {
    struct jpeg_compress_struct c;
    Encoder encoder;
    unsigned char *memory = jpeg;
    unsigned long used = 3 * WIDTH * HEIGHT;
    c.err = jpeg_std_error(&encoder.errors);
    encoder.errors.error_exit = encoder_exit;
    if (setjmp(encoder.escape)) {
        jpeg_destroy_compress(&c);
        return STATUS_INTERNAL;
    }
    jpeg_create_compress(&c);
    jpeg_mem_dest(&c, &memory, &used);
    c.image_width = WIDTH;
    c.image_height = HEIGHT;
    c.input_components = 3;
    c.in_color_space = JCS_RGB;
    jpeg_set_defaults(&c);
    jpeg_set_quality(&c, QUALITY, TRUE);
    jpeg_start_compress(&c, TRUE);
    while (c.next_scanline < c.image_height) {
        JSAMPROW row = (JSAMPROW)(uintptr_t)(rgb + (size_t)c.next_scanline * WIDTH * 3);
        jpeg_write_scanlines(&c, &row, 1);
    }
    jpeg_finish_compress(&c);
    jpeg_destroy_compress(&c);
    *size = used;
    return STATUS_OK;
}

/* One ustar member. */
static Status write_member(FileWriter *w, const char *name, const void *data, size_t size) {
    unsigned char header[TAR_BLOCK] = {0}, padding[TAR_BLOCK] = {0};
    char *text = (char *)header;
    snprintf(text, 100, "%s", name);
    memcpy(text + 100, "0000644", 8);
    memcpy(text + 108, "0000000", 8);
    memcpy(text + 116, "0000000", 8);
    snprintf(text + 124, 12, "%011zo", size);
    memcpy(text + 136, "00000000000", 12);
    memset(text + 148, ' ', 8);
    text[156] = '0';
    memcpy(text + 257, "ustar\00000", 8);
    unsigned sum = 0;
    for (int i = 0; i < TAR_BLOCK; i++) sum += header[i];
    snprintf(text + 148, 8, "%06o", sum & 0777777);
    TRY(file_writer_write(w, header, TAR_BLOCK));
    TRY(file_writer_write(w, data, size));
    return file_writer_write(w, padding, (TAR_BLOCK - size % TAR_BLOCK) % TAR_BLOCK);
}

typedef struct Workshop {
    float *pixels, *lattice;
    uint8_t *rgb;
    unsigned char *jpeg;
} Workshop;

static Status write_pictures(FileWriter *w, Workshop *shop, int64_t count) {
    TRY(mem_alloc((void **)&shop->pixels, 3 * WIDTH * HEIGHT, sizeof(float), "test picture"));
    TRY(mem_alloc((void **)&shop->lattice, (WIDTH / 2 + 2) * (HEIGHT / 2 + 2), sizeof(float),
                  "test picture"));
    TRY(mem_alloc((void **)&shop->rgb, 3 * WIDTH * HEIGHT, 1, "test picture"));
    TRY(mem_alloc((void **)&shop->jpeg, 3 * WIDTH * HEIGHT, 1, "test picture"));
    for (int64_t i = 0; i < count; i++) {
        Rng rng = rng_stream(1, RNG_SYNTH, (uint64_t)i, 0);
        char name[64];
        size_t size;
        draw_picture(shop->rgb, shop->pixels, shop->lattice, &rng);
        TRY(encode_picture(shop->rgb, shop->jpeg, &size));
        snprintf(name, sizeof name, "train/0/%05lld.jpg", (long long)i);
        TRY(write_member(w, name, shop->jpeg, size));
    }
    unsigned char end[2 * TAR_BLOCK] = {0};
    return file_writer_write(w, end, sizeof end);
}

Status bench_pictures(const char *path, int64_t count) {
    FileWriter *w;
    Workshop shop = {0};
    TRY(file_writer_open(path, &w));
    Status s = write_pictures(w, &shop, count);
    mem_free(shop.jpeg);
    mem_free(shop.rgb);
    mem_free(shop.lattice);
    mem_free(shop.pixels);
    if (s == STATUS_OK) return file_writer_commit(w);
    file_writer_abort(w);
    return s;
}
