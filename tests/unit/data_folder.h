/* What the tests of data sets share: a temporary tree, the log, samples by name. */
#ifndef TTV_TESTS_DATA_FOLDER_H
#define TTV_TESTS_DATA_FOLDER_H

#include "data_tar.h"

#include "core/log.h"
#include "datasets/folder.h"

static char root[256];
static char logged[8192];

static inline void keep_log(void *user, LogLevel level, const char *message) {
    (void)user;
    (void)level;
    size_t used = strlen(logged);
    snprintf(logged + used, sizeof logged - used, "%s\n", message);
}

static inline int set_up(void **state) {
    (void)state;
    make_temp(root);
    logged[0] = '\0';
    log_set_sink(keep_log, NULL);
    return 0;
}

static inline int tear_down(void **state) {
    (void)state;
    log_set_sink(NULL, NULL);
    remove_tree(root);
    return 0;
}

static inline void expect_log(const char *part) {
    if (strstr(logged, part) == NULL) fail_msg("log '%s' lacks '%s'", logged, part);
}

/* Defaults of the option table. */
static inline DataConfig config_of(const char *where) {
    DataConfig c = {0};
    Section section = {"data", data_options, &c};
    Config *config;
    assert_ok(config_new(&section, 1, &config));
    config_free(config);
    assert_true(strlen(where) < sizeof c.root);
    memcpy(c.root, where, strlen(where) + 1);
    return c;
}

static inline void in_root(char out[CONFIG_TEXT], const char *name) {
    size_t used = strlen(root), length = strlen(name);
    assert_true(used + length + 2 <= CONFIG_TEXT);
    memcpy(out, root, used);
    out[used] = '/';
    memcpy(out + used + 1, name, length + 1);
}

static inline void expect_error(const DataConfig *c, const char *split, ClassList *classes,
                                Status code, const char *message) {
    Dataset *d;
    int64_t live = mem_live();
    Status s = dataset_open(c, split, classes, &d);
    if (s == STATUS_OK) fail_msg("opened; expected '%s'", message);
    assert_null(d);
    assert_message(message);
    if (code != s) fail_msg("status %s: %s", status_name(s), status_message());
    assert_int_equal(mem_live(), live);
}

static inline void expect_classes(const ClassList *c, const char *names) {
    char text[1024] = "";
    for (int64_t i = 0; i < c->count; i++) {
        strcat(text, i > 0 ? " " : "");
        strcat(text, c->names[i]);
    }
    assert_string_equal(text, names);
}

static inline int64_t label_of(const Dataset *d, const char *part) {
    for (int64_t i = 0; i < dataset_count(d); i++) {
        if (strstr(dataset_name(d, i), part) != NULL) return dataset_label(d, i);
    }
    fail_msg("no sample %s", part);
    return -1;
}

/* Reads every sample; the number that could be read. */
static inline int64_t read_all(const Dataset *d) {
    int64_t ok = 0;
    for (int64_t i = 0; i < dataset_count(d); i++) {
        const void *bytes;
        size_t size;
        bool owned;
        if (dataset_bytes(d, i, &bytes, &size, &owned) != STATUS_OK) continue;
        ok += size > 0;
        if (owned) mem_free((void *)(uintptr_t)bytes);
    }
    return ok;
}

#define TEST(f) cmocka_unit_test_setup_teardown(f, set_up, tear_down)

#endif
