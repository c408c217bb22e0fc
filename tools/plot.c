#include "tools/plot.h"

#include <math.h>
#include <stdio.h>

enum { WIDTH = 640, HEIGHT = 420, LEFT = 80, RIGHT = 16, TOP = 30, BOTTOM = 44 };

static const Color colors[] = {{31, 119, 180}, {214, 39, 40},   {44, 160, 44},
                               {255, 127, 14}, {148, 103, 189}, {23, 190, 207}};
enum { COLORS = sizeof colors / sizeof *colors };
static const Color ink = {40, 40, 40}, faint = {210, 210, 210};

typedef struct Range {
    double low, high;
} Range;

typedef struct Plot {
    Image canvas;
    Range x, y; /* of logarithms where `log` */
    bool log;
} Plot;

/* A value on an axis; not finite where it has no place. */
static double on_axis(const Plot *p, double value) {
    return p->log ? log10(value) : value;
}

static void dot(Plot *p, int64_t x, int64_t y, Color c) {
    if (x < 0 || y < 0 || x >= p->canvas.width || y >= p->canvas.height) return;
    uint8_t *to = p->canvas.pixels + (y * p->canvas.width + x) * 3;
    to[0] = c.red;
    to[1] = c.green;
    to[2] = c.blue;
}

static void square(Plot *p, double x, double y, int half, Color c) {
    for (int dy = -half; dy <= half; dy++)
        for (int dx = -half; dx <= half; dx++) dot(p, lround(x) + dx, lround(y) + dy, c);
}

static void line(Plot *p, double x0, double y0, double x1, double y1, Color c) {
    const int64_t steps = (int64_t)fmax(fabs(x1 - x0), fabs(y1 - y0)) + 1;
    for (int64_t i = 0; i <= steps; i++) {
        const double t = (double)i / (double)steps;
        dot(p, lround(x0 + t * (x1 - x0)), lround(y0 + t * (y1 - y0)), c);
    }
}

static double place(Range r, double value, double from, double to) {
    return from + (value - r.low) / (r.high - r.low) * (to - from);
}
static double place_x(const Plot *p, double x) {
    return place(p->x, x, LEFT, WIDTH - RIGHT);
}
static double place_y(const Plot *p, double y) {
    return place(p->y, y, HEIGHT - BOTTOM, TOP);
}

static void widen(Range *r, double v) {
    if (!isfinite(v)) return;
    r->low = fmin(r->low, v);
    r->high = fmax(r->high, v);
}

/* Some room at both ends, also where all values are one. */
static void finish_range(Range *r) {
    if (!(r->low <= r->high)) *r = (Range){0, 1};
    const double room = r->high > r->low ? 0.04 * (r->high - r->low) : fmax(fabs(r->low), 1) * 0.1;
    r->low -= room;
    r->high += room;
}

static void axes(Plot *p, const char *title, const char *x_name) {
    char text[32];
    for (int i = 0; i <= 4; i++) {
        const double x = p->x.low + i / 4.0 * (p->x.high - p->x.low);
        const double y = p->y.low + i / 4.0 * (p->y.high - p->y.low);
        line(p, place_x(p, x), TOP, place_x(p, x), HEIGHT - BOTTOM, faint);
        line(p, LEFT, place_y(p, y), WIDTH - RIGHT, place_y(p, y), faint);
        snprintf(text, sizeof text, "%.4g", p->log ? pow(10, x) : x);
        canvas_text(&p->canvas, lround(place_x(p, x)) - canvas_text_width(text, 1) / 2,
                    HEIGHT - BOTTOM + 6, 1, ink, text);
        snprintf(text, sizeof text, "%.4g", p->log ? pow(10, y) : y);
        canvas_text(&p->canvas, LEFT - 6 - canvas_text_width(text, 1), lround(place_y(p, y)) - 4, 1,
                    ink, text);
    }
    line(p, LEFT, TOP, LEFT, HEIGHT - BOTTOM, ink);
    line(p, LEFT, HEIGHT - BOTTOM, WIDTH - RIGHT, HEIGHT - BOTTOM, ink);
    canvas_text(&p->canvas, LEFT, 8, 2, ink, title);
    canvas_text(&p->canvas, (LEFT + WIDTH - RIGHT - canvas_text_width(x_name, 1)) / 2, HEIGHT - 20,
                1, ink, x_name);
}

/* A vertical line with ends. */
static void whisker(Plot *p, double x, double low, double high, Color c) {
    enum { HALF = 3 };
    if (!isfinite(low) || !isfinite(high)) return;
    const double y0 = place_y(p, low), y1 = place_y(p, high);
    line(p, x, y0, x, y1, c);
    line(p, x - HALF, y0, x + HALF, y0, c);
    line(p, x - HALF, y1, x + HALF, y1, c);
}

static void draw(Plot *p, const PlotSeries *s, Color c, bool points) {
    bool joined = false;
    double x0 = 0, y0 = 0;
    for (int64_t i = 0; i < s->count; i++) {
        const double vx = on_axis(p, s->x[i]), vy = on_axis(p, s->y[i]);
        const bool there = isfinite(vx) && isfinite(vy);
        const double x = there ? place_x(p, vx) : 0, y = there ? place_y(p, vy) : 0;
        if (there) square(p, x, y, points ? 1 : 2, c);
        if (there && s->low && s->high)
            whisker(p, x, on_axis(p, s->low[i]), on_axis(p, s->high[i]), c);
        if (there && joined && !points) line(p, x0, y0, x, y, c);
        joined = there;
        x0 = x;
        y0 = y;
    }
}

static Status write(Plot *p, const char *path, const char *title, const char *x_name,
                    const PlotSeries *series, int count, bool points) {
    p->x = p->y = (Range){INFINITY, -INFINITY};
    for (int s = 0; s < count; s++)
        for (int64_t i = 0; i < series[s].count; i++) {
            widen(&p->x, on_axis(p, series[s].x[i]));
            widen(&p->y, on_axis(p, series[s].y[i]));
            if (series[s].low) widen(&p->y, on_axis(p, series[s].low[i]));
            if (series[s].high) widen(&p->y, on_axis(p, series[s].high[i]));
        }
    finish_range(&p->x);
    finish_range(&p->y);
    TRY(canvas_new(WIDTH, HEIGHT, (Color){255, 255, 255}, &p->canvas));
    axes(p, title, x_name);
    for (int s = 0; s < count; s++) {
        const Color c = colors[s % COLORS];
        draw(p, &series[s], c, points);
        /* rising lines leave the upper left free */
        const int64_t left = p->log ? LEFT + 10 : WIDTH - RIGHT - 160;
        canvas_text(&p->canvas, left, TOP + 6 + 12 * s, 1, c, series[s].name);
    }
    const Status s = image_write_png(path, &p->canvas);
    image_free(&p->canvas);
    return s;
}

Status plot_write(const char *path, const char *title, const char *x_name, const PlotSeries *series,
                  int count, bool points) {
    Plot p = {0};
    return write(&p, path, title, x_name, series, count, points);
}

Status plot_write_log(const char *path, const char *title, const char *x_name,
                      const PlotSeries *series, int count) {
    Plot p = {.log = true};
    return write(&p, path, title, x_name, series, count, false);
}

/* ---- rows ---- */

enum { ROW = 22, NAMES = 270 };

static double row_x(const Plot *p, double x) {
    return place(p->x, x, NAMES, WIDTH - RIGHT);
}

static void row_axis(Plot *p, const char *title, int64_t bottom) {
    char text[32];
    for (int i = 0; i <= 4; i++) {
        const double x = p->x.low + i / 4.0 * (p->x.high - p->x.low);
        line(p, row_x(p, x), TOP, row_x(p, x), (double)bottom, faint);
        snprintf(text, sizeof text, "%.4g", x);
        canvas_text(&p->canvas, lround(row_x(p, x)) - canvas_text_width(text, 1) / 2, bottom + 6, 1,
                    ink, text);
    }
    line(p, NAMES, (double)bottom, WIDTH - RIGHT, (double)bottom, ink);
    canvas_text(&p->canvas, 12, 8, 2, ink, title);
}

static void draw_row(Plot *p, const PlotRow *r, double y, Color c) {
    enum { HALF = 4 };
    canvas_text(&p->canvas, 12, lround(y) - 4, 1, ink, r->name);
    if (isfinite(r->low) && isfinite(r->high)) {
        const double x0 = row_x(p, r->low), x1 = row_x(p, r->high);
        line(p, x0, y, x1, y, c);
        line(p, x0, y - HALF, x0, y + HALF, c);
        line(p, x1, y - HALF, x1, y + HALF, c);
    }
    if (isfinite(r->value)) square(p, row_x(p, r->value), y, 2, c);
}

Status plot_rows(const char *path, const char *title, const PlotRow *rows, int64_t count) {
    const int64_t bottom = TOP + 8 + count * ROW;
    Plot p = {.x = {INFINITY, -INFINITY}};
    for (int64_t i = 0; i < count; i++) {
        widen(&p.x, rows[i].value);
        widen(&p.x, rows[i].low);
        widen(&p.x, rows[i].high);
    }
    finish_range(&p.x);
    TRY(canvas_new(WIDTH, bottom + BOTTOM, (Color){255, 255, 255}, &p.canvas));
    row_axis(&p, title, bottom);
    if (count > 0 && isfinite(rows[0].value))
        line(&p, row_x(&p, rows[0].value), TOP, row_x(&p, rows[0].value), (double)bottom,
             colors[1]);
    for (int64_t i = 0; i < count; i++)
        draw_row(&p, &rows[i], TOP + 8 + ((double)i + 0.5) * ROW, colors[0]);
    const Status s = image_write_png(path, &p.canvas);
    image_free(&p.canvas);
    return s;
}
