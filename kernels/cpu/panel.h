/* Small dense F32 products held in registers, for the inner step of ViTTT: tokens x d by d x d.
 *
 * gemm.h costs more to call than such a product takes.
 */
#ifndef TTV_KERNELS_CPU_PANEL_H
#define TTV_KERNELS_CPU_PANEL_H

#include <stdbool.h>
#include <stdint.h>

#include "kernels/cpu/vec.h"

/* Panels are padded to a multiple of the vector width. */
static inline int64_t panel_width(int64_t n) {
    return (n + LANES - 1) / LANES * LANES;
}

/* c[m][n] (+)= a b: element (i,p) of a at a[i*a_row + p*a_column], b[k][n] and c row-major, n a
 * multiple of LANES. The sums over k run in order. */
void panel_product(float *c, int64_t ldc, const float *a, int64_t a_row, int64_t a_column,
                   const float *b, int64_t ldb, int64_t m, int64_t n, int64_t k, bool add);

#endif
