/* The validation of a run: renders held-out scenes, scores them, shows the first target of each. */
#include <math.h>
#include <stdio.h>

#include "core/file.h"
#include "core/log.h"
#include "core/memory.h"
#include "datasets/compose.h"
#include "tools/cli.h"
#include "tools/nvs_baselines.h"
#include "tools/nvs_task.h"
#include "tools/ranks.h"

enum { SHEET_SCENES = 8, KINDS = NVS_METHODS + 1, NVS_AVERAGE = NVS_METHODS };

typedef struct Validation {
    NvsTask *task;
    ViewScratch scratch;
    uint8_t *pixels, *rendered, *room; /* of one sample; of one view */
    Score *scores[KINDS];              /* the methods, and the averaged weights */
    int64_t score_count;
    Image sheets[SHEET_SCENES];
    int64_t sheet_count;
} Validation;

/* Truth, render and error of the target in the middle: the farthest from the inputs. */
static Status show_view(Validation *v, const NvsViews *views) {
    if (!v->task->pictures || v->sheet_count == SHEET_SCENES) return STATUS_OK;
    const int64_t middle = views->targets / 2, size = views->width * views->height * 3;
    const Image truth = {v->pixels + (views->inputs + middle) * size, views->width, views->height};
    const Image render = {v->rendered + middle * size, views->width, views->height};
    const SheetOptions o = sheet_options_default();
    TRY(compare_sheet(&truth, &render, 0.25, &o, &v->sheets[v->sheet_count]));
    v->sheet_count++;
    return STATUS_OK;
}

static Status render(Validation *v, const NvsViews *views, int kind) {
    const int64_t size = views->width * views->height * 3;
    TRY(nvs_render_sample(v->task->model, v->pixels, views->cameras, views->inputs,
                          views->inputs + views->targets, v->rendered));
    for (int64_t t = 0; t < views->targets; t++)
        TRY(nvs_score_view(views, t, v->rendered + t * size, false,
                           &v->scores[kind][v->score_count + t]));
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
    TRY(view_load_sample(t->data->val, sample, &t->data->view, &v->scratch, v->pixels, cameras));
    TRY(nvs_score_baselines(&views, false, v->room, v->scores[NVS_NEAREST] + v->score_count,
                            v->scores[NVS_MEAN] + v->score_count));
    TRY(render(v, &views, NVS_MODEL));
    if (!t->show_average) TRY(show_view(v, &views));
    if (t->ema) TRY(render_average(v, &views));
    if (t->show_average) TRY(show_view(v, &views));
    v->score_count += views.targets;
    return STATUS_OK;
}

/* Scenes that turn out to be broken are counted; everything else ends the validation. */
static Status all_scenes(Validation *v) {
    NvsTask *t = v->task;
    NvsScores *scores = &t->scores;
    EvalIndex *index = &t->data->index;
    for (int64_t i = 0; i < index->count && scores->scenes < t->data->val_count; i++) {
        EvalEntry *e = &index->entries[i];
        if (e->state != EVAL_READY) continue;
        Status s = one_scene(v, &e->sample);
        if (s == STATUS_DATA || s == STATUS_IO) {
            log_warn("validation: scene %s is left out: %s", e->scene, status_message());
            TRY(eval_entry_failed(e));
            scores->failed++;
            continue;
        }
        TRY(status_context(s, "scene %s", e->scene));
        scores->scenes++;
        progress_line(10, "validating %lld of %lld scenes", (long long)scores->scenes,
                      (long long)t->data->val_count);
        if (train_stop_requested()) return status_set(STATUS_STOPPED, "stopped while validating");
    }
    return scores->scenes > 0 ? STATUS_OK : status_set(STATUS_DATA, "no scene could be rendered");
}

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

static Status prepare(Validation *v) {
    const LactNvsConfig *c = &v->task->model->config;
    const int64_t picture = c->height * c->view_width * 3, most = v->task->data->val_views;
    const int64_t views = (v->task->data->val_count + 1) * most;
    void *block;
    TRY(mem_alloc(&block, most * picture, 1, "views"));
    v->pixels = block;
    TRY(mem_alloc(&block, most * picture, 1, "rendered views"));
    v->rendered = block;
    TRY(mem_alloc(&block, picture, 1, "a view"));
    v->room = block;
    TRY(mem_alloc(&block, KINDS * views, sizeof(Score), "scores"));
    for (int k = 0; k < KINDS; k++) v->scores[k] = (Score *)block + k * views;
    return STATUS_OK;
}

static void validation_free(Validation *v) {
    for (int64_t i = 0; i < v->sheet_count; i++) image_free(&v->sheets[i]);
    view_scratch_free(&v->scratch);
    mem_free(v->pixels);
    mem_free(v->rendered);
    mem_free(v->room);
    mem_free(v->scores[0]);
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

static Status validate(NvsTask *t, int64_t step, double *metric, JsonWriter *record) {
    Validation v = {.task = t};
    ScoreSummary sum[KINDS];
    t->scores = (NvsScores){0};
    Status s = run(&v, step, sum);
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

/* What the other ranks learn of a validation: rank 0 renders, they wait. */
typedef struct Outcome {
    int64_t status;
    double metric;
    NvsScores scores;
    char message[512];
} Outcome;

Status nvs_validate(void *task, int64_t step, double *metric, JsonWriter *record) {
    NvsTask *t = task;
    if (ranks_count() < 2) return validate(t, step, metric, record);
    Outcome o = {.status = STATUS_OK};
    if (ranks_rank() == 0) {
        o.status = validate(t, step, metric, record);
        if (o.status != STATUS_OK) snprintf(o.message, sizeof o.message, "%s", status_message());
        o.metric = *metric;
        o.scores = t->scores;
    }
    TRY(peers_broadcast(ranks_peers(), &o, sizeof o));
    *metric = o.metric;
    t->scores = o.scores;
    if (o.status == STATUS_OK || ranks_rank() == 0) return (Status)o.status;
    o.message[sizeof o.message - 1] = '\0';
    return status_set((Status)o.status, "%s", o.message);
}
