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

/* Of a run with very many allocations, mostly alike, those beyond EVERY are failed by STRIDE. */
enum { EVERY = 400, STRIDE = 13, MAX_ALLOCATIONS = 20000, EXIT_MEMORY = 5 };

static char folder[] = "/tmp/ttv-memory-XXXXXX";
static char weights[64], data[64], root[64]; /* root/val is data */

/* A checkpoint of a very small model with random weights. */
static void write_checkpoint(void) {
    Config *config;
    Section list[2] = {section_of("model"), section_of("preprocess")};
    Model m;
    ModelMeta meta;
    const char *const sizes[] = {"preset=custom", "image_size=8", "patch=4",  "width=8",
                                 "depth=1",       "heads=2",      "classes=2"};
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

static long written; /* bytes that the last run left on stdout */

/* The program's own entry, its output counted and thrown away. */
static int run(int argc, const char *const *argv) {
    char *copy[64] = {0};
    for (int i = 0; i < argc; i++) copy[i] = (char *)(uintptr_t)argv[i];
    fflush(stdout);
    FILE *counted = tmpfile();
    assert_non_null(counted);
    int nowhere = open("/dev/null", O_WRONLY);
    int out = redirect(STDOUT_FILENO, fileno(counted)), err = redirect(STDERR_FILENO, nowhere);
    int code = cli_main(argc, copy);
    fflush(stdout);
    written = lseek(fileno(counted), 0, SEEK_END);
    fclose(counted);
    dup2(out, STDOUT_FILENO);
    dup2(err, STDERR_FILENO);
    close(out);
    close(err);
    close(nowhere);
    return code;
}

/* Takes away what a run left, so that the next one begins alike; NULL: nothing to do. */
static void (*after_run)(void);

static int run_once(int argc, const char *const *argv) {
    const int code = run(argc, argv);
    if (after_run) after_run();
    return code;
}

static void fail_each(const char *what, int argc, const char *const *argv) {
    int usual = run_once(argc, argv), n, refused = 0;
    const bool tells = written > 0;
    int64_t live = mem_live();
    for (n = 1; n < MAX_ALLOCATIONS; n += n < EVERY ? 1 : STRIDE) {
        mem_fail_at(n);
        int code = run_once(argc, argv);
        int pending = mem_fail_pending();
        mem_fail_at(0);
        if (code != usual && code != EXIT_MEMORY)
            fail_msg("%s: allocation %d failed: exit code %d (%s)", what, n, code,
                     status_message());
        if (code == usual && tells && written == 0)
            fail_msg("%s: allocation %d failed: exit code %d, and no result", what, n, code);
        if (mem_live() != live)
            fail_msg("%s: allocation %d failed: %lld blocks are left behind", what, n,
                     (long long)(mem_live() - live));
        refused += code == EXIT_MEMORY;
        if (pending) break;
    }
    print_message("%s: %d allocations, %d times one ended the command\n", what, n - 1, refused);
    assert_true(n > 10 && n < MAX_ALLOCATIONS);
    assert_true(refused > 10);
}

#define FAIL_EACH(...)                                                                             \
    do {                                                                                           \
        const char *const argv_[] = {"ttv", __VA_ARGS__};                                          \
        fail_each(argv_[1], (int)(sizeof argv_ / sizeof *argv_), argv_);                           \
    } while (0)

#define CALL(...)                                                                                  \
    do {                                                                                           \
        const char *const argv_[] = {"ttv", __VA_ARGS__};                                          \
        assert_int_equal(run((int)(sizeof argv_ / sizeof *argv_), argv_), 0);                      \
    } while (0)

static void test_classify(void **state) {
    (void)state;
    FAIL_EACH("classify", "--checkpoint", weights, "--workers", "1", "--json", "--threads", "1",
              TTV_SOURCE_DIR "/data/photos/flower.jpg", TTV_SOURCE_DIR "/data/photos/chelsea.png",
              "no-such-file");
}

static void test_eval(void **state) {
    (void)state;
    char sheet[256];
    FAIL_EACH("eval", "--checkpoint", weights, "--data-dir", root, "--workers", "1", "--batch-size",
              "2", "--json", "--threads", "1");
    snprintf(sheet, sizeof sheet, "%s/worst.png", folder);
    FAIL_EACH("eval", "--checkpoint", weights, "--data-dir", root, "--workers", "1", "--threads",
              "1", "--worst", sheet);
    (void)remove(sheet);
}

/* What `export` makes of `weights`. */
static void drop_hub(void) {
    static const char *const names[] = {"hub/model.safetensors", "hub/config.json", "hub/README.md",
                                        "hub"};
    for (int i = 0; i < 4; i++) {
        char path[256];
        snprintf(path, sizeof path, "%s/%s", folder, names[i]);
        (void)remove(path);
    }
}

static void test_hub_folder(void **state) {
    (void)state;
    char hub[256];
    snprintf(hub, sizeof hub, "%s/hub/", folder);
    after_run = drop_hub;
    FAIL_EACH("export", weights, hub, "--json");
    after_run = NULL;
}

static void test_inspect(void **state) {
    (void)state;
    FAIL_EACH("inspect", "--verify", "--stats", "--json", weights);
}

/* What `data pack` makes of `data`. */
static void drop_shards(void) {
    static const char *const names[] = {"shards/all-000000.tar", "shards/classes.txt", "shards"};
    for (int i = 0; i < 3; i++) {
        char path[256];
        snprintf(path, sizeof path, "%s/%s", folder, names[i]);
        (void)remove(path);
    }
}

static void test_data_check(void **state) {
    (void)state;
    FAIL_EACH("data", "check", data, "--workers", "1", "--json");
    FAIL_EACH("data", "stat", data, "--img-size", "32", "--workers", "1", "--json");
    char shards[256];
    snprintf(shards, sizeof shards, "%s/shards", folder);
    after_run = drop_shards;
    FAIL_EACH("data", "pack", data, shards, "--json");
    CALL("data", "pack", data, shards);
    after_run = NULL;
    FAIL_EACH("data", "check", shards, "--split", "all", "--workers", "1", "--json");
    drop_shards();
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

/* ---- novel views: two procedural scenes, a model of one narrow block ---- */

#define NVS_MODEL                                                                                  \
    "--nvs-model", "custom", "--view-height", "8", "--view-width", "8", "--set",                   \
        "nvs_model.patch=4", "--set", "nvs_model.width=8", "--set", "nvs_model.layers=1", "--set", \
        "nvs_model.head_width=8"

static char rooms[64], nvs_run[64], nvs_out[64];

static void remove_folder(const char *path) {
    char command[300];
    snprintf(command, sizeof command, "rm -rf '%s'", path);
    assert_int_equal(system(command), 0);
}

static void remove_output(void) {
    remove_folder(nvs_out);
}

static int nvs_set_up(void **state) {
    (void)state;
    /* In memory where possible: every run syncs its files. */
    snprintf(folder, sizeof folder, "%s/ttv-m-XXXXXX",
             access("/dev/shm", W_OK) == 0 ? "/dev/shm" : "/tmp");
    if (!mkdtemp(folder)) return -1;
    snprintf(rooms, sizeof rooms, "%s/rooms", folder);
    snprintf(nvs_run, sizeof nvs_run, "%s/run", folder);
    snprintf(nvs_out, sizeof nvs_out, "%s/out", folder);
    CALL("data", "synth-scenes", rooms, "--scenes", "1", "--frames", "5", "--size", "12x8");
    CALL("data", "synth-scenes", rooms, "--split", "test", "--scenes", "1", "--frames", "5",
         "--size", "12x8", "--seed", "1", "--overwrite");
    CALL("nvs", "train", NVS_MODEL, "--data-dir", rooms, "--gap-min", "2", "--gap-max", "4",
         "--targets", "2", "--batch-size", "1", "--steps", "2", "--warmup-steps", "1", "--workers",
         "1", "--threads", "1", "-o", nvs_run);
    after_run = remove_output;
    return 0;
}

static int nvs_tear_down(void **state) {
    (void)state;
    after_run = NULL;
    remove_folder(folder);
    return 0;
}

/* Two steps, averaged weights, validations with pictures, checkpoints. */
static void test_nvs_train(void **state) {
    (void)state;
    FAIL_EACH("nvs", "train", NVS_MODEL, "--data-dir", rooms, "--gap-min", "2", "--gap-max", "4",
              "--targets", "2", "--batch-size", "1", "--steps", "2", "--warmup-steps", "1",
              "--val-interval", "1", "--model-ema", "--vary-crop", "--tint", "0.1", "--mirror",
              "0.5", "--initial-checkpoint", nvs_run, "--workers", "1", "--threads", "1", "-o",
              nvs_out, "--json");
}

static void test_nvs_eval(void **state) {
    (void)state;
    FAIL_EACH("nvs", "eval", "--checkpoint", nvs_run, "--data-dir", rooms, "--gap-min", "2",
              "--gap-max", "4", "--targets", "1", "--threads", "1", "--json");
}

static void test_plot(void **state) {
    (void)state;
    FAIL_EACH("plot", "--html", nvs_run, "-o", nvs_out, "--json");
}

/* Each layer of a model, its queries replaced, its vectors compared. */
static void test_ttt(void **state) {
    (void)state;
    FAIL_EACH("ttt", "verify", nvs_run, "--random", "1", "--threads", "1", "--json");
    FAIL_EACH("ttt", "probe", "swap", nvs_run, "--data-dir", rooms, "--scenes", "1", "--pictures",
              "1", "--gap-min", "2", "--gap-max", "4", "--targets", "1", "--resamples", "4",
              "--threads", "1", "-o", nvs_out, "--json");
    FAIL_EACH("ttt", "probe", "qk", nvs_run, "--data-dir", rooms, "--scenes", "1", "--pictures",
              "1", "--gap-min", "2", "--gap-max", "4", "--targets", "1", "--vectors", "16",
              "--shuffles", "2", "--threads", "1", "-o", nvs_out, "--json");
}

static void test_nvs_render(void **state) {
    (void)state;
    FAIL_EACH("nvs", "render", "--checkpoint", nvs_run, "--data-dir", rooms, "--split", "test",
              "--input-views", "0,4", "--targets", "2", "--threads", "1", "-o", nvs_out, "--json");
}

/* A spiral as GIF with a page, the scene saved; then that scene once more at cameras of a file. */
static void test_nvs_scene(void **state) {
    (void)state;
    char scene[300], cameras[300];
    snprintf(scene, sizeof scene, "%s/scene.safetensors", folder);
    snprintf(cameras, sizeof cameras, "%s/path.txt", folder);
    FILE *f = fopen(cameras, "w");
    assert_non_null(f);
    fprintf(f, "0 0.9 1.2 0.5 0.5 0 0 1 0 0 0 0 1 0 0 0 0 1 0\n");
    assert_int_equal(fclose(f), 0);
    FAIL_EACH("nvs", "render", "--checkpoint", nvs_run, "--data-dir", rooms, "--split", "test",
              "--input-views", "0,4", "--trajectory", "spiral", "--frames", "2", "--format", "gif",
              "--html", "--save-scene", scene, "--threads", "1", "-o", nvs_out, "--json");
    FAIL_EACH("nvs", "render", "--checkpoint", nvs_run, "--load-scene", scene, "--cameras", cameras,
              "--format", "none", "--threads", "1", "-o", nvs_out);
    assert_int_equal(remove(scene) | remove(cameras), 0);
}

static void test_export(void **state) {
    (void)state;
    FAIL_EACH("export", nvs_run, nvs_out, "--json");
}

static void test_files(void **state) {
    (void)state;
    FAIL_EACH("data", "index", rooms, nvs_out, "--gap-min", "2", "--gap-max", "4", "--json");
    FAIL_EACH("ckpt", "average", nvs_run, nvs_run, nvs_out, "--json");
    FAIL_EACH("ckpt", "average", "--newest", "1", nvs_run, nvs_out);
    FAIL_EACH("ckpt", "diff", nvs_run, nvs_run, "--json");
    FAIL_EACH("ckpt", "prune", "--keep", "9", nvs_run, "--json");
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
    snprintf(root, sizeof root, "%s/root", folder);
    snprintf(path, sizeof path, "%s/val", root);
    if (mkdir(root, 0700) != 0 || symlink(data, path) != 0) return -1;
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
    snprintf(path, sizeof path, "%s/val", root);
    unlink(path);
    rmdir(root);
    unlink(weights);
    return rmdir(folder);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_classify),   cmocka_unit_test(test_inspect),
        cmocka_unit_test(test_hub_folder), cmocka_unit_test(test_eval),
        cmocka_unit_test(test_data_check), cmocka_unit_test(test_data_check_scenes),
        cmocka_unit_test(test_data_synth), cmocka_unit_test(test_psnr),
    };
    const struct CMUnitTest nvs_tests[] = {
        cmocka_unit_test(test_nvs_train),  cmocka_unit_test(test_ttt),
        cmocka_unit_test(test_plot),       cmocka_unit_test(test_nvs_eval),
        cmocka_unit_test(test_nvs_render), cmocka_unit_test(test_nvs_scene),
        cmocka_unit_test(test_export),     cmocka_unit_test(test_files),
    };
    const int failed = cmocka_run_group_tests(tests, set_up, tear_down);
    return failed + cmocka_run_group_tests(nvs_tests, nvs_set_up, nvs_tear_down);
}
