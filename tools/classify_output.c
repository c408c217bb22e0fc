#include "tools/classify_output.h"

#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "core/file.h"
#include "core/json.h"
#include "core/memory.h"
#include "core/utf8.h"
#include "tools/cli.h"
#include "tools/csv.h"

struct ResultWriter {
    ResultStyle style;
    const Model *model;
    FileWriter *file; /* NULL: standard output */
    Status status;    /* sticky */
    bool begun;       /* a row of the array is written */
};

/* ---- bytes out ---- */

static void put_bytes(ResultWriter *w, const char *data, size_t size) {
    if (!w->file)
        out_bytes(data, size);
    else if (w->status == STATUS_OK)
        w->status = file_writer_write(w->file, data, size);
}

static void put_text(ResultWriter *w, const char *text) {
    put_bytes(w, text, strlen(text));
}

__attribute__((format(printf, 2, 3))) static void put(ResultWriter *w, const char *format, ...) {
    char text[256]; /* numbers only */
    va_list args;
    va_start(args, format);
    vsnprintf(text, sizeof text, format, args);
    va_end(args);
    put_text(w, text);
}

/* ---- text ---- */

static void put_path(ResultWriter *w, const char *path) {
    if (w->file)
        put_text(w, path);
    else
        out_path(path);
}

static void text_row(ResultWriter *w, const ResultRow *row) {
    char buffer[32], label[1024];
    if (row->error) return; /* the error line on stderr says it */
    put_path(w, row->path);
    put_text(w, "\n");
    for (int64_t k = 0; k < w->style.topk; k++) {
        int64_t c = row->classes[k];
        if (w->style.logits)
            put(w, "  %10.4f  ", (double)row->scores[k]);
        else
            put(w, "  %6.2f %%  ", 100.0 * (double)row->scores[k]);
        if (w->style.labels != LABEL_NAME) put(w, "%lld", (long long)c);
        if (w->style.labels == LABEL_BOTH) put_text(w, "  ");
        if (w->style.labels != LABEL_INDEX)
            put_text(w, text_printable(model_class_name(w->model, c, buffer, sizeof buffer), label,
                                       sizeof label));
        put_text(w, "\n");
    }
}

/* ---- CSV ---- */

static Status put_csv(void *writer, const void *bytes, size_t size) {
    put_bytes(writer, bytes, size);
    return STATUS_OK; /* the writer keeps what went wrong */
}

static void put_field(ResultWriter *w, const char *text) {
    csv_field(put_csv, w, text);
}

static void csv_header(ResultWriter *w) {
    put_text(w, "path");
    for (long long k = 1; k <= w->style.topk; k++) {
        put(w, ",index%lld", k);
        if (w->style.labels != LABEL_INDEX) put(w, ",label%lld", k);
        put(w, ",%s%lld", w->style.logits ? "logit" : "prob", k);
    }
    put_text(w, ",error\r\n");
}

static void csv_row(ResultWriter *w, const ResultRow *row) {
    char buffer[32];
    bool names = w->style.labels != LABEL_INDEX;
    put_field(w, row->path);
    for (int64_t k = 0; k < w->style.topk; k++) {
        if (row->error) {
            put_text(w, names ? ",,," : ",,");
            continue;
        }
        put(w, ",%lld,", (long long)row->classes[k]);
        if (names) {
            put_field(w, model_class_name(w->model, row->classes[k], buffer, sizeof buffer));
            put_text(w, ",");
        }
        put(w, "%.9g", (double)row->scores[k]);
    }
    put_text(w, ",");
    if (row->error) put_field(w, row->error);
    put_text(w, "\r\n");
}

/* ---- JSON: lines, or one array ---- */

static Status json_path_bytes(JsonWriter *j, const char *path) {
    size_t n = strlen(path);
    char *hex;
    TRY(mem_alloc((void **)&hex, 2 * (int64_t)n + 1, 1, "file name in hexadecimal"));
    for (size_t i = 0; i < n; i++) snprintf(hex + 2 * i, 3, "%02x", (unsigned char)path[i]);
    json_pair_string(j, "path_bytes", hex);
    mem_free(hex);
    return STATUS_OK;
}

/* A float as the shortest number that a float reads back from. */
static void json_score(JsonWriter *j, const char *key, float score) {
    char text[32];
    snprintf(text, sizeof text, "%.9g", (double)score);
    json_pair_number(j, key, strtod(text, NULL));
}

static void json_top(ResultWriter *w, JsonWriter *j, const ResultRow *row) {
    char buffer[32];
    json_pair_int(j, "width", row->width);
    json_pair_int(j, "height", row->height);
    json_pair_int(j, "orientation", row->orientation);
    json_key(j, "top");
    json_begin_array(j);
    for (int64_t k = 0; k < w->style.topk; k++) {
        json_begin_object(j);
        json_pair_int(j, "index", row->classes[k]);
        if (w->style.labels != LABEL_INDEX)
            json_pair_string(j, "label",
                             model_class_name(w->model, row->classes[k], buffer, sizeof buffer));
        json_score(j, w->style.logits ? "logit" : "prob", row->scores[k]);
        json_end_object(j);
    }
    json_end_array(j);
}

static Status json_row(ResultWriter *w, const ResultRow *row) {
    JsonWriter j;
    json_writer_init(&j);
    json_begin_object(&j);
    json_pair_string(&j, "path", row->path);
    Status s = utf8_valid(row->path) ? STATUS_OK : json_path_bytes(&j, row->path);
    if (row->error)
        json_pair_string(&j, "error", row->error);
    else
        json_top(w, &j, row);
    json_end_object(&j);
    if (s == STATUS_OK) s = j.status;
    if (s == STATUS_OK) {
        if (w->style.format == FORMAT_JSON) put_text(w, w->begun ? ",\n" : "[");
        put_bytes(w, j.text, j.length);
        if (w->style.format == FORMAT_JSONL) put_text(w, "\n");
        w->begun = true;
    }
    json_writer_free(&j);
    return s;
}

/* ---- the writer ---- */

Status results_open(const ResultStyle *style, const char *file, const Model *model,
                    ResultWriter **out) {
    void *memory;
    TRY(mem_alloc(&memory, 1, sizeof(ResultWriter), "results"));
    ResultWriter *w = memory;
    w->style = *style;
    w->model = model;
    Status s = *file && strcmp(file, "-") != 0 ? file_writer_open(file, &w->file) : STATUS_OK;
    if (s != STATUS_OK) {
        mem_free(w);
        return s;
    }
    if (style->format == FORMAT_CSV) csv_header(w);
    *out = w;
    return STATUS_OK;
}

Status results_row(ResultWriter *w, const ResultRow *row) {
    switch (w->style.format) {
    case FORMAT_TEXT:
        text_row(w, row);
        break;
    case FORMAT_CSV:
        csv_row(w, row);
        break;
    case FORMAT_JSONL:
    case FORMAT_JSON:
        TRY(json_row(w, row));
        break;
    }
    return w->status;
}

Status results_commit(ResultWriter *w) {
    if (w->style.format == FORMAT_JSON) put_text(w, w->begun ? "]\n" : "[]\n");
    Status s = w->status;
    if (w->file && s == STATUS_OK)
        s = file_writer_commit(w->file);
    else if (w->file)
        file_writer_abort(w->file);
    mem_free(w);
    return s;
}

void results_abort(ResultWriter *w) {
    if (!w) return;
    if (w->file) file_writer_abort(w->file);
    mem_free(w);
}
