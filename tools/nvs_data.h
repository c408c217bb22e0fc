/* The scenes of a training run: what is drawn from, and what a validation renders. */
#ifndef TTV_TOOLS_NVS_DATA_H
#define TTV_TOOLS_NVS_DATA_H

#include "datasets/view_loader.h"
#include "tools/nvs_model.h"

enum { NVS_PREFETCH = 3 }; /* batches ahead */

typedef struct NvsData {
    ViewRecipe recipe;
    ViewOptions view;
    SceneSet *train, *val; /* val NULL: no validation */
    ViewSampler *sampler;
    ViewLoader *loader;
    int64_t first, batch; /* of the loader: number of its first sample; this rank's batch */
    EvalIndex index;      /* for val: given, or generated of the run's seed */
    int64_t val_count;    /* scenes that a validation renders */
    int64_t val_views;    /* most views of one of them, inputs and targets */
} NvsData;

/* Opens both splits of [scenes]; views are height x width. */
Status nvs_data_open(NvsData *d, int64_t height, int64_t width);
/* (Re)starts the loader at sample `first`, to serve `count` samples: of several ranks each gets the
 * ranks' share of every batch of both, in the order of the ranks. */
Status nvs_data_begin(NvsData *d, int64_t first, int64_t count);
void nvs_data_close(NvsData *d);
/* Threads that load scenes and make tokens. */
int nvs_data_threads(void);

/* Says on stderr what is used, what is left out, and what could not be decoded. */
void nvs_data_print(const NvsData *d);
void nvs_data_print_failures(const NvsData *d);

#endif
