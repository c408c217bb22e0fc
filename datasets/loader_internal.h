/* The loader's parts: one sample, the workers, the shared state. Private to datasets/.
 *
 * Workers take sample positions in order, a few at a time, and fill a ring of batch slots; the
 * consumer takes slots in order. Which worker does what is left to chance; what is in a slot is
 * not. One mutex guards all shared numbers: it is taken twice for those few samples, some thousand
 * times a second at most. */
#ifndef TTV_DATASETS_LOADER_INTERNAL_H
#define TTV_DATASETS_LOADER_INTERNAL_H

#include <pthread.h>
#include <stdatomic.h>

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

/* ---- loader_worker.c ---- */

/* A sample that could not be used; lists hang on slots until the consumer takes them. */
typedef struct Corrupt {
    int64_t sample;
    char *reason;
    struct Corrupt *next;
} Corrupt;

typedef struct Slot {
    uint8_t *pixels, *valid;
    int64_t *labels, *samples;
    int64_t done; /* samples finished; the slot is ready when it equals the batch's size */
    Corrupt *corrupt;
    /* The first failure by position, so that the same one is told whatever the threads did. */
    Status status;
    int64_t failed_at;
    char message[512];
} Slot;

typedef struct Worker {
    Loader *loader;
    pthread_t thread;
    SampleScratch scratch;
    _Atomic int64_t sample; /* in work; -1: none */
} Worker;

struct Loader {
    const Dataset *data;
    LoaderOptions options; /* what it points to lies below */
    Preprocess preprocess;
    Augment augment;
    int64_t count, image_bytes;
    int64_t *order; /* of this epoch */

    pthread_mutex_t mutex;
    pthread_cond_t work;  /* a slot became free, an epoch began, or stop */
    pthread_cond_t ready; /* a slot was finished, or a worker came to rest */
    bool stop;
    int64_t epoch;
    int64_t cursor, end; /* positions of the epoch; batches are counted from cursor */
    int64_t next;        /* position to be taken by a worker */
    int64_t taken;       /* batches that the consumer is done with */
    int busy;            /* workers inside a sample */

    Slot *slots;
    int slot_count;
    Worker *workers;
    int worker_count; /* threads that run */

    /* The consumer's own. */
    int64_t given; /* batches handed out since begin */
    bool gave_up;  /* on a batch: a stop was asked for */
    struct Loader *left_before;
    double waited;
    Corrupt **corrupt; /* sorted by sample */
    int64_t corrupt_count, corrupt_capacity;
};

/* Images of the batch; 0 or less behind the last one. With the mutex held. */
int64_t loader_batch_size(const Loader *l, int64_t batch);
/* Body of a worker's thread; the argument is its Worker. */
void *worker_main(void *argument);

#endif
