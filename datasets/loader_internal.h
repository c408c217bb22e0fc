/* One sample from file to pixels, apart from threads and batches. Private to datasets/. */
#ifndef TTV_DATASETS_LOADER_INTERNAL_H
#define TTV_DATASETS_LOADER_INTERNAL_H

#include "datasets/loader.h"

/* Work memory of one thread. */
typedef struct SampleScratch {
    ImageScratch image;
    ResizeScratch resize;
} SampleScratch;
void sample_scratch_free(SampleScratch *s);

/* Sample `index` of the data set, decoded, augmented for `epoch` or preprocessed, into dst[S,S,3].
 * The result depends on (options.seed, epoch, index) only. */
Status sample_load(const Dataset *d, const LoaderOptions *o, int64_t epoch, int64_t index,
                   SampleScratch *scratch, uint8_t *dst);

/* Whether a failed sample_load is the file's fault (then policy decides) rather than ours. */
bool sample_is_corrupt(Status s);

#endif
