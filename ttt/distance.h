/* How far apart two clouds of vectors are (fastweight.md 10.3): queries and keys of a layer. On the
 * host, in double precision; for a few thousand vectors. */
#ifndef TTV_TTT_DISTANCE_H
#define TTV_TTT_DISTANCE_H

#include <stdint.h>

#include "core/status.h"

typedef struct CloudDistance {
    double frechet;  /* |m_q - m_k|^2 + tr(C_q + C_k - 2 (C_q^1/2 C_k C_q^1/2)^1/2) */
    double mmd2;     /* unbiased, kernel exp(-|x-y|^2 / median of the pooled squared distances) */
    double energy;   /* 2 E|q-k| - E|q-q'| - E|k-k'|, unbiased within */
    double mean_cos; /* mean cosine of q_t and k_t; needs as many of both */
    double auc;      /* of scores along Fisher's direction: 1/2 is inseparable, 1 separate */
} CloudDistance;

/* q [n,d], k [m,d], row-major. mean_cos is NaN where n != m. STATUS_USAGE for fewer than two
 * vectors; STATUS_MEMORY. */
Status cloud_distance(const double *q, int64_t n, const double *k, int64_t m, int64_t d,
                      CloudDistance *out);

/* Shares of `shuffles` random relabellings of the pooled vectors whose mmd2 (energy) is at least
 * that of the true labels: permutation p-values, (1 + count) / (1 + shuffles). */
Status cloud_permutation(const double *q, int64_t n, const double *k, int64_t m, int64_t d,
                         int64_t shuffles, uint64_t seed, double *mmd2_p, double *energy_p);

/* Eigenvalues of the symmetric a [d,d], which is destroyed, and eigenvectors as rows of v (may be
 * NULL): cyclic Jacobi rotations. */
void symmetric_eigen(double *a, double *v, int64_t d, double *values);

#endif
