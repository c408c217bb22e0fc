/* Out of memory in a command: the n-th allocation fails, for every n. Each time the command must
 * end with exit code 5 and a message, or, where the failure was survivable, with its usual result;
 * and give everything back.
 */
#include <stdarg.h>
#include <stddef.h>
#include <setjmp.h>
#include <stdint.h>
#include <cmocka.h>

#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "core/memory.h"
#include "tools/cli.h"
#include "tools/model_io.h"

enum { MAX_ALLOCATIONS = 20000, EXIT_MEMORY = 5 };

static char folder[] = "/tmp/ttv-memory-XXXXXX";
static char weights[64], data[64];

/* A checkpoint of a very small model with random weights. */
static void write_checkpoint(void) {
    Config *config;
    Section list[2] = {section_of("model"), section_of("preprocess")};
    Model m;
    ModelMeta meta;
    const char *const sizes[] = {"preset=custom", "image_size=8", "patch=4",  "width=8",
                                 "depth=1",       "heads=2",      "classes=3"};
    snprintf(common.device, sizeof common.device, "cpu");
    assert_int_equal(config_new(list, 2, &config), STATUS_OK);
    for (size_t i = 0; i < sizeof sizes / sizeof *sizes; i++) {
        char text[64];
        snprintf(text, sizeof text, "model.%s", sizes[i]);
        assert_int_equal(config_set(config, text, "test"), STATUS_OK);
    }
    assert_int_equal(model_create(&m, config, 0, false, 1), STATUS_OK);
    assert_int_equal(model_meta(&m, &meta), STATUS_OK);
    assert_int_equal(params_save(&m.params, weights, meta.items, meta.count), STATUS_OK);
    model_meta_free(&meta);
    model_close(&m);
    config_free(config);
}

static int redirect(int stream, int to) {
    int kept = dup(stream);
    assert_true(kept >= 0 && dup2(to, stream) >= 0);
    return kept;
}

/* The program's own entry, its output thrown away. */
static int run(int argc, const char *const *argv) {
    char *copy[16] = {0};
    for (int i = 0; i < argc; i++) copy[i] = (char *)(uintptr_t)argv[i];
    fflush(stdout);
    int nowhere = open("/dev/null", O_WRONLY);
    int out = redirect(STDOUT_FILENO, nowhere), err = redirect(STDERR_FILENO, nowhere);
    int code = cli_main(argc, copy);
    dup2(out, STDOUT_FILENO);
    dup2(err, STDERR_FILENO);
    close(out);
    close(err);
    close(nowhere);
    return code;
}

static void fail_each(const char *what, int argc, const char *const *argv) {
    int usual = run(argc, argv), n, refused = 0;
    int64_t live = mem_live();
    for (n = 1; n < MAX_ALLOCATIONS; n++) {
        mem_fail_at(n);
        int code = run(argc, argv);
        int pending = mem_fail_pending();
        mem_fail_at(0);
        if (code != usual && code != EXIT_MEMORY)
            fail_msg("%s: allocation %d failed: exit code %d (%s)", what, n, code,
                     status_message());
        if (mem_live() != live)
            fail_msg("%s: allocation %d failed: %lld blocks are left behind", what, n,
                     (long long)(mem_live() - live));
        refused += code == EXIT_MEMORY;
        if (pending) break;
    }
    print_message("%s: %d allocations, %d ended the command\n", what, n - 1, refused);
    assert_true(n > 10 && n < MAX_ALLOCATIONS);
    assert_true(refused > 10);
}

#define FAIL_EACH(...)                                                                             \
    do {                                                                                           \
        const char *const argv_[] = {"ttv", __VA_ARGS__};                                          \
        fail_each(argv_[1], (int)(sizeof argv_ / sizeof *argv_), argv_);                           \
    } while (0)

static void test_classify(void **state) {
    (void)state;
    FAIL_EACH("classify", "--checkpoint", weights, "--workers", "1", "--json", "--threads", "1",
              TTV_SOURCE_DIR "/data/photos/flower.jpg", TTV_SOURCE_DIR "/data/photos/chelsea.png",
              "no-such-file");
}

static void test_inspect(void **state) {
    (void)state;
    FAIL_EACH("inspect", "--verify", "--stats", "--json", weights);
}

static void test_data_check(void **state) {
    (void)state;
    FAIL_EACH("data", "check", data, "--workers", "1", "--json");
}

static void test_data_check_scenes(void **state) {
    (void)state;
    char picture[256];
    snprintf(picture, sizeof picture, "%s/pair.png", folder);
    FAIL_EACH("data", "check", TTV_SOURCE_DIR "/data/motorcycle.tar", "--workers", "1", "--json",
              "--epipolar", picture);
    assert_int_equal(remove(picture), 0);
}

static void test_data_synth(void **state) {
    (void)state;
    char rooms[256], command[300];
    snprintf(rooms, sizeof rooms, "%s/rooms", folder);
    FAIL_EACH("data", "synth-scenes", rooms, "--workers", "1", "--scenes", "1", "--frames", "2",
              "--size", "8x8", "--overwrite", "--json");
    snprintf(command, sizeof command, "rm -r '%s'", rooms);
    assert_int_equal(system(command), 0);
}

/* Two class folders with one picture each, which the tear-down knows too. */
static void test_psnr(void **state) {
    (void)state;
    FAIL_EACH("psnr", data, data, "--recursive", "--workers", "1", "--json");
}

static const char *const pictures[2][2] = {{"cat", "chelsea.png"}, {"sky", "rocket.jpg"}};

static int set_up(void **state) {
    (void)state;
    char path[256], target[1024];
    if (!mkdtemp(folder)) return -1;
    snprintf(weights, sizeof weights, "%s/w.safetensors", folder);
    snprintf(data, sizeof data, "%s/data", folder);
    if (mkdir(data, 0700) != 0) return -1;
    for (int i = 0; i < 2; i++) {
        snprintf(path, sizeof path, "%s/%s", data, pictures[i][0]);
        if (mkdir(path, 0700) != 0) return -1;
        snprintf(path, sizeof path, "%s/%s/%s", data, pictures[i][0], pictures[i][1]);
        snprintf(target, sizeof target, "%s/data/photos/%s", TTV_SOURCE_DIR, pictures[i][1]);
        if (symlink(target, path) != 0) return -1;
    }
    write_checkpoint();
    return 0;
}

static int tear_down(void **state) {
    (void)state;
    char path[256];
    for (int i = 0; i < 2; i++) {
        snprintf(path, sizeof path, "%s/%s/%s", data, pictures[i][0], pictures[i][1]);
        unlink(path);
        snprintf(path, sizeof path, "%s/%s", data, pictures[i][0]);
        rmdir(path);
    }
    rmdir(data);
    unlink(weights);
    return rmdir(folder);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_classify),   cmocka_unit_test(test_inspect),
        cmocka_unit_test(test_data_check), cmocka_unit_test(test_data_check_scenes),
        cmocka_unit_test(test_data_synth), cmocka_unit_test(test_psnr),
    };
    return cmocka_run_group_tests(tests, set_up, tear_down);
}
