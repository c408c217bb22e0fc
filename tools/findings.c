#include "tools/findings.h"

#include <stdarg.h>
#include <stdio.h>

#include "core/file.h"
#include "core/memory.h"
#include "tools/cli.h"

enum { LINE_BYTES = 2048 };

static Status keep(Findings *f, const char *line) {
    void *lines = f->lines;
    TRY(mem_grow(&lines, f->count + 1, sizeof(char *), "list of faults"));
    f->lines = lines;
    return mem_string(&f->lines[f->count], line);
}

void findings_add(Findings *f, const char *format, ...) {
    if (f->status != STATUS_OK) return;
    if (f->count < FINDINGS_KEPT) {
        char line[LINE_BYTES];
        va_list args;
        va_start(args, format);
        vsnprintf(line, sizeof line, format, args);
        va_end(args);
        f->status = keep(f, line);
        if (f->status != STATUS_OK) return;
    }
    f->count++;
}

static int64_t kept(const Findings *f) {
    return f->count < FINDINGS_KEPT ? f->count : FINDINGS_KEPT;
}

void findings_free(Findings *f) {
    for (int64_t i = 0; i < kept(f); i++) mem_free(f->lines[i]);
    mem_free(f->lines);
    *f = (Findings){0};
}

void findings_print(const Findings *f, int64_t most) {
    char safe[4 * LINE_BYTES];
    int64_t shown = most > 0 && most < kept(f) ? most : kept(f);
    for (int64_t i = 0; i < shown && !out_failed(); i++)
        out_printf("  fault: %s\n", text_printable(f->lines[i], safe, sizeof safe));
    if (shown < f->count) out_printf("  ... and %lld more\n", (long long)(f->count - shown));
}

void findings_json(const Findings *f, JsonWriter *w) {
    json_pair_int(w, "fault_count", f->count);
    json_key(w, "faults");
    json_begin_array(w);
    for (int64_t i = 0; i < kept(f); i++) json_string(w, f->lines[i]);
    json_end_array(w);
}
