/* Continuing a run, or starting from given weights. */
#include "tools/trainer.h"

#include <stdlib.h>
#include <string.h>

#include "core/log.h"
#include "core/memory.h"
#include "tools/cli.h"
#include "tools/model_meta.h"
#include "tools/run_resume.h"

/* What a resumed run takes over from its config.ini. Limits of one call (max_steps...) are not
 * inherited. */
static const char inherited[] =
    "model data preprocess augment loader optim train run common.device "
    "common.precision -train.max_steps -train.time_limit_s -run.output "
    "-run.resume -run.exist_ok -run.dry_run";

Status trainer_find_run(Trainer *t) {
    return run_resume_find(&t->run, t->config, inherited, &t->resuming);
}

/* ---- resume ---- */

static Status same_classes(const ClassList *stored, const ClassList *now, const char *path) {
    if (stored->count == 0) return STATUS_OK;
    if (stored->count != now->count)
        return status_set(STATUS_DATA, "%s was trained on %lld classes, the data has %lld", path,
                          (long long)stored->count, (long long)now->count);
    for (int64_t i = 0; i < now->count; i++)
        if (strcmp(stored->names[i], now->names[i]) != 0)
            return status_set(STATUS_DATA, "%s: class %lld was '%s' in training, the data has '%s'",
                              path, (long long)i, stored->names[i], now->names[i]);
    return STATUS_OK;
}

/* The order of an epoch is a permutation of the image count: another count is another order. */
static void compare_images(const SafeFile *file, const Trainer *t) {
    const char *then = safetensors_meta(file, "ttv.train_images");
    int64_t now = dataset_count(t->data.train);
    if (then && atoll(then) != now)
        log_warn(
            "the run began with %s training images, now there are %lld: the rest of this epoch "
            "draws them in another order",
            then, (long long)now);
}

static Status compare_with_checkpoint(Trainer *t) {
    char *weights = NULL, *state = NULL;
    SafeFile *file = NULL;
    ClassList stored = {0};
    TRY(checkpoint_find(t->run.path, t->run.resumed, &weights, &state));
    Status s = safetensors_open(weights, &file);
    if (s == STATUS_OK) s = model_meta_classes(file, weights, t->model.config.classes, &stored);
    if (s == STATUS_OK) s = same_classes(&stored, &t->data.classes, weights);
    if (s == STATUS_OK) compare_images(file, t);
    class_list_free(&stored);
    if (file) safetensors_close(file);
    mem_free(weights);
    mem_free(state);
    return s;
}

Status trainer_resume(Trainer *t) {
    TRY(compare_with_checkpoint(t));
    TRY(checkpoint_resume(t->run.path, t->run.resumed, &t->model.params, &t->optim, &t->state));
    if (t->state.seed != (uint64_t)settings.train.seed)
        return status_set(STATUS_USAGE, "%s began with seed %llu: it cannot go on with --seed %lld",
                          t->run.path, (unsigned long long)t->state.seed,
                          (long long)settings.train.seed);
    return STATUS_OK;
}

/* ---- initial weights ---- */

static bool same_shape(const Tensor *t, const SafeEntry *e) {
    if (e->rank != t->rank) return false;
    for (int i = 0; i < t->rank; i++)
        if (e->shape[i] != t->shape[i]) return false;
    return true;
}

static Status load_one(Trainer *t, const Param *p, const SafeEntry *e) {
    void *block;
    TRY(mem_alloc(&block, tensor_count(p->master), sizeof(float), "initial weights"));
    Tensor host = tensor_of(block, DTYPE_F32, p->master.rank, p->master.shape);
    Status s = safetensors_read(e, host);
    if (s == STATUS_OK) s = device_push(t->model.device, p->master, block);
    if (s == STATUS_OK) s = device_sync(t->model.device);
    mem_free(block);
    return s;
}

static Status load_all(Trainer *t, const SafeFile *file) {
    const Params *params = &t->model.params;
    for (int64_t i = 0; i < params->count; i++) {
        const Param *p = params->items[i];
        const SafeEntry *e = safetensors_find(file, p->name);
        bool head = strncmp(p->name, "head.", 5) == 0, fits = e && same_shape(&p->master, e);
        char wanted[128];
        if (fits) {
            TRY(load_one(t, p, e));
        } else if (head) {
            note("%s: %s is for another number of classes: starts with random values",
                 settings.train.initial_checkpoint, p->name);
        } else {
            return status_set(STATUS_DATA, "%s %s; expected shape %s", p->name,
                              e ? "has another shape" : "is missing",
                              tensor_shape_text(p->master, wanted, sizeof wanted));
        }
    }
    return params_refresh(&t->model.params);
}

Status trainer_load_initial(Trainer *t) {
    const char *given = settings.train.initial_checkpoint;
    if (!*given || t->resuming) return STATUS_OK;
    char *path;
    SafeFile *file = NULL;
    TRY(weights_resolve(given, WEIGHTS_AUTO, &path));
    Status s = safetensors_open(path, &file);
    if (s == STATUS_OK) s = status_context(load_all(t, file), "%s", path);
    if (s == STATUS_OK) s = model_tell_origin(&t->model.config, file, path);
    if (file) safetensors_close(file);
    mem_free(path);
    return s;
}
