/* Threads that load samples of views ahead of the consumer.
 *
 * Which sample is number n is asked of `choose`, in the order of n, under a lock; contents of a
 * batch depend on that answer only, never on the threads. A sample that cannot be loaded is
 * replaced by choose(n, attempt + 1); when that says STATUS_END, its place is zero and invalid.
 * Failures are counted and named. Decoded views can be kept in memory: a small set is decoded once.
 */
#ifndef TTV_DATASETS_VIEW_LOADER_H
#define TTV_DATASETS_VIEW_LOADER_H

#include "datasets/view_sample.h"

typedef struct ViewLoaderOptions {
    ViewOptions view;
    int64_t batch;
    int views;            /* of every sample */
    int threads;          /* 0: number of processors */
    int prefetch;         /* batches ahead; 0: 3 */
    int64_t cache_bytes;  /* decoded views to keep; 0: none */
    int64_t first, count; /* samples to serve: first .. first+count-1; count 0: without end */
    Status (*choose)(void *user, int64_t n, int attempt, ViewSample *out);
    void *user;
    bool (*stopped)(void); /* as of LoaderOptions */
    bool fail_on_corrupt;  /* a sample that cannot be loaded ends it with its status */
} ViewLoaderOptions;

/* choose() of a training run: user is a ViewSampler. */
Status view_choose_sampler(void *user, int64_t n, int attempt, ViewSample *out);

/* choose() of an evaluation: user is an array of ViewSample. */
Status view_choose_list(void *user, int64_t n, int attempt, ViewSample *out);

typedef struct ViewBatch {
    const uint8_t *pixels;     /* [count, views, height, width, 3]; valid until the next call */
    const ViewCamera *cameras; /* [count, views] */
    const ViewSample *samples;
    const uint8_t *valid; /* 0: could not be loaded, must not be scored */
    int64_t first, count; /* number of the first sample */
} ViewBatch;

typedef struct ViewLoader ViewLoader;
Status view_loader_open(const SceneSet *set, const ViewLoaderOptions *o, ViewLoader **out);
/* As loader_close: false, and the set has to stay open. */
bool view_loader_close(ViewLoader *l);
/* STATUS_END after the last. Waits as loader_next does, with the same report and STATUS_STOPPED.
 * Out of memory, or a training sample without a stand-in, ends it. */
Status view_loader_next(ViewLoader *l, ViewBatch *b);

/* Samples that could not be loaded so far, by number; message i of those kept (the first 100). */
int64_t view_loader_failures(ViewLoader *l);
const char *view_loader_failure(ViewLoader *l, int64_t i, int64_t *sample);

#endif
