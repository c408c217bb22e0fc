#include "ttt/distance.h"

#include <math.h>
#include <stdbool.h>
#include <stdlib.h>
#include <string.h>

#include "core/memory.h"
#include "core/rng.h"

/* ---- symmetric eigenvalues ---- */

/* Rotates rows and columns p and q of a so that a[p,q] becomes 0. */
static void rotate(double *a, double *v, int64_t d, int64_t p, int64_t q) {
    const double apq = a[p * d + q];
    if (apq == 0) return;
    const double theta = (a[q * d + q] - a[p * d + p]) / (2 * apq);
    const double t = copysign(1, theta) / (fabs(theta) + sqrt(theta * theta + 1));
    const double c = 1 / sqrt(t * t + 1), s = t * c;
    for (int64_t i = 0; i < d; i++) {
        const double x = a[i * d + p], y = a[i * d + q];
        a[i * d + p] = c * x - s * y;
        a[i * d + q] = s * x + c * y;
    }
    for (int64_t i = 0; i < d; i++) {
        const double x = a[p * d + i], y = a[q * d + i];
        a[p * d + i] = c * x - s * y;
        a[q * d + i] = s * x + c * y;
    }
    for (int64_t i = 0; v && i < d; i++) {
        const double x = v[p * d + i], y = v[q * d + i];
        v[p * d + i] = c * x - s * y;
        v[q * d + i] = s * x + c * y;
    }
}

void symmetric_eigen(double *a, double *v, int64_t d, double *values) {
    enum { SWEEPS = 60 };
    if (v) {
        memset(v, 0, (size_t)(d * d) * sizeof *v);
        for (int64_t i = 0; i < d; i++) v[i * d + i] = 1;
    }
    for (int sweep = 0; sweep < SWEEPS; sweep++) {
        double off = 0, all = 0;
        for (int64_t i = 0; i < d; i++)
            for (int64_t j = 0; j < d; j++) {
                all += a[i * d + j] * a[i * d + j];
                off += i != j ? a[i * d + j] * a[i * d + j] : 0;
            }
        if (off <= 1e-30 * all) break;
        for (int64_t p = 0; p < d; p++)
            for (int64_t q = p + 1; q < d; q++) rotate(a, v, d, p, q);
    }
    for (int64_t i = 0; i < d; i++) values[i] = a[i * d + i];
}

/* ---- means and covariances ---- */

typedef struct Moments {
    double *mean, *covariance; /* [d], [d,d], over n - 1 */
} Moments;

static void moments(const double *x, int64_t n, int64_t d, Moments m) {
    memset(m.mean, 0, (size_t)d * sizeof *m.mean);
    memset(m.covariance, 0, (size_t)(d * d) * sizeof *m.covariance);
    for (int64_t t = 0; t < n; t++)
        for (int64_t i = 0; i < d; i++) m.mean[i] += x[t * d + i] / (double)n;
    for (int64_t t = 0; t < n; t++)
        for (int64_t i = 0; i < d; i++) {
            const double a = (x[t * d + i] - m.mean[i]) / (double)(n - 1);
            for (int64_t j = 0; j < d; j++)
                m.covariance[i * d + j] += a * (x[t * d + j] - m.mean[j]);
        }
}

/* c = a b, [d,d]. */
static void product(const double *a, const double *b, double *c, int64_t d) {
    memset(c, 0, (size_t)(d * d) * sizeof *c);
    for (int64_t i = 0; i < d; i++)
        for (int64_t k = 0; k < d; k++)
            for (int64_t j = 0; j < d; j++) c[i * d + j] += a[i * d + k] * b[k * d + j];
}

/* Square root of a symmetric positive matrix into root; a is destroyed, v is work [d,d]. */
static void square_root(double *a, double *v, double *values, double *root, int64_t d) {
    symmetric_eigen(a, v, d, values);
    memset(root, 0, (size_t)(d * d) * sizeof *root);
    for (int64_t e = 0; e < d; e++) {
        const double scale = sqrt(fmax(values[e], 0));
        for (int64_t i = 0; i < d; i++)
            for (int64_t j = 0; j < d; j++) root[i * d + j] += scale * v[e * d + i] * v[e * d + j];
    }
}

/* work: 4 [d,d] and [d]. */
static double frechet(Moments q, Moments k, int64_t d, double *work) {
    const int64_t size = d * d;
    double *a = work, *v = work + size, *root = work + 2 * size, *b = work + 3 * size;
    double *values = work + 4 * size, sum = 0;
    for (int64_t i = 0; i < d; i++) {
        sum += (q.mean[i] - k.mean[i]) * (q.mean[i] - k.mean[i]);
        sum += q.covariance[i * d + i] + k.covariance[i * d + i];
    }
    memcpy(a, q.covariance, (size_t)size * sizeof *a);
    square_root(a, v, values, root, d);
    product(root, k.covariance, a, d);
    product(a, root, b, d);
    symmetric_eigen(b, NULL, d, values);
    for (int64_t i = 0; i < d; i++) sum -= 2 * sqrt(fmax(values[i], 0));
    return fmax(sum, 0);
}

/* ---- Fisher's direction ---- */

/* Solves a x = b for symmetric positive a by Cholesky, in place; x in b. */
static void solve(double *a, double *b, int64_t d) {
    for (int64_t j = 0; j < d; j++) {
        for (int64_t k = 0; k < j; k++) a[j * d + j] -= a[j * d + k] * a[j * d + k];
        a[j * d + j] = sqrt(fmax(a[j * d + j], 1e-300));
        for (int64_t i = j + 1; i < d; i++) {
            for (int64_t k = 0; k < j; k++) a[i * d + j] -= a[i * d + k] * a[j * d + k];
            a[i * d + j] /= a[j * d + j];
        }
    }
    for (int64_t i = 0; i < d; i++) {
        for (int64_t k = 0; k < i; k++) b[i] -= a[i * d + k] * b[k];
        b[i] /= a[i * d + i];
    }
    for (int64_t i = d - 1; i >= 0; i--) {
        for (int64_t k = i + 1; k < d; k++) b[i] -= a[k * d + i] * b[k];
        b[i] /= a[i * d + i];
    }
}

typedef struct Score {
    double value;
    bool positive;
} Score;

static int by_value(const void *a, const void *b) {
    const double x = ((const Score *)a)->value, y = ((const Score *)b)->value;
    return (x > y) - (x < y);
}

/* Area under the curve: the chance that a q scores above a k, ties halved. */
static double area(Score *scores, int64_t n, int64_t m) {
    const int64_t all = n + m;
    double below = 0, sum = 0;
    qsort(scores, (size_t)all, sizeof *scores, by_value);
    for (int64_t i = 0; i < all;) {
        int64_t end = i, positive = 0;
        while (end < all && scores[end].value == scores[i].value)
            positive += scores[end++].positive;
        const double negative = (double)(end - i - positive);
        sum += (double)positive * (below + negative / 2);
        below += negative;
        i = end;
    }
    return sum / ((double)n * (double)m);
}

static Status fisher_auc(const double *q, int64_t n, const double *k, int64_t m, int64_t d,
                         Moments a, Moments b, double *work, double *out) {
    double trace = 0, *pooled = work, *w = work + d * d;
    for (int64_t i = 0; i < d * d; i++) pooled[i] = (a.covariance[i] + b.covariance[i]) / 2;
    for (int64_t i = 0; i < d; i++) trace += pooled[i * d + i];
    for (int64_t i = 0; i < d; i++) {
        pooled[i * d + i] += 1e-6 * trace / (double)d;
        w[i] = a.mean[i] - b.mean[i];
    }
    solve(pooled, w, d);
    Score *scores;
    TRY(mem_alloc((void **)&scores, n + m, sizeof *scores, "scores"));
    for (int64_t t = 0; t < n + m; t++) {
        const double *x = t < n ? q + t * d : k + (t - n) * d;
        scores[t].positive = t < n;
        for (int64_t i = 0; i < d; i++) scores[t].value += w[i] * x[i];
    }
    *out = area(scores, n, m);
    mem_free(scores);
    return STATUS_OK;
}

/* ---- pairs ---- */

/* Squared distances of all pooled vectors, [n+m, n+m]. */
static Status pair_distances(const double *q, int64_t n, const double *k, int64_t m, int64_t d,
                             double **out) {
    const int64_t all = n + m;
    TRY(mem_alloc((void **)out, all * all, sizeof **out, "pair distances"));
    for (int64_t i = 0; i < all; i++)
        for (int64_t j = 0; j < i; j++) {
            const double *x = i < n ? q + i * d : k + (i - n) * d;
            const double *y = j < n ? q + j * d : k + (j - n) * d;
            double sum = 0;
            for (int64_t c = 0; c < d; c++) sum += (x[c] - y[c]) * (x[c] - y[c]);
            (*out)[i * all + j] = (*out)[j * all + i] = sum;
        }
    return STATUS_OK;
}

static int by_number(const void *a, const void *b) {
    const double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

static Status median_of_pairs(const double *pairs, int64_t all, double *out) {
    const int64_t count = all * (all - 1) / 2;
    double *sorted;
    TRY(mem_alloc((void **)&sorted, count, sizeof *sorted, "pair distances"));
    int64_t at = 0;
    for (int64_t i = 0; i < all; i++)
        for (int64_t j = i + 1; j < all; j++) sorted[at++] = pairs[i * all + j];
    qsort(sorted, (size_t)count, sizeof *sorted, by_number);
    *out = count % 2 ? sorted[count / 2] : (sorted[count / 2 - 1] + sorted[count / 2]) / 2;
    mem_free(sorted);
    return STATUS_OK;
}

/* mean over pairs within the first n of `order`, within the rest, and across, of f. */
typedef struct PairMeans {
    double first, second, across;
} PairMeans;

static PairMeans pair_means(const double *f, const int64_t *order, int64_t n, int64_t m) {
    const int64_t all = n + m;
    PairMeans s = {0};
    for (int64_t i = 0; i < all; i++)
        for (int64_t j = i + 1; j < all; j++) {
            const double value = f[order[i] * all + order[j]];
            *(j < n ? &s.first : i >= n ? &s.second : &s.across) += value;
        }
    s.first /= (double)n * (double)(n - 1) / 2;
    s.second /= (double)m * (double)(m - 1) / 2;
    s.across /= (double)n * (double)m;
    return s;
}

/* The kernel and the plain distance of all pairs, from their squares. */
static Status pair_tables(const double *q, int64_t n, const double *k, int64_t m, int64_t d,
                          double **kernel, double **distance) {
    const int64_t all = n + m;
    double median;
    *kernel = NULL;
    TRY(pair_distances(q, n, k, m, d, distance));
    Status s = median_of_pairs(*distance, all, &median);
    if (s == STATUS_OK) s = mem_alloc((void **)kernel, all * all, sizeof **kernel, "a kernel");
    for (int64_t i = 0; s == STATUS_OK && i < all * all; i++) {
        (*kernel)[i] = median > 0 ? exp(-(*distance)[i] / median) : (*distance)[i] == 0;
        (*distance)[i] = sqrt((*distance)[i]);
    }
    if (s != STATUS_OK) mem_free(*distance);
    return s;
}

static double mmd2_of(PairMeans p) {
    return p.first + p.second - 2 * p.across;
}
static double energy_of(PairMeans p) {
    return 2 * p.across - p.first - p.second;
}

static Status count_order(int64_t all, int64_t **order) {
    TRY(mem_alloc((void **)order, all, sizeof **order, "an order"));
    for (int64_t i = 0; i < all; i++) (*order)[i] = i;
    return STATUS_OK;
}

static Status pair_statistics(const double *q, int64_t n, const double *k, int64_t m, int64_t d,
                              CloudDistance *out) {
    double *kernel, *distance;
    int64_t *order = NULL;
    TRY(pair_tables(q, n, k, m, d, &kernel, &distance));
    const Status s = count_order(n + m, &order);
    if (s == STATUS_OK) {
        out->mmd2 = mmd2_of(pair_means(kernel, order, n, m));
        out->energy = energy_of(pair_means(distance, order, n, m));
    }
    mem_free(order);
    mem_free(kernel);
    mem_free(distance);
    return s;
}

static double mean_cosine(const double *q, const double *k, int64_t n, int64_t d) {
    double sum = 0;
    for (int64_t t = 0; t < n; t++) {
        double qk = 0, qq = 0, kk = 0;
        for (int64_t i = 0; i < d; i++) {
            qk += q[t * d + i] * k[t * d + i];
            qq += q[t * d + i] * q[t * d + i];
            kk += k[t * d + i] * k[t * d + i];
        }
        sum += qq > 0 && kk > 0 ? qk / sqrt(qq * kk) : 0;
    }
    return sum / (double)n;
}

Status cloud_distance(const double *q, int64_t n, const double *k, int64_t m, int64_t d,
                      CloudDistance *out) {
    if (n < 2 || m < 2 || d < 1)
        return status_set(STATUS_USAGE, "distances need at least two vectors on each side");
    *out = (CloudDistance){.mean_cos = n == m ? mean_cosine(q, k, n, d) : NAN};
    double *work;
    TRY(mem_alloc((void **)&work, 6 * d * d + 4 * d, sizeof *work, "covariances"));
    const Moments a = {work, work + d}, b = {work + d + d * d, work + 2 * d + d * d};
    double *rest = work + 2 * d + 2 * d * d;
    moments(q, n, d, a);
    moments(k, m, d, b);
    out->frechet = frechet(a, b, d, rest);
    Status s = fisher_auc(q, n, k, m, d, a, b, rest, &out->auc);
    mem_free(work);
    return s == STATUS_OK ? pair_statistics(q, n, k, m, d, out) : s;
}

Status cloud_permutation(const double *q, int64_t n, const double *k, int64_t m, int64_t d,
                         int64_t shuffles, uint64_t seed, double *mmd2_p, double *energy_p) {
    double *kernel, *distance;
    int64_t *order = NULL, above[2] = {0, 0};
    TRY(pair_tables(q, n, k, m, d, &kernel, &distance));
    const Status s = count_order(n + m, &order);
    if (s == STATUS_OK) {
        const double mmd2 = mmd2_of(pair_means(kernel, order, n, m));
        const double energy = energy_of(pair_means(distance, order, n, m));
        for (int64_t i = 0; i < shuffles; i++) {
            Rng r = rng_stream(seed, 0, (uint64_t)i, 0);
            rng_permutation(&r, order, n + m);
            above[0] += mmd2_of(pair_means(kernel, order, n, m)) >= mmd2;
            above[1] += energy_of(pair_means(distance, order, n, m)) >= energy;
        }
        *mmd2_p = (double)(1 + above[0]) / (double)(1 + shuffles);
        *energy_p = (double)(1 + above[1]) / (double)(1 + shuffles);
    }
    mem_free(order);
    mem_free(kernel);
    mem_free(distance);
    return s;
}
