/* Opening and comparing the splits of a run. */
#include "tools/train_data.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

#include "core/file.h"
#include "core/log.h"
#include "core/utf8.h"
#include "datasets/mix.h"
#include "datasets/scene.h"
#include "nn/train.h"
#include "tools/cli.h"
#include "tools/ranks.h"

enum { SHOWN_CORRUPT = 20 };

/* Names go into the checkpoint's JSON: bytes that are no UTF-8 would come back as other names. */
static Status check_names(const ClassList *classes) {
    for (int64_t i = 0; i < classes->count; i++) {
        const char *name = classes->names[i];
        if (!utf8_valid(name))
            return status_set(STATUS_DATA,
                              "class folder '%s' has a name that is not UTF-8: rename it", name);
    }
    return STATUS_OK;
}

/* Scenes train a classifier as well, with a class for each, which nobody wants. */
static Status tell_scenes(const char *root, const Dataset *d) {
    bool scenes = false;
    if (dataset_report(d).other_files > 0) TRY(scene_root(root, &scenes)); /* camera files? */
    if (scenes && output_is_mine())
        log_warn(
            "%s holds posed scenes, which 'ttv nvs train' is for: here each of them is a class",
            root);
    return STATUS_OK;
}

static bool no_split(const char *split) {
    return !*split || strcmp(split, "none") == 0;
}

/* Opens the training split again with only a share of its images. */
static Status take_fraction(TrainData *d) {
    double share = settings.train.fraction;
    if (share >= 1) return STATUS_OK;
    DataConfig limited = settings.data;
    limited.train_limit = (int64_t)ceil(share * (double)dataset_count(d->train));
    dataset_close(d->train);
    d->train = NULL;
    return dataset_open(&limited, limited.train_split, &d->classes, &d->train);
}

static Status open_splits(TrainData *d) {
    const DataConfig *c = &settings.data;
    if (!*c->root)
        return status_set(STATUS_USAGE,
                          "no data: give --data-dir DIR, or [data] root in a file (-c)");
    TRY(dataset_open(c, c->train_split, &d->classes, &d->train));
    TRY(check_names(&d->classes));
    TRY(tell_scenes(c->root, d->train));
    if (d->classes.count == 1 && output_is_mine())
        log_warn("%s has one class only, '%s': there is nothing to tell apart", c->root,
                 d->classes.names[0]);
    TRY(take_fraction(d));
    if (dataset_count(d->train) < settings.loader.batch_size * settings.train.grad_accum_steps)
        return status_set(
            STATUS_DATA,
            "%s: %lld training images are less than one step of %lld x %lld: use a smaller "
            "--batch-size or --grad-accum-steps",
            c->root, (long long)dataset_count(d->train), (long long)settings.loader.batch_size,
            (long long)settings.train.grad_accum_steps);
    if (no_split(c->val_split)) return STATUS_OK;
    return status_context(dataset_open(c, c->val_split, &d->classes, &d->val),
                          "validation split (--val-split none: train without)");
}

Status train_data_open(TrainData *d) {
    *d = (TrainData){0};
    Status s = open_splits(d);
    if (s != STATUS_OK) train_data_close(d);
    return s;
}

/* Beside a card one processor is left to the thread that feeds it. */
static int decoding_threads(void) {
    const int own = loader_processors() / ranks_on_host(), processors = own > 0 ? own : 1;
    if (settings.loader.workers > 0) return (int)settings.loader.workers;
    return strncmp(common.device, "cuda", 4) == 0 && processors > 1 ? processors - 1 : processors;
}

static LoaderOptions loader_options_of(const Preprocess *preprocess, int64_t batch) {
    return (LoaderOptions){.preprocess = preprocess,
                           .batch = batch,
                           .shard = ranks_shard(),
                           .threads = decoding_threads(),
                           .prefetch = (int)settings.loader.prefetch,
                           .seed = (uint64_t)settings.train.seed,
                           .fail_on_corrupt = settings.data.on_corrupt == 1,
                           .max_corrupt = settings.data.max_corrupt,
                           .stopped = train_stop_requested,
                           .image = data_image_options(&settings.data)};
}

Status eval_loader_open(const Dataset *d, const Preprocess *preprocess, int64_t batch,
                        Loader **out) {
    LoaderOptions o = loader_options_of(preprocess, batch);
    return loader_open(d, &o, out);
}

Status train_data_load(TrainData *d, const Preprocess *preprocess) {
    int64_t batch;
    const Augment *a = &settings.augment;
    TRY(ranks_batch(settings.loader.batch_size, settings.train.augment && batch_mix_wanted(a),
                    &batch));
    LoaderOptions o = loader_options_of(preprocess, batch);
    d->augment = settings.augment;
    if (!augment_flips_first(&d->augment)) d->augment.flip = 0; /* the device does it */
    o.augment = settings.train.augment ? &d->augment : NULL;
    o.shuffle = true;
    o.drop_last = true;
    TRY(loader_open(d->train, &o, &d->train_loader));
    return d->val ? eval_loader_open(d->val, preprocess, batch, &d->val_loader) : STATUS_OK;
}

void train_data_close(TrainData *d) {
    const bool train_ended = loader_close(d->train_loader);
    const bool val_ended = loader_close(d->val_loader);
    if (train_ended) dataset_close(d->train);
    if (val_ended) dataset_close(d->val);
    class_list_free(&d->classes);
    *d = (TrainData){0};
}

/* Most reasons begin with the name already. */
static const char *corrupt_text(const Loader *l, const Dataset *d, int64_t i, char text[1500]) {
    char shown[600];
    int64_t sample;
    const char *reason;
    loader_corrupt_at(l, i, &sample, &reason);
    text_printable(dataset_name(d, sample), shown, sizeof shown);
    const bool named = strstr(reason, shown) != NULL;
    snprintf(text, 1500, "%s%s%s", named ? "" : shown, named ? "" : ": ", reason);
    return text;
}

void report_corrupt(const char *what, const Dataset *d, const Loader *l) {
    int64_t count = l ? loader_corrupt_count(l) : 0;
    char text[1500];
    if (count == 0) return;
    if (!output_is_mine()) { /* rank 0 tells of its own only */
        for (int64_t i = 0; i < count && i < SHOWN_CORRUPT; i++)
            log_warn("%s: %s", what, corrupt_text(l, d, i, text));
        return;
    }
    note("%s: %lld of %lld images could not be decoded:", what, (long long)count,
         (long long)dataset_count(d));
    for (int64_t i = 0; i < count && i < SHOWN_CORRUPT; i++)
        note("  %s", corrupt_text(l, d, i, text));
    if (count > SHOWN_CORRUPT) note("  ... and %lld more", (long long)(count - SHOWN_CORRUPT));
}
