/* ttv plot: the curves of runs as pictures, and where they ended as a table. */
#include <math.h>
#include <stdio.h>
#include <string.h>

#include "core/file.h"
#include "core/json.h"
#include "core/memory.h"
#include "tools/cli.h"
#include "tools/metrics.h"
#include "tools/page.h"
#include "tools/plot.h"

typedef struct PlotCommandOptions {
    char output[CONFIG_TEXT];
    bool html;
} PlotCommandOptions;

static PlotCommandOptions options;

static const Option plot_options[] = {
    {"output", OPTION_STRING, offsetof(PlotCommandOptions, output), "", 0, 0, NULL, "output",
     "folder of the pictures; empty: 'plots' in the run folder, when there is one run"},
    {"html", OPTION_BOOL, offsetof(PlotCommandOptions, html), "false", 0, 0, NULL, "html",
     "also write report.html there: the pictures, where the runs ended, their configurations"},
    {0},
};

static const Section *sections(int *count) {
    static Section list[1];
    list[0] = (Section){"plot", plot_options, &options};
    *count = 1;
    return list;
}

/* ---- what is drawn ---- */

typedef struct Curve {
    const char *kind, *column;
} Curve;

enum { CURVES = 5 };
typedef struct Figure {
    const char *file, *title;
    Curve curves[CURVES];
} Figure;

static const Figure figures[] = {
    {"loss.png", "Loss", {{"train", "loss"}, {"validate", "val_loss"}, {"validate", "ema_loss"}}},
    {"accuracy.png",
     "Top-1 of the validation, %",
     {{"validate", "top1"}, {"validate", "ema_top1"}}},
    {"psnr.png",
     "PSNR of the validation, dB",
     {{"validate", "val_psnr"},
      {"validate", "ema_psnr"},
      {"validate", "nearest_psnr"},
      {"validate", "mean_psnr"}}},
    {"lr.png", "Learning rate", {{"train", "lr"}}},
    {"grad_norm.png", "Gradient norm before clipping", {{"train", "grad_norm"}}},
    {"speed.png", "Samples a second", {{"train", "images_per_s"}, {"train", "samples_per_s"}}},
};
enum { FIGURES = sizeof figures / sizeof *figures, NAME = 96, FIGURE_BYTES = 16 << 20 };

typedef struct Runs {
    char **paths;
    int count;
    Metrics *metrics;
    bool drawn[FIGURES];
} Runs;

/* Series of one figure, over all runs; memory of all of them in two blocks. */
typedef struct Series {
    PlotSeries *items;
    char (*names)[NAME];
    double *numbers;
    int count;
} Series;

static void series_free(Series *s) {
    mem_free(s->items);
    mem_free(s->names);
    mem_free(s->numbers);
}

/* "loss" of a single run, "digits-2 loss" of several. */
static void name_series(const Runs *r, int run, const char *column, char out[NAME]) {
    const char *path = r->paths[run];
    size_t end = strlen(path);
    while (end > 1 && path[end - 1] == '/') end--;
    size_t begin = end;
    while (begin > 0 && path[begin - 1] != '/') begin--;
    char plain[NAME], safe[NAME];
    snprintf(plain, sizeof plain, "%.*s", (int)(end - begin), path + begin);
    text_printable(plain, safe, sizeof safe);
    if (r->count == 1)
        snprintf(out, NAME, "%s", column);
    else
        snprintf(out, NAME, "%.60s %s", safe, column);
}

static Status series_open(const Runs *r, Series *s) {
    int64_t rows = 0;
    void *block;
    for (int i = 0; i < r->count; i++) rows += r->metrics[i].rows;
    TRY(mem_alloc(&block, (int64_t)r->count * CURVES, sizeof(PlotSeries), "curves"));
    s->items = block;
    TRY(mem_alloc(&block, (int64_t)r->count * CURVES, NAME, "names of curves"));
    s->names = block;
    TRY(mem_alloc(&block, 2 * CURVES * rows, sizeof(double), "points of curves"));
    s->numbers = block;
    return STATUS_OK;
}

static void series_gather(const Runs *r, const Figure *f, Series *s) {
    double *at = s->numbers;
    for (int i = 0; i < r->count; i++) {
        const Metrics *m = &r->metrics[i];
        for (const Curve *c = f->curves; c < f->curves + CURVES && c->kind; c++) {
            double *x = at, *y = at + m->rows;
            const int64_t n = metrics_series(m, c->kind, c->column, x, y);
            if (n == 0) continue;
            name_series(r, i, c->column, s->names[s->count]);
            s->items[s->count] = (PlotSeries){s->names[s->count], x, y, n, NULL, NULL};
            s->count++;
            at += 2 * m->rows;
        }
    }
}

static Status draw(Runs *r, int figure, const char *folder) {
    Series s = {0};
    char *path = NULL;
    Status status = series_open(r, &s);
    if (status == STATUS_OK) series_gather(r, &figures[figure], &s);
    if (status == STATUS_OK && s.count > 0) {
        status = path_join(&path, folder, figures[figure].file);
        if (status == STATUS_OK)
            status = plot_write(path, figures[figure].title, "step", s.items, s.count, false);
        r->drawn[figure] = status == STATUS_OK;
    }
    mem_free(path);
    series_free(&s);
    return status;
}

/* ---- where the runs ended ---- */

typedef struct Summary {
    double steps, loss, score, best, best_step, seconds;
    const char *score_name; /* NULL: nothing was validated */
} Summary;

static double last_of(const Metrics *m, const char *kind, const char *column) {
    const int64_t at = metrics_column(m, column);
    for (int64_t r = m->rows - 1; at >= 0 && r >= 0; r--)
        if (strcmp(m->kinds[r], kind) == 0 && isfinite(m->values[r * m->columns + at]))
            return m->values[r * m->columns + at];
    return NAN;
}

/* The highest value of either column; `best` and its step stay what they are otherwise. */
static void better(const Metrics *m, const char *column, Summary *s) {
    const int64_t at = metrics_column(m, column), step = metrics_column(m, "step");
    for (int64_t r = 0; at >= 0 && step >= 0 && r < m->rows; r++) {
        const double *row = m->values + r * m->columns;
        if (strcmp(m->kinds[r], "validate") != 0 || !isfinite(row[at])) continue;
        if (row[at] <= s->best) continue;
        s->best = row[at];
        s->best_step = row[step];
    }
}

static Summary summarise(const Metrics *m) {
    const bool views = metrics_column(m, "val_psnr") >= 0;
    Summary s = {.loss = last_of(m, "train", "loss"),
                 .steps = NAN,
                 .seconds = NAN,
                 .best = NAN,
                 .best_step = NAN};
    const int64_t step = metrics_column(m, "step"), seconds = metrics_column(m, "seconds");
    for (int64_t r = 0; r < m->rows; r++) {
        const double *row = m->values + r * m->columns;
        if (step >= 0 && isfinite(row[step])) s.steps = fmax(s.steps, row[step]);
        if (seconds >= 0 && isfinite(row[seconds])) s.seconds = row[seconds];
    }
    s.score = last_of(m, "validate", views ? "val_psnr" : "top1");
    if (isfinite(s.score)) s.score_name = views ? "PSNR, dB" : "top-1, %";
    s.best = -INFINITY;
    better(m, views ? "val_psnr" : "top1", &s);
    better(m, views ? "ema_psnr" : "ema_top1", &s);
    if (!isfinite(s.best)) s.best = NAN;
    return s;
}

/* ---- report.html ---- */

static Status put_cell(FileWriter *f, double x, int digits) {
    return isfinite(x) ? page_format(f, "<td>%.*f</td>", digits, x) : page_put(f, "<td></td>");
}

static Status put_summary(FileWriter *f, const char *run, const Summary *s) {
    TRY(page_put(f, "<tr><td>"));
    TRY(page_escaped(f, run));
    TRY(page_put(f, "</td>"));
    TRY(put_cell(f, s->steps, 0));
    TRY(put_cell(f, s->loss, 5));
    TRY(page_format(f, "<td>%s</td>", s->score_name ? s->score_name : ""));
    TRY(put_cell(f, s->score, 2));
    TRY(put_cell(f, s->best, 2));
    TRY(put_cell(f, s->best_step, 0));
    TRY(put_cell(f, s->seconds, 0));
    return page_put(f, "</tr>\n");
}

static Status put_table(FileWriter *f, const Runs *r) {
    TRY(page_put(f, "<table><tr><th>run</th><th>steps</th><th>loss</th><th>score</th><th>last</th>"
                    "<th>best</th><th>at step</th><th>seconds</th></tr>\n"));
    for (int i = 0; i < r->count; i++) {
        const Summary s = summarise(&r->metrics[i]);
        TRY(put_summary(f, r->paths[i], &s));
    }
    return page_put(f, "</table>\n");
}

static Status put_figure(FileWriter *f, const char *folder, const Figure *figure) {
    char *path, *bytes;
    size_t size;
    TRY(path_join(&path, folder, figure->file));
    Status s = file_read(path, FIGURE_BYTES, &bytes, &size);
    mem_free(path);
    TRY(s);
    s = page_put(f, "<figure>");
    if (s == STATUS_OK) s = page_image(f, "png", figure->title, bytes, size);
    mem_free(bytes);
    return s == STATUS_OK ? page_put(f, "</figure>\n") : s;
}

/* A run that was copied without its configuration has none here either. */
static Status put_config(FileWriter *f, const char *run) {
    char *path, *text;
    size_t size;
    TRY(path_join(&path, run, "config.ini"));
    Status s = file_exists(path) ? file_read(path, FIGURE_BYTES, &text, &size) : STATUS_END;
    mem_free(path);
    if (s == STATUS_END) return STATUS_OK;
    TRY(s);
    s = page_put(f, "<details><summary>Configuration of ");
    if (s == STATUS_OK) s = page_escaped(f, run);
    if (s == STATUS_OK) s = page_put(f, "</summary><pre>");
    if (s == STATUS_OK) s = page_escaped(f, text);
    mem_free(text);
    return s == STATUS_OK ? page_put(f, "</pre></details>\n") : s;
}

static Status put_report(FileWriter *f, const Runs *r, const char *folder) {
    TRY(put_table(f, r));
    for (int k = 0; k < FIGURES; k++)
        if (r->drawn[k]) TRY(put_figure(f, folder, &figures[k]));
    for (int i = 0; i < r->count; i++) TRY(put_config(f, r->paths[i]));
    return STATUS_OK;
}

static Status write_report(const Runs *r, const char *folder) {
    FileWriter *f;
    char *path;
    TRY(path_join(&path, folder, "report.html"));
    const Status s = page_open(path, r->count == 1 ? r->paths[0] : "Training runs", &f);
    mem_free(path);
    TRY(s);
    return page_close(f, put_report(f, r, folder));
}

/* ---- telling it ---- */

static void print_text(const Runs *r, const char *folder) {
    for (int i = 0; i < r->count; i++) {
        const Summary s = summarise(&r->metrics[i]);
        out_path(r->paths[i]);
        out_printf(": step %.0f, loss %.4g", s.steps, s.loss);
        if (s.score_name)
            out_printf(", %s %.2f, best %.2f at step %.0f", s.score_name, s.score, s.best,
                       s.best_step);
        out_printf(", %.0f s\n", s.seconds);
    }
    for (int f = 0; f < FIGURES; f++) {
        if (!r->drawn[f]) continue;
        out_path(folder);
        out_printf("/%s\n", figures[f].file);
    }
    if (!options.html) return;
    out_path(folder);
    out_text("/report.html\n");
}

static Status print_json(const Runs *r, const char *folder) {
    JsonWriter w;
    json_writer_init(&w);
    json_begin_object(&w);
    json_pair_string(&w, "folder", folder);
    json_key(&w, "pictures");
    json_begin_array(&w);
    for (int f = 0; f < FIGURES; f++)
        if (r->drawn[f]) json_string(&w, figures[f].file);
    json_end_array(&w);
    if (options.html) json_pair_string(&w, "report", "report.html");
    json_key(&w, "runs");
    json_begin_array(&w);
    for (int i = 0; i < r->count; i++) {
        const Summary s = summarise(&r->metrics[i]);
        json_begin_object(&w);
        json_pair_string(&w, "run", r->paths[i]);
        json_pair_number(&w, "step", s.steps);
        json_pair_number(&w, "loss", s.loss);
        json_pair_number(&w, "score", s.score);
        json_pair_number(&w, "best", s.best);
        json_pair_number(&w, "best_step", s.best_step);
        json_pair_number(&w, "seconds", s.seconds);
        json_end_object(&w);
    }
    json_end_array(&w);
    json_end_object(&w);
    return out_json(&w, STATUS_OK);
}

/* ---- the command ---- */

static Status plot_runs(Runs *r, const char *folder) {
    void *block;
    TRY(mem_alloc(&block, r->count, sizeof(Metrics), "runs"));
    r->metrics = block;
    for (int i = 0; i < r->count; i++) TRY(metrics_read(r->paths[i], &r->metrics[i]));
    TRY(file_make_folder(folder));
    for (int f = 0; f < FIGURES; f++) TRY(draw(r, f, folder));
    for (int f = 0; f < FIGURES; f++)
        if (r->drawn[f]) return STATUS_OK;
    return status_set(STATUS_DATA, "%s: metrics.csv holds no row that could be drawn yet",
                      r->paths[0]);
}

static int run(Config *config, int argc, char **argv) {
    (void)config;
    Runs r = {.paths = argv, .count = argc};
    char *folder = NULL;
    if (argc == 0) return cli_usage(&command_plot, "no run folder was named");
    if (argc > 1 && !options.output[0])
        return cli_usage(&command_plot, "several runs need a folder for the pictures: --output");
    Status s = options.output[0] ? mem_string(&folder, options.output)
                                 : path_join(&folder, argv[0], "plots");
    if (s == STATUS_OK) s = plot_runs(&r, folder);
    if (s == STATUS_OK && options.html) s = write_report(&r, folder);
    if (s == STATUS_OK && common.json)
        s = print_json(&r, folder);
    else if (s == STATUS_OK)
        print_text(&r, folder);
    for (int i = 0; r.metrics && i < r.count; i++) metrics_free(&r.metrics[i]);
    mem_free(r.metrics);
    mem_free(folder);
    return s == STATUS_OK ? 0 : cli_fail(s);
}

const Command command_plot = {
    .name = "plot",
    .aliases = "report",
    .summary = "the curves of one or more runs as pictures",
    .synopsis = "ttv plot [--output FOLDER] [--html] RUN...",
    .examples = "  ttv plot runs/digits\n"
                "  ttv plot runs/first runs/second -o compared --html\n",
    .letters = "o=output",
    .sections = sections,
    .run = run,
};
