/* The validation of a run: renders held-out scenes, scores them, shows the first target of each. */
#include <stdio.h>

#include "core/file.h"
#include "core/log.h"
#include "core/memory.h"
#include "datasets/compose.h"
#include "datasets/score.h"
#include "tools/cli.h"
#include "tools/nvs_task.h"

enum { SHEET_SCENES = 8 };

typedef struct Validation {
    NvsTask *task;
    ViewScratch scratch;
    uint8_t *pixels, *rendered; /* of one sample */
    Score *scores;
    int64_t score_count;
    Image sheets[SHEET_SCENES];
    int64_t sheet_count;
} Validation;

static Image view_at(const Validation *v, uint8_t *pixels, int64_t i) {
    const LactNvsConfig *c = &v->task->model->config;
    return (Image){pixels + i * c->height * c->view_width * 3, c->view_width, c->height};
}

static Status score_views(Validation *v, const ViewSample *sample) {
    const ScoreOptions options = {0};
    for (int64_t i = 0; i < sample->targets; i++) {
        Image truth = view_at(v, v->pixels, sample->inputs + i),
              render = view_at(v, v->rendered, i);
        Picture a = picture_of_image(&truth, "truth"), b = picture_of_image(&render, "render");
        TRY(score_pictures(&a, &b, &options, &v->scores[v->score_count]));
        v->score_count++;
    }
    return STATUS_OK;
}

/* The target in the middle: the farthest from the inputs. */
static Status show_view(Validation *v, const ViewSample *sample) {
    if (!v->task->pictures || v->sheet_count == SHEET_SCENES) return STATUS_OK;
    const int64_t middle = sample->targets / 2;
    Image truth = view_at(v, v->pixels, sample->inputs + middle);
    Image render = view_at(v, v->rendered, middle);
    const SheetOptions o = sheet_options_default();
    TRY(compare_sheet(&truth, &render, 0.25, &o, &v->sheets[v->sheet_count]));
    v->sheet_count++;
    return STATUS_OK;
}

static Status one_scene(Validation *v, const ViewSample *sample) {
    NvsTask *t = v->task;
    ViewCamera cameras[VIEW_MAX];
    TRY(view_load_sample(t->data->val, sample, &t->data->view, &v->scratch, v->pixels, cameras));
    TRY(nvs_render_sample(t->model, v->pixels, cameras, sample->inputs,
                          sample->inputs + sample->targets, v->rendered));
    TRY(score_views(v, sample));
    return show_view(v, sample);
}

/* Scenes that turn out to be broken are counted; everything else ends the validation. */
static Status all_scenes(Validation *v) {
    NvsTask *t = v->task;
    EvalIndex *index = &t->data->index;
    for (int64_t i = 0; i < index->count && t->scored < t->data->val_count; i++) {
        EvalEntry *e = &index->entries[i];
        if (e->state != EVAL_READY) continue;
        Status s = one_scene(v, &e->sample);
        if (s == STATUS_DATA || s == STATUS_IO) {
            log_warn("validation: scene %s is left out: %s", e->scene, status_message());
            TRY(eval_entry_failed(e));
            t->failed++;
            continue;
        }
        TRY(status_context(s, "scene %s", e->scene));
        t->scored++;
        progress_line(10, "validating %lld of %lld scenes", (long long)t->scored,
                      (long long)t->data->val_count);
        if (train_stop_requested()) return status_set(STATUS_STOPPED, "stopped while validating");
    }
    return t->scored > 0 ? STATUS_OK : status_set(STATUS_DATA, "no scene could be rendered");
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
    const ScenesConfig *scenes = &nvs_settings.scenes;
    const int64_t picture = c->height * c->view_width * 3;
    void *block;
    TRY(mem_alloc(&block, (scenes->inputs + scenes->targets) * picture, 1, "views"));
    v->pixels = block;
    TRY(mem_alloc(&block, scenes->targets * picture, 1, "rendered views"));
    v->rendered = block;
    TRY(mem_alloc(&block, (v->task->data->val_count + 1) * scenes->targets, sizeof(Score),
                  "scores"));
    v->scores = block;
    return STATUS_OK;
}

static void validation_free(Validation *v) {
    for (int64_t i = 0; i < v->sheet_count; i++) image_free(&v->sheets[i]);
    view_scratch_free(&v->scratch);
    mem_free(v->pixels);
    mem_free(v->rendered);
    mem_free(v->scores);
}

static Status run(Validation *v, int64_t step, ScoreSummary *out) {
    TRY(prepare(v));
    TRY(all_scenes(v));
    TRY(score_summarise(v->scores, v->score_count, out));
    Status s = write_pictures(v, step);
    if (s == STATUS_MEMORY) return s;
    if (s != STATUS_OK) /* as with checkpoints: a full disk does not end the run */
        log_warn("the validation's pictures were not written: %s", status_message());
    return STATUS_OK;
}

Status nvs_validate(void *task, int64_t step, double *metric, JsonWriter *record) {
    NvsTask *t = task;
    Validation v = {.task = t};
    ScoreSummary sum;
    t->scored = t->failed = 0;
    Status s = run(&v, step, &sum);
    validation_free(&v);
    TRY(s);
    *metric = t->psnr = sum.psnr_mean;
    json_pair_number(record, "val_psnr", sum.psnr_mean);
    json_pair_number(record, "val_psnr_pooled", sum.psnr_pooled);
    json_pair_number(record, "val_loss", sum.mse_pooled / (255.0 * 255.0));
    json_pair_int(record, "scenes", t->scored);
    json_pair_int(record, "views", sum.n);
    json_pair_int(record, "failed", t->failed);
    return STATUS_OK;
}
