/* Checkpoints: what is saved comes back, damage is refused, old ones are pruned. */
#include <stdarg.h>
#include <stddef.h>
#include <setjmp.h>
#include <stdint.h>
#include <cmocka.h>

#include "nn_checkpoint_fixture.h"

static bool there(const char *folder, const char *name) {
    char path[256];
    snprintf(path, sizeof path, "%s/%s", folder, name);
    return access(path, F_OK) == 0;
}

/* ---- plain use -------------------------------------------------------------------------- */

static void everything_comes_back(void **unused) {
    (void)unused;
    char *folder = folder_new(), *weights, *state, link[256], target[256] = "";
    Toy *toy = toy_new(4);
    check_ok(save(toy, folder, 1200, true, 0));
    assert_int_equal(load(folder, "last"), 1200);
    assert_int_equal(load(folder, "best"), 1200);
    assert_true(there(folder, "checkpoints/step-00001200.safetensors"));
    assert_true(there(folder, "checkpoints/step-00001200.state.safetensors"));
    snprintf(link, sizeof link, "%s/last.safetensors", folder);
    assert_true(readlink(link, target, sizeof target - 1) > 0);
    assert_string_equal(target, "checkpoints/step-00001200.safetensors");
    check_ok(checkpoint_find(folder, "last", &weights, &state));
    SafeFile *f;
    check_ok(safetensors_open(link, &f));
    assert_int_equal(safetensors_count(f), 6);
    assert_string_equal(safetensors_meta(f, "ttv.format"), "1");
    assert_string_equal(safetensors_meta(f, "ttv.step"), "1200");
    assert_string_equal(safetensors_meta(f, "ttv.epoch"), "2");
    assert_string_equal(safetensors_meta(f, "ttv.metric"), "600");
    assert_string_equal(safetensors_meta(f, "ttv.weights"), "raw");
    assert_string_equal(safetensors_meta(f, "ttv.config"), "[model]\nwidth = 5\n");
    safetensors_close(f);
    check_ok(safetensors_open(state, &f));
    assert_non_null(safetensors_find(f, "optim.m.fc1.weight"));
    assert_non_null(safetensors_find(f, "optim.v.head.bias"));
    assert_string_equal(safetensors_meta(f, "ttv.seed"), "18446744073709551614");
    safetensors_close(f);
    mem_free(weights);
    mem_free(state);
    toy_free(toy);
    folder_remove(folder);
}

static void prune_keeps_best_last_and_n(void **unused) {
    (void)unused;
    char *folder = folder_new();
    Toy *toy = toy_new(4);
    for (int64_t step = 1; step <= 7; step++) check_ok(save(toy, folder, step, step == 2, 2));
    static const bool kept[] = {false, false, true, false, false, true, true, true};
    for (int step = 1; step <= 7; step++) {
        char name[64];
        snprintf(name, sizeof name, "checkpoints/step-%08d.safetensors", step);
        assert_int_equal(there(folder, name), kept[step]);
        snprintf(name, sizeof name, "checkpoints/step-%08d.state.safetensors", step);
        assert_int_equal(there(folder, name), kept[step]);
    }
    assert_int_equal(load(folder, "best"), 2);
    check_ok(save(toy, folder, 8, false, 0));
    assert_false(there(folder, "checkpoints/step-00000007.safetensors"));
    assert_true(there(folder, "checkpoints/step-00000002.safetensors"));
    assert_int_equal(load(folder, "last"), 8);
    toy_free(toy);
    folder_remove(folder);
}

static void strangers_are_left_alone(void **unused) {
    (void)unused;
    static const char *const names[] = {"checkpoints/step-1.safetensors", "checkpoints/notes.txt",
                                        "checkpoints/step-00000001.safetensors.bak",
                                        "checkpoints/step-00000001-1.safetensors"};
    char *folder = folder_new(), path[256];
    Toy *toy = toy_new(4);
    snprintf(path, sizeof path, "%s/checkpoints", folder);
    check_ok(file_make_folder(path));
    for (int i = 0; i < 4; i++) {
        snprintf(path, sizeof path, "%s/%s", folder, names[i]);
        check_ok(file_write_atomic(path, "x", 1));
    }
    for (int64_t step = 1; step < 4; step++) check_ok(save(toy, folder, step, false, 0));
    for (int i = 0; i < 4; i++) assert_true(there(folder, names[i]));
    toy_free(toy);
    folder_remove(folder);
}

/* A second save of a step must not touch the files that a manifest names. */
static void a_step_saved_twice(void **unused) {
    (void)unused;
    char *folder = folder_new();
    Toy *toy = toy_new(4);
    check_ok(save(toy, folder, 5, true, 0));
    check_ok(save(toy, folder, 5, false, 0));
    assert_true(there(folder, "checkpoints/step-00000005-2.safetensors"));
    assert_int_equal(load(folder, "best"), 5);
    assert_int_equal(load(folder, "last"), 5);
    check_ok(save(toy, folder, 6, true, 0));
    assert_false(there(folder, "checkpoints/step-00000005-2.safetensors"));
    assert_false(there(folder, "checkpoints/step-00000005.safetensors"));
    toy_free(toy);
    folder_remove(folder);
}

static void resolve_finds_weights(void **unused) {
    (void)unused;
    char *folder = folder_new(), *path;
    Toy *toy = toy_new(4);
    check_fails(checkpoint_resolve(folder, &path), STATUS_DATA, "holds no best.json");
    check_ok(save(toy, folder, 1, false, 2));
    check_ok(checkpoint_resolve(folder, &path));
    assert_non_null(strstr(path, "step-00000001.safetensors"));
    mem_free(path);
    check_ok(save(toy, folder, 2, true, 2));
    check_ok(save(toy, folder, 3, false, 2));
    check_ok(checkpoint_resolve(folder, &path));
    assert_non_null(strstr(path, "step-00000002.safetensors"));
    mem_free(path);
    check_ok(checkpoint_resolve("some/file.safetensors", &path));
    assert_string_equal(path, "some/file.safetensors");
    mem_free(path);
    toy_free(toy);
    folder_remove(folder);
}

/* ---- damage ----------------------------------------------------------------------------- */

static void flip_byte(const char *folder, const char *name, long at) {
    char path[256];
    snprintf(path, sizeof path, "%s/%s", folder, name);
    FILE *f = fopen(path, "r+b");
    assert_non_null(f);
    fseek(f, at, at < 0 ? SEEK_END : SEEK_SET);
    int c = fgetc(f);
    fseek(f, at, at < 0 ? SEEK_END : SEEK_SET);
    fputc(c ^ 1, f);
    fclose(f);
}

static void damaged_files_are_refused(void **unused) {
    (void)unused;
    static const char *const files[] = {"checkpoints/step-00000003.safetensors",
                                        "checkpoints/step-00000003.state.safetensors"};
    char *folder = folder_new(), path[256];
    Toy *toy = toy_new(4);
    check_ok(save(toy, folder, 3, false, 0));
    for (int i = 0; i < 2; i++) {
        flip_byte(folder, files[i], -5);
        Status s = checkpoint_resume(folder, "last", &toy->params, &toy->optim, &toy->state);
        check_fails(s, STATUS_DATA, files[i]);
        check_fails(s, STATUS_DATA, "CRC-32C");
        flip_byte(folder, files[i], -5);
        assert_int_equal(load(folder, "last"), 3);
    }
    snprintf(path, sizeof path, "%s/%s", folder, files[0]);
    assert_int_equal(truncate(path, 100), 0);
    check_fails(checkpoint_resume(folder, "last", &toy->params, &toy->optim, &toy->state),
                STATUS_DATA, "100 bytes");
    unlink(path);
    check_fails(checkpoint_resume(folder, "last", &toy->params, &toy->optim, &toy->state),
                STATUS_IO, files[0]);
    toy_free(toy);
    folder_remove(folder);
}

static void hostile_manifests_are_refused(void **unused) {
    (void)unused;
#define REST                                                                                       \
    ",\"step\":1,\"epoch\":1,\"weights_bytes\":1,\"weights_crc32c\":1,\"state_bytes\":1,\"state_"  \
    "crc32c\":1}"
    static const char *const texts[] = {
        "",
        "[]",
        "{}",
        "{\"weights\":\"/etc/passwd\",\"state\":\"checkpoints/a\"" REST,
        "{\"weights\":\"checkpoints/../../a\",\"state\":\"checkpoints/a\"" REST,
        "{\"weights\":\"checkpoints/..\",\"state\":\"checkpoints/a\"" REST,
        "{\"weights\":\"../checkpoints/a\",\"state\":\"checkpoints/a\"" REST,
        "{\"weights\":\"checkpoints/\",\"state\":\"checkpoints/a\"" REST,
        "{\"weights\":7,\"state\":\"checkpoints/a\"" REST,
        "{\"weights\":\"checkpoints/a\"" REST,
        "{\"step\":-1}",
        "{\"step\":1.5}",
    };
    char *folder = folder_new(), path[256];
    Toy *toy = toy_new(4);
    snprintf(path, sizeof path, "%s/last.json", folder);
    for (size_t i = 0; i < sizeof texts / sizeof texts[0]; i++) {
        check_ok(file_write_atomic(path, texts[i], strlen(texts[i])));
        check_fails(checkpoint_resume(folder, "last", &toy->params, &toy->optim, &toy->state),
                    STATUS_DATA, "last.json");
    }
    check_fails(checkpoint_resume(folder, "best", &toy->params, &toy->optim, &toy->state),
                STATUS_IO, "best.json");
    check_fails(checkpoint_resume(folder, "first", &toy->params, &toy->optim, &toy->state),
                STATUS_USAGE, "first");
    toy_free(toy);
    folder_remove(folder);
}

static void other_models_are_refused(void **unused) {
    (void)unused;
    char *folder = folder_new();
    Toy *toy = toy_new(4), *other = calloc(1, sizeof *other);
    check_ok(save(toy, folder, 3, false, 0));
    const int64_t shape[] = {HIDDEN, FEATURES};
    check_ok(device_open("cpu", &other->d));
    params_init(&other->params, other->d);
    params_add(&other->params, "fc1.weight", 2, shape, (Init){INIT_ZERO, 0}, 0);
    check_ok(params_build(&other->params, DTYPE_F32, true));
    check_ok(
        adamw_init(&other->optim, &other->params, (AdamWOptions){0.9f, 0.99f, 1e-8f, 0, 0, 0}));
    check_fails(checkpoint_resume(folder, "last", &other->params, &other->optim, &other->state),
                STATUS_DATA, "cannot resume from last");
    params_free(&other->params);
    device_close(other->d);
    free(other);
    toy_free(toy);
    folder_remove(folder);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(everything_comes_back),
        cmocka_unit_test(prune_keeps_best_last_and_n),
        cmocka_unit_test(strangers_are_left_alone),
        cmocka_unit_test(a_step_saved_twice),
        cmocka_unit_test(resolve_finds_weights),
        cmocka_unit_test(damaged_files_are_refused),
        cmocka_unit_test(hostile_manifests_are_refused),
        cmocka_unit_test(other_models_are_refused),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
