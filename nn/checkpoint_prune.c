/* Names of step files, and which of them may go. */
#include <dirent.h>
#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "core/file.h"
#include "core/log.h"
#include "core/memory.h"
#include "nn/checkpoint_files.h"

typedef struct StepName {
    int64_t step;
    int revision; /* 1: the plain name; 2 and up: step-00000012-2 */
} StepName;

/* The files of a step. */
enum { FILE_WEIGHTS, FILE_STATE, FILE_EMA, FILES };
static const char *const file_marks[FILES] = {"", ".state", ".ema"};

static void make_name(StepName n, int file, char out[CHECKPOINT_NAME]) {
    char revision[16] = "";
    if (n.revision > 1) snprintf(revision, sizeof revision, "-%d", n.revision);
    snprintf(out, CHECKPOINT_NAME, "checkpoints/step-%08" PRId64 "%s%s.safetensors", n.step,
             revision, file_marks[file]);
}

/* Inverse of make_name for a name inside the folder; false for any other file. */
static bool parse_name(const char *file, StepName *n) {
    char *end, again[CHECKPOINT_NAME];
    if (strncmp(file, "step-", 5) != 0) return false;
    n->step = strtoll(file + 5, &end, 10);
    n->revision = 1;
    if (*end == '-') n->revision = (int)strtol(end + 1, &end, 10);
    if (n->step < 0 || n->revision < 1) return false;
    for (int kind = 0; kind < FILES; kind++) {
        make_name(*n, kind, again);
        if (strcmp(again + strlen("checkpoints/"), file) == 0) return true;
    }
    return false;
}

static bool names_weights(const Manifest *m, StepName n) {
    char name[CHECKPOINT_NAME];
    make_name(n, FILE_WEIGHTS, name);
    return strcmp(m->weights, name) == 0;
}

/* ---- names for a new save --------------------------------------------------------------- */

/* What last.json and best.json name. known: every manifest that exists could be read; when it is
 * not, any file may be in use. */
typedef struct InUse {
    Manifest of[2];
    int count;
    bool known;
} InUse;

static void find_in_use(const char *run_folder, InUse *u) {
    static const char *const which[] = {"last", "best"};
    u->count = 0;
    u->known = true;
    for (int i = 0; i < 2; i++) {
        bool exists = true;
        if (manifest_exists(run_folder, which[i], &exists) == STATUS_OK && !exists) continue;
        if (manifest_read(run_folder, which[i], &u->of[u->count]) == STATUS_OK)
            u->count++;
        else
            u->known = false;
    }
}

static bool is_in_use(const InUse *u, StepName n) {
    for (int i = 0; i < u->count; i++)
        if (names_weights(&u->of[i], n)) return true;
    return false;
}

static Status name_exists(const char *run_folder, StepName n, bool *exists) {
    *exists = false;
    for (int file = 0; file < FILES; file++) {
        char name[CHECKPOINT_NAME], *path;
        make_name(n, file, name);
        TRY(path_join(&path, run_folder, name));
        if (file_exists(path)) *exists = true;
        mem_free(path);
    }
    return STATUS_OK;
}

Status manifest_choose_names(const char *run_folder, Manifest *m) {
    InUse used;
    find_in_use(run_folder, &used);
    for (int revision = 1; revision < 10000; revision++) {
        StepName n = {m->step, revision};
        bool exists;
        TRY(name_exists(run_folder, n, &exists));
        /* Files that no manifest names are left-overs of a save that was killed: overwrite them. */
        if (exists && (!used.known || is_in_use(&used, n))) continue;
        make_name(n, FILE_WEIGHTS, m->weights);
        make_name(n, FILE_STATE, m->state);
        make_name(n, FILE_EMA, m->ema);
        return STATUS_OK;
    }
    return status_set(STATUS_IO, "%s/checkpoints: step %" PRId64 " was saved too often", run_folder,
                      m->step);
}

/* ---- pruning ---------------------------------------------------------------------------- */

typedef struct StepList {
    StepName *items;
    int64_t count, capacity;
} StepList;

static int newest_first(const void *a, const void *b) {
    const StepName *x = a, *y = b;
    if (x->step != y->step) return x->step < y->step ? 1 : -1;
    return x->revision < y->revision ? 1 : x->revision > y->revision ? -1 : 0;
}

static Status list_add(StepList *l, StepName n) {
    for (int64_t i = 0; i < l->count; i++)
        if (newest_first(&l->items[i], &n) == 0) return STATUS_OK;
    if (l->count == l->capacity) {
        void *items = l->items;
        int64_t capacity = l->capacity ? 2 * l->capacity : 32;
        TRY(mem_grow(&items, capacity, sizeof *l->items, "checkpoint list"));
        l->items = items;
        l->capacity = capacity;
    }
    l->items[l->count++] = n;
    return STATUS_OK;
}

static Status list_steps(const char *folder, StepList *l) {
    DIR *dir = opendir(folder);
    if (!dir) return status_errno("cannot list '%s'", folder);
    Status s = STATUS_OK;
    for (struct dirent *e; s == STATUS_OK && (e = readdir(dir));) {
        StepName n;
        if (parse_name(e->d_name, &n)) s = list_add(l, n);
    }
    closedir(dir);
    if (s == STATUS_OK && l->count > 0)
        qsort(l->items, (size_t)l->count, sizeof *l->items, newest_first);
    return s;
}

static void remove_step(const char *run_folder, StepName n) {
    for (int file = 0; file < FILES; file++) {
        char name[CHECKPOINT_NAME], *path;
        make_name(n, file, name);
        if (path_join(&path, run_folder, name) != STATUS_OK) return;
        if (unlink(path) != 0 && errno != ENOENT)
            log_warn("cannot remove the old checkpoint '%s': %s", path, strerror(errno));
        mem_free(path);
    }
}

void checkpoint_prune(const char *run_folder, int keep) {
    InUse used;
    StepList list = {0};
    char *folder = NULL;
    find_in_use(run_folder, &used);
    if (!used.known) {
        log_warn("%s: old checkpoints are kept: %s", run_folder, status_message());
        return;
    }
    Status s = path_join(&folder, run_folder, "checkpoints");
    if (s == STATUS_OK) s = list_steps(folder, &list);
    if (s != STATUS_OK) log_warn("old checkpoints are kept: %s", status_message());
    int64_t kept = 0;
    for (int64_t i = 0; s == STATUS_OK && i < list.count; i++) {
        if (is_in_use(&used, list.items[i])) continue;
        if (kept++ >= keep) remove_step(run_folder, list.items[i]);
    }
    mem_free(list.items);
    mem_free(folder);
}
