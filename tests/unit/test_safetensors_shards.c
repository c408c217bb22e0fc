/* safetensors: shards behind an index; failed allocations in opening, reading and writing. */
#include "safetensors_fixture.h"

#define INDEX(map) "{\"metadata\":{\"total_size\":16},\"weight_map\":{" map "}}"
#define SHARD1     "model-00001-of-00002.safetensors"
#define SHARD2     "model-00002-of-00002.safetensors"

static void put_shards(void) {
    put_image(
        SHARD1,
        "{\"__metadata__\":{\"format\":\"pt\"},\"b\":{\"dtype\":\"F32\",\"shape\":[1],"
        "\"data_offsets\":[0,4]},\"a\":{\"dtype\":\"F32\",\"shape\":[1],\"data_offsets\":[4,8]}}",
        8);
    put_image(SHARD2,
              "{\"__metadata__\":{\"other\":\"x\"},\"c\":{\"dtype\":\"F32\",\"shape\":[2],"
              "\"data_offsets\":[0,8]}}",
              8);
}

static void shards_open_as_one(void **state) {
    (void)state;
    put_shards();
    const char *index =
        put_text("model.safetensors.index.json",
                 INDEX("\"c\":\"" SHARD2 "\",\"a\":\"" SHARD1 "\",\"b\":\"" SHARD1 "\""));
    const char *const paths[] = {index, scratch};
    for (int i = 0; i < 2; i++) {
        SafeFile *f;
        assert_ok(safetensors_open(paths[i], &f));
        assert_int_equal(safetensors_count(f), 3);
        assert_string_equal(safetensors_at(f, 0)->name, "b");
        assert_string_equal(safetensors_at(f, 2)->name, "c");
        assert_int_equal(safetensors_find(f, "a")->shard, 0);
        assert_int_equal(safetensors_find(f, "c")->shard, 1);
        assert_int_equal(safetensors_find(f, "c")->data[7], 7);
        assert_string_equal(safetensors_meta(f, "format"), "pt");
        assert_int_equal(safetensors_meta_count(f), 1);
        safetensors_close(f);
    }
    scratch_empty();
}

static void bad_shard_indices_are_refused(void **state) {
    (void)state;
    static const struct {
        const char *text;
        Status status;
        const char *message;
    } cases[] = {
        {INDEX("\"a\":\"../" SHARD1 "\""), STATUS_DATA, "shard name '../" SHARD1 "' is refused"},
        {INDEX("\"a\":\"/tmp/" SHARD1 "\""), STATUS_DATA, "is refused: expected a file beside"},
        {INDEX("\"a\":\"sub/" SHARD1 "\""), STATUS_DATA, "is refused"},
        {INDEX("\"a\":\"..\\\\" SHARD1 "\""), STATUS_DATA, "is refused"},
        {INDEX("\"a\":\".hidden.safetensors\""), STATUS_DATA, "is refused"},
        {INDEX("\"a\":\".safetensors\""), STATUS_DATA, "is refused"},
        {INDEX("\"a\":\"\""), STATUS_DATA, "is refused"},
        {INDEX("\"a\":\"model.bin\""), STATUS_DATA, "shard name 'model.bin' is refused"},
        {INDEX("\"a\":\"absent.safetensors\""), STATUS_IO, "absent.safetensors': No such file"},
        {INDEX("\"a\":\"" SHARD1 "\",\"b\":\"" SHARD1 "\",\"c\":\"" SHARD2 "\",\"d\":\"" SHARD2
               "\""),
         STATUS_DATA, "tensor 'd' is listed by weight_map but missing in '" SHARD2 "'"},
        {INDEX("\"a\":\"" SHARD1 "\",\"c\":\"" SHARD2 "\""), STATUS_DATA,
         "tensor 'b' is not placed by weight_map in the shard that holds it"},
        {INDEX("\"a\":\"" SHARD1 "\",\"b\":\"" SHARD2 "\",\"c\":\"" SHARD2 "\""), STATUS_DATA,
         "tensor 'b' is not placed by weight_map"},
        {INDEX("\"a\":1"), STATUS_DATA, "weight_map holds a value that is not a string"},
        {INDEX(""), STATUS_DATA, "weight_map is empty"},
        {"{\"weight_map\":[]}", STATUS_DATA, "weight_map is not an object"},
        {"{\"a_key_longer_than_weight_map\":{\"weight_map\":{}}}", STATUS_DATA,
         "weight_map is missing"},
        {"[]", STATUS_DATA, "the index is not a JSON object"},
        {"{", STATUS_DATA, "index: byte 1: the JSON text ends too early"},
        {"", STATUS_DATA, "index: byte 0"},
        {INDEX("\"a\":\"x.safetensors\",\"a\":\"y.safetensors\""), STATUS_DATA,
         "duplicate key 'a'"},
    };
    int64_t before = mem_live();
    put_shards();
    for (int i = 0; i < COUNT(cases); i++) {
        SafeFile *f;
        const char *index = put_text("m.safetensors.index.json", cases[i].text);
        if (safetensors_open(index, &f) != cases[i].status) {
            fail_msg("case %d: %s", i, status_message());
        }
        assert_message(cases[i].message);
        assert_message("m.safetensors.index.json: ");
    }
    assert_int_equal(mem_live(), before);
    scratch_empty();
}

static void the_same_tensor_in_two_shards_is_refused(void **state) {
    (void)state;
    SafeFile *f;
    static const char header[] =
        "{\"a\":{\"dtype\":\"U8\",\"shape\":[1],\"data_offsets\":[0,1]},\"%s\":{\"dtype\":\"U8\","
        "\"shape\":[1],\"data_offsets\":[1,2]}}";
    char text[256];
    snprintf(text, sizeof text, header, "b");
    put_image("1.safetensors", text, 2);
    snprintf(text, sizeof text, header, "c");
    put_image("2.safetensors", text, 2);
    const char *index = put_text("m.safetensors.index.json",
                                 INDEX("\"a\":\"1.safetensors\",\"b\":\"1.safetensors\","
                                       "\"c\":\"2.safetensors\""));
    assert_int_equal(safetensors_open(index, &f), STATUS_DATA);
    assert_message("tensor 'a' is not placed by weight_map in the shard that holds it");
    assert_message("2.safetensors'");
    scratch_empty();
}

static Status open_and_read(const char *path) {
    SafeFile *f;
    float values[2];
    TRY(safetensors_open(path, &f));
    Status s = STATUS_OK;
    for (int64_t i = 0; i < safetensors_count(f) && s == STATUS_OK; i++) {
        const SafeEntry *e = safetensors_at(f, i);
        s = safetensors_read(e, tensor_1d(values, DTYPE_F32, (int64_t)e->bytes / 4));
    }
    safetensors_close(f);
    return s;
}

static Status write_one(const char *path) {
    float values[2] = {1, 2};
    const SafeItem item = {"a", tensor_1d(values, DTYPE_F32, 2)};
    const SafeMeta meta = {"k", "v"};
    return safetensors_write(path, &item, 1, &meta, 1);
}

static void walk_failures(Status (*use)(const char *path), const char *path) {
    int64_t before = mem_live();
    int files = scratch_count();
    for (int64_t n = 1;; n++) {
        mem_fail_at(n);
        Status s = use(path);
        bool fired = !mem_fail_pending();
        mem_fail_at(0);
        assert_int_equal(mem_live(), before);
        assert_int_equal(scratch_count(), files);
        if (!fired) {
            assert_ok(s);
            assert_true(n > 4);
            return;
        }
        assert_int_equal(s, STATUS_MEMORY);
    }
}

static void every_failed_allocation_is_survived(void **state) {
    (void)state;
    put_shards();
    put_text("m.index.json",
             INDEX("\"c\":\"" SHARD2 "\",\"a\":\"" SHARD1 "\",\"b\":\"" SHARD1 "\""));
    char path[600];
    snprintf(path, sizeof path, "%s", in_scratch("m.index.json"));
    walk_failures(open_and_read, path);
    snprintf(path, sizeof path, "%s", in_scratch(SHARD1));
    walk_failures(open_and_read, path);
    walk_failures(write_one, path);
    scratch_empty();
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(shards_open_as_one),
        cmocka_unit_test(bad_shard_indices_are_refused),
        cmocka_unit_test(the_same_tensor_in_two_shards_is_refused),
        cmocka_unit_test(every_failed_allocation_is_survived),
    };
    return cmocka_run_group_tests(tests, scratch_make, scratch_remove);
}
