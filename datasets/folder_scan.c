/* Walking a split folder on disk. */
#include <dirent.h>
#include <errno.h>
#include <string.h>
#include <strings.h>
#include <sys/stat.h>

#include "core/clock.h"
#include "core/file.h"
#include "core/log.h"
#include "core/memory.h"
#include "datasets/folder_internal.h"

enum { MAX_DEPTH = 32, SHOWN = 600 };

Status pool_add(TextPool *p, const char *a, const char *b, const char *c, size_t *offset) {
    size_t la = strlen(a), lb = strlen(b), lc = strlen(c), need = p->used + la + lb + lc + 1;
    if (need > p->capacity) {
        size_t capacity = need * 2 > 4096 ? need * 2 : 4096;
        void *block = p->text;
        TRY(mem_grow(&block, (int64_t)capacity, 1, "file names"));
        p->text = block;
        p->capacity = capacity;
    }
    char *to = p->text + p->used;
    memcpy(to, a, la);
    memcpy(to + la, b, lb);
    memcpy(to + la + lb, c, lc + 1);
    *offset = p->used;
    p->used = need;
    return STATUS_OK;
}

void scan_free(Scan *s) {
    for (int64_t i = 0; i < s->archive_count; i++) tar_close(s->archives[i]);
    mem_free(s->archives);
    mem_free(s->pool.text);
    mem_free(s->files);
    mem_free(s->folders);
    mem_free(s->place);
    *s = (Scan){0};
}

/* Room for one more element in *block. */
static Status reserve_one(void **block, int64_t count, int64_t *capacity, size_t size,
                          const char *what) {
    if (count < *capacity) return STATUS_OK;
    int64_t bigger = *capacity > 0 ? 2 * *capacity : 64;
    TRY(mem_grow(block, bigger, size, what));
    *capacity = bigger;
    return STATUS_OK;
}

static bool is_hidden(const char *inside) {
    for (const char *part = inside; part != NULL; part = strchr(part, '/')) {
        if (*part == '/') part++;
        if (*part == '.') return true;
    }
    return false;
}

bool has_image_suffix(const char *name) {
    static const char *const suffixes[] = {".jpg", ".jpeg", ".jpe", ".jfif", ".png"};
    const char *dot = strrchr(name, '.');
    if (dot == NULL || strchr(dot, '/') != NULL) return false;
    for (size_t i = 0; i < sizeof suffixes / sizeof suffixes[0]; i++) {
        if (strcasecmp(dot, suffixes[i]) == 0) return true;
    }
    return false;
}

/* The first file that is passed over is named, the others are only counted. */
static void count_other(Scan *s, const char *path, const char *why) {
    char shown[SHOWN];
    if (s->report.other_files++ == 0) {
        log_info("%s: %s; such files are passed over", text_printable(path, shown, sizeof shown),
                 why);
    }
}

/* A tree of a million files on a slow disk takes minutes, in which nothing else is heard. */
static void tell_progress(Scan *s) {
    enum { LOOKS = 256, SECONDS = 10 };
    if (s->count % LOOKS != 1) return;
    const double now = seconds_now();
    if (s->told > 0 && now - s->told < SECONDS) return;
    if (s->told > 0) log_info("looking for images: %lld so far", (long long)s->count);
    s->told = now;
}

Status scan_add(Scan *s, const char *prefix, const char *inside, int32_t archive, int64_t member) {
    if (is_hidden(inside)) {
        s->report.hidden_skipped++;
        return STATUS_OK;
    }
    if (!has_image_suffix(inside)) {
        count_other(s, inside, "not named .jpg, .jpeg or .png");
        return STATUS_OK;
    }
    void *block = s->files;
    TRY(reserve_one(&block, s->count, &s->capacity, sizeof(Found), "list of images"));
    s->files = block;
    Found f = {.archive = archive, .member = member, .label = -1};
    f.inside = (uint32_t)strlen(prefix);
    TRY(pool_add(&s->pool, prefix, inside, "", &f.name));
    s->files[s->count++] = f;
    tell_progress(s);
    return STATUS_OK;
}

Status scan_add_folder(Scan *s, const char *name) {
    void *block = s->folders;
    TRY(reserve_one(&block, s->folder_count, &s->folder_capacity, sizeof(size_t),
                    "list of class folders"));
    s->folders = block;
    size_t offset;
    TRY(pool_add(&s->pool, name, "", "", &offset));
    s->folders[s->folder_count++] = offset;
    return STATUS_OK;
}

/* One folder on the way down; the chain finds symbolic links that lead back up. */
typedef struct Level {
    const struct Level *up;
    dev_t device;
    ino_t inode;
    int depth;
} Level;

typedef struct Walk {
    Scan *scan;
    TextPool path; /* current path, NUL-terminated */
    char *prefix;  /* the split folder with a slash */
    size_t root;   /* its length */
    bool follow;
} Walk;

static Status walk_folder(Walk *w, const Level *up);

static bool is_above(const Level *l, const struct stat *st) {
    for (; l != NULL; l = l->up) {
        if (l->device == st->st_dev && l->inode == st->st_ino) return true;
    }
    return false;
}

static Status walk_below(Walk *w, const Level *up, const struct stat *st) {
    char shown[SHOWN];
    text_printable(w->path.text, shown, sizeof shown);
    if (is_above(up, st)) {
        log_warn("%s: a symbolic link that leads back to a folder above it; skipped", shown);
        w->scan->report.other_files++;
        return STATUS_OK;
    }
    if (up->depth + 1 >= MAX_DEPTH) {
        return status_set(STATUS_DATA, "%s: folders nested deeper than %d", shown, MAX_DEPTH);
    }
    if (up->depth == 0) TRY(scan_add_folder(w->scan, w->path.text + w->root));
    Level here = {up, st->st_dev, st->st_ino, up->depth + 1};
    return walk_folder(w, &here);
}

static Status dangling(Walk *w) {
    char shown[SHOWN];
    log_warn("%s: a symbolic link to nothing; skipped",
             text_printable(w->path.text, shown, sizeof shown));
    w->scan->report.dangling_links++;
    return STATUS_OK;
}

static Status add_file(Walk *w) {
    return scan_add(w->scan, w->prefix, w->path.text + w->root, -1, -1);
}

static Status walk_entry(Walk *w, const Level *up, const struct dirent *e) {
    struct stat st;
    if (e->d_type == DT_REG) return add_file(w);
    bool link = e->d_type == DT_LNK;
    if (e->d_type == DT_UNKNOWN && lstat(w->path.text, &st) == 0) link = S_ISLNK(st.st_mode);
    if (link && !w->follow) {
        count_other(w->scan, w->path.text, "a symbolic link (data.follow_symlinks is off)");
        return STATUS_OK;
    }
    if (stat(w->path.text, &st) != 0) {
        if (link && (errno == ENOENT || errno == ELOOP || errno == ENOTDIR)) return dangling(w);
        char shown[SHOWN];
        return status_errno("cannot look at %s", text_printable(w->path.text, shown, sizeof shown));
    }
    if (S_ISDIR(st.st_mode)) return walk_below(w, up, &st);
    if (S_ISREG(st.st_mode)) return add_file(w);
    count_other(w->scan, w->path.text, "a FIFO, socket or device");
    return STATUS_OK;
}

static Status walk_entries(Walk *w, const Level *up, DIR *dir) {
    size_t length = w->path.used - 1, offset;
    for (;;) {
        errno = 0;
        const struct dirent *e = readdir(dir);
        if (e == NULL) break;
        const char *name = e->d_name;
        if (strcmp(name, ".") == 0 || strcmp(name, "..") == 0) continue;
        if (name[0] == '.') {
            w->scan->report.hidden_skipped++;
            continue;
        }
        w->path.used = length;
        TRY(pool_add(&w->path, "/", name, "", &offset));
        TRY(walk_entry(w, up, e));
    }
    int error = errno;
    w->path.used = length;
    TRY(pool_add(&w->path, "", "", "", &offset));
    char shown[SHOWN];
    errno = error;
    if (error == 0) return STATUS_OK;
    return status_errno("cannot list %s", text_printable(w->path.text, shown, sizeof shown));
}

static Status walk_folder(Walk *w, const Level *up) {
    DIR *dir = opendir(w->path.text);
    if (dir == NULL) {
        char shown[SHOWN];
        return status_errno("cannot open folder %s",
                            text_printable(w->path.text, shown, sizeof shown));
    }
    Status s = walk_entries(w, up, dir);
    closedir(dir);
    return s;
}

static Status walk_start(Walk *w, const char *path) {
    struct stat st;
    size_t offset, length = strlen(path);
    char shown[SHOWN];
    if (stat(path, &st) != 0) {
        return status_errno("cannot open %s", text_printable(path, shown, sizeof shown));
    }
    while (length > 1 && path[length - 1] == '/') length--;
    TRY(pool_add(&w->path, path, "", "", &offset));
    w->path.text[length] = '\0';
    w->path.used = length + 1;
    TRY(path_join(&w->prefix, w->path.text, ""));
    w->root = length + 1;
    Level top = {NULL, st.st_dev, st.st_ino, 0};
    return walk_folder(w, &top);
}

Status scan_folder(Scan *s, const char *path, bool follow_symlinks) {
    Walk w = {.scan = s, .follow = follow_symlinks};
    Status status = walk_start(&w, path);
    mem_free(w.path.text);
    mem_free(w.prefix);
    return status;
}
