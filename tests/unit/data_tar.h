/* Building tar archives in memory, for tests. */
#ifndef TTV_TESTS_DATA_TAR_H
#define TTV_TESTS_DATA_TAR_H

#include "data_support.h"

typedef struct TarBytes {
    unsigned char *data;
    size_t size;
} TarBytes;

static inline unsigned char *tar_grow(TarBytes *t, size_t bytes) {
    t->data = realloc(t->data, t->size + bytes);
    assert_non_null(t->data);
    memset(t->data + t->size, 0, bytes);
    t->size += bytes;
    return t->data + t->size - bytes;
}

static inline void tar_seal(unsigned char *header) {
    unsigned sum = 0;
    memset(header + 148, ' ', 8);
    for (int i = 0; i < 512; i++) sum += header[i];
    snprintf((char *)header + 148, 8, "%06o", sum);
}

static inline void tar_put(TarBytes *t, const char *name, const char *prefix, char type,
                           const void *data, size_t size) {
    unsigned char *h = tar_grow(t, 512);
    assert_true(strlen(name) <= 100 && (prefix == NULL || strlen(prefix) <= 155));
    memcpy(h, name, strlen(name));
    snprintf((char *)h + 100, 8, "%07o", 0644u);
    snprintf((char *)h + 124, 12, "%011o", (unsigned)size);
    h[156] = (unsigned char)type;
    memcpy(h + 257, "ustar\00000", 8);
    if (prefix != NULL) memcpy(h + 345, prefix, strlen(prefix));
    tar_seal(h);
    if (size > 0) memcpy(tar_grow(t, (size + 511) / 512 * 512), data, size);
}

static inline void tar_file(TarBytes *t, const char *name, const char *text) {
    tar_put(t, name, NULL, '0', text, strlen(text));
}

static inline void tar_image(TarBytes *t, const char *name, const char *corpus_name) {
    char path[4096], *bytes;
    size_t size;
    snprintf(path, sizeof path, "%s/%s", CORPUS, corpus_name);
    read_whole(path, &bytes, &size);
    tar_put(t, name, NULL, '0', bytes, size);
    mem_free(bytes);
}

static inline void tar_finish(TarBytes *t) {
    tar_grow(t, 1024);
}

static inline void tar_drop(TarBytes *t) {
    free(t->data);
    *t = (TarBytes){0};
}

#endif
