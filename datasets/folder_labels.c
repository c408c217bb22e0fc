/* Labels files of flat splits: "name index" (Caffe), "name wnid", CSV (LOC_val_solution.csv), or
 * one class name a line in the order of the sorted file names. Bare numbers are refused: nothing
 * says what they count. */
#include <ctype.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>

#include "core/file.h"
#include "core/memory.h"
#include "datasets/folder_internal.h"

enum { SHOWN = 200 };

typedef struct Row {
    const char *name; /* without folders and image suffix; NULL in a bare list */
    size_t length;
    const char *label;
    int64_t line;
    bool used;
} Row;

typedef struct Labels {
    TextLines lines; /* rows point into its text */
    Row *rows;
    int64_t count, capacity;
    bool bare;        /* no names, labels only */
    bool numeric;     /* every label is a number: an index */
    int64_t min, max; /* of numeric labels */
} Labels;

static void labels_free(Labels *l) {
    text_lines_close(&l->lines);
    mem_free(l->rows);
    *l = (Labels){0};
}

/* File names and labels files agree on the last path component without its suffix. */
static const char *stem_of(const char *name, size_t *length) {
    const char *slash = strrchr(name, '/');
    const char *start = slash != NULL ? slash + 1 : name;
    const char *dot = strrchr(start, '.');
    bool suffix = dot != NULL && (strcasecmp(dot, ".jpg") == 0 || strcasecmp(dot, ".jpeg") == 0 ||
                                  strcasecmp(dot, ".png") == 0);
    *length = suffix ? (size_t)(dot - start) : strlen(start);
    return start;
}

static char *skip_spaces(char *s) {
    while (isspace((unsigned char)*s)) s++;
    return s;
}

static void cut_at_space(char *s) {
    while (*s != '\0' && !isspace((unsigned char)*s)) s++;
    *s = '\0';
}

/* Splits a line in place; *name NULL when it has one word only. */
static void split_line(char *line, char **name, char **label) {
    char *end = line + strlen(line);
    while (end > line && isspace((unsigned char)end[-1])) *--end = '\0';
    char *gap = strchr(line, ',');
    if (gap == NULL) gap = strrchr(line, '\t');
    if (gap == NULL) gap = strrchr(line, ' ');
    *name = gap != NULL ? line : NULL;
    *label = gap != NULL ? skip_spaces(gap + 1) : line;
    if (gap == NULL) return;
    *gap = '\0';
    while (gap > line && isspace((unsigned char)gap[-1])) *--gap = '\0';
    cut_at_space(*label); /* LOC_val_solution.csv goes on with boxes */
}

static Status add_row(Labels *l, char *line) {
    char *name, *label;
    int64_t index;
    split_line(line, &name, &label);
    if (l->count > 0 && l->bare != (name == NULL)) {
        return status_set(STATUS_DATA, "%s:%lld: expected '%s' as in the lines before",
                          l->lines.shown, (long long)l->lines.number,
                          l->bare ? "label" : "name label");
    }
    l->bare = name == NULL;
    if (l->count == l->capacity) {
        void *block = l->rows;
        int64_t capacity = l->capacity > 0 ? 2 * l->capacity : 256;
        TRY(mem_grow(&block, capacity, sizeof(Row), "labels"));
        l->rows = block;
        l->capacity = capacity;
    }
    Row row = {.label = label, .line = l->lines.number};
    if (name != NULL) row.name = stem_of(name, &row.length);
    bool number = class_parse_index(label, &index);
    if (number && (l->count == 0 || index < l->min)) l->min = index;
    if (number && (l->count == 0 || index > l->max)) l->max = index;
    l->numeric = number && (l->count == 0 || l->numeric);
    l->rows[l->count++] = row;
    return STATUS_OK;
}

static bool is_heading(const char *line) {
    return strncasecmp(line, "ImageId,", 8) == 0 || strncasecmp(line, "filename,", 9) == 0 ||
           strncasecmp(line, "name,", 5) == 0 || strncasecmp(line, "image,", 6) == 0;
}

static Status read_rows(Labels *l) {
    for (char *line; (line = text_lines_next(&l->lines)) != NULL;) {
        line = skip_spaces(line);
        if (*line == '\0' || (l->lines.number == 1 && is_heading(line))) continue;
        TRY(add_row(l, line));
    }
    if (l->count > 0) return STATUS_OK;
    return status_set(STATUS_DATA, "%s: no labels in it", l->lines.shown);
}

static int compare_stems(const char *a, size_t la, const char *b, size_t lb) {
    int order = memcmp(a, b, la < lb ? la : lb);
    return order != 0 ? order : la < lb ? -1 : la > lb;
}

static int by_stem(const void *a, const void *b) {
    const Row *x = a, *y = b;
    return compare_stems(x->name, x->length, y->name, y->length);
}

static Row *find_row(const Labels *l, const char *name) {
    Row key;
    key.name = stem_of(name, &key.length);
    return bsearch(&key, l->rows, (size_t)l->count, sizeof(Row), by_stem);
}

static Status refuse_bare_numbers(const Labels *l) {
    bool devkit = l->min >= 1;
    return status_set(
        STATUS_DATA,
        "%s: a bare list of numbers (%lld to %lld)%s; give 'file-name class-index' or "
        "'file-name class-folder' lines instead",
        l->lines.shown, (long long)l->min, (long long)l->max,
        devkit ? ": it looks like the ILSVRC devkit's ground truth, whose ids 1 to "
                 "1000 are not the order of the wnid folders (meta.mat or "
                 "map_clsloc.txt maps them)"
               : " does not say which image or class they mean");
}

static Status wrong_length(const Labels *l, int64_t images, const char *what, const char *first) {
    char shown[SHOWN];
    return status_set(STATUS_DATA, "%s: %lld labels for %lld images; %s '%s'", l->lines.shown,
                      (long long)l->count, (long long)images, what,
                      text_printable(first, shown, sizeof shown));
}

/* Rows in the order of files, one to one. rows[i] belongs to files[i] afterwards. */
static Status align_rows(Labels *l, const Scan *s, Row **order) {
    if (l->bare) {
        if (l->count == s->count) return STATUS_OK;
        const char *first = scan_inside(s, &s->files[l->count < s->count ? l->count : 0]);
        return wrong_length(l, s->count, l->count < s->count ? "none for" : "first image", first);
    }
    qsort(l->rows, (size_t)l->count, sizeof(Row), by_stem);
    for (int64_t i = 1; i < l->count; i++) {
        if (by_stem(&l->rows[i - 1], &l->rows[i]) != 0) continue;
        return status_set(STATUS_DATA, "%s: lines %lld and %lld label the same image",
                          l->lines.shown, (long long)l->rows[i - 1].line,
                          (long long)l->rows[i].line);
    }
    for (int64_t i = 0; i < s->count; i++) {
        const char *name = scan_inside(s, &s->files[i]);
        order[i] = find_row(l, name);
        if (order[i] == NULL) return wrong_length(l, s->count, "none for", name);
        if (order[i]->used) {
            return wrong_length(l, s->count, "two images have the name but for the suffix:", name);
        }
        order[i]->used = true;
    }
    for (int64_t i = 0; i < l->count; i++) {
        if (!l->rows[i].used) return wrong_length(l, s->count, "no image for", l->rows[i].name);
    }
    return STATUS_OK;
}

static Status label_classes(const Labels *l, const DataConfig *c, ClassList *out) {
    if (l->numeric) {
        if (l->min > 0) {
            return status_set(
                STATUS_DATA, "%s: class numbers run from %lld to %lld; indices from 0 are expected",
                l->lines.shown, (long long)l->min, (long long)l->max);
        }
        return classes_numbered(l->max + 1, l->lines.shown, out);
    }
    void *block;
    TRY(mem_alloc(&block, l->count, sizeof(char *), "class names"));
    const char **names = block;
    for (int64_t i = 0; i < l->count; i++) names[i] = l->rows[i].label;
    Status s = classes_from_names(c, names, l->count, out);
    mem_free(block);
    return s;
}

static Status check_range(const Labels *l, int64_t classes) {
    if (l->max < classes) return STATUS_OK;
    return status_set(STATUS_DATA, "%s: class index %lld, but the %lld classes are 0 to %lld%s",
                      l->lines.shown, (long long)l->max, (long long)classes,
                      (long long)(classes - 1),
                      l->min >= 1 ? "; the numbers seem to count from 1 (devkit ids?)" : "");
}

static Status set_labels(const Labels *l, Scan *s, const ClassIndex *x, Row *const *order) {
    if (l->numeric) TRY(check_range(l, x->list->count));
    for (int64_t i = 0; i < s->count; i++) {
        const Row *row = l->bare ? &l->rows[i] : order[i];
        int64_t label = -1;
        if (l->numeric) {
            class_parse_index(row->label, &label);
        } else {
            label = class_find(x, row->label, strlen(row->label));
        }
        if (label < 0) {
            char shown[SHOWN];
            return status_set(STATUS_DATA, "%s:%lld: '%s' is none of the %lld classes ('%s', ...)",
                              l->lines.shown, (long long)row->line,
                              text_printable(row->label, shown, sizeof shown),
                              (long long)x->list->count, x->list->names[0]);
        }
        s->files[i].label = label;
    }
    return STATUS_OK;
}

static Status label_scan(Labels *l, Scan *s, const DataConfig *c, ClassList *classes) {
    void *block;
    ClassIndex x;
    TRY(read_rows(l));
    if (l->bare && l->numeric) return refuse_bare_numbers(l);
    if (classes->count == 0) TRY(label_classes(l, c, classes));
    TRY(class_index_new(classes, &x));
    Status status = mem_alloc(&block, s->count, sizeof(Row *), "labels");
    if (status == STATUS_OK) status = align_rows(l, s, block);
    if (status == STATUS_OK) status = set_labels(l, s, &x, block);
    mem_free(block);
    class_index_free(&x);
    return status;
}

Status classes_from_labels(Scan *s, const DataConfig *c, const char *labels_path,
                           ClassList *classes) {
    Labels l = {0};
    bool fresh = classes->count == 0;
    Status status = text_lines_open(labels_path, &l.lines);
    if (status == STATUS_OK) status = label_scan(&l, s, c, classes);
    labels_free(&l);
    if (status == STATUS_OK) status = count_used_classes(s, classes->count);
    if (status != STATUS_OK && fresh) class_list_free(classes);
    return status;
}
