#include "core/memory.h"

#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>

/* No single block comes near: a larger request is nonsense from a file, not worth asking the
 * system. */
static const size_t MAX_BLOCK = (size_t)1 << 39;

static _Atomic int64_t live;
static _Atomic int64_t fail_in; /* allocations until the test hook strikes; <= 0: off */

static int must_fail(void) {
    return atomic_load_explicit(&fail_in, memory_order_relaxed) > 0 &&
           atomic_fetch_sub(&fail_in, 1) == 1;
}

/* count * size in *bytes; false when it is negative or absurd. */
static int byte_count(int64_t count, size_t size, size_t *bytes) {
    if (count < 0) return 0;
    if (__builtin_mul_overflow((size_t)count, size, bytes)) return 0;
    return *bytes <= MAX_BLOCK;
}

static Status out_of_memory(int64_t count, size_t size, const char *what) {
    return status_set(STATUS_MEMORY, "out of memory: %s needs %lld x %zu bytes", what,
                      (long long)count, size);
}

Status mem_alloc(void **out, int64_t count, size_t size, const char *what) {
    size_t bytes;
    *out = NULL;
    if (!byte_count(count, size, &bytes) || must_fail()) return out_of_memory(count, size, what);
    void *block = calloc(bytes > 0 ? bytes : 1, 1);
    if (block == NULL) return out_of_memory(count, size, what);
    atomic_fetch_add(&live, 1);
    *out = block;
    return STATUS_OK;
}

Status mem_grow(void **block, int64_t count, size_t size, const char *what) {
    size_t bytes;
    if (!byte_count(count, size, &bytes) || must_fail()) return out_of_memory(count, size, what);
    void *grown = realloc(*block, bytes > 0 ? bytes : 1);
    if (grown == NULL) return out_of_memory(count, size, what);
    if (*block == NULL) atomic_fetch_add(&live, 1);
    *block = grown;
    return STATUS_OK;
}

Status mem_string(char **out, const char *text) {
    return mem_string_n(out, text, strlen(text));
}

Status mem_string_n(char **out, const char *text, size_t length) {
    length = strnlen(text, length);
    void *block;
    *out = NULL;
    TRY(mem_alloc(&block, (int64_t)length + 1, 1, "a string"));
    memcpy(block, text, length);
    *out = block;
    return STATUS_OK;
}

void mem_free(void *block) {
    if (block == NULL) return;
    atomic_fetch_sub(&live, 1);
    free(block);
}

void *mem_malloc(size_t bytes) {
    if (bytes > MAX_BLOCK || must_fail()) return NULL;
    void *block = malloc(bytes > 0 ? bytes : 1);
    if (block != NULL) atomic_fetch_add(&live, 1);
    return block;
}

void mem_fail_at(int64_t n) {
    atomic_store(&fail_in, n);
}

int mem_fail_pending(void) {
    return atomic_load(&fail_in) > 0;
}

int64_t mem_live(void) {
    return atomic_load(&live);
}
