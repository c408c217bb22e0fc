/* `ttv psnr`: its options, the scores of its pairs, and what it tells about them. */
#ifndef TTV_TOOLS_SCORE_RUN_H
#define TTV_TOOLS_SCORE_RUN_H

#include "core/config.h"
#include "datasets/score.h"
#include "tools/lpips.h"
#include "tools/score_pairs.h"

enum { METRIC_PSNR = 1, METRIC_SSIM = 2, METRIC_MSE = 4, METRIC_LPIPS = 8 };
typedef enum Average { AVERAGE_IMAGE, AVERAGE_SCENE, AVERAGE_POOLED } Average;

typedef struct PsnrOptions {
    char metric[CONFIG_TEXT], pairs[CONFIG_TEXT];
    char results_file[CONFIG_TEXT], error_map[CONFIG_TEXT], lpips_weights[CONFIG_TEXT];
    int average, alpha, pair_by, missing, covariance;
    int channels, resize, quantize; /* 0: rgb, never, none */
    bool recursive, plausible;
    int64_t border, workers, max_pixels;
    double range, min_psnr, error_full;
} PsnrOptions;

/* What became of one pair. */
typedef struct PairScore {
    Status status;
    char *message; /* of a failed pair */
    Score score;
    bool resized; /* b was, to the size of a */
} PairScore;

typedef struct ScoreRun {
    const PsnrOptions *options;
    unsigned metrics;
    bool has_floor; /* --min-psnr was given */
    ScorePairs pairs;
    PairScore *results; /* one per pair */
    int64_t failed;
    Lpips *lpips;         /* NULL: no weights were given */
    ScoreSummary summary; /* of the pairs that did not fail; groups: folders of a */
} ScoreRun;

/* ---- score_run.c ---- */

/* Scores run->pairs on threads; error maps are written on the way. A pair that cannot be scored is
 * counted and told, not an error; the disk or the memory giving out is. */
Status score_run_all(ScoreRun *run);
void score_run_free(ScoreRun *run);
/* The number that --average asks for. */
double score_run_psnr(const ScoreRun *run);

/* ---- score_report.c ---- */

void score_report_text(const ScoreRun *run);
Status score_report_json(const ScoreRun *run);
/* Failed pairs, missing partners, alarms: on stderr. */
void score_report_faults(const ScoreRun *run);
/* CSV, completely or not at all. */
Status score_report_csv(const ScoreRun *run, const char *path);

#endif
