#include <stdio.h>
#include <string.h>

#include "core/memory.h"
#include "datasets/loader_internal.h"

enum { STAND_IN_TRIES = 10, MAX_AT_ONCE = 16 };

int64_t loader_batch_size(const Loader *l, int64_t batch) {
    int64_t left = l->end - l->cursor - batch * l->options.batch;
    return left < l->options.batch ? left : l->options.batch;
}

/* Notes the sample and the thread's message. */
static Status slot_note(Loader *l, Slot *slot, int64_t sample) {
    void *block;
    TRY(mem_alloc(&block, 1, sizeof(Corrupt), "note of a corrupt sample"));
    Corrupt *c = block;
    c->sample = sample;
    Status s = mem_string(&c->reason, status_message());
    if (s != STATUS_OK) {
        mem_free(c);
        return s;
    }
    pthread_mutex_lock(&l->mutex);
    c->next = slot->corrupt;
    slot->corrupt = c;
    pthread_mutex_unlock(&l->mutex);
    return STATUS_OK;
}

/* Training goes on with another sample, drawn for this one; *sample becomes it. */
static Status load_stand_in(Worker *w, Slot *slot, int64_t *sample, uint8_t *dst) {
    Loader *l = w->loader;
    const LoaderOptions *o = &l->options;
    int64_t original = *sample;
    Rng rng = rng_stream(o->seed, RNG_REPLACE, (uint64_t)l->epoch, (uint64_t)original);
    for (int i = 0; i < STAND_IN_TRIES; i++) {
        *sample = (int64_t)rng_below(&rng, (uint64_t)l->count);
        if (*sample == original) continue;
        Status s = sample_load(l->data, o, l->epoch, *sample, &w->scratch, dst);
        if (!sample_is_corrupt(s)) return s;
        TRY(slot_note(l, slot, *sample));
    }
    *sample = original;
    return status_set(STATUS_DATA, "%s: unreadable, and so were %d samples drawn in its place",
                      dataset_name(l->data, original), STAND_IN_TRIES);
}

static Status fill_place(Worker *w, Slot *slot, int64_t place, int64_t sample) {
    Loader *l = w->loader;
    const LoaderOptions *o = &l->options;
    uint8_t *dst = slot->pixels + place * l->image_bytes;
    Status s = sample_load(l->data, o, l->epoch, sample, &w->scratch, dst);
    if (sample_is_corrupt(s) && !o->fail_on_corrupt) {
        s = slot_note(l, slot, sample);
        if (s == STATUS_OK && o->augment != NULL) {
            s = load_stand_in(w, slot, &sample, dst);
        } else {
            memset(dst, 0, (size_t)l->image_bytes);
            slot->valid[place] = 0;
        }
    }
    slot->samples[place] = sample;
    slot->labels[place] = dataset_label(l->data, sample);
    return s;
}

static bool may_take(const Loader *l) {
    if (l->next >= l->end) return false;
    int64_t batch = (l->next - l->cursor) / l->options.batch;
    return batch < l->taken + l->slot_count;
}

/* Samples that a worker takes at a time: enough that small pictures do not wait for the mutex, few
 * enough that all workers end a batch together. */
static int64_t samples_at_once(const Loader *l) {
    const int64_t share = l->options.batch / (4 * (int64_t)l->options.threads);
    return share < 1 ? 1 : share > MAX_AT_ONCE ? MAX_AT_ONCE : share;
}

/* The first failure of a worker's samples. */
typedef struct Failure {
    Status status;
    int64_t place;
    char message[512];
} Failure;

static void fill_places(Worker *w, Slot *slot, int64_t place, int64_t position, int64_t count,
                        Failure *failure) {
    Loader *l = w->loader;
    for (int64_t i = 0; i < count; i++) {
        const int64_t sample = l->order[position + i];
        atomic_store(&w->sample, sample);
        const Status s = fill_place(w, slot, place + i, sample);
        if (s == STATUS_OK || failure->status != STATUS_OK) continue;
        failure->status = s;
        failure->place = place + i;
        snprintf(failure->message, sizeof failure->message, "%s", status_message());
    }
    atomic_store(&w->sample, -1);
}

/* With the mutex held on entry and exit. */
static void work_some(Worker *w) {
    Loader *l = w->loader;
    Failure failure = {.status = STATUS_OK};
    const int64_t position = l->next, batch = (position - l->cursor) / l->options.batch;
    const int64_t place = (position - l->cursor) % l->options.batch;
    const int64_t left = loader_batch_size(l, batch) - place, some = samples_at_once(l);
    const int64_t count = left < some ? left : some;
    Slot *slot = &l->slots[batch % l->slot_count];
    l->next += count;
    l->busy++;
    pthread_mutex_unlock(&l->mutex);
    fill_places(w, slot, place, position, count, &failure);
    pthread_mutex_lock(&l->mutex);
    l->busy--;
    if (failure.status != STATUS_OK &&
        (slot->status == STATUS_OK || failure.place < slot->failed_at)) {
        slot->status = failure.status;
        slot->failed_at = failure.place;
        memcpy(slot->message, failure.message, sizeof slot->message);
    }
    slot->done += count;
    if (slot->done == loader_batch_size(l, batch) || l->busy == 0) pthread_cond_signal(&l->ready);
}

void *worker_main(void *argument) {
    Worker *w = argument;
    Loader *l = w->loader;
    pthread_mutex_lock(&l->mutex);
    while (!l->stop) {
        if (may_take(l)) {
            work_some(w);
        } else {
            pthread_cond_wait(&l->work, &l->mutex);
        }
    }
    pthread_mutex_unlock(&l->mutex);
    return NULL;
}
