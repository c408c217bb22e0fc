/* Helpers of the tests of datasets/. */
#ifndef TTV_TESTS_DATA_SUPPORT_H
#define TTV_TESTS_DATA_SUPPORT_H

#include <stdarg.h>
#include <stddef.h>
#include <setjmp.h>
#include <stdint.h>
#include <cmocka.h>

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#include "core/clock.h"
#include "core/crc32c.h"
#include "core/file.h"
#include "core/memory.h"
#include "core/status.h"
#include "datasets/image.h"

#define CORPUS TTV_SOURCE_DIR "/tests/data/images"

/* A shared file, or NULL (with a loud line) where this checkout has no shared/. */
static inline const char *shared_file(const char *name) {
    static char path[4096];
    snprintf(path, sizeof path, "%s/%s", TTV_SHARED_DIR, name);
    if (access(path, R_OK) == 0) return path;
    printf("SKIPPED: no %s\n", path);
    return NULL;
}

static inline void read_whole(const char *path, char **bytes, size_t *size) {
    if (file_read(path, (size_t)1 << 30, bytes, size) != STATUS_OK)
        fail_msg("%s", status_message());
}

static inline void assert_ok(Status s) {
    if (s != STATUS_OK) fail_msg("%s: %s", status_name(s), status_message());
}

static inline void assert_message(const char *part) {
    if (strstr(status_message(), part) == NULL) {
        fail_msg("message '%s' lacks '%s'", status_message(), part);
    }
}

static inline uint32_t pixels_crc(const uint8_t *rgb, int64_t w, int64_t h) {
    return crc32c(0, rgb, (size_t)(w * h * 3));
}

/* The picture of make_corpus.py's pattern(). */
static inline Image pattern_image(int64_t w, int64_t h) {
    Image image = {NULL, w, h};
    void *block;
    assert_ok(mem_alloc(&block, w * h, 3, "pattern"));
    image.pixels = block;
    for (int64_t y = 0; y < h; y++) {
        for (int64_t x = 0; x < w; x++) {
            for (int64_t c = 0; c < 3; c++) {
                image.pixels[(y * w + x) * 3 + c] =
                    (uint8_t)(x * 7 + y * 13 + c * 50 + (x * y) % 31 * 5);
            }
        }
    }
    return image;
}

/* Splits a line at tabs in place; returns the number of columns. */
static inline int split_tabs(char *line, char **column, int capacity) {
    int count = 0;
    line[strcspn(line, "\r\n")] = '\0';
    for (char *at = line; at != NULL && count < capacity; count++) {
        column[count] = at;
        at = strchr(at, '\t');
        if (at != NULL) *at++ = '\0';
    }
    return count;
}

/* A fresh folder under TMPDIR; remove_tree() takes it away. */
static inline const char *make_temp(char path[256]) {
    const char *tmp = getenv("TMPDIR");
    snprintf(path, 256, "%s/ttv-data-XXXXXX", tmp != NULL ? tmp : "/tmp");
    assert_non_null(mkdtemp(path));
    return path;
}

static inline void remove_tree(const char *path) {
    char command[600];
    snprintf(command, sizeof command, "chmod -R u+rwX '%s' 2>/dev/null; rm -rf '%s'", path, path);
    assert_int_equal(system(command), 0);
}

/* Writes a file and the folders above it. */
static inline void put_file(const char *root, const char *name, const void *bytes, size_t size) {
    char path[8192];
    snprintf(path, sizeof path, "%s/%s", root, name);
    char *slash = strrchr(path, '/');
    *slash = '\0';
    assert_ok(file_make_folder(path));
    *slash = '/';
    FILE *f = fopen(path, "wb");
    assert_non_null(f);
    assert_int_equal(fwrite(bytes, 1, size, f), size);
    assert_int_equal(fclose(f), 0);
}

static inline void put_text(const char *root, const char *name, const char *text) {
    put_file(root, name, text, strlen(text));
}

/* Copies a file of the corpus. */
static inline void put_image(const char *root, const char *name, const char *corpus_name) {
    char path[4096], *bytes;
    size_t size;
    snprintf(path, sizeof path, "%s/%s", CORPUS, corpus_name);
    read_whole(path, &bytes, &size);
    put_file(root, name, bytes, size);
    mem_free(bytes);
}

#endif
