/* Which picture belongs to which camera: the nearest in time, at most 8 ms away. */
#include <stdlib.h>
#include <string.h>
#include <strings.h>

#include "core/memory.h"
#include "datasets/scene_internal.h"

bool scene_is_picture(const char *name) {
    const char *dot = strrchr(name, '.');
    return dot != NULL && (strcasecmp(dot, ".png") == 0 || strcasecmp(dot, ".jpg") == 0 ||
                           strcasecmp(dot, ".jpeg") == 0);
}

Status scene_folder_of(const char *name, char **out) {
    const char *slash = strrchr(name, '/');
    return mem_string_n(out, name, slash != NULL ? (size_t)(slash - name) + 1 : 0);
}

typedef struct Picture {
    int64_t time, file;
} Picture;

/* "46012633.jpg"; false when the name is no time. */
static bool picture_time(const char *name, int64_t *time) {
    size_t n = strspn(name, "0123456789");
    if (n == 0 || n > 18 || name[n] != '.') return false;
    *time = strtoll(name, NULL, 10);
    return true;
}

static int by_time(const void *a, const void *b) {
    const Picture *x = a, *y = b;
    if (x->time != y->time) return x->time < y->time ? -1 : 1;
    return x->file < y->file ? -1 : x->file > y->file;
}

static int64_t distance(int64_t a, int64_t b) {
    return a > b ? a - b : b - a;
}

/* Position of the picture nearest to `time`, the earlier of two equally near; -1: none is. */
static int64_t nearest(const Picture *list, int64_t count, int64_t time) {
    int64_t low = 0, high = count;
    while (low < high) {
        int64_t middle = low + (high - low) / 2;
        if (list[middle].time < time)
            low = middle + 1;
        else
            high = middle;
    }
    int64_t best = low;
    if (low == count || (low > 0 && time - list[low - 1].time <= list[low].time - time))
        best = low - 1;
    if (best < 0 || distance(list[best].time, time) > SCENE_MATCH_US) return -1;
    while (best > 0 && list[best - 1].time == list[best].time) best--; /* .jpg and .png: one */
    return best;
}

static void match(Scene *s, const Picture *list, int64_t count, uint8_t *used) {
    int64_t taken = 0;
    for (int64_t i = 0; i < s->count; i++) {
        SceneFrame *f = &s->frames[i];
        int64_t at = nearest(list, count, f->time);
        if (at < 0) {
            s->missing++;
            continue;
        }
        f->image = list[at].file;
        f->late = list[at].time - f->time;
        taken += !used[at];
        used[at] = 1;
    }
    s->extra += count - taken;
}

Status scene_match_times(Scene *s, const SceneFiles *files, int32_t root, const char *folder) {
    int64_t first, total = scene_files_below(files, root, folder, &first), count = 0;
    void *block, *used;
    TRY(mem_alloc(&block, total, sizeof(Picture), "pictures of a scene"));
    Picture *list = block;
    for (int64_t i = first; i < first + total; i++) {
        const char *name = scene_file_name(files, i) + strlen(folder);
        if (!scene_is_picture(name)) continue;
        if (picture_time(name, &list[count].time))
            list[count++].file = i;
        else
            s->extra++;
    }
    if (count > 1) qsort(list, (size_t)count, sizeof(Picture), by_time);
    Status status = mem_alloc(&used, count, 1, "pictures of a scene");
    if (status == STATUS_OK) {
        match(s, list, count, used);
        mem_free(used);
    }
    mem_free(block);
    return status;
}
