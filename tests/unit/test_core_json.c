/* JSON: strictness with byte offsets, cursor, writer. */
#include "core_fixture.h"

#include <math.h>

#include <cjson/cJSON.h>

#include "core/json.h"
#include "core/json_scan.h"

static void good_texts_parse(void **state) {
    (void)state;
    static const char *const texts[] = {
        "{}",
        " [] \n",
        "null",
        "true",
        "-0.5e+3",
        "\"x\"",
        "[1,2,[3,{\"a\":[]}]]",
        "0",
        "10",
        "-0",
        "\"\\ud83d\\ude00 \\u00e9 \\/ caf\xc3\xa9 \xf0\x9f\x98\x80\"",
        "{\"a\":1,\"A\":2,\"\":3}",
        "{\"a\":{\"x\":1},\"b\":{\"x\":1}}",
    };
    for (int i = 0; i < COUNT(texts); i++) {
        cJSON *value;
        assert_ok(json_parse(texts[i], strlen(texts[i]), "t", &value));
        json_free(value);
    }
    json_free(NULL);
}

static const struct {
    const char *text, *message;
} bad_texts[] = {
    {"", "t: byte 0: the JSON text ends too early"},
    {"  ", "t: byte 2: the JSON text ends too early"},
    {"{", "t: byte 1: the JSON text ends too early"},
    {"[1,", "t: byte 3: the JSON text ends too early"},
    {"\"ab", "t: byte 3: the JSON text ends too early"},
    {"\"ab\\", "t: byte 4: the JSON text ends too early"},
    {"{\"a\":1} x", "t: byte 8: unexpected bytes after the JSON value"},
    {"1 2", "t: byte 2: unexpected bytes"},
    {"{\"a\":1,\"b\":2,\"a\":3}", "t: byte 13: duplicate key 'a'"},
    {"{\"a\":1,\"\\u0061\":2}", "t: byte 7: duplicate key '\\u0061'"},
    {"{\"\xc3\xa9\":1,\"\\u00e9\":2}", "t: byte 8: duplicate key"},
    {"{\"\xf0\x9f\x98\x80\":1,\"\\ud83d\\ude00\":2}", "t: byte 10: duplicate key"},
    {"{\"a\":1,}", "t: byte 7: expected a string"},
    {"{a:1}", "t: byte 1: expected a string"},
    {"{\"a\" 1}", "t: byte 5: expected ':'"},
    {"{\"a\":1 \"b\":2}", "t: byte 7: expected ',' or '}'"},
    {"[1 2]", "t: byte 3: expected ',' or ']'"},
    {"[1,]", "t: byte 3: expected a JSON value"},
    {"nul", "t: byte 0: expected a JSON value"},
    {"NaN", "t: byte 0: expected a JSON value"},
    {"01", "t: byte 0: a number with a leading zero"},
    {"+1", "t: byte 0: expected a JSON value"},
    {"[1.]", "t: byte 3: expected a digit"},
    {"[-]", "t: byte 2: expected a digit"},
    {"[1e+]", "t: byte 4: expected a digit"},
    {"1e999", "t: byte 0: number out of range"},
    {"1111111111111111111111111111111111111111111111111111111111111",
     "t: byte 0: a number of more than 60 characters"},
    {"\"\\x\"", "t: byte 1: unknown escape"},
    {"\"\\u12g4\"", "t: byte 1: \\u needs four"},
    {"\"\\u0000\"", "t: byte 1: \\u0000 is not accepted"},
    {"\"\\ud800\"", "t: byte 1: half of a surrogate pair"},
    {"\"\\udc00\"", "t: byte 1: half of a surrogate pair"},
    {"\"\\ud800\\u0041\"", "t: byte 1: half of a surrogate pair"},
    {"\"a\tb\"", "t: byte 2: control character"},
    {"\"\xff\"", "t: byte 1: invalid UTF-8"},
    {"\"\xc0\xaf\"", "t: byte 1: invalid UTF-8"},
    {"\"\xed\xa0\x80\"", "t: byte 1: invalid UTF-8"},
    {"\"\xf4\x90\x80\x80\"", "t: byte 1: invalid UTF-8"},
    {"\"\xe2\x82\"", "t: byte 1: invalid UTF-8"},
    {"\xef\xbb\xbf{}", "t: byte 0: expected a JSON value"},
    {"{\n\"a\": 1,,\n}\n", "t:2: byte 9: expected a string"},
    {"{\n\"a\": 1,\n", "t:3: byte 10: the JSON text ends too early"},
};

static void bad_texts_are_refused_with_their_byte(void **state) {
    (void)state;
    for (int i = 0; i < COUNT(bad_texts); i++) {
        cJSON *value;
        Status s = json_parse(bad_texts[i].text, strlen(bad_texts[i].text), "t", &value);
        if (s != STATUS_DATA ||
            strncmp(status_message(), bad_texts[i].message, strlen(bad_texts[i].message))) {
            fail_msg("case %d: %s '%s', expected '%s'", i, status_name(s), status_message(),
                     bad_texts[i].message);
        }
        assert_null(value);
    }
    assert_int_equal(json_check("{\"a\0b\":1}", 9, "t"), STATUS_DATA);
    assert_message("byte 3: control character");
}

static void depth_is_limited_to_64(void **state) {
    (void)state;
    char text[131] = "";
    memset(text, '[', 64);
    memset(text + 64, ']', 64);
    assert_ok(json_check(text, 128, "t"));
    memset(text, '[', 65);
    memset(text + 65, ']', 65);
    assert_int_equal(json_check(text, 130, "t"), STATUS_DATA);
    assert_message("byte 64: nested deeper than 64 levels");
}

static void many_keys_are_checked_quickly(void **state) {
    (void)state;
    enum { KEYS = 100000 };
    char *text = malloc(KEYS * 20 + 64);
    size_t used = (size_t)sprintf(text, "{");
    for (int i = 0; i < KEYS; i++) used += (size_t)sprintf(text + used, "\"key%d\":%d,", i, i);
    size_t good = used + (size_t)sprintf(text + used, "\"last\":0}");
    assert_ok(json_check(text, good, "t"));
    size_t bad = used + (size_t)sprintf(text + used, "\"key777\":0}");
    assert_int_equal(json_check(text, bad, "t"), STATUS_DATA);
    assert_message("duplicate key 'key777'");
    free(text);
}

static void the_cursor_walks(void **state) {
    (void)state;
    static const char text[] =
        " { \"a\\n\" : [ 1 , -2, 9223372036854775807, 9223372036854775808, 1.0 ,"
        " \"s\" ] , \"skip\":{\"x\":[{}, \"}\"]}, \"b\":true } ";
    char out[32];
    int64_t n;
    assert_ok(json_check(text, sizeof text - 1, "t"));
    JsonCursor c = {text, text + sizeof text - 1};
    assert_int_equal(json_peek(&c), '{');
    json_enter(&c);
    assert_true(json_more(&c));
    assert_int_equal(json_string_span(&c), 5);
    assert_int_equal(json_take_string(&c, out), 2);
    assert_string_equal(out, "a\n");
    json_enter(&c);
    assert_true(json_more(&c) && json_take_int(&c, &n) && n == 1);
    assert_true(json_more(&c) && json_take_int(&c, &n) && n == -2);
    assert_true(json_more(&c) && json_take_int(&c, &n) && n == INT64_MAX);
    assert_true(json_more(&c) && !json_take_int(&c, &n));
    assert_true(json_more(&c) && !json_take_int(&c, &n));
    assert_true(json_more(&c) && !json_take_int(&c, &n));
    assert_false(json_more(&c));
    assert_true(json_more(&c));
    json_skip_key(&c);
    json_skip(&c);
    assert_true(json_more(&c));
    json_take_string(&c, out);
    assert_string_equal(out, "b");
    json_skip(&c);
    assert_false(json_more(&c));
    assert_int_equal(json_peek(&c), 0);
}

static void writing_separates_and_escapes(void **state) {
    (void)state;
    JsonWriter w;
    json_writer_init(&w);
    json_begin_object(&w);
    json_pair_string(&w, "text", "a\"b\\c\n\x01\xff caf\xc3\xa9");
    json_pair_int(&w, "int", INT64_MIN);
    json_pair_number(&w, "third", 1.0 / 3);
    json_pair_number(&w, "tenth", 0.1);
    json_pair_number(&w, "inf", INFINITY);
    json_pair_bool(&w, "yes", true);
    json_key(&w, "list");
    json_begin_array(&w);
    json_int(&w, 1);
    json_begin_object(&w);
    json_end_object(&w);
    json_null(&w);
    json_string(&w, "");
    json_number(&w, NAN);
    json_bool(&w, false);
    json_end_array(&w);
    json_end_object(&w);
    assert_ok(w.status);
    assert_string_equal(w.text,
                        "{\"text\":\"a\\\"b\\\\c\\n\\u0001\xef\xbf\xbd caf\xc3\xa9\","
                        "\"int\":-9223372036854775808,\"third\":0.33333333333333331,\"tenth\":0.1,"
                        "\"inf\":null,\"yes\":true,\"list\":[1,{},null,\"\",null,false]}");
    assert_ok(json_check(w.text, w.length, "t"));
    json_writer_free(&w);
}

static void numbers_read_back_bit_equal(void **state) {
    (void)state;
    static const double values[] = {0,       -0.0,          1,    1e300,    5e-324, 0.1,
                                    1.0 / 3, 123456789.125, 1e-7, 16777217, M_PI};
    for (int i = 0; i < COUNT(values); i++) {
        JsonWriter w;
        cJSON *value;
        json_writer_init(&w);
        json_number(&w, values[i]);
        assert_ok(json_parse(w.text, w.length, "t", &value));
        assert_memory_equal(&value->valuedouble, &values[i], sizeof(double));
        json_free(value);
        json_writer_free(&w);
    }
}

static void writing_too_deep_is_an_error(void **state) {
    (void)state;
    JsonWriter w;
    json_writer_init(&w);
    for (int i = 0; i < 70; i++) json_begin_array(&w);
    for (int i = 0; i < 70; i++) json_end_array(&w);
    assert_int_equal(w.status, STATUS_INTERNAL);
    json_writer_free(&w);
}

static Status use_json(void) {
    static const char text[] = "{\"a\":[1,2,{\"b\":\"cde\"}],\"f\":null}";
    cJSON *value;
    TRY(json_parse(text, sizeof text - 1, "t", &value));
    json_free(value);
    JsonWriter w;
    json_writer_init(&w);
    json_begin_array(&w);
    for (int i = 0; i < 500; i++) json_int(&w, i);
    json_end_array(&w);
    Status s = w.status;
    json_writer_free(&w);
    return s;
}

static void every_failed_allocation_is_survived(void **state) {
    (void)state;
    int64_t before = mem_live();
    for (int64_t n = 1;; n++) {
        mem_fail_at(n);
        Status s = use_json();
        bool fired = !mem_fail_pending();
        mem_fail_at(0);
        assert_int_equal(mem_live(), before);
        if (!fired) {
            assert_ok(s);
            assert_true(n > 10);
            break;
        }
        assert_int_equal(s, STATUS_MEMORY);
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(good_texts_parse),
        cmocka_unit_test(bad_texts_are_refused_with_their_byte),
        cmocka_unit_test(depth_is_limited_to_64),
        cmocka_unit_test(many_keys_are_checked_quickly),
        cmocka_unit_test(the_cursor_walks),
        cmocka_unit_test(writing_separates_and_escapes),
        cmocka_unit_test(numbers_read_back_bit_equal),
        cmocka_unit_test(writing_too_deep_is_an_error),
        cmocka_unit_test(every_failed_allocation_is_survived),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
