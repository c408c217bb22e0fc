#include "tools/worst.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

#include "core/memory.h"
#include "datasets/compose.h"
#include "tools/predict.h"
#include "tools/sections.h"

enum { LEAST_SIDE = 128, LABEL = 64 };

/* The best guess and its probability: 1 / sum of e^(logit - best). */
static int64_t guess(const float *row, int64_t classes, double *probability) {
    int64_t best;
    top_k(row, classes, 1, &best);
    *probability = exp(-loss_row(row, classes, best));
    return best;
}

void worst_add(Worst *w, const HostBatch *b, const float *logits, int64_t classes) {
    for (int64_t i = 0; i < b->count; i++) {
        const float *row = logits + i * classes;
        double probability;
        if (b->valid && !b->valid[i]) continue;
        const int64_t prediction = guess(row, classes, &probability);
        const double loss = loss_row(row, classes, b->labels[i]);
        if (prediction == b->labels[i]) continue;
        int at = w->count < WORST_SHOWN ? w->count++ : WORST_SHOWN;
        while (at > 0 && !(w->items[at - 1].loss >= loss)) {
            if (at < WORST_SHOWN) w->items[at] = w->items[at - 1];
            at--;
        }
        if (at == WORST_SHOWN) continue;
        w->items[at].sample = b->samples[i];
        w->items[at].label = b->labels[i];
        w->items[at].prediction = prediction;
        w->items[at].loss = loss;
        w->items[at].probability = probability;
    }
}

typedef struct Sheet {
    const Dataset *dataset;
    const Preprocess *preprocess;
    Image cells[WORST_SHOWN];
    char text[WORST_SHOWN][LABEL];
    const char *labels[WORST_SHOWN];
    uint8_t *pixels; /* of one picture */
    ResizeScratch scratch;
} Sheet;

static Status read_cell(Sheet *s, int cell, int64_t sample) {
    const ImageOptions o = data_image_options(&settings.data);
    const void *bytes;
    size_t size;
    bool owned;
    Image image = {0};
    TRY(dataset_bytes(s->dataset, sample, &bytes, &size, &owned));
    Status status = image_decode(bytes, size, dataset_name(s->dataset, sample), &o, &image, NULL);
    if (owned) mem_free((void *)(uintptr_t)bytes);
    if (status == STATUS_OK)
        status = preprocess_apply(s->preprocess, &image, s->pixels, &s->scratch);
    image_free(&image);
    TRY(status);
    return picture_blocks(s->pixels, s->preprocess->image_size, LEAST_SIDE, &s->cells[cell]);
}

static const char *class_name(const ClassList *c, int64_t i) {
    return c->readable ? c->readable[i] : c->names[i];
}

static Status make_sheet(Sheet *s, const Worst *w, const ClassList *names, const char *path) {
    const SheetOptions o = sheet_options_default();
    Image sheet;
    for (int i = 0; i < w->count; i++) {
        TRY(read_cell(s, i, w->items[i].sample));
        snprintf(s->text[i], LABEL, "%.20s as %.20s %.0f%%", class_name(names, w->items[i].label),
                 class_name(names, w->items[i].prediction), 100 * w->items[i].probability);
        s->labels[i] = s->text[i];
    }
    TRY(contact_sheet(s->cells, s->labels, w->count, &o, &sheet));
    const Status status = image_write_png(path, &sheet);
    image_free(&sheet);
    return status;
}

Status worst_write_png(const Worst *w, const Dataset *d, const ClassList *names,
                       const Preprocess *p, const char *path) {
    Sheet *s;
    if (w->count == 0) return STATUS_OK;
    TRY(mem_alloc((void **)&s, 1, sizeof *s, "a sheet"));
    s->dataset = d;
    s->preprocess = p;
    Status status = mem_alloc((void **)&s->pixels, p->image_size * p->image_size, 3, "a picture");
    if (status == STATUS_OK) status = make_sheet(s, w, names, path);
    for (int i = 0; i < WORST_SHOWN; i++) image_free(&s->cells[i]);
    mem_free(s->pixels);
    resize_scratch_free(&s->scratch);
    mem_free(s);
    return status;
}
