/* YUV4MPEG2: colours by hand, odd sides, rates, what is refused. */
#include "data_support.h"

#include <stdio.h>
#include <stdlib.h>

#include "core/file.h"
#include "datasets/y4m.h"

static char folder[256];

static int set_up(void **state) {
    (void)state;
    make_temp(folder);
    return 0;
}

static int tear_down(void **state) {
    (void)state;
    remove_tree(folder);
    return 0;
}

static char *written(const uint8_t *frames, int64_t count, int64_t width, int64_t height,
                     double fps, size_t *size) {
    char *path, *text;
    assert_ok(path_join(&path, folder, "film.y4m"));
    assert_ok(y4m_write(path, frames, count, width, height, fps));
    assert_ok(file_read(path, 1 << 20, &text, size));
    mem_free(path);
    return text;
}

/* Black, white and the primaries as BT.601's table has them. */
static void colours_of_the_standard(void **state) {
    (void)state;
    static const uint8_t rgb[5][3] = {
        {0, 0, 0}, {255, 255, 255}, {255, 0, 0}, {0, 255, 0}, {0, 0, 255}};
    static const uint8_t want[5][3] = {
        {16, 128, 128}, {235, 128, 128}, {81, 90, 240}, {145, 54, 34}, {41, 240, 110}};
    static const char head[] = "YUV4MPEG2 W2 H2 F30:1 Ip A1:1 C420jpeg\n";
    uint8_t frames[5 * 4 * 3];
    size_t size;
    for (int i = 0; i < 5; i++)
        for (int p = 0; p < 4; p++) memcpy(frames + (i * 4 + p) * 3, rgb[i], 3);
    char *text = written(frames, 5, 2, 2, 30, &size);
    assert_int_equal(size, strlen(head) + 5 * (6 + 6));
    assert_memory_equal(text, head, strlen(head));
    for (int i = 0; i < 5; i++) {
        const char *at = text + strlen(head) + i * 12;
        assert_memory_equal(at, "FRAME\n", 6);
        for (int p = 0; p < 4; p++) assert_int_equal((uint8_t)at[6 + p], want[i][0]);
        assert_int_equal((uint8_t)at[10], want[i][1]);
        assert_int_equal((uint8_t)at[11], want[i][2]);
    }
    mem_free(text);
}

/* 3x1: the second chroma sample is of the last pixel alone. */
static void odd_sides(void **state) {
    (void)state;
    static const uint8_t frame[9] = {255, 0, 0, 0, 0, 255, 0, 255, 0};
    static const char head[] = "YUV4MPEG2 W3 H1 F12500:1000 Ip A1:1 C420jpeg\n";
    static const uint8_t want[] = {81, 41, 145, 165, 54, 175, 34};
    size_t size;
    char *text = written(frame, 1, 3, 1, 12.5, &size);
    assert_int_equal(size, strlen(head) + 6 + sizeof want);
    assert_memory_equal(text, head, strlen(head));
    assert_memory_equal(text + strlen(head) + 6, want, sizeof want);
    mem_free(text);
}

static void mistakes_are_refused(void **state) {
    (void)state;
    static const uint8_t frame[3];
    char *path;
    assert_ok(path_join(&path, folder, "none.y4m"));
    assert_int_equal(y4m_write(path, frame, 1, 0, 1, 30), STATUS_DATA);
    assert_int_equal(y4m_write(path, frame, 1, 1, 1, 0), STATUS_DATA);
    assert_int_equal(y4m_write(path, frame, 1, 1, 1, 1e6), STATUS_DATA);
    assert_false(file_exists(path));
    mem_free(path);
    assert_int_equal(y4m_write("/nowhere/film.y4m", frame, 1, 1, 1, 30), STATUS_IO);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(colours_of_the_standard),
        cmocka_unit_test(odd_sides),
        cmocka_unit_test(mistakes_are_refused),
    };
    return cmocka_run_group_tests(tests, set_up, tear_down);
}
