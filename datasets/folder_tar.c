/* Images inside tar files. */
#include <string.h>

#include "core/file.h"
#include "core/log.h"
#include "core/memory.h"
#include "datasets/folder_internal.h"

/* Where "<split>/" stands in a member name as a whole folder: offset behind it; 0: nowhere. *depth
 * counts the folders before it. */
static size_t find_split(const char *name, const char *split, int *depth) {
    size_t length = strlen(split);
    *depth = 0;
    for (const char *part = name;; part++) {
        const char *slash = strchr(part, '/');
        if (slash == NULL) return 0;
        if ((size_t)(slash - part) == length && memcmp(part, split, length) == 0) {
            return (size_t)(slash + 1 - name);
        }
        part = slash;
        ++*depth;
    }
}

/* The folder that holds the split's images: the shallowest "<anything>/<split>/" of all members, as
 * a member name and a length. length 0: none (or split ""). A class may itself be called "train".
 */
static const char *shallowest_split(const Tar *t, const char *split, size_t *length) {
    const char *best = NULL;
    int best_depth = 0;
    *length = 0;
    for (int64_t i = 0; i < tar_count(t) && split[0] != '\0'; i++) {
        int depth;
        const char *name = tar_at(t, i)->name;
        size_t end = find_split(name, split, &depth);
        if (end == 0 || (best != NULL && depth >= best_depth)) continue;
        best = name;
        best_depth = depth;
        *length = end;
    }
    return best;
}

static Status keep_archive(Scan *s, Tar *t) {
    if (s->archive_count == s->archive_capacity) {
        int64_t capacity = s->archive_capacity > 0 ? 2 * s->archive_capacity : 16;
        void *block = s->archives;
        TRY(mem_grow(&block, capacity, sizeof(Tar *), "list of archives"));
        s->archives = block;
        s->archive_capacity = capacity;
    }
    s->archives[s->archive_count++] = t;
    return STATUS_OK;
}

/* shown = "archive.tar:" + the folder before the class. */
static Status add_members(Scan *s, const Tar *t, const char *folder, size_t length,
                          int32_t archive) {
    TextPool prefix = {0};
    char *path;
    size_t offset;
    TRY(mem_string_n(&path, folder != NULL ? folder : "", length));
    Status status = pool_add(&prefix, tar_path(t), ":", path, &offset);
    for (int64_t i = 0; status == STATUS_OK && i < tar_count(t); i++) {
        const char *name = tar_at(t, i)->name;
        if (strncmp(name, path, length) != 0) continue;
        status = scan_add(s, prefix.text, name + length, archive, i);
    }
    mem_free(prefix.text);
    mem_free(path);
    return status;
}

Status scan_tar(Scan *s, const char *path, const char *split, bool whole, bool *found) {
    Tar *t;
    size_t length;
    *found = false;
    TRY(tar_open(path, &t));
    Status status = keep_archive(s, t);
    if (status != STATUS_OK) {
        tar_close(t);
        return status;
    }
    const char *folder = shallowest_split(t, split, &length);
    if (folder == NULL && !whole && split[0] != '\0') return STATUS_OK;
    *found = true;
    return add_members(s, t, folder, length, (int32_t)(s->archive_count - 1));
}
