/* safetensors: writing, conversion, bit flips, odd paths, real files. */
#include "safetensors_fixture.h"

#include <math.h>
#include <signal.h>
#include <sys/resource.h>

static void written_files_read_back(void **state) {
    (void)state;
    float weights[6] = {1, -2, 3.5f, NAN, INFINITY, -0.0f};
    double scale = 1.0 / 3;
    uint16_t half[2] = {0x3c00, 0xc000};
    unsigned char bytes[3] = {1, 2, 255};
    int64_t step = -5;
    const SafeItem items[] = {
        {"layer.0.weight", tensor_2d(weights, DTYPE_F32, 2, 3)},
        {"b\n\"\\\xc3\xa9", tensor_1d(bytes, DTYPE_U8, 3)},
        {"half", tensor_1d(half, DTYPE_F16, 2)},
        {"scale", tensor_0d(&scale, DTYPE_F64)},
        {"step", tensor_1d(&step, DTYPE_I64, 1)},
        {"none", tensor_2d(NULL, DTYPE_BF16, 0, 4)},
    };
    const SafeMeta meta[] = {{"config", "[model]\ndepth = 3\n"}, {"bad", "x\xffy"}};
    const char *path = in_scratch("x.safetensors");
    assert_ok(safetensors_write(path, items, COUNT(items), meta, COUNT(meta)));
    SafeFile *f;
    assert_ok(safetensors_open(path, &f));
    assert_int_equal(safetensors_count(f), COUNT(items));
    for (int i = 0; i < COUNT(items); i++) {
        const SafeEntry *e = safetensors_find(f, items[i].name);
        assert_non_null(e);
        assert_int_equal(e->dtype, items[i].t.dtype);
        assert_int_equal(e->rank, items[i].t.rank);
        assert_memory_equal(e->shape, items[i].t.shape, sizeof(int64_t) * (size_t)e->rank);
        assert_int_equal(e->bytes, tensor_bytes(items[i].t));
        if (e->bytes > 0) assert_memory_equal(e->data, items[i].t.data, e->bytes);
    }
    assert_int_equal((uintptr_t)safetensors_at(f, 0)->data % 8, 0); /* the header was padded */
    assert_string_equal(safetensors_meta(f, "config"), meta[0].value);
    assert_string_equal(safetensors_meta(f, "bad"), "x\xef\xbf\xbdy");
    safetensors_close(f);
    assert_ok(safetensors_write(path, NULL, 0, NULL, 0));
    assert_ok(safetensors_open(path, &f));
    assert_int_equal(safetensors_count(f), 0);
    safetensors_close(f);
    assert_int_equal(scratch_count(), 1);
    scratch_empty();
}

static void wrong_writes_are_refused(void **state) {
    (void)state;
    float x = 1;
    Tensor t = tensor_1d(&x, DTYPE_F32, 1);
    const char *path = put_text("x.safetensors", "old");
    const struct {
        SafeItem items[2];
        const char *message;
    } cases[] = {
        {{{"a", t}, {"a", t}}, "two tensors are called 'a'"},
        {{{"a\xff", t}, {"b", t}}, "tensor 'a\\xff': its name is not UTF-8"},
        {{{"a", t}, {"__metadata__", t}}, "tensor '__metadata__': reserved name"},
        {{{"a", t}, {"b", tensor_1d(NULL, DTYPE_F32, 1)}}, "tensor 'b': it has no data"},
        {{{"a", t}, {"b", tensor_1d(&x, DTYPE_F32, -1)}}, "tensor 'b': dimension 0 is negative"},
    };
    for (int i = 0; i < COUNT(cases); i++) {
        assert_int_equal(safetensors_write(path, cases[i].items, 2, NULL, 0), STATUS_INTERNAL);
        assert_message(cases[i].message);
        assert_message("x.safetensors'");
    }
    const SafeMeta twice[] = {{"k", "1"}, {"k", "2"}};
    assert_int_equal(safetensors_write(path, cases[0].items, 1, twice, 2), STATUS_INTERNAL);
    assert_message("two metadata entries are called 'k'");
    assert_int_equal(safetensors_write("/dev/full", cases[0].items, 1, NULL, 0), STATUS_IO);
    assert_int_equal(scratch_count(), 1);
    scratch_empty();
}

static void a_full_disk_keeps_the_old_checkpoint(void **state) {
    (void)state;
    enum { SIZE = 100000 };
    unsigned char *data = calloc(SIZE, 1);
    const SafeItem item = {"a", tensor_1d(data, DTYPE_U8, SIZE)};
    const SafeItem small = {"a", tensor_1d(data, DTYPE_U8, 10)};
    const char *path = in_scratch("x.safetensors");
    assert_ok(safetensors_write(path, &small, 1, NULL, 0));
    struct rlimit limit, old;
    signal(SIGXFSZ, SIG_IGN);
    getrlimit(RLIMIT_FSIZE, &old);
    limit = old;
    limit.rlim_cur = 5000;
    setrlimit(RLIMIT_FSIZE, &limit);
    Status s = safetensors_write(path, &item, 1, NULL, 0);
    setrlimit(RLIMIT_FSIZE, &old);
    assert_int_equal(s, STATUS_IO);
    assert_message("needs 1000");
    assert_message("File too large");
    SafeFile *f;
    assert_ok(safetensors_open(path, &f));
    assert_int_equal(safetensors_at(f, 0)->bytes, 10);
    safetensors_close(f);
    assert_int_equal(scratch_count(), 1);
    free(data);
    scratch_empty();
}

static void values_convert_from_unaligned_data(void **state) {
    (void)state;
    static const char header[] =
        "{\"pad\":{\"dtype\":\"U8\",\"shape\":[1],\"data_offsets\":[0,1]},"
        "\"f\":{\"dtype\":\"F32\",\"shape\":[2],\"data_offsets\":[1,9]},"
        "\"d\":{\"dtype\":\"F64\",\"shape\":[2],\"data_offsets\":[9,25]},"
        "\"h\":{\"dtype\":\"F16\",\"shape\":[2],\"data_offsets\":[25,29]},"
        "\"b\":{\"dtype\":\"BF16\",\"shape\":[2],\"data_offsets\":[29,33]},"
        "\"i\":{\"dtype\":\"I64\",\"shape\":[2],\"data_offsets\":[33,49]}}";
    Image image = image_of(header, 49);
    unsigned char *data = image.data + 8 + sizeof header - 1;
    const float f32[2] = {1.5f, -2};
    const double f64[2] = {1.5, -2};
    const uint16_t f16[2] = {0x3e00, 0xc000}, bf16[2] = {0x3fc0, 0xc000};
    const int64_t i64[2] = {7, -8};
    memcpy(data + 1, f32, 8);
    memcpy(data + 9, f64, 16);
    memcpy(data + 25, f16, 4);
    memcpy(data + 29, bf16, 4);
    memcpy(data + 33, i64, 16);
    SafeFile *file;
    assert_ok(safetensors_parse(image.data, image.size, "x", &file));
    static const char *const names[] = {"f", "d", "h", "b"};
    for (int i = 0; i < 4; i++) {
        const SafeEntry *e = safetensors_find(file, names[i]);
        float single[2];
        double wide[2];
        assert_ok(safetensors_read(e, tensor_1d(single, DTYPE_F32, 2)));
        assert_ok(safetensors_read(e, tensor_2d(wide, DTYPE_F64, 2, 1)));
        assert_memory_equal(single, f32, sizeof f32);
        assert_memory_equal(wide, f64, sizeof f64);
    }
    int64_t whole[2];
    uint16_t raw[2];
    const SafeEntry *i = safetensors_find(file, "i"), *h = safetensors_find(file, "h");
    assert_ok(safetensors_read(i, tensor_1d(whole, DTYPE_I64, 2)));
    assert_memory_equal(whole, i64, sizeof i64);
    assert_ok(safetensors_read(h, tensor_1d(raw, DTYPE_F16, 2)));
    assert_memory_equal(raw, f16, sizeof f16);
    assert_int_equal(safetensors_read(i, tensor_1d(whole, DTYPE_F64, 2)), STATUS_DATA);
    assert_string_equal(status_message(), "tensor 'i' is I64, which does not convert to F64");
    assert_int_equal(safetensors_read(h, tensor_1d(raw, DTYPE_BF16, 2)), STATUS_DATA);
    assert_int_equal(safetensors_read(h, tensor_1d(raw, DTYPE_F16, 1)), STATUS_DATA);
    assert_string_equal(status_message(), "tensor 'h' has 2 elements; expected 1");
    safetensors_close(file);
    free(image.data);
}

static const char small_header[] =
    "{\"__metadata__\":{\"k\":\"v\"},"
    "\"a\":{\"dtype\":\"F32\",\"shape\":[2,1],\"data_offsets\":[0,8]},"
    "\"b.w\":{\"dtype\":\"BF16\",\"shape\":[3],\"data_offsets\":[8,14]},"
    "\"c\":{\"dtype\":\"I64\",\"shape\":[1],\"data_offsets\":[14,22]}} ";

static bool same_entry(const SafeEntry *a, const SafeEntry *b) {
    return strcmp(a->name, b->name) == 0 && a->dtype == b->dtype && a->rank == b->rank &&
           memcmp(a->shape, b->shape, sizeof a->shape) == 0 && a->bytes == b->bytes &&
           memcmp(a->data, b->data, a->bytes) == 0;
}

/* A flip may rename, reshape or retype one tensor or touch one's data; all others must be
 * untouched. */
static void check_flipped(const SafeFile *original, const SafeFile *flipped, size_t byte) {
    int same = 0;
    for (int64_t i = 0; i < safetensors_count(original); i++) {
        const SafeEntry *e = safetensors_at(original, i);
        const SafeEntry *other = safetensors_find(flipped, e->name);
        same += other != NULL && same_entry(e, other);
    }
    if (safetensors_count(flipped) != 3 || same < 2) {
        fail_msg("flip in byte %zu: %d of 3 tensors kept", byte, same);
    }
}

static void every_bit_flip_is_refused_or_harmless(void **state) {
    (void)state;
    int64_t before = mem_live();
    Image image = image_of(small_header, 22);
    SafeFile *original, *f;
    int accepted = 0, refused = 0;
    unsigned char *copy = malloc(image.size);
    assert_ok(safetensors_parse(image.data, image.size, "x", &original));
    for (size_t byte = 0; byte < image.size; byte++) {
        for (int bit = 0; bit < 8; bit++) {
            memcpy(copy, image.data, image.size);
            copy[byte] ^= (unsigned char)(1 << bit);
            status_set(STATUS_OK, "%s", "");
            Status s = safetensors_parse(copy, image.size, "x", &f);
            if (s == STATUS_OK) {
                check_flipped(original, f, byte);
                safetensors_close(f);
                accepted++;
            } else {
                assert_int_equal(s, STATUS_DATA);
                assert_message("x: ");
                refused++;
            }
        }
    }
    print_message("bit flips: %d refused, %d harmless\n", refused, accepted);
    for (size_t size = 0; size < image.size; size++) { /* every truncation, exactly on the heap */
        unsigned char *cut = malloc(size + 1);
        memcpy(cut + 1, image.data, size);
        assert_int_equal(safetensors_parse(cut + 1, size, "x", &f), STATUS_DATA);
        free(cut);
    }
    safetensors_close(original);
    free(copy);
    free(image.data);
    assert_int_equal(mem_live(), before);
}

static void paths_of_every_kind_are_handled(void **state) {
    (void)state;
    SafeFile *f;
    assert_int_equal(safetensors_open(scratch, &f), STATUS_DATA);
    assert_message("holds neither model.safetensors nor model.safetensors.index.json");
    put_image("model.safetensors", "{}", 0);
    assert_ok(safetensors_open(scratch, &f));
    assert_string_equal(safetensors_path(f), in_scratch("model.safetensors"));
    safetensors_close(f);
    assert_int_equal(safetensors_open(in_scratch("absent"), &f), STATUS_IO);
    assert_message("absent': No such file or directory");
    assert_int_equal(safetensors_open("/dev/null", &f), STATUS_DATA);
    assert_int_equal(safetensors_open(put_text("empty", ""), &f), STATUS_DATA);
    assert_message("/empty: the file is empty");
    const char *odd = put_image("odd \n\x1b[1m", "{}", 1);
    assert_int_equal(safetensors_open(odd, &f), STATUS_DATA);
    assert_message("/odd \\x0a\\x1b[1m: 1 bytes follow");
    scratch_empty();
}

static void hundred_thousand_tensors_are_no_problem(void **state) {
    (void)state;
    enum { TENSORS = 100000 };
    char *header = malloc(TENSORS * 80 + 16);
    size_t used = (size_t)sprintf(header, "{");
    for (int i = 0; i < TENSORS; i++) {
        used += (size_t)sprintf(header + used,
                                "%s\"layer.%d.w\":{\"dtype\":\"U8\",\"shape\":[1],\"data_offsets\":"
                                "[%d,%d]}",
                                i > 0 ? "," : "", i, i, i + 1);
    }
    strcpy(header + used, "}");
    Image image = image_of(header, TENSORS);
    SafeFile *f;
    assert_ok(safetensors_parse(image.data, image.size, "x", &f));
    for (int i = 0; i < TENSORS; i++) {
        char name[32];
        snprintf(name, sizeof name, "layer.%d.w", i);
        assert_int_equal(safetensors_find(f, name)->data[0], i & 255);
    }
    safetensors_close(f);
    free(image.data);
    free(header);
}

/* The golden files come from another writer. */
static void golden_files_open(void **state) {
    (void)state;
    SafeFile *f;
    static const char path[] = TTV_SHARED_DIR "/golden/models/vittt.safetensors";
    if (!file_exists(path)) {
        print_message("skipped: no shared/golden beside the source\n");
        skip();
    }
    assert_ok(safetensors_open(path, &f));
    assert_true(safetensors_count(f) > 0);
    for (int64_t i = 0; i < safetensors_count(f); i++) {
        const SafeEntry *e = safetensors_at(f, i);
        assert_ptr_equal(safetensors_find(f, e->name), e);
    }
    safetensors_close(f);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(written_files_read_back),
        cmocka_unit_test(wrong_writes_are_refused),
        cmocka_unit_test(a_full_disk_keeps_the_old_checkpoint),
        cmocka_unit_test(values_convert_from_unaligned_data),
        cmocka_unit_test(every_bit_flip_is_refused_or_harmless),
        cmocka_unit_test(paths_of_every_kind_are_handled),
        cmocka_unit_test(hundred_thousand_tensors_are_no_problem),
        cmocka_unit_test(golden_files_open),
    };
    return cmocka_run_group_tests(tests, scratch_make, scratch_remove);
}
