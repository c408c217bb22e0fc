/* Tables and plots of a sweep. */
#include <math.h>
#include <stdio.h>
#include <string.h>

#include "core/file.h"
#include "core/memory.h"
#include "tools/plot.h"
#include "tools/probe.h"

Status probe_path(const Probe *p, const char *leaf, char **out) {
    return path_join(out, p->options->output, leaf);
}

/* ---- CSV ---- */

static Status put(FileWriter *w, const char *text) {
    return file_writer_write(w, text, strlen(text));
}

/* ",value"; nothing behind the comma where it is not finite. */
static Status put_number(FileWriter *w, double x) {
    char text[40] = ",";
    if (isfinite(x)) snprintf(text, sizeof text, ",%.6g", x);
    return put(w, text);
}

static Status put_interval(FileWriter *w, const Interval *x) {
    TRY(put_number(w, x->value));
    TRY(put_number(w, x->low));
    return put_number(w, x->high);
}

static Status put_inner(FileWriter *w, const InnerLoop *x) {
    const double numbers[] = {x->loss[0], x->loss[1], x->alignment[0], x->alignment[1], x->moved};
    for (int i = 0; i < 5; i++) TRY(put_number(w, numbers[i]));
    return put(w, "\n");
}

#define INNER_COLUMNS "inner_loss_before,inner_loss_after,alignment_before,alignment_after,moved\n"

static Status put_head(const Probe *p, FileWriter *w) {
    char text[512];
    TRY(put(w, "setting,value,"));
    TRY(put(w, p->subject->samples));
    for (int m = 0; m < PROBE_METRICS; m++) {
        const char *name = p->subject->metrics[m];
        snprintf(text, sizeof text,
                 ",%s,%s_low,%s_high,%s_difference,%s_difference_low,%s_difference_high", name,
                 name, name, name, name, name);
        TRY(put(w, text));
    }
    return put(w, "," INNER_COLUMNS);
}

static Status put_row(FileWriter *w, const ProbeRow *r) {
    char text[128];
    snprintf(text, sizeof text, "%s,%g,%lld", r->setting, r->value, (long long)r->samples);
    TRY(put(w, text));
    for (int m = 0; m < PROBE_METRICS; m++) {
        TRY(put_interval(w, &r->metric[m]));
        TRY(put_interval(w, &r->difference[m]));
    }
    return put_inner(w, &r->inner);
}

static Status put_rows(const Probe *p, const ProbeTable *t, FileWriter *w) {
    TRY(put_head(p, w));
    for (int i = 0; i < t->count; i++) TRY(put_row(w, &t->rows[i]));
    return STATUS_OK;
}

static Status put_layers(const Probe *p, const ProbeTable *t, FileWriter *w) {
    char text[128];
    TRY(put(w, "setting,value,layer," INNER_COLUMNS));
    for (int i = 0; i < t->count; i++)
        for (int64_t l = 0; l < p->depth; l++) {
            const ProbeRow *r = &t->rows[i];
            snprintf(text, sizeof text, "%s,%g,%lld", r->setting, r->value, (long long)l);
            TRY(put(w, text));
            TRY(put_inner(w, &r->layers[l]));
        }
    return STATUS_OK;
}

static Status write_csv(const Probe *p, const ProbeTable *t, const char *leaf,
                        Status (*rows)(const Probe *, const ProbeTable *, FileWriter *)) {
    char *path;
    FileWriter *w;
    TRY(probe_path(p, leaf, &path));
    Status s = file_writer_open(path, &w);
    mem_free(path);
    TRY(s);
    s = rows(p, t, w);
    if (s == STATUS_OK) return file_writer_commit(w);
    file_writer_abort(w);
    return s;
}

/* ---- plots ---- */

/* What a picture calls the metric: with its unit. */
static const char *metric_title(const char *metric) {
    static const char *const titles[][2] = {
        {"top1", "Top-1, %"}, {"loss", "Loss"}, {"psnr", "PSNR, dB"}, {"ssim", "SSIM"}};
    for (size_t i = 0; i < sizeof titles / sizeof *titles; i++)
        if (strcmp(metric, titles[i][0]) == 0) return titles[i][1];
    return metric;
}

/* Columns of a table as arrays. */
typedef struct Columns {
    double x[PROBE_ROWS], y[PROBE_ROWS], low[PROBE_ROWS], high[PROBE_ROWS];
} Columns;

static Status plot_lines(const Probe *p, const char *leaf, const char *title, const char *x_name,
                         const Columns *c, int64_t n, bool whiskers) {
    const PlotSeries series = {
        "", c->x, c->y, n, whiskers ? c->low : NULL, whiskers ? c->high : NULL};
    char *path;
    TRY(probe_path(p, leaf, &path));
    const Status s = plot_write(path, title, x_name, &series, 1, false);
    mem_free(path);
    return s;
}

/* Metrics and the inner loss over the swept value; the first row repeats one of the list and is
 * left out. */
static Status sweep_plots(const Probe *p, const ProbeTable *t, const char *name,
                          const char *x_name) {
    static Columns c;
    char leaf[96], title[96];
    const int n = t->count - 1;
    for (int m = 0; m <= PROBE_METRICS; m++) {
        const bool inner = m == PROBE_METRICS;
        for (int i = 0; i < n; i++) {
            const ProbeRow *r = &t->rows[i + 1];
            c.x[i] = r->value;
            c.y[i] = inner ? r->inner.loss[1] : r->metric[m].value;
            c.low[i] = inner ? NAN : r->metric[m].low;
            c.high[i] = inner ? NAN : r->metric[m].high;
        }
        snprintf(leaf, sizeof leaf, "%.64s_%.16s.png", name,
                 inner ? "inner" : p->subject->metrics[m]);
        snprintf(title, sizeof title, "%s%s",
                 inner ? "Inner loss after the steps" : metric_title(p->subject->metrics[m]),
                 inner ? "" : ", 95 % intervals");
        TRY(plot_lines(p, leaf, title, x_name, &c, n, !inner));
    }
    return STATUS_OK;
}

static Status row_plot(const Probe *p, const char *leaf, const char *title, const PlotRow *rows,
                       int n) {
    char *path;
    TRY(probe_path(p, leaf, &path));
    const Status s = plot_rows(path, title, rows, n);
    mem_free(path);
    return s;
}

/* The leading metric and its difference from the first row, setting by setting. */
static Status setting_plots(const Probe *p, const ProbeTable *t, const char *name) {
    static PlotRow rows[PROBE_ROWS];
    const char *metric = p->subject->metrics[0];
    char leaf[96], title[96];
    for (int k = 0; k < 2; k++) {
        for (int i = 0; i < t->count; i++) {
            const Interval *x = k ? &t->rows[i].difference[0] : &t->rows[i].metric[0];
            rows[i] = (PlotRow){t->rows[i].setting, x->value, x->low, x->high};
        }
        snprintf(leaf, sizeof leaf, "%.48s_%.16s%s.png", name, metric, k ? "_difference" : "");
        snprintf(title, sizeof title, "%s%s", metric_title(metric),
                 k ? ", difference from the model" : ", 95 % intervals");
        TRY(row_plot(p, leaf, title, rows, t->count));
    }
    return STATUS_OK;
}

Status probe_write(const Probe *p, const ProbeTable *t, const char *name, const char *x_name) {
    char leaf[96];
    snprintf(leaf, sizeof leaf, "%.64s.csv", name);
    TRY(write_csv(p, t, leaf, put_rows));
    snprintf(leaf, sizeof leaf, "%.64s_layers.csv", name);
    TRY(write_csv(p, t, leaf, put_layers));
    return x_name ? sweep_plots(p, t, name, x_name) : setting_plots(p, t, name);
}

/* ---- trends ---- */

static double rank_of(const double *x, int64_t n, int64_t i) {
    double below = 0, equal = 0;
    for (int64_t j = 0; j < n; j++) {
        below += x[j] < x[i];
        equal += x[j] == x[i];
    }
    return below + (equal - 1) / 2;
}

double rank_correlation(const double *x, const double *y, int64_t n) {
    const double mean = (double)(n - 1) / 2;
    double xy = 0, xx = 0, yy = 0;
    for (int64_t i = 0; i < n; i++) {
        const double a = rank_of(x, n, i) - mean, b = rank_of(y, n, i) - mean;
        xy += a * b;
        xx += a * a;
        yy += b * b;
    }
    return xx > 0 && yy > 0 ? xy / sqrt(xx * yy) : NAN;
}

ProbeTrend probe_trend(const ProbeTable *t) {
    double x[PROBE_ROWS], metric[PROBE_ROWS], loss[PROBE_ROWS];
    const int64_t n = t->count - 1;
    ProbeTrend trend = {.drop_at = NAN};
    for (int64_t i = 0; i < n; i++) {
        const ProbeRow *r = &t->rows[i + 1];
        x[i] = r->value;
        metric[i] = r->metric[0].value;
        loss[i] = r->inner.loss[1];
        const double first = t->rows[0].metric[0].value;
        if (isnan(trend.drop_at) && metric[i] < first - 0.01 * fabs(first)) trend.drop_at = x[i];
    }
    trend.metric = rank_correlation(x, metric, n);
    trend.inner = rank_correlation(x, loss, n);
    trend.paradox = trend.metric < 0 && trend.inner < 0;
    return trend;
}
