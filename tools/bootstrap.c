#include "tools/bootstrap.h"

#include <math.h>
#include <stdlib.h>

#include "core/memory.h"
#include "core/rng.h"

/* What is drawn as one: a sample, or all samples of a group. */
typedef struct Unit {
    double x, base; /* sums */
    int64_t count;
} Unit;

static int by_number(const void *a, const void *b) {
    const double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

double quantile_of_sorted(const double *x, int64_t n, double q) {
    const double at = q * (double)(n - 1);
    const int64_t below = (int64_t)floor(at);
    if (below + 1 >= n) return x[n - 1];
    return x[below] + (at - (double)below) * (x[below + 1] - x[below]);
}

/* The units with any finite sample; their number. */
static int64_t collect(const Bootstrap *b, const double *x, const double *base, int64_t n,
                       Unit *units) {
    int64_t count = 0, current = -1;
    for (int64_t i = 0; i < n; i++) {
        if (!isfinite(x[i]) || (base && !isfinite(base[i]))) continue;
        if (count == 0 || !b->group || b->group[i] != current) units[count++] = (Unit){0};
        if (b->group) current = b->group[i];
        units[count - 1].x += x[i];
        units[count - 1].base += base ? base[i] : 0;
        units[count - 1].count++;
    }
    return count;
}

static void interval_of(const Bootstrap *b, double *means, Interval *out) {
    qsort(means, (size_t)b->resamples, sizeof *means, by_number);
    out->low = quantile_of_sorted(means, b->resamples, (1 - b->level) / 2);
    out->high = quantile_of_sorted(means, b->resamples, (1 + b->level) / 2);
}

/* means and differences [resamples]. */
static void draw(const Bootstrap *b, const Unit *units, int64_t count, double *means,
                 double *differences) {
    for (int64_t r = 0; r < b->resamples; r++) {
        Rng rng = rng_stream(b->seed, 0, (uint64_t)r, (uint64_t)count);
        double x = 0, base = 0, drawn = 0;
        for (int64_t i = 0; i < count; i++) {
            const Unit *u = &units[rng_below(&rng, (uint64_t)count)];
            x += u->x;
            base += u->base;
            drawn += (double)u->count;
        }
        means[r] = x / drawn;
        differences[r] = (x - base) / drawn;
    }
}

Status bootstrap_mean(const Bootstrap *b, const double *x, const double *base, int64_t n,
                      Interval *mean, Interval *difference) {
    void *units_block, *block;
    *mean = *difference = (Interval){NAN, NAN, NAN};
    TRY(mem_alloc(&units_block, n, sizeof(Unit), "samples"));
    Unit *units = units_block;
    const int64_t count = collect(b, x, base, n, units);
    double sum_x = 0, sum_base = 0, all = 0;
    for (int64_t i = 0; i < count; i++) {
        sum_x += units[i].x;
        sum_base += units[i].base;
        all += (double)units[i].count;
    }
    if (count > 0) mean->value = sum_x / all;
    if (count > 0 && base) difference->value = (sum_x - sum_base) / all;
    Status s = STATUS_OK;
    if (count >= 2 && b->resamples > 0) {
        s = mem_alloc(&block, 2 * b->resamples, sizeof(double), "resampled means");
        if (s == STATUS_OK) {
            double *means = block;
            draw(b, units, count, means, means + b->resamples);
            interval_of(b, means, mean);
            if (base) interval_of(b, means + b->resamples, difference);
            mem_free(block);
        }
    }
    mem_free(units_block);
    return s;
}
