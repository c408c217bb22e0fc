/* Animated PNG: 8-bit RGB frames of one size, plain PNG viewers show the first. Written completely
 * or not at all. */
#ifndef TTV_DATASETS_APNG_H
#define TTV_DATASETS_APNG_H

#include "datasets/image.h"

typedef struct ApngWriter ApngWriter;

typedef struct ApngOptions {
    int64_t width, height;
    int64_t frames; /* how many will follow: the file says so before the first */
    double fps;     /* above 0, at most 1000 */
    int loops;      /* 0: for ever */
} ApngOptions;

Status apng_open(const char *path, const ApngOptions *o, ApngWriter **out);
/* STATUS_DATA for another size or more frames than announced. */
Status apng_frame(ApngWriter *w, const Image *frame);
/* STATUS_DATA when frames are missing. Frees w in every case. */
Status apng_commit(ApngWriter *w);
void apng_abort(ApngWriter *w); /* NULL is allowed */

#endif
