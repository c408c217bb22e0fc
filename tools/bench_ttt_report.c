#include "tools/bench_ttt.h"

#include <stdio.h>
#include <string.h>

#include "core/file.h"
#include "core/memory.h"
#include "tools/cli.h"
#include "tools/plot.h"

enum { LINES = 14, POINTS = 32 };

const char *const ttt_forms[2] = {"recurrent", "parallel"};

/* ---- as they come ---- */

static void print_row(const Bench *b, const TttRow *r) {
    char text[32];
    out_printf("V%d  %-10s %9lld tokens  %9.4f ms  %8.2f M tokens/s  %s  %7.1f GB/s  %6.0f MB\n",
               r->variant, ttt_forms[r->form], (long long)r->tokens, 1e3 * r->seconds,
               1e-6 * r->tokens_per_s,
               bench_flops_text(b->device, r->flops_per_s, text, sizeof text),
               1e-9 * r->bytes_per_s, 1e-6 * (double)r->memory);
}

static void write_row(JsonWriter *w, const TttRow *r) {
    json_pair_int(w, "variant", r->variant);
    json_pair_string(w, "form", ttt_forms[r->form]);
    json_pair_int(w, "tokens", r->tokens);
    bench_number(w, "ms", 1e3 * r->seconds);
    bench_number(w, "tokens_per_s", r->tokens_per_s);
    bench_number(w, "flops_per_s", r->flops_per_s);
    bench_number(w, "bytes_per_s", r->bytes_per_s);
    json_pair_int(w, "memory_bytes", r->memory);
}

Status ttt_report(Bench *b, TttTable *t, const TttRow *row, const Profile *profile) {
    if (t->count == TTT_ROWS)
        return status_set(STATUS_USAGE, "--tokens: more than %d measurements", TTT_ROWS);
    t->rows[t->count++] = *row;
    if (b->json) {
        json_begin_object(b->json);
        write_row(b->json, row);
    } else {
        print_row(b, row);
    }
    if (profile) profile_report(b, "profile", profile);
    if (b->json) json_end_object(b->json);
    return STATUS_OK;
}

/* ---- files ---- */

static Status output_path(const TttTable *t, const char *ending, char **out) {
    const size_t size = strlen(t->options->output) + strlen(ending) + 1;
    TRY(mem_alloc((void **)out, (int64_t)size, 1, "path"));
    snprintf(*out, size, "%s%s", t->options->output, ending);
    return STATUS_OK;
}

static Status write_csv(const TttTable *t, const char *path) {
    static const char head[] =
        "variant,form,tokens,ms,tokens_per_s,flops_per_s,bytes_per_s,memory_bytes\n";
    char line[256];
    FileWriter *w;
    TRY(file_writer_open(path, &w));
    Status s = file_writer_write(w, head, strlen(head));
    for (int i = 0; i < t->count && s == STATUS_OK; i++) {
        const TttRow *r = &t->rows[i];
        const int length =
            snprintf(line, sizeof line, "%d,%s,%lld,%.6g,%.6g,%.6g,%.6g,%lld\n", r->variant,
                     ttt_forms[r->form], (long long)r->tokens, 1e3 * r->seconds, r->tokens_per_s,
                     r->flops_per_s, r->bytes_per_s, (long long)r->memory);
        s = file_writer_write(w, line, (size_t)length);
    }
    if (s == STATUS_OK) return file_writer_commit(w);
    file_writer_abort(w);
    return s;
}

/* A line of the plot. */
typedef struct Curve {
    char name[32];
    double x[POINTS], y[POINTS];
    int count;
} Curve;

static void curve_of(const TttTable *t, int variant, int form, Curve *c) {
    snprintf(c->name, sizeof c->name, "V%d %s", variant, ttt_forms[form]);
    c->count = 0;
    for (int i = 0; i < t->count && c->count < POINTS; i++) {
        const TttRow *r = &t->rows[i];
        if (r->variant != variant || (int)r->form != form) continue;
        c->x[c->count] = (double)r->tokens;
        c->y[c->count++] = 1e3 * r->seconds;
    }
}

/* What a cost in proportion to the length would be, from half of the first curve's last value. */
static void add_slope(const Curve *first, Curve *c) {
    const int last = first->count - 1;
    const double rate = 0.5 * first->y[last] / first->x[last];
    *c = (Curve){.name = "in proportion to length", .count = 2};
    c->x[0] = first->x[0];
    c->x[1] = first->x[last];
    for (int i = 0; i < 2; i++) c->y[i] = rate * c->x[i];
}

static Status write_plot(const TttTable *t, const char *path) {
    Curve *curves;
    PlotSeries series[LINES + 1];
    char title[96];
    int count = 0;
    TRY(mem_alloc((void **)&curves, LINES + 1, sizeof *curves, "curves of a plot"));
    for (int i = 0; i < LINES; i++) {
        curve_of(t, i / 2, i % 2, &curves[count]);
        count += curves[count].count > 0;
    }
    if (count > 0) {
        add_slope(&curves[0], &curves[count]);
        count++;
    }
    for (int i = 0; i < count; i++)
        series[i] = (PlotSeries){
            .name = curves[i].name, .x = curves[i].x, .y = curves[i].y, .count = curves[i].count};
    snprintf(title, sizeof title, "ms forward, %lld heads of %lld, chunks of %lld",
             (long long)t->options->fast_heads, (long long)t->options->head_width,
             (long long)t->options->chunk);
    const Status s = plot_write_log(path, title, "tokens", series, count);
    mem_free(curves);
    return s;
}

Status ttt_write(const TttTable *t) {
    char *path;
    TRY(output_path(t, ".csv", &path));
    Status s = write_csv(t, path);
    mem_free(path);
    TRY(s);
    TRY(output_path(t, ".png", &path));
    s = write_plot(t, path);
    mem_free(path);
    return s;
}
