/* Arenas: bump allocation in blocks that double in size, with free lists by exact size.
 *
 * Placement is a function of the sequence of requests and of the blocks alone, so a sequence that
 * repeats after arena_reset() gets the same addresses and needs no new block.
 */
#include <string.h>

#include "core/memory.h"
#include "kernels/device.h"

#define ARENA_ALIGN          ((size_t)256)
#define ARENA_FIRST_BLOCK    ((size_t)16 << 20)
#define ARENA_LARGEST_GROWTH ((size_t)256 << 20)

struct ArenaBlock {
    ArenaBlock *older, *newer;
    char *data;
    size_t size, top;
};

/* Regions of one size that were given back. */
struct ArenaFree {
    ArenaFree *next;
    size_t bytes;
    void **regions;
    int64_t count, capacity;
};

static size_t rounded(size_t bytes) {
    return bytes ? (bytes + ARENA_ALIGN - 1) / ARENA_ALIGN * ARENA_ALIGN : ARENA_ALIGN;
}

Status arena_init(Arena *a, Device *device, const char *name) {
    *a = (Arena){.device = device, .name = name};
    return STATUS_OK;
}

static void free_blocks(Arena *a) {
    while (a->blocks) {
        ArenaBlock *block = a->blocks;
        a->blocks = block->older;
        device_release(a->device, block->data);
        mem_free(block);
    }
    a->current = NULL;
    a->reserved = a->placed = 0;
}

void arena_free(Arena *a) {
    free_blocks(a);
    while (a->free_lists) {
        ArenaFree *list = a->free_lists;
        a->free_lists = list->next;
        mem_free(list->regions);
        mem_free(list);
    }
    a->used = 0;
}

static ArenaFree *free_list_find(const Arena *a, size_t bytes) {
    ArenaFree *list = a->free_lists;
    while (list && list->bytes != bytes) list = list->next;
    return list;
}

static Status refuse(const Arena *a, size_t bytes) {
    size_t available = 0, total = 0;
    const double mib = 1024.0 * 1024.0;
    if (device_memory(a->device, &available, &total) != STATUS_OK) available = total = 0;
    return status_set(
        STATUS_MEMORY,
        "out of memory on %s: arena '%s' holds %.1f MiB and needs a block of %.1f MiB "
        "more, %.1f of %.1f MiB are free",
        a->device->name, a->name, (double)a->reserved / mib, (double)bytes / mib,
        (double)available / mib, (double)total / mib);
}

static Status add_block(Arena *a, size_t bytes, void *data) {
    ArenaBlock *block;
    TRY(mem_alloc((void **)&block, 1, sizeof *block, "arena block"));
    *block = (ArenaBlock){.older = a->blocks, .data = data, .size = bytes};
    if (a->blocks) a->blocks->newer = block;
    a->blocks = a->current = block;
    a->reserved += bytes;
    a->growths++;
    return STATUS_OK;
}

/* A new block of `want` bytes; when the device has too little, of `least`. */
static Status new_block(Arena *a, size_t want, size_t least) {
    void *data = NULL;
    Status status = device_alloc(a->device, want, &data);
    if (status != STATUS_OK && want > least) {
        want = least;
        status = device_alloc(a->device, want, &data);
    }
    if (status != STATUS_OK) return status == STATUS_MEMORY ? refuse(a, want) : status;
    status = add_block(a, want, data);
    if (status != STATUS_OK) device_release(a->device, data);
    return status;
}

/* For at least `bytes`. Doubling is given up before the request is, and ends at a size where a
 * block that stays half empty would be missed: a request of gigabytes must not make the next one,
 * of some bytes, take twice as much. */
static Status arena_grow(Arena *a, size_t bytes) {
    const size_t twice = a->blocks ? 2 * a->blocks->size : ARENA_FIRST_BLOCK;
    const size_t want = twice < ARENA_LARGEST_GROWTH ? twice : ARENA_LARGEST_GROWTH;
    return new_block(a, want < bytes ? bytes : want, bytes);
}

Status arena_reserve(Arena *a, size_t bytes) {
    const size_t size = rounded(bytes);
    for (const ArenaBlock *block = a->blocks; block; block = block->older)
        if (block->size >= size) return STATUS_OK;
    if (a->placed == 0) free_blocks(a);
    TRY(new_block(a, size, size));
    if (a->placed == 0) arena_reset(a);
    return STATUS_OK;
}

Status arena_take(Arena *a, size_t bytes, void **out) {
    *out = NULL;
    if (bytes > SIZE_MAX / 2) return refuse(a, bytes);
    const size_t size = rounded(bytes);
    ArenaFree *list = free_list_find(a, size);
    if (list && list->count > 0) {
        *out = list->regions[--list->count];
    } else {
        ArenaBlock *block = a->current;
        while (block && block->size - block->top < size) block = block->newer;
        if (block) {
            a->current = block;
        } else {
            TRY(arena_grow(a, size));
        }
        *out = a->current->data + a->current->top;
        a->current->top += size;
        a->placed += size;
        if (a->placed > a->extent) a->extent = a->placed;
    }
    if (size > a->largest) a->largest = size;
    a->used += size;
    if (a->used > a->peak) a->peak = a->used;
    return STATUS_OK;
}

void arena_give(Arena *a, void *region, size_t bytes) {
    if (!region) return;
    const size_t size = rounded(bytes);
    a->used -= size;
    ArenaFree *list = free_list_find(a, size);
    /* Without host memory for the note the region is lost until the next reset: no error. */
    if (!list) {
        if (mem_alloc((void **)&list, 1, sizeof *list, "arena free list") != STATUS_OK) return;
        list->bytes = size;
        list->next = a->free_lists;
        a->free_lists = list;
    }
    if (list->count == list->capacity) {
        const int64_t capacity = list->capacity ? 2 * list->capacity : 16;
        if (mem_grow((void **)&list->regions, capacity, sizeof(void *), "arena free list") !=
            STATUS_OK)
            return;
        list->capacity = capacity;
    }
    list->regions[list->count++] = region;
}

void arena_reset(Arena *a) {
    for (ArenaBlock *block = a->blocks; block; block = block->older) {
        block->top = 0;
        a->current = block; /* ends at the oldest */
    }
    for (ArenaFree *list = a->free_lists; list; list = list->next) list->count = 0;
    a->used = a->placed = 0;
}

Status arena_tensor(Arena *a, DType dtype, int rank, const int64_t *shape, Tensor *out) {
    *out = tensor_none();
    int64_t count;
    TRY(shape_count(rank, shape, &count));
    if ((uint64_t)count > SIZE_MAX / 2 / dtype_size(dtype)) return refuse(a, SIZE_MAX / 2);
    void *data;
    TRY(arena_take(a, (size_t)count * dtype_size(dtype), &data));
    *out = tensor_of(data, dtype, rank, shape);
    return STATUS_OK;
}
