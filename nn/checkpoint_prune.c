/* Names of step files, and which of them may go. */
#include <dirent.h>
#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "core/file.h"
#include "core/log.h"
#include "core/memory.h"
#include "nn/checkpoint.h"
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
    bool there[2]; /* last, best */
    bool known;
    Status fault; /* when it is not */
} InUse;

static void find_in_use(const char *run_folder, InUse *u) {
    static const char *const which[] = {"last", "best"};
    u->known = true;
    for (int i = 0; i < 2; i++) {
        bool exists = true;
        u->there[i] = false;
        if (manifest_exists(run_folder, which[i], &exists) == STATUS_OK && !exists) continue;
        const Status s = manifest_read(run_folder, which[i], &u->of[i]);
        u->there[i] = s == STATUS_OK;
        if (s == STATUS_OK) continue;
        u->known = false;
        u->fault = s;
    }
}

static bool names_step(const InUse *u, int which, StepName n) {
    return u->there[which] && names_weights(&u->of[which], n);
}

static bool is_in_use(const InUse *u, StepName n) {
    return names_step(u, 0, n) || names_step(u, 1, n);
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

static Status remove_file(const char *run_folder, StepName n, int file) {
    char name[CHECKPOINT_NAME], *path;
    make_name(n, file, name);
    TRY(path_join(&path, run_folder, name));
    Status s = STATUS_OK;
    if (unlink(path) != 0 && errno != ENOENT)
        s = status_errno("cannot remove the old checkpoint '%s'", path);
    mem_free(path);
    return s;
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
        if (kept++ < keep) continue;
        for (int file = 0; file < FILES; file++)
            if (remove_file(run_folder, list.items[i], file) != STATUS_OK)
                log_warn("%s", status_message());
    }
    mem_free(list.items);
    mem_free(folder);
}

/* ---- for people ------------------------------------------------------------------------- */

/* Bytes of a step's file; 0 when it is not there. */
static Status measure(const char *run_folder, StepName n, int file, uint64_t *bytes, bool *there) {
    char name[CHECKPOINT_NAME], *path;
    struct stat st;
    make_name(n, file, name);
    TRY(path_join(&path, run_folder, name));
    *there = stat(path, &st) == 0;
    *bytes = *there ? (uint64_t)st.st_size : 0;
    mem_free(path);
    return STATUS_OK;
}

static Status describe(const char *run_folder, const InUse *used, StepName n, SavedStep *s) {
    uint64_t weights, average;
    bool there;
    *s = (SavedStep){.step = n.step,
                     .revision = n.revision,
                     .last = names_step(used, 0, n),
                     .best = names_step(used, 1, n)};
    TRY(measure(run_folder, n, FILE_WEIGHTS, &weights, &there));
    TRY(measure(run_folder, n, FILE_STATE, &s->state_bytes, &s->has_state));
    TRY(measure(run_folder, n, FILE_EMA, &average, &s->has_ema));
    s->bytes = weights + s->state_bytes + average;
    return STATUS_OK;
}

static Status describe_all(const char *run_folder, const InUse *used, const StepList *list,
                           SavedStep **out) {
    void *memory;
    TRY(mem_alloc(&memory, list->count, sizeof **out, "checkpoint list"));
    SavedStep *steps = memory;
    for (int64_t i = 0; i < list->count; i++) {
        const Status s = describe(run_folder, used, list->items[i], &steps[i]);
        if (s == STATUS_OK) continue;
        mem_free(steps);
        return s;
    }
    *out = steps;
    return STATUS_OK;
}

Status checkpoint_steps(const char *run_folder, SavedStep **out, int64_t *count) {
    InUse used;
    StepList list = {0};
    char *folder;
    *out = NULL;
    *count = 0;
    find_in_use(run_folder, &used);
    if (!used.known)
        return status_context(used.fault, "%s: which checkpoints are in use is not known",
                              run_folder);
    if (!used.there[0] && !used.there[1])
        return status_set(STATUS_DATA, "%s: expected a run folder, but it has no last.json",
                          run_folder);
    TRY(path_join(&folder, run_folder, "checkpoints"));
    Status s = list_steps(folder, &list);
    if (s == STATUS_OK) s = describe_all(run_folder, &used, &list, out);
    if (s == STATUS_OK) *count = list.count;
    mem_free(list.items);
    mem_free(folder);
    return s;
}

Status checkpoint_step_path(const char *run_folder, const SavedStep *s, bool average, char **path) {
    char name[CHECKPOINT_NAME];
    make_name((StepName){s->step, s->revision}, average ? FILE_EMA : FILE_WEIGHTS, name);
    return path_join(path, run_folder, name);
}

Status checkpoint_step_remove(const char *run_folder, const SavedStep *s, bool state_only) {
    const StepName n = {s->step, s->revision};
    if (s->last || s->best)
        return status_set(STATUS_INTERNAL, "step %" PRId64 " is in use: not removed", s->step);
    if (state_only) return remove_file(run_folder, n, FILE_STATE);
    for (int file = 0; file < FILES; file++) TRY(remove_file(run_folder, n, file));
    return STATUS_OK;
}
