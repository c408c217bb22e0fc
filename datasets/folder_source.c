/* Where a split lies below data.root. */
#include <dirent.h>
#include <errno.h>
#include <fnmatch.h>
#include <stdlib.h>
#include <string.h>

#include "core/file.h"
#include "core/memory.h"
#include "datasets/folder_internal.h"

enum { SHOWN = 300, MAX_LISTED = 8 };

static int compare_names(const void *a, const void *b) {
    return strcmp(*(char *const *)a, *(char *const *)b);
}

/* Entries that are not hidden and match `pattern` (NULL: all). */
static Status listing_read(const char *path, const char *pattern, NameList *l) {
    Status s = STATUS_OK;
    *l = (NameList){0};
    DIR *dir = opendir(path);
    if (dir == NULL) {
        char shown[SHOWN];
        return status_errno("cannot open folder %s", text_printable(path, shown, sizeof shown));
    }
    for (const struct dirent *e; s == STATUS_OK && (e = readdir(dir)) != NULL;) {
        if (e->d_name[0] == '.') continue;
        if (pattern == NULL || fnmatch(pattern, e->d_name, 0) == 0)
            s = name_list_add(l, e->d_name, strlen(e->d_name));
    }
    closedir(dir);
    if (s != STATUS_OK) {
        name_list_free(l);
        return s;
    }
    if (l->count > 1) qsort(l->names, (size_t)l->count, sizeof(char *), compare_names);
    return STATUS_OK;
}

/* "a, b, c, ... (12 in all)", printable. */
static void listing_text(const NameList *l, char *text, size_t size) {
    size_t used = 0;
    text[0] = '\0';
    for (int64_t i = 0; i < l->count && i < MAX_LISTED && used < size; i++) {
        char shown[64];
        text_printable(l->names[i], shown, sizeof shown);
        used += (size_t)snprintf(text + used, size - used, "%s%s", i > 0 ? ", " : "", shown);
    }
    if (l->count > MAX_LISTED && used < size) {
        snprintf(text + used, size - used, ", ... (%lld in all)", (long long)l->count);
    }
    if (l->count == 0) snprintf(text, size, "nothing");
}

static bool has_compressed(const NameList *l) {
    for (int64_t i = 0; i < l->count; i++) {
        if (fnmatch("*.tar.gz", l->names[i], 0) == 0 || fnmatch("*.tgz", l->names[i], 0) == 0) {
            return true;
        }
    }
    return false;
}

static bool has_pictures(const NameList *l) {
    for (int64_t i = 0; i < l->count; i++)
        if (has_image_suffix(l->names[i])) return true;
    return false;
}

static Status no_split(const char *root, const char *split) {
    NameList l;
    char text[400], shown[SHOWN];
    TRY(listing_read(root, NULL, &l));
    listing_text(&l, text, sizeof text);
    const char *hint = "class folders directly in the root: set the split name to nothing, "
                       "--train-split '' --val-split 10%";
    if (has_compressed(&l))
        hint = "compressed archives: gunzip them first";
    else if (has_pictures(&l))
        hint = "pictures are expected in a folder for each class; where those lie directly in the "
               "root: --train-split '' --val-split 10%";
    name_list_free(&l);
    return status_set(STATUS_DATA,
                      "%s: no folder '%s' and no tar file named after it in it; it holds: %s (%s)",
                      text_printable(root, shown, sizeof shown), split, text, hint);
}

/* The tar files in a folder whose names hold the split, all of them for NULL. */
static Status scan_tars_of(Scan *s, const char *root, const char *split, bool *any) {
    NameList l = {0};
    Status status = listing_read(root, "*.tar", &l);
    for (int64_t i = 0; status == STATUS_OK && i < l.count; i++) {
        char *path;
        bool found;
        if (split != NULL && !part_names_split(l.names[i], split)) continue;
        status = path_join(&path, root, l.names[i]);
        if (status != STATUS_OK) break;
        status = scan_tar(s, path, split != NULL ? split : "", true, &found);
        mem_free(path);
        *any = true;
    }
    name_list_free(&l);
    return status;
}

/* Folders where a split is looked for, in this order; the last is Kaggle's ImageNet tree. */
static const char *const layouts[] = {"%s", "ILSVRC/Data/CLS-LOC/%s", "Data/CLS-LOC/%s"};

static Status find_split_folder(const char *root, const char *split, char **out) {
    *out = NULL;
    if (split[0] == '\0') return mem_string(out, root);
    for (size_t i = 0; i < sizeof layouts / sizeof layouts[0]; i++) {
        char below[CONFIG_TEXT + 64];
        snprintf(below, sizeof below, layouts[i], split);
        TRY(path_join(out, root, below));
        if (file_is_folder(*out)) return STATUS_OK;
        mem_free(*out);
        *out = NULL;
    }
    return STATUS_OK;
}

/* With split "", folders called train and val are surely splits, not classes. */
static Status check_not_splits(const Scan *s, const char *root) {
    int64_t splits = 0;
    for (int64_t i = 0; i < s->folder_count; i++) {
        const char *name = s->pool.text + s->folders[i];
        splits += strcmp(name, "train") == 0 || strcmp(name, "val") == 0 ||
                  strcmp(name, "validation") == 0 || strcmp(name, "test") == 0;
    }
    if (splits < 2 || splits != s->folder_count) return STATUS_OK;
    char shown[SHOWN];
    return status_set(STATUS_DATA,
                      "%s: its folders are splits (train, val, ...), not classes: name the split",
                      text_printable(root, shown, sizeof shown));
}

static Status scan_root_folder(Scan *s, const DataConfig *c, const char *root, const char *split) {
    char *folder;
    bool any = false;
    TRY(find_split_folder(root, split, &folder));
    if (folder == NULL && strcmp(split, "val") == 0) {
        TRY(find_split_folder(root, "validation", &folder));
    }
    if (folder != NULL) {
        Status status = scan_folder(s, folder, c->follow_symlinks);
        s->place = folder;
        if (status == STATUS_OK && s->count == 0 && split[0] != '\0')
            status = scan_tars_of(s, folder, NULL, &any); /* <split>/0000.tar, ... */
        if (status == STATUS_OK && split[0] == '\0') status = check_not_splits(s, root);
        return status;
    }
    TRY(scan_tars_of(s, root, split, &any));
    return any ? mem_string(&s->place, root) : no_split(root, split);
}

static bool has_name(const NameList *l, const char *name, size_t length) {
    for (int64_t i = 0; i < l->count; i++)
        if (strncmp(l->names[i], name, length) == 0 && l->names[i][length] == '\0') return true;
    return false;
}

static Status no_split_in_tars(const Scan *s, const char *root, const char *split) {
    NameList tops = {0};
    Status status = STATUS_OK;
    for (int64_t a = 0; a < s->archive_count; a++) {
        for (int64_t i = 0; status == STATUS_OK && i < tar_count(s->archives[a]); i++) {
            const char *name = tar_at(s->archives[a], i)->name;
            size_t length = strcspn(name, "/");
            if (tops.count > 100 || has_name(&tops, name, length)) continue;
            status = name_list_add(&tops, name, length);
        }
    }
    char text[400], shown[SHOWN];
    listing_text(&tops, text, sizeof text);
    name_list_free(&tops);
    if (status != STATUS_OK) return status;
    return status_set(
        STATUS_DATA,
        "%s: no folder '%s' inside; it holds: %s; and its name is not that of the split",
        text_printable(root, shown, sizeof shown), split, text);
}

/* Parts of one tree; most often one tar. */
static Status scan_parts(Scan *s, const char *root, const NameList *parts, const char *split) {
    bool any = false;
    for (int64_t i = 0; i < parts->count; i++) {
        const char *part = parts->names[i];
        bool found;
        if (file_is_folder(part)) {
            char shown[SHOWN];
            return status_set(STATUS_USAGE,
                              "%s: a folder in a list of tar files; give one folder, or tar files",
                              text_printable(part, shown, sizeof shown));
        }
        TRY(scan_tar(s, part, split, part_names_split(part, split), &found));
        any = any || found;
    }
    return any ? mem_string(&s->place, root) : no_split_in_tars(s, root, split);
}

Status scan_source(Scan *s, const DataConfig *c, const char *split) {
    if (c->root[0] == '\0') {
        return status_set(STATUS_USAGE, "no data set given (data.root, --data-dir)");
    }
    if (strchr(split, '/') != NULL || split[0] == '.') {
        return status_set(STATUS_USAGE, "split '%s' is no plain folder name", split);
    }
    if (file_is_folder(c->root)) return scan_root_folder(s, c, c->root, split);
    NameList parts;
    TRY(root_parts(c->root, &parts));
    Status status = scan_parts(s, c->root, &parts, split);
    name_list_free(&parts);
    return status;
}

static Status folder_has_split(const char *root, const char *split, bool *found) {
    NameList l;
    char *folder;
    TRY(listing_read(root, "*.tar", &l));
    for (int64_t i = 0; !*found && i < l.count; i++) *found = part_names_split(l.names[i], split);
    name_list_free(&l);
    TRY(find_split_folder(root, split, &folder));
    *found = *found || folder != NULL;
    mem_free(folder);
    if (*found || strcmp(split, "val") != 0) return STATUS_OK;
    return folder_has_split(root, "validation", found);
}

static Status parts_have_split(const char *root, const char *split, bool *found) {
    NameList parts;
    TRY(root_parts(root, &parts));
    Status s = STATUS_OK;
    for (int64_t i = 0; s == STATUS_OK && !*found && i < parts.count; i++) {
        *found = part_names_split(parts.names[i], split);
        if (!*found) s = tar_has_split(parts.names[i], split, found);
    }
    name_list_free(&parts);
    return s;
}

Status dataset_has_split(const char *root, const char *split, bool *found) {
    *found = data_holdout(split) > 0;
    if (*found) return STATUS_OK;
    Status s = file_is_folder(root) ? folder_has_split(root, split, found)
                                    : parts_have_split(root, split, found);
    if (s == STATUS_OK || s == STATUS_MEMORY) return s;
    *found = true;
    return STATUS_OK;
}
