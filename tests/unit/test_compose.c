/* Contact sheets, comparisons, labels and animations, read back. */
#include "data_support.h"

#include "datasets/apng.h"
#include "datasets/compose.h"
#include "datasets/font.h"

static const uint8_t *pixel(const Image *image, int64_t x, int64_t y) {
    return image->pixels + (y * image->width + x) * 3;
}

static bool is_color(const Image *image, int64_t x, int64_t y, Color c) {
    const uint8_t *p = pixel(image, x, y);
    return p[0] == c.red && p[1] == c.green && p[2] == c.blue;
}

static const Color black = {0, 0, 0}, red = {255, 0, 0}, blue = {0, 0, 255},
                   white = {255, 255, 255};

static Image plain(int64_t w, int64_t h, Color c) {
    Image image;
    assert_ok(canvas_new(w, h, c, &image));
    return image;
}

/* ---- font, canvas ---- */

static void every_printable_letter_has_its_own_glyph(void **state) {
    (void)state;
    char seen[128][FONT_WIDTH * FONT_HEIGHT + 1] = {{0}};
    for (int c = ' '; c < 127; c++) {
        for (int i = 0; i < FONT_WIDTH * FONT_HEIGHT; i++)
            seen[c][i] = font_dot((unsigned char)c, i % FONT_WIDTH, i / FONT_WIDTH) ? '#' : '.';
        for (int other = ' '; other < c; other++) assert_string_not_equal(seen[c], seen[other]);
    }
    /* Outside the cell, beyond ASCII, control characters. */
    assert_false(font_dot('A', -1, 0) || font_dot('A', 0, FONT_HEIGHT) || font_dot('H', 5, 0));
    assert_true(font_dot(200, 0, 0) && font_dot('\n', 0, 0));
}

static void text_is_drawn_and_clipped(void **state) {
    (void)state;
    Image c = plain(20, 10, black);
    canvas_text(&c, 1, 1, 1, white, "I-\xC3\xBC"); /* I, minus, one box */
    assert_int_equal(canvas_text_width("I-\xC3\xBC", 2), 3 * 2 * FONT_WIDTH);
    assert_true(is_color(&c, 2, 1, white) && is_color(&c, 3, 1, white));
    assert_true(is_color(&c, 1, 1, black) && is_color(&c, 3, 7, white));
    assert_true(is_color(&c, 8, 4, white) && is_color(&c, 13, 1, white));
    canvas_text(&c, -50, -50, 3, white, "OUTSIDE");
    canvas_text(&c, 18, 8, 3, white, "OUTSIDE");
    image_free(&c);
}

static void pasting_cuts_at_the_edges(void **state) {
    (void)state;
    Image c = plain(6, 5, black), p = plain(3, 3, red);
    const int64_t places[][2] = {{-2, -2}, {5, 4}, {-9, 0}, {0, 9}, {9, 9}, {-3, 1}};
    for (size_t i = 0; i < sizeof places / sizeof places[0]; i++)
        canvas_paste(&c, &p, places[i][0], places[i][1]);
    for (int64_t y = 0; y < 5; y++)
        for (int64_t x = 0; x < 6; x++)
            assert_true(is_color(&c, x, y, (x == 0 && y == 0) || (x == 5 && y == 4) ? red : black));
    image_free(&c);
    image_free(&p);
    assert_int_equal(canvas_new(0, 5, black, &c), STATUS_DATA);
    assert_int_equal(canvas_new(5, 1000001, black, &c), STATUS_DATA);
    assert_null(c.pixels);
}

/* ---- sheets ---- */

static void sheets_are_grids(void **state) {
    (void)state;
    Image p[5] = {plain(10, 8, red), plain(10, 8, blue), plain(4, 2, white), plain(10, 8, red),
                  plain(10, 8, blue)};
    const char *const labels[5] = {"I", NULL, "Much too long", "", "I"};
    SheetOptions o = {.columns = 2, .margin = 3, .text_scale = 1, .ink = white};
    Image s;
    assert_ok(contact_sheet(p, labels, 5, &o, &s));
    assert_int_equal(s.width, 2 * 13 + 3);
    assert_int_equal(s.height, 3 * (8 + 10 + 3) + 3);
    assert_true(is_color(&s, 2, 2, black) && is_color(&s, 3, 3, red) && is_color(&s, 12, 10, red));
    assert_true(is_color(&s, 13, 3, black) && is_color(&s, 16, 3, blue));
    /* The small one stands in the middle of its cell, its label ends with the cell: one letter. */
    assert_true(is_color(&s, 6, 24 + 3, white) && is_color(&s, 5, 24 + 3, black));
    assert_true(is_color(&s, 3, 24 + 8 + 1, white)); /* M */
    for (int64_t y = 24 + 8; y < 24 + 18; y++)
        for (int64_t x = 3 + FONT_WIDTH; x < 16; x++) assert_true(is_color(&s, x, y, black));
    image_free(&s);
    o = sheet_options_default(); /* 3 x 2 */
    assert_ok(contact_sheet(p, NULL, 5, &o, &s));
    assert_int_equal(s.width, 3 * 14 + 4);
    assert_int_equal(s.height, 2 * 12 + 4);
    image_free(&s);
    assert_int_equal(contact_sheet(p, NULL, 0, &o, &s), STATUS_DATA);
    o.margin = 600000;
    assert_int_equal(contact_sheet(p, NULL, 5, &o, &s), STATUS_DATA);
    assert_null(s.pixels);
    for (int i = 0; i < 5; i++) image_free(&p[i]);
}

static void comparisons_show_all_three(void **state) {
    (void)state;
    Image a = plain(40, 20, black), b = plain(40, 20, black), s, other = plain(39, 20, black);
    memset(b.pixels, 255, 3);
    SheetOptions o = {.margin = 2, .text_scale = 1, .ink = blue};
    assert_ok(compare_sheet(&a, &b, 0.5, &o, &s));
    assert_int_equal(s.width, 3 * 42 + 2);
    assert_true(is_color(&s, 2, 2, black) && is_color(&s, 44, 2, white) &&
                is_color(&s, 86, 2, white) && is_color(&s, 87, 2, black));
    image_free(&s);
    assert_int_equal(compare_sheet(&a, &other, 0.5, &o, &s), STATUS_DATA);
    assert_message("39 x 20");
    assert_null(s.pixels);
    assert_ok(compare_sheet(&a, &a, 0.5, &o, &s));
    image_free(&s);
    image_free(&a);
    image_free(&b);
    image_free(&other);
}

/* ---- animations ---- */

static uint32_t get_32(const char *p) {
    const unsigned char *b = (const unsigned char *)p;
    return (uint32_t)b[0] << 24 | (uint32_t)b[1] << 16 | (uint32_t)b[2] << 8 | b[3];
}

static void put_32(char *p, uint32_t v) {
    for (int i = 0; i < 4; i++) p[i] = (char)(v >> (24 - 8 * i));
}

static uint32_t crc_of(const char *data, size_t size) {
    uint32_t crc = ~0U;
    for (size_t i = 0; i < size; i++) {
        crc ^= (unsigned char)data[i];
        for (int k = 0; k < 8; k++) crc = crc >> 1 ^ (crc & 1 ? 0xEDB88320U : 0);
    }
    return ~crc;
}

/* A PNG of one frame: signature and IHDR of the file, the frame's data as IDAT, IEND. */
static void check_frame(const char *file, const char *data, uint32_t size, const Image *want) {
    char *png = malloc(33 + 12 + (size_t)size + 12);
    assert_non_null(png);
    memcpy(png, file, 33);
    put_32(png + 33, size);
    memcpy(png + 37, "IDAT", 4);
    memcpy(png + 41, data, size);
    put_32(png + 41 + size, crc_of(png + 37, size + 4));
    memcpy(png + 45 + size, "\0\0\0\0IEND\xAE\x42\x60\x82", 12);
    ImageOptions o = image_options_default();
    Image got;
    assert_ok(image_decode(png, 57 + (size_t)size, "frame", &o, &got, NULL));
    assert_true(got.width == want->width && got.height == want->height);
    assert_memory_equal(got.pixels, want->pixels, (size_t)(got.width * got.height * 3));
    image_free(&got);
    free(png);
}

/* Every chunk's CRC, order, sequence numbers, delays and pixels. */
static void check_animation(const char *path, const Image *frames, uint32_t count, int num,
                            int den) {
    char *file;
    size_t size, at = 8;
    uint32_t sequence = 0, controls = 0, data = 0;
    read_whole(path, &file, &size);
    bool ended = false;
    while (at < size) {
        uint32_t n = get_32(file + at);
        const char *type = file + at + 4, *body = file + at + 8;
        assert_true(at + 12 + n <= size && !ended);
        assert_int_equal(get_32(body + n), crc_of(type, n + 4));
        if (memcmp(type, "acTL", 4) == 0) {
            assert_true(at == 33 && n == 8);
            assert_int_equal(get_32(body), count);
            assert_int_equal(get_32(body + 4), 3);
        } else if (memcmp(type, "fcTL", 4) == 0) {
            assert_true(n == 26 && controls == data);
            assert_int_equal(get_32(body), sequence++);
            assert_int_equal(get_32(body + 20), (uint32_t)num << 16 | (uint32_t)den);
            controls++;
        } else if (memcmp(type, "IDAT", 4) == 0) {
            assert_true(data == 0 && controls == 1);
            check_frame(file, body, n, frames + data++);
        } else if (memcmp(type, "fdAT", 4) == 0) {
            assert_true(controls == data + 1);
            assert_int_equal(get_32(body), sequence++);
            check_frame(file, body + 4, n - 4, frames + data++);
        } else if (memcmp(type, "IEND", 4) == 0) {
            ended = true;
        } else {
            assert_true(at == 8 && memcmp(type, "IHDR", 4) == 0);
        }
        at += 12 + n;
    }
    assert_true(ended && at == size && data == count);
    mem_free(file);
}

static Status write_animation(const char *path, const Image *frames, int64_t count, double fps) {
    ApngOptions o = {frames[0].width, frames[0].height, count, fps, 3};
    ApngWriter *w;
    TRY(apng_open(path, &o, &w));
    for (int64_t i = 0; i < count; i++) {
        Status s = apng_frame(w, frames + i);
        if (s == STATUS_OK) continue;
        apng_abort(w);
        return s;
    }
    return apng_commit(w);
}

static void animations_hold_their_frames(void **state) {
    (void)state;
    char folder[256], path[300];
    int64_t live = mem_live();
    snprintf(path, sizeof path, "%s/a.png", make_temp(folder));
    Image frames[4] = {pattern_image(31, 17), plain(31, 17, red), pattern_image(31, 17),
                       plain(31, 17, white)};
    canvas_text(&frames[2], 2, 2, 1, white, "third");
    const struct {
        double fps;
        int num, den;
    } rates[] = {{30, 1, 30}, {29.97, 1000, 29970}, {0.5, 2000, 1000}, {1000, 1, 1000}};
    for (size_t i = 0; i < sizeof rates / sizeof rates[0]; i++) {
        assert_ok(write_animation(path, frames, 4, rates[i].fps));
        check_animation(path, frames, 4, rates[i].num, rates[i].den);
    }
    assert_ok(write_animation(path, frames, 1, 30));
    check_animation(path, frames, 1, 1, 30);
    /* A PNG reader sees the first frame. */
    assert_ok(write_animation(path, frames, 4, 30));
    ImageOptions o = image_options_default();
    Image first;
    assert_ok(image_read(path, &o, &first, NULL));
    assert_memory_equal(first.pixels, frames[0].pixels, 31 * 17 * 3);
    image_free(&first);
    for (int i = 0; i < 4; i++) image_free(&frames[i]);
    remove_tree(folder);
    assert_int_equal(mem_live(), live);
}

static void refuse_options(const char *path, ApngOptions o) {
    ApngWriter *w;
    assert_int_equal(apng_open(path, &o, &w), STATUS_DATA);
    assert_null(w);
}

static void animations_refuse(void **state) {
    (void)state;
    char folder[256], path[300];
    int64_t live = mem_live();
    snprintf(path, sizeof path, "%s/a.png", make_temp(folder));
    refuse_options(path, (ApngOptions){0, 4, 1, 30, 0});
    refuse_options(path, (ApngOptions){4, 2000000, 1, 30, 0});
    refuse_options(path, (ApngOptions){100000, 100000, 1, 30, 0});
    refuse_options(path, (ApngOptions){4, 4, 0, 30, 0});
    refuse_options(path, (ApngOptions){4, 4, 1, 0, 0});
    refuse_options(path, (ApngOptions){4, 4, 1, 1001, 0});
    refuse_options(path, (ApngOptions){4, 4, 1, 30, -1});
    Image frame = plain(4, 4, red), other = plain(4, 5, red);
    ApngOptions o = {4, 4, 2, 30, 0};
    ApngWriter *w;
    assert_ok(apng_open(path, &o, &w));
    assert_int_equal(apng_frame(w, &other), STATUS_DATA);
    assert_message("4 x 5 pixels instead of 4 x 4");
    assert_ok(apng_frame(w, &frame));
    assert_int_equal(apng_commit(w), STATUS_DATA);
    assert_message("1 frames instead of 2");
    o.frames = 1;
    assert_ok(apng_open(path, &o, &w));
    assert_ok(apng_frame(w, &frame));
    assert_int_equal(apng_frame(w, &frame), STATUS_DATA);
    apng_abort(w);
    apng_abort(NULL);
    assert_false(file_exists(path)); /* nothing half-written */
    assert_int_equal(apng_open("/no/such/folder/a.png", &o, &w), STATUS_IO);
    image_free(&frame);
    image_free(&other);
    remove_tree(folder);
    assert_int_equal(mem_live(), live);
}

static void every_allocation_may_fail(void **state) {
    (void)state;
    char folder[256], path[300];
    snprintf(path, sizeof path, "%s/a.png", make_temp(folder));
    Image frames[2] = {pattern_image(16, 12), pattern_image(16, 12)};
    SheetOptions o = sheet_options_default();
    int64_t live = mem_live(), n;
    for (n = 1; n < 100; n++) {
        Image sheet;
        mem_fail_at(n);
        Status s = write_animation(path, frames, 2, 30);
        if (s == STATUS_OK) {
            s = compare_sheet(&frames[0], &frames[1], 0.25, &o, &sheet);
            if (s == STATUS_OK) image_free(&sheet);
        }
        bool fired = !mem_fail_pending();
        mem_fail_at(0);
        assert_int_equal(s, fired ? STATUS_MEMORY : STATUS_OK);
        assert_int_equal(mem_live(), live);
        if (!fired) break;
    }
    assert_true(n > 5 && n < 100);
    image_free(&frames[0]);
    image_free(&frames[1]);
    remove_tree(folder);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(every_printable_letter_has_its_own_glyph),
        cmocka_unit_test(text_is_drawn_and_clipped),
        cmocka_unit_test(pasting_cuts_at_the_edges),
        cmocka_unit_test(sheets_are_grids),
        cmocka_unit_test(comparisons_show_all_three),
        cmocka_unit_test(animations_hold_their_frames),
        cmocka_unit_test(animations_refuse),
        cmocka_unit_test(every_allocation_may_fail),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
