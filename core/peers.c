/* What ranks tell each other, over rank 0. */
#include "core/peers.h"

#include <math.h>
#include <stdio.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include "core/clock.h"
#include "core/log.h"
#include "core/memory.h"
#include "core/peers_internal.h"

enum { CHUNK = 1 << 16 }; /* floats of a sum that travel at once; the buffer's size */

int peers_rank(const Peers *p) {
    return p ? p->rank : 0;
}

int peers_count(const Peers *p) {
    return p ? p->ranks : 1;
}

double peers_timeout(const Peers *p) {
    return p ? p->timeout_s : 0;
}

static bool alone(const Peers *p) {
    return !p || p->ranks < 2;
}

/* ---- leaving ---- */

static void leave(Peers *p) {
    watcher_stop(p);
    for (int i = 0; p->links && i < p->ranks; i++) {
        if (p->links[i].data >= 0) close(p->links[i].data);
        if (p->links[i].life >= 0) close(p->links[i].life);
    }
    if (p->wake >= 0) close(p->wake);
    pthread_mutex_destroy(&p->mutex);
    mem_free(p->buffer);
    mem_free(p->links);
    mem_free(p);
}

void peers_leave(Peers *p, bool well) {
    if (!p) return;
    atomic_store(&p->left_well, well);
    leave(p);
}

/* ---- what went wrong ---- */

/* Rank 0 closed the line, perhaps because it lost someone: then it says so on the life line. */
static void wait_for_news(Peers *p) {
    const struct timespec pause = {0, 10000000};
    for (int i = 0; i < 100 && !atomic_load(&p->any_lost); i++) (void)nanosleep(&pause, NULL);
}

static Status failed(Peers *p, int rank, Wire w) {
    char text[512], reason[64] = "its process ended";
    if (w == WIRE_LATE)
        snprintf(reason, sizeof reason, "it did not come within %g s", p->timeout_s);
    if (w == WIRE_CLOSED && p->rank != 0) wait_for_news(p);
    if (!atomic_load(&p->any_lost)) peers_mark_lost(p, rank, reason);
    peers_describe_lost(p, text, sizeof text);
    return status_set(STATUS_PEER, "lost %s", text);
}

static Status send_to(Peers *p, int rank, const void *data, size_t bytes) {
    const Wire w =
        wire_send(p->links[rank].data, data, bytes, seconds_now() + p->timeout_s, &p->any_lost);
    return w == WIRE_OK ? STATUS_OK : failed(p, rank, w);
}

/* A wait so long, or half of what is allowed, is told. */
static const double patience_s = 60;

static void tell_wait(const Peers *p, int rank, double seconds) {
    const Link *link = &p->links[rank];
    if (p->rank == 0)
        log_warn("rank %d (pid %ld on %s) has not come for %.0f s: the others wait, up to %g s",
                 rank, link->pid, link->host, seconds, p->timeout_s);
}

/* Rank 0 waits for the others up to timeout_s in all. They wait for rank 0 so long as it waits for
 * another one: it will say which one is lost. */
static Wire await(Peers *p, int rank, double *start) {
    const double patience = fmin(patience_s, p->timeout_s / 2);
    const int fd = p->links[rank].data;
    if (p->rank == 0) atomic_store(&p->waits_for, rank);
    Wire w = wire_wait(fd, start, patience, &p->any_lost);
    if (w == WIRE_LATE) {
        tell_wait(p, rank, patience);
        w = wire_wait(fd, start, p->timeout_s, &p->any_lost);
    }
    const int other = atomic_load(&p->waits_for);
    if (w == WIRE_LATE && p->rank != 0 && other >= 0 && other != p->rank)
        w = wire_wait(fd, start, 2 * p->timeout_s + 5, &p->any_lost);
    if (p->rank == 0) atomic_store(&p->waits_for, -1);
    return w;
}

/* start: when the first of several was waited for. */
static Status receive_from(Peers *p, int rank, void *data, size_t bytes, double *start) {
    Wire w = await(p, rank, start);
    if (w == WIRE_OK)
        w = wire_receive(p->links[rank].data, data, bytes, seconds_now() + p->timeout_s,
                         &p->any_lost);
    return w == WIRE_OK ? STATUS_OK : failed(p, rank, w);
}

/* ---- the conversation ---- */

Status peers_collect(Peers *p, const void *mine, void *all, size_t bytes) {
    if (peers_rank(p) != 0) return send_to(p, 0, mine, bytes);
    memcpy(all, mine, bytes);
    double start = seconds_now();
    for (int i = 1; !alone(p) && i < p->ranks; i++)
        TRY(receive_from(p, i, (char *)all + (size_t)i * bytes, bytes, &start));
    return STATUS_OK;
}

Status peers_broadcast(Peers *p, void *data, size_t bytes) {
    if (alone(p)) return STATUS_OK;
    double start = seconds_now();
    if (p->rank != 0) return receive_from(p, 0, data, bytes, &start);
    for (int i = 1; i < p->ranks; i++) TRY(send_to(p, i, data, bytes));
    return STATUS_OK;
}

Status peers_gather(Peers *p, const void *mine, void *all, size_t bytes) {
    TRY(peers_collect(p, mine, all, bytes));
    return peers_broadcast(p, all, bytes * (size_t)peers_count(p));
}

typedef struct Report {
    int32_t status;
    char message[1020];
} Report;

/* The first rank that failed; ranks: none. */
static int first_failure(const Report *all, int ranks) {
    int i = 0;
    while (i < ranks && all[i].status == STATUS_OK) i++;
    return i;
}

Status peers_agree(Peers *p, Status mine) {
    Report own = {.status = (int32_t)mine};
    if (alone(p)) return mine;
    if (mine != STATUS_OK) snprintf(own.message, sizeof own.message, "%s", status_message());
    void *block;
    TRY(mem_alloc(&block, p->ranks, sizeof own, "reports of ranks"));
    Report *all = block;
    Status s = peers_gather(p, &own, all, sizeof own);
    if (s == STATUS_OK && mine != STATUS_OK) {
        s = status_set(mine, "%s", own.message);
    } else if (s == STATUS_OK) {
        const int rank = first_failure(all, p->ranks);
        if (rank < p->ranks) {
            all[rank].message[sizeof all[rank].message - 1] = '\0';
            s = status_set((Status)all[rank].status, "rank %d: %s", rank, all[rank].message);
        }
    }
    mem_free(block);
    return s;
}

static Status sum_chunk(Peers *p, float *data, size_t count) {
    const float *other = p->buffer;
    double start = seconds_now();
    if (p->rank != 0) {
        TRY(send_to(p, 0, data, count * sizeof(float)));
        return receive_from(p, 0, data, count * sizeof(float), &start);
    }
    for (int rank = 1; rank < p->ranks; rank++) {
        TRY(receive_from(p, rank, p->buffer, count * sizeof(float), &start));
        for (size_t i = 0; i < count; i++) data[i] += other[i];
    }
    return peers_broadcast(p, data, count * sizeof(float));
}

Status peers_sum_f32(Peers *p, float *data, int64_t count) {
    for (int64_t at = 0; !alone(p) && at < count; at += CHUNK) {
        const int64_t some = count - at < CHUNK ? count - at : CHUNK;
        TRY(sum_chunk(p, data + at, (size_t)some));
    }
    return STATUS_OK;
}
