/* What data.root names when it is no folder: tar files, separated by commas, with braces written
 * out as a shell does. */
#include <ctype.h>
#include <stdlib.h>
#include <string.h>

#include "core/file.h"
#include "core/memory.h"
#include "datasets/folder_internal.h"

enum { SHOWN = 300, MAX_PARTS = 1 << 16, MAX_DIGITS = 9 };

void name_list_free(NameList *l) {
    for (int64_t i = 0; i < l->count; i++) mem_free(l->names[i]);
    mem_free(l->names);
    *l = (NameList){0};
}

Status name_list_add(NameList *l, const char *name, size_t length) {
    if (l->count == l->capacity) {
        void *block = l->names;
        int64_t capacity = l->capacity > 0 ? 2 * l->capacity : 32;
        TRY(mem_grow(&block, capacity, sizeof(char *), "list of file names"));
        l->names = block;
        l->capacity = capacity;
    }
    TRY(mem_string_n(&l->names[l->count], name, length));
    l->count++;
    return STATUS_OK;
}

/* ---- braces ---- */

typedef struct Range {
    int64_t first, last;
    int digits; /* leading zeros are kept */
} Range;

static bool take_digits(const char **at, const char *end, int64_t *value, int *digits) {
    const char *start = *at;
    *value = 0;
    while (*at < end && isdigit((unsigned char)**at)) *value = 10 * *value + *(*at)++ - '0';
    *digits = (int)(*at - start);
    return *digits > 0 && *digits <= MAX_DIGITS;
}

/* "000..127" */
static bool parse_range(const char *start, const char *end, Range *r) {
    int last_digits;
    if (end - start > 2 * MAX_DIGITS + 2 || !take_digits(&start, end, &r->first, &r->digits) ||
        end - start < 3 || start[0] != '.' || start[1] != '.')
        return false;
    start += 2;
    return take_digits(&start, end, &r->last, &last_digits) && start == end;
}

static Status bad_part(const char *part, const char *what) {
    char shown[SHOWN];
    return status_set(STATUS_USAGE, "%s: %s", text_printable(part, shown, sizeof shown), what);
}

static Status add_joined(NameList *out, const char *head, size_t head_length, const char *middle,
                         size_t middle_length, const char *tail) {
    TextPool name = {0};
    char *a, *b = NULL;
    size_t offset;
    if (out->count >= MAX_PARTS) return bad_part(head, "names too many files");
    TRY(mem_string_n(&a, head, head_length));
    Status s = mem_string_n(&b, middle, middle_length);
    if (s == STATUS_OK) s = pool_add(&name, a, b, tail, &offset);
    if (s == STATUS_OK) s = name_list_add(out, name.text, strlen(name.text));
    mem_free(name.text);
    mem_free(b);
    mem_free(a);
    return s;
}

static Status add_range(const char *part, const char *open, const char *close, const Range *r,
                        NameList *out) {
    if (r->first > r->last) return bad_part(part, "a range that runs backwards");
    if (r->last - r->first >= MAX_PARTS) return bad_part(part, "a range of too many files");
    for (int64_t i = r->first; i <= r->last; i++) {
        char number[24];
        int n = snprintf(number, sizeof number, "%0*lld", r->digits, (long long)i);
        TRY(add_joined(out, part, (size_t)(open - part), number, (size_t)n, close + 1));
    }
    return STATUS_OK;
}

/* Writes out the first pair of braces of `part`. */
static Status expand_first(const char *part, const char *open, NameList *out) {
    const char *close = strchr(open, '}');
    Range r;
    if (close == NULL) return bad_part(part, "a brace that is not closed");
    if (memchr(open + 1, '{', (size_t)(close - open - 1)) != NULL)
        return bad_part(part, "braces within braces");
    if (parse_range(open + 1, close, &r)) return add_range(part, open, close, &r, out);
    for (const char *at = open + 1; at <= close; at++) {
        size_t length = strcspn(at, ",}");
        TRY(add_joined(out, part, (size_t)(open - part), at, length, close + 1));
        at += length;
    }
    return STATUS_OK;
}

/* Names without braces, in the order of the text. The list is its own queue: each pass writes out
 * one pair of braces of every name. */
static Status expand(NameList *l) {
    for (;;) {
        NameList next = {0};
        bool any = false;
        Status s = STATUS_OK;
        for (int64_t i = 0; s == STATUS_OK && i < l->count; i++) {
            const char *open = strchr(l->names[i], '{');
            any = any || open != NULL;
            s = open != NULL ? expand_first(l->names[i], open, &next)
                             : name_list_add(&next, l->names[i], strlen(l->names[i]));
        }
        name_list_free(l);
        *l = next;
        if (s != STATUS_OK || !any) return s;
    }
}

/* Length of the part at the front: up to a comma outside of braces. */
static size_t part_length(const char *text) {
    size_t n = 0;
    for (bool inside = false; text[n] != '\0' && (inside || text[n] != ','); n++)
        inside = text[n] == '{' || (inside && text[n] != '}');
    return n;
}

Status root_parts(const char *root, NameList *out) {
    Status s = STATUS_OK;
    *out = (NameList){0};
    if (file_exists(root)) return name_list_add(out, root, strlen(root)); /* commas and all */
    for (const char *at = root; s == STATUS_OK && *at != '\0';) {
        size_t n = part_length(at);
        if (n > 0) s = name_list_add(out, at, n);
        at += n + (at[n] == ',');
    }
    if (s == STATUS_OK) s = expand(out);
    if (s != STATUS_OK) name_list_free(out);
    return s;
}

/* ---- whose split ---- */

static bool has_word(const char *name, const char *word) {
    size_t n = strlen(word);
    if (n == 0) return true;
    for (const char *at = strstr(name, word); at != NULL; at = strstr(at + 1, word)) {
        bool begins = at == name || !isalnum((unsigned char)at[-1]);
        if (begins && !isalnum((unsigned char)at[n])) return true;
    }
    return false;
}

bool part_names_split(const char *path, const char *split) {
    const char *slash = strrchr(path, '/');
    const char *name = slash != NULL ? slash + 1 : path;
    size_t length = strlen(name);
    if (length < 5 || strcmp(name + length - 4, ".tar") != 0 || name[0] == '.') return false;
    return has_word(name, split) || (strcmp(split, "val") == 0 && has_word(name, "validation"));
}
