/* Simple plots as pictures: lines over a number line, points in a plane. */
#ifndef TTV_TOOLS_PLOT_H
#define TTV_TOOLS_PLOT_H

#include "datasets/compose.h"

typedef struct PlotSeries {
    const char *name; /* "" of a single one: no legend */
    const double *x, *y;
    int64_t count;
    const double *low, *high; /* whiskers at each point; NULL: none */
} PlotSeries;

/* Writes a PNG of 640x420 with axes, round numbers along them, a legend and the series in different
 * colours: joined by lines, or as points. Values that are not finite are left out. */
Status plot_write(const char *path, const char *title, const char *x_name, const PlotSeries *series,
                  int count, bool points);
/* The same with lines over logarithmic axes; values that are not above 0 are left out. */
Status plot_write_log(const char *path, const char *title, const char *x_name,
                      const PlotSeries *series, int count);

/* Writes a PNG of values with whiskers, one row each, names at the left, a line down from the first
 * value. Limits that are not finite leave the whisker out. */
typedef struct PlotRow {
    const char *name;
    double value, low, high;
} PlotRow;
Status plot_rows(const char *path, const char *title, const PlotRow *rows, int64_t count);

#endif
