#include "tools/parallel.h"

#include <pthread.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdio.h>
#include <time.h>
#include <unistd.h>

enum { MAX_THREADS = 256, WATCH_NANOSECONDS = 200000000 };

typedef struct Pool {
    int64_t count;
    ParallelWork work;
    void *user;
    atomic_llong next, done;
    atomic_bool failed;
    pthread_mutex_t lock;
    pthread_cond_t finished;
    int running; /* threads that have not returned yet */
    int64_t failed_index;
    Status status;
    char message[1024];
} Pool;

static void record_failure(Pool *p, int64_t i, Status s) {
    pthread_mutex_lock(&p->lock);
    if (p->status == STATUS_OK || i < p->failed_index) {
        p->status = s;
        p->failed_index = i;
        snprintf(p->message, sizeof p->message, "%s", status_message());
    }
    pthread_mutex_unlock(&p->lock);
    atomic_store(&p->failed, true);
}

static void work_off(Pool *p) {
    while (!atomic_load(&p->failed)) {
        int64_t i = atomic_fetch_add(&p->next, 1);
        if (i >= p->count) return;
        Status s = p->work(p->user, i);
        if (s != STATUS_OK) record_failure(p, i, s);
        atomic_fetch_add(&p->done, 1);
    }
}

static void *thread_main(void *pool) {
    Pool *p = pool;
    work_off(p);
    pthread_mutex_lock(&p->lock);
    p->running--;
    pthread_cond_signal(&p->finished);
    pthread_mutex_unlock(&p->lock);
    return NULL;
}

/* Waits for the threads and lets the caller look at the clock meanwhile. */
static void wait_watching(Pool *p, ParallelWatch watch) {
    pthread_mutex_lock(&p->lock);
    while (p->running > 0) {
        struct timespec until;
        clock_gettime(CLOCK_REALTIME, &until);
        until.tv_nsec += WATCH_NANOSECONDS;
        until.tv_sec += until.tv_nsec / 1000000000;
        until.tv_nsec %= 1000000000;
        pthread_cond_timedwait(&p->finished, &p->lock, &until);
        if (!watch) continue;
        pthread_mutex_unlock(&p->lock);
        watch(p->user, atomic_load(&p->done));
        pthread_mutex_lock(&p->lock);
    }
    pthread_mutex_unlock(&p->lock);
}

static int thread_count(int64_t count, int threads) {
    if (threads <= 0) threads = (int)sysconf(_SC_NPROCESSORS_ONLN);
    if (threads > MAX_THREADS) threads = MAX_THREADS;
    if (threads > count) threads = (int)count;
    return threads;
}

static void run_threads(Pool *p, int threads, ParallelWatch watch) {
    pthread_t handles[MAX_THREADS];
    int started = 0;
    p->running = threads;
    while (started < threads && pthread_create(&handles[started], NULL, thread_main, p) == 0)
        started++;
    pthread_mutex_lock(&p->lock);
    p->running -= threads - started;
    pthread_mutex_unlock(&p->lock);
    if (started == 0) work_off(p); /* the system gives no thread: slower, but done */
    wait_watching(p, watch);
    for (int t = 0; t < started; t++) pthread_join(handles[t], NULL);
}

Status parallel_for(int64_t count, int threads, ParallelWork work, ParallelWatch watch,
                    void *user) {
    Pool p = {.count = count,
              .work = work,
              .user = user,
              .lock = PTHREAD_MUTEX_INITIALIZER,
              .finished = PTHREAD_COND_INITIALIZER};
    threads = thread_count(count, threads);
    if (threads <= 1 && !watch)
        work_off(&p);
    else
        run_threads(&p, threads, watch);
    pthread_cond_destroy(&p.finished);
    pthread_mutex_destroy(&p.lock);
    return p.status == STATUS_OK ? STATUS_OK : status_set(p.status, "%s", p.message);
}
