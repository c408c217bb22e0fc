#include "datasets/loader.h"

#include <errno.h>
#include <pthread.h>
#include <sched.h>
#include <signal.h>
#include <string.h>
#include <time.h>

#include "core/clock.h"
#include "core/file.h"
#include "core/log.h"
#include "core/memory.h"
#include "datasets/loader_internal.h"

enum { STALL_SECONDS = 60, JOIN_SECONDS = 5, MAX_THREADS = 256 };

static void corrupt_free(Corrupt *c) {
    while (c != NULL) {
        Corrupt *next = c->next;
        mem_free(c->reason);
        mem_free(c);
        c = next;
    }
}

/* ---- set-up ---- */

static Status slot_allocate(Slot *slot, int64_t batch, int64_t image_bytes) {
    void *block;
    TRY(mem_alloc(&block, batch, (size_t)image_bytes, "batch of images"));
    slot->pixels = block;
    TRY(mem_alloc(&block, batch, sizeof(int64_t), "batch labels"));
    slot->labels = block;
    TRY(mem_alloc(&block, batch, sizeof(int64_t), "batch sample numbers"));
    slot->samples = block;
    TRY(mem_alloc(&block, batch, 1, "batch flags"));
    slot->valid = block;
    return STATUS_OK;
}

/* Ready for the next batch. Notes of a batch that nobody took are forgotten. */
static void slot_reset(const Loader *l, Slot *slot) {
    slot->done = 0;
    slot->status = STATUS_OK;
    slot->failed_at = 0;
    memset(slot->valid, 1, (size_t)l->options.batch);
    corrupt_free(slot->corrupt);
    slot->corrupt = NULL;
}

static void slot_free(Slot *slot) {
    mem_free(slot->pixels);
    mem_free(slot->labels);
    mem_free(slot->samples);
    mem_free(slot->valid);
    corrupt_free(slot->corrupt);
}

int loader_processors(void) {
    cpu_set_t set;
    return sched_getaffinity(0, sizeof set, &set) == 0 ? CPU_COUNT(&set) : 1;
}

static Status check_options(const LoaderOptions *o) {
    if (o->batch < 1 || o->batch > 1 << 20 || o->threads < 0 || o->threads > MAX_THREADS ||
        o->prefetch < 0 || o->prefetch > 1 << 16) {
        return status_set(STATUS_USAGE,
                          "loader: batch size %lld, %d workers, %d batches ahead: batch size 1 to "
                          "1048576, up to %d workers and 65536 batches ahead are possible",
                          (long long)o->batch, o->threads, o->prefetch, MAX_THREADS);
    }
    if (o->preprocess == NULL || o->preprocess->image_size < 1) {
        return status_set(STATUS_INTERNAL, "loader: no image size");
    }
    return o->augment != NULL ? augment_check(o->augment) : STATUS_OK;
}

static Status allocate(Loader *l) {
    void *block;
    int threads = l->options.threads > 0 ? l->options.threads : loader_processors();
    TRY(mem_alloc(&block, l->count, sizeof(int64_t), "sample order"));
    l->order = block;
    TRY(mem_alloc(&block, l->slot_count, sizeof(Slot), "loader ring"));
    l->slots = block;
    for (int i = 0; i < l->slot_count; i++) {
        TRY(slot_allocate(&l->slots[i], l->options.batch, l->image_bytes));
    }
    TRY(mem_alloc(&block, threads, sizeof(Worker), "loader workers"));
    l->workers = block;
    l->options.threads = threads;
    return STATUS_OK;
}

/* Signals are for the main thread: workers are started with all of them blocked. */
static Status start_workers(Loader *l) {
    sigset_t all, before;
    int error = 0;
    sigfillset(&all);
    pthread_sigmask(SIG_BLOCK, &all, &before);
    while (error == 0 && l->worker_count < l->options.threads) {
        Worker *w = &l->workers[l->worker_count];
        w->loader = l;
        atomic_init(&w->sample, -1);
        error = pthread_create(&w->thread, NULL, worker_main, w);
        if (error == 0) l->worker_count++;
    }
    pthread_sigmask(SIG_SETMASK, &before, NULL);
    if (error == 0) return STATUS_OK;
    errno = error;
    return status_errno("cannot start loader thread %d", l->worker_count + 1);
}

static void init_locks(Loader *l) {
    pthread_condattr_t monotonic;
    pthread_condattr_init(&monotonic);
    pthread_condattr_setclock(&monotonic, CLOCK_MONOTONIC);
    pthread_mutex_init(&l->mutex, NULL);
    pthread_cond_init(&l->work, NULL);
    pthread_cond_init(&l->ready, &monotonic);
    pthread_condattr_destroy(&monotonic);
}

Status loader_open(const Dataset *d, const LoaderOptions *o, Loader **out) {
    void *block;
    *out = NULL;
    TRY(check_options(o));
    TRY(mem_alloc(&block, 1, sizeof(Loader), "loader"));
    Loader *l = block;
    l->data = d;
    l->options = *o;
    l->preprocess = *o->preprocess;
    l->options.preprocess = &l->preprocess;
    if (o->augment != NULL) {
        l->augment = *o->augment;
        l->options.augment = &l->augment;
    }
    l->count = dataset_count(d);
    l->image_bytes = o->preprocess->image_size * o->preprocess->image_size * 3;
    l->slot_count = o->prefetch > 0 ? o->prefetch : 4;
    init_locks(l);
    Status s = allocate(l);
    if (s == STATUS_OK) s = start_workers(l);
    if (s != STATUS_OK) {
        loader_close(l);
        return s;
    }
    *out = l;
    return STATUS_OK;
}

/* A thread in a read that does not return (a server that is gone) would keep the process for ever.
 */
static bool join_in_time(const Loader *l) {
    struct timespec until;
    clock_gettime(CLOCK_REALTIME, &until);
    until.tv_sec += JOIN_SECONDS;
    for (int i = 0; i < l->worker_count; i++) {
        char shown[300];
        const int64_t sample = atomic_load(&l->workers[i].sample);
        if (pthread_timedjoin_np(l->workers[i].thread, NULL, &until) == 0) continue;
        log_warn("a loader thread is left behind in %s",
                 sample < 0 ? "its work"
                            : text_printable(dataset_name(l->data, sample), shown, sizeof shown));
        return false;
    }
    return true;
}

/* Where a leak checker finds them after their threads have come back. */
static Loader *left_behind;

bool loader_close(Loader *l) {
    if (l == NULL) return true;
    const bool stopped = l->gave_up || (l->options.stopped != NULL && l->options.stopped());
    pthread_mutex_lock(&l->mutex);
    l->stop = true;
    pthread_cond_broadcast(&l->work);
    pthread_mutex_unlock(&l->mutex);
    if (stopped && !join_in_time(l)) { /* with all that the thread may still touch */
        l->left_before = left_behind;
        left_behind = l;
        return false;
    }
    for (int i = 0; i < l->worker_count; i++) {
        if (!stopped) pthread_join(l->workers[i].thread, NULL);
        sample_scratch_free(&l->workers[i].scratch);
    }
    for (int i = 0; l->slots != NULL && i < l->slot_count; i++) slot_free(&l->slots[i]);
    for (int64_t i = 0; i < l->corrupt_count; i++) corrupt_free(l->corrupt[i]);
    pthread_cond_destroy(&l->work);
    pthread_cond_destroy(&l->ready);
    pthread_mutex_destroy(&l->mutex);
    mem_free(l->corrupt);
    mem_free(l->order);
    mem_free(l->slots);
    mem_free(l->workers);
    mem_free(l);
    return true;
}

/* ---- consumer ---- */

/* Reduces the order of the epoch from `cursor` to what this rank reads; returns how many. Writes
 * never overtake reads: shard_position(i) >= i. */
static int64_t take_share(Loader *l, int64_t cursor, int64_t end) {
    const LoaderOptions *o = &l->options;
    const int64_t ranks = shard_ranks(o->shard), batch = o->batch;
    int64_t count = 0;
    if (o->drop_last) {
        for (; cursor + ranks * batch <= end; cursor += ranks * batch)
            for (int64_t i = 0; i < batch; i++)
                l->order[count++] = l->order[cursor + shard_position(o->shard, batch, i)];
        return count;
    }
    for (cursor += o->shard.rank * batch; cursor < end; cursor += ranks * batch)
        for (int64_t i = cursor; i < cursor + batch && i < end; i++)
            l->order[count++] = l->order[i];
    return count;
}

int64_t loader_batches(const Loader *l) {
    int64_t batch = l->options.batch;
    if (l->options.drop_last) batch *= shard_ranks(l->options.shard);
    return l->options.drop_last ? l->count / batch : (l->count + batch - 1) / batch;
}

Status loader_begin(Loader *l, int64_t epoch, int64_t cursor) {
    const int64_t together = l->options.batch * shard_ranks(l->options.shard);
    int64_t end = l->options.drop_last ? l->count / together * together : l->count;
    if (epoch < 0 || cursor < 0 || cursor > l->count) {
        return status_set(STATUS_USAGE, "loader: epoch %lld, sample %lld of %lld", (long long)epoch,
                          (long long)cursor, (long long)l->count);
    }
    pthread_mutex_lock(&l->mutex);
    l->end = l->next; /* nobody takes more; wait for those at work */
    while (l->busy > 0) pthread_cond_wait(&l->ready, &l->mutex);
    l->epoch = epoch;
    if (l->options.shuffle) {
        Rng rng = rng_stream(l->options.seed, RNG_SHUFFLE, (uint64_t)epoch, 0);
        rng_permutation(&rng, l->order, l->count);
    } else {
        for (int64_t i = 0; i < l->count; i++) l->order[i] = i;
    }
    for (int i = 0; i < l->slot_count; i++) slot_reset(l, &l->slots[i]);
    /* drop_last drops what is left over behind whole batches from here on. */
    if (l->options.drop_last && cursor < end) end -= (end - cursor) % together;
    if (shard_ranks(l->options.shard) > 1) {
        end = take_share(l, cursor < end ? cursor : end, end);
        cursor = 0;
    }
    l->cursor = l->next = cursor < end ? cursor : end;
    l->end = end;
    l->taken = l->given = 0;
    pthread_cond_broadcast(&l->work);
    pthread_mutex_unlock(&l->mutex);
    return STATUS_OK;
}

/* With the mutex held: names what the workers are at after a minute without a batch. */
static void report_stall(const Loader *l, double waited) {
    char shown[300];
    const char *name = "nothing";
    for (int i = 0; i < l->worker_count; i++) {
        int64_t sample = atomic_load(&l->workers[i].sample);
        if (sample >= 0) name = dataset_name(l->data, sample);
    }
    log_warn("waited %.0f s for the next batch; a worker is at %s", waited,
             text_printable(name, shown, sizeof shown));
}

/* false: a stop was asked for first. */
static bool wait_ready(Loader *l, const Slot *slot, int64_t size) {
    double start = seconds_now();
    int reports = 0;
    while (slot->done < size) {
        if (l->options.stopped != NULL && l->options.stopped()) return false;
        struct timespec until;
        clock_gettime(CLOCK_MONOTONIC, &until);
        until.tv_sec += 1;
        pthread_cond_timedwait(&l->ready, &l->mutex, &until);
        double waited = seconds_now() - start;
        if (slot->done >= size || waited < (reports + 1) * STALL_SECONDS) continue;
        report_stall(l, waited);
        reports++;
    }
    l->waited += seconds_now() - start;
    return true;
}

/* Sorted by sample; one met before is not counted again. */
static Status remember(Loader *l, Corrupt *c) {
    int64_t at = l->corrupt_count;
    while (at > 0 && l->corrupt[at - 1]->sample > c->sample) at--;
    c->next = NULL;
    if (at > 0 && l->corrupt[at - 1]->sample == c->sample) {
        corrupt_free(c);
        return STATUS_OK;
    }
    if (l->corrupt_count == l->corrupt_capacity) {
        void *block = l->corrupt;
        int64_t capacity = l->corrupt_capacity > 0 ? 2 * l->corrupt_capacity : 16;
        Status s = mem_grow(&block, capacity, sizeof(Corrupt *), "list of corrupt samples");
        if (s != STATUS_OK) {
            corrupt_free(c);
            return s;
        }
        l->corrupt = block;
        l->corrupt_capacity = capacity;
    }
    memmove(l->corrupt + at + 1, l->corrupt + at,
            (size_t)(l->corrupt_count - at) * sizeof(Corrupt *));
    l->corrupt[at] = c;
    l->corrupt_count++;
    return STATUS_OK;
}

/* Moves a slot's notes into the loader's list and looks at the limit. */
static Status take_corrupt(Loader *l, Corrupt *list) {
    Status s = STATUS_OK;
    if (list == NULL) return STATUS_OK;
    while (list != NULL && s == STATUS_OK) {
        Corrupt *c = list;
        list = c->next;
        s = remember(l, c);
    }
    corrupt_free(list);
    TRY(s);
    const int64_t own = l->count / shard_ranks(l->options.shard);
    if ((double)l->corrupt_count <= l->options.max_corrupt * (double)own) return STATUS_OK;
    char shown[300];
    const char *first = dataset_name(l->data, l->corrupt[0]->sample);
    return status_set(STATUS_DATA,
                      "%lld of %lld samples are unreadable, more than the allowed share of %g "
                      "(data.max_corrupt); the first: %s",
                      (long long)l->corrupt_count, (long long)own, l->options.max_corrupt,
                      text_printable(first, shown, sizeof shown));
}

Status loader_next(Loader *l, HostBatch *b) {
    *b = (HostBatch){0};
    pthread_mutex_lock(&l->mutex);
    if (l->given > l->taken) { /* the batch given before is the workers' again */
        slot_reset(l, &l->slots[l->taken % l->slot_count]);
        l->taken = l->given;
        pthread_cond_broadcast(&l->work);
    }
    int64_t size = loader_batch_size(l, l->given);
    if (size <= 0) {
        pthread_mutex_unlock(&l->mutex);
        return STATUS_END;
    }
    Slot *slot = &l->slots[l->given % l->slot_count];
    if (!wait_ready(l, slot, size)) {
        l->gave_up = true;
        pthread_mutex_unlock(&l->mutex);
        return status_set(STATUS_STOPPED, "stopped while waiting for data");
    }
    Corrupt *corrupt = slot->corrupt;
    slot->corrupt = NULL;
    Status failed = slot->status;
    l->given++;
    pthread_mutex_unlock(&l->mutex);
    TRY(take_corrupt(l, corrupt));
    if (failed != STATUS_OK) return status_set(failed, "%s", slot->message);
    *b = (HostBatch){slot->pixels, slot->labels, slot->samples, slot->valid, size};
    return STATUS_OK;
}

double loader_wait_seconds(Loader *l) {
    double waited = l->waited;
    l->waited = 0;
    return waited;
}

int64_t loader_corrupt_count(const Loader *l) {
    return l->corrupt_count;
}

void loader_corrupt_at(const Loader *l, int64_t i, int64_t *sample, const char **reason) {
    *sample = l->corrupt[i]->sample;
    *reason = l->corrupt[i]->reason;
}
