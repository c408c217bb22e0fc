/* Reassessed labels ("ReaL", Beyer et al., arXiv 2006.07159): for each picture of ImageNet's
 * validation split the set of classes that people found in it. A prediction is right when it is one
 * of them; pictures with none are left out.
 */
#ifndef TTV_TOOLS_REAL_LABELS_H
#define TTV_TOOLS_REAL_LABELS_H

#include "datasets/folder.h"
#include "datasets/loader.h"

typedef struct RealLabels {
    int64_t images;
    int64_t *first; /* [images + 1]: where the labels of an image begin */
    int64_t *labels;
    int64_t scored, right; /* so far */
} RealLabels;

/* A JSON array of arrays of class indices, one for each image in the order of the numbers in their
 * names (ILSVRC2012_val_00000001 is the first). STATUS_DATA names what is wrong with it, also an
 * index that is not below `classes`. */
Status real_labels_open(RealLabels *r, const char *path, int64_t classes);
void real_labels_free(RealLabels *r);

/* STATUS_DATA names a picture that has no number, or one that the file lacks. */
Status real_labels_fit(const RealLabels *r, const Dataset *d);

/* Scores the valid samples of a batch of such a data set; logits [count, classes]. */
void real_labels_add(RealLabels *r, const Dataset *d, const HostBatch *b, const float *logits,
                     int64_t classes);

#endif
