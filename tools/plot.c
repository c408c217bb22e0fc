#include "tools/plot.h"

#include <math.h>
#include <stdio.h>

enum { WIDTH = 640, HEIGHT = 420, LEFT = 80, RIGHT = 16, TOP = 30, BOTTOM = 44 };

static const Color colors[] = {{31, 119, 180}, {214, 39, 40},   {44, 160, 44},
                               {255, 127, 14}, {148, 103, 189}, {23, 190, 207}};
enum { COLORS = sizeof colors / sizeof *colors };
static const Color ink = {40, 40, 40}, faint = {210, 210, 210}, white = {255, 255, 255};

typedef struct Range {
    double low, high;
    bool fractions; /* not all values are whole numbers */
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
    r->fractions |= v != floor(v);
    r->low = fmin(r->low, v);
    r->high = fmax(r->high, v);
}

/* Some room at both ends, also where all values are one. */
static void finish_range(Range *r) {
    if (!(r->low <= r->high)) *r = (Range){0, 1, true};
    const double room = r->high > r->low ? 0.04 * (r->high - r->low) : fmax(fabs(r->low), 1) * 0.1;
    r->low -= room;
    r->high += room;
}

/* ---- ticks ---- */

enum { TICKS = 16 };

/* Round places on an axis: multiples of 1, 2 or 5 times a power of ten, at most seven of them; of a
 * logarithm powers of ten, with 2 and 5 between them where there are few. Returns how many. */
static int ticks_of(Range r, bool log, double *at) {
    const double span = r.high - r.low;
    int n = 0;
    if (log) {
        const int each = span > 6 ? (int)ceil(span / 6) : 1;
        static const double between[] = {0, 0.30102999566398120, 0.69897000433601880};
        for (double d = floor(r.low); d <= r.high; d += each)
            for (int i = 0; i < (span < 3 ? 3 : 1); i++)
                if (d + between[i] >= r.low && d + between[i] <= r.high && n < TICKS)
                    at[n++] = d + between[i];
        return n;
    }
    const double unit = pow(10, floor(log10(span / 6)));
    double step = span / 6 <= unit       ? unit
                  : span / 6 <= 2 * unit ? 2 * unit
                  : span / 6 <= 5 * unit ? 5 * unit
                                         : 10 * unit;
    if (!r.fractions) step = fmax(step, 1); /* there is no layer half way between two */
    for (double i = ceil(r.low / step); i * step <= r.high && n < TICKS; i++)
        at[n++] = i * step + 0.0; /* -0 becomes 0 */
    return n;
}

static void tick_text(char text[32], double at, bool log) {
    snprintf(text, 32, "%.7g", log ? pow(10, at) : at);
}

static void axes(Plot *p, const char *title, const char *x_name) {
    char text[32];
    double at[TICKS];
    const int columns = ticks_of(p->x, p->log, at);
    for (int i = 0; i < columns; i++) {
        const double x = place_x(p, at[i]);
        line(p, x, TOP, x, HEIGHT - BOTTOM, faint);
        tick_text(text, at[i], p->log);
        canvas_text(&p->canvas, lround(x) - canvas_text_width(text, 1) / 2, HEIGHT - BOTTOM + 6, 1,
                    ink, text);
    }
    const int rows = ticks_of(p->y, p->log, at);
    for (int i = 0; i < rows; i++) {
        const double y = place_y(p, at[i]);
        line(p, LEFT, y, WIDTH - RIGHT, y, faint);
        tick_text(text, at[i], p->log);
        canvas_text(&p->canvas, LEFT - 6 - canvas_text_width(text, 1), lround(y) - 4, 1, ink, text);
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

/* Squares at the values while they can be told apart; later where a line begins. Of more values
 * than there are columns their mean in each is drawn over a pale band of all of them. */
enum { MARKED = 80, BANDED = 2 * (WIDTH - LEFT - RIGHT) };

static void draw_values(Plot *p, const PlotSeries *s, Color c, bool points) {
    bool joined = false;
    double x0 = 0, y0 = 0;
    for (int64_t i = 0; i < s->count; i++) {
        const double vx = on_axis(p, s->x[i]), vy = on_axis(p, s->y[i]);
        const bool there = isfinite(vx) && isfinite(vy);
        const double x = there ? place_x(p, vx) : 0, y = there ? place_y(p, vy) : 0;
        if (there && (points || s->count <= MARKED || !joined)) square(p, x, y, points ? 1 : 2, c);
        if (there && s->low && s->high)
            whisker(p, x, on_axis(p, s->low[i]), on_axis(p, s->high[i]), c);
        if (there && joined && !points) line(p, x0, y0, x, y, c);
        joined = there;
        x0 = x;
        y0 = y;
    }
}

static void draw_means(Plot *p, const PlotSeries *s, Color c) {
    double sums[WIDTH] = {0}, x0 = -1, y0 = 0;
    int64_t counts[WIDTH] = {0};
    for (int64_t i = 0; i < s->count; i++) {
        const double vx = on_axis(p, s->x[i]), vy = on_axis(p, s->y[i]);
        if (!isfinite(vx) || !isfinite(vy)) continue;
        const long column = lround(place_x(p, vx));
        if (column < 0 || column >= WIDTH) continue; /* both ends of the range lie inside */
        sums[column] += place_y(p, vy);
        counts[column]++;
    }
    for (int x = 0; x < WIDTH; x++) {
        if (counts[x] == 0) continue;
        const double y = sums[x] / (double)counts[x];
        if (x0 >= 0) line(p, x0, y0, x, y, c);
        x0 = x;
        y0 = y;
    }
}

static Color pale(Color c) {
    return (Color){(uint8_t)((c.red + 2 * 255) / 3), (uint8_t)((c.green + 2 * 255) / 3),
                   (uint8_t)((c.blue + 2 * 255) / 3)};
}

static void draw(Plot *p, const PlotSeries *s, Color c, bool points) {
    const bool band = !points && s->count > BANDED;
    draw_values(p, s, band ? pale(c) : c, points);
    if (band) draw_means(p, s, c);
}

/* How many points of the series lie in a box of the picture. */
static int64_t points_in(const Plot *p, const PlotSeries *series, int count, const int64_t box[4]) {
    int64_t inside = 0;
    for (int s = 0; s < count; s++)
        for (int64_t i = 0; i < series[s].count; i++) {
            const double x = place_x(p, on_axis(p, series[s].x[i]));
            const double y = place_y(p, on_axis(p, series[s].y[i]));
            inside += x >= (double)box[0] && x <= (double)box[2] && y >= (double)box[1] &&
                      y <= (double)box[3];
        }
    return inside;
}

/* Names in the colours of their lines, on white, in the corner where the fewest points lie. */
static void legend(Plot *p, const PlotSeries *series, int count) {
    enum { EDGE = 6, HIGH = 12 };
    int64_t wide = 0, best[4] = {0}, fewest = INT64_MAX;
    if (count == 1 && !series[0].name[0]) return; /* the title says it */
    for (int s = 0; s < count; s++) {
        const int64_t width = canvas_text_width(series[s].name, 1);
        wide = width > wide ? width : wide;
    }
    const int64_t tall = HIGH * count + EDGE;
    for (int corner = 0; corner < 4; corner++) {
        const int64_t x = corner % 2 ? LEFT + EDGE : WIDTH - RIGHT - wide - 2 * EDGE;
        const int64_t y = corner / 2 ? HEIGHT - BOTTOM - tall - EDGE : TOP + 2;
        const int64_t box[4] = {x, y, x + wide + 2 * EDGE, y + tall};
        const int64_t inside = points_in(p, series, count, box);
        if (inside >= fewest) continue;
        fewest = inside;
        for (int i = 0; i < 4; i++) best[i] = box[i];
    }
    for (int64_t y = best[1]; y < best[3]; y++)
        for (int64_t x = best[0]; x < best[2]; x++) dot(p, x, y, white);
    for (int s = 0; s < count; s++)
        canvas_text(&p->canvas, best[0] + EDGE, best[1] + EDGE + HIGH * s, 1, colors[s % COLORS],
                    series[s].name);
}

static Status write(Plot *p, const char *path, const char *title, const char *x_name,
                    const PlotSeries *series, int count, bool points) {
    p->x = p->y = (Range){INFINITY, -INFINITY, false};
    for (int s = 0; s < count; s++)
        for (int64_t i = 0; i < series[s].count; i++) {
            widen(&p->x, on_axis(p, series[s].x[i]));
            widen(&p->y, on_axis(p, series[s].y[i]));
            if (series[s].low) widen(&p->y, on_axis(p, series[s].low[i]));
            if (series[s].high) widen(&p->y, on_axis(p, series[s].high[i]));
        }
    finish_range(&p->x);
    finish_range(&p->y);
    TRY(canvas_new(WIDTH, HEIGHT, white, &p->canvas));
    axes(p, title, x_name);
    for (int s = 0; s < count; s++) draw(p, &series[s], colors[s % COLORS], points);
    legend(p, series, count);
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
    double at[TICKS];
    const int columns = ticks_of(p->x, false, at);
    for (int i = 0; i < columns; i++) {
        const double x = row_x(p, at[i]);
        line(p, x, TOP, x, (double)bottom, faint);
        tick_text(text, at[i], false);
        canvas_text(&p->canvas, lround(x) - canvas_text_width(text, 1) / 2, bottom + 6, 1, ink,
                    text);
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
    Plot p = {.x = {INFINITY, -INFINITY, false}};
    for (int64_t i = 0; i < count; i++) {
        widen(&p.x, rows[i].value);
        widen(&p.x, rows[i].low);
        widen(&p.x, rows[i].high);
    }
    finish_range(&p.x);
    TRY(canvas_new(WIDTH, bottom + BOTTOM, white, &p.canvas));
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
