/* Files: refusals, atomic writes that survive a full disk, temporaries. */
#include "core_fixture.h"

#include <errno.h>
#include <signal.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/wait.h>

static void whole_files_are_read(void **state) {
    (void)state;
    char *data;
    size_t size;
    const char *path = put_file("a", "ab\0c", 4);
    assert_ok(file_read(path, 4, &data, &size));
    assert_int_equal(size, 4);
    assert_memory_equal(data, "ab\0c", 5);
    mem_free(data);
    assert_int_equal(file_read(path, 3, &data, &size), STATUS_DATA);
    assert_message("/a': 4 bytes, but at most 3 are accepted");
    assert_null(data);
    path = put_text("empty", "");
    assert_ok(file_read(path, 0, &data, &size));
    assert_int_equal(size, 0);
    assert_int_equal(data[0], 0);
    mem_free(data);
    FileMap map;
    assert_ok(file_map(path, &map));
    assert_null(map.data);
    file_unmap(&map);
    assert_ok(file_map(in_scratch("a"), &map));
    assert_int_equal(map.size, 4);
    assert_memory_equal(map.data, "ab\0c", 4);
    file_unmap(&map);
    assert_null(map.data);
    scratch_empty();
}

static void what_is_no_file_is_named(void **state) {
    (void)state;
    char *data;
    size_t size;
    FileMap map;
    assert_int_equal(mkfifo(in_scratch("pipe"), 0600), 0);
    const struct {
        const char *path;
        Status status;
        const char *message;
    } cases[] = {
        {scratch, STATUS_DATA, "is a directory, not a regular file"},
        {in_scratch("pipe"), STATUS_DATA, "is a FIFO, not a regular file"},
        {"/dev/null", STATUS_DATA, "'/dev/null' is a character device"},
        {"", STATUS_DATA, "the file name is empty"},
        {in_scratch("absent"), STATUS_IO, "absent': No such file or directory"},
        {"/dev/null/x", STATUS_IO, "cannot open '/dev/null/x': Not a directory"},
    };
    for (int i = 0; i < COUNT(cases); i++) {
        assert_int_equal(file_read(cases[i].path, 100, &data, &size), cases[i].status);
        assert_message(cases[i].message);
        assert_int_equal(file_map(cases[i].path, &map), cases[i].status);
        assert_message(cases[i].message);
    }
    assert_string_equal(file_kind(in_scratch("pipe")), "FIFO");
    assert_string_equal(file_kind(scratch), "directory");
    assert_null(file_kind(in_scratch("absent")));
    assert_true(file_is_folder(scratch));
    assert_false(file_exists(in_scratch("absent")));
    scratch_empty();
}

static void unreadable_files_are_reported(void **state) {
    (void)state;
    char *data;
    size_t size;
    uid_t user = geteuid();
    const char *path = put_text("secret", "x");
    assert_int_equal(chmod(path, 0) | chmod(scratch, 0755), 0);
    if (user == 0) assert_int_equal(seteuid(65534), 0); /* root reads everything */
    Status read_status = file_read(path, 100, &data, &size);
    if (user == 0) assert_int_equal(seteuid(user), 0);
    assert_int_equal(read_status, STATUS_IO);
    assert_message("secret': Permission denied");
    scratch_empty();
}

static void assert_content(const char *path, const char *expected) {
    char *data;
    size_t size;
    assert_ok(file_read(path, 1 << 24, &data, &size));
    assert_string_equal(data, expected);
    mem_free(data);
}

static void writes_appear_at_commit(void **state) {
    (void)state;
    const char *path = put_text("x", "old");
    FileWriter *w;
    assert_int_equal(chmod(path, 0640), 0);
    assert_ok(file_writer_open(path, &w));
    assert_ok(file_writer_write(w, "new", 3));
    assert_content(path, "old");
    assert_int_equal(scratch_count(), 2);
    assert_ok(file_writer_commit(w));
    assert_content(path, "new");
    assert_int_equal(scratch_count(), 1);
    struct stat st;
    assert_int_equal(stat(path, &st), 0);
    assert_int_equal(st.st_mode & 0777, 0640);
    assert_ok(file_writer_open(path, &w));
    assert_ok(file_writer_write(w, "never", 5));
    file_writer_abort(w);
    file_writer_abort(NULL);
    assert_content(path, "new");
    assert_int_equal(scratch_count(), 1);
    assert_ok(file_write_atomic(path, "", 0));
    assert_content(path, "");
    scratch_empty();
}

static void large_and_small_pieces_keep_their_order(void **state) {
    (void)state;
    enum { SIZE = 300000 };
    char *bytes = malloc(SIZE);
    for (int i = 0; i < SIZE; i++) bytes[i] = (char)(i * 31 + (i >> 8));
    FileWriter *w;
    assert_ok(file_writer_open(in_scratch("x"), &w));
    assert_ok(file_writer_expect(w, SIZE));
    size_t at = 0;
    for (size_t piece = 1; at < SIZE; piece = piece * 5 % 200003) {
        size_t bytes_now = piece < SIZE - at ? piece : SIZE - at;
        assert_ok(file_writer_write(w, bytes + at, bytes_now));
        at += bytes_now;
    }
    assert_ok(file_writer_commit(w));
    FileMap map;
    assert_ok(file_map(in_scratch("x"), &map));
    assert_int_equal(map.size, SIZE);
    assert_memory_equal(map.data, bytes, SIZE);
    file_unmap(&map);
    free(bytes);
    scratch_empty();
}

static void links_are_followed(void **state) {
    (void)state;
    const char *target = put_text("target", "old"), *link = in_scratch("link");
    assert_int_equal(symlink("target", link), 0);
    assert_ok(file_write_atomic(link, "new", 3));
    assert_content(target, "new");
    struct stat st;
    assert_int_equal(lstat(link, &st), 0);
    assert_true(S_ISLNK(st.st_mode));
    scratch_empty();
}

static void impossible_targets_are_refused(void **state) {
    (void)state;
    char name[300];
    memset(name, 'n', sizeof name - 1);
    name[sizeof name - 1] = '\0';
    const struct {
        const char *path, *message;
    } cases[] = {
        {scratch, "it is a directory, not a regular file"},
        {"/dev/full", "cannot write '/dev/full': it is a character device"},
        {"", "the file name is empty"},
        {in_scratch("no/such"), "No such file or directory"},
        {in_scratch(name), "File name too long"},
    };
    for (int i = 0; i < COUNT(cases); i++) {
        assert_int_equal(file_write_atomic(cases[i].path, "x", 1), STATUS_IO);
        assert_message(cases[i].message);
    }
    assert_int_equal(scratch_count(), 0);
}

/* RLIMIT_FSIZE stands in for a full disk: writes past it fail with EFBIG once SIGXFSZ is ignored.
 */
static void set_size_limit(rlim_t bytes) {
    struct rlimit limit;
    signal(SIGXFSZ, SIG_IGN);
    getrlimit(RLIMIT_FSIZE, &limit);
    limit.rlim_cur = bytes < limit.rlim_max ? bytes : limit.rlim_max;
    assert_int_equal(setrlimit(RLIMIT_FSIZE, &limit), 0);
}

static void a_full_disk_leaves_the_old_file(void **state) {
    (void)state;
    enum { SIZE = 500000 };
    char *bytes = calloc(SIZE, 1);
    const char *path = put_text("x", "old");
    FileWriter *w;
    for (int variant = 0; variant < 3; variant++) {
        assert_ok(file_writer_open(path, &w));
        set_size_limit(100000);
        Status s = STATUS_OK;
        /* 0: announced size, in pieces; 1: in one go; 2: in pieces without announcement */
        if (variant == 0)
            s = file_writer_expect(w, SIZE); /* reserves nothing past the end: no limit yet */
        if (variant == 1) s = file_writer_write(w, bytes, SIZE);
        for (int i = 0; variant != 1 && i < SIZE / 1000 && s == STATUS_OK; i++) {
            s = file_writer_write(w, bytes, 1000);
        }
        assert_int_equal(s, STATUS_IO);
        assert_message("cannot write '");
        assert_message("/x': needs ");
        assert_message(" are free on its disk: File too large");
        if (variant < 2) assert_message("needs 500000 bytes");
        status_set(STATUS_OK, "%s", "");
        assert_int_equal(file_writer_write(w, bytes, 1), STATUS_IO); /* sticky */
        assert_message("File too large");
        if (variant == 0) {
            file_writer_abort(w);
        } else {
            assert_int_equal(file_writer_commit(w), STATUS_IO);
            assert_message("File too large");
        }
        set_size_limit(RLIM_INFINITY);
        assert_content(path, "old");
        assert_int_equal(scratch_count(), 1);
    }
    free(bytes);
    scratch_empty();
}

/* The last bytes sit in the buffer until commit: their failure must not be lost. */
static void a_failed_flush_is_a_failed_commit(void **state) {
    (void)state;
    const char *path = put_text("x", "old");
    FileWriter *w;
    assert_ok(file_writer_open(path, &w));
    assert_ok(file_writer_write(w, "12345678", 8));
    set_size_limit(4);
    assert_int_equal(file_writer_commit(w), STATUS_IO);
    set_size_limit(RLIM_INFINITY);
    assert_message("File too large");
    assert_content(path, "old");
    assert_int_equal(scratch_count(), 1);
    scratch_empty();
}

/* The folder vanishes between open and commit: rename fails and says so. */
static void a_failed_rename_is_reported(void **state) {
    (void)state;
    FileWriter *w;
    const char *path = in_scratch("sub/x");
    assert_ok(file_make_folder(in_scratch("sub")));
    assert_ok(file_writer_open(path, &w));
    assert_ok(file_writer_write(w, "1", 1));
    assert_int_equal(rename(in_scratch("sub"), in_scratch("moved")), 0);
    assert_int_equal(file_writer_commit(w), STATUS_IO);
    assert_message("cannot rename to '");
    assert_message("sub/x': No such file or directory");
    char name[600];
    snprintf(name, sizeof name, "rm -rf '%s'", in_scratch("moved"));
    assert_int_equal(system(name), 0);
    scratch_empty();
}

static void orphans_are_removed(void **state) {
    (void)state;
    pid_t child = fork();
    if (child == 0) _exit(0);
    assert_int_equal(waitpid(child, NULL, 0), child);
    char name[64];
    snprintf(name, sizeof name, "x.tmp-%ld-0", (long)child);
    put_text(name, "");
    snprintf(name, sizeof name, "x.tmp-1-2.tmp-%ld-17", (long)child);
    put_text(name, "");
    snprintf(name, sizeof name, "x.tmp-%ld-3", (long)getpid());
    put_text(name, "");
    static const char *const kept[] = {
        "x",        "x.tmp-", "x.tmp-1-", "x.tmp-a-1", "x.tmp-99999999999-1", "x.tmp-999999-1.bak",
        "x.tmp-0-1"};
    for (int i = 0; i < COUNT(kept); i++) put_text(kept[i], "");
    int removed;
    assert_ok(file_clean_temporaries(scratch, &removed));
    assert_int_equal(removed, 2);
    assert_int_equal(scratch_count(), COUNT(kept) + 1);
    assert_int_equal(file_clean_temporaries(in_scratch("absent"), &removed), STATUS_IO);
    scratch_empty();
}

static void folders_are_made_with_parents(void **state) {
    (void)state;
    assert_ok(file_make_folder(in_scratch("a/b//c/")));
    assert_true(file_is_folder(in_scratch("a/b/c")));
    assert_ok(file_make_folder(in_scratch("a/b")));
    assert_ok(file_sync_folder(in_scratch("a")));
    put_text("file", "");
    assert_int_equal(file_make_folder(in_scratch("file")), STATUS_IO);
    assert_message("cannot make folder");
    assert_int_equal(file_make_folder(in_scratch("file/x")), STATUS_IO);
    assert_int_equal(file_make_folder(""), STATUS_USAGE);
    assert_int_equal(file_sync_folder(in_scratch("absent")), STATUS_IO);
    assert_int_equal(rmdir(in_scratch("a/b/c")) | rmdir(in_scratch("a/b")), 0);
    scratch_empty();
}

static void paths_are_joined(void **state) {
    (void)state;
    static const char *const cases[][3] = {
        {"a", "b", "a/b"}, {"a/", "b", "a/b"}, {"", "b", "b"}, {"/", "b", "/b"}, {"a", "", "a/"}};
    for (int i = 0; i < COUNT(cases); i++) {
        char *path;
        assert_ok(path_join(&path, cases[i][0], cases[i][1]));
        assert_string_equal(path, cases[i][2]);
        mem_free(path);
    }
}

static void printable_text_is_harmless(void **state) {
    (void)state;
    char out[64];
    assert_string_equal(text_printable("a b\ncaf\xc3\xa9", out, sizeof out), "a b\\x0acaf\xc3\xa9");
    assert_string_equal(text_printable("\x1b[31m\x7f", out, sizeof out), "\\x1b[31m\\x7f");
    assert_string_equal(text_printable("\xff\xc3", out, sizeof out), "\\xff\\xc3");
    assert_string_equal(text_printable("\xc2\x9b"
                                       "31m",
                                       out, sizeof out),
                        "\\xc2\\x9b31m");
    assert_string_equal(text_printable("abcdef", out, 4), "abc");
    assert_string_equal(text_printable("ab\xc3\xa9", out, 4), "ab");
    assert_string_equal(text_printable("a\n", out, 5), "a");
    assert_string_equal(text_printable("abc", out, 1), "");
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(whole_files_are_read),
        cmocka_unit_test(what_is_no_file_is_named),
        cmocka_unit_test(unreadable_files_are_reported),
        cmocka_unit_test(writes_appear_at_commit),
        cmocka_unit_test(large_and_small_pieces_keep_their_order),
        cmocka_unit_test(links_are_followed),
        cmocka_unit_test(impossible_targets_are_refused),
        cmocka_unit_test(a_full_disk_leaves_the_old_file),
        cmocka_unit_test(a_failed_flush_is_a_failed_commit),
        cmocka_unit_test(a_failed_rename_is_reported),
        cmocka_unit_test(orphans_are_removed),
        cmocka_unit_test(folders_are_made_with_parents),
        cmocka_unit_test(paths_are_joined),
        cmocka_unit_test(printable_text_is_harmless),
    };
    return cmocka_run_group_tests(tests, scratch_make, scratch_remove);
}
