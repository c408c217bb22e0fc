/* The tar index: names of every kind, and archives cut or changed anywhere. */
#include "data_tar.h"

#include "datasets/tar.h"
#include "datasets/tar_header.h"

static const char *long_name(void) {
    static char name[301];
    for (int i = 0; i < 300; i++) name[i] = i % 50 == 49 ? '/' : (char)('a' + i % 26);
    memcpy(name + 296, ".png", 4);
    return name;
}

/* One member of each kind; six of them are files. */
static TarBytes make_archive(void) {
    TarBytes t = {0};
    tar_file(&t, "./train/cat/1.jpg", "first");
    tar_put(&t, "train/dog/", NULL, '5', NULL, 0);
    tar_put(&t, "2.jpg", "train/a very long folder", '0', "second file", 11);
    tar_put(&t, "link", NULL, '2', NULL, 0);
    tar_put(&t, "././@LongLink", NULL, 'L', long_name(), 301);
    tar_file(&t, "cut off by 100 bytes", "gnu");
    char pax[600];
    int body = snprintf(pax, sizeof pax, " path=train/caf\xc3\xa9/\n with newline.jpg\n");
    char record[700];
    snprintf(record, sizeof record, "%d%s", body + 2, pax);
    assert_int_equal(strlen(record), (size_t)body + 2);
    tar_put(&t, "PaxHeaders/x", NULL, 'x', record, strlen(record));
    tar_file(&t, "short name", "pax");
    tar_put(&t, "global", NULL, 'g', "11 a=bcdef\n", 11);
    tar_file(&t, "train/empty.jpg", "");
    tar_put(&t, "old", NULL, '\0', "v7", 2);
    tar_finish(&t);
    return t;
}

static void members_of_every_kind(void **state) {
    (void)state;
    TarBytes b = make_archive();
    Tar *t;
    int64_t live = mem_live();
    assert_ok(tar_parse(b.data, b.size, "a.tar", &t));
    assert_int_equal(tar_count(t), 6);
    assert_int_equal(tar_passed_over(t), 2);
    const char *names[6] = {"train/cat/1.jpg", "train/a very long folder/2.jpg",
                            long_name(),       "train/caf\xc3\xa9/\n with newline.jpg",
                            "train/empty.jpg", "old"};
    const char *data[6] = {"first", "second file", "gnu", "pax", "", "v7"};
    for (int i = 0; i < 6; i++) {
        const TarMember *m = tar_at(t, i);
        assert_string_equal(m->name, names[i]);
        assert_int_equal(m->size, strlen(data[i]));
        assert_memory_equal(m->data, data[i], m->size);
    }
    assert_string_equal(tar_path(t), "a.tar");
    tar_close(t);
    assert_int_equal(mem_live(), live);
    tar_drop(&b);
}

static Status parse_copy(const unsigned char *data, size_t size) {
    unsigned char *copy = malloc(size > 0 ? size : 1); /* ASan sees the end */
    Tar *t;
    memcpy(copy, data, size);
    Status s = tar_parse(copy, size, "cut.tar", &t);
    if (s == STATUS_OK) {
        for (int64_t i = 0; i < tar_count(t); i++) {
            const TarMember *m = tar_at(t, i);
            assert_true(m->data >= copy && m->data + m->size <= copy + size);
            assert_true(strlen(m->name) > 0);
        }
        tar_close(t);
    }
    free(copy);
    return s;
}

/* An archive cut anywhere before its first end block is an error with a byte offset. */
static void truncation_is_found(void **state) {
    (void)state;
    TarBytes b = make_archive();
    for (size_t n = 0; n <= b.size; n += 512) {
        Status s = parse_copy(b.data, n);
        if (n >= b.size - 512) {
            assert_ok(s);
        } else {
            assert_int_equal(s, STATUS_DATA);
            assert_message(n == 0 ? "empty file" : "at byte");
        }
    }
    for (size_t n = 1; n < b.size - 1024; n += 37) {
        if (n % 512 != 0) assert_int_equal(parse_copy(b.data, n), STATUS_DATA);
    }
    tar_drop(&b);
}

static void changed_bits_never_crash(void **state) {
    (void)state;
    TarBytes b = make_archive();
    int refused = 0, total = 0;
    for (size_t i = 0; i < b.size; i++) {
        for (int bit = i % 3; bit < 8; bit += 3) {
            b.data[i] ^= (unsigned char)(1 << bit);
            refused += parse_copy(b.data, b.size) != STATUS_OK;
            b.data[i] ^= (unsigned char)(1 << bit);
            total++;
        }
    }
    assert_true(refused > total / 4); /* headers are checksummed, contents are not */
    tar_drop(&b);
}

static void sealed_lies_are_refused(void **state) {
    (void)state;
    struct {
        size_t at;
        const char *bytes;
        size_t size;
        const char *message;
    } lies[] = {
        {124, "77777777777", 11, "truncated"},
        {124, "\x80\0\0\0\0\0\0\x01\0\0\0\0", 12, "truncated"},
        {124, "\xff\xff\xff\xff\xff\xff\xff\xff\xff\xff\xff\xff", 12, "not a number"},
        {124, "12x", 3, "not a number"},
        {0, "a/../b.jpg", 11, "'..'"},
        {0, "../b.jpg", 9, "'..'"},
        {0, "\0", 1, "without a name"},
    };
    for (size_t i = 0; i < sizeof lies / sizeof lies[0]; i++) {
        TarBytes b = {0};
        tar_file(&b, "name.jpg", "data");
        memcpy(b.data + lies[i].at, lies[i].bytes, lies[i].size);
        tar_seal(b.data);
        tar_finish(&b);
        assert_int_equal(parse_copy(b.data, b.size), STATUS_DATA);
        assert_message(lies[i].message);
        tar_drop(&b);
    }
    const char *records[] = {"5 a=b\n",          "99 path=x\n", "x path=y\n",   "8 path=\n",
                             "12 path=a\0b\n\n", "0 a\n",       "12 size=abc\n"};
    size_t sizes[] = {6, 10, 9, 8, 12, 4, 12};
    for (size_t i = 0; i < sizeof sizes / sizeof sizes[0]; i++) {
        TarBytes b = {0};
        tar_put(&b, "pax", NULL, 'x', records[i], sizes[i]);
        tar_file(&b, "name.jpg", "data");
        tar_finish(&b);
        assert_int_equal(parse_copy(b.data, b.size), STATUS_DATA);
        tar_drop(&b);
    }
}

static void other_files_are_named(void **state) {
    (void)state;
    unsigned char gzip[600] = {0x1F, 0x8B, 8}, zip[600] = "PK\3\4", noise[600] = "some text";
    assert_int_equal(parse_copy(gzip, sizeof gzip), STATUS_DATA);
    assert_message("gunzip it first");
    assert_int_equal(parse_copy(zip, sizeof zip), STATUS_DATA);
    assert_message("zip archive");
    assert_int_equal(parse_copy(noise, sizeof noise), STATUS_DATA);
    assert_message("not a tar");
    unsigned char zeros[1024] = {0};
    assert_ok(parse_copy(zeros, sizeof zeros)); /* an archive of nothing */
}

static void numbers(void **state) {
    (void)state;
    uint64_t v;
    assert_true(tar_number((const unsigned char *)"0000017\0", 8, &v) && v == 15);
    assert_true(tar_number((const unsigned char *)"   17 \0\0", 8, &v) && v == 15);
    assert_true(tar_number((const unsigned char *)"\0\0\0\0\0\0\0\0", 8, &v) && v == 0);
    assert_false(tar_number((const unsigned char *)"        ", 8, &v));
    assert_true(tar_number((const unsigned char *)"\x80\0\0\0\0\0\x01\0", 8, &v) && v == 256);
    assert_false(tar_number((const unsigned char *)"\x80\x01\0\0\0\0\0\0\0\0\0\0", 12, &v));
    assert_true(tar_number((const unsigned char *)"777777777777", 12, &v) && v == 0xFFFFFFFFF);
}

static void allocation_failures_are_clean(void **state) {
    (void)state;
    TarBytes b = make_archive();
    int64_t live = mem_live();
    for (int64_t n = 1; n < 40; n++) {
        Tar *t;
        mem_fail_at(n);
        Status s = tar_parse(b.data, b.size, "a.tar", &t);
        int pending = mem_fail_pending();
        mem_fail_at(0);
        assert_int_equal(s, pending ? STATUS_OK : STATUS_MEMORY);
        tar_close(t);
        assert_int_equal(mem_live(), live);
        if (pending) break;
    }
    tar_drop(&b);
}

static void opens_files(void **state) {
    (void)state;
    char root[256], path[300];
    Tar *t;
    TarBytes b = make_archive();
    make_temp(root);
    put_file(root, "x.tar", b.data, b.size);
    snprintf(path, sizeof path, "%s/x.tar", root);
    assert_ok(tar_open(path, &t));
    assert_int_equal(tar_count(t), 6);
    tar_close(t);
    assert_int_equal(tar_open(root, &t), STATUS_DATA);
    assert_null(t);
    snprintf(path, sizeof path, "%s/y.tar", root);
    assert_int_equal(tar_open(path, &t), STATUS_IO);
    put_text(root, "y.tar", "");
    assert_int_equal(tar_open(path, &t), STATUS_DATA);
    assert_message("empty file");
    remove_tree(root);
    tar_drop(&b);
    const char *real = shared_file("data/cifar10/cifar10-mini.tar");
    if (real == NULL) return;
    assert_ok(tar_open(real, &t));
    assert_int_equal(tar_count(t), 1200);
    tar_close(t);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(members_of_every_kind),         cmocka_unit_test(truncation_is_found),
        cmocka_unit_test(changed_bits_never_crash),      cmocka_unit_test(sealed_lies_are_refused),
        cmocka_unit_test(other_files_are_named),         cmocka_unit_test(numbers),
        cmocka_unit_test(allocation_failures_are_clean), cmocka_unit_test(opens_files),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
