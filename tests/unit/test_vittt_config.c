/* Section [model]: presets, what a user set wins, and messages. */
#include <stdarg.h>
#include <stddef.h>
#include <setjmp.h>
#include <stdint.h>
#include <cmocka.h>

#include <string.h>

#include "core/memory.h"
#include "vision/vittt.h"

static VitttConfig values;

/* Reads [model] text over the defaults and resolves it. */
static Status resolve(const char *text) {
    const Section section = {"model", vittt_options, &values};
    Config *c;
    memset(&values, 0, sizeof values);
    assert_int_equal(config_new(&section, 1, &c), STATUS_OK);
    Status s = config_read_text(c, text, strlen(text), "test.ini", false);
    if (s == STATUS_OK) s = vittt_config_resolve(&values, c);
    config_free(c);
    return s;
}

static void expect_message(const char *text, const char *part) {
    assert_int_equal(resolve(text), STATUS_USAGE);
    if (!strstr(status_message(), part)) print_error("message: %s\n", status_message());
    assert_non_null(strstr(status_message(), part));
}

static void defaults_are_the_tiny_preset(void **state) {
    (void)state;
    assert_int_equal(resolve(""), STATUS_OK);
    assert_string_equal(values.preset, "vittt_tiny");
    assert_int_equal(values.image_size, 224);
    assert_int_equal(values.patch, 16);
    assert_int_equal(values.width, 192);
    assert_int_equal(values.depth, 12);
    assert_int_equal(values.heads, 6);
    assert_int_equal(values.mlp_ratio, 4);
    assert_int_equal(values.classes, 1000);
    assert_int_equal(values.form, VITTT_FUSED);
    assert_string_equal(values.mixer, "base");
}

static void names_people_guess(void **state) {
    (void)state;
    const struct {
        const char *text, *name;
        int64_t width, heads;
    } cases[] = {
        {"[model]\npreset = vittt_small\n", "vittt_small", 384, 6},
        {"[model]\npreset = vittt-s\n", "vittt_small", 384, 6},
        {"[model]\npreset = ViTTT-B\n", "vittt_base", 768, 12},
        {"[model]\npreset = base\n", "vittt_base", 768, 12},
        {"[model]\npreset = vittt_t\n", "vittt_tiny", 192, 6},
        {"[model]\npreset = T\n", "vittt_tiny", 192, 6},
        {"[model]\npreset = h_vittt_tiny\n", "vittt_h_tiny", 512, 16},
        {"[model]\npreset = H-ViTTT-S\n", "vittt_h_small", 512, 16},
        {"[model]\npreset = vittt_h_base\n", "vittt_h_base", 640, 20},
        {"[model]\npreset = h-b\n", "vittt_h_base", 640, 20},
    };
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        assert_int_equal(resolve(cases[i].text), STATUS_OK);
        assert_string_equal(values.preset, cases[i].name);
        assert_int_equal(values.width, cases[i].width);
        assert_int_equal(values.heads, cases[i].heads);
    }
    assert_true(resolve("[model]\npreset = vittt_base\n") == STATUS_OK && values.drop_path == 0.4);
}

static void what_was_set_wins(void **state) {
    (void)state;
    assert_int_equal(resolve("[model]\npreset = vittt_base\nwidth = 96\nheads = 4\npatch = 4\n"
                             "image_size = 32\nclasses = 10\ndrop_path = 0\n"),
                     STATUS_OK);
    assert_int_equal(values.width, 96);
    assert_int_equal(values.heads, 4);
    assert_int_equal(values.patch, 4);
    assert_int_equal(values.depth, 12);
    assert_true(values.drop_path == 0);
    assert_int_equal(resolve("[model]\npreset = custom\nwidth = 64\nheads = 2\ndepth = 3\n"),
                     STATUS_OK);
    assert_string_equal(values.preset, "custom");
    assert_int_equal(values.depth, 3);
    assert_int_equal(values.patch, 16);
}

/* The resolved copy in the run folder gives the same model again. */
static void the_resolved_copy_reads_back(void **state) {
    (void)state;
    const Section section = {"model", vittt_options, &values};
    const char *text = "[model]\npreset = s\ndepth = 7\nmixer = q_is_k\nform = pairs\n";
    Config *c;
    memset(&values, 0, sizeof values);
    assert_int_equal(config_new(&section, 1, &c), STATUS_OK);
    assert_int_equal(config_read_text(c, text, strlen(text), "a.ini", false), STATUS_OK);
    assert_int_equal(vittt_config_resolve(&values, c), STATUS_OK);
    char *copy;
    assert_int_equal(config_write(c, false, &copy), STATUS_OK);
    config_free(c);
    const VitttConfig first = values;
    assert_int_equal(resolve(copy), STATUS_OK);
    mem_free(copy);
    assert_string_equal(values.preset, "vittt_small");
    assert_string_equal(values.mixer, "q_is_k");
    assert_int_equal(values.form, VITTT_PAIRS);
    assert_int_equal(values.width, first.width);
    assert_int_equal(values.depth, 7);
    assert_int_equal(values.heads, first.heads);
    assert_true(values.drop_path == first.drop_path);
}

static void mistakes_are_named(void **state) {
    (void)state;
    expect_message("[model]\npreset = vittt_smal\n", "did you mean 'vittt_small'?");
    expect_message("[model]\npreset = resnet50\n", "there are vittt_tiny");
    expect_message("[model]\npreset = h_vittt_tny\n", "did you mean 'vittt_h_tiny'?");
    expect_message("[model]\npreset = vittt_tiny\nstages = 8x1x2,8x1x2,8x1x2,8x1x2\n",
                   "vittt_tiny is a plain model");
    expect_message("[model]\npreset = vittt_h_tiny\nwidth = 512\nheads = 8\n",
                   "takes its sizes from them alone");
    expect_message("[model]\npreset = vittt_h_tiny\nimage_size = 230\n",
                   "230 is not a multiple of patch 32; nearest: 224");
    expect_message("[model]\npreset = vittt_h_tiny\nmixer = ttt_linear\n",
                   "'ttt_linear' is not for hierarchical models");
    expect_message("[model]\nimage_size = 225\n",
                   "225 is not a multiple of patch 16; nearest: 224");
    expect_message("[model]\nwidth = 100\n", "width 100 is not a multiple of heads 6");
    expect_message("[model]\nmixer = v3_linear_papr\n", "did you mean 'v3_linear_paper'?");
    const char *const refused[] = {"[model]\ndeph = 3\n", "[model]\ndepth = 0\n",
                                   "[model]\ndrop_path = 1\n", "[model]\nform = magic\n",
                                   "[model]\nwidth = many\n"};
    for (size_t i = 0; i < sizeof refused / sizeof refused[0]; i++)
        assert_int_not_equal(resolve(refused[i]), STATUS_OK);
}

/* Values that did not come through the option table (a caller's struct) are checked too. */
static void structs_are_checked(void **state) {
    (void)state;
    const VitttConfig good = {.preset = "custom",
                              .image_size = 32,
                              .patch = 4,
                              .width = 12,
                              .depth = 1,
                              .heads = 3,
                              .mlp_ratio = 4,
                              .classes = 2,
                              .mixer = "base"};
    assert_int_equal(vittt_config_check(&good), STATUS_OK);
    VitttConfig bad[8];
    for (int i = 0; i < 8; i++) bad[i] = good;
    bad[0].patch = 0;
    bad[1].heads = -1;
    bad[2].classes = 0;
    bad[3].drop_path = 1;
    bad[4].form = 9;
    bad[5].stem_depth = 17;
    bad[6].stem_depth = 1; /* without channels */
    bad[7].stem_depth = 1, bad[7].stem_width = 8, bad[7].patch = 1;
    for (int i = 0; i < 8; i++) assert_int_equal(vittt_config_check(&bad[i]), STATUS_USAGE);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(defaults_are_the_tiny_preset),
        cmocka_unit_test(names_people_guess),
        cmocka_unit_test(what_was_set_wins),
        cmocka_unit_test(the_resolved_copy_reads_back),
        cmocka_unit_test(mistakes_are_named),
        cmocka_unit_test(structs_are_checked),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
