/* Private to ttt/: small dense matrices in double precision on the host, row-major. */
#ifndef TTV_TTT_DENSE_H
#define TTV_TTT_DENSE_H

#include <math.h>
#include <stdbool.h>
#include <stdint.h>
#include <string.h>

/* c [m,n] += alpha op(a) op(b), op(a) [m,k], op(b) [k,n]; sums run over k in order. */
static inline void dense_add_product(double *c, const double *a, bool ta, const double *b, bool tb,
                                     int64_t m, int64_t n, int64_t k, double alpha) {
    for (int64_t i = 0; i < m; i++) {
        double *row = c + i * n;
        if (tb) {
            for (int64_t j = 0; j < n; j++) {
                double sum = 0;
                for (int64_t l = 0; l < k; l++)
                    sum += (ta ? a[l * m + i] : a[i * k + l]) * b[j * k + l];
                row[j] += alpha * sum;
            }
            continue;
        }
        for (int64_t l = 0; l < k; l++) {
            const double x = alpha * (ta ? a[l * m + i] : a[i * k + l]);
            for (int64_t j = 0; j < n; j++) row[j] += x * b[l * n + j];
        }
    }
}

static inline void dense_product(double *c, const double *a, bool ta, const double *b, bool tb,
                                 int64_t m, int64_t n, int64_t k, double alpha) {
    memset(c, 0, (size_t)(m * n) * sizeof *c);
    dense_add_product(c, a, ta, b, tb, m, n, k, alpha);
}

static inline double dense_norm(const double *x, int64_t n) {
    double sum = 0;
    for (int64_t i = 0; i < n; i++) sum += x[i] * x[i];
    return sqrt(sum);
}

/* L2 norm of each column of a [m,n]. */
static inline void dense_column_norms(double *out, const double *a, int64_t m, int64_t n) {
    memset(out, 0, (size_t)n * sizeof *out);
    for (int64_t i = 0; i < m; i++)
        for (int64_t j = 0; j < n; j++) out[j] += a[i * n + j] * a[i * n + j];
    for (int64_t j = 0; j < n; j++) out[j] = sqrt(out[j]);
}

static inline double dense_sigma(double x) {
    return x >= 0 ? 1 / (1 + exp(-x)) : exp(x) / (1 + exp(x));
}
static inline double dense_silu(double x) {
    return x * dense_sigma(x);
}
static inline double dense_silu_slope(double x) {
    const double s = dense_sigma(x);
    return s * (1 + x * (1 - s));
}

#endif
