/* Whatever fails or dies in the middle of a save, the previous checkpoint stays loadable. */
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
#include <sys/wait.h>

#include "nn_checkpoint_fixture.h"

/* ---- system calls that fail on demand --------------------------------------------------- */

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

/* ---- failures in the middle of a save --------------------------------------------------- */

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

/* A child saves step after step; it is killed at some moment; what it leaves behind is whole. The
 * moments keep pace with the disk: later while no save gets done, earlier while many do. */
static void a_killed_process_loses_nothing(void **unused) {
    (void)unused;
    char *folder = folder_new(), path[256];
    Toy *toy = toy_new(4);
    check_ok(save(toy, folder, 1, true, 1));
    snprintf(path, sizeof path, "%s/checkpoints", folder);
    int64_t step = 1, unit = 400; /* microseconds */
    for (int round = 0; round < 40; round++) {
        pid_t child = fork();
        if (child == 0) {
            for (int64_t s = step + 1;; s++)
                if (save(toy, folder, s, false, 1) != STATUS_OK) _exit(1);
        }
        assert_true(child > 0);
        usleep((useconds_t)(unit + unit * (round * 7 % 20)));
        kill(child, SIGKILL);
        int status;
        assert_int_equal(waitpid(child, &status, 0), child);
        assert_true(WIFSIGNALED(status)); /* no save failed */
        int64_t last = load(folder, "last");
        assert_true(last >= step);
        assert_int_equal(load(folder, "best"), 1);
        if (last == step && unit < 20000) unit *= 2;
        if (last > step + 10 && unit > 100) unit /= 2;
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
        cmocka_unit_test(failing_calls_lose_nothing),
        cmocka_unit_test(failing_allocations_lose_nothing),
        cmocka_unit_test(a_full_disk_loses_nothing),
        cmocka_unit_test(a_killed_process_loses_nothing),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
