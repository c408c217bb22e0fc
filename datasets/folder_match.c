/* Class folders of a scan against a class list: labels, and the traps that give wrong ones. */
#include <stdlib.h>
#include <string.h>

#include "core/file.h"
#include "core/log.h"
#include "core/memory.h"
#include "datasets/folder_internal.h"

enum { SHOWN = 64, MAX_NAMED = 5 };

/* Folder names of disk and archives, one entry for each folder and each found file's class. */
static Status folder_names(const Scan *s, ClassList *out) {
    void *block;
    TRY(mem_alloc(&block, s->folder_count + s->count, sizeof(char *), "class names"));
    *out = (ClassList){.names = block};
    for (int64_t i = 0; i < s->folder_count; i++) {
        TRY(mem_string(&out->names[out->count], s->pool.text + s->folders[i]));
        out->count++;
    }
    const char *last = NULL;
    for (int64_t i = 0; i < s->count;
         i++) { /* sorted by path: one string for each run of a class */
        const char *inside = scan_inside(s, &s->files[i]);
        size_t length = class_length(inside);
        if (length == 0 || (last != NULL && strncmp(last, inside, length + 1) == 0)) continue;
        last = inside;
        TRY(mem_string_n(&out->names[out->count], inside, length));
        out->count++;
    }
    return STATUS_OK;
}

/* "'a', 'b', 'c' and 4 more" of those names that `x` does not know. */
static int64_t unknown_names(const ClassList *names, const ClassIndex *x, char *text, size_t size) {
    int64_t unknown = 0;
    size_t used = 0;
    text[0] = '\0';
    for (int64_t i = 0; i < names->count; i++) {
        const char *name = names->names[i];
        if (class_find(x, name, strlen(name)) >= 0) continue;
        char shown[SHOWN];
        if (unknown++ >= MAX_NAMED || used >= size) continue;
        used += (size_t)snprintf(text + used, size - used, "%s'%s'", unknown > 1 ? ", " : "",
                                 text_printable(name, shown, sizeof shown));
    }
    if (unknown > MAX_NAMED && used < size) {
        snprintf(text + used, size - used, " and %lld more", (long long)(unknown - MAX_NAMED));
    }
    return unknown;
}

/* Folders that the class list does not have would get wrong labels or none: an error. Classes
 * without a folder are only reported. */
static Status match_folders(const Scan *s, const ClassList *folders, const ClassList *classes,
                            const ClassIndex *index) {
    char text[512], shown[300];
    text_printable(s->place, shown, sizeof shown);
    int64_t unknown = unknown_names(folders, index, text, sizeof text);
    if (unknown > 0) {
        bool numbers = class_names_are_numbers(folders) && !class_names_are_numbers(classes);
        return status_set(STATUS_DATA,
                          "%s: %lld of %lld class folders are not among the %lld classes ('%s', "
                          "...): %s%s",
                          shown, (long long)unknown, (long long)folders->count,
                          (long long)classes->count, classes->names[0], text,
                          numbers ? "; numbers do not say which class they mean (devkit ids are in "
                                    "another order): name the folders like the classes"
                                  : "");
    }
    ClassIndex own;
    TRY(class_index_new(folders, &own));
    int64_t missing = unknown_names(classes, &own, text, sizeof text);
    class_index_free(&own);
    if (missing > 0) {
        log_warn("%s: %lld of %lld classes have no folder: %s", shown, (long long)missing,
                 (long long)classes->count, text);
    }
    return STATUS_OK;
}

/* Labels, and how many classes stay empty; files are sorted by path, so a class comes in one run.
 */
static Status label_files(Scan *s, const ClassIndex *index) {
    void *block;
    int64_t kept = 0, label = -1, used = 0;
    const char *last = NULL;
    TRY(mem_alloc(&block, index->list->count, 1, "class use"));
    uint8_t *seen = block;
    for (int64_t i = 0; i < s->count; i++) {
        const char *inside = scan_inside(s, &s->files[i]);
        size_t length = class_length(inside);
        if (length == 0) { /* an image beside the class folders belongs to no class */
            s->report.other_files++;
            continue;
        }
        if (last == NULL || strncmp(last, inside, length + 1) != 0) {
            label = class_find(index, inside, length);
            last = inside;
        }
        s->files[kept] = s->files[i];
        s->files[kept++].label = label;
        used += !seen[label];
        seen[label] = 1;
    }
    s->count = kept;
    s->report.classes = index->list->count;
    s->report.empty_classes = index->list->count - used;
    mem_free(seen);
    return STATUS_OK;
}

/* `folders` in byte order, each once. */
static Status label_with(Scan *s, const DataConfig *c, const ClassList *folders,
                         ClassList *classes) {
    ClassIndex index;
    if (classes->count == 0) {
        TRY(classes_from_names(c, (const char *const *)folders->names, folders->count, classes));
    }
    TRY(class_index_new(classes, &index));
    Status status = match_folders(s, folders, classes, &index);
    if (status == STATUS_OK) status = label_files(s, &index);
    class_index_free(&index);
    if (status == STATUS_OK) warn_empty_classes(s);
    return status;
}

Status classes_from_folders(Scan *s, const DataConfig *c, ClassList *classes) {
    ClassList names = {0}, folders = {0};
    bool fresh = classes->count == 0;
    Status status = folder_names(s, &names);
    if (status == STATUS_OK) {
        status = class_names_unique((const char *const *)names.names, names.count, &folders);
    }
    class_list_free(&names);
    if (status == STATUS_OK) status = label_with(s, c, &folders, classes);
    class_list_free(&folders);
    if (status != STATUS_OK && fresh) class_list_free(classes);
    return status;
}
