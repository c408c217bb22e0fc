/* The pictures of a split that a model is most wrong about, as a sheet to look at. */
#ifndef TTV_TOOLS_WORST_H
#define TTV_TOOLS_WORST_H

#include "datasets/folder.h"
#include "datasets/loader.h"
#include "datasets/transform.h"

enum { WORST_SHOWN = 48 };

/* Those with the largest loss so far, the largest first; equal ones in the order of samples. */
typedef struct Worst {
    struct {
        int64_t sample, label, prediction;
        double loss, probability; /* of the prediction */
    } items[WORST_SHOWN];
    int count;
} Worst;

/* Takes the wrong ones of a batch; logits [count, classes]. */
void worst_add(Worst *w, const HostBatch *b, const float *logits, int64_t classes);

/* PNG: each picture as the model saw it, below it its class, what it was taken for, and how surely.
 * STATUS_DATA when a picture cannot be read any more. Nothing is written when none was wrong. */
Status worst_write_png(const Worst *w, const Dataset *d, const ClassList *names,
                       const Preprocess *p, const char *path);

#endif
