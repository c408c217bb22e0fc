#include "nn/checkpoint.h"

#include <errno.h>
#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "core/file.h"
#include "core/memory.h"
#include "nn/checkpoint_files.h"
#include "nn/params_blocks.h"

#define TEXT 40 /* a number in decimal */

/* ---- counters as metadata: text, because JSON numbers are doubles ----------------------- */

typedef enum FieldKind { FIELD_INT, FIELD_UINT, FIELD_DOUBLE } FieldKind;
typedef struct Field {
    const char *key;
    FieldKind kind;
    size_t offset;
} Field;

/* TrainState and the optimiser's own counter. */
typedef struct Counters {
    TrainState train;
    int64_t taken;
} Counters;

#define IN_STATE(field) offsetof(Counters, train.field)
static const Field fields[] = {
    {"ttv.step", FIELD_INT, IN_STATE(step)},
    {"ttv.epoch", FIELD_INT, IN_STATE(epoch)},
    {"ttv.cursor", FIELD_INT, IN_STATE(cursor)},
    {"ttv.skipped", FIELD_INT, IN_STATE(skipped)},
    {"ttv.skipped_row", FIELD_INT, IN_STATE(skipped_row)},
    {"ttv.best_metric", FIELD_DOUBLE, IN_STATE(best_metric)},
    {"ttv.best_step", FIELD_INT, IN_STATE(best_step)},
    {"ttv.validated_step", FIELD_INT, IN_STATE(validated_step)},
    {"ttv.seed", FIELD_UINT, IN_STATE(seed)},
    {"ttv.loss_sum", FIELD_DOUBLE, IN_STATE(loss_sum)},
    {"ttv.loss_count", FIELD_INT, IN_STATE(loss_count)},
    {"ttv.taken", FIELD_INT, offsetof(Counters, taken)},
};
enum { FIELDS = sizeof fields / sizeof fields[0] };

static void field_print(const Field *f, const Counters *c, char out[TEXT]) {
    const char *at = (const char *)c + f->offset;
    if (f->kind == FIELD_INT) snprintf(out, TEXT, "%" PRId64, *(const int64_t *)at);
    if (f->kind == FIELD_UINT) snprintf(out, TEXT, "%" PRIu64, *(const uint64_t *)at);
    if (f->kind == FIELD_DOUBLE) snprintf(out, TEXT, "%.17g", *(const double *)at);
}

static Status field_parse(const Field *f, const char *text, Counters *c) {
    char *at = (char *)c + f->offset, *end = NULL;
    if (!text) return status_set(STATUS_DATA, "metadata '%s' is missing", f->key);
    errno = 0;
    if (f->kind == FIELD_INT) *(int64_t *)at = strtoll(text, &end, 10);
    if (f->kind == FIELD_UINT) *(uint64_t *)at = strtoull(text, &end, 10);
    if (f->kind == FIELD_DOUBLE) *(double *)at = strtod(text, &end);
    bool range = errno == ERANGE && f->kind != FIELD_DOUBLE;
    bool negative = f->kind == FIELD_INT && *(int64_t *)at < 0;
    if (end == text || *end || range || negative)
        return status_set(STATUS_DATA, "metadata '%s' is '%.40s': expected a number", f->key, text);
    return STATUS_OK;
}

/* ---- saving ----------------------------------------------------------------------------- */

/* `kind`: raw or ema. */
static Status write_weights(const char *path, Params *p, Tensor block, const char *kind,
                            const Manifest *m, const SafeMeta *meta, int64_t meta_count) {
    char step[TEXT], epoch[TEXT], metric[TEXT];
    snprintf(step, TEXT, "%" PRId64, m->step);
    snprintf(epoch, TEXT, "%" PRId64, m->epoch);
    snprintf(metric, TEXT, "%.17g", m->metric);
    const SafeMeta own[] = {{"ttv.format", "1"},
                            {"ttv.step", step},
                            {"ttv.epoch", epoch},
                            {"ttv.metric", metric},
                            {"ttv.weights", kind}};
    int64_t own_count = sizeof own / sizeof own[0];
    void *memory;
    TRY(mem_alloc(&memory, own_count + meta_count, sizeof(SafeMeta), "metadata"));
    SafeMeta *all = memory;
    memcpy(all, own, sizeof own);
    if (meta_count > 0) memcpy(all + own_count, meta, (size_t)meta_count * sizeof(SafeMeta));
    const FlatBlock weights = {"", block};
    Status s = params_write_blocks(p, path, &weights, 1, all, own_count + meta_count);
    mem_free(memory);
    return s;
}

#define STATE_BLOCKS 3

static int state_blocks(const AdamW *o, FlatBlock blocks[STATE_BLOCKS]) {
    blocks[0] = (FlatBlock){"optim.m.", o->m};
    blocks[1] = (FlatBlock){"optim.v.", o->v};
    if (o->ema) blocks[2] = (FlatBlock){"optim.ema.", o->ema->average};
    return o->ema ? 3 : 2;
}

static Status write_state(const char *path, Params *p, AdamW *o, const TrainState *s) {
    Counters c = {*s, 0};
    char text[FIELDS][TEXT];
    SafeMeta meta[FIELDS + 2] = {{"ttv.format", "1"}, {"ttv.kind", "state"}};
    TRY(adamw_taken(o, &c.taken));
    for (int i = 0; i < FIELDS; i++) {
        field_print(&fields[i], &c, text[i]);
        meta[i + 2] = (SafeMeta){fields[i].key, text[i]};
    }
    FlatBlock blocks[STATE_BLOCKS];
    int count = state_blocks(o, blocks);
    return params_write_blocks(p, path, blocks, count, meta, FIELDS + 2);
}

static Status make_folder(const char *run_folder) {
    char *folder;
    TRY(path_join(&folder, run_folder, "checkpoints"));
    Status s = file_make_folder(folder);
    mem_free(folder);
    return s;
}

static Status write_files(const char *run_folder, Params *p, AdamW *o, const TrainState *s,
                          const Manifest *m, const SafeMeta *meta, int64_t meta_count) {
    char *weights = NULL, *state = NULL, *ema = NULL;
    Status status = path_join(&weights, run_folder, m->weights);
    if (status == STATUS_OK) status = path_join(&state, run_folder, m->state);
    if (status == STATUS_OK) status = path_join(&ema, run_folder, m->ema);
    if (status == STATUS_OK)
        status = write_weights(weights, p, p->master, "raw", m, meta, meta_count);
    if (status == STATUS_OK && m->has_ema)
        status = write_weights(ema, p, o->ema->average, "ema", m, meta, meta_count);
    if (status == STATUS_OK) status = write_state(state, p, o, s);
    mem_free(weights);
    mem_free(state);
    mem_free(ema);
    return status;
}

Status checkpoint_save(const char *run_folder, Params *p, AdamW *o, const TrainState *s,
                       double metric, bool is_best, int keep, const SafeMeta *meta,
                       int64_t meta_count) {
    Manifest m = {.step = s->step, .epoch = s->epoch, .metric = metric, .has_ema = o->ema != NULL};
    if (o->ema && o->ema->swapped)
        return status_set(STATUS_INTERNAL,
                          "averaged weights stand in for the trained ones: no save");
    TRY(status_context(params_check_finite(p), "step %" PRId64 " is not saved", s->step));
    TRY(make_folder(run_folder));
    TRY(manifest_choose_names(run_folder, &m));
    TRY(write_files(run_folder, p, o, s, &m, meta, meta_count));
    TRY(manifest_measure(run_folder, &m));
    /* best before last: a run that dies in between resumes from the old last, comes to the same
     * best again, and never believes in a best that best.json does not name. */
    if (is_best) TRY(manifest_write(run_folder, "best", &m));
    TRY(manifest_write(run_folder, "last", &m));
    checkpoint_prune(run_folder, keep);
    return STATUS_OK;
}

/* ---- finding ---------------------------------------------------------------------------- */

static Status join_both(const char *run_folder, const Manifest *m, char **weights, char **state) {
    TRY(path_join(weights, run_folder, m->weights));
    Status s = path_join(state, run_folder, m->state);
    if (s != STATUS_OK) {
        mem_free(*weights);
        *weights = NULL;
    }
    return s;
}

Status checkpoint_find(const char *run_folder, const char *which, char **weights, char **state) {
    Manifest m;
    *weights = *state = NULL;
    if (strcmp(which, "last") != 0 && strcmp(which, "best") != 0)
        return status_set(STATUS_USAGE, "no checkpoint is called '%s': expected last or best",
                          which);
    TRY(status_context(manifest_read(run_folder, which, &m), "no %s checkpoint", which));
    TRY(status_context(manifest_check(run_folder, &m), "the %s checkpoint cannot be used", which));
    return join_both(run_folder, &m, weights, state);
}

Status checkpoint_find_ema(const char *run_folder, const char *which, char **weights) {
    Manifest m;
    char *raw, *state;
    TRY(checkpoint_find(run_folder, which, &raw, &state));
    mem_free(raw);
    mem_free(state);
    TRY(manifest_read(run_folder, which, &m));
    if (!m.has_ema)
        return status_set(STATUS_DATA, "the %s checkpoint of %s holds no averaged weights", which,
                          run_folder);
    return path_join(weights, run_folder, m.ema);
}

Status checkpoint_resolve(const char *path, char **weights) {
    *weights = NULL;
    if (!file_is_folder(path)) return mem_string(weights, path);
    char *state;
    for (int last = 0; last < 2; last++) {
        const char *which = last ? "last" : "best";
        bool exists;
        TRY(manifest_exists(path, which, &exists));
        if (!exists) continue;
        TRY(checkpoint_find(path, which, weights, &state));
        mem_free(state);
        return STATUS_OK;
    }
    char *model;
    TRY(path_join(&model, path, "model.safetensors"));
    bool has_model = file_exists(model);
    mem_free(model);
    if (has_model) return mem_string(weights, path);
    return status_set(STATUS_DATA,
                      "%s: expected a checkpoint, but this folder holds no best.json, last.json or "
                      "model.safetensors",
                      path);
}

/* ---- resuming --------------------------------------------------------------------------- */

/* Averaged weights are a part of the state or not: a run may begin to average later (from the
 * weights of then), but not stop without a word. */
static Status state_expected(const SafeFile *state, const Params *p, const AdamW *o,
                             FlatBlock blocks[STATE_BLOCKS], int *count) {
    *count = state_blocks(o, blocks);
    bool has_ema = safetensors_count(state) == STATE_BLOCKS * p->count;
    if (o->ema && !has_ema) *count = STATE_BLOCKS - 1;
    if (o->ema || !has_ema) return STATUS_OK;
    return status_set(STATUS_USAGE,
                      "%s: the run averages its weights, it cannot go on without that",
                      safetensors_path(state));
}

/* Everything is checked before the first value is touched. */
static Status restore(const SafeFile *weights, const SafeFile *state, Params *p, AdamW *o,
                      TrainState *s) {
    Counters c = {0};
    FlatBlock blocks[STATE_BLOCKS];
    int count;
    for (int i = 0; i < FIELDS; i++)
        TRY(status_context(field_parse(&fields[i], safetensors_meta(state, fields[i].key), &c),
                           "%s", safetensors_path(state)));
    TRY(state_expected(state, p, o, blocks, &count));
    TRY(status_context(params_check_blocks(p, state, blocks, count), "%s",
                       safetensors_path(state)));
    TRY(params_load(p, weights, NULL));
    TRY(status_context(params_read_blocks(p, state, blocks, count), "%s", safetensors_path(state)));
    if (o->ema && count < STATE_BLOCKS) TRY(ema_restart(o->ema));
    TRY(adamw_set_taken(o, c.taken));
    *s = c.train;
    return STATUS_OK;
}

Status checkpoint_resume(const char *run_folder, const char *which, Params *p, AdamW *o,
                         TrainState *s) {
    char *weights_path, *state_path;
    SafeFile *weights = NULL, *state = NULL;
    TRY(checkpoint_find(run_folder, which, &weights_path, &state_path));
    Status status = safetensors_open(weights_path, &weights);
    if (status == STATUS_OK) status = safetensors_open(state_path, &state);
    if (status == STATUS_OK) status = restore(weights, state, p, o, s);
    safetensors_close(weights);
    safetensors_close(state);
    mem_free(weights_path);
    mem_free(state_path);
    return status_context(status, "cannot resume from %s", which);
}
