/* Scores of pairs on threads. */
#include "tools/score_run.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "core/file.h"
#include "core/memory.h"
#include "tools/cli.h"
#include "tools/parallel.h"
#include "tools/score_prepare.h"

static ScoreOptions score_options(const ScoreRun *run) {
    const PsnrOptions *o = run->options;
    return (ScoreOptions){.range = o->range,
                          .border = o->border,
                          .alpha = (ScoreAlpha)o->alpha,
                          .luma = o->channels == 1,
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

/* Both pictures of a pair as they are compared. */
static Status read_pair(const ScoreRun *run, const ScorePair *pair, DeepImage *a, DeepImage *b,
                        bool *resized) {
    ImageOptions o = image_options_default();
    o.max_pixels = run->options->max_pixels;
    o.check_plausible = run->options->plausible;
    TRY(image_read_deep(pair->a, &o, a));
    TRY(image_read_deep(pair->b, &o, b));
    if (run->options->quantize) {
        picture_quantise(a);
        picture_quantise(b);
    }
    *resized = run->options->resize && (a->width != b->width || a->height != b->height);
    return *resized ? picture_resize(b, a->width, a->height, pair->b) : STATUS_OK;
}

/* *unscored: the pair is at fault, not the machine. */
static Status score_files(ScoreRun *run, int64_t i, bool *unscored) {
    const ScorePair *pair = run->pairs.items + i;
    DeepImage a = {0}, b = {0};
    Status s = read_pair(run, pair, &a, &b, &run->results[i].resized);
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

/* ---- LPIPS: one pair after another, since its products take all threads ---- */

static Status add_lpips(ScoreRun *run, int64_t i, const DeepImage *a, const DeepImage *b) {
    const ScorePair *pair = run->pairs.items + i;
    const ScoreOptions o = score_options(run);
    const Picture left = picture_of_deep(a, pair->a), right = picture_of_deep(b, pair->b);
    Score *score = &run->results[i].score;
    const int64_t size = score->width * score->height * 3;
    void *block;
    if (score->width < LPIPS_SIDE || score->height < LPIPS_SIDE) return STATUS_OK;
    TRY(mem_alloc(&block, 2 * size, sizeof(float), "pictures for LPIPS"));
    float *values = block;
    score_values(&left, &o, values);
    score_values(&right, &o, values + size);
    Status s = lpips_distance(run->lpips, values, values + size, score->height, score->width,
                              &score->lpips);
    mem_free(block);
    return s;
}

static Status add_all_lpips(ScoreRun *run) {
    for (int64_t i = 0; i < run->pairs.count; i++) {
        DeepImage a = {0}, b = {0};
        bool resized;
        if (run->results[i].status != STATUS_OK) continue;
        Status s = read_pair(run, run->pairs.items + i, &a, &b, &resized);
        if (s == STATUS_OK) s = add_lpips(run, i, &a, &b);
        deep_image_free(&a);
        deep_image_free(&b);
        TRY(s);
        if (run->pairs.count > 1)
            progress_line(10, "LPIPS: %lld of %lld pairs", (long long)(i + 1),
                          (long long)run->pairs.count);
    }
    return STATUS_OK;
}

/* ---- all of them ---- */

/* A scored pair and the folder of its reference. */
typedef struct Placed {
    const char *path;
    int64_t folder, pair; /* length of the folder in path; number */
} Placed;

static int by_folder(const void *a, const void *b) {
    const Placed *x = a, *y = b;
    const int64_t n = x->folder < y->folder ? x->folder : y->folder;
    const int order = memcmp(x->path, y->path, (size_t)n);
    if (order != 0) return order;
    if (x->folder != y->folder) return x->folder < y->folder ? -1 : 1;
    return (x->pair > y->pair) - (x->pair < y->pair);
}

static int64_t place(const ScoreRun *run, Placed *placed) {
    int64_t n = 0;
    for (int64_t i = 0; i < run->pairs.count; i++) {
        if (run->results[i].status != STATUS_OK) continue;
        const char *path = run->pairs.items[i].a, *slash = strrchr(path, '/');
        placed[n++] = (Placed){path, slash ? slash - path : 0, i};
    }
    if (n > 1) qsort(placed, (size_t)n, sizeof *placed, by_folder);
    return n;
}

static Status summarise_into(ScoreRun *run, Placed *placed, Score *scores, int64_t *group) {
    const int64_t n = place(run, placed);
    for (int64_t i = 0; i < n; i++) {
        scores[i] = run->results[placed[i].pair].score;
        const bool same = i > 0 && placed[i].folder == placed[i - 1].folder &&
                          memcmp(placed[i].path, placed[i - 1].path, (size_t)placed[i].folder) == 0;
        group[i] = i == 0 ? 0 : group[i - 1] + !same;
    }
    run->failed = run->pairs.count - n;
    return score_summarise_groups(scores, group, n, &run->summary);
}

static Status summarise(ScoreRun *run) {
    const int64_t n = run->pairs.count;
    void *placed, *scores = NULL, *group = NULL;
    TRY(mem_alloc(&placed, n, sizeof(Placed), "scores"));
    Status s = mem_alloc(&scores, n, sizeof(Score), "scores");
    if (s == STATUS_OK) s = mem_alloc(&group, n, sizeof(int64_t), "scores");
    if (s == STATUS_OK) s = summarise_into(run, placed, scores, group);
    mem_free(group);
    mem_free(scores);
    mem_free(placed);
    return s;
}

Status score_run_all(ScoreRun *run) {
    void *memory;
    TRY(mem_alloc(&memory, run->pairs.count, sizeof(PairScore), "scores"));
    run->results = memory;
    if (run->options->error_map[0] && run->pairs.many)
        TRY(file_make_folder(run->options->error_map));
    if (run->options->lpips_weights[0]) TRY(lpips_open(run->options->lpips_weights, &run->lpips));
    Status s = parallel_for(run->pairs.count, (int)run->options->workers, work, watch, run);
    if (s == STATUS_OK && run->lpips) s = add_all_lpips(run);
    progress_end();
    return s == STATUS_OK ? summarise(run) : s;
}

void score_run_free(ScoreRun *run) {
    if (run->results)
        for (int64_t i = 0; i < run->pairs.count; i++) mem_free(run->results[i].message);
    mem_free(run->results);
    lpips_close(run->lpips);
    score_pairs_free(&run->pairs);
}

double score_run_psnr(const ScoreRun *run) {
    switch ((Average)run->options->average) {
    case AVERAGE_POOLED:
        return run->summary.psnr_pooled;
    case AVERAGE_SCENE:
        return run->summary.psnr_groups;
    case AVERAGE_IMAGE:
        break;
    }
    return run->summary.psnr_mean;
}
