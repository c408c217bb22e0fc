/* safetensors reading: one hand-made image per rule. */
#include "safetensors_fixture.h"

#define T(fields) "{\"t\":{" fields "}}"
#define F32_2     "\"dtype\":\"F32\",\"shape\":[2],\"data_offsets\":[0,8]"

static const struct {
    const char *header;
    size_t data;
} good[] = {
    {"{}", 0},
    {"{}      ", 0},
    {T(F32_2), 8},
    {"{ \"t\" :\n{" F32_2 "} }   ", 8},
    {T("\"data_offsets\":[0,8],\"dtype\":\"F32\",\"shape\":[2]"), 8}, /* any order of keys */
    {T("\"dtype\":\"F32\",\"shape\":[],\"data_offsets\":[0,4]"), 4},  /* rank 0 */
    {T("\"dtype\":\"F32\",\"shape\":[0,3],\"data_offsets\":[0,0]"), 0},
    {T("\"dtype\":\"U8\",\"shape\":[1,1,1,1,1,1,1,3],\"data_offsets\":[0,3]"), 3}, /* rank 8 */
    {"{\"__metadata__\":{}}", 0},
    {"{\"__metadata__\":{\"a\":\"b\",\"\\u00e9\":\"\"},\"t\":{" F32_2 "}}", 8},
    {"{\"\":{" F32_2 "}}", 8},
    {"{\"caf\xc3\xa9 \\ud83d\\ude00 \\\"q\\\"\":{" F32_2 "}}", 8},
    /* stored in another order than listed; empty tensors between and at the end */
    {"{\"b\":{\"dtype\":\"U8\",\"shape\":[3],\"data_offsets\":[8,11]},\"a\":{" F32_2 "},"
     "\"e\":{\"dtype\":\"I64\",\"shape\":[0],\"data_offsets\":[8,8]},"
     "\"z\":{\"dtype\":\"F64\",\"shape\":[0],\"data_offsets\":[11,11]}}",
     11},
    {T("\"dtype\":\"BF16\",\"shape\":[1],\"data_offsets\":[0,2]"), 2},
    {T("\"dtype\":\"F16\",\"shape\":[1],\"data_offsets\":[0,2]"), 2},
    {T("\"dtype\":\"F64\",\"shape\":[1],\"data_offsets\":[0,8]"), 8},
    {T("\"dtype\":\"I64\",\"shape\":[1],\"data_offsets\":[0,8]"), 8},
    {T("\"dtype\":\"I32\",\"shape\":[1],\"data_offsets\":[0,4]"), 4},
};

static const struct {
    const char *header;
    size_t data;
    const char *message; /* begins with; after "x: " */
} bad[] = {
    {"", 0, "the header does not start with '{'"},
    {"[]", 0, "the header does not start with '{'"},
    {" {}", 0, "the header does not start with '{'"},
    {"{}\n", 0, "the header does not end in '}' and spaces"},
    {"{} x", 0, "the header does not end in '}'"},
    {"{}{}", 0, "header: byte 2: unexpected bytes after the JSON value"},
    {"{\"t\":}", 0, "header: byte 5: expected a JSON value"},
    {"{\"\xff\":{" F32_2 "}}", 8, "header: byte 2: invalid UTF-8"},
    {"{\"t\":{" F32_2 "},\"t\":{" F32_2 "}}", 8, "header: byte 54: duplicate key 't'"},
    {"{\"t\":{" F32_2 "},\"\\u0074\":{" F32_2 "}}", 8, "header: byte 54: duplicate key"},
    {T(F32_2 ",\"dtype\":\"F32\""), 8, "header: byte 53: duplicate key 'dtype'"},
    {"{\"__metadata__\":{\"a\":\"b\",\"a\":\"c\"}}", 0, "header: byte 25: duplicate key 'a'"},
    {"{\"__metadata__\":{},\"__metadata__\":{}}", 0, "header: byte 19: duplicate key"},
    {"{\"__metadata__\":[]}", 0, "__metadata__ is not an object"},
    {"{\"__metadata__\":\"x\"}", 0, "__metadata__ is not an object"},
    {"{\"__metadata__\":{\"a\":1}}", 0, "__metadata__ holds a value that is not a string"},
    {"{\"__metadata__\":{\"a\":null}}", 0, "__metadata__ holds a value that is not a string"},
    {"{\"\\u005f_metadata__\":{" F32_2 "}}", 8, "tensor '__metadata__': the name is reserved"},
    {"{\"t\":[]}", 0, "tensor 't': its entry is not an object"},
    {"{\"t\":1}", 0, "tensor 't': its entry is not an object"},
    {T(""), 0, "tensor 't': dtype is missing"},
    {T("\"shape\":[2],\"data_offsets\":[0,8]"), 8, "tensor 't': dtype is missing"},
    {T("\"dtype\":\"F32\",\"data_offsets\":[0,8]"), 8, "tensor 't': shape is missing"},
    {T("\"dtype\":\"F32\",\"shape\":[2]"), 8, "tensor 't': data_offsets is missing"},
    {T(F32_2 ",\"extra\":1"), 8, "tensor 't': a key other than dtype, shape, data_offsets"},
    {T(F32_2 ",\"a_long_key_of_many_letters\":1"), 8, "tensor 't': a key other than dtype"},
    {T("\"dtype\":1,\"shape\":[2],\"data_offsets\":[0,8]"), 8, "tensor 't': dtype is not a string"},
    {T("\"dtype\":\"f32\",\"shape\":[2],\"data_offsets\":[0,8]"), 8,
     "tensor 't': dtype f32 is unknown"},
    {T("\"dtype\":\"FLOAT32_AND_MORE\",\"shape\":[2],\"data_offsets\":[0,8]"), 8,
     "tensor 't': unknown dtype"},
    {T("\"dtype\":\"BOOL\",\"shape\":[2],\"data_offsets\":[0,2]"), 2,
     "tensor 't': dtype BOOL is not supported (supported: F32, F16, BF16, F64, I64, I32, U8)"},
    {T("\"dtype\":\"I8\",\"shape\":[2],\"data_offsets\":[0,2]"), 2,
     "tensor 't': dtype I8 is not sup"},
    {T("\"dtype\":\"I16\",\"shape\":[1],\"data_offsets\":[0,2]"), 2,
     "tensor 't': dtype I16 is not sup"},
    {T("\"dtype\":\"U16\",\"shape\":[1],\"data_offsets\":[0,2]"), 2,
     "tensor 't': dtype U16 is not sup"},
    {T("\"dtype\":\"U32\",\"shape\":[1],\"data_offsets\":[0,4]"), 4,
     "tensor 't': dtype U32 is not sup"},
    {T("\"dtype\":\"U64\",\"shape\":[1],\"data_offsets\":[0,8]"), 8,
     "tensor 't': dtype U64 is not sup"},
    {T("\"dtype\":\"F8_E4M3\",\"shape\":[2],\"data_offsets\":[0,2]"), 2,
     "tensor 't': dtype F8_E4M3 is not supported"},
    {T("\"dtype\":\"F8_E5M2\",\"shape\":[2],\"data_offsets\":[0,2]"), 2,
     "tensor 't': dtype F8_E5M2 is not supported"},
    {T("\"dtype\":\"F32\",\"shape\":2,\"data_offsets\":[0,8]"), 8,
     "tensor 't': shape is not an array"},
    {T("\"dtype\":\"F32\",\"shape\":[-2],\"data_offsets\":[0,8]"), 8,
     "tensor 't': a dimension is not a whole number of 0 or more"},
    {T("\"dtype\":\"F32\",\"shape\":[2.0],\"data_offsets\":[0,8]"), 8, "tensor 't': a dimension"},
    {T("\"dtype\":\"F32\",\"shape\":[\"2\"],\"data_offsets\":[0,8]"), 8, "tensor 't': a dimension"},
    {T("\"dtype\":\"F32\",\"shape\":[[2]],\"data_offsets\":[0,8]"), 8, "tensor 't': a dimension"},
    {T("\"dtype\":\"F32\",\"shape\":[9223372036854775808],\"data_offsets\":[0,8]"), 8,
     "tensor 't': a dimension"},
    {T("\"dtype\":\"U8\",\"shape\":[1,1,1,1,1,1,1,1,1],\"data_offsets\":[0,1]"), 1,
     "tensor 't': more than 8 dimensions"},
    {T("\"dtype\":\"F32\",\"shape\":[4294967296,4294967296],\"data_offsets\":[0,8]"), 8,
     "tensor 't': the number of elements overflows 64 bits"},
    {T("\"dtype\":\"F32\",\"shape\":[4294967296,4294967296,0],\"data_offsets\":[0,0]"), 0,
     "tensor 't': the number of elements overflows 64 bits"},
    {T("\"dtype\":\"F32\",\"shape\":[4611686018427387904],\"data_offsets\":[0,0]"), 0,
     "tensor 't': the number of bytes overflows 64 bits"},
    {T("\"dtype\":\"F32\",\"shape\":[3],\"data_offsets\":[0,8]"), 8,
     "tensor 't': data_offsets span 8 bytes, but 3 elements of F32 need 12"},
    {T("\"dtype\":\"F32\",\"shape\":[],\"data_offsets\":[0,0]"), 0,
     "tensor 't': data_offsets span 0 bytes, but 1 elements of F32 need 4"},
    {T("\"dtype\":\"F32\",\"shape\":[2],\"data_offsets\":8"), 8,
     "tensor 't': data_offsets is not an array"},
    {T("\"dtype\":\"F32\",\"shape\":[2],\"data_offsets\":[0]"), 8,
     "tensor 't': data_offsets are not two whole numbers"},
    {T("\"dtype\":\"F32\",\"shape\":[2],\"data_offsets\":[0,8,8]"), 8,
     "tensor 't': data_offsets are not two whole numbers"},
    {T("\"dtype\":\"F32\",\"shape\":[2],\"data_offsets\":[-8,0]"), 8,
     "tensor 't': data_offsets are not two whole numbers of 0 or more"},
    {T("\"dtype\":\"F32\",\"shape\":[2],\"data_offsets\":[0,8e0]"), 8,
     "tensor 't': data_offsets are not two whole numbers"},
    {T("\"dtype\":\"F32\",\"shape\":[2],\"data_offsets\":[0,18446744073709551624]"), 8,
     "tensor 't': data_offsets are not two whole numbers"},
    {T("\"dtype\":\"F32\",\"shape\":[2],\"data_offsets\":[8,0]"), 8,
     "tensor 't': data_offsets run backwards"},
    {T(F32_2), 7,
     "tensor 't': data ends at byte 8, but the file holds only 7 bytes of data (trunc"},
    {T(F32_2), 9, "1 bytes follow after the last tensor's data"},
    {"{}", 1, "1 bytes follow after the last tensor's data"},
    {T("\"dtype\":\"F32\",\"shape\":[2],\"data_offsets\":[4,12]"), 12,
     "tensor 't': its data begins at byte 4, but the one before ends at 0 (hole)"},
    {"{\"a\":{" F32_2 "},\"b\":{\"dtype\":\"F32\",\"shape\":[1],\"data_offsets\":[12,16]}}", 16,
     "tensor 'b': its data begins at byte 12, but the one before ends at 8 (hole)"},
    {"{\"a\":{" F32_2 "},\"b\":{\"dtype\":\"F32\",\"shape\":[2],\"data_offsets\":[4,12]}}", 12,
     "tensor 'b': its data begins at byte 4, but the one before ends at 8 (overlap)"},
    {"{\"a\":{" F32_2 "},\"b\":{" F32_2 "}}", 8, "tensor 'b': its data begins at byte 0"},
    {"{\"e\\u001b[1m\":{}}", 0, "tensor 'e\\x1b[1m': dtype is missing"},
};

static void good_images_load(void **state) {
    (void)state;
    for (int i = 0; i < COUNT(good); i++) {
        Image image = image_of(good[i].header, good[i].data);
        SafeFile *f;
        Status s = safetensors_parse(image.data, image.size, "x", &f);
        if (s != STATUS_OK) fail_msg("good image %d: %s", i, status_message());
        safetensors_close(f);
        free(image.data);
    }
}

static void each_broken_rule_is_named(void **state) {
    (void)state;
    int64_t before = mem_live();
    assert_true(COUNT(bad) >= 40);
    for (int i = 0; i < COUNT(bad); i++) {
        Image image = image_of(bad[i].header, bad[i].data);
        SafeFile *f;
        Status s = safetensors_parse(image.data, image.size, "x", &f);
        const char *message = status_message();
        if (s == STATUS_OK) {
            safetensors_close(f);
            fail_msg("bad image %d was accepted", i);
        }
        size_t length = strlen(bad[i].message);
        if (s != STATUS_DATA || strncmp(message, "x: ", 3) != 0 ||
            (strncmp(message + 3, bad[i].message, length) != 0)) {
            fail_msg("bad image %d: '%s', expected '%s'", i, message, bad[i].message);
        }
        assert_null(f);
        free(image.data);
    }
    assert_int_equal(mem_live(), before);
}

static void foreign_files_are_named(void **state) {
    (void)state;
    static const struct {
        const char *bytes;
        size_t size;
        const char *message;
    } cases[] = {
        {"", 0, "x: the file is empty"},
        {"abc", 3, "x: 3 bytes; a safetensors file has at least 8 (truncated?)"},
        {"\x02\0\0\0\0\0\0\0", 8, "x: header of 2 bytes, but only 0 follow (truncated?)"},
        {"\x10\0\0\0\0\0\0\0{}", 10, "x: header of 16 bytes, but only 2 follow (truncated?)"},
        {"\0\0\0\0\0\0\0\0{}", 10, "x: the header does not start with '{'"},
        {"\x01\xe1\xf5\x05\0\0\0\0{}", 10, "x: header of 100000001 bytes; at most 100000000"},
        {"\0\xe1\xf5\x05\0\0\0\0{}", 10, "x: header of 100000000 bytes, but only 2 follow"},
        {"\xff\xff\xff\xff\xff\xff\xff\xff{}", 10, "x: header of 18446744073709551615 bytes"},
        {"version https://git-lfs.github.com/spec/v1\noid sha256:0\n", 56, "x: a Git LFS pointer"},
        {"PK\x03\x04\x14\0\0\0\x08\0\0\0", 12, "x: a zip archive, as PyTorch writes"},
        {"\x80\x02}q\0(X\x01\0\0\0", 11, "x: a Python pickle"},
        {"\x80\x04\x95", 3, "x: a Python pickle"},
        {"\x1f\x8b\x08\0\0\0\0\0\0\x03", 10, "x: gzip-compressed"},
        {"<!DOCTYPE html><html>", 21, "x: an HTML or XML page"},
        {"\n <HTML><head>", 14, "x: an HTML or XML page"},
        {"<?xml version", 13, "x: an HTML or XML page"},
        {"{\"weight_map\":{}}", 17, "x: JSON text"},
    };
    for (int i = 0; i < COUNT(cases); i++) {
        /* On the heap and exactly as long, so that ASan sees any step too far. */
        unsigned char *copy = malloc(cases[i].size + 1);
        memcpy(copy + 1, cases[i].bytes, cases[i].size);
        SafeFile *f;
        assert_int_equal(safetensors_parse(copy + 1, cases[i].size, "x", &f), STATUS_DATA);
        if (strncmp(status_message(), cases[i].message, strlen(cases[i].message)) != 0) {
            fail_msg("case %d: '%s', expected '%s'", i, status_message(), cases[i].message);
        }
        free(copy);
    }
}

/* A length prefix that spells "PK\3\4" is possible in a true file. */
static void a_zip_like_length_is_no_zip(void **state) {
    (void)state;
    size_t length = 0x04034b50;
    unsigned char *data = malloc(8 + length);
    uint64_t prefix = length;
    memcpy(data, &prefix, 8);
    memset(data + 8, ' ', length);
    memcpy(data + 8, "{}", 2);
    SafeFile *f;
    assert_ok(safetensors_parse(data, 8 + length, "x", &f));
    safetensors_close(f);
    free(data);
}

static void contents_are_found(void **state) {
    (void)state;
    Image image = image_of(good[12].header, good[12].data);
    SafeFile *f;
    assert_ok(safetensors_parse(image.data, image.size, "x", &f));
    assert_int_equal(safetensors_count(f), 4);
    static const char *const order[] = {"a", "e", "b", "z"}; /* by data offset */
    for (int i = 0; i < 4; i++) {
        assert_string_equal(safetensors_at(f, i)->name, order[i]);
        assert_ptr_equal(safetensors_find(f, order[i]), safetensors_at(f, i));
    }
    assert_null(safetensors_at(f, 4));
    assert_null(safetensors_at(f, -1));
    assert_null(safetensors_find(f, "c"));
    assert_string_equal(safetensors_path(f), "x");
    const SafeEntry *b = safetensors_find(f, "b");
    assert_int_equal(b->bytes, 3);
    assert_int_equal(b->shape[0], 3);
    assert_int_equal(b->data[0], 8);
    safetensors_close(f);
    free(image.data);
    image = image_of(good[9].header, good[9].data);
    assert_ok(safetensors_parse(image.data, image.size, "x", &f));
    assert_int_equal(safetensors_meta_count(f), 2);
    assert_string_equal(safetensors_meta(f, "a"), "b");
    assert_string_equal(safetensors_meta(f, "\xc3\xa9"), "");
    assert_null(safetensors_meta(f, "c"));
    const char *key, *value;
    safetensors_meta_at(f, 0, &key, &value);
    assert_string_equal(key, "a");
    safetensors_meta_at(f, 2, &key, &value);
    assert_null(key);
    safetensors_close(f);
    safetensors_close(NULL);
    free(image.data);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(good_images_load),        cmocka_unit_test(each_broken_rule_is_named),
        cmocka_unit_test(foreign_files_are_named), cmocka_unit_test(a_zip_like_length_is_no_zip),
        cmocka_unit_test(contents_are_found),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
