/* Every file below some folders and archives, by name. */
#include <dirent.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

#include "core/file.h"
#include "core/memory.h"
#include "datasets/image.h"
#include "datasets/scene_internal.h"

enum { MAX_DEPTH = 12, MAX_ROOTS = 4096, SHOWN = 600 };

static bool has_suffix(const char *name, const char *suffix) {
    size_t n = strlen(name), m = strlen(suffix);
    return n > m && strcmp(name + n - m, suffix) == 0;
}

static bool is_full(const SceneFiles *f) {
    return f->limit > 0 && f->count >= f->limit;
}

static Status add_file(SceneFiles *f, int32_t root, const char *name, int64_t member) {
    if (f->count == f->capacity) {
        void *block = f->files;
        int64_t capacity = f->capacity > 0 ? 2 * f->capacity : 256;
        TRY(mem_grow(&block, capacity, sizeof(SceneFile), "list of scene files"));
        f->files = block;
        f->capacity = capacity;
    }
    SceneFile file = {.root = root, .member = member};
    TRY(pool_add(&f->pool, name, "", "", &file.name));
    f->files[f->count++] = file;
    return STATUS_OK;
}

static Status add_root(SceneFiles *f, const char *path, Tar *tar) {
    void *block = f->roots;
    if (f->root_count == MAX_ROOTS) return status_set(STATUS_DATA, "more than %d roots", MAX_ROOTS);
    TRY(mem_grow(&block, f->root_count + 1, sizeof(SceneRoot), "list of scene roots"));
    f->roots = block;
    f->roots[f->root_count] = (SceneRoot){0};
    TRY(mem_string(&f->roots[f->root_count].path, path));
    f->roots[f->root_count++].tar = tar;
    return STATUS_OK;
}

static Status add_tar(SceneFiles *f, const char *path) {
    Tar *tar;
    TRY(tar_open(path, &tar));
    Status s = add_root(f, path, tar);
    if (s != STATUS_OK) {
        tar_close(tar);
        return s;
    }
    int32_t root = (int32_t)(f->root_count - 1);
    for (int64_t i = 0; s == STATUS_OK && i < tar_count(tar); i++) {
        const char *name = tar_at(tar, i)->name;
        while (strncmp(name, "./", 2) == 0) name += 2;
        s = add_file(f, root, name, i);
    }
    return s;
}

typedef struct Walk {
    SceneFiles *files;
    int32_t root;
} Walk;

static Status walk(const Walk *w, const char *path, const char *below, int depth);

/* What an entry is, links followed; links to nothing are neither. */
static void entry_kind(const char *path, const struct dirent *e, bool *folder, bool *file) {
    struct stat st;
    *folder = e->d_type == DT_DIR;
    *file = e->d_type == DT_REG;
    if ((e->d_type != DT_LNK && e->d_type != DT_UNKNOWN) || stat(path, &st) != 0) return;
    *folder = S_ISDIR(st.st_mode);
    *file = S_ISREG(st.st_mode);
}

static Status walk_entry(const Walk *w, const char *path, const char *below, const struct dirent *e,
                         int depth, bool folders) {
    char *full, *name = NULL;
    bool folder, file;
    TRY(path_join(&full, path, e->d_name));
    entry_kind(full, e, &folder, &file);
    Status s = *below ? path_join(&name, below, e->d_name) : mem_string(&name, e->d_name);
    if (s == STATUS_OK && folders && folder) {
        s = walk(w, full, name, depth + 1);
    } else if (s == STATUS_OK && !folders && file) {
        bool tar = depth == 0 && has_suffix(e->d_name, ".tar");
        s = tar ? add_tar(w->files, full) : add_file(w->files, w->root, name, -1);
    }
    mem_free(name);
    mem_free(full);
    return s;
}

/* Files before folders: camera files lie beside the folders of their pictures, and a quick look
 * must come to them first. */
static Status walk(const Walk *w, const char *path, const char *below, int depth) {
    char shown[SHOWN];
    text_printable(path, shown, sizeof shown);
    if (depth > MAX_DEPTH)
        return status_set(STATUS_DATA, "%s: folders nested deeper than %d", shown, MAX_DEPTH);
    DIR *dir = opendir(path);
    if (dir == NULL) return status_errno("cannot open folder %s", shown);
    Status s = STATUS_OK;
    for (int pass = 0; s == STATUS_OK && pass < 2; pass++) {
        rewinddir(dir);
        for (const struct dirent *e;
             s == STATUS_OK && !is_full(w->files) && (e = readdir(dir)) != NULL;)
            if (e->d_name[0] != '.') s = walk_entry(w, path, below, e, depth, pass == 1);
    }
    closedir(dir);
    return s;
}

static Status add_place(SceneFiles *f, const char *path) {
    if (!file_is_folder(path)) return add_tar(f, path);
    TRY(add_root(f, path, NULL));
    Walk w = {f, (int32_t)(f->root_count - 1)};
    return walk(&w, path, "", 0);
}

static int by_root_and_name(const void *a, const void *b, void *user) {
    const SceneFile *x = a, *y = b;
    const char *text = user;
    if (x->root != y->root) return x->root < y->root ? -1 : 1;
    return strcmp(text + x->name, text + y->name);
}

Status scene_files_open(const char *roots, int64_t limit, SceneFiles *out) {
    Status s = STATUS_OK;
    *out = (SceneFiles){.limit = limit};
    for (const char *at = roots; s == STATUS_OK && *at != '\0';) {
        char *one;
        size_t n = strcspn(at, ",");
        s = mem_string_n(&one, at, n);
        if (s != STATUS_OK) break;
        if (n > 0) s = add_place(out, one);
        mem_free(one);
        at += n + (at[n] == ',');
    }
    if (s != STATUS_OK) {
        scene_files_close(out);
        return s;
    }
    if (out->count > 1)
        qsort_r(out->files, (size_t)out->count, sizeof(SceneFile), by_root_and_name,
                out->pool.text);
    return STATUS_OK;
}

void scene_files_close(SceneFiles *f) {
    for (int64_t i = 0; i < f->root_count; i++) {
        mem_free(f->roots[i].path);
        tar_close(f->roots[i].tar);
    }
    mem_free(f->roots);
    mem_free(f->files);
    mem_free(f->pool.text);
    *f = (SceneFiles){0};
}

/* First file of a root whose name is not before `name`. */
static int64_t lower_bound(const SceneFiles *f, int32_t root, const char *name) {
    int64_t low = 0, high = f->count;
    while (low < high) {
        int64_t middle = low + (high - low) / 2;
        const SceneFile *at = &f->files[middle];
        bool before =
            at->root != root ? at->root < root : strcmp(f->pool.text + at->name, name) < 0;
        if (before)
            low = middle + 1;
        else
            high = middle;
    }
    return low;
}

int64_t scene_files_below(const SceneFiles *f, int32_t root, const char *folder, int64_t *first) {
    size_t n = strlen(folder);
    int64_t i = *first = lower_bound(f, root, folder);
    while (i < f->count && f->files[i].root == root &&
           strncmp(scene_file_name(f, i), folder, n) == 0)
        i++;
    return i - *first;
}

int64_t scene_files_find(const SceneFiles *f, int32_t root, const char *name) {
    int64_t i = lower_bound(f, root, name);
    if (i == f->count || f->files[i].root != root) return -1;
    return strcmp(scene_file_name(f, i), name) == 0 ? i : -1;
}

Status scene_files_bytes(const SceneFiles *f, int64_t i, const void **bytes, size_t *size,
                         bool *owned) {
    const SceneRoot *root = &f->roots[f->files[i].root];
    *owned = root->tar == NULL;
    if (!*owned) {
        const TarMember *m = tar_at(root->tar, f->files[i].member);
        *bytes = m->data;
        *size = m->size;
        return STATUS_OK;
    }
    char *path, *data = NULL;
    TRY(path_join(&path, root->path, scene_file_name(f, i)));
    Status s = file_read(path, IMAGE_MAX_FILE_BYTES, &data, size);
    mem_free(path);
    *bytes = data;
    return s;
}

Status scene_files_text(const SceneFiles *f, int64_t i, char **text, size_t *size) {
    const void *bytes;
    bool owned;
    TRY(scene_files_bytes(f, i, &bytes, size, &owned));
    if (owned) {
        *text = (char *)(uintptr_t)bytes; /* file_read ends it with a NUL */
        return STATUS_OK;
    }
    void *copy;
    TRY(mem_alloc(&copy, (int64_t)*size + 1, 1, "camera file"));
    if (*size > 0) memcpy(copy, bytes, *size);
    *text = copy;
    return STATUS_OK;
}

const char *scene_files_shown(const SceneFiles *f, int64_t i, char *text, size_t size) {
    const SceneRoot *root = &f->roots[f->files[i].root];
    char raw[2 * SHOWN];
    snprintf(raw, sizeof raw, "%s%s%s", root->path, root->tar != NULL ? ":" : "/",
             scene_file_name(f, i));
    return text_printable(raw, text, size);
}
