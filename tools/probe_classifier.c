/* A classifier under study: top-1 and loss of the images of a split. */
#include <string.h>

#include "core/memory.h"
#include "tools/cli.h"
#include "tools/probe.h"
#include "tools/run_resume.h"
#include "tools/train_task.h"
#include "tools/verify.h"

typedef struct Classifier {
    Model model;
    ClassList classes;
    Dataset *data;
    bool in_use; /* by a thread of a loader, to the end */
    Predictor batches, single;
    float *logits;
    uint8_t *pictures; /* [kept, S, S, 3] */
    int64_t room;      /* of the values */
} Classifier;

static int64_t picture_size(const Classifier *c) {
    return c->model.preprocess.image_size * c->model.preprocess.image_size * 3;
}

/* ---- scoring ---- */

/* Each good image's scores, and the first good pictures themselves. */
static void take_batch(void *user, const HostBatch *b, const float *logits) {
    Probe *p = user;
    Classifier *c = p->state;
    const int64_t classes = c->model.config.classes, size = picture_size(c);
    for (int64_t i = 0; i < b->count; i++) {
        if (b->valid && !b->valid[i]) continue;
        const float *row = logits + i * classes;
        if (p->samples == c->room) return; /* cannot be: a split has no more images than it has */
        p->values[0][p->samples] = label_rank(row, classes, b->labels[i]) == 0 ? 100 : 0;
        p->values[1][p->samples++] = loss_row(row, classes, b->labels[i]);
        if (p->kept == p->options->pictures) continue;
        if (p->samples <= p->kept) continue; /* kept in an earlier pass */
        memcpy(c->pictures + p->kept * size, b->pixels + i * size, (size_t)size);
        p->kept++;
    }
}

static Status classifier_score(Probe *p) {
    Classifier *c = p->state;
    Loader *loader;
    Score sums = {0};
    p->samples = 0;
    TRY(eval_loader_open(c->data, &c->model.preprocess, settings.loader.batch_size, &loader));
    Status s =
        score_all(&c->batches, loader, dataset_count(c->data), c->logits, &sums, take_batch, p);
    c->in_use |= !loader_close(loader);
    if (s == STATUS_OK && p->kept == 0)
        s = status_set(STATUS_DATA, "%s: no picture could be read", settings.data.root);
    return s;
}

static Status classifier_trace(Probe *p, int64_t i) {
    Classifier *c = p->state;
    return predict(&c->single, c->pictures + i * picture_size(c), 1, c->logits);
}

static void classifier_close(Probe *p) {
    Classifier *c = p->state;
    predictor_close(&c->batches);
    predictor_close(&c->single);
    mem_free(c->logits);
    mem_free(c->pictures);
    if (!c->in_use) dataset_close(c->data);
    class_list_free(&c->classes);
    model_close(&c->model);
    mem_free(c);
}

static const Subject subject = {.metrics = {"top1", "loss"},
                                .samples = "images",
                                .score = classifier_score,
                                .trace = classifier_trace,
                                .close = classifier_close};

/* ---- opening ---- */

static Status take_room(Probe *p, Classifier *c) {
    const int64_t batch = settings.loader.batch_size;
    c->room = dataset_count(c->data);
    TRY(mem_alloc((void **)&c->logits, batch * c->model.config.classes, sizeof *c->logits,
                  "logits"));
    TRY(mem_alloc((void **)&c->pictures, p->options->pictures * picture_size(c), 1, "pictures"));
    for (int m = 0; m < PROBE_METRICS; m++)
        TRY(mem_alloc((void **)&p->values[m], c->room, sizeof *p->values[m], "scores"));
    return STATUS_OK;
}

Status probe_classifier(Probe *p, Config *config) {
    const ProbeOptions *o = p->options;
    Classifier *c;
    TRY(mem_alloc((void **)&c, 1, sizeof *c, "a classifier to look at"));
    p->state = c;
    p->subject = &subject;
    if (o->unit == UNIT_SCENE)
        return status_set(STATUS_USAGE, "--resample scene: a classifier's images stand alone");
    TRY(model_open(&c->model, o->checkpoint, (WeightsChoice)o->weights, config));
    TRY(run_data_context(model_open_data(&c->model, &c->classes, &c->data)));
    p->device = c->model.device;
    p->depth = c->model.config.depth;
    TRY(classifier_layers(&c->model, &p->layers));
    TRY(predictor_open(&c->batches, &c->model, settings.loader.batch_size));
    TRY(predictor_open(&c->single, &c->model, 1));
    return take_room(p, c);
}
