/* Rows of numbers: one JSON object a line, and a CSV with fixed columns. */
#include "tools/run_metrics.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include <cjson/cJSON.h>

#include "core/file.h"
#include "core/log.h"
#include "core/memory.h"
#include "tools/cli.h"

enum { MAX_METRICS_BYTES = 1 << 30 };

/* ---- trimming at a resume ---- */

static int64_t *kept_step(RunFolder *r, const char *kind) {
    for (int i = 0; i < RUN_KINDS; i++) {
        if (!r->kept[i].kind[0]) {
            size_t n = strnlen(kind, sizeof r->kept[i].kind - 1);
            memcpy(r->kept[i].kind, kind, n);
            r->kept[i].kind[n] = 0;
            r->kept[i].step = -1;
        }
        if (strcmp(r->kept[i].kind, kind) == 0) return &r->kept[i].step;
    }
    return NULL;
}

/* Step and kind of a line; false: no whole row. */
static bool json_row(const char *line, size_t size, char *kind, size_t room, int64_t *step) {
    struct cJSON *row = NULL;
    if (json_parse(line, size, "metrics.jsonl", &row) != STATUS_OK) return false;
    const cJSON *s = cJSON_GetObjectItemCaseSensitive(row, "step");
    const cJSON *k = cJSON_GetObjectItemCaseSensitive(row, "kind");
    bool good = cJSON_IsNumber(s) && cJSON_IsString(k);
    if (good) {
        snprintf(kind, room, "%s", k->valuestring);
        *step = (int64_t)s->valuedouble;
    }
    json_free(row);
    return good;
}

static bool csv_row(const char *line, size_t size, char *kind, size_t room, int64_t *step) {
    const char *comma = memchr(line, ',', size);
    if (!comma || (size_t)(comma - line) >= room) return false;
    memcpy(kind, line, (size_t)(comma - line));
    kind[comma - line] = 0;
    char *end;
    *step = strtoll(comma + 1, &end, 10);
    return end > comma + 1 && *end == ',';
}

typedef bool (*RowReader)(const char *line, size_t size, char *kind, size_t room, int64_t *step);

/* Copies the lines that stay to the front of `text`; their total length. */
static size_t trim_text(RunFolder *r, char *text, size_t size, int64_t limit, RowReader read) {
    size_t kept = 0;
    for (size_t at = 0; at < size;) {
        char *end = memchr(text + at, '\n', size - at);
        if (!end) break; /* torn by a kill */
        size_t length = (size_t)(end - text) - at;
        char kind[16] = "";
        int64_t step = 0;
        bool stays;
        if (read(text + at, length, kind, sizeof kind, &step)) {
            stays = step <= limit;
            int64_t *newest = stays ? kept_step(r, kind) : NULL;
            if (newest && step > *newest) *newest = step;
        } else {
            stays = at == 0 && read == csv_row; /* the heading */
        }
        if (stays) memmove(text + kept, text + at, length + 1);
        if (stays) kept += length + 1;
        at += length + 1;
    }
    return kept;
}

static Status trim_file(RunFolder *r, const char *name, int64_t limit, RowReader read) {
    char *path, *text = NULL;
    size_t size = 0;
    TRY(path_join(&path, r->path, name));
    Status s = STATUS_OK;
    if (file_exists(path)) {
        s = file_read(path, MAX_METRICS_BYTES, &text, &size);
        size_t kept = s == STATUS_OK ? trim_text(r, text, size, limit, read) : 0;
        if (s == STATUS_OK && kept != size) s = file_write_atomic(path, text, kept);
    }
    mem_free(text);
    mem_free(path);
    return s;
}

Status metrics_trim(RunFolder *r, int64_t step) {
    TRY(trim_file(r, "metrics.jsonl", step, json_row));
    return trim_file(r, "metrics.csv", step, csv_row);
}

static void csv_heading(const RunFolder *r) {
    fprintf(r->csv, "kind,step,epoch,loss,lr,grad_norm,%s,wait_share,step_ms", r->columns.rate);
    for (const char *const *name = r->columns.validation; *name; name++)
        fprintf(r->csv, ",%s", *name);
    fputc('\n', r->csv);
}

Status metrics_begin(RunFolder *r) {
    fseek(r->csv, 0, SEEK_END);
    if (ftell(r->csv) > 0) return STATUS_OK;
    csv_heading(r);
    if (fflush(r->csv) == 0 && !ferror(r->csv)) return STATUS_OK;
    return status_errno("%s/metrics.csv", r->path);
}

/* ---- writing ---- */

/* An empty field where there is no number. */
static void csv_number(FILE *f, double x) {
    if (isfinite(x))
        fprintf(f, ",%.9g", x);
    else
        fputc(',', f);
}

static void csv_event(const RunFolder *r, const TrainEvent *e, const double *values) {
    FILE *f = r->csv;
    const bool train = strcmp(e->kind, "train") == 0 || strcmp(e->kind, "skip") == 0;
    const double numbers[] = {e->loss,          e->lr,         e->grad_norm,
                              e->samples_per_s, e->wait_share, e->step_ms};
    fprintf(f, "%s,%lld,%lld", e->kind, (long long)e->state.step, (long long)e->state.epoch);
    for (size_t i = 0; i < sizeof numbers / sizeof *numbers; i++)
        csv_number(f, train ? numbers[i] : NAN);
    const char *const *name = r->columns.validation;
    for (int i = 0; name[i]; i++)
        csv_number(f, strcmp(name[i], "seconds") == 0 ? e->seconds : values ? values[i] : NAN);
    fputc('\n', f);
}

static void add_scalar(EventFile *f, const char *group, const char *name, double value) {
    char tag[96];
    snprintf(tag, sizeof tag, "%s/%s", group, name);
    event_file_add(f, tag, value);
}

/* Tags are the columns of metrics.csv behind train/ or validation/. */
static Status write_scalars(const RunFolder *r, const TrainEvent *e, const double *values) {
    const char *const *name = r->columns.validation;
    if (strcmp(e->kind, "train") == 0) {
        add_scalar(r->events, "train", "loss", e->loss);
        add_scalar(r->events, "train", "lr", e->lr);
        add_scalar(r->events, "train", "grad_norm", e->grad_norm);
        add_scalar(r->events, "train", r->columns.rate, e->samples_per_s);
        add_scalar(r->events, "train", "wait_share", e->wait_share);
        add_scalar(r->events, "train", "step_ms", e->step_ms);
        add_scalar(r->events, "train", "skipped", (double)e->state.skipped);
    }
    for (int i = 0; values && name[i]; i++)
        if (strcmp(name[i], "seconds") != 0)
            add_scalar(r->events, "validation", name[i], values[i]);
    return event_file_flush(r->events, e->state.step);
}

void run_folder_event(RunFolder *r, const TrainEvent *e, const double *values) {
    const int64_t *kept = kept_step(r, e->kind);
    if (!r->jsonl || !r->csv || (kept && e->state.step <= *kept)) return;
    if (e->record) fprintf(r->jsonl, "%s\n", e->record);
    if (e->record) output_record(e->record);
    csv_event(r, e, values);
    Status s = fflush(r->jsonl) == 0 && fflush(r->csv) == 0
                   ? STATUS_OK
                   : status_errno("%s: metrics files", r->path);
    if (r->events && s == STATUS_OK) s = write_scalars(r, e, values);
    if (s == STATUS_OK || r->status != STATUS_OK) return;
    /* Numbers of a run are worth less than the run: go on, say it, and end with its exit code. */
    r->status = s;
    log_error("%s; training goes on without them", status_message());
}
