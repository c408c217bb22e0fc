/* The data of a training run: both splits, opened and compared before anything else happens. */
#ifndef TTV_TOOLS_TRAIN_DATA_H
#define TTV_TOOLS_TRAIN_DATA_H

#include "datasets/loader.h"
#include "tools/sections.h"

typedef struct TrainData {
    ClassList classes;
    Dataset *train, *val; /* val NULL: no validation */
    Loader *train_loader, *val_loader;
    Augment augment; /* the loader's part: without a policy the device flips (datasets/mix.h) */
} TrainData;

/* Opens the train split (which defines the classes) and, unless val_split is "" or "none", the
 * validation split. settings.train.fraction is applied. */
Status train_data_open(TrainData *d);
/* Loaders; the preprocessing knows the image size by now. */
Status train_data_load(TrainData *d, const Preprocess *preprocess);
void train_data_close(TrainData *d);

/* A scoring loader over all samples: no shuffle, no augmentation, nothing dropped. With several
 * ranks batches of `batch` go round (loader.h). */
Status eval_loader_open(const Dataset *d, const Preprocess *preprocess, int64_t batch,
                        Loader **out);

/* Names what a loader could not decode: how many, and the first few with their reasons. */
void report_corrupt(const char *what, const Dataset *d, const Loader *l);

#endif
