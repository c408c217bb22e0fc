/* Class lists: order, matching of folders against them, readable names. */
#include <ctype.h>
#include <stdlib.h>
#include <string.h>

#include "core/file.h"
#include "core/log.h"
#include "core/memory.h"
#include "datasets/folder_internal.h"

enum { SHOWN = 64, MAX_DIGITS = 9, MAX_CLASSES = 1000000 /* of model.classes */ };

void class_list_free(ClassList *c) {
    for (int64_t i = 0; i < c->count; i++) {
        mem_free(c->names[i]);
        if (c->readable != NULL) mem_free(c->readable[i]);
    }
    mem_free(c->names);
    mem_free(c->readable);
    *c = (ClassList){0};
}

static Status copy_strings(char *const *from, int64_t count, char ***out) {
    void *block;
    TRY(mem_alloc(&block, count, sizeof(char *), "class names"));
    *out = block;
    for (int64_t i = 0; i < count; i++) TRY(mem_string(&(*out)[i], from[i]));
    return STATUS_OK;
}

Status class_list_copy(ClassList *dst, const ClassList *src) {
    *dst = (ClassList){.count = src->count};
    if (src->count == 0) return STATUS_OK;
    /* Fresh arrays are zeroed, so a list that is half filled can be freed. */
    Status s = copy_strings(src->names, src->count, &dst->names);
    if (s == STATUS_OK && src->readable != NULL) {
        s = copy_strings(src->readable, src->count, &dst->readable);
    }
    if (s == STATUS_OK) return s;
    if (dst->names == NULL) dst->count = 0;
    class_list_free(dst);
    return s;
}

size_t class_length(const char *inside) {
    const char *slash = strchr(inside, '/');
    return slash != NULL ? (size_t)(slash - inside) : 0;
}

static size_t digits_at(const char *s) {
    size_t n = 0;
    while (isdigit((unsigned char)s[n])) n++;
    return n;
}

/* Numbers of any length by value; leading zeros do not count. */
static int compare_numbers(const char *a, size_t la, const char *b, size_t lb) {
    while (la > 1 && *a == '0') a++, la--;
    while (lb > 1 && *b == '0') b++, lb--;
    if (la != lb) return la < lb ? -1 : 1;
    return memcmp(a, b, la);
}

int class_compare_natural(const char *a, const char *b) {
    const char *x = a, *y = b;
    while (*x != '\0' && *y != '\0') {
        size_t dx = digits_at(x), dy = digits_at(y);
        if (dx > 0 && dy > 0) {
            int order = compare_numbers(x, dx, y, dy);
            if (order != 0) return order;
            x += dx;
            y += dy;
            continue;
        }
        int cx = tolower((unsigned char)*x++), cy = tolower((unsigned char)*y++);
        if (cx != cy) return cx - cy;
    }
    if (*x != *y) return *x == '\0' ? -1 : 1;
    return strcmp(a, b);
}

static int by_bytes(const void *a, const void *b) {
    return strcmp(*(const char *const *)a, *(const char *const *)b);
}

static int by_nature(const void *a, const void *b) {
    return class_compare_natural(*(const char *const *)a, *(const char *const *)b);
}

static int by_list(const void *a, const void *b, void *user) {
    const ClassList *l = user;
    return strcmp(l->names[*(const int64_t *)a], l->names[*(const int64_t *)b]);
}

Status class_index_new(const ClassList *list, ClassIndex *out) {
    void *block;
    *out = (ClassIndex){.list = list};
    TRY(mem_alloc(&block, list->count, sizeof(int64_t), "class index"));
    out->sorted = block;
    for (int64_t i = 0; i < list->count; i++) out->sorted[i] = i;
    if (list->count > 1) {
        qsort_r(out->sorted, (size_t)list->count, sizeof(int64_t), by_list,
                (void *)(uintptr_t)list);
    }
    return STATUS_OK;
}

void class_index_free(ClassIndex *x) {
    mem_free(x->sorted);
    *x = (ClassIndex){0};
}

int64_t class_find(const ClassIndex *x, const char *name, size_t length) {
    int64_t low = 0, high = x->list->count;
    while (low < high) {
        int64_t middle = low + (high - low) / 2;
        const char *other = x->list->names[x->sorted[middle]];
        int order = strncmp(name, other, length);
        if (order == 0) order = other[length] == '\0' ? 0 : -1;
        if (order == 0) return x->sorted[middle];
        if (order < 0) {
            high = middle;
        } else {
            low = middle + 1;
        }
    }
    return -1;
}

static bool all_digits(const char *s) {
    return s[0] != '\0' && s[digits_at(s)] == '\0';
}

bool class_names_are_numbers(const ClassList *l) {
    for (int64_t i = 0; i < l->count; i++) {
        if (!all_digits(l->names[i])) return false;
    }
    return l->count > 0;
}

/* Folders 0, 1, 10, 100, ...: labels made elsewhere almost surely follow the numbers. */
static void warn_numeric_order(const ClassList *l) {
    if (!class_names_are_numbers(l)) return;
    for (int64_t i = 1; i < l->count; i++) {
        if (class_compare_natural(l->names[i - 1], l->names[i]) <= 0) continue;
        log_warn("class folders are numbers but ordered as text: '%s' is class %lld, '%s' class "
                 "%lld; for numeric order set data.class_order = natural (--class-order natural)",
                 l->names[i - 1], (long long)(i - 1), l->names[i], (long long)i);
        return;
    }
}

/* One name a line. */
static Status read_class_map(const char *path, ClassList *out) {
    TextLines lines;
    Status s;
    TRY(text_lines_open(path, &lines));
    int64_t capacity = 0;
    *out = (ClassList){0};
    s = STATUS_OK;
    for (char *line; s == STATUS_OK && (line = text_lines_next(&lines)) != NULL;) {
        if (line[0] == '\0') continue;
        if (out->count == capacity) {
            void *block = out->names;
            capacity = capacity > 0 ? 2 * capacity : 64;
            s = mem_grow(&block, capacity, sizeof(char *), "class names");
            if (s == STATUS_OK) out->names = block;
        }
        if (s == STATUS_OK) s = mem_string(&out->names[out->count], line);
        if (s == STATUS_OK) out->count++;
    }
    if (s == STATUS_OK && out->count == 0) {
        s = status_set(STATUS_DATA, "%s: no class names in it", lines.shown);
    }
    text_lines_close(&lines);
    if (s != STATUS_OK) class_list_free(out);
    return s;
}

static Status check_unique(const ClassList *l, const char *path) {
    ClassIndex x;
    Status s;
    TRY(class_index_new(l, &x));
    s = STATUS_OK;
    for (int64_t i = 1; i < l->count && s == STATUS_OK; i++) {
        const char *name = l->names[x.sorted[i]];
        if (strcmp(l->names[x.sorted[i - 1]], name) != 0) continue;
        char shown[SHOWN];
        s = status_set(STATUS_DATA, "%s: class '%s' is listed twice", path,
                       text_printable(name, shown, sizeof shown));
    }
    class_index_free(&x);
    return s;
}

Status class_names_unique(const char *const *names, int64_t count, ClassList *out) {
    void *block;
    TRY(mem_alloc(&block, count, sizeof(char *), "class names"));
    const char **sorted = block;
    int64_t kept = 0;
    for (int64_t i = 0; i < count; i++) sorted[i] = names[i];
    if (count > 1) qsort(sorted, (size_t)count, sizeof(char *), by_bytes);
    for (int64_t i = 0; i < count; i++) {
        if (kept == 0 || strcmp(sorted[kept - 1], sorted[i]) != 0) sorted[kept++] = sorted[i];
    }
    ClassList list = {.names = (char **)block, .count = kept};
    Status s = class_list_copy(out, &list);
    mem_free(block);
    return s;
}

Status class_map_read(const char *path, ClassList *out) {
    TRY(read_class_map(path, out));
    Status s = check_unique(out, path);
    if (s != STATUS_OK) class_list_free(out);
    return s;
}

bool class_parse_index(const char *text, int64_t *value) {
    size_t digits = digits_at(text);
    *value = 0;
    if (digits == 0 || digits > MAX_DIGITS || text[digits] != '\0') return false;
    for (size_t i = 0; i < digits; i++) *value = 10 * *value + text[i] - '0';
    return true;
}

Status classes_numbered(int64_t count, const char *what, ClassList *out) {
    void *block;
    *out = (ClassList){0};
    if (count > MAX_CLASSES)
        return status_set(STATUS_DATA,
                          "%s: class index %lld, but a data set has at most %d classes", what,
                          (long long)(count - 1), MAX_CLASSES);
    TRY(mem_alloc(&block, count, sizeof(char *), "class names"));
    *out = (ClassList){.names = block};
    for (int64_t i = 0; i < count; i++) {
        char text[24];
        snprintf(text, sizeof text, "%lld", (long long)i);
        TRY(mem_string(&out->names[i], text));
        out->count++;
    }
    return STATUS_OK;
}

void warn_empty_classes(const Scan *s) {
    char shown[300];
    if (s->report.empty_classes == 0) return;
    log_warn("%s: %lld of %lld classes have no image; they keep their index",
             text_printable(s->place, shown, sizeof shown), (long long)s->report.empty_classes,
             (long long)s->report.classes);
}

Status count_used_classes(Scan *s, int64_t classes) {
    void *block;
    int64_t used = 0;
    TRY(mem_alloc(&block, classes, 1, "class use"));
    uint8_t *seen = block;
    for (int64_t i = 0; i < s->count; i++) {
        used += !seen[s->files[i].label];
        seen[s->files[i].label] = 1;
    }
    mem_free(seen);
    s->report.classes = classes;
    s->report.empty_classes = classes - used;
    warn_empty_classes(s);
    return STATUS_OK;
}

static Status mapped_classes(const DataConfig *c, ClassList *out) {
    if (c->class_map[0] == '\0') {
        return status_set(STATUS_USAGE,
                          "data.class_order = file needs data.class_map (--class-map FILE)");
    }
    return status_context(class_map_read(c->class_map, out), "data.class_map");
}

Status classes_from_names(const DataConfig *c, const char *const *names, int64_t count,
                          ClassList *out) {
    if (c->class_order == CLASS_ORDER_FILE || c->class_map[0] != '\0') {
        return mapped_classes(c, out);
    }
    TRY(class_names_unique(names, count, out));
    if (c->class_order == CLASS_ORDER_NATURAL && out->count > 1) {
        qsort(out->names, (size_t)out->count, sizeof(char *), by_nature);
    } else {
        warn_numeric_order(out);
    }
    return STATUS_OK;
}

/* "folder<TAB>readable name", or with the first space when a line has no tab
 * (LOC_synset_mapping.txt). */
static Status take_readable(const ClassIndex *x, char *line, char **readable, int64_t *known) {
    char *stop = strchr(line, '\t');
    if (stop == NULL) stop = strchr(line, ' ');
    if (stop == NULL) return STATUS_OK;
    int64_t i = class_find(x, line, (size_t)(stop - line));
    if (i < 0 || readable[i] != NULL) return STATUS_OK;
    ++*known;
    return mem_string(&readable[i], stop + 1);
}

static Status read_readable(TextLines *lines, const ClassList *classes, char **readable) {
    ClassIndex x;
    int64_t known = 0;
    TRY(class_index_new(classes, &x));
    Status s = STATUS_OK;
    for (char *line; s == STATUS_OK && (line = text_lines_next(lines)) != NULL;) {
        s = take_readable(&x, line, readable, &known);
    }
    for (int64_t i = 0; s == STATUS_OK && i < classes->count; i++) {
        if (readable[i] == NULL) s = mem_string(&readable[i], classes->names[i]);
    }
    class_index_free(&x);
    if (s != STATUS_OK || known > 0 || classes->count == 0) return s;
    return status_set(STATUS_DATA, "%s: names none of the %lld classes ('%s', ...)", lines->shown,
                      (long long)classes->count, classes->names[0]);
}

Status classes_add_readable(const DataConfig *c, ClassList *classes) {
    if (c->class_names[0] == '\0' || classes->readable != NULL) return STATUS_OK;
    TextLines lines;
    void *block;
    TRY(status_context(text_lines_open(c->class_names, &lines),
                       "data.class_names, relative to the current folder"));
    Status s = mem_alloc(&block, classes->count, sizeof(char *), "class names");
    char **readable = block;
    if (s == STATUS_OK) s = read_readable(&lines, classes, readable);
    text_lines_close(&lines);
    if (s == STATUS_OK) {
        classes->readable = readable;
        return s;
    }
    for (int64_t i = 0; readable != NULL && i < classes->count; i++) mem_free(readable[i]);
    mem_free(readable);
    return s;
}
