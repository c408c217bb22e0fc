/* What `ttv psnr` says: lines, JSON, CSV. Numbers of one pair and of all come from datasets/score.
 */
#include "tools/score_run.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

#include "core/file.h"
#include "tools/cli.h"
#include "tools/csv.h"

/* ---- text ---- */

static void print_pair(const ScoreRun *run, const ScorePair *pair, const Score *s) {
    const char *gap = "";
    if (run->metrics & METRIC_PSNR) {
        out_printf("psnr %.6f dB", s->psnr);
        gap = "  ";
    }
    if (run->metrics & METRIC_SSIM) {
        if (isnan(s->ssim))
            out_printf("%sssim -", gap);
        else
            out_printf("%sssim %.6f", gap, s->ssim);
        gap = "  ";
    }
    if (run->metrics & METRIC_MSE) {
        out_printf("%smse %.9g", gap, s->mse);
        gap = "  ";
    }
    if (run->lpips) {
        if (isnan(s->lpips))
            out_printf("%slpips -", gap);
        else
            out_printf("%slpips %.6f", gap, s->lpips);
    }
    out_text("  ");
    out_path(pair->a);
    out_text("  ");
    out_path(pair->b);
    out_text("\n");
}

static void print_summary(const ScoreRun *run) {
    const ScoreSummary *u = &run->summary;
    long long finite = (long long)(u->n - u->n_infinite);
    out_printf("%lld scored, %lld identical, %lld failed, %lld without partner\n", (long long)u->n,
               (long long)u->n_infinite, (long long)run->failed,
               (long long)run->pairs.missing_count);
    if (u->n == 0) return;
    const bool scenes = run->options->average == AVERAGE_SCENE;
    if ((run->metrics & METRIC_PSNR) && scenes)
        out_printf("psnr mean over %lld scenes %.6f dB; mean %.6f over %lld finite, min %.6f, "
                   "median %.6f, pooled %.6f\n",
                   (long long)u->groups, u->psnr_groups, u->psnr_mean, finite, u->psnr_min,
                   u->psnr_median, u->psnr_pooled);
    else if ((run->metrics & METRIC_PSNR) && run->options->average == AVERAGE_POOLED)
        out_printf("psnr pooled %.6f dB; mean %.6f over %lld finite, min %.6f, median %.6f\n",
                   u->psnr_pooled, u->psnr_mean, finite, u->psnr_min, u->psnr_median);
    else if (run->metrics & METRIC_PSNR)
        out_printf("psnr mean %.6f dB over %lld finite; min %.6f, median %.6f, pooled %.6f\n",
                   u->psnr_mean, finite, u->psnr_min, u->psnr_median, u->psnr_pooled);
    if ((run->metrics & METRIC_SSIM) && u->n_ssim > 0)
        out_printf("ssim mean %.6f over %lld; min %.6f\n", scenes ? u->ssim_groups : u->ssim_mean,
                   (long long)(scenes ? u->groups : u->n_ssim), u->ssim_min);
    if (run->metrics & METRIC_MSE)
        out_printf("mse mean %.9g; pooled %.9g\n", u->mse_mean, u->mse_pooled);
    if (u->n_lpips > 0)
        out_printf("lpips mean %.6f over %lld; max %.6f\n",
                   scenes ? u->lpips_groups : u->lpips_mean,
                   (long long)(scenes ? u->groups : u->n_lpips), u->lpips_max);
}

void score_report_text(const ScoreRun *run) {
    for (int64_t i = 0; i < run->pairs.count && !out_failed(); i++)
        if (run->results[i].status == STATUS_OK)
            print_pair(run, run->pairs.items + i, &run->results[i].score);
    if (run->pairs.many) print_summary(run);
}

/* ---- faults ---- */

enum { MAX_ALARMS = 10 };

static void alarm_line(const char *path, int largest, int bits, int64_t *count) {
    const char *alarm = score_alarm(largest, bits);
    if (alarm && (*count)++ < MAX_ALARMS) note("warning: %s: %s", path, alarm);
}

void score_report_faults(const ScoreRun *run) {
    int64_t alarms = 0, without_ssim = 0, without_lpips = 0, resized = 0;
    for (int64_t i = 0; i < run->pairs.count; i++) {
        const PairScore *r = run->results + i;
        if (r->status != STATUS_OK) {
            complain("%s", r->message);
            continue;
        }
        alarm_line(run->pairs.items[i].a, r->score.largest_a, r->score.bits, &alarms);
        alarm_line(run->pairs.items[i].b, r->score.largest_b, r->score.bits, &alarms);
        without_ssim += isnan(r->score.ssim);
        without_lpips += isnan(r->score.lpips);
        resized += r->resized;
    }
    if (alarms > MAX_ALARMS)
        note("warning: %lld more such pictures", (long long)(alarms - MAX_ALARMS));
    if ((run->metrics & METRIC_SSIM) && without_ssim > 0)
        note("SSIM was not computed for %lld pairs: a side is below %d pixels",
             (long long)without_ssim, SSIM_WINDOW);
    for (int64_t i = 0; i < run->pairs.missing_count; i++) {
        if (run->options->missing == 0)
            complain("%s: no partner (--missing allow to pass over)", run->pairs.missing[i]);
        else
            note("%s: no partner", run->pairs.missing[i]);
    }
    if (resized > 0)
        note("%lld pictures were resized to their reference: their scores are not comparable with "
             "others'",
             (long long)resized);
    if (!run->lpips)
        note("LPIPS was not computed: no weights were given (--lpips-weights)");
    else if (without_lpips > 0)
        note("LPIPS was not computed for %lld pairs: a side is below %d pixels",
             (long long)without_lpips, LPIPS_SIDE);
}

/* ---- JSON ---- */

static void json_alarm(JsonWriter *w, const char *key, int largest, int bits) {
    const char *alarm = score_alarm(largest, bits);
    if (alarm) json_pair_string(w, key, alarm);
}

static void json_score(const ScoreRun *run, const Score *s, JsonWriter *w) {
    json_pair_int(w, "width", s->width);
    json_pair_int(w, "height", s->height);
    json_pair_int(w, "channels", s->colors);
    json_pair_int(w, "bits", s->bits);
    json_pair_number(w, "data_range", s->range);
    json_pair_bool(w, "identical", s->identical);
    if (run->metrics & METRIC_PSNR) json_pair_number(w, "psnr", s->psnr);
    if (run->metrics & METRIC_SSIM) json_pair_number(w, "ssim", s->ssim);
    if (run->metrics & METRIC_MSE) json_pair_number(w, "mse", s->mse);
    if (run->lpips) json_pair_number(w, "lpips", s->lpips);
    json_alarm(w, "alarm_a", s->largest_a, s->bits);
    json_alarm(w, "alarm_b", s->largest_b, s->bits);
}

static void json_pairs(const ScoreRun *run, JsonWriter *w) {
    json_key(w, "pairs");
    json_begin_array(w);
    for (int64_t i = 0; i < run->pairs.count; i++) {
        const PairScore *r = run->results + i;
        json_begin_object(w);
        json_pair_string(w, "a", run->pairs.items[i].a);
        json_pair_string(w, "b", run->pairs.items[i].b);
        if (r->status == STATUS_OK) json_score(run, &r->score, w);
        if (r->status == STATUS_OK && r->resized) json_pair_bool(w, "resized", true);
        if (r->status != STATUS_OK) json_pair_string(w, "error", r->message);
        json_end_object(w);
    }
    json_end_array(w);
    json_key(w, "missing");
    json_begin_array(w);
    for (int64_t i = 0; i < run->pairs.missing_count; i++) json_string(w, run->pairs.missing[i]);
    json_end_array(w);
}

static void json_summary(const ScoreRun *run, JsonWriter *w) {
    const ScoreSummary *u = &run->summary;
    const bool scenes = run->options->average == AVERAGE_SCENE;
    json_pair_int(w, "n", u->n);
    json_pair_int(w, "n_inf", u->n_infinite);
    json_pair_int(w, "n_failed", run->failed);
    json_pair_int(w, "n_missing", run->pairs.missing_count);
    static const char *const averages[] = {"image", "scene", "pooled"};
    json_pair_string(w, "average", averages[run->options->average]);
    json_pair_int(w, "n_scenes", u->groups);
    json_pair_bool(w, "identical", u->n > 0 && u->n_infinite == u->n);
    if (run->metrics & METRIC_PSNR) {
        json_pair_number(w, "psnr", score_run_psnr(run));
        json_pair_number(w, "psnr_mean", u->psnr_mean);
        json_pair_number(w, "psnr_min", u->psnr_min);
        json_pair_number(w, "psnr_median", u->psnr_median);
        json_pair_number(w, "psnr_pooled", u->psnr_pooled);
        json_pair_number(w, "psnr_scene", u->psnr_groups);
    }
    if (run->metrics & METRIC_SSIM) {
        json_pair_int(w, "n_ssim", u->n_ssim);
        json_pair_number(w, "ssim", scenes ? u->ssim_groups : u->ssim_mean);
        json_pair_number(w, "ssim_scene", u->ssim_groups);
        json_pair_number(w, "ssim_min", u->ssim_min);
    }
    if (run->metrics & METRIC_MSE) {
        json_pair_number(w, "mse", u->mse_mean);
        json_pair_number(w, "mse_pooled", u->mse_pooled);
    }
    json_pair_number(w, "lpips", scenes ? u->lpips_groups : u->lpips_mean);
    if (run->lpips) {
        json_pair_int(w, "n_lpips", u->n_lpips);
        json_pair_number(w, "lpips_max", u->lpips_max);
    } else {
        json_pair_string(w, "lpips_note", "not computed: no weights were given");
    }
    if (!run->has_floor) return;
    json_pair_number(w, "min_psnr", run->options->min_psnr);
    json_pair_bool(w, "passed", u->n > 0 && score_run_psnr(run) >= run->options->min_psnr);
}

Status score_report_json(const ScoreRun *run) {
    JsonWriter w;
    json_writer_init(&w);
    json_begin_object(&w);
    json_pairs(run, &w);
    json_summary(run, &w);
    json_end_object(&w);
    return out_json(&w, STATUS_OK);
}

/* ---- CSV ---- */

static Status csv_text(FileWriter *f, const char *text) {
    return file_writer_write(f, text, strlen(text));
}

/* Columns width to identical. */
static Status csv_score(FileWriter *f, const Score *s) {
    char text[256], ssim[64] = "", lpips[64] = "";
    if (!isnan(s->ssim)) snprintf(ssim, sizeof ssim, "%.9g", s->ssim);
    if (!isnan(s->lpips)) snprintf(lpips, sizeof lpips, "%.9g", s->lpips);
    snprintf(text, sizeof text, ",%lld,%lld,%d,%d,%.9g,%s,%.9g,%s,%d", (long long)s->width,
             (long long)s->height, s->colors, s->bits, s->psnr, ssim, s->mse, lpips, s->identical);
    return csv_text(f, text);
}

static Status csv_rows(const ScoreRun *run, FileWriter *f) {
    TRY(csv_text(f,
                 "index,a,b,width,height,channels,bits,psnr,ssim,mse,lpips,identical,error\r\n"));
    for (int64_t i = 0; i < run->pairs.count; i++) {
        const PairScore *r = run->results + i;
        char text[32];
        snprintf(text, sizeof text, "%lld,", (long long)i);
        TRY(csv_text(f, text));
        TRY(csv_field_write(f, run->pairs.items[i].a));
        TRY(csv_text(f, ","));
        TRY(csv_field_write(f, run->pairs.items[i].b));
        bool ok = r->status == STATUS_OK;
        TRY(ok ? csv_score(f, &r->score) : csv_text(f, ",,,,,,,,,"));
        TRY(csv_text(f, ","));
        if (!ok) TRY(csv_field_write(f, r->message));
        TRY(csv_text(f, "\r\n"));
    }
    return STATUS_OK;
}

Status score_report_csv(const ScoreRun *run, const char *path) {
    FileWriter *f;
    TRY(file_writer_open(path, &f));
    Status s = csv_rows(run, f);
    if (s == STATUS_OK) return file_writer_commit(f);
    file_writer_abort(f);
    return s;
}
