#include "tools/nvs_data.h"

#include <string.h>

#include "datasets/loader.h"
#include "nn/train.h"
#include "tools/cli.h"
#include "tools/nvs_eval.h"
#include "tools/ranks.h"

/* --on-corrupt fail: every camera file has to be sound. */
static Status check_faults(const SceneSet *set) {
    const int64_t count = scene_set_count(set);
    int64_t faulty = 0, first = -1;
    char reason[1024];
    for (int64_t i = 0; i < count; i++) {
        if (scene_set_at(set, i)->fault_count == 0) continue;
        if (faulty++ == 0) first = i;
    }
    if (faulty == 0 || nvs_settings.scenes.on_corrupt == 0) return STATUS_OK;
    return status_set(
        STATUS_DATA,
        "%lld of %lld scenes have faulty camera files (--on-corrupt fail), the first: "
        "%s",
        (long long)faulty, (long long)count,
        scene_reason(scene_set_at(set, first), reason, sizeof reason));
}

static Status open_validation(NvsData *d) {
    const ScenesConfig *c = &nvs_settings.scenes;
    if (strcmp(c->val_split, "none") == 0) return STATUS_OK;
    TRY(status_context(
        scene_set_open(c->val_root[0] ? c->val_root : c->root, c->val_split, &d->val),
        "validation (--val-split none: without)"));
    if (c->val_index[0])
        TRY(eval_index_read(c->val_index, &d->index));
    else
        TRY(eval_index_generate(d->val, &d->recipe, (uint64_t)nvs_settings.train.seed, &d->index));
    TRY(check_faults(d->val));
    TRY(eval_index_resolve(&d->index, d->val));
    const int64_t ready = eval_index_counts(&d->index).ready;
    if (ready == 0)
        return status_set(STATUS_DATA,
                          "validation: none of %lld scenes can be rendered (first: %s); "
                          "--val-split none trains without",
                          (long long)d->index.count,
                          d->index.count > 0 && d->index.entries[0].reason
                              ? d->index.entries[0].reason
                              : "no reason known");
    d->val_count = ready < c->val_scenes ? ready : c->val_scenes;
    for (int64_t i = 0; i < d->index.count; i++) {
        const ViewSample *s = &d->index.entries[i].sample;
        if (s->inputs + s->targets > d->val_views) d->val_views = s->inputs + s->targets;
    }
    return STATUS_OK;
}

static Status open_all(NvsData *d) {
    const ScenesConfig *c = &nvs_settings.scenes;
    if (!c->root[0])
        return status_set(STATUS_USAGE, "--data-dir is needed: a folder or tar file of scenes");
    TRY(scenes_recipe(&d->recipe));
    TRY(scene_set_open(c->root, c->split, &d->train));
    TRY(check_faults(d->train));
    TRY(view_sampler_open(d->train, &d->recipe, (uint64_t)nvs_settings.train.seed, &d->sampler));
    return open_validation(d);
}

Status nvs_data_open(NvsData *d, int64_t height, int64_t width) {
    *d = (NvsData){.view = view_options_default(width, height)};
    Status s = open_all(d);
    if (s != STATUS_OK) nvs_data_close(d);
    return s;
}

/* Beside a card one processor is left to the thread that feeds it. */
int nvs_data_threads(void) {
    const int own = loader_processors() / ranks_on_host(), processors = own > 0 ? own : 1;
    if (nvs_settings.scenes.workers > 0) return (int)nvs_settings.scenes.workers;
    return strncmp(common.device, "cuda", 4) == 0 && processors > 1 ? processors - 1 : processors;
}

/* The loader's n-th sample as one of those of all ranks. */
static Status choose(void *user, int64_t n, int attempt, ViewSample *out) {
    const NvsData *d = user;
    const int64_t at = n - d->first, batches = at / d->batch * ranks_count() + ranks_rank();
    return view_choose_sampler(d->sampler, d->first + batches * d->batch + at % d->batch, attempt,
                               out);
}

Status nvs_data_begin(NvsData *d, int64_t first, int64_t count) {
    const ScenesConfig *c = &nvs_settings.scenes;
    d->first = first;
    d->batch = ranks_batch_of(nvs_settings.train.batch_size);
    ViewLoaderOptions o = {.view = d->view,
                           .batch = d->batch,
                           .views = (int)(c->inputs + c->targets),
                           .threads = nvs_data_threads(),
                           .prefetch = NVS_PREFETCH,
                           .cache_bytes = c->cache_mb << 20,
                           .first = first,
                           .count = count / ranks_count(),
                           .choose = choose,
                           .user = d,
                           .stopped = train_stop_requested,
                           .fail_on_corrupt = c->on_corrupt == 1};
    if (d->loader) view_loader_close(d->loader);
    d->loader = NULL;
    return view_loader_open(d->train, &o, &d->loader);
}

void nvs_data_close(NvsData *d) {
    const bool ended = view_loader_close(d->loader);
    if (d->sampler) view_sampler_close(d->sampler);
    eval_index_free(&d->index);
    if (ended && d->train) scene_set_close(d->train);
    if (d->val) scene_set_close(d->val);
    *d = (NvsData){0};
}

enum { SHOWN = 5 };

/* Scenes that are left out, with file and line. */
static void print_unusable(const SceneSet *set) {
    char reason[1024];
    int64_t count = 0;
    for (int64_t i = 0; i < scene_set_count(set); i++) {
        const Scene *s = scene_set_at(set, i);
        if (scene_usable(s)) continue;
        if (count++ < SHOWN) note("  unusable: %s", scene_reason(s, reason, sizeof reason));
    }
    if (count > SHOWN)
        note("  and %lld more ('ttv data check' lists all)", (long long)(count - SHOWN));
}

void nvs_data_print(const NvsData *d) {
    note("data %s: %lld scenes to draw from (%lld synthetic), %lld too short, %lld unusable",
         nvs_settings.scenes.root, (long long)view_sampler_scenes(d->sampler),
         (long long)view_sampler_synthetic(d->sampler), (long long)view_sampler_short(d->sampler),
         (long long)view_sampler_unusable(d->sampler));
    print_unusable(d->train);
    if (!d->val) {
        note("no validation");
        return;
    }
    const EvalCounts n = eval_index_counts(&d->index);
    note("validation: %lld of %lld scenes that can be rendered; %lld null, %lld missing, %lld "
         "faulty",
         (long long)d->val_count, (long long)n.ready, (long long)n.null, (long long)n.missing,
         (long long)n.faulty);
    eval_index_print_reasons(&d->index, SHOWN, "'ttv data index'");
}

void nvs_data_print_failures(const NvsData *d) {
    const int64_t count = d->loader ? view_loader_failures(d->loader) : 0;
    if (count == 0) return;
    note("%lld training samples could not be loaded and were replaced:", (long long)count);
    for (int64_t i = 0, sample; i < count && i < 5; i++) {
        const char *message = view_loader_failure(d->loader, i, &sample);
        if (message) note("  sample %lld: %s", (long long)sample, message);
    }
}
