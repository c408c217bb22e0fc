#include "ttt/tsne.h"

#include <math.h>
#include <stdbool.h>
#include <string.h>

#include "core/memory.h"
#include "ttt/distance.h"

/* Conditional affinities of row i at precision `beta`; their entropy. */
static double row_entropy(const double *squared, int64_t n, int64_t i, double beta, double *row) {
    double least = INFINITY, sum = 0, weighted = 0;
    for (int64_t j = 0; j < n; j++)
        if (j != i) least = fmin(least, squared[i * n + j]);
    for (int64_t j = 0; j < n; j++) {
        row[j] = j == i ? 0 : exp(-beta * (squared[i * n + j] - least));
        sum += row[j];
        weighted += row[j] * (squared[i * n + j] - least);
    }
    for (int64_t j = 0; j < n; j++) row[j] /= sum;
    return log(sum) + beta * weighted / sum;
}

/* Bisection on the precision. */
static double fit_row(const double *squared, int64_t n, int64_t i, double wanted, double *row) {
    double low = 0, high = INFINITY, beta = 1, entropy = 0;
    for (int k = 0; k < 200; k++) {
        entropy = row_entropy(squared, n, i, beta, row);
        if (fabs(entropy - wanted) < 1e-6) break;
        *(entropy > wanted ? &low : &high) = beta;
        beta = isinf(high) ? 2 * beta : (low + high) / 2;
    }
    return entropy;
}

static void squared_distances(const double *x, int64_t n, int64_t d, double *out) {
    for (int64_t i = 0; i < n; i++)
        for (int64_t j = 0; j < n; j++) {
            double sum = 0;
            for (int64_t k = 0; k < d; k++)
                sum += (x[i * d + k] - x[j * d + k]) * (x[i * d + k] - x[j * d + k]);
            out[i * n + j] = sum;
        }
}

Status tsne_affinities(const double *x, int64_t n, int64_t d, double perplexity, double *p,
                       double *entropy) {
    double *squared;
    if (n < 3) return status_set(STATUS_USAGE, "t-SNE needs at least three vectors");
    TRY(mem_alloc((void **)&squared, n * n, sizeof *squared, "distances"));
    squared_distances(x, n, d, squared);
    const double wanted = log(fmin(perplexity, (double)(n - 1) / 3));
    for (int64_t i = 0; i < n; i++) {
        const double got = fit_row(squared, n, i, wanted, p + i * n);
        if (entropy) entropy[i] = got;
    }
    for (int64_t i = 0; i < n; i++)
        for (int64_t j = 0; j <= i; j++)
            p[i * n + j] = p[j * n + i] = (p[i * n + j] + p[j * n + i]) / (2 * (double)n);
    mem_free(squared);
    return STATUS_OK;
}

/* The first two principal components, scaled to a spread of 1e-4. */
static Status principal_start(const double *x, int64_t n, int64_t d, double *points) {
    double *work;
    TRY(mem_alloc((void **)&work, 2 * d * d + 2 * d, sizeof *work, "principal components"));
    double *c = work, *v = work + d * d, *values = v + d * d, *mean = values + d;
    for (int64_t i = 0; i < n * d; i++) mean[i % d] += x[i] / (double)n;
    for (int64_t t = 0; t < n; t++)
        for (int64_t i = 0; i < d; i++)
            for (int64_t j = 0; j < d; j++)
                c[i * d + j] += (x[t * d + i] - mean[i]) * (x[t * d + j] - mean[j]) / (double)n;
    symmetric_eigen(c, v, d, values);
    for (int axis = 0; axis < 2; axis++) {
        int64_t best = 0;
        for (int64_t e = 1; e < d; e++) best = values[e] > values[best] ? e : best;
        const double scale = 1e-4 / sqrt(fmax(values[best], 1e-300));
        for (int64_t t = 0; t < n; t++) {
            points[2 * t + axis] = 0;
            for (int64_t i = 0; i < d; i++)
                points[2 * t + axis] += scale * (x[t * d + i] - mean[i]) * v[best * d + i];
        }
        values[best] = -INFINITY;
    }
    mem_free(work);
    return STATUS_OK;
}

/* 4 sum_j (p - q)(y_i - y_j) / (1 + |y_i - y_j|^2). */
static void slopes(const double *p, const double *y, int64_t n, double exaggeration, double *kernel,
                   double *out) {
    double sum = 0;
    for (int64_t i = 0; i < n; i++)
        for (int64_t j = 0; j < n; j++) {
            const double a = y[2 * i] - y[2 * j], b = y[2 * i + 1] - y[2 * j + 1];
            kernel[i * n + j] = i == j ? 0 : 1 / (1 + a * a + b * b);
            sum += kernel[i * n + j];
        }
    memset(out, 0, (size_t)(2 * n) * sizeof *out);
    for (int64_t i = 0; i < n; i++)
        for (int64_t j = 0; j < n; j++) {
            const double k = kernel[i * n + j];
            const double w = 4 * (exaggeration * p[i * n + j] - k / sum) * k;
            out[2 * i] += w * (y[2 * i] - y[2 * j]);
            out[2 * i + 1] += w * (y[2 * i + 1] - y[2 * j + 1]);
        }
}

Status tsne(const double *x, int64_t n, int64_t d, double perplexity, int64_t iterations,
            double *points) {
    double *work;
    TRY(mem_alloc((void **)&work, 2 * n * n + 6 * n, sizeof *work, "t-SNE"));
    double *p = work, *kernel = p + n * n, *slope = kernel + n * n, *speed = slope + 2 * n;
    double *gain = speed + 2 * n;
    Status s = tsne_affinities(x, n, d, perplexity, p, NULL);
    if (s == STATUS_OK) s = principal_start(x, n, d, points);
    for (int64_t i = 0; i < 2 * n; i++) gain[i] = 1;
    for (int64_t t = 0; s == STATUS_OK && t < iterations; t++) {
        slopes(p, points, n, t < 250 ? 12 : 1, kernel, slope);
        const double momentum = t < 250 ? 0.5 : 0.8, rate = fmax((double)n / 48, 50);
        for (int64_t i = 0; i < 2 * n; i++) {
            const bool turned = (slope[i] > 0) != (speed[i] > 0);
            gain[i] = fmax(turned ? gain[i] + 0.2 : gain[i] * 0.8, 0.01);
            speed[i] = momentum * speed[i] - rate * gain[i] * slope[i];
            points[i] += speed[i];
        }
    }
    mem_free(work);
    return s;
}
