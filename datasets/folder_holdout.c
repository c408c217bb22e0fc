/* A validation set out of the training images, where there is none of its own ("10%" as the split).
 * An image's side depends on its name below the split only, so that images which are added later
 * move no other one: what was trained on is never validated on. Only in a class that would leave a
 * side empty, one image depends on which others there are. */
#include <stdlib.h>
#include <string.h>

#include "core/crc32c.h"
#include "core/memory.h"
#include "datasets/folder_internal.h"

double data_holdout(const char *split) {
    char *end;
    if (split[0] < '0' || split[0] > '9') return 0;
    const double percent = strtod(split, &end);
    const bool fits = end[0] == '%' && end[1] == '\0' && percent > 0 && percent < 100;
    return fits ? percent / 100 : 0;
}

static uint32_t draw_of(const Scan *s, int64_t i) {
    const char *inside = scan_inside(s, &s->files[i]);
    return crc32c(0, inside, strlen(inside));
}

/* The files [from, to) of one class. Both sides get one at least, of two images and more: the one
 * with the smallest draw is held back, the one with the largest trained on. */
static void divide_class(const Scan *s, int64_t from, int64_t to, double share, uint8_t *held) {
    int64_t least = from, most = from;
    uint32_t least_draw = UINT32_MAX, most_draw = 0;
    for (int64_t i = from; i < to; i++) {
        const uint32_t draw = draw_of(s, i);
        held[i] = (double)draw < share * 4294967296.0;
        if (draw < least_draw) least = i, least_draw = draw;
        if (draw >= most_draw) most = i, most_draw = draw;
    }
    if (to - from > 1) held[least] = 1;
    held[most] = 0;
}

Status scan_divide(Scan *s, double share, bool keep_held) {
    void *block;
    int64_t kept = 0;
    TRY(mem_alloc(&block, s->count, 1, "choice of samples"));
    uint8_t *held = block;
    for (int64_t from = 0, to; from < s->count; from = to) {
        for (to = from + 1; to < s->count && s->files[to].label == s->files[from].label;) to++;
        divide_class(s, from, to, share, held);
    }
    for (int64_t i = 0; i < s->count; i++)
        if (held[i] == keep_held) s->files[kept++] = s->files[i];
    s->count = kept;
    mem_free(block);
    return STATUS_OK;
}
