/* Arenas: bump allocation in blocks that double in size. What was given back and lies below a
 * block's top is a gap; neighbouring gaps are one, and the smallest that fits takes a request.
 *
 * Placement is a function of the sequence of requests and of the blocks alone: gaps first, then the
 * tops from the oldest block on, so that a block is begun only where one had to be made the first
 * time. A sequence that repeats after arena_reset() gets the same addresses and needs no new block.
 */
#include <string.h>

#include "core/memory.h"
#include "kernels/device.h"

#define ARENA_ALIGN          ((size_t)256)
#define ARENA_FIRST_BLOCK    ((size_t)16 << 20)
#define ARENA_LARGEST_GROWTH ((size_t)256 << 20)

/* Bytes [at, at + bytes) of a block. */
typedef struct Gap {
    size_t at, bytes;
} Gap;

struct ArenaBlock {
    ArenaBlock *older, *newer;
    char *data;
    size_t size, top;
    Gap *gaps; /* by address, none beside another or at the top */
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
        mem_free(block->gaps);
        mem_free(block);
    }
    a->oldest = NULL;
    a->reserved = a->placed = 0;
}

void arena_free(Arena *a) {
    free_blocks(a);
    a->used = 0;
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
    if (a->blocks)
        a->blocks->newer = block;
    else
        a->oldest = block;
    a->blocks = block;
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

/* Moves the top and counts what is placed. */
static void set_top(Arena *a, ArenaBlock *block, size_t top) {
    a->placed = a->placed - block->top + top;
    block->top = top;
    if (a->placed > a->extent) a->extent = a->placed;
}

/* The smallest gap of at least `size`, the first of equals; NULL when there is none. */
static Gap *gap_find(const Arena *a, size_t size, ArenaBlock **in) {
    Gap *best = NULL;
    for (ArenaBlock *block = a->oldest; block; block = block->newer)
        for (int64_t i = 0; i < block->count; i++) {
            Gap *gap = &block->gaps[i];
            if (gap->bytes < size || (best && gap->bytes >= best->bytes)) continue;
            best = gap;
            *in = block;
        }
    return best;
}

static void gap_remove(ArenaBlock *block, int64_t i) {
    block->count--;
    memmove(&block->gaps[i], &block->gaps[i + 1], (size_t)(block->count - i) * sizeof(Gap));
}

Status arena_take(Arena *a, size_t bytes, void **out) {
    *out = NULL;
    if (bytes > SIZE_MAX / 2) return refuse(a, bytes);
    const size_t size = rounded(bytes);
    ArenaBlock *block = NULL;
    Gap *gap = gap_find(a, size, &block);
    if (gap) {
        *out = block->data + gap->at;
        gap->at += size;
        gap->bytes -= size;
        if (gap->bytes == 0) gap_remove(block, gap - block->gaps);
    } else {
        for (block = a->oldest; block && block->size - block->top < size;) block = block->newer;
        if (!block) {
            TRY(arena_grow(a, size));
            block = a->blocks;
        }
        *out = block->data + block->top;
        set_top(a, block, block->top + size);
    }
    if (size > a->largest) a->largest = size;
    a->used += size;
    if (a->used > a->peak) a->peak = a->used;
    return STATUS_OK;
}

/* Puts a gap in its place, joined with its neighbours. Without host memory for the note the region
 * is lost until the next reset: no error. */
static void gap_add(ArenaBlock *block, Gap gap) {
    int64_t i = block->count;
    while (i > 0 && block->gaps[i - 1].at > gap.at) i--;
    const bool before = i > 0 && block->gaps[i - 1].at + block->gaps[i - 1].bytes == gap.at;
    const bool behind = i < block->count && gap.at + gap.bytes == block->gaps[i].at;
    if (before) {
        block->gaps[i - 1].bytes += gap.bytes + (behind ? block->gaps[i].bytes : 0);
        if (behind) gap_remove(block, i);
    } else if (behind) {
        block->gaps[i].at = gap.at;
        block->gaps[i].bytes += gap.bytes;
    } else {
        if (block->count == block->capacity) {
            const int64_t capacity = block->capacity ? 2 * block->capacity : 16;
            if (mem_grow((void **)&block->gaps, capacity, sizeof(Gap), "gaps of an arena") !=
                STATUS_OK)
                return;
            block->capacity = capacity;
        }
        memmove(&block->gaps[i + 1], &block->gaps[i], (size_t)(block->count - i) * sizeof(Gap));
        block->gaps[i] = gap;
        block->count++;
    }
}

void arena_give(Arena *a, void *region, size_t bytes) {
    if (!region) return;
    const size_t size = rounded(bytes);
    a->used -= size;
    ArenaBlock *block = a->oldest;
    while (block && !((char *)region >= block->data && (char *)region < block->data + block->size))
        block = block->newer;
    if (!block) return;
    gap_add(block, (Gap){(size_t)((char *)region - block->data), size});
    const Gap *last = block->count > 0 ? &block->gaps[block->count - 1] : NULL;
    if (!last || last->at + last->bytes != block->top) return;
    set_top(a, block, last->at);
    block->count--;
}

void arena_reset(Arena *a) {
    for (ArenaBlock *block = a->oldest; block; block = block->newer) {
        block->top = 0;
        block->count = 0;
    }
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
