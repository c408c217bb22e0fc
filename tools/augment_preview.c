#include "tools/augment_preview.h"

#include <stdio.h>
#include <string.h>

#include "core/memory.h"
#include "datasets/compose.h"
#include "tools/sections.h"

enum { ROWS = 8, COLUMNS = 12, CELLS = ROWS * COLUMNS, LEAST_SIDE = 64, LABEL = 32 };

typedef struct Preview {
    const Dataset *dataset;
    const ClassList *classes;
    Preprocess preprocess;
    Image cells[CELLS];
    char labels[CELLS][LABEL];
    uint8_t *pixels; /* one picture of the training size */
    ResizeScratch scratch;
} Preview;

/* Small pictures are shown in blocks of pixels. */
static Status keep_cell(Preview *p, int cell) {
    return picture_blocks(p->pixels, p->preprocess.image_size, LEAST_SIDE, &p->cells[cell]);
}

static Status fill_row(Preview *p, int row, int64_t sample, const Image *image) {
    const int first = row * COLUMNS;
    TRY(preprocess_apply(&p->preprocess, image, p->pixels, &p->scratch));
    TRY(keep_cell(p, first));
    const int64_t label = dataset_label(p->dataset, sample);
    if (label >= 0 && label < p->classes->count)
        snprintf(p->labels[first], LABEL, "%.31s", p->classes->names[label]);
    for (int i = 1; i < COLUMNS; i++) {
        Rng rng = rng_stream((uint64_t)settings.train.seed, RNG_AUGMENT, (uint64_t)(i - 1),
                             (uint64_t)sample);
        TRY(augment_apply(&settings.augment, &p->preprocess, image, &rng, p->pixels, &p->scratch));
        TRY(keep_cell(p, first + i));
        snprintf(p->labels[first + i], LABEL, "epoch %d", i - 1);
    }
    return STATUS_OK;
}

static Status add_sample(Preview *p, int row, int64_t sample) {
    const ImageOptions o = data_image_options(&settings.data);
    const void *bytes;
    size_t size;
    bool owned;
    Image image;
    TRY(dataset_bytes(p->dataset, sample, &bytes, &size, &owned));
    Status s = image_decode(bytes, size, dataset_name(p->dataset, sample), &o, &image, NULL);
    if (owned) mem_free((void *)(uintptr_t)bytes);
    TRY(s);
    s = fill_row(p, row, sample, &image);
    image_free(&image);
    return s;
}

static Status make_sheet(Preview *p, const char *path) {
    const int64_t count = dataset_count(p->dataset);
    const int rows = count < ROWS ? (int)count : ROWS;
    const char *labels[CELLS];
    SheetOptions o = sheet_options_default();
    Image sheet;
    for (int i = 0; i < rows; i++) TRY(add_sample(p, i, count * i / rows));
    for (int i = 0; i < rows * COLUMNS; i++) labels[i] = p->labels[i];
    o.columns = COLUMNS;
    TRY(contact_sheet(p->cells, labels, rows * COLUMNS, &o, &sheet));
    Status s = image_write_png(path, &sheet);
    image_free(&sheet);
    return s;
}

Status augment_preview_write(const Dataset *d, const ClassList *classes, const char *path) {
    Preview *p;
    const int64_t side = settings.model.image_size;
    TRY(augment_check(&settings.augment));
    TRY(mem_alloc((void **)&p, 1, sizeof *p, "a preview"));
    p->dataset = d;
    p->classes = classes;
    p->preprocess = settings.preprocess;
    p->preprocess.image_size = side;
    Status s = mem_alloc((void **)&p->pixels, side * side, 3, "a preview");
    if (s == STATUS_OK) s = make_sheet(p, path);
    for (int i = 0; i < CELLS; i++) image_free(&p->cells[i]);
    mem_free(p->pixels);
    resize_scratch_free(&p->scratch);
    mem_free(p);
    return s;
}
