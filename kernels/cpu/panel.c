#include "kernels/cpu/panel.h"

/* Rows and vectors of the register tile: 24 of 32 registers with AVX-512, 12 of 16 otherwise. */
#define TILE_ROWS    6
#define TILE_VECTORS (LANES == 16 ? 4 : 2)

/* A tile of `rows` x `vectors`: both are constants wherever this is inlined. */
ALWAYS_INLINE void tile(float *c, int64_t ldc, const float *a, int64_t a_row, int64_t a_column,
                        const float *b, int64_t ldb, int64_t k, bool add, const int rows,
                        const int vectors) {
    Vec sum[TILE_ROWS][TILE_VECTORS];
#pragma GCC unroll 8
    for (int i = 0; i < rows; i++) {
#pragma GCC unroll 8
        for (int j = 0; j < vectors; j++) {
            sum[i][j] = add ? *(const Vec *)(c + i * ldc + j * LANES) : (Vec){0};
        }
    }
    for (int64_t p = 0; p < k; p++) {
        Vec right[TILE_VECTORS];
#pragma GCC unroll 8
        for (int j = 0; j < vectors; j++) right[j] = *(const Vec *)(b + p * ldb + j * LANES);
#pragma GCC unroll 8
        for (int i = 0; i < rows; i++) {
            const float left = a[i * a_row + p * a_column];
#pragma GCC unroll 8
            for (int j = 0; j < vectors; j++) sum[i][j] += left * right[j];
        }
    }
#pragma GCC unroll 8
    for (int i = 0; i < rows; i++) {
#pragma GCC unroll 8
        for (int j = 0; j < vectors; j++) *(Vec *)(c + i * ldc + j * LANES) = sum[i][j];
    }
}

/* All rows of one group of `vectors` columns. */
ALWAYS_INLINE void column_group(float *c, int64_t ldc, const float *a, int64_t a_row,
                                int64_t a_column, const float *b, int64_t ldb, int64_t m, int64_t k,
                                bool add, const int vectors) {
    int64_t i = 0;
    for (; i + 6 <= m; i += 6)
        tile(c + i * ldc, ldc, a + i * a_row, a_row, a_column, b, ldb, k, add, 6, vectors);
    if (i + 4 <= m) {
        tile(c + i * ldc, ldc, a + i * a_row, a_row, a_column, b, ldb, k, add, 4, vectors);
        i += 4;
    }
    if (i + 2 <= m) {
        tile(c + i * ldc, ldc, a + i * a_row, a_row, a_column, b, ldb, k, add, 2, vectors);
        i += 2;
    }
    if (i < m) tile(c + i * ldc, ldc, a + i * a_row, a_row, a_column, b, ldb, k, add, 1, vectors);
}

void panel_product(float *c, int64_t ldc, const float *a, int64_t a_row, int64_t a_column,
                   const float *b, int64_t ldb, int64_t m, int64_t n, int64_t k, bool add) {
    int64_t j = 0;
    for (; j + TILE_VECTORS * LANES <= n; j += TILE_VECTORS * LANES)
        column_group(c + j, ldc, a, a_row, a_column, b + j, ldb, m, k, add, TILE_VECTORS);
    if (TILE_VECTORS > 2 && j + 2 * LANES <= n) {
        column_group(c + j, ldc, a, a_row, a_column, b + j, ldb, m, k, add, 2);
        j += 2 * LANES;
    }
    if (j < n) column_group(c + j, ldc, a, a_row, a_column, b + j, ldb, m, k, add, 1);
}
