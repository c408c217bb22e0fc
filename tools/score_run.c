/* Scores of pairs on threads. */
#include "tools/score_run.h"

#include <stdio.h>
#include <string.h>

#include "core/file.h"
#include "core/memory.h"
#include "tools/cli.h"
#include "tools/parallel.h"

static ScoreOptions score_options(const ScoreRun *run) {
    const PsnrOptions *o = run->options;
    return (ScoreOptions){.range = o->range,
                          .border = o->border,
                          .alpha = (ScoreAlpha)o->alpha,
                          .ssim = (run->metrics & METRIC_SSIM) != 0,
                          .population_covariance = o->covariance == 1};
}

/* FOLDER/<index>_<name of b without ending>.png; the file itself for a single pair. */
static Status map_path(const ScoreRun *run, int64_t i, char **out) {
    const char *target = run->options->error_map, *b = run->pairs.items[i].b;
    if (!run->pairs.many) return mem_string(out, target);
    const char *name = strrchr(b, '/') ? strrchr(b, '/') + 1 : b;
    const char *dot = strrchr(name, '.');
    int length = dot ? (int)(dot - name) : (int)strlen(name);
    char text[512];
    snprintf(text, sizeof text, "%05lld_%.*s.png", (long long)i, length < 200 ? length : 200, name);
    return path_join(out, target, text);
}

static Status write_map(const ScoreRun *run, int64_t i, const Picture *a, const Picture *b) {
    ScoreOptions o = score_options(run);
    Image map;
    TRY(score_error_map(a, b, &o, run->options->error_full, &map));
    char *path;
    Status s = map_path(run, i, &path);
    if (s == STATUS_OK) {
        s = image_write_png(path, &map);
        mem_free(path);
    }
    image_free(&map);
    return s;
}

static Status score_pair(const ScoreRun *run, int64_t i, const Picture *a, const Picture *b) {
    ScoreOptions o = score_options(run);
    return score_pictures(a, b, &o, &run->results[i].score);
}

/* *unscored: the pair is at fault, not the machine. */
static Status score_files(ScoreRun *run, int64_t i, bool *unscored) {
    const ScorePair *pair = run->pairs.items + i;
    ImageOptions o = image_options_default();
    o.max_pixels = run->options->max_pixels;
    DeepImage a, b = {0};
    Status s = image_read_deep(pair->a, &o, &a);
    if (s == STATUS_OK) s = image_read_deep(pair->b, &o, &b);
    Picture left = picture_of_deep(&a, pair->a), right = picture_of_deep(&b, pair->b);
    if (s == STATUS_OK) s = score_pair(run, i, &left, &right);
    *unscored = s == STATUS_DATA || s == STATUS_IO || s == STATUS_USAGE;
    if (s == STATUS_OK && run->options->error_map[0]) s = write_map(run, i, &left, &right);
    deep_image_free(&a);
    deep_image_free(&b);
    return s;
}

static Status work(void *user, int64_t i) {
    ScoreRun *run = user;
    bool unscored;
    Status s = score_files(run, i, &unscored);
    if (!unscored) return s;
    run->results[i].status = s;
    return mem_string(&run->results[i].message, status_message());
}

static void watch(void *user, int64_t done) {
    const ScoreRun *run = user;
    if (run->pairs.count > 1)
        progress_line(10, "%lld of %lld pairs", (long long)done, (long long)run->pairs.count);
}

static Status summarise(ScoreRun *run) {
    void *memory;
    TRY(mem_alloc(&memory, run->pairs.count, sizeof(Score), "scores"));
    Score *scores = memory;
    int64_t n = 0;
    for (int64_t i = 0; i < run->pairs.count; i++)
        if (run->results[i].status == STATUS_OK) scores[n++] = run->results[i].score;
    run->failed = run->pairs.count - n;
    Status s = score_summarise(scores, n, &run->summary);
    mem_free(memory);
    return s;
}

Status score_run_all(ScoreRun *run) {
    void *memory;
    TRY(mem_alloc(&memory, run->pairs.count, sizeof(PairScore), "scores"));
    run->results = memory;
    if (run->options->error_map[0] && run->pairs.many)
        TRY(file_make_folder(run->options->error_map));
    Status s = parallel_for(run->pairs.count, (int)run->options->workers, work, watch, run);
    progress_end();
    return s == STATUS_OK ? summarise(run) : s;
}

void score_run_free(ScoreRun *run) {
    if (run->results)
        for (int64_t i = 0; i < run->pairs.count; i++) mem_free(run->results[i].message);
    mem_free(run->results);
    score_pairs_free(&run->pairs);
}

double score_run_psnr(const ScoreRun *run) {
    return run->options->average == AVERAGE_POOLED ? run->summary.psnr_pooled
                                                   : run->summary.psnr_mean;
}
