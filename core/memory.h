/* Host memory: checked allocation with a test hook that fails the n-th call.
 *
 * Everything the library takes from the heap goes through here, so that a test can walk through
 * every possible allocation failure. Sizes are counts times element size, overflow-checked; single
 * blocks above 512 GiB are refused.
 */
#ifndef TTV_CORE_MEMORY_H
#define TTV_CORE_MEMORY_H

#include <stddef.h>
#include <stdint.h>

#include "core/status.h"

/* Zeroed memory for `count` elements of `size` bytes in *out; STATUS_MEMORY with a message that
 * names `what` and the bytes. count 0 gives a valid pointer. Free with mem_free(). */
Status mem_alloc(void **out, int64_t count, size_t size, const char *what);

/* Grows *block to `count` elements, contents kept, new part not zeroed; *block untouched on
 * failure. */
Status mem_grow(void **block, int64_t count, size_t size, const char *what);

/* Copy of a string; of at most `length` bytes of it. */
Status mem_string(char **out, const char *text);
Status mem_string_n(char **out, const char *text, size_t length);

void mem_free(void *block);

/* Raw forms for libraries that want malloc/free pointers (libpng, cJSON); they honour the hook too.
 */
void *mem_malloc(size_t bytes);

/* Test hook: the n-th allocation from now on fails (1 = the next), once; 0 switches it off. Counts
 * are per process. mem_fail_pending() tells whether the failure has not fired yet. */
void mem_fail_at(int64_t n);
int mem_fail_pending(void);

/* Allocations that are alive (for leak tests). */
int64_t mem_live(void);

#endif
