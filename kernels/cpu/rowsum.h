/* Sums over rows that do not depend on the number of threads: the rows are cut into a number of
 * parts that depends on the row count alone; each part is summed by one thread, then the parts are
 * added in order.
 */
#ifndef TTV_KERNELS_CPU_ROWSUM_H
#define TTV_KERNELS_CPU_ROWSUM_H

#include "kernels/cpu/values.h"

#define ROW_PARTS_MAX 16
#define ROW_PART_MIN  16 /* rows */

typedef struct RowParts {
    int64_t rows, count;
} RowParts;

static inline RowParts row_parts(int64_t rows) {
    const int64_t count = min_i64(ROW_PARTS_MAX, max_i64(1, rows / ROW_PART_MIN));
    return (RowParts){rows, count};
}

/* First row of part p; of part `count`: the number of rows. */
static inline int64_t row_part_begin(RowParts parts, int64_t p) {
    return parts.rows * p / parts.count;
}

/* y (+)= sum over parts p of partial[p*stride .. +width). */
static inline void row_parts_sum(Grad y, const float *partial, int64_t count, int64_t stride,
                                 int64_t width) {
    for (int64_t start = 0; start < width; start += CHUNK) {
        float sum[CHUNK];
        const int64_t n = min_i64(CHUNK, width - start);
        memcpy(sum, partial + start, (size_t)n * sizeof *sum);
        for (int64_t p = 1; p < count; p++) {
            const float *part = partial + p * stride + start;
#pragma omp simd
            for (int64_t i = 0; i < n; i++) sum[i] += part[i];
        }
        values_write(&y, start, n, sum);
    }
}

#endif
