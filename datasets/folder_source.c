/* Where a split lies below data.root. */
#include <dirent.h>
#include <errno.h>
#include <fnmatch.h>
#include <stdlib.h>
#include <string.h>

#include "core/file.h"
#include "core/memory.h"
#include "datasets/folder_internal.h"

enum { SHOWN = 300, MAX_LISTED = 8, MAX_PARTS = 4096 };

/* Names in a folder, sorted; for `<split>-*.tar` and for messages. */
typedef struct Listing {
    char **names;
    int64_t count, capacity;
} Listing;

static void listing_free(Listing *l) {
    for (int64_t i = 0; i < l->count; i++) mem_free(l->names[i]);
    mem_free(l->names);
    *l = (Listing){0};
}

static int compare_names(const void *a, const void *b) {
    return strcmp(*(char *const *)a, *(char *const *)b);
}

static Status listing_add(Listing *l, const char *name) {
    if (l->count == l->capacity) {
        void *block = l->names;
        int64_t capacity = l->capacity > 0 ? 2 * l->capacity : 32;
        TRY(mem_grow(&block, capacity, sizeof(char *), "list of a folder"));
        l->names = block;
        l->capacity = capacity;
    }
    TRY(mem_string(&l->names[l->count], name));
    l->count++;
    return STATUS_OK;
}

/* Entries that are not hidden and match `pattern` (NULL: all). */
static Status listing_read(const char *path, const char *pattern, Listing *l) {
    Status s = STATUS_OK;
    *l = (Listing){0};
    DIR *dir = opendir(path);
    if (dir == NULL) {
        char shown[SHOWN];
        return status_errno("cannot open folder %s", text_printable(path, shown, sizeof shown));
    }
    for (const struct dirent *e; s == STATUS_OK && (e = readdir(dir)) != NULL;) {
        if (e->d_name[0] == '.') continue;
        if (pattern == NULL || fnmatch(pattern, e->d_name, 0) == 0) s = listing_add(l, e->d_name);
    }
    closedir(dir);
    if (s != STATUS_OK) {
        listing_free(l);
        return s;
    }
    if (l->count > 1) qsort(l->names, (size_t)l->count, sizeof(char *), compare_names);
    return STATUS_OK;
}

/* "a, b, c, ... (12 in all)", printable. */
static void listing_text(const Listing *l, char *text, size_t size) {
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

static bool has_compressed(const Listing *l) {
    for (int64_t i = 0; i < l->count; i++) {
        if (fnmatch("*.tar.gz", l->names[i], 0) == 0 || fnmatch("*.tgz", l->names[i], 0) == 0) {
            return true;
        }
    }
    return false;
}

static Status no_split(const char *root, const char *split) {
    Listing l;
    char text[400], shown[SHOWN];
    TRY(listing_read(root, NULL, &l));
    listing_text(&l, text, sizeof text);
    const char *hint = has_compressed(&l)
                           ? "compressed archives: gunzip them first"
                           : "class folders directly in the root: set the split name to nothing";
    listing_free(&l);
    return status_set(STATUS_DATA,
                      "%s: no folder '%s', no %s.tar and no %s-*.tar in it; it holds: %s (%s)",
                      text_printable(root, shown, sizeof shown), split, split, split, text, hint);
}

/* <split>.tar and <split>-*.tar in a folder. */
static Status scan_split_tars(Scan *s, const char *root, const char *split, bool *any) {
    Listing l = {0};
    char *one = NULL, *pattern = NULL;
    size_t offset;
    TextPool text = {0};
    Status status = pool_add(&text, split, "-*.tar", "", &offset);
    if (status == STATUS_OK) status = pool_add(&text, split, ".tar", "", &offset);
    if (status == STATUS_OK) {
        pattern = text.text;
        one = text.text + offset;
        status = listing_read(root, NULL, &l);
    }
    for (int64_t i = 0; status == STATUS_OK && i < l.count; i++) {
        if (strcmp(l.names[i], one) != 0 && fnmatch(pattern, l.names[i], 0) != 0) continue;
        char *path;
        bool found;
        status = path_join(&path, root, l.names[i]);
        if (status == STATUS_OK) status = scan_tar(s, path, split, true, &found);
        mem_free(path);
        *any = true;
    }
    listing_free(&l);
    mem_free(text.text);
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
        if (status == STATUS_OK && split[0] == '\0') status = check_not_splits(s, root);
        return status;
    }
    TRY(scan_split_tars(s, root, split, &any));
    return any ? mem_string(&s->place, root) : no_split(root, split);
}

static Status no_split_in_tars(const Scan *s, const char *root, const char *split) {
    Listing tops = {0};
    Status status = STATUS_OK;
    for (int64_t a = 0; a < s->archive_count; a++) {
        for (int64_t i = 0; status == STATUS_OK && i < tar_count(s->archives[a]); i++) {
            const char *name = tar_at(s->archives[a], i)->name;
            size_t length = strcspn(name, "/");
            const char *last = tops.count > 0 ? tops.names[tops.count - 1] : "";
            bool same = strlen(last) == length && memcmp(last, name, length) == 0;
            if (same || tops.count > 100) continue;
            char *top;
            status = mem_string_n(&top, name, length);
            if (status == STATUS_OK) status = listing_add(&tops, top);
            mem_free(top);
        }
    }
    char text[400], shown[SHOWN];
    listing_text(&tops, text, sizeof text);
    listing_free(&tops);
    if (status != STATUS_OK) return status;
    return status_set(STATUS_DATA, "%s: no folder '%s' inside; it holds: %s",
                      text_printable(root, shown, sizeof shown), split, text);
}

/* Comma-separated parts of one tree; most often one tar. */
static Status scan_parts(Scan *s, const DataConfig *c, const char *split) {
    char *list;
    bool any = false, found;
    TRY(mem_string(&list, c->root));
    Status status = STATUS_OK;
    char *rest = NULL;
    for (char *part = strtok_r(list, ",", &rest); status == STATUS_OK && part != NULL;
         part = strtok_r(NULL, ",", &rest)) {
        if (file_is_folder(part)) {
            char shown[SHOWN];
            status = status_set(
                STATUS_USAGE, "%s: a folder in a list of tar files; give one folder, or tar files",
                text_printable(part, shown, sizeof shown));
            break;
        }
        status = scan_tar(s, part, split, false, &found);
        any = any || found;
    }
    mem_free(list);
    if (status != STATUS_OK) return status;
    return any ? mem_string(&s->place, c->root) : no_split_in_tars(s, c->root, split);
}

Status scan_source(Scan *s, const DataConfig *c, const char *split) {
    if (c->root[0] == '\0') {
        return status_set(STATUS_USAGE, "no data set given (data.root, --data-dir)");
    }
    if (strchr(split, '/') != NULL || split[0] == '.') {
        return status_set(STATUS_USAGE, "split '%s' is no plain folder name", split);
    }
    if (file_is_folder(c->root)) return scan_root_folder(s, c, c->root, split);
    bool one = file_exists(c->root);
    if (one && strchr(c->root, ',') != NULL) { /* a name with commas in it */
        bool found;
        TRY(scan_tar(s, c->root, split, false, &found));
        return found ? mem_string(&s->place, c->root) : no_split_in_tars(s, c->root, split);
    }
    return scan_parts(s, c, split);
}
