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
    *out = (ScoreSummary){.n = n,
                          .psnr_mean = NAN,
                          .psnr_min = NAN,
                          .psnr_median = NAN,
                          .psnr_pooled = NAN,
                          .mse_mean = NAN,
                          .mse_pooled = NAN,
                          .ssim_mean = NAN,
                          .ssim_min = NAN,
                          .lpips_mean = NAN,
                          .lpips_max = NAN,
                          .psnr_groups = NAN,
                          .ssim_groups = NAN,
                          .lpips_groups = NAN};
    if (n == 0) return STATUS_OK;
    double psnr = 0, mse = 0, weighted = 0, ssim = 0, lpips = 0, error = 0, samples = 0;
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
        if (!isnan(s->lpips)) {
            lpips += s->lpips;
            out->lpips_max = out->n_lpips == 0 ? s->lpips : fmax(out->lpips_max, s->lpips);
            out->n_lpips++;
        }
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
    if (out->n_lpips > 0) out->lpips_mean = lpips / (double)out->n_lpips;
    return order_statistics(scores, n, out);
}

/* Running mean over groups. */
typedef struct Mean {
    double sum;
    int64_t count;
} Mean;

static void add(Mean *m, double x) {
    m->sum += x;
    m->count++;
}

static double mean_of(Mean m) {
    return m.count > 0 ? m.sum / (double)m.count : NAN;
}

Status score_summarise_groups(const Score *scores, const int64_t *group, int64_t n,
                              ScoreSummary *out) {
    Mean psnr = {0, 0}, ssim = {0, 0}, lpips = {0, 0};
    int64_t groups = 0;
    for (int64_t first = 0, next; first < n; first = next, groups++) {
        ScoreSummary one;
        for (next = first + 1; next < n && group[next] == group[first];) next++;
        TRY(score_summarise(scores + first, next - first, &one));
        if (isfinite(one.psnr_mean)) add(&psnr, one.psnr_mean);
        if (one.n_ssim > 0) add(&ssim, one.ssim_mean);
        if (one.n_lpips > 0) add(&lpips, one.lpips_mean);
    }
    TRY(score_summarise(scores, n, out));
    out->groups = groups;
    out->psnr_groups = psnr.count == 0 && n > 0 ? INFINITY : mean_of(psnr);
    out->ssim_groups = mean_of(ssim);
    out->lpips_groups = mean_of(lpips);
    return STATUS_OK;
}
