#include "core/file.h"

#include <errno.h>
#include <fcntl.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include "core/memory.h"

enum { SHOWN = 600 }; /* bytes of a path in a message, so that the reason behind it still fits */

static const char *kind_of(mode_t mode) {
    if (S_ISREG(mode)) return "regular file";
    if (S_ISDIR(mode)) return "directory";
    if (S_ISFIFO(mode)) return "FIFO";
    if (S_ISSOCK(mode)) return "socket";
    if (S_ISCHR(mode)) return "character device";
    if (S_ISBLK(mode)) return "block device";
    return "special file";
}

const char *file_kind(const char *path) {
    struct stat st;
    return stat(path, &st) == 0 ? kind_of(st.st_mode) : NULL;
}

/* Opens a regular file for reading. The check precedes open(), which may block (FIFO) or have
 * effects (devices), and is repeated on the descriptor in case the name changed hands. */
static Status open_regular(const char *path, int *fd, struct stat *st) {
    char shown[SHOWN];
    text_printable(path, shown, sizeof shown);
    if (path[0] == '\0') return status_set(STATUS_DATA, "the file name is empty");
    if (stat(path, st) != 0) return status_errno("cannot open '%s'", shown);
    if (!S_ISREG(st->st_mode)) {
        return status_set(STATUS_DATA, "'%s' is a %s, not a regular file", shown,
                          kind_of(st->st_mode));
    }
    *fd = open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK | O_NOCTTY);
    if (*fd < 0) return status_errno("cannot open '%s'", shown);
    if (fstat(*fd, st) == 0 && S_ISREG(st->st_mode)) return STATUS_OK;
    close(*fd);
    return status_set(STATUS_DATA, "'%s' is not a regular file", shown);
}

/* Reads until the end of the file or until `limit` bytes are there. */
static Status read_bytes(int fd, char *data, size_t limit, size_t *size) {
    *size = 0;
    while (*size < limit) {
        ssize_t got = read(fd, data + *size, limit - *size);
        if (got == 0) break;
        if (got < 0 && errno == EINTR) continue;
        if (got < 0) return status_errno("cannot read");
        *size += (size_t)got;
    }
    return STATUS_OK;
}

static Status read_open(int fd, size_t expected, size_t max_bytes, char **data, size_t *size) {
    if (expected > max_bytes) {
        return status_set(STATUS_DATA, "%zu bytes, but at most %zu are accepted", expected,
                          max_bytes);
    }
    void *block;
    TRY(mem_alloc(&block, (int64_t)expected + 2, 1, "a file's content"));
    char *text = block;
    Status s = read_bytes(fd, text, expected + 1, size);
    if (s == STATUS_OK && *size > expected) {
        s = status_set(STATUS_DATA, "the file grew while it was read");
    }
    if (s != STATUS_OK) {
        mem_free(text);
        return s;
    }
    text[*size] = '\0';
    *data = text;
    return STATUS_OK;
}

Status file_read(const char *path, size_t max_bytes, char **data, size_t *size) {
    int fd = -1;
    struct stat st;
    *data = NULL;
    *size = 0;
    TRY(open_regular(path, &fd, &st));
    Status s = read_open(fd, (size_t)st.st_size, max_bytes, data, size);
    close(fd);
    char shown[SHOWN];
    return status_context(s, "'%s'", text_printable(path, shown, sizeof shown));
}

Status file_map(const char *path, FileMap *map) {
    int fd = -1;
    struct stat st;
    *map = (FileMap){0};
    TRY(open_regular(path, &fd, &st));
    Status s = STATUS_OK;
    if (st.st_size > 0) {
        void *data = mmap(NULL, (size_t)st.st_size, PROT_READ, MAP_PRIVATE, fd, 0);
        if (data == MAP_FAILED) {
            char shown[SHOWN];
            s = status_errno("cannot map '%s' (%lld bytes)",
                             text_printable(path, shown, sizeof shown), (long long)st.st_size);
        } else {
            map->data = data;
            map->size = (size_t)st.st_size;
        }
    }
    close(fd);
    return s;
}

void file_unmap(FileMap *map) {
    if (map->data != NULL) munmap((void *)(uintptr_t)map->data, map->size);
    *map = (FileMap){0};
}

static Status make_one_folder(const char *path) {
    if (mkdir(path, 0777) == 0 || (errno == EEXIST && file_is_folder(path))) return STATUS_OK;
    char shown[SHOWN];
    return status_errno("cannot make folder '%s'", text_printable(path, shown, sizeof shown));
}

Status file_make_folder(const char *path) {
    char *copy;
    if (path[0] == '\0') return status_set(STATUS_USAGE, "the folder name is empty");
    TRY(mem_string(&copy, path));
    Status s = STATUS_OK;
    for (char *p = copy + 1; *p != '\0' && s == STATUS_OK; p++) {
        if (*p != '/') continue;
        *p = '\0';
        s = make_one_folder(copy);
        *p = '/';
    }
    if (s == STATUS_OK) s = make_one_folder(copy);
    mem_free(copy);
    return s;
}

bool file_exists(const char *path) {
    return file_kind(path) != NULL;
}

bool file_is_folder(const char *path) {
    struct stat st;
    return stat(path, &st) == 0 && S_ISDIR(st.st_mode);
}

Status file_sync_folder(const char *path) {
    char shown[SHOWN];
    text_printable(path, shown, sizeof shown);
    int fd = open(path, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    if (fd < 0) return status_errno("cannot open folder '%s'", shown);
    Status s = STATUS_OK;
    /* EINVAL: the file system knows no fsync of folders and keeps its names in order itself. */
    if (fsync(fd) != 0 && errno != EINVAL) s = status_errno("cannot fsync folder '%s'", shown);
    close(fd);
    return s;
}

Status path_join(char **out, const char *a, const char *b) {
    size_t length = strlen(a);
    const char *slash = length == 0 || a[length - 1] == '/' ? "" : "/";
    void *block;
    *out = NULL;
    TRY(mem_alloc(&block, (int64_t)(length + strlen(b) + 2), 1, "a path"));
    char *end = stpcpy(block, a);
    strcpy(stpcpy(end, slash), b);
    *out = block;
    return STATUS_OK;
}
