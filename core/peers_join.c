/* How ranks find each other. A rank that connects says who it is and of which run; rank 0 answers
 * whether it takes it. Each comes twice: for the conversation and for the life line.
 */
#include <math.h>
#include <stdio.h>
#include <string.h>
#include <sys/eventfd.h>
#include <time.h>
#include <unistd.h>

#include "core/clock.h"
#include "core/log.h"
#include "core/memory.h"
#include "core/peers_internal.h"

#define MAGIC "ttvrank1"

enum { DATA_LINE, LIFE_LINE, LINES };

static const double greeting_s = 5.0; /* a stranger who says nothing holds the others up so long */

static const double patience_s = 5.0; /* that rank 0 has before it says what it waits for; others
                                          have twice as much, to be silent when it is just late */

typedef struct Hello {
    char magic[8];
    uint32_t line, rank, ranks, unused;
    uint64_t run;
    int64_t pid;
    char build[64], host[64];
} Hello;

typedef struct Answer {
    char magic[8];
    uint32_t taken, unused;
    char reason[240];
} Answer;

static void copy_text(char *out, size_t size, const char *text) {
    const size_t length = strnlen(text, size - 1);
    memcpy(out, text, length);
    memset(out + length, 0, size - length);
}

static Hello hello_of(const PeersOptions *o, uint32_t line) {
    Hello h = {.line = line, .rank = (uint32_t)o->rank, .ranks = (uint32_t)o->ranks};
    memcpy(h.magic, MAGIC, sizeof h.magic);
    h.run = o->run;
    h.pid = getpid();
    copy_text(h.build, sizeof h.build, o->build ? o->build : "");
    (void)gethostname(h.host, sizeof h.host - 1);
    return h;
}

static void pause_s(double seconds) {
    const struct timespec t = {(time_t)seconds, (long)(1e9 * (seconds - (double)(time_t)seconds))};
    (void)nanosleep(&t, NULL);
}

/* ---- rank 0 ---- */

/* A rank that is none of this run; the run itself cannot be right then. */
static Status refusal(const PeersOptions *o, const Hello *h) {
    const Hello own = hello_of(o, DATA_LINE);
    if (h->ranks != own.ranks)
        return status_set(STATUS_USAGE,
                          "rank %u on %s was started as one of %u ranks, rank 0 as one of %d",
                          (unsigned)h->rank, h->host, (unsigned)h->ranks, o->ranks);
    if (memcmp(h->build, own.build, sizeof own.build) != 0)
        return status_set(STATUS_USAGE, "rank %u on %s is build %s, rank 0 is build %s",
                          (unsigned)h->rank, h->host, h->build, own.build);
    if (h->rank == 0 || h->rank >= own.ranks || h->line >= LINES)
        return status_set(STATUS_USAGE, "a process on %s calls itself rank %u of %u", h->host,
                          (unsigned)h->rank, (unsigned)h->ranks);
    return STATUS_OK;
}

static Status answer(int fd, Status taken) {
    Answer a = {.taken = taken == STATUS_OK};
    memcpy(a.magic, MAGIC, sizeof a.magic);
    if (taken != STATUS_OK) copy_text(a.reason, sizeof a.reason, status_message());
    (void)wire_send(fd, &a, sizeof a, seconds_now() + greeting_s, NULL);
    return taken;
}

/* Takes the connection in, or closes it. An error ends the run. */
static Status greet(Peers *p, const PeersOptions *o, int fd, int *joined) {
    Hello h;
    const Wire w = wire_receive(fd, &h, sizeof h, seconds_now() + greeting_s, NULL);
    if (w != WIRE_OK || memcmp(h.magic, MAGIC, sizeof h.magic) != 0 || h.run != o->run) {
        log_warn("a process that does not belong to this run asked to join it");
        close(fd);
        return STATUS_OK;
    }
    h.build[sizeof h.build - 1] = h.host[sizeof h.host - 1] = '\0';
    Status s = refusal(o, &h);
    Link *link = s == STATUS_OK ? &p->links[h.rank] : NULL;
    int *line = !link ? NULL : h.line == DATA_LINE ? &link->data : &link->life;
    if (line && *line >= 0)
        s = status_set(STATUS_USAGE,
                       "two processes call themselves rank %u: pid %ld on %s and pid "
                       "%lld on %s",
                       (unsigned)h.rank, link->pid, link->host, (long long)h.pid, h.host);
    if (answer(fd, s) != STATUS_OK) {
        close(fd);
        return s;
    }
    *line = fd;
    link->pid = (long)h.pid;
    memcpy(link->host, h.host, sizeof link->host);
    link->heard = seconds_now();
    (*joined)++;
    return STATUS_OK;
}

static void list_missing(const Peers *p, char *list, size_t size) {
    size_t used = 0;
    list[0] = '\0';
    for (int i = 1; i < p->ranks && used < size; i++) {
        if (p->links[i].data >= 0 && p->links[i].life >= 0) continue;
        used += (size_t)snprintf(list + used, size - used, "%s%d", used ? ", " : "", i);
    }
}

static Status missing(const Peers *p, double seconds) {
    char list[256];
    list_missing(p, list, sizeof list);
    return status_set(STATUS_PEER, "after %g s these of %d ranks had not come: %s", seconds,
                      p->ranks, list);
}

static void tell_patience(const Peers *p, const PeersOptions *o) {
    char list[256];
    list_missing(p, list, sizeof list);
    log_info("rank 0 of %d waits up to %g s for these, at %s port %d: %s", p->ranks,
             o->join_timeout_s, o->address, o->port, list);
}

static Status gather_ranks(Peers *p, const PeersOptions *o) {
    const double start = seconds_now(), deadline = start + o->join_timeout_s;
    bool told = false;
    int listener = o->listener, joined = 0;
    if (listener < 0)
        TRY(wire_listen(o->address, o->port, &listener));
    else
        TRY(wire_prepare(listener));
    Status s = STATUS_OK;
    while (s == STATUS_OK && joined < LINES * (p->ranks - 1)) {
        int fd;
        s = wire_accept(listener, told ? deadline : fmin(deadline, start + patience_s), &fd);
        if (s == STATUS_OK && fd < 0 && !told && seconds_now() > start + patience_s) {
            tell_patience(p, o);
            told = true;
        }
        if (s == STATUS_OK && fd >= 0) s = greet(p, o, fd, &joined);
        if (s == STATUS_OK && seconds_now() > deadline) s = missing(p, o->join_timeout_s);
    }
    close(listener);
    return s;
}

/* ---- the others ---- */

static Status introduce(int fd, const PeersOptions *o, uint32_t line, double deadline) {
    const Hello h = hello_of(o, line);
    Answer a;
    Wire w = wire_send(fd, &h, sizeof h, deadline, NULL);
    if (w == WIRE_OK) w = wire_receive(fd, &a, sizeof a, deadline, NULL);
    if (w != WIRE_OK || memcmp(a.magic, MAGIC, sizeof a.magic) != 0)
        return status_set(STATUS_PEER, "%s port %d: %s", o->address, o->port,
                          w == WIRE_LATE ? "no answer" : "closed the connection");
    a.reason[sizeof a.reason - 1] = '\0';
    return a.taken ? STATUS_OK : status_set(STATUS_USAGE, "rank 0 refuses: %s", a.reason);
}

/* Rank 0 may start later than this one: tries again until the deadline. */
static Status join_line(const PeersOptions *o, uint32_t line, double deadline, int *out) {
    const double start = seconds_now();
    bool told = false;
    Status s;
    do {
        s = wire_connect(o->address, o->port, deadline, out);
        if (s == STATUS_OK) s = introduce(*out, o, line, deadline);
        if (s == STATUS_OK) return s;
        if (*out >= 0) close(*out);
        *out = -1;
        if (s == STATUS_PEER && !told && seconds_now() - start > 2 * patience_s) {
            log_warn("rank 0 does not answer yet (%s); this rank waits up to %g s for it",
                     status_message(), o->join_timeout_s);
            told = true;
        }
        if (s == STATUS_PEER) pause_s(0.1);
    } while (s == STATUS_PEER && seconds_now() < deadline);
    return status_context(s, "rank %d did not reach rank 0 within %g s", o->rank,
                          o->join_timeout_s);
}

static Status join_hub(Peers *p, const PeersOptions *o) {
    const double deadline = seconds_now() + o->join_timeout_s;
    Link *link = &p->links[0];
    TRY(join_line(o, DATA_LINE, deadline, &link->data));
    TRY(join_line(o, LIFE_LINE, deadline, &link->life));
    copy_text(link->host, sizeof link->host, o->address);
    link->heard = seconds_now();
    return STATUS_OK;
}

/* ---- joining ---- */

static Status check(const PeersOptions *o) {
    if (o->ranks < 1 || o->ranks > PEERS_MAX || o->rank < 0 || o->rank >= o->ranks)
        return status_set(STATUS_USAGE,
                          "rank %d of %d ranks: 1 to %d ranks are possible, counted "
                          "from 0",
                          o->rank, o->ranks, PEERS_MAX);
    return STATUS_OK;
}

static Status allocate(Peers *p) {
    void *block;
    TRY(mem_alloc(&block, p->ranks, sizeof(Link), "connections of ranks"));
    p->links = block;
    for (int i = 0; i < p->ranks; i++) p->links[i].data = p->links[i].life = -1;
    TRY(mem_alloc(&p->buffer, 1 << 18, 1, "sums of ranks"));
    p->wake = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
    return p->wake >= 0 ? STATUS_OK : status_errno("an event");
}

Status peers_join(const PeersOptions *o, Peers **out) {
    void *block;
    *out = NULL;
    TRY(check(o));
    TRY(mem_alloc(&block, 1, sizeof(Peers), "ranks"));
    Peers *p = block;
    p->rank = o->rank;
    p->ranks = o->ranks;
    p->timeout_s = o->timeout_s;
    p->lost = o->lost;
    p->lost_user = o->lost_user;
    p->wake = -1;
    atomic_store(&p->waits_for, -1);
    pthread_mutex_init(&p->mutex, NULL);
    Status s = allocate(p);
    if (s == STATUS_OK && p->ranks > 1) s = p->rank == 0 ? gather_ranks(p, o) : join_hub(p, o);
    if (s == STATUS_OK) s = watcher_start(p);
    if (s != STATUS_OK) {
        peers_leave(p, false);
        return s;
    }
    *out = p;
    return STATUS_OK;
}
