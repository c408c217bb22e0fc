/* Micro-batches on their way to the device, and the names of their samples. */
#include <inttypes.h>
#include <stdio.h>
#include <string.h>

#include "core/memory.h"
#include "nn/train_loop.h"

#define NAMES_SHOWN 8

/* ---- names of the samples, for the guard's message -------------------------------------- */

static Status reserve(NameBuffer *b, int64_t size) {
    if (b->used + size <= b->capacity) return STATUS_OK;
    int64_t capacity = 2 * (b->used + size);
    void *text = b->text;
    TRY(mem_grow(&text, capacity, 1, "sample names"));
    b->text = text;
    b->capacity = capacity;
    return STATUS_OK;
}

static Status names_add(NameBuffer *b, const char *name) {
    int64_t size = (int64_t)strlen(name) + 1;
    TRY(reserve(b, size));
    memcpy(b->text + b->used, name, (size_t)size);
    b->used += size;
    b->count++;
    return STATUS_OK;
}

Status names_append(NameBuffer *to, const NameBuffer *from) {
    if (from->used == 0) return STATUS_OK;
    TRY(reserve(to, from->used));
    memcpy(to->text + to->used, from->text, (size_t)from->used);
    to->used += from->used;
    to->count += from->count;
    return STATUS_OK;
}

void names_text(const NameBuffer *b, char *out, size_t size) {
    const char *name = b->text;
    size_t used = 0;
    out[0] = '\0';
    for (int64_t i = 0; i < b->count && i < NAMES_SHOWN && used < size; i++) {
        used += (size_t)snprintf(out + used, size - used, "%s%s", i ? ", " : " Samples: ", name);
        name += strlen(name) + 1;
    }
    if (b->count > NAMES_SHOWN && used < size)
        snprintf(out + used, size - used, " and %" PRId64 " more", b->count - NAMES_SHOWN);
}

/* Names are copied for every micro-step: a norm that is not finite shows itself after the last one.
 */
static Status names_collect(Loop *l, NameBuffer *names) {
    const TrainTask *task = l->task;
    const char *name;
    names->used = names->count = 0;
    if (!task->batch_name) return STATUS_OK;
    for (int64_t i = 0; (name = task->batch_name(task->user, i)); i++) TRY(names_add(names, name));
    return STATUS_OK;
}

/* ---- batches ---------------------------------------------------------------------------- */

static Status fetch(Loop *l, int64_t step, int64_t micro) {
    const TrainTask *task = l->task;
    l->batch.samples = 0;
    TRY(task->next(task->user, &l->batch.samples));
    TRY(names_collect(l, &l->batch.names));
    return task->push ? task->push(task->user, step, micro) : STATUS_OK;
}

Status batch_take(Loop *l, int64_t micro, int64_t *samples) {
    Batch *b = &l->batch;
    Status s = b->fetched ? b->status : fetch(l, l->state->step, micro);
    if (b->fetched && s != STATUS_OK && s != STATUS_END) status_set(s, "%s", b->message);
    b->fetched = false;
    TRY(s);
    *samples = b->samples;
    TRY(names_append(&l->names, &b->names));
    return device_commit(tape_device(l->tape));
}

void batch_ahead(Loop *l, int64_t step, int64_t micro) {
    const TrainOptions *o = l->options;
    Batch *b = &l->batch;
    bool wanted = o->fetch_ahead > 0 || (!o->fetch_ahead && device_is_async(tape_device(l->tape)));
    if (!wanted || !l->task->push || b->fetched || train_stop_requested()) return;
    b->status = fetch(l, step, micro);
    b->fetched = true;
    snprintf(b->message, sizeof b->message, "%s", status_message());
}

void batch_forget(Loop *l) {
    l->batch.fetched = false;
}
