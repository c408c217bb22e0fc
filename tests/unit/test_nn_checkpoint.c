/* Checkpoints: what is saved comes back, damage is refused, old ones are pruned, and whatever fails
 * or dies in the middle of a save, the previous checkpoint stays loadable. */
#include <stdarg.h>
#include <stddef.h>
#include <setjmp.h>
#include <stdint.h>
#include <cmocka.h>

#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/wait.h>

#include "core/file.h"
#include "nn/checkpoint_files.h"
#include "nn_fixture.h"

/* ---- system calls that fail on demand
 * ------------------------------------------------------------- */

enum { FAIL_FSYNC, FAIL_RENAME, FAIL_WRITE, FAIL_SYMLINK, FAIL_KINDS };
static int fail_kind = -1, fail_after;

static bool fails_now(int kind) {
    return kind == fail_kind && fail_after-- == 0;
}

#define REAL(name) ((__typeof__(&name))dlsym(RTLD_NEXT, #name))

int fsync(int fd) {
    if (fails_now(FAIL_FSYNC)) return errno = EIO, -1;
    return REAL(fsync)(fd);
}

int rename(const char *from, const char *to) {
    if (fails_now(FAIL_RENAME)) return errno = EIO, -1;
    return REAL(rename)(from, to);
}

ssize_t write(int fd, const void *data, size_t bytes) {
    if (fails_now(FAIL_WRITE)) return errno = ENOSPC, -1;
    return REAL(write)(fd, data, bytes);
}

int symlink(const char *target, const char *path) {
    if (fails_now(FAIL_SYMLINK)) return errno = EPERM, -1;
    return REAL(symlink)(target, path);
}

/* ---- helpers
 * --------------------------------------------------------------------------------------- */

/* The toy at a step of its own: every value depends on it. */
static void set_step(Toy *toy, int64_t step) {
    check_ok(params_initialise(&toy->params, (uint64_t)step));
    check_ok(toy->d->k->copy(toy->d, grad_set(toy->optim.m), toy->params.master, 0.5f));
    check_ok(toy->d->k->copy(toy->d, grad_set(toy->optim.v), toy->params.master, 0.25f));
    check_ok(adamw_set_taken(&toy->optim, step - 1));
    toy->state = (TrainState){.step = step,
                              .epoch = 2,
                              .cursor = 3 * step,
                              .skipped = 1,
                              .best_metric = 0.1 + 0.2,
                              .best_step = 1,
                              .seed = UINT64_MAX - 1,
                              .loss_sum = 1.0 / 3.0,
                              .loss_count = 7};
}

static Status save(Toy *toy, const char *folder, int64_t step, bool best, int keep) {
    set_step(toy, step);
    SafeMeta meta = {"ttv.config", "[model]\nwidth = 5\n"};
    return checkpoint_save(folder, &toy->params, &toy->optim, &toy->state, 0.5 * (double)step, best,
                           keep, &meta, 1);
}

/* Loads `which` and checks that it is exactly the state of its step; returns the step. */
static int64_t load(const char *folder, const char *which) {
    Toy *got = toy_new(4), *expected = toy_new(4);
    check_ok(checkpoint_resume(folder, which, &got->params, &got->optim, &got->state));
    set_step(expected, got->state.step);
    Snapshot a = snapshot_take(got), b = snapshot_take(expected);
    assert_true(snapshot_equal(&a, &b));
    assert_memory_equal(&a.state, &b.state, sizeof a.state);
    int64_t step = got->state.step;
    snapshot_free(&a);
    snapshot_free(&b);
    toy_free(got);
    toy_free(expected);
    return step;
}

static bool there(const char *folder, const char *name) {
    char path[256];
    snprintf(path, sizeof path, "%s/%s", folder, name);
    return access(path, F_OK) == 0;
}

/* ---- plain use
 * -------------------------------------------------------------------------------------- */

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

/* ---- damage
 * ------------------------------------------------------------------------------------------ */

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
    check_ok(adamw_init(&other->optim, &other->params, (AdamWOptions){0.9f, 0.99f, 1e-8f, 0, 0}));
    check_fails(checkpoint_resume(folder, "last", &other->params, &other->optim, &other->state),
                STATUS_DATA, "cannot resume from last");
    params_free(&other->params);
    device_close(other->d);
    free(other);
    toy_free(toy);
    folder_remove(folder);
}

/* ---- failures in the middle of a save
 * ------------------------------------------------------------------ */

/* After a failed or killed save of `step`: the state is that of the step before or, when the
 * manifest was already in place, of this one. best stays what it was. */
static void check_intact(const char *folder, int64_t step, Status s) {
    int64_t last = load(folder, "last");
    assert_true(last == step || (s != STATUS_OK && last == step - 1));
    if (s == STATUS_OK) assert_int_equal(last, step);
    assert_int_equal(load(folder, "best"), 1);
}

static void failing_calls_lose_nothing(void **unused) {
    (void)unused;
    char *folder = folder_new();
    Toy *toy = toy_new(4);
    check_ok(save(toy, folder, 1, true, 1));
    int64_t good = 1;
    for (int kind = 0; kind < FAIL_KINDS; kind++) {
        for (int n = 0;; n++) {
            assert_true(n < 100);
            check_ok(save(toy, folder, ++good, false, 1));
            fail_kind = kind;
            fail_after = n;
            Status s = save(toy, folder, ++good, false, 1);
            bool fired = fail_after < 0;
            fail_kind = -1;
            if (s != STATUS_OK) assert_int_equal(s, STATUS_IO);
            if (s != STATUS_OK) assert_non_null(strstr(status_message(), folder));
            check_intact(folder, good, s);
            if (!fired) break;
        }
    }
    toy_free(toy);
    folder_remove(folder);
}

static void failing_allocations_lose_nothing(void **unused) {
    (void)unused;
    char *folder = folder_new();
    Toy *toy = toy_new(4);
    check_ok(save(toy, folder, 1, true, 1));
    for (int64_t n = 1, step = 2; n < 1000; n += 1 + n / 25, step++) {
        set_step(toy, step);
        int64_t live = mem_live();
        mem_fail_at(n);
        Status s =
            checkpoint_save(folder, &toy->params, &toy->optim, &toy->state, 1, false, 1, NULL, 0);
        bool pending = mem_fail_pending();
        mem_fail_at(0);
        assert_int_equal(mem_live(), live);
        if (s != STATUS_OK) assert_int_equal(s, STATUS_MEMORY);
        check_intact(folder, step, s);
        if (pending) break;
        assert_true(n < 900);
        check_ok(save(toy, folder, ++step, false, 1));
    }
    toy_free(toy);
    folder_remove(folder);
}

static void a_full_disk_loses_nothing(void **unused) {
    (void)unused;
    char *folder = folder_new();
    Toy *toy = toy_new(4);
    struct rlimit before;
    check_ok(save(toy, folder, 1, true, 1));
    signal(SIGXFSZ, SIG_IGN);
    assert_int_equal(getrlimit(RLIMIT_FSIZE, &before), 0);
    int64_t step = 1;
    for (rlim_t bytes = 0; bytes < 6000; bytes += 661) {
        check_ok(save(toy, folder, ++step, false, 1));
        struct rlimit limit = {bytes, before.rlim_max};
        assert_int_equal(setrlimit(RLIMIT_FSIZE, &limit), 0);
        Status s = save(toy, folder, ++step, false, 1);
        assert_int_equal(setrlimit(RLIMIT_FSIZE, &before), 0);
        if (s != STATUS_OK) check_fails(s, STATUS_IO, folder);
        if (bytes < 300) assert_int_not_equal(s, STATUS_OK);
        check_intact(folder, step, s);
    }
    toy_free(toy);
    folder_remove(folder);
}

/* A child saves step after step; it is killed at some moment; what it leaves behind is whole. */
static void a_killed_process_loses_nothing(void **unused) {
    (void)unused;
    char *folder = folder_new(), path[256];
    Toy *toy = toy_new(4);
    check_ok(save(toy, folder, 1, true, 1));
    snprintf(path, sizeof path, "%s/checkpoints", folder);
    int64_t step = 1;
    for (int round = 0; round < 40; round++) {
        pid_t child = fork();
        if (child == 0) {
            for (int64_t s = step + 1;; s++)
                if (save(toy, folder, s, false, 1) != STATUS_OK) _exit(1);
        }
        assert_true(child > 0);
        usleep((useconds_t)(300 + 397 * (round * 7 % 20)));
        kill(child, SIGKILL);
        int status;
        assert_int_equal(waitpid(child, &status, 0), child);
        assert_true(WIFSIGNALED(status)); /* no save failed */
        int64_t last = load(folder, "last");
        assert_true(last >= step);
        assert_int_equal(load(folder, "best"), 1);
        step = last;
        int removed;
        check_ok(file_clean_temporaries(folder, &removed));
        assert_true(removed <= 1);
        check_ok(file_clean_temporaries(path, &removed));
        assert_true(removed <= 1);
    }
    assert_true(step > 40);
    check_ok(save(toy, folder, step + 1, false, 0)); /* prunes what the killed ones left */
    char command[300];
    snprintf(command, sizeof command, "test $(ls '%s' | wc -l) = 4", path);
    assert_int_equal(system(command), 0);
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
        cmocka_unit_test(failing_calls_lose_nothing),
        cmocka_unit_test(failing_allocations_lose_nothing),
        cmocka_unit_test(a_full_disk_loses_nothing),
        cmocka_unit_test(a_killed_process_loses_nothing),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
