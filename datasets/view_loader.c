#include "datasets/view_loader.h"

#include <pthread.h>
#include <string.h>
#include <time.h>

#include "core/clock.h"
#include "core/log.h"
#include "core/memory.h"
#include "datasets/loader.h"
#include "datasets/view_cache.h"

enum {
    MAX_ATTEMPTS = 16,
    FAILURES_KEPT = 100,
    MAX_WORKERS = 256,
    MESSAGE = 1024,
    STALL_SECONDS = 60,
    JOIN_SECONDS = 5
};

/* One batch in the making. */
typedef struct Slot {
    uint8_t *pixels;
    ViewCamera *cameras;
    ViewSample *samples;
    uint8_t *valid;
    int64_t left; /* samples still to come */
} Slot;

typedef struct Failure {
    int64_t sample;
    char *message;
} Failure;

struct ViewLoader {
    const SceneSet *set;
    ViewLoaderOptions o;
    ViewCache *cache;
    Slot *slots;
    pthread_t threads[MAX_WORKERS];
    int thread_count;
    pthread_mutex_t lock, choosing;
    pthread_cond_t room, ready;
    int64_t taken;    /* samples handed to workers */
    int64_t consumed; /* batches the consumer is done with */
    int64_t current;  /* batch in the consumer's hands; -1: none */
    bool stop;
    bool gave_up; /* the consumer, on a batch */
    ViewLoader *left_before;
    Failure failures[FAILURES_KEPT];
    int64_t failure_count;
    Status status; /* what ended it */
    char message[MESSAGE];
};

Status view_choose_sampler(void *user, int64_t n, int attempt, ViewSample *out) {
    return view_sampler_draw(user, n, attempt, out);
}

Status view_choose_list(void *user, int64_t n, int attempt, ViewSample *out) {
    if (attempt > 0) return STATUS_END;
    *out = ((const ViewSample *)user)[n];
    return STATUS_OK;
}

/* ---- one sample ---- */

static Status load_view(ViewLoader *l, const ViewSample *s, int v, ViewScratch *scratch,
                        uint8_t *pixels, ViewCamera *camera, int64_t size[2]) {
    ViewOptions o = l->o.view;
    if (s->crop != 0) o.crop_x = o.crop_y = 0.5 + s->crop / 4.0;
    if (view_cache_get(l->cache, s->scene, s->frames[v], s->crop, pixels, camera, size))
        return STATUS_OK;
    TRY(view_load(l->set, s->scene, s->frames[v], &o, scratch, pixels, camera, size));
    view_cache_put(l->cache, s->scene, s->frames[v], s->crop, pixels, camera, size);
    return STATUS_OK;
}

static Status load_sample(ViewLoader *l, const ViewSample *s, ViewScratch *scratch, uint8_t *pixels,
                          ViewCamera *cameras) {
    int64_t first[2] = {0, 0}, size[2], bytes = l->o.view.width * l->o.view.height * 3;
    if (s->inputs + s->targets != l->o.views)
        return status_set(STATUS_DATA, "scene %s: %d views in a sample, %d are expected",
                          scene_set_at(l->set, s->scene)->name, s->inputs + s->targets, l->o.views);
    for (int v = 0; v < l->o.views; v++) {
        TRY(load_view(l, s, v, scratch, pixels + v * bytes, &cameras[v], size));
        if (v == 0) memcpy(first, size, sizeof first);
        TRY(view_same_size(l->set, s, v, first, size));
        if (s->tint[0] > 0)
            view_tint(pixels + v * bytes, l->o.view.width * l->o.view.height, s->tint);
        if (s->mirror)
            view_mirror(pixels + v * bytes, &cameras[v], l->o.view.width, l->o.view.height);
    }
    return STATUS_OK;
}

/* Keeps the failures of the lowest sample numbers, in their order: a report that does not depend on
 * the threads. */
static void keep_failure(ViewLoader *l, int64_t n) {
    char *message = NULL;
    mem_string(&message, status_message()); /* without memory: counted all the same */
    pthread_mutex_lock(&l->lock);
    int64_t kept = l->failure_count < FAILURES_KEPT ? l->failure_count : FAILURES_KEPT, at = kept;
    while (at > 0 && l->failures[at - 1].sample > n) at--;
    l->failure_count++;
    if (at < FAILURES_KEPT) {
        if (kept == FAILURES_KEPT) mem_free(l->failures[--kept].message);
        memmove(&l->failures[at + 1], &l->failures[at], (size_t)(kept - at) * sizeof(Failure));
        l->failures[at] = (Failure){n, message};
        message = NULL;
    }
    pthread_mutex_unlock(&l->lock);
    mem_free(message);
}

/* Nobody wants more; who draws samples may be gone. */
static bool is_stopped(ViewLoader *l) {
    pthread_mutex_lock(&l->lock);
    const bool stop = l->stop;
    pthread_mutex_unlock(&l->lock);
    return stop;
}

/* Loads sample n, or a stand-in; *valid: neither could be had when false. */
static Status fill(ViewLoader *l, int64_t n, ViewSample *sample, ViewScratch *scratch,
                   uint8_t *pixels, ViewCamera *cameras, uint8_t *valid) {
    *valid = 0;
    for (int attempt = 0; attempt < MAX_ATTEMPTS; attempt++) {
        if (attempt > 0) {
            ViewSample next;
            if (is_stopped(l)) return STATUS_OK;
            pthread_mutex_lock(&l->choosing);
            Status s = l->o.choose(l->o.user, n, attempt, &next);
            pthread_mutex_unlock(&l->choosing);
            if (s == STATUS_END) return STATUS_OK;
            TRY(s);
            *sample = next;
        }
        Status s = load_sample(l, sample, scratch, pixels, cameras);
        *valid = s == STATUS_OK;
        if (s != STATUS_DATA && s != STATUS_IO) return s;
        if (l->o.fail_on_corrupt) return status_context(s, "sample %lld", (long long)n);
        log_warn("sample %lld: %s", (long long)n, status_message());
        keep_failure(l, n);
        memset(pixels, 0, (size_t)(l->o.views * l->o.view.width * l->o.view.height * 3));
    }
    return status_context(STATUS_DATA, "no stand-in for sample %lld after %d attempts",
                          (long long)n, MAX_ATTEMPTS);
}

/* ---- threads ---- */

static int64_t batch_size_at(const ViewLoader *l, int64_t batch) {
    if (l->o.count == 0) return l->o.batch;
    int64_t left = l->o.count - batch * l->o.batch;
    return left < l->o.batch ? left : l->o.batch;
}

/* Takes the next sample once its batch has room; false at the end. Chosen under the lock, so that
 * `choose` sees the numbers in order. */
static bool take(ViewLoader *l, int64_t *position, Status *status) {
    pthread_mutex_lock(&l->lock);
    while (!l->stop && (l->o.count == 0 || l->taken < l->o.count) &&
           l->taken / l->o.batch >= l->consumed + l->o.prefetch)
        pthread_cond_wait(&l->room, &l->lock);
    bool go = !l->stop && (l->o.count == 0 || l->taken < l->o.count);
    if (go) {
        *position = l->taken++;
        int64_t batch = *position / l->o.batch, i = *position % l->o.batch;
        Slot *slot = &l->slots[batch % l->o.prefetch];
        if (i == 0) slot->left = batch_size_at(l, batch);
        pthread_mutex_lock(&l->choosing);
        *status = l->o.choose(l->o.user, l->o.first + *position, 0, &slot->samples[i]);
        pthread_mutex_unlock(&l->choosing);
    }
    pthread_mutex_unlock(&l->lock);
    return go;
}

static void finish(ViewLoader *l, int64_t position, Status status) {
    pthread_mutex_lock(&l->lock);
    l->slots[position / l->o.batch % l->o.prefetch].left--;
    if (status != STATUS_OK && l->status == STATUS_OK) {
        l->status = status == STATUS_END ? STATUS_INTERNAL : status;
        memcpy(l->message, status_message(), strnlen(status_message(), MESSAGE - 1) + 1);
        l->stop = true;
        pthread_cond_broadcast(&l->room);
    }
    pthread_cond_broadcast(&l->ready);
    pthread_mutex_unlock(&l->lock);
}

static void *work(void *user) {
    ViewLoader *l = user;
    ViewScratch scratch = {0};
    int64_t position = 0, sample_bytes = l->o.views * l->o.view.width * l->o.view.height * 3;
    Status s = STATUS_OK;
    while (take(l, &position, &s)) {
        Slot *slot = &l->slots[position / l->o.batch % l->o.prefetch];
        int64_t i = position % l->o.batch;
        if (s == STATUS_OK)
            s = fill(l, l->o.first + position, &slot->samples[i], &scratch,
                     slot->pixels + i * sample_bytes, slot->cameras + i * l->o.views,
                     &slot->valid[i]);
        finish(l, position, s);
    }
    view_scratch_free(&scratch);
    return NULL;
}

/* ---- opening and closing ---- */

static Status new_slot(const ViewLoader *l, Slot *slot) {
    void *block;
    const ViewLoaderOptions *o = &l->o;
    int64_t bytes = o->views * o->view.width * o->view.height * 3;
    TRY(mem_alloc(&block, o->batch * bytes, 1, "batch of views"));
    slot->pixels = block;
    TRY(mem_alloc(&block, o->batch * o->views, sizeof(ViewCamera), "cameras of a batch"));
    slot->cameras = block;
    TRY(mem_alloc(&block, o->batch, sizeof(ViewSample), "samples of a batch"));
    slot->samples = block;
    TRY(mem_alloc(&block, o->batch, 1, "samples of a batch"));
    slot->valid = block;
    return STATUS_OK;
}

static Status start(ViewLoader *l) {
    void *block;
    TRY(view_cache_open(l->set, &l->o.view, l->o.cache_bytes, &l->cache));
    TRY(mem_alloc(&block, l->o.prefetch, sizeof(Slot), "batches of views"));
    l->slots = block;
    for (int i = 0; i < l->o.prefetch; i++) TRY(new_slot(l, &l->slots[i]));
    int wanted = l->o.threads > 0 ? l->o.threads : loader_processors();
    if (wanted > MAX_WORKERS) wanted = MAX_WORKERS;
    while (l->thread_count < wanted) {
        int error = pthread_create(&l->threads[l->thread_count], NULL, work, l);
        if (error != 0 && l->thread_count == 0)
            return status_set(STATUS_IO, "cannot start a loader thread: %s", strerror(error));
        if (error != 0) break; /* fewer threads: slower, but done */
        l->thread_count++;
    }
    return STATUS_OK;
}

Status view_loader_open(const SceneSet *set, const ViewLoaderOptions *o, ViewLoader **out) {
    void *block;
    *out = NULL;
    if (o->batch < 1 || o->views < 1 || o->views > VIEW_MAX || o->view.width < 1 ||
        o->view.height < 1 || o->first < 0 || o->count < 0)
        return status_set(STATUS_USAGE, "view loader: batch %lld, %d views of %lldx%lld",
                          (long long)o->batch, o->views, (long long)o->view.width,
                          (long long)o->view.height);
    TRY(mem_alloc(&block, 1, sizeof(ViewLoader), "view loader"));
    ViewLoader *l = block;
    l->set = set;
    l->o = *o;
    l->current = -1;
    if (l->o.prefetch <= 0) l->o.prefetch = 3;
    pthread_mutex_init(&l->lock, NULL);
    pthread_mutex_init(&l->choosing, NULL);
    pthread_cond_init(&l->room, NULL);
    pthread_condattr_t monotonic;
    pthread_condattr_init(&monotonic);
    pthread_condattr_setclock(&monotonic, CLOCK_MONOTONIC);
    pthread_cond_init(&l->ready, &monotonic);
    pthread_condattr_destroy(&monotonic);
    Status s = start(l);
    if (s != STATUS_OK) {
        view_loader_close(l);
        return s;
    }
    *out = l;
    return STATUS_OK;
}

/* After a stop a thread may hang in a read: it is left behind. */
static bool join_all(const ViewLoader *l) {
    const bool stopped = l->gave_up || (l->o.stopped && l->o.stopped());
    struct timespec until;
    clock_gettime(CLOCK_REALTIME, &until);
    until.tv_sec += JOIN_SECONDS;
    for (int i = 0; i < l->thread_count; i++) {
        if (!stopped) {
            pthread_join(l->threads[i], NULL);
        } else if (pthread_timedjoin_np(l->threads[i], NULL, &until) != 0) {
            log_warn("a loader thread is left behind in its work");
            return false;
        }
    }
    return true;
}

/* Where a leak checker finds them after their threads have come back. */
static ViewLoader *left_behind;

bool view_loader_close(ViewLoader *l) {
    if (l == NULL) return true;
    pthread_mutex_lock(&l->lock);
    l->stop = true;
    pthread_cond_broadcast(&l->room);
    pthread_mutex_unlock(&l->lock);
    if (!join_all(l)) { /* with all that the thread may still touch */
        l->left_before = left_behind;
        left_behind = l;
        return false;
    }
    for (int i = 0; l->slots != NULL && i < l->o.prefetch; i++) {
        mem_free(l->slots[i].pixels);
        mem_free(l->slots[i].cameras);
        mem_free(l->slots[i].samples);
        mem_free(l->slots[i].valid);
    }
    for (int64_t i = 0; i < l->failure_count && i < FAILURES_KEPT; i++)
        mem_free(l->failures[i].message);
    mem_free(l->slots);
    view_cache_close(l->cache);
    pthread_cond_destroy(&l->ready);
    pthread_cond_destroy(&l->room);
    pthread_mutex_destroy(&l->choosing);
    pthread_mutex_destroy(&l->lock);
    mem_free(l);
    return true;
}

/* ---- the consumer ---- */

/* With the lock held: after a minute without a batch. */
static void report_stall(const ViewLoader *l, const Slot *slot, bool begun, double waited) {
    const ViewSample *first = &slot->samples[0];
    log_warn("waited %.0f s for the next batch of views; its first scene is %s", waited,
             begun ? scene_set_at(l->set, first->scene)->name : "not chosen yet");
}

/* Until samples first to first + size - 1 are there, or something ended the loader; false: a stop
 * was asked for first. */
static bool wait_ready(ViewLoader *l, const Slot *slot, int64_t first, int64_t size) {
    const double start = seconds_now();
    int reports = 0;
    while (l->status == STATUS_OK && (l->taken < first + size || slot->left > 0)) {
        struct timespec until;
        if (l->o.stopped && l->o.stopped()) return false;
        clock_gettime(CLOCK_MONOTONIC, &until);
        until.tv_sec += 1;
        pthread_cond_timedwait(&l->ready, &l->lock, &until);
        const double waited = seconds_now() - start;
        if (waited < (reports + 1) * STALL_SECONDS) continue;
        report_stall(l, slot, l->taken > first, waited);
        reports++;
    }
    return true;
}

Status view_loader_next(ViewLoader *l, ViewBatch *b) {
    int64_t batch = l->current + 1;
    *b = (ViewBatch){0};
    if (l->o.count > 0 && batch * l->o.batch >= l->o.count) return STATUS_END;
    Slot *slot = &l->slots[batch % l->o.prefetch];
    int64_t size = batch_size_at(l, batch);
    pthread_mutex_lock(&l->lock);
    l->consumed = batch; /* all before it may be overwritten */
    l->current = batch;
    pthread_cond_broadcast(&l->room);
    const bool stopped = !wait_ready(l, slot, batch * l->o.batch, size);
    Status s = l->status;
    l->gave_up |= stopped;
    pthread_mutex_unlock(&l->lock);
    if (s != STATUS_OK) return status_set(s, "%s", l->message);
    if (stopped) return status_set(STATUS_STOPPED, "stopped while waiting for data");
    *b = (ViewBatch){
        slot->pixels, slot->cameras, slot->samples, slot->valid, l->o.first + batch * l->o.batch,
        size};
    return STATUS_OK;
}

int64_t view_loader_failures(ViewLoader *l) {
    pthread_mutex_lock(&l->lock);
    int64_t count = l->failure_count;
    pthread_mutex_unlock(&l->lock);
    return count;
}

const char *view_loader_failure(ViewLoader *l, int64_t i, int64_t *sample) {
    const char *message = "";
    pthread_mutex_lock(&l->lock);
    if (i >= 0 && i < l->failure_count && i < FAILURES_KEPT) {
        *sample = l->failures[i].sample;
        if (l->failures[i].message != NULL) message = l->failures[i].message;
    }
    pthread_mutex_unlock(&l->lock);
    return message;
}
