/* Atomic writes: the file appears complete under its name, or not at all. */
#include "core/file.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/statvfs.h>
#include <unistd.h>

#include "core/memory.h"

enum { BUFFER = 1 << 16, SHOWN = 600 };

struct FileWriter {
    char *path; /* where the file shall appear, links resolved */
    char *temporary;
    int fd;
    int error; /* first errno; every later call repeats it */
    uint64_t expected, written;
    size_t used;
    char buffer[BUFFER];
};

static atomic_uint next_number;

/* "/a/b" -> "/a", "b" -> "."; in place. */
static const char *folder_of(char *path) {
    char *slash = strrchr(path, '/');
    if (slash == NULL) return ".";
    if (slash == path) return "/";
    *slash = '\0';
    return path;
}

/* The message of the writer's first error; `action` as in "cannot <action> 'x'". */
static Status writer_failed(FileWriter *w, const char *action, uint64_t need) {
    char shown[SHOWN];
    text_printable(w->path, shown, sizeof shown);
    errno = w->error;
    struct statvfs fs;
    bool full = w->error == ENOSPC || w->error == EDQUOT || w->error == EFBIG;
    if (!full || fstatvfs(w->fd, &fs) != 0) {
        errno = w->error;
        return status_errno("cannot %s '%s'", action, shown);
    }
    if (need < w->written) need = w->written;
    if (w->expected < need) w->expected = need; /* later repetitions of this error say the same */
    errno = w->error;
    return status_errno("cannot %s '%s': needs %llu bytes, %llu are free on its disk", action,
                        shown, (unsigned long long)w->expected,
                        (unsigned long long)fs.f_bavail * fs.f_frsize);
}

static void writer_free(FileWriter *w) {
    if (w->fd >= 0) close(w->fd);
    mem_free(w->path);
    mem_free(w->temporary);
    mem_free(w);
}

void file_writer_abort(FileWriter *w) {
    if (w == NULL) return;
    if (w->fd >= 0) unlink(w->temporary);
    writer_free(w);
}

/* The target's real name: through links, so that the file behind a link is replaced, not the link.
 */
static Status resolve_target(const char *path, char **out) {
    struct stat st;
    if (lstat(path, &st) == 0 && S_ISLNK(st.st_mode)) {
        char real[PATH_MAX];
        if (realpath(path, real) != NULL) return mem_string(out, real);
    }
    return mem_string(out, path);
}

static Status open_temporary(FileWriter *w) {
    void *block;
    size_t size = strlen(w->path) + 48;
    TRY(mem_alloc(&block, (int64_t)size, 1, "a path"));
    w->temporary = block;
    for (int attempt = 0; attempt < 100; attempt++) {
        snprintf(w->temporary, size, "%s.tmp-%ld-%u", w->path, (long)getpid(),
                 atomic_fetch_add(&next_number, 1u));
        w->fd = open(w->temporary, O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0666);
        if (w->fd >= 0 || errno != EEXIST) break;
    }
    if (w->fd >= 0) return STATUS_OK;
    w->error = errno;
    return writer_failed(w, "create", 0);
}

static Status writer_start(FileWriter *w, const char *path) {
    TRY(resolve_target(path, &w->path));
    struct stat st;
    bool exists = stat(w->path, &st) == 0;
    if (exists && !S_ISREG(st.st_mode)) {
        char shown[SHOWN];
        return status_set(STATUS_IO, "cannot write '%s': it is a %s, not a regular file",
                          text_printable(path, shown, sizeof shown), file_kind(w->path));
    }
    TRY(open_temporary(w));
    /* Best effort: a foreign owner's file may be replaced, but its mode cannot always be copied. */
    if (exists && fchmod(w->fd, st.st_mode & 07777) != 0) errno = 0;
    return STATUS_OK;
}

Status file_writer_open(const char *path, FileWriter **out) {
    void *block;
    *out = NULL;
    if (path[0] == '\0') return status_set(STATUS_IO, "cannot write: the file name is empty");
    TRY(mem_alloc(&block, 1, sizeof(FileWriter), "a file writer"));
    FileWriter *w = block;
    w->fd = -1;
    Status s = writer_start(w, path);
    if (s != STATUS_OK) {
        file_writer_abort(w);
        return s;
    }
    *out = w;
    return STATUS_OK;
}

Status file_writer_expect(FileWriter *w, uint64_t bytes) {
    w->expected = bytes;
    if (w->error != 0) return writer_failed(w, "write", 0);
    if (bytes == 0 || bytes > INT64_MAX) return STATUS_OK;
    if (fallocate(w->fd, FALLOC_FL_KEEP_SIZE, 0, (off_t)bytes) == 0) return STATUS_OK;
    /* Anything else (no such call on this file system, a signal) is no reason not to try the
     * writes. */
    if (errno != ENOSPC && errno != EDQUOT && errno != EFBIG) return STATUS_OK;
    w->error = errno;
    return writer_failed(w, "write", bytes);
}

static Status write_out(FileWriter *w, const char *data, size_t bytes) {
    while (bytes > 0) {
        ssize_t put = write(w->fd, data, bytes);
        if (put < 0 && errno == EINTR) continue;
        if (put <= 0) {
            w->error = put < 0 ? errno : EIO;
            return writer_failed(w, "write", w->written + bytes);
        }
        data += put;
        bytes -= (size_t)put;
        w->written += (uint64_t)put;
    }
    return STATUS_OK;
}

static Status flush_buffer(FileWriter *w) {
    size_t used = w->used;
    w->used = 0;
    return write_out(w, w->buffer, used);
}

Status file_writer_write(FileWriter *w, const void *data, size_t bytes) {
    if (w->error != 0) return writer_failed(w, "write", 0);
    if (w->used + bytes > BUFFER) TRY(flush_buffer(w));
    if (bytes > BUFFER) return write_out(w, data, bytes);
    if (bytes > 0) memcpy(w->buffer + w->used, data, bytes);
    w->used += bytes;
    return STATUS_OK;
}

static Status writer_finish(FileWriter *w) {
    if (w->error != 0) return writer_failed(w, "write", 0);
    TRY(flush_buffer(w));
    int result;
    do {
        result = fsync(w->fd);
    } while (result != 0 && errno == EINTR);
    if (result != 0) {
        w->error = errno;
        return writer_failed(w, "fsync", 0);
    }
    int fd = w->fd;
    w->fd = -1;
    if (close(fd) != 0 && errno != EINTR) {
        w->error = errno;
        return writer_failed(w, "close", 0);
    }
    if (rename(w->temporary, w->path) != 0) {
        w->error = errno;
        return writer_failed(w, "rename to", 0);
    }
    return STATUS_OK;
}

Status file_writer_commit(FileWriter *w) {
    Status s = writer_finish(w);
    if (s != STATUS_OK) {
        unlink(w->temporary);
    } else {
        s = file_sync_folder(folder_of(w->path));
    }
    writer_free(w);
    return s;
}

Status file_write_atomic(const char *path, const void *data, size_t bytes) {
    FileWriter *w;
    TRY(file_writer_open(path, &w));
    Status s = file_writer_write(w, data, bytes);
    if (s == STATUS_OK) return file_writer_commit(w);
    file_writer_abort(w);
    return s;
}

/* Whether the name ends in ".tmp-<pid>-<n>" and no process of that id is alive. */
static bool is_orphan(const char *name) {
    const char *mark = NULL;
    for (const char *p = strstr(name, ".tmp-"); p != NULL; p = strstr(p + 1, ".tmp-")) mark = p;
    if (mark == NULL) return false;
    const char *digits = mark + 5;
    size_t pid_length = strspn(digits, "0123456789");
    if (pid_length == 0 || pid_length > 10 || digits[pid_length] != '-') return false;
    const char *number = digits + pid_length + 1;
    size_t number_length = strspn(number, "0123456789");
    if (number_length == 0 || number[number_length] != '\0') return false;
    long pid = strtol(digits, NULL, 10);
    return pid > 0 && pid <= INT_MAX && kill((pid_t)pid, 0) != 0 && errno == ESRCH;
}

Status file_clean_temporaries(const char *folder, int *removed) {
    char shown[SHOWN];
    text_printable(folder, shown, sizeof shown);
    *removed = 0;
    DIR *dir = opendir(folder);
    if (dir == NULL) return status_errno("cannot open folder '%s'", shown);
    Status s = STATUS_OK;
    for (;;) {
        errno = 0;
        struct dirent *entry = readdir(dir);
        if (entry == NULL) {
            if (errno != 0) s = status_errno("cannot list folder '%s'", shown);
            break;
        }
        if (is_orphan(entry->d_name) && unlinkat(dirfd(dir), entry->d_name, 0) == 0) (*removed)++;
    }
    closedir(dir);
    return s;
}
