/* Newton-Schulz as a linear map of what goes in (fastweight.md 6). */
#include "core/memory.h"
#include "ttt/identity_parts.h"

#define NORM_OFFSET 1e-7

Status identity_muon_map(const NewtonSchulz *s, const double *p, int64_t r, int64_t c,
                         double **out) {
    const bool turned = r > c;
    const int64_t m = turned ? c : r, n = turned ? r : c, size = m * m;
    double *work, *map;
    TRY(mem_alloc((void **)out, size, sizeof **out, "an attention form"));
    map = *out;
    TRY(mem_alloc((void **)&work, m * n + 3 * size, sizeof *work, "an attention form"));
    double *x = work, *a = work + m * n, *b = a + size, *next = b + size;
    const double scale = 1 / (dense_norm(p, r * c) + NORM_OFFSET);
    for (int64_t i = 0; i < m; i++) map[i * m + i] = scale;
    for (int k = 0; k < s->steps; k++) {
        /* X = map P at each step: the Gram matrix from P itself. */
        dense_product(x, map, false, p, turned, m, n, m, 1);
        dense_product(a, x, false, x, true, m, m, n, 1);
        dense_product(b, a, false, a, false, m, m, m, (double)s->triple[k][2]);
        for (int64_t i = 0; i < size; i++) b[i] += (double)s->triple[k][1] * a[i];
        for (int64_t i = 0; i < m; i++) b[i * m + i] += (double)s->triple[k][0];
        dense_product(next, b, false, map, false, m, m, m, 1);
        memcpy(map, next, (size_t)size * sizeof *map);
    }
    mem_free(work);
    return STATUS_OK;
}
