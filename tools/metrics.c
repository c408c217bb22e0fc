#include "tools/metrics.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "core/file.h"
#include "core/memory.h"

#define LARGEST ((size_t)1 << 30)

static int64_t count_of(const char *text, char c) {
    int64_t n = 0;
    for (; (text = strchr(text, c)); text++) n++;
    return n;
}

static double number(const char *field) {
    char *end;
    const double value = strtod(field, &end);
    return end == field || *end ? NAN : value;
}

/* Cuts the next field off *rest, which becomes NULL behind the last one. */
static char *next_field(char **rest) {
    char *field = *rest;
    if (!field) return NULL;
    *rest = strchr(field, ',');
    if (*rest) *(*rest)++ = '\0';
    return field;
}

static char *next_line(char **rest) {
    char *line = *rest, *end = strchr(line, '\n');
    if (!end) return NULL;
    *end = '\0';
    if (end > line && end[-1] == '\r') end[-1] = '\0';
    *rest = end + 1;
    return line;
}

static Status read_header(Metrics *m, char **rest, const char *path) {
    char *line = next_line(rest);
    void *names;
    if (!line || strncmp(line, "kind,step", 9) != 0)
        return status_set(STATUS_DATA, "%s: the first line does not begin with 'kind,step'", path);
    m->columns = count_of(line, ',') + 1;
    TRY(mem_alloc(&names, m->columns, sizeof(char *), "columns of metrics"));
    m->names = names;
    for (int64_t c = 0; c < m->columns; c++) m->names[c] = next_field(&line);
    return STATUS_OK;
}

static Status read_rows(Metrics *m, char *rest) {
    void *block;
    const int64_t lines = count_of(rest, '\n');
    TRY(mem_alloc(&block, lines, sizeof(char *), "rows of metrics"));
    m->kinds = block;
    TRY(mem_alloc(&block, lines * m->columns, sizeof(double), "values of metrics"));
    m->values = block;
    for (char *line; (line = next_line(&rest));) {
        if (!*line) continue;
        double *row = m->values + m->rows * m->columns;
        for (int64_t c = 0; c < m->columns; c++) {
            char *field = next_field(&line);
            if (c == 0) m->kinds[m->rows] = field;
            row[c] = field ? number(field) : NAN;
        }
        m->rows++;
    }
    return STATUS_OK;
}

Status metrics_read(const char *run_folder, Metrics *out) {
    char *path;
    size_t size;
    *out = (Metrics){0};
    TRY(path_join(&path, run_folder, "metrics.csv"));
    Status s = file_read(path, LARGEST, &out->text, &size);
    char *rest = out->text;
    if (s == STATUS_OK) s = read_header(out, &rest, path);
    if (s == STATUS_OK) s = read_rows(out, rest);
    if (s != STATUS_OK) metrics_free(out);
    mem_free(path);
    return s;
}

void metrics_free(Metrics *m) {
    mem_free(m->text);
    mem_free(m->names);
    mem_free(m->kinds);
    mem_free(m->values);
    *m = (Metrics){0};
}

int64_t metrics_column(const Metrics *m, const char *name) {
    for (int64_t c = 0; c < m->columns; c++)
        if (strcmp(m->names[c], name) == 0) return c;
    return -1;
}

int64_t metrics_series(const Metrics *m, const char *kind, const char *name, double *x, double *y) {
    const int64_t at = metrics_column(m, name), step = metrics_column(m, "step");
    int64_t n = 0;
    for (int64_t r = 0; at >= 0 && step >= 0 && r < m->rows; r++) {
        const double *row = m->values + r * m->columns;
        if (strcmp(m->kinds[r], kind) != 0 || !isfinite(row[at]) || !isfinite(row[step])) continue;
        if (x && y) {
            x[n] = row[step];
            y[n] = row[at];
        }
        n++;
    }
    return n;
}
