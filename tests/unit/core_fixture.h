/* What the tests of core/ share: cmocka, a scratch folder, message checks. */
#ifndef TTV_TESTS_CORE_FIXTURE_H
#define TTV_TESTS_CORE_FIXTURE_H

#include <stdarg.h>
#include <stddef.h>
#include <setjmp.h>
#include <stdint.h>
#include <cmocka.h>

#include <dirent.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "core/file.h"
#include "core/memory.h"
#include "core/status.h"

#define COUNT(array) ((int)(sizeof(array) / sizeof(*(array))))

static char scratch[256];

__attribute__((unused)) static int scratch_make(void **state) {
    (void)state;
    const char *base = getenv("TMPDIR");
    snprintf(scratch, sizeof scratch, "%s/ttv-test-XXXXXX", base != NULL ? base : "/tmp");
    return mkdtemp(scratch) != NULL ? 0 : -1;
}

__attribute__((unused)) static void scratch_empty(void) {
    DIR *dir = opendir(scratch);
    assert_non_null(dir);
    for (struct dirent *e; (e = readdir(dir)) != NULL;) {
        if (strcmp(e->d_name, ".") == 0 || strcmp(e->d_name, "..") == 0) continue;
        if (unlinkat(dirfd(dir), e->d_name, 0) != 0) unlinkat(dirfd(dir), e->d_name, AT_REMOVEDIR);
    }
    closedir(dir);
}

__attribute__((unused)) static int scratch_remove(void **state) {
    (void)state;
    scratch_empty();
    return rmdir(scratch);
}

/* A path in the scratch folder; four results live at a time. */
__attribute__((unused)) static const char *in_scratch(const char *name) {
    static char paths[4][600];
    static int next;
    char *path = paths[next++ % 4];
    snprintf(path, sizeof paths[0], "%s/%s", scratch, name);
    return path;
}

__attribute__((unused)) static const char *put_file(const char *name, const void *data,
                                                    size_t size) {
    const char *path = in_scratch(name);
    FILE *f = fopen(path, "wb");
    assert_non_null(f);
    assert_int_equal(fwrite(data, 1, size, f), size);
    assert_int_equal(fclose(f), 0);
    return path;
}

__attribute__((unused)) static const char *put_text(const char *name, const char *text) {
    return put_file(name, text, strlen(text));
}

/* Files in the scratch folder, to see that no temporary was left. */
__attribute__((unused)) static int scratch_count(void) {
    DIR *dir = opendir(scratch);
    int count = -2; /* . and .. */
    assert_non_null(dir);
    while (readdir(dir) != NULL) count++;
    closedir(dir);
    return count;
}

#define assert_message(part)                                                                       \
    do {                                                                                           \
        if (strstr(status_message(), part) == NULL) {                                              \
            fail_msg("message '%s' lacks '%s'", status_message(), part);                           \
        }                                                                                          \
    } while (0)

#define assert_ok(call)                                                                            \
    do {                                                                                           \
        Status ok_status_ = (call);                                                                \
        if (ok_status_ != STATUS_OK) {                                                             \
            fail_msg("%s: %s", status_name(ok_status_), status_message());                         \
        }                                                                                          \
    } while (0)

#endif
