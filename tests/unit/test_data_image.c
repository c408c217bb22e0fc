/* Decoding: the committed corpus against Pillow's answers, limits, allocation failures,
 * bombs. */
#include "data_support.h"

#include "datasets/exif.h"

typedef struct Case {
    char *file, *verdict, *crc, *turned_crc, *message;
    int64_t width, height;
    int orientation;
} Case;

static void each_case(void (*check)(const Case *c, const char *bytes, size_t size)) {
    FILE *f = fopen(CORPUS "/images.tsv", "r");
    char line[1024], *v[8];
    assert_non_null(f);
    int64_t count = 0;
    while (fgets(line, sizeof line, f) != NULL) {
        assert_int_equal(split_tabs(line, v, 8), 8);
        Case c = {v[0], v[1], v[5], v[6], v[7], atoll(v[2]), atoll(v[3]), atoi(v[4])};
        char path[4096], *bytes;
        size_t size;
        snprintf(path, sizeof path, "%s/%s", CORPUS, c.file);
        read_whole(path, &bytes, &size);
        check(&c, bytes, size);
        mem_free(bytes);
        count++;
    }
    fclose(f);
    assert_true(count > 70);
}

static void expect_pixels(const Case *c, const Image *image, const char *crc) {
    char got[16];
    snprintf(got, sizeof got, "%08x", pixels_crc(image->pixels, image->width, image->height));
    if (strcmp(got, crc) != 0) fail_msg("%s: pixels %s, expected %s", c->file, got, crc);
}

static void check_decode(const Case *c, const char *bytes, size_t size) {
    ImageOptions o = image_options_default();
    ImageInfo info;
    Image image;
    int64_t live = mem_live();
    Status s = image_decode(bytes, size, c->file, &o, &image, &info);
    if (strcmp(c->verdict, "ok") != 0) {
        assert_int_equal(s, STATUS_DATA);
        assert_null(image.pixels);
        assert_message(c->message);
        assert_int_equal(strncmp(status_message(), c->file, strlen(c->file)), 0);
        o.strict = false;
        s = image_decode(bytes, size, c->file, &o, &image, &info);
    }
    if (strcmp(c->verdict, "fail") == 0) {
        assert_int_equal(s, STATUS_DATA);
    } else {
        assert_ok(s);
        assert_int_equal(image.width, c->width);
        assert_int_equal(image.height, c->height);
        assert_int_equal(info.orientation, c->orientation);
        expect_pixels(c, &image, c->crc);
    }
    image_free(&image);
    assert_int_equal(mem_live(), live);
}

static void corpus_matches_pillow(void **state) {
    (void)state;
    each_case(check_decode);
}

static void check_turned(const Case *c, const char *bytes, size_t size) {
    ImageOptions o = image_options_default();
    Image image;
    if (strcmp(c->verdict, "ok") != 0) return;
    o.apply_orientation = true;
    assert_ok(image_decode(bytes, size, c->file, &o, &image, NULL));
    assert_int_equal(image.width, c->orientation >= 5 ? c->height : c->width);
    expect_pixels(c, &image, c->turned_crc);
    image_free(&image);
}

static void orientation_matches_pillow(void **state) {
    (void)state;
    each_case(check_turned);
}

/* The same bytes come out of memory that held another picture before. */
static void check_scratch(const Case *c, const char *bytes, size_t size) {
    static ImageScratch scratch;
    ImageOptions o = image_options_default();
    Image image;
    if (c == NULL) {
        image_scratch_free(&scratch);
        return;
    }
    o.strict = strcmp(c->verdict, "damaged") != 0;
    Status s = image_decode_scratch(bytes, size, c->file, &o, &scratch, &image);
    if (strcmp(c->verdict, "fail") == 0) {
        assert_int_equal(s, STATUS_DATA);
        return;
    }
    assert_ok(s);
    assert_ptr_equal(image.pixels, scratch.memory);
    expect_pixels(c, &image, c->crc);
    memset(scratch.memory, 0xA5, scratch.bytes);
}

static void scratch_is_reused(void **state) {
    (void)state;
    each_case(check_scratch);
    check_scratch(NULL, NULL, 0);
}

/* Whatever allocation fails, the answer is a clean error and nothing leaks. */
static void check_failures(const Case *c, const char *bytes, size_t size) {
    ImageOptions o = image_options_default();
    o.apply_orientation = true;
    o.alpha = ALPHA_COMPOSITE_WHITE;
    if (strcmp(c->verdict, "ok") != 0) return;
    int64_t live = mem_live();
    for (int64_t n = 1;; n++) {
        Image image;
        mem_fail_at(n);
        Status s = image_decode(bytes, size, c->file, &o, &image, NULL);
        bool struck = !mem_fail_pending();
        mem_fail_at(0);
        if (s == STATUS_OK) image_free(&image);
        assert_int_equal(mem_live(), live);
        if (!struck) {
            assert_ok(s);
            break;
        }
        if (s != STATUS_OK) assert_int_equal(s, STATUS_MEMORY);
        assert_true(n < 1000);
    }
}

static void allocation_failures_are_clean(void **state) {
    (void)state;
    each_case(check_failures);
}

/* Every prefix of a file is an error when strict, and never more than an error. */
static void check_prefixes(const Case *c, const char *bytes, size_t size) {
    ImageOptions o = image_options_default();
    size_t step = size / 60 + 1;
    if (strcmp(c->verdict, "ok") != 0) return;
    for (size_t n = 0; n < size; n += step) {
        char *copy = malloc(n > 0 ? n : 1); /* its own block, so that ASan sees the end */
        Image image;
        memcpy(copy, bytes, n);
        o.strict = true;
        Status s = image_decode(copy, n, c->file, &o, &image, NULL);
        if (s == STATUS_OK) fail_msg("%s: %zu of %zu bytes decode", c->file, n, size);
        o.strict = false;
        if (image_decode(copy, n, c->file, &o, &image, NULL) == STATUS_OK) image_free(&image);
        free(copy);
    }
}

static void truncation_is_always_found(void **state) {
    (void)state;
    each_case(check_prefixes);
}

/* Single changed bytes: any verdict, no crash. */
static void check_flips(const Case *c, const char *bytes, size_t size) {
    ImageOptions o = image_options_default();
    o.max_pixels = 1 << 20;
    o.strict = false;
    char *copy = malloc(size > 0 ? size : 1);
    for (size_t i = 0; i < size; i += size / 50 + 1) {
        Image image;
        ImageInfo info;
        memcpy(copy, bytes, size);
        copy[i] = (char)(copy[i] ^ (1 << (i % 8)));
        if (image_decode(copy, size, c->file, &o, &image, &info) == STATUS_OK) {
            assert_true(info.orientation >= 1 && info.orientation <= 8);
            image_free(&image);
        }
    }
    free(copy);
}

static void changed_bytes_never_crash(void **state) {
    (void)state;
    each_case(check_flips);
}

static void alpha_is_composited(void **state) {
    (void)state;
    ImageOptions o = image_options_default();
    Image drop, black, white;
    char path[] = CORPUS "/rgba.png";
    assert_ok(image_read(path, &o, &drop, NULL));
    o.alpha = ALPHA_COMPOSITE_BLACK;
    assert_ok(image_read(path, &o, &black, NULL));
    o.alpha = ALPHA_COMPOSITE_WHITE;
    assert_ok(image_read(path, &o, &white, NULL));
    int64_t changed = 0;
    for (int64_t i = 0; i < drop.width * drop.height * 3; i++) {
        assert_true(black.pixels[i] <= drop.pixels[i] && drop.pixels[i] <= white.pixels[i]);
        changed += black.pixels[i] != white.pixels[i];
    }
    assert_true(changed > 100);
    image_free(&drop);
    image_free(&black);
    image_free(&white);
}

static void probe_reads_headers(void **state) {
    (void)state;
    char *bytes;
    size_t size;
    ImageInfo info;
    read_whole(CORPUS "/progressive_420.jpg", &bytes, &size);
    assert_ok(image_probe(bytes, size, "p", &info));
    assert_string_equal(info.format, "jpeg");
    assert_int_equal(info.width, 45);
    assert_int_equal(info.channels, 3);
    assert_int_equal(info.bits, 8);
    assert_true(info.progressive_or_interlaced);
    mem_free(bytes);
    read_whole(CORPUS "/rgba_16.png", &bytes, &size);
    assert_ok(image_probe(bytes, size, "p", &info));
    assert_string_equal(info.format, "png");
    assert_int_equal(info.channels, 4);
    assert_int_equal(info.bits, 16);
    assert_true(info.progressive_or_interlaced);
    mem_free(bytes);
}

static void odd_files_are_refused(void **state) {
    (void)state;
    char root[256], path[300];
    ImageOptions o = image_options_default();
    Image image;
    make_temp(root);
    snprintf(path, sizeof path, "%s/fifo.jpg", root);
    assert_int_equal(mkfifo(path, 0600), 0);
    assert_int_equal(image_read(path, &o, &image, NULL), STATUS_DATA);
    assert_message("FIFO");
    assert_int_equal(image_read(root, &o, &image, NULL), STATUS_DATA);
    assert_message("directory");
    snprintf(path, sizeof path, "%s/none.jpg", root);
    assert_int_equal(image_read(path, &o, &image, NULL), STATUS_IO);
    assert_int_equal(image_read("/dev/null", &o, &image, NULL), STATUS_DATA);
    put_image(root, "a \n\xff\xfe name.jpg", "grey.jpg");
    snprintf(path, sizeof path, "%s/a \n\xff\xfe name.jpg", root);
    assert_ok(image_read(path, &o, &image, NULL));
    image_free(&image);
    remove_tree(root);
}

static void png_survives_a_round_trip(void **state) {
    (void)state;
    char root[256], path[300];
    ImageOptions o = image_options_default();
    make_temp(root);
    Image image = pattern_image(37, 21), back;
    snprintf(path, sizeof path, "%s/out.png", root);
    assert_ok(image_write_png(path, &image));
    assert_ok(image_read(path, &o, &back, NULL));
    assert_int_equal(back.width, 37);
    assert_memory_equal(image.pixels, back.pixels, 37 * 21 * 3);
    image_free(&back);
    int64_t live = mem_live();
    for (int64_t n = 1; n < 100; n++) {
        mem_fail_at(n);
        Status s = image_write_png(path, &image);
        bool struck = !mem_fail_pending();
        mem_fail_at(0);
        assert_int_equal(mem_live(), live);
        if (!struck) break;
        if (s != STATUS_OK) assert_int_equal(s, STATUS_MEMORY);
        assert_ok(image_read(path, &o, &back, NULL)); /* the old file, or the new one */
        image_free(&back);
    }
    assert_int_equal(image_write_png("/nonexistent-folder/x.png", &image), STATUS_IO);
    image_free(&image);
    remove_tree(root);
}

/* ---- bombs that are too large or too dull to commit (users_expect.md R11) ---- */

typedef struct Bytes {
    unsigned char *data;
    size_t size, capacity;
} Bytes;

static void append(Bytes *b, const void *data, size_t size) {
    if (b->size + size > b->capacity) {
        b->capacity = 2 * (b->size + size);
        b->data = realloc(b->data, b->capacity);
        assert_non_null(b->data);
    }
    memcpy(b->data + b->size, data, size);
    b->size += size;
}

static uint32_t png_crc(const unsigned char *data, size_t size) {
    uint32_t c = 0xFFFFFFFFu;
    for (size_t i = 0; i < size; i++) {
        c ^= data[i];
        for (int k = 0; k < 8; k++) c = c >> 1 ^ (c & 1 ? 0xEDB88320u : 0);
    }
    return c ^ 0xFFFFFFFFu;
}

static void append_u32(Bytes *b, uint32_t v) {
    unsigned char be[4] = {(unsigned char)(v >> 24), (unsigned char)(v >> 16),
                           (unsigned char)(v >> 8), (unsigned char)v};
    append(b, be, 4);
}

static void expect_quick(const Bytes *b, bool strict, bool ok, const char *message) {
    ImageOptions o = image_options_default();
    Image image;
    o.strict = strict;
    double start = seconds_now();
    Status s = image_decode(b->data, b->size, "bomb", &o, &image, NULL);
    assert_true(seconds_now() - start < 5.0); /* sanitizers included; bare it is milliseconds */
    if (ok) {
        assert_ok(s);
        image_free(&image);
    } else {
        assert_int_equal(s, STATUS_DATA);
        assert_message(message);
    }
}

/* 10,000 text chunks do not get stored; the picture behind them is fine. */
static void many_text_chunks(void **state) {
    (void)state;
    char *png;
    size_t size;
    Bytes b = {0};
    read_whole(CORPUS "/rgb.png", &png, &size);
    append(&b, png, 33);
    for (int i = 0; i < 10000; i++) {
        const char text[] = "iTXtkey\0\0\0\0\0value";
        append_u32(&b, sizeof text - 5);
        append(&b, text, sizeof text - 1);
        append_u32(&b, png_crc((const unsigned char *)text, sizeof text - 1));
    }
    append(&b, png + 33, size - 33);
    expect_quick(&b, true, true, "");
    mem_free(png);
    free(b.data);
}

/* The last scan of a progressive file again and again. */
static void endless_scans(void **state) {
    (void)state;
    char *jpeg;
    size_t size, last = 0;
    Bytes b = {0};
    read_whole(CORPUS "/progressive_420.jpg", &jpeg, &size);
    for (size_t i = 0; i + 1 < size; i++) {
        if ((unsigned char)jpeg[i] == 0xFF && (unsigned char)jpeg[i + 1] == 0xDA) last = i;
    }
    append(&b, jpeg, size - 2);
    for (int i = 0; i < 200; i++) append(&b, jpeg + last, size - 2 - last);
    append(&b, jpeg + size - 2, 2);
    expect_quick(&b, false, false, "more scans");
    mem_free(jpeg);
    free(b.data);
}

static void exif_walk_is_bounded(void **state) {
    (void)state;
    unsigned char tiff[64];
    for (int round = 0; round < 20000; round++) {
        size_t size = (size_t)(round % 64);
        for (size_t i = 0; i < size; i++) tiff[i] = (unsigned char)(rand() >> 7);
        if (round % 2 && size >= 8)
            memcpy(tiff, round % 4 == 1 ? "II*\0\x08\0\0\0" : "MM\0*\0\0\0\x08", 8);
        unsigned char *copy = malloc(size > 0 ? size : 1);
        memcpy(copy, tiff, size);
        int o = exif_orientation_tiff(copy, size);
        assert_true(o >= 1 && o <= 8);
        o = exif_orientation_jpeg(copy, size);
        assert_int_equal(o, 1);
        exif_orientation_png(copy, size);
        free(copy);
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(corpus_matches_pillow),
        cmocka_unit_test(orientation_matches_pillow),
        cmocka_unit_test(scratch_is_reused),
        cmocka_unit_test(allocation_failures_are_clean),
        cmocka_unit_test(truncation_is_always_found),
        cmocka_unit_test(changed_bytes_never_crash),
        cmocka_unit_test(alpha_is_composited),
        cmocka_unit_test(probe_reads_headers),
        cmocka_unit_test(odd_files_are_refused),
        cmocka_unit_test(png_survives_a_round_trip),
        cmocka_unit_test(many_text_chunks),
        cmocka_unit_test(endless_scans),
        cmocka_unit_test(exif_walk_is_bounded),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
