/* Reconstructed scenes as files. */
#include <stdarg.h>
#include <stddef.h>
#include <setjmp.h>
#include <stdint.h>
#include <cmocka.h>

#include <stdio.h>
#include <unistd.h>

#include "core/memory.h"
#include "nvs/lact_scene.h"
#include "vittt_fixture.h"

static char path[256];

static int make_path(void **state) {
    (void)state;
    temporary_weights(path);
    return 0;
}

static int remove_path(void **state) {
    (void)state;
    return unlink(path);
}

static LactScene scene_new(Device *d) {
    LactScene s = {.height = 8, .width = 12, .patch = 4, .variant = "V1"};
    for (int i = 0; i < 16; i++) s.frame.to_frame[i] = 1.0 / (i + 3);
    s.frame.scale = 1.35 / 7;
    check_ok(lact_state_new(d, 2, 1, 2, 8, 8, &s.fast));
    for (int64_t i = 0; i < 6; i++) {
        Tensor w = lact_state_tensor(s.fast, i / 3, (int)(i % 3));
        fill_normal(w.data, tensor_count(w), (uint64_t)i, 1);
    }
    return s;
}

static void scenes_survive_a_file(void **state) {
    (void)state;
    Device *d;
    LactScene back;
    SafeFile *f;
    const SafeMeta meta[] = {{"scene", "motorcycle"}};
    check_ok(device_open("cpu", &d));
    LactScene s = scene_new(d);
    check_ok(lact_scene_save(&s, path, meta, 1));
    check_ok(lact_scene_load(d, path, &back));
    assert_memory_equal(&back.frame, &s.frame, sizeof s.frame);
    assert_true(back.height == 8 && back.width == 12 && back.patch == 4);
    assert_string_equal(back.variant, "V1");
    Tensor a = lact_state_tensor(s.fast, 1, 1), b = lact_state_tensor(back.fast, 1, 1);
    assert_memory_equal(a.data, b.data, tensor_bytes(a));
    check_ok(safetensors_open(path, &f));
    assert_string_equal(safetensors_meta(f, "scene"), "motorcycle");
    safetensors_close(f);
    lact_scene_free(&back);
    lact_scene_free(&s);
    device_close(d);
}

static void other_files_are_refused(void **state) {
    (void)state;
    static const char frame[] = "1 0 0 0 0 1 0 0 0 0 1 0 0 0 0 1 2";
    const struct {
        const char *key, *value, *message; /* one key set otherwise, or left out */
    } faults[] = {
        {"ttv.format", NULL, "not a reconstructed scene (metadata 'ttv.format' is missing)"},
        {"ttv.format", "lact-scene 9", "format is 'lact-scene 9', expected 'lact-scene 1'"},
        {"ttv.frame", "1 0 0 x", "'ttv.frame' has no number 4 of 17"},
        {"ttv.frame", "1 0 0 nan", "'ttv.frame' has no number 4 of 17"},
        {"ttv.frame", "1 0 0 0 0 1 0 0 0 0 1 0 0 0 0 1 0", "a scale above 0"},
        {"ttv.frame", "1 0 0 0 0 1 0 0 0 0 1 0 0 0 0 1 2 3", "not 16 numbers of a pose"},
        {"ttv.height", "8x", "metadata 'ttv.height' is '8x'"},
        {"ttv.width", "0", "metadata 'ttv.width' is '0'"},
        {"ttv.patch", NULL, "metadata 'ttv.patch' is missing"},
        {"ttv.variant", "V9", "'ttv.variant' is 'V9', no known variant"},
        {"", NULL, "no fast weights"},
    };
    Device *d;
    float zero = 0;
    const SafeItem item = {"a", tensor_1d(&zero, DTYPE_F32, 1)};
    check_ok(device_open("cpu", &d));
    for (size_t i = 0; i < sizeof faults / sizeof faults[0]; i++) {
        SafeMeta meta[] = {{"ttv.format", "lact-scene 1"},
                           {"ttv.frame", frame},
                           {"ttv.height", "8"},
                           {"ttv.width", "12"},
                           {"ttv.patch", "4"},
                           {"ttv.variant", "base"}};
        LactScene s;
        for (int k = 0; k < 6; k++) {
            if (strcmp(meta[k].key, faults[i].key) != 0) continue;
            meta[k] = faults[i].value ? (SafeMeta){faults[i].key, faults[i].value}
                                      : (SafeMeta){"other", "key"};
        }
        check_ok(safetensors_write(path, &item, 1, meta, 6));
        assert_int_equal(lact_scene_load(d, path, &s), STATUS_DATA);
        if (!strstr(status_message(), faults[i].message)) print_error("%s\n", status_message());
        assert_non_null(strstr(status_message(), faults[i].message));
        assert_non_null(strstr(status_message(), path));
    }
    device_close(d);
}

static void a_scene_belongs_to_its_model(void **state) {
    (void)state;
    LactNvsConfig c = {.preset = "custom",
                       .height = 8,
                       .view_width = 12,
                       .patch = 4,
                       .width = 16,
                       .layers = 2,
                       .head_width = 8,
                       .fast_heads = 2,
                       .inter_multi = 1,
                       .variant = "V1",
                       .pose_margin = 1};
    Device *d;
    Params p;
    LactNvs *m;
    check_ok(device_open("cpu", &d));
    LactScene s = scene_new(d);
    params_init(&p, d);
    check_ok(lact_nvs_new(&c, &p, &m));
    check_ok(lact_scene_check(&s, m));
    s.height = 16;
    assert_int_equal(lact_scene_check(&s, m), STATUS_DATA);
    assert_non_null(strstr(status_message(), "views of 12x16 in patches of 4, the model 12x8"));
    s.height = 8;
    snprintf(s.variant, sizeof s.variant, "V2");
    assert_int_equal(lact_scene_check(&s, m), STATUS_DATA);
    assert_non_null(strstr(status_message(), "written by variant V2, the model is V1"));
    lact_nvs_free(m);
    params_free(&p);
    lact_scene_free(&s);
    device_close(d);
}

static void memory_may_run_out(void **state) {
    (void)state;
    Device *d;
    check_ok(device_open("cpu", &d));
    LactScene s = scene_new(d);
    check_ok(lact_scene_save(&s, path, NULL, 0));
    const int64_t alive = mem_live();
    int refused = 0;
    for (int64_t n = 1, failed = 1; failed; n++) {
        LactScene back = {0};
        mem_fail_at(n);
        Status status = lact_scene_save(&s, path, NULL, 0);
        if (status == STATUS_OK) status = lact_scene_load(d, path, &back);
        failed = !mem_fail_pending();
        mem_fail_at(0);
        refused += status == STATUS_MEMORY;
        lact_scene_free(&back);
        assert_int_equal(mem_live(), alive);
    }
    assert_true(refused > 10);
    lact_scene_free(&s);
    device_close(d);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(scenes_survive_a_file),
        cmocka_unit_test(other_files_are_refused),
        cmocka_unit_test(a_scene_belongs_to_its_model),
        cmocka_unit_test(memory_may_run_out),
    };
    return cmocka_run_group_tests(tests, make_path, remove_path);
}
