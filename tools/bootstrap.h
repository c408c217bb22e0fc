/* Percentile intervals of a mean by resampling (Efron's bootstrap), seeded: the same draws for
 * every row of a table, so that differences of rows are paired.
 */
#ifndef TTV_TOOLS_BOOTSTRAP_H
#define TTV_TOOLS_BOOTSTRAP_H

#include <stdint.h>

#include "core/status.h"

typedef struct Interval {
    double value, low, high; /* low and high NaN: too few samples */
} Interval;

/* What is drawn. */
typedef struct Bootstrap {
    int64_t resamples;
    uint64_t seed;
    double level;         /* 0.95 */
    const int64_t *group; /* of each sample, rising from 0: whole groups are drawn; NULL: samples */
} Bootstrap;

/* Mean of x[n], and of x - base where base is not NULL (same samples). A sample whose value, or
 * whose value in base, is not finite counts in neither. Fewer than two samples (or groups) have no
 * interval; none at all has no mean (NaN). STATUS_MEMORY. */
Status bootstrap_mean(const Bootstrap *b, const double *x, const double *base, int64_t n,
                      Interval *mean, Interval *difference);

/* The q-quantile of sorted x[n], n >= 1, straight between neighbours. */
double quantile_of_sorted(const double *x, int64_t n, double q);

#endif
