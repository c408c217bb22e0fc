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
    if (status == STATUS_OK && shard_has_labels(t, path, length)) {
        status = shard_add(s, t, prefix.text, path, length, archive);
        mem_free(prefix.text);
        mem_free(path);
        return status;
    }
    for (int64_t i = 0; status == STATUS_OK && i < tar_count(t); i++) {
        const char *name = tar_at(t, i)->name;
        if (strncmp(name, path, length) != 0) continue;
        status = scan_add(s, prefix.text, name + length, archive, i);
    }
    mem_free(prefix.text);
    mem_free(path);
    return status;
}

/* ---- tars in a tar ---- */

/* Length of "<class>" in "<class>.tar" at the top of an archive; 0: something else. */
static size_t inner_class(const char *name) {
    size_t length = strlen(name);
    bool tar = length > 4 && strcmp(name + length - 4, ".tar") == 0;
    return tar && strchr(name, '/') == NULL && name[0] != '.' ? length - 4 : 0;
}

static bool holds_tars(const Tar *t) {
    for (int64_t i = 0; i < tar_count(t); i++)
        if (inner_class(tar_at(t, i)->name) == 0) return false;
    return tar_count(t) > 0;
}

/* The members of `inner` are those of the folder `class`. */
static Status add_class(Scan *s, const Tar *inner, const char *prefix, const char *class,
                        int32_t archive) {
    Status status = scan_add_folder(s, class);
    for (int64_t i = 0; status == STATUS_OK && i < tar_count(inner); i++) {
        TextPool inside = {0};
        size_t offset;
        status = pool_add(&inside, class, "/", tar_at(inner, i)->name, &offset);
        if (status == STATUS_OK) status = scan_add(s, prefix, inside.text, archive, i);
        mem_free(inside.text);
    }
    return status;
}

static Status add_inner(Scan *s, const char *prefix, const TarMember *m) {
    TextPool shown = {0};
    char *class;
    size_t offset;
    Tar *inner;
    Status status = pool_add(&shown, prefix, m->name, "", &offset);
    if (status == STATUS_OK) status = tar_parse(m->data, m->size, shown.text, &inner);
    mem_free(shown.text);
    if (status != STATUS_OK) return status;
    status = keep_archive(s, inner);
    if (status != STATUS_OK) {
        tar_close(inner);
        return status;
    }
    TRY(mem_string_n(&class, m->name, inner_class(m->name)));
    status = add_class(s, inner, prefix, class, (int32_t)(s->archive_count - 1));
    mem_free(class);
    return status;
}

/* The outer archive stays open: the inner ones are read in its memory. */
static Status add_inner_tars(Scan *s, const Tar *t) {
    TextPool prefix = {0};
    size_t offset;
    Status status = pool_add(&prefix, tar_path(t), ":", "", &offset);
    for (int64_t i = 0; status == STATUS_OK && i < tar_count(t); i++)
        status = add_inner(s, prefix.text, tar_at(t, i));
    mem_free(prefix.text);
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
    if (folder == NULL && holds_tars(t)) return add_inner_tars(s, t);
    return add_members(s, t, folder, length, (int32_t)(s->archive_count - 1));
}

Status tar_has_split(const char *path, const char *split, bool *found) {
    Tar *t;
    size_t length;
    TRY(tar_open(path, &t));
    shallowest_split(t, split, &length);
    tar_close(t);
    *found = length > 0;
    return STATUS_OK;
}
