/* Making, locking and filling the folder of a training run. */
#include "tools/run_folder.h"

#include <errno.h>
#include <fcntl.h>
#include <dirent.h>
#include <limits.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <sys/statvfs.h>
#include <time.h>
#include <unistd.h>

#include "core/clock.h"
#include "core/file.h"
#include "core/log.h"
#include "core/memory.h"
#include "tools/cli.h"
#include "tools/run_metrics.h"

enum { MAX_SUFFIX = 10000, PATH_ROOM = 4096, MAX_MANIFEST_BYTES = 1 << 20 };

/* ---- lock ---- */

static Status lock_refused(const char *path, int fd) {
    char owner[160] = "";
    ssize_t n = pread(fd, owner, sizeof owner - 1, 0);
    if (n > 0) owner[n] = 0;
    owner[strcspn(owner, "\n")] = 0;
    return status_set(STATUS_IO, "%s: another process works in this run folder (%s)", path,
                      *owner ? owner : "unknown");
}

#define LOCK_PATIENCE_S 2.0 /* a process that was just killed may still be writing */

/* The lock is the kernel's (flock), so a killed process leaves none; the text is for people. A
 * finished run unlinks the file: after locking, make sure that it is still the one behind the name.
 */
static Status lock_take(RunFolder *r) {
    char *path;
    TRY(path_join(&path, r->path, "lock"));
    Status s = STATUS_OK;
    const double until = seconds_now() + LOCK_PATIENCE_S;
    for (;;) {
        struct stat held, named;
        int fd = open(path, O_RDWR | O_CREAT | O_CLOEXEC, 0666);
        if (fd < 0) {
            s = status_errno("%s", path);
            break;
        }
        if (flock(fd, LOCK_EX | LOCK_NB) != 0) {
            if (errno == EWOULDBLOCK && seconds_now() < until) {
                close(fd);
                nanosleep(&(struct timespec){.tv_nsec = 50000000}, NULL);
                continue;
            }
            s = errno == EWOULDBLOCK ? lock_refused(r->path, fd) : status_errno("%s", path);
            close(fd);
            break;
        }
        if (fstat(fd, &held) == 0 && stat(path, &named) == 0 && held.st_ino == named.st_ino) {
            r->lock = fd;
            break;
        }
        close(fd);
    }
    if (s == STATUS_OK) {
        char host[64] = "", text[128];
        gethostname(host, sizeof host - 1);
        int n = snprintf(text, sizeof text, "pid %ld on %s\n", (long)getpid(), host);
        if (ftruncate(r->lock, 0) != 0 || pwrite(r->lock, text, (size_t)n, 0) != n)
            s = status_errno("%s", path);
    }
    mem_free(path);
    return s;
}

static void lock_give(RunFolder *r) {
    if (r->lock < 0) return;
    char *path;
    if (path_join(&path, r->path, "lock") == STATUS_OK) {
        unlink(path); /* while the lock is still held: nobody else can be behind it */
        mem_free(path);
    }
    close(r->lock);
    r->lock = -1;
}

/* ---- the folder ---- */

static bool folder_empty(const char *path) {
    DIR *d = opendir(path);
    if (!d) return false;
    int entries = 0;
    while (entries < 3 && readdir(d)) entries++;
    closedir(d);
    return entries <= 2; /* . and .. */
}

static bool holds_checkpoint(const char *path) {
    char *last;
    if (path_join(&last, path, "last.json") != STATUS_OK) return true;
    bool yes = file_exists(last);
    mem_free(last);
    return yes;
}

static Status make_parent(const char *path) {
    char parent[PATH_ROOM];
    const char *slash = strrchr(path, '/');
    if (!slash || slash == path) return STATUS_OK;
    memcpy(parent, path, (size_t)(slash - path));
    parent[slash - path] = 0;
    return file_make_folder(parent);
}

/* Tries one name: *taken tells that it is in use. */
static Status try_name(const char *path, bool exist_ok, bool *taken) {
    *taken = false;
    if (mkdir(path, 0777) == 0) return STATUS_OK;
    if (errno != EEXIST) return status_errno("%s", path);
    if (!file_is_folder(path))
        return status_set(STATUS_IO, "%s exists and is no folder: choose another --output", path);
    if (folder_empty(path)) return STATUS_OK;
    if (exist_ok && holds_checkpoint(path))
        return status_set(
            STATUS_USAGE,
            "%s holds a checkpoint: continue it with --resume last, or choose another "
            "--output",
            path);
    *taken = !exist_ok;
    return STATUS_OK;
}

Status run_folder_check_events(const char *tensorboard) {
    if (!*tensorboard) return STATUS_OK;
    TRY(status_context(file_make_folder(tensorboard), "--tensorboard"));
    if (access(tensorboard, W_OK | X_OK) == 0) return STATUS_OK;
    return status_errno("--tensorboard: %s: a folder to write in was expected", tensorboard);
}

Status run_folder_create(RunFolder *r, const char *wanted, bool exist_ok) {
    *r = (RunFolder){.lock = -1};
    char base[PATH_ROOM - 16], path[PATH_ROOM];
    size_t length = strlen(wanted);
    while (length > 1 && wanted[length - 1] == '/') length--;
    if (length == 0 || length >= sizeof base)
        return status_set(STATUS_USAGE, "--output is %s", length ? "too long" : "empty");
    memcpy(base, wanted, length);
    base[length] = 0;
    TRY(make_parent(base));
    bool taken = true;
    for (int i = 1; taken && i < MAX_SUFFIX; i++) {
        if (i == 1)
            snprintf(path, sizeof path, "%s", base);
        else
            snprintf(path, sizeof path, "%s-%d", base, i);
        TRY(try_name(path, exist_ok, &taken));
    }
    if (taken) return status_set(STATUS_IO, "%s: %d runs of that name exist", base, MAX_SUFFIX - 1);
    return run_folder_open(r, path);
}

Status run_folder_open(RunFolder *r, const char *path) {
    *r = (RunFolder){.lock = -1};
    if (!file_is_folder(path)) return status_set(STATUS_IO, "%s is no folder", path);
    TRY(mem_string(&r->path, path));
    Status s = lock_take(r);
    int removed = 0;
    if (s == STATUS_OK) s = file_clean_temporaries(r->path, &removed);
    char *checkpoints = NULL;
    if (s == STATUS_OK) s = path_join(&checkpoints, r->path, "checkpoints");
    if (s == STATUS_OK && file_is_folder(checkpoints))
        s = file_clean_temporaries(checkpoints, &removed);
    mem_free(checkpoints);
    if (s != STATUS_OK) run_folder_close(r);
    return s;
}

static Status open_append(const RunFolder *r, const char *name, FILE **out) {
    char *path;
    TRY(path_join(&path, r->path, name));
    *out = fopen(path, "ae");
    Status s = *out ? STATUS_OK : status_errno("%s", path);
    mem_free(path);
    return s;
}

/* Event files of several runs lie side by side in folders of their names. */
static Status open_events(RunFolder *r, int64_t resumed_step) {
    char *folder, whole[PATH_MAX];
    if (!r->tensorboard || !*r->tensorboard) return STATUS_OK;
    if (!realpath(r->path, whole)) return status_errno("%s", r->path);
    TRY(path_join(&folder, r->tensorboard, strrchr(whole, '/') + 1));
    const Status s = event_file_open(folder, resumed_step < 0 ? 0 : resumed_step + 1, &r->events);
    mem_free(folder);
    return s;
}

/* Where last.json is lost, the manifest of the best checkpoint becomes that of the last. */
static Status take_best(const RunFolder *r) {
    char *from = NULL, *to = NULL, *text = NULL;
    size_t size = 0;
    Status s = path_join(&from, r->path, "best.json");
    if (s == STATUS_OK) s = path_join(&to, r->path, "last.json");
    if (s == STATUS_OK) s = file_read(from, MAX_MANIFEST_BYTES, &text, &size);
    if (s == STATUS_OK) s = file_write_atomic(to, text, size);
    if (s == STATUS_OK)
        log_warn("%s has no last.json (any more): going on from its best checkpoint", r->path);
    mem_free(from);
    mem_free(to);
    mem_free(text);
    return s;
}

Status run_folder_start(RunFolder *r, int64_t resumed_step) {
    TRY(metrics_trim(r, resumed_step));
    TRY(open_append(r, "log.txt", &r->log));
    TRY(open_append(r, "metrics.jsonl", &r->jsonl));
    TRY(open_append(r, "metrics.csv", &r->csv));
    output_tee(r->log);
    if (r->resumed && strcmp(r->resumed, "best") == 0) TRY(take_best(r));
    TRY(open_events(r, resumed_step));
    return metrics_begin(r);
}

Status run_folder_write_config(const RunFolder *r, const Config *c) {
    char *text, *path = NULL;
    TRY(config_write(c, true, &text));
    Status s = path_join(&path, r->path, "config.ini");
    if (s == STATUS_OK) s = file_write_atomic(path, text, strlen(text));
    mem_free(path);
    mem_free(text);
    return s;
}

static void close_file(RunFolder *r, FILE **file) {
    if (*file && fclose(*file) != 0 && r->status == STATUS_OK)
        r->status = status_errno("%s: a log or metrics file", r->path);
    *file = NULL;
}

void run_folder_close(RunFolder *r) {
    output_tee(NULL);
    close_file(r, &r->log);
    close_file(r, &r->jsonl);
    close_file(r, &r->csv);
    const Status events = event_file_close(r->events);
    if (events != STATUS_OK && r->status == STATUS_OK) r->status = events;
    r->events = NULL;
    lock_give(r);
    mem_free(r->path);
    r->path = NULL;
}

/* Weights (buffers among them) and two moments, F32, their average twice (as weights and as state),
 * and what headers and manifests take. */
uint64_t run_checkpoint_bytes(const Params *p, bool average) {
    const uint64_t copies = average ? 5 : 3;
    return copies * ((uint64_t)p->flat * 4 + (uint64_t)p->count * 256) + 32768;
}

Status run_check_disk(const char *path, const Params *p, bool average) {
    uint64_t available, need = run_checkpoint_bytes(p, average);
    TRY(disk_free(path, &available));
    if (available >= need) return STATUS_OK;
    return status_set(STATUS_IO, "%s: a checkpoint needs %.1f MB, only %.1f MB are free", path,
                      (double)need / 1e6, (double)available / 1e6);
}

Status disk_free(const char *path, uint64_t *bytes) {
    char at[PATH_ROOM];
    struct statvfs fs;
    snprintf(at, sizeof at, "%s", *path ? path : ".");
    while (statvfs(at, &fs) != 0) {
        char *slash = strrchr(at, '/');
        if (errno != ENOENT || strcmp(at, ".") == 0 || slash == at)
            return status_errno("%s: free space", path);
        if (slash)
            *slash = 0;
        else
            snprintf(at, sizeof at, ".");
    }
    *bytes = (uint64_t)fs.f_bavail * fs.f_frsize;
    return STATUS_OK;
}
