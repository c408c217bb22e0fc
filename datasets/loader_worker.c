#include <stdio.h>
#include <string.h>

#include "core/memory.h"
#include "datasets/loader_internal.h"

enum { STAND_IN_TRIES = 10 };

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

/* With the mutex held on entry and exit. */
static void work_one(Worker *w) {
    Loader *l = w->loader;
    int64_t position = l->next++;
    int64_t batch = (position - l->cursor) / l->options.batch;
    int64_t place = (position - l->cursor) % l->options.batch;
    Slot *slot = &l->slots[batch % l->slot_count];
    w->sample = l->order[position];
    l->busy++;
    pthread_mutex_unlock(&l->mutex);
    Status s = fill_place(w, slot, place, w->sample);
    pthread_mutex_lock(&l->mutex);
    l->busy--;
    w->sample = -1;
    if (s != STATUS_OK && (slot->status == STATUS_OK || place < slot->failed_at)) {
        slot->status = s;
        slot->failed_at = place;
        snprintf(slot->message, sizeof slot->message, "%s", status_message());
    }
    if (++slot->done == loader_batch_size(l, batch) || l->busy == 0) pthread_cond_signal(&l->ready);
}

void *worker_main(void *argument) {
    Worker *w = argument;
    Loader *l = w->loader;
    pthread_mutex_lock(&l->mutex);
    while (!l->stop) {
        if (may_take(l)) {
            work_one(w);
        } else {
            pthread_cond_wait(&l->work, &l->mutex);
        }
    }
    pthread_mutex_unlock(&l->mutex);
    return NULL;
}
