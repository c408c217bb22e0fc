/* A walk over names with a stack of open folders. */
#include "tools/inputs.h"

#include <dirent.h>
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>
#include <sys/stat.h>

#include "core/file.h"
#include "core/memory.h"

enum { MAX_DEPTH = 256, MAX_NAME_BYTES = 65536, MESSAGE_BYTES = 1024 };

/* Entries of one folder, in byte order. */
typedef struct Listing {
    char *folder;
    char **names;
    int64_t count, capacity, next;
    bool yielded; /* a picture or a folder was found in it */
} Listing;

struct Inputs {
    InputOptions options;
    char **paths;
    int count, next;
    Listing stack[MAX_DEPTH];
    int depth;
    FILE *list; /* NULL: none, or finished */
    bool list_started;
    char *line; /* of the list */
    size_t line_capacity;
    int64_t line_number, passed_over;
    char *current; /* the path handed out last, when it was built here */
    char message[MESSAGE_BYTES];
};

Status inputs_open(const InputOptions *o, int count, char **paths, Inputs **out) {
    int readers = o->files_from && strcmp(o->files_from, "-") == 0;
    for (int i = 0; i < count; i++) readers += strcmp(paths[i], "-") == 0;
    if (readers > 1) return status_set(STATUS_USAGE, "standard input ('-') can be read once only");
    void *memory;
    TRY(mem_alloc(&memory, 1, sizeof(Inputs), "list of inputs"));
    Inputs *in = memory;
    in->options = *o;
    in->paths = paths;
    in->count = count;
    *out = in;
    return STATUS_OK;
}

static void listing_free(Listing *l) {
    for (int64_t i = 0; i < l->count; i++) mem_free(l->names[i]);
    mem_free(l->names);
    mem_free(l->folder);
    *l = (Listing){0};
}

void inputs_close(Inputs *in) {
    if (!in) return;
    while (in->depth > 0) listing_free(&in->stack[--in->depth]);
    if (in->list && in->list != stdin) fclose(in->list);
    mem_free(in->line);
    mem_free(in->current);
    mem_free(in);
}

int64_t inputs_passed_over(const Inputs *in) {
    return in->passed_over;
}

/* ---- folders ---- */

static int compare_names(const void *a, const void *b) {
    return strcmp(*(char *const *)a, *(char *const *)b);
}

static Status listing_add(Listing *l, const char *name) {
    if (l->count == l->capacity) {
        void *names = l->names;
        int64_t capacity = l->capacity ? 2 * l->capacity : 64;
        TRY(mem_grow(&names, capacity, sizeof(char *), "folder listing"));
        l->names = names;
        l->capacity = capacity;
    }
    TRY(mem_string(&l->names[l->count], name));
    l->count++;
    return STATUS_OK;
}

static Status read_listing(Listing *l, const char *path) {
    char shown[MESSAGE_BYTES / 2];
    DIR *folder = opendir(path);
    if (!folder)
        return status_errno("cannot read folder '%s'", text_printable(path, shown, sizeof shown));
    Status s = mem_string(&l->folder, path);
    for (struct dirent *e; s == STATUS_OK && (e = readdir(folder));)
        if (e->d_name[0] != '.') s = listing_add(l, e->d_name);
    closedir(folder);
    if (s == STATUS_OK && l->count > 0)
        qsort(l->names, (size_t)l->count, sizeof *l->names, compare_names);
    return s;
}

/* Pushes a folder. One that cannot be read becomes *error; only memory ends the walk. */
static Status push_folder(Inputs *in, const char *path, const char **error) {
    Status s;
    if (in->depth == MAX_DEPTH) {
        char shown[MESSAGE_BYTES / 2];
        s = status_set(STATUS_DATA, "'%s': folders deeper than %d levels",
                       text_printable(path, shown, sizeof shown), MAX_DEPTH);
    } else {
        Listing *l = &in->stack[in->depth];
        *l = (Listing){0};
        s = read_listing(l, path);
        if (s == STATUS_OK)
            in->depth++;
        else
            listing_free(l);
    }
    if (s == STATUS_OK || s == STATUS_MEMORY) return s;
    snprintf(in->message, sizeof in->message, "%s", status_message());
    *error = in->message;
    return STATUS_OK;
}

static bool picture_name(const char *name) {
    const char *dot = strrchr(name, '.');
    return dot && (strcasecmp(dot, ".jpg") == 0 || strcasecmp(dot, ".jpeg") == 0 ||
                   strcasecmp(dot, ".png") == 0);
}

/* Remembers a path made here, so that it lives until the next call. */
static const char *keep_path(Inputs *in, char *path) {
    mem_free(in->current);
    in->current = path;
    return path;
}

/* The next entry of the innermost folder; out->path stays NULL when it gave none. */
static Status next_entry(Inputs *in, Input *out) {
    Listing *l = &in->stack[in->depth - 1];
    struct stat st;
    char *path;
    if (l->next == l->count) {
        bool empty = !l->yielded;
        char *folder = l->folder;
        l->folder = NULL;
        listing_free(l);
        in->depth--;
        keep_path(in, folder);
        if (empty && in->depth == 0) {
            char shown[MESSAGE_BYTES / 2];
            snprintf(in->message, sizeof in->message, "'%s' holds no .jpg, .jpeg or .png files%s",
                     text_printable(folder, shown, sizeof shown),
                     in->options.recursive ? "" : " (--recursive looks into its folders)");
            out->path = folder;
            out->error = in->message;
        }
        return STATUS_OK;
    }
    const char *name = l->names[l->next++];
    TRY(path_join(&path, l->folder, name));
    bool is_folder = lstat(path, &st) == 0 && S_ISDIR(st.st_mode);
    keep_path(in, path);
    if (is_folder) {
        if (!in->options.recursive) return STATUS_OK;
        l->yielded = true;
        TRY(push_folder(in, path, &out->error));
        if (out->error) out->path = path;
        return STATUS_OK;
    }
    if (!picture_name(name)) {
        in->passed_over++;
        return STATUS_OK;
    }
    l->yielded = true;
    out->path = path;
    return STATUS_OK;
}

/* ---- lists ---- */

static Status start_list(Inputs *in) {
    const char *path = in->options.files_from;
    char shown[MESSAGE_BYTES / 2];
    in->list_started = true;
    if (!path || !*path) return STATUS_OK;
    if (strcmp(path, "-") == 0) {
        in->list = stdin;
        return STATUS_OK;
    }
    text_printable(path, shown, sizeof shown);
    if (file_is_folder(path))
        return status_set(STATUS_DATA, "'%s' is a directory, not a list of files", shown);
    in->list = fopen(path, "rb");
    return in->list ? STATUS_OK : status_errno("cannot open list '%s'", shown);
}

static Status grow_line(Inputs *in, size_t used) {
    if (used + 1 < in->line_capacity) return STATUS_OK;
    if (used >= MAX_NAME_BYTES)
        return status_set(STATUS_DATA, "%s:%lld: a name longer than %d bytes",
                          in->options.files_from, (long long)in->line_number + 1, MAX_NAME_BYTES);
    void *line = in->line;
    size_t capacity = in->line_capacity ? 2 * in->line_capacity : 512;
    TRY(mem_grow(&line, (int64_t)capacity, 1, "list of files"));
    in->line = line;
    in->line_capacity = capacity;
    return STATUS_OK;
}

/* The next name of the list into in->line; STATUS_END behind the last. Empty lines are passed over,
 * the CR of a CRLF is dropped. */
static Status read_name(Inputs *in) {
    int end = in->options.null_separated ? '\0' : '\n', c;
    do {
        size_t used = 0;
        TRY(grow_line(in, used));
        while ((c = getc(in->list)) != EOF && c != end) {
            TRY(grow_line(in, used));
            if (c == '\0')
                return status_set(STATUS_DATA, "%s:%lld: a NUL byte (separate names with --null?)",
                                  in->options.files_from, (long long)in->line_number + 1);
            in->line[used++] = (char)c;
        }
        if (c == EOF && ferror(in->list))
            return status_errno("cannot read list '%s'", in->options.files_from);
        if (end == '\n' && used > 0 && in->line[used - 1] == '\r') used--;
        in->line[used] = '\0';
        in->line_number++;
        if (used > 0) return STATUS_OK;
    } while (c != EOF);
    return STATUS_END;
}

/* ---- the walk ---- */

static Status take_path(Inputs *in, const char *path, Input *out) {
    if (file_is_folder(path)) {
        TRY(push_folder(in, path, &out->error));
        if (!out->error) return STATUS_OK;
    }
    out->path = path;
    return STATUS_OK;
}

Status inputs_next(Inputs *in, Input *out) {
    do {
        *out = (Input){0};
        if (in->depth > 0) {
            TRY(next_entry(in, out));
        } else if (in->next < in->count) {
            const char *path = in->paths[in->next++];
            out->is_stdin = strcmp(path, "-") == 0;
            if (out->is_stdin)
                out->path = path;
            else
                TRY(take_path(in, path, out));
        } else {
            if (!in->list_started) TRY(start_list(in));
            if (!in->list) return STATUS_END;
            TRY(read_name(in));
            TRY(take_path(in, in->line, out));
        }
    } while (!out->path);
    return STATUS_OK;
}
