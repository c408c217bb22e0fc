/* Pairs of pictures by name, by order, or from a list. */
#include "tools/score_pairs.h"

#include <stdlib.h>
#include <string.h>

#include "core/file.h"
#include "core/memory.h"
#include "tools/inputs.h"

enum { MAX_LIST_BYTES = 1 << 28 };

/* ---- the pairs ---- */

static Status room(void **block, int64_t count, int64_t *capacity, size_t size) {
    if (count < *capacity) return STATUS_OK;
    int64_t wanted = *capacity * 2 + 16;
    TRY(mem_grow(block, wanted, size, "pairs of pictures"));
    *capacity = wanted;
    return STATUS_OK;
}

static Status add_pair(ScorePairs *p, const char *a, const char *b) {
    void *block = p->items;
    Status s = room(&block, p->count, &p->capacity, sizeof *p->items);
    p->items = block;
    if (s != STATUS_OK) return s;
    ScorePair pair = {NULL, NULL};
    TRY(mem_string(&pair.a, a));
    s = mem_string(&pair.b, b);
    if (s != STATUS_OK) {
        mem_free(pair.a);
        return s;
    }
    p->items[p->count++] = pair;
    return STATUS_OK;
}

static Status add_missing(ScorePairs *p, const char *path) {
    void *block = p->missing;
    Status s = room(&block, p->missing_count, &p->missing_capacity, sizeof *p->missing);
    p->missing = block;
    if (s != STATUS_OK) return s;
    TRY(mem_string(&p->missing[p->missing_count], path));
    p->missing_count++;
    return STATUS_OK;
}

void score_pairs_free(ScorePairs *p) {
    for (int64_t i = 0; i < p->count; i++) {
        mem_free(p->items[i].a);
        mem_free(p->items[i].b);
    }
    for (int64_t i = 0; i < p->missing_count; i++) mem_free(p->missing[i]);
    mem_free(p->items);
    mem_free(p->missing);
    *p = (ScorePairs){0};
}

/* ---- folders ---- */

/* A picture of a folder: key is its path below the folder, of which `stem` bytes stand before the
 * ending. */
typedef struct Entry {
    char *path;
    const char *key;
    int64_t stem;
    bool used;
} Entry;

typedef struct Folder {
    Entry *entries;
    int64_t count, capacity;
} Folder;

static void folder_free(Folder *f) {
    for (int64_t i = 0; i < f->count; i++) mem_free(f->entries[i].path);
    mem_free(f->entries);
}

static Status folder_add(Folder *f, const char *root, const char *path) {
    void *block = f->entries;
    Status s = room(&block, f->count, &f->capacity, sizeof *f->entries);
    f->entries = block;
    if (s != STATUS_OK) return s;
    Entry e = {0};
    TRY(mem_string(&e.path, path));
    e.key = e.path + strlen(root);
    while (*e.key == '/') e.key++;
    const char *slash = strrchr(e.key, '/'), *dot = strrchr(e.key, '.');
    bool ending = dot && (!slash || dot > slash);
    e.stem = ending ? dot - e.key : (int64_t)strlen(e.key);
    f->entries[f->count++] = e;
    return STATUS_OK;
}

static Status walk(Inputs *in, const char *root, Folder *f) {
    Input input;
    Status s;
    while ((s = inputs_next(in, &input)) == STATUS_OK) {
        if (input.error) return status_set(STATUS_DATA, "%s: %s", input.path, input.error);
        TRY(folder_add(f, root, input.path));
    }
    return s == STATUS_END ? STATUS_OK : s;
}

static Status folder_list(char *root, bool recursive, Folder *f) {
    InputOptions options = {.recursive = recursive};
    Inputs *in;
    TRY(inputs_open(&options, 1, &root, &in));
    Status s = walk(in, root, f);
    inputs_close(in);
    if (s == STATUS_OK && f->count == 0)
        s = status_set(STATUS_DATA, "%s: no picture in this folder", root);
    return s;
}

static int compare_stems(const Entry *a, const Entry *b) {
    int64_t n = a->stem < b->stem ? a->stem : b->stem;
    int order = memcmp(a->key, b->key, (size_t)n);
    return order ? order : (a->stem > b->stem) - (a->stem < b->stem);
}

static int by_stem(const void *a, const void *b) {
    const Entry *x = a, *y = b;
    int order = compare_stems(x, y);
    return order ? order : strcmp(x->key, y->key);
}

/* How many entries from the first on have its stem. */
static int64_t group(const Folder *f, int64_t first) {
    int64_t n = 1;
    while (first + n < f->count && compare_stems(f->entries + first, f->entries + first + n) == 0)
        n++;
    return n;
}

static Entry *only_unused(Entry *e, int64_t n) {
    Entry *found = NULL;
    for (int64_t i = 0; i < n; i++) {
        if (e[i].used) continue;
        if (found) return NULL;
        found = e + i;
    }
    return found;
}

static Status take(Entry *a, Entry *b, ScorePairs *out) {
    a->used = b->used = true;
    return add_pair(out, a->path, b->path);
}

/* Pictures of one stem: equal names first, then the one that is left on either side. */
static Status match_group(Entry *a, int64_t na, Entry *b, int64_t nb, ScorePairs *out) {
    for (int64_t i = 0; i < na; i++)
        for (int64_t j = 0; j < nb; j++)
            if (strcmp(a[i].key, b[j].key) == 0) TRY(take(a + i, b + j, out));
    Entry *x = only_unused(a, na), *y = only_unused(b, nb);
    return x && y ? take(x, y, out) : STATUS_OK;
}

static Status list_unused(const Folder *f, ScorePairs *out) {
    for (int64_t i = 0; i < f->count; i++)
        if (!f->entries[i].used) TRY(add_missing(out, f->entries[i].path));
    return STATUS_OK;
}

static Status match_names(Folder *a, Folder *b, ScorePairs *out) {
    qsort(a->entries, (size_t)a->count, sizeof *a->entries, by_stem);
    qsort(b->entries, (size_t)b->count, sizeof *b->entries, by_stem);
    int64_t i = 0, j = 0;
    while (i < a->count && j < b->count) {
        int order = compare_stems(a->entries + i, b->entries + j);
        int64_t na = group(a, i), nb = group(b, j);
        if (order == 0) TRY(match_group(a->entries + i, na, b->entries + j, nb, out));
        if (order <= 0) i += na;
        if (order >= 0) j += nb;
    }
    TRY(list_unused(a, out));
    return list_unused(b, out);
}

static Status match_order(const Folder *a, const Folder *b, const char *name_a, const char *name_b,
                          ScorePairs *out) {
    if (a->count != b->count)
        return status_set(STATUS_DATA,
                          "%s holds %lld pictures, but %s holds %lld: pairs by order need as many",
                          name_a, (long long)a->count, name_b, (long long)b->count);
    for (int64_t i = 0; i < a->count; i++)
        TRY(add_pair(out, a->entries[i].path, b->entries[i].path));
    return STATUS_OK;
}

Status score_pairs_of(char *a, char *b, PairBy by, bool recursive, ScorePairs *out) {
    bool folder_a = file_is_folder(a), folder_b = file_is_folder(b);
    if (folder_a != folder_b)
        return status_set(STATUS_USAGE, "%s is a folder, but %s is not", folder_a ? a : b,
                          folder_a ? b : a);
    if (!folder_a) return add_pair(out, a, b);
    out->many = true;
    Folder left = {0}, right = {0};
    Status s = folder_list(a, recursive, &left);
    if (s == STATUS_OK) s = folder_list(b, recursive, &right);
    if (s == STATUS_OK && by == PAIR_BY_NAME) s = match_names(&left, &right, out);
    if (s == STATUS_OK && by == PAIR_BY_ORDER) s = match_order(&left, &right, a, b, out);
    folder_free(&left);
    folder_free(&right);
    return s;
}

/* ---- lists ---- */

/* `name` as seen from the list's folder. */
static Status beside(const char *list, const char *name, char **out) {
    const char *slash = strrchr(list, '/');
    if (name[0] == '/' || !slash) return mem_string(out, name);
    char *folder;
    TRY(mem_string_n(&folder, list, (size_t)(slash - list)));
    Status s = path_join(out, slash == list ? "/" : folder, name);
    mem_free(folder);
    return s;
}

static Status add_line(const char *list, char *line, int64_t number, ScorePairs *out) {
    line[strcspn(line, "\r")] = '\0';
    if (line[0] == '\0' || line[0] == '#') return STATUS_OK;
    char *tab = strchr(line, '\t');
    if (tab) tab[1 + strcspn(tab + 1, "\t")] = '\0';
    if (!tab || tab == line || tab[1] == '\0')
        return status_set(STATUS_DATA, "%s:%lld: expected two names with a tab between", list,
                          (long long)number);
    *tab = '\0';
    char *a, *b;
    TRY(beside(list, line, &a));
    Status s = beside(list, tab + 1, &b);
    if (s == STATUS_OK) {
        s = add_pair(out, a, b);
        mem_free(b);
    }
    mem_free(a);
    return s;
}

static Status add_lines(const char *list, char *text, size_t size, ScorePairs *out) {
    if (memchr(text, '\0', size))
        return status_set(STATUS_DATA, "%s: holds a NUL byte: not a text file", list);
    int64_t number = 0;
    for (char *line = text; line && *line;) {
        char *end = strchr(line, '\n');
        if (end) *end = '\0';
        TRY(add_line(list, line, ++number, out));
        line = end ? end + 1 : NULL;
    }
    if (out->count == 0) return status_set(STATUS_DATA, "%s: no pair in this list", list);
    return STATUS_OK;
}

Status score_pairs_read(const char *list, ScorePairs *out) {
    char *text;
    size_t size;
    out->many = true;
    TRY(file_read(list, MAX_LIST_BYTES, &text, &size));
    Status s = add_lines(list, text, size, out);
    mem_free(text);
    return s;
}
