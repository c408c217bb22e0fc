/* A novel-view model under study: PSNR and SSIM of the target views of posed scenes. */
#include <math.h>
#include <string.h>

#include "core/memory.h"
#include "tools/cli.h"
#include "tools/nvs_baselines.h"
#include "tools/nvs_model.h"
#include "tools/probe.h"
#include "nn/train.h"
#include "tools/verify.h"

/* One scene's views, loaded once. */
typedef struct SceneViews {
    ViewSample sample;
    ViewCamera *cameras;
    uint8_t *pixels; /* [inputs + targets, height, width, 3] */
} SceneViews;

typedef struct NvsSubject {
    NvsModel model;
    SceneSet *set;
    EvalIndex index;
    ViewOptions view;
    ViewScratch scratch;
    SceneViews *scenes;
    int64_t count, targets; /* scenes; views to score in all */
    uint8_t *rendered;
} NvsSubject;

static int64_t picture_size(const NvsSubject *n) {
    return n->view.width * n->view.height * 3;
}

/* ---- scoring ---- */

static Status render(NvsSubject *n, const SceneViews *v) {
    const ViewSample *s = &v->sample;
    return nvs_render_sample(&n->model, v->pixels, v->cameras, s->inputs, s->inputs + s->targets,
                             n->rendered);
}

static Status score_scene(Probe *p, NvsSubject *n, int64_t scene) {
    const SceneViews *v = &n->scenes[scene];
    const NvsViews views = {v->pixels,         v->cameras,    v->sample.inputs,
                            v->sample.targets, n->view.width, n->view.height};
    TRY(render(n, v));
    for (int64_t t = 0; t < v->sample.targets; t++) {
        Score score;
        TRY(nvs_score_view(&views, t, n->rendered + t * picture_size(n), true, &score));
        p->values[0][p->samples] = score.psnr;
        p->values[1][p->samples] = score.ssim;
        p->groups[p->samples++] = scene;
    }
    return STATUS_OK;
}

static Status nvs_score(Probe *p) {
    NvsSubject *n = p->state;
    p->samples = 0;
    for (int64_t i = 0; i < n->count; i++) {
        if (train_stop_requested()) return status_set(STATUS_STOPPED, "stopped");
        TRY(score_scene(p, n, i));
        progress_line(10, "scene %lld of %lld", (long long)i + 1, (long long)n->count);
    }
    return STATUS_OK;
}

static Status nvs_trace(Probe *p, int64_t i) {
    NvsSubject *n = p->state;
    return render(n, &n->scenes[i]);
}

static void nvs_attention(Probe *p, const QuerySwap *swap) {
    NvsSubject *n = p->state;
    for (int64_t i = 0; i < p->depth; i++) n->model.nvs->blocks[i].swap = swap ? &swap[i] : NULL;
}

static void nvs_close(Probe *p) {
    NvsSubject *n = p->state;
    for (int64_t i = 0; i < n->count; i++) {
        mem_free(n->scenes[i].cameras);
        mem_free(n->scenes[i].pixels);
    }
    mem_free(n->scenes);
    mem_free(n->rendered);
    view_scratch_free(&n->scratch);
    eval_index_free(&n->index);
    if (n->set) scene_set_close(n->set);
    nvs_model_close(&n->model);
    mem_free(n);
}

static const Subject subject = {.metrics = {"psnr", "ssim"},
                                .samples = "views",
                                .score = nvs_score,
                                .trace = nvs_trace,
                                .attention = nvs_attention,
                                .close = nvs_close};

/* ---- opening ---- */

/* Where the scenes are: what was named, or what the run's own file says. */
static Status open_scenes(const ProbeOptions *o, const Config *config, SceneSet **out) {
    const ScenesConfig *own = &nvs_settings.scenes;
    const char *root = settings.data.root, *split = o->split;
    if (!*root) root = own->val_root[0] ? own->val_root : own->root;
    if (!*root)
        return status_set(STATUS_USAGE, "no scenes: give --data-dir with posed scenes, or [scenes] "
                                        "root in a file (-c)");
    if (!config_is_set(config, "probe", "split") && !*settings.data.root &&
        strcmp(own->val_split, "none") != 0)
        split = own->val_split;
    return scene_set_open(root, split, out);
}

/* STATUS_OK also for a scene that cannot be loaded, which is told and left out. */
static Status load_scene(NvsSubject *n, const EvalEntry *e) {
    SceneViews *v = &n->scenes[n->count];
    void *block;
    const int64_t views = e->sample.inputs + e->sample.targets;
    v->sample = e->sample;
    TRY(mem_alloc(&block, views * picture_size(n), 1, "views"));
    v->pixels = block;
    n->count++; /* from here on nvs_close() gives it back */
    TRY(mem_alloc(&block, views, sizeof *v->cameras, "cameras"));
    v->cameras = block;
    Status s = view_load_sample(n->set, &v->sample, &n->view, &n->scratch, v->pixels, v->cameras);
    if (s == STATUS_OK) {
        n->targets += v->sample.targets;
        return STATUS_OK;
    }
    if (s != STATUS_DATA && s != STATUS_IO) return s;
    note("scene %s is left out: %s", e->scene, status_message());
    mem_free(v->cameras);
    mem_free(v->pixels);
    *v = (SceneViews){0};
    n->count--;
    return STATUS_OK;
}

static Status load_scenes(Probe *p, NvsSubject *n) {
    const int64_t most = p->options->scenes;
    const EvalEntry *first = NULL; /* of those that cannot be used */
    TRY(mem_alloc((void **)&n->scenes, n->index.count + 1, sizeof *n->scenes, "scenes"));
    for (int64_t i = 0; i < n->index.count && (most == 0 || n->count < most); i++) {
        const EvalEntry *e = &n->index.entries[i];
        if (e->state == EVAL_READY)
            TRY(load_scene(n, e));
        else if (!first)
            first = e;
    }
    if (n->count > 0) return STATUS_OK;
    return status_set(STATUS_DATA, "none of %lld scenes can be rendered%s%s%s%s",
                      (long long)n->index.count, first ? " (first: " : "",
                      first ? first->scene : "", first && first->reason ? ": " : "",
                      first ? (first->reason ? first->reason : "") : "");
}

static Status take_room(Probe *p, NvsSubject *n) {
    TRY(mem_alloc((void **)&n->rendered, VIEW_MAX * picture_size(n), 1, "rendered views"));
    TRY(mem_alloc((void **)&p->groups, n->targets, sizeof *p->groups, "scores"));
    for (int m = 0; m < PROBE_METRICS; m++)
        TRY(mem_alloc((void **)&p->values[m], n->targets, sizeof *p->values[m], "scores"));
    p->kept = n->count < p->options->pictures ? n->count : p->options->pictures;
    return STATUS_OK;
}

Status probe_nvs(Probe *p, Config *config) {
    const ProbeOptions *o = p->options;
    NvsSubject *n;
    TRY(mem_alloc((void **)&n, 1, sizeof *n, "a model to look at"));
    p->state = n;
    p->subject = &subject;
    TRY(nvs_model_open(&n->model, o->checkpoint, (WeightsChoice)o->weights, config));
    p->device = n->model.device;
    TRY(open_scenes(o, config, &n->set));
    TRY(nvs_index_find(&o->views, (uint64_t)o->seed, n->set, &n->index));
    n->view = view_options_default(n->model.config.view_width, n->model.config.height);
    TRY(load_scenes(p, n));
    p->depth = n->model.config.layers;
    TRY(nvs_layers(&n->model, &p->layers));
    return take_room(p, n);
}
