/* The loader: threads that turn samples into batches of 8-bit images, ahead of the consumer.
 *
 * Batch contents depend on (seed, epoch, cursor) only: never on the number of threads. A corrupt
 * sample is, by policy, replaced in training (by a deterministic other sample) and left out in
 * evaluation (valid = 0), counted and named; or it ends the pass with STATUS_DATA.
 */
#ifndef TTV_DATASETS_LOADER_H
#define TTV_DATASETS_LOADER_H

#include "core/shard.h"
#include "datasets/folder.h"
#include "datasets/transform.h"

typedef struct LoaderOptions {
    const Preprocess *preprocess; /* must outlive the loader */
    const Augment *augment;       /* NULL: evaluation transform */
    int64_t batch;                /* of this rank */
    /* Several ranks read the same data. drop_last: each batch of ranks * batch samples is divided
     * (core/shard.h), cursors count the samples of all ranks. Otherwise whole batches of `batch`
     * go round: batch k to rank k modulo ranks, so that every sample is in one of them, and in the
     * same company whatever the number of ranks. */
    Shard shard;
    int threads;  /* 0: number of processors */
    int prefetch; /* batches ahead; 0: 4 */
    uint64_t seed;
    bool shuffle;
    bool drop_last;
    bool fail_on_corrupt;
    double max_corrupt;
    ImageOptions image;
    bool (*stopped)(void); /* asked while waiting: true ends the wait; NULL: nobody */
} LoaderOptions;

typedef struct HostBatch {
    const uint8_t *pixels; /* [count, S, S, 3], valid until the next loader_next */
    const int64_t *labels;
    const int64_t *samples; /* data set indices */
    const uint8_t *valid;   /* 0: corrupt, pixels are zero, must not be scored */
    int64_t count;
} HostBatch;

typedef struct Loader Loader;

/* Processors that this process may use. */
int loader_processors(void);

Status loader_open(const Dataset *d, const LoaderOptions *o, Loader **out);
/* false: a thread hangs in a read after a stop and is left behind. It still reads `d`, which then
 * has to stay open until the process ends. */
bool loader_close(Loader *l);
/* Begins an epoch at sample `cursor` (a multiple of the batch unless at the end). */
Status loader_begin(Loader *l, int64_t epoch, int64_t cursor);
/* STATUS_END after the last batch. Waits; a wait of 60 s is reported through the log with the file
 * in work. STATUS_STOPPED, within a second, where options.stopped says so before the batch is
 * there: the loader can then only be closed. */
Status loader_next(Loader *l, HostBatch *b);
int64_t loader_batches(const Loader *l); /* per epoch; of all ranks where whole batches go round */
double loader_wait_seconds(Loader *l);   /* waited inside loader_next since the last call of this */

/* Corrupt samples met so far: i-th data set index and reason; count. */
int64_t loader_corrupt_count(const Loader *l);
void loader_corrupt_at(const Loader *l, int64_t i, int64_t *sample, const char **reason);

#endif
