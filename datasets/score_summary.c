/* Many scores as one. */
#include <math.h>
#include <stdlib.h>

#include "core/memory.h"
#include "datasets/score.h"

static int by_value(const void *a, const void *b) {
    double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

static Status order_statistics(const Score *scores, int64_t n, ScoreSummary *out) {
    void *memory;
    TRY(mem_alloc(&memory, n, sizeof(double), "scores"));
    double *sorted = memory;
    for (int64_t i = 0; i < n; i++) sorted[i] = scores[i].psnr;
    qsort(sorted, (size_t)n, sizeof *sorted, by_value);
    out->psnr_min = sorted[0];
    out->psnr_median = n % 2 ? sorted[n / 2] : (sorted[n / 2 - 1] + sorted[n / 2]) / 2;
    mem_free(memory);
    return STATUS_OK;
}

Status score_summarise(const Score *scores, int64_t n, ScoreSummary *out) {
    *out = (ScoreSummary){n, 0, NAN, NAN, NAN, NAN, NAN, NAN, 0, NAN, NAN};
    if (n == 0) return STATUS_OK;
    double psnr = 0, mse = 0, weighted = 0, ssim = 0, error = 0, samples = 0;
    for (int64_t i = 0; i < n; i++) {
        const Score *s = scores + i;
        if (isinf(s->psnr))
            out->n_infinite++;
        else
            psnr += s->psnr;
        mse += s->mse;
        weighted += s->mse * (double)s->samples;
        error += s->squared_error;
        samples += (double)s->samples;
        if (isnan(s->ssim)) continue;
        ssim += s->ssim;
        out->ssim_min = out->n_ssim == 0 ? s->ssim : fmin(out->ssim_min, s->ssim);
        out->n_ssim++;
    }
    out->psnr_mean = out->n_infinite == n ? INFINITY : psnr / (double)(n - out->n_infinite);
    out->psnr_pooled = error == 0 ? INFINITY : 10 * log10(samples / error);
    out->mse_mean = mse / (double)n;
    out->mse_pooled = weighted / samples;
    if (out->n_ssim > 0) out->ssim_mean = ssim / (double)out->n_ssim;
    return order_statistics(scores, n, out);
}
