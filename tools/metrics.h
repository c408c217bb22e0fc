/* metrics.csv of a run folder (docs/cli.md), as numbers. */
#ifndef TTV_TOOLS_METRICS_H
#define TTV_TOOLS_METRICS_H

#include <stdint.h>

#include "core/status.h"

typedef struct Metrics {
    int64_t rows, columns;
    char *text;     /* the file, cut into fields; `names` and `kinds` point into it */
    char **names;   /* [columns]: of the first line; "kind" is the first */
    char **kinds;   /* [rows]: train, validate, save, ... */
    double *values; /* [rows, columns]; NaN where a field is empty or no number */
} Metrics;

/* STATUS_IO when the folder has none, STATUS_DATA when its first line does not begin with
 * "kind,step". A last line without its end, of a run that is being written, is left out. */
Status metrics_read(const char *run_folder, Metrics *out);
void metrics_free(Metrics *m);

/* -1: no such column. */
int64_t metrics_column(const Metrics *m, const char *name);
/* Steps and values of the rows of one kind with a finite value there; x, y: room for m->rows, or
 * both NULL. Their count. */
int64_t metrics_series(const Metrics *m, const char *kind, const char *name, double *x, double *y);

#endif
