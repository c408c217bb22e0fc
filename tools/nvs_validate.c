/* The validation of a run: renders held-out scenes, each rank some of them, scores them, shows a
 * target of each. Scores have the same bits whatever the number of ranks. */
#include <math.h>
#include <stdio.h>
#include <string.h>

#include "core/file.h"
#include "core/log.h"
#include "core/memory.h"
#include "datasets/compose.h"
#include "tools/cli.h"
#include "tools/nvs_baselines.h"
#include "tools/nvs_task.h"
#include "tools/ranks.h"

enum { SHEET_SCENES = 8, KINDS = NVS_METHODS + 1, NVS_AVERAGE = NVS_METHODS };

/* What a rank tells of the scene that it rendered. */
typedef struct Report {
    int64_t status, stop, views;
    char message[512];
    Score scores[]; /* [KINDS * most views of a scene] */
} Report;

typedef struct Validation {
    NvsTask *task;
    ViewScratch scratch;
    uint8_t *pixels, *rendered, *room; /* of one sample; of one view */
    int64_t most;                      /* views of a scene */
    size_t report_bytes, shown_bytes;
    Report *mine, *all;   /* `all`: one of each rank */
    uint8_t *shown;       /* truth and render of the view that pictures show */
    uint8_t *all_shown;   /* those of all ranks; rank 0 alone */
    bool pictures;        /* wanted by rank 0 */
    Score *scores[KINDS]; /* the methods, and the averaged weights */
    int64_t score_count;
    Image sheets[SHEET_SCENES];
    int64_t sheet_count;
} Validation;

/* ---- one scene ---- */

/* The target in the middle is the farthest from the inputs. */
static void keep_view(Validation *v, const NvsViews *views) {
    const int64_t middle = views->targets / 2, size = views->width * views->height * 3;
    memcpy(v->shown, v->pixels + (views->inputs + middle) * size, (size_t)size);
    memcpy(v->shown + size, v->rendered + middle * size, (size_t)size);
}

static Status render(Validation *v, const NvsViews *views, int kind) {
    const int64_t size = views->width * views->height * 3;
    TRY(nvs_render_sample(v->task->model, v->pixels, views->cameras, views->inputs,
                          views->inputs + views->targets, v->rendered));
    for (int64_t t = 0; t < views->targets; t++)
        TRY(nvs_score_view(views, t, v->rendered + t * size, false,
                           &v->mine->scores[kind * v->most + t]));
    return STATUS_OK;
}

/* With the averaged weights in place of the others, which come back whatever happens. */
static Status render_average(Validation *v, const NvsViews *views) {
    char message[1024];
    TRY(ema_swap(v->task->ema));
    const Status s = render(v, views, NVS_AVERAGE);
    snprintf(message, sizeof message, "%s", status_message());
    TRY(ema_swap(v->task->ema));
    return s == STATUS_OK ? s : status_set(s, "%s", message);
}

static Status one_scene(Validation *v, const ViewSample *sample) {
    NvsTask *t = v->task;
    const LactNvsConfig *c = &t->model->config;
    ViewCamera cameras[VIEW_MAX];
    const NvsViews views = {v->pixels,       cameras,       sample->inputs,
                            sample->targets, c->view_width, c->height};
    Score *scores = v->mine->scores;
    v->mine->views = views.targets;
    TRY(view_load_sample(t->data->val, sample, &t->data->view, &v->scratch, v->pixels, cameras));
    TRY(nvs_score_baselines(&views, false, v->room, scores + NVS_NEAREST * v->most,
                            scores + NVS_MEAN * v->most));
    TRY(render(v, &views, NVS_MODEL));
    if (!t->show_average) keep_view(v, &views);
    if (t->ema) TRY(render_average(v, &views));
    if (t->show_average) keep_view(v, &views);
    return STATUS_OK;
}

/* ---- rounds: each rank renders a scene, in the order of the index ---- */

/* As many scenes as there are ranks, but not more than are still wanted: so the same ones are tried
 * whatever the number of ranks. */
static int choose(const Validation *v, int64_t *next, int64_t chosen[PEERS_MAX]) {
    const EvalIndex *index = &v->task->data->index;
    const int64_t wanted = v->task->data->val_count - v->task->scores.scenes;
    int n = 0;
    for (; *next < index->count && n < ranks_count() && n < wanted; (*next)++)
        if (index->entries[*next].state == EVAL_READY) chosen[n++] = *next;
    return n;
}

static bool is_broken(Status s) {
    return s == STATUS_DATA || s == STATUS_IO;
}

static Report *report_of(const Validation *v, int rank) {
    return (Report *)(void *)((unsigned char *)v->all + (size_t)rank * v->report_bytes);
}

/* Truth, render and error. */
static Status show_view(Validation *v, int rank) {
    const LactNvsConfig *c = &v->task->model->config;
    uint8_t *truth = v->all_shown + (size_t)rank * v->shown_bytes;
    const Image a = {truth, c->view_width, c->height};
    const Image b = {truth + v->shown_bytes / 2, c->view_width, c->height};
    const SheetOptions o = sheet_options_default();
    if (!v->all_shown || v->sheet_count == SHEET_SCENES) return STATUS_OK;
    TRY(compare_sheet(&a, &b, 0.25, &o, &v->sheets[v->sheet_count]));
    v->sheet_count++;
    return STATUS_OK;
}

/* Scenes that turn out to be broken are counted; everything else ends the validation, and so do
 * they with --on-corrupt fail. */
static Status take(Validation *v, EvalEntry *e, int rank) {
    NvsScores *scores = &v->task->scores;
    Report *r = report_of(v, rank);
    const Status s = (Status)r->status;
    if (s != STATUS_OK) {
        const bool counted = is_broken(s) && nvs_settings.scenes.on_corrupt == 0;
        r->message[sizeof r->message - 1] = '\0';
        if (!counted && rank != ranks_rank() && ranks_count() > 1)
            return status_set(s, "rank %d: scene %s: %s", rank, e->scene, r->message);
        status_set(s, "%s", r->message);
        if (!counted) return status_context(s, "scene %s", e->scene);
        if (output_is_mine())
            log_warn("validation: scene %s is left out: %s", e->scene, r->message);
        scores->failed++;
        return eval_entry_failed(e);
    }
    for (int k = 0; k < KINDS; k++)
        memcpy(v->scores[k] + v->score_count, r->scores + k * v->most,
               (size_t)r->views * sizeof(Score));
    v->score_count += r->views;
    scores->scenes++;
    return show_view(v, rank);
}

static void render_own(Validation *v, const EvalEntry *e) {
    memset(v->mine, 0, v->report_bytes);
    if (e) v->mine->status = one_scene(v, &e->sample);
    if (v->mine->status != STATUS_OK)
        snprintf(v->mine->message, sizeof v->mine->message, "%s", status_message());
    v->mine->stop = train_stop_requested();
}

static Status one_round(Validation *v, const int64_t *chosen, int n) {
    EvalEntry *entries = v->task->data->index.entries;
    Peers *p = ranks_peers();
    bool stop = false;
    Status s = STATUS_OK;
    render_own(v, ranks_rank() < n ? &entries[chosen[ranks_rank()]] : NULL);
    TRY(peers_gather(p, v->mine, v->all, v->report_bytes));
    if (v->pictures) TRY(peers_collect(p, v->shown, v->all_shown, v->shown_bytes));
    for (int i = 0; i < n && s == STATUS_OK; i++) s = take(v, &entries[chosen[i]], i);
    for (int i = 0; i < ranks_count(); i++) stop |= report_of(v, i)->stop != 0;
    if (output_is_mine())
        progress_line(10, "validating %lld of %lld scenes", (long long)v->task->scores.scenes,
                      (long long)v->task->data->val_count);
    if (s == STATUS_OK && stop) s = status_set(STATUS_STOPPED, "stopped while validating");
    return peers_agree(p, s);
}

static Status all_scenes(Validation *v) {
    int64_t chosen[PEERS_MAX], next = 0;
    int n;
    while ((n = choose(v, &next, chosen)) > 0) TRY(one_round(v, chosen, n));
    if (v->task->scores.scenes > 0) return STATUS_OK;
    return status_set(STATUS_DATA, "no scene could be rendered");
}

/* ---- all of them ---- */

static Status write_pictures(const Validation *v, int64_t step) {
    char name[48], *path;
    Image sheet;
    SheetOptions o = sheet_options_default();
    o.columns = 1;
    if (v->sheet_count == 0) return STATUS_OK;
    TRY(file_make_folder(v->task->pictures));
    TRY(contact_sheet(v->sheets, NULL, v->sheet_count, &o, &sheet));
    snprintf(name, sizeof name, "step-%08lld.png", (long long)step);
    Status s = path_join(&path, v->task->pictures, name);
    if (s == STATUS_OK) {
        s = image_write_png(path, &sheet);
        mem_free(path);
    }
    image_free(&sheet);
    return s;
}

static Status take_memory(Validation *v) {
    const LactNvsConfig *c = &v->task->model->config;
    const int64_t picture = c->height * c->view_width * 3, most = v->task->data->val_views;
    const int64_t views = (v->task->data->val_count + 1) * most;
    void *block;
    v->most = most;
    v->report_bytes = sizeof(Report) + (size_t)(KINDS * most) * sizeof(Score);
    v->shown_bytes = 2 * (size_t)picture;
    TRY(mem_alloc(&block, most * picture, 1, "views"));
    v->pixels = block;
    TRY(mem_alloc(&block, most * picture, 1, "rendered views"));
    v->rendered = block;
    TRY(mem_alloc(&block, picture, 1, "a view"));
    v->room = block;
    TRY(mem_alloc(&block, 2 * picture, 1, "a view and its truth"));
    v->shown = block;
    TRY(mem_alloc(&block, 1, v->report_bytes, "scores of a scene"));
    v->mine = block;
    TRY(mem_alloc(&block, ranks_count(), v->report_bytes, "scores of the ranks"));
    v->all = block;
    TRY(mem_alloc(&block, KINDS * views, sizeof(Score), "scores"));
    for (int k = 0; k < KINDS; k++) v->scores[k] = (Score *)block + k * views;
    if (!v->task->pictures) return STATUS_OK;
    TRY(mem_alloc(&block, ranks_count(), v->shown_bytes, "views of the ranks"));
    v->all_shown = block;
    return STATUS_OK;
}

/* Rank 0 alone knows where pictures go, and whether any are wanted. */
static Status prepare(Validation *v) {
    TRY(peers_agree(ranks_peers(), take_memory(v)));
    v->pictures = v->task->pictures != NULL;
    return peers_broadcast(ranks_peers(), &v->pictures, sizeof v->pictures);
}

static void validation_free(Validation *v) {
    for (int64_t i = 0; i < v->sheet_count; i++) image_free(&v->sheets[i]);
    view_scratch_free(&v->scratch);
    void *const owned[] = {v->pixels, v->rendered, v->room,      v->shown,
                           v->mine,   v->all,      v->all_shown, v->scores[0]};
    for (size_t i = 0; i < sizeof owned / sizeof owned[0]; i++) mem_free(owned[i]);
}

static Status run(Validation *v, int64_t step, ScoreSummary out[KINDS]) {
    TRY(prepare(v));
    TRY(all_scenes(v));
    for (int k = 0; k < KINDS - !v->task->ema; k++)
        TRY(score_summarise(v->scores[k], v->score_count, &out[k]));
    Status s = write_pictures(v, step);
    if (s == STATUS_MEMORY) return s;
    if (s != STATUS_OK) /* as with checkpoints: a full disk does not end the run */
        log_warn("the validation's pictures were not written: %s", status_message());
    return STATUS_OK;
}

static void record_scores(const NvsScores *scores, const ScoreSummary *sum, bool average,
                          JsonWriter *record) {
    json_pair_number(record, "val_psnr", scores->psnr);
    json_pair_number(record, "val_psnr_pooled", sum->psnr_pooled);
    json_pair_number(record, "val_loss", scores->loss);
    if (average) json_pair_number(record, "ema_psnr", scores->ema_psnr);
    json_pair_number(record, "nearest_psnr", scores->nearest);
    json_pair_number(record, "mean_psnr", scores->mean);
    json_pair_int(record, "scenes", scores->scenes);
    json_pair_int(record, "views", sum->n);
    json_pair_int(record, "failed", scores->failed);
}

Status nvs_validate(void *task, int64_t step, double *metric, JsonWriter *record) {
    NvsTask *t = task;
    Validation v = {.task = t};
    ScoreSummary sum[KINDS];
    t->scores = (NvsScores){0};
    /* Pictures are rank 0's: what it cannot do ends all. */
    Status s = peers_agree(ranks_peers(), run(&v, step, sum));
    validation_free(&v);
    TRY(s);
    NvsScores *scores = &t->scores;
    scores->psnr = *metric = sum[NVS_MODEL].psnr_mean;
    scores->ema_psnr = t->ema ? sum[NVS_AVERAGE].psnr_mean : NAN;
    scores->loss = sum[NVS_MODEL].mse_pooled / (255.0 * 255.0);
    scores->nearest = sum[NVS_NEAREST].psnr_mean;
    scores->mean = sum[NVS_MEAN].psnr_mean;
    t->show_average = t->ema && scores->ema_psnr > *metric;
    if (t->show_average) *metric = scores->ema_psnr;
    if (t->ema) {
        snprintf(t->psnr_raw, sizeof t->psnr_raw, "%.6f", scores->psnr);
        snprintf(t->psnr_ema, sizeof t->psnr_ema, "%.6f", scores->ema_psnr);
    }
    record_scores(scores, &sum[NVS_MODEL], t->ema != NULL, record);
    return STATUS_OK;
}
