/* Simple plots as pictures: lines over a number line, points in a plane. */
#ifndef TTV_TOOLS_PLOT_H
#define TTV_TOOLS_PLOT_H

#include "datasets/compose.h"

typedef struct PlotSeries {
    const char *name;
    const double *x, *y;
    int64_t count;
} PlotSeries;

/* Writes a PNG of 640x420 with axes, limits at their ends, a legend and the series in different
 * colours: joined by lines, or as points. Values that are not finite are left out. */
Status plot_write(const char *path, const char *title, const char *x_name, const PlotSeries *series,
                  int count, bool points);

#endif
