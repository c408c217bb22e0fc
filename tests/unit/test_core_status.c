/* status, log and memory. */
#include "core_fixture.h"

#include <errno.h>
#include <pthread.h>

#include "core/log.h"

static void messages_are_set_and_prefixed(void **state) {
    (void)state;
    assert_int_equal(status_set(STATUS_DATA, "key '%s' is %d", "a", 3), STATUS_DATA);
    assert_string_equal(status_message(), "key 'a' is 3");
    assert_int_equal(status_context(STATUS_DATA, "x.ini:%d", 7), STATUS_DATA);
    assert_string_equal(status_message(), "x.ini:7: key 'a' is 3");
    assert_int_equal(status_context(STATUS_OK, "never"), STATUS_OK);
    assert_int_equal(status_context(STATUS_END, "never"), STATUS_END);
    assert_string_equal(status_message(), "x.ini:7: key 'a' is 3");
}

static void a_message_may_hold_the_last_one(void **state) {
    (void)state;
    status_set(STATUS_DATA, "inner");
    status_set(STATUS_IO, "outer (%s)", status_message());
    assert_string_equal(status_message(), "outer (inner)");
}

static void long_messages_are_cut(void **state) {
    (void)state;
    char text[3000];
    memset(text, 'x', sizeof text - 1);
    text[sizeof text - 1] = '\0';
    status_set(STATUS_DATA, "%s", text);
    assert_int_equal(strlen(status_message()), 1023);
    status_context(STATUS_DATA, "%s", text);
    assert_int_equal(strlen(status_message()), 1023);
}

static void errno_is_spelled_out(void **state) {
    (void)state;
    errno = ENOENT;
    assert_int_equal(status_errno("cannot open '%s'", "x"), STATUS_IO);
    assert_string_equal(status_message(), "cannot open 'x': No such file or directory");
}

static void *set_elsewhere(void *user) {
    (void)user;
    status_set(STATUS_IO, "other thread");
    return NULL;
}

static void messages_belong_to_their_thread(void **state) {
    (void)state;
    pthread_t thread;
    status_set(STATUS_DATA, "mine");
    assert_int_equal(pthread_create(&thread, NULL, set_elsewhere, NULL), 0);
    pthread_join(thread, NULL);
    assert_string_equal(status_message(), "mine");
}

static void codes_have_names_and_exit_codes(void **state) {
    (void)state;
    static const struct {
        Status code;
        const char *name;
        int exit_code;
    } table[] = {
        {STATUS_OK, "ok", 0},
        {STATUS_END, "end", 0},
        {STATUS_USAGE, "usage", 2},
        {STATUS_DATA, "data", 3},
        {STATUS_IO, "io", 4},
        {STATUS_MEMORY, "memory", 5},
        {STATUS_DEVICE, "device", 5},
        {STATUS_NUMERIC, "numeric", 6},
        {STATUS_STOPPED, "stopped", 75},
        {STATUS_INTERNAL, "internal", 70},
    };
    for (int i = 0; i < COUNT(table); i++) {
        assert_string_equal(status_name(table[i].code), table[i].name);
        assert_int_equal(status_exit_code(table[i].code), table[i].exit_code);
    }
}

static char logged[256];

static void keep_line(void *user, LogLevel level, const char *message) {
    snprintf(user, sizeof logged, "%d %s", (int)level, message);
}

static void log_lines_reach_the_sink(void **state) {
    (void)state;
    log_warn("dropped");
    log_set_sink(keep_line, logged);
    log_info("step %d", 5);
    assert_string_equal(logged, "1 step 5");
    log_error("bad");
    assert_string_equal(logged, "3 bad");
    log_warn("hm");
    assert_string_equal(logged, "2 hm");
    log_debug("fine");
    assert_string_equal(logged, "0 fine");
    log_set_sink(NULL, NULL);
    log_error("dropped");
    assert_string_equal(logged, "0 fine");
}

static void memory_is_zeroed_and_counted(void **state) {
    (void)state;
    int64_t before = mem_live();
    void *a, *b;
    assert_ok(mem_alloc(&a, 100, 8, "numbers"));
    assert_ok(mem_alloc(&b, 0, 8, "nothing"));
    assert_non_null(b);
    for (int i = 0; i < 800; i++) assert_int_equal(((char *)a)[i], 0);
    assert_int_equal(mem_live(), before + 2);
    assert_ok(mem_grow(&a, 1000, 8, "numbers"));
    assert_int_equal(mem_live(), before + 2);
    mem_free(a);
    mem_free(b);
    mem_free(NULL);
    assert_int_equal(mem_live(), before);
}

static void absurd_sizes_are_refused(void **state) {
    (void)state;
    void *p;
    assert_int_equal(mem_alloc(&p, -1, 8, "weights"), STATUS_MEMORY);
    assert_null(p);
    assert_int_equal(mem_alloc(&p, INT64_MAX, 8, "weights"), STATUS_MEMORY);
    assert_message("weights");
    assert_message("9223372036854775807 x 8 bytes");
    assert_int_equal(mem_alloc(&p, INT64_MAX / 2, 2, "weights"), STATUS_MEMORY);
}

static void the_nth_allocation_fails_once(void **state) {
    (void)state;
    void *p;
    char *s;
    mem_fail_at(3);
    assert_ok(mem_alloc(&p, 1, 1, "a"));
    mem_free(p);
    assert_ok(mem_string(&s, "abc"));
    assert_string_equal(s, "abc");
    assert_true(mem_fail_pending());
    void *grown = s;
    assert_int_equal(mem_grow(&grown, 100, 1, "b"), STATUS_MEMORY);
    assert_ptr_equal(grown, s);
    assert_false(mem_fail_pending());
    assert_ok(mem_string_n(&s, "abcdef", 2));
    assert_string_equal(s, "ab");
    mem_free(s);
    mem_free(grown);
    mem_fail_at(1);
    assert_null(mem_malloc(5));
    void *raw = mem_malloc(5);
    assert_non_null(raw);
    mem_free(raw);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(messages_are_set_and_prefixed),
        cmocka_unit_test(a_message_may_hold_the_last_one),
        cmocka_unit_test(long_messages_are_cut),
        cmocka_unit_test(errno_is_spelled_out),
        cmocka_unit_test(messages_belong_to_their_thread),
        cmocka_unit_test(codes_have_names_and_exit_codes),
        cmocka_unit_test(log_lines_reach_the_sink),
        cmocka_unit_test(memory_is_zeroed_and_counted),
        cmocka_unit_test(absurd_sizes_are_refused),
        cmocka_unit_test(the_nth_allocation_fails_once),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
