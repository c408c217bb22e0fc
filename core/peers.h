/* Processes that do one thing together, each a "rank", joined by TCP.
 *
 * Rank 0 is the hub: every other rank has two connections to it, one for what is said below, one on
 * which a thread of its own tells each second that the process lives. A rank whose process ended,
 * or that was silent for `timeout_s` (not counting time in which this process was halted itself),
 * is lost: all ranks hear which one it was, calls that wait return STATUS_PEER, and when a rank
 * does not leave within a few seconds after that (because it waits for a card, say), `lost` is
 * called on the thread.
 *
 * peers_* below are called by all ranks in the same order, from one thread each. Numbers are added
 * in the order of the ranks, so that results have the same bits on all of them and in every run.
 * Machines must agree in byte order. There is no encryption: the run's number keeps strangers of
 * the same network out by accident only.
 */
#ifndef TTV_CORE_PEERS_H
#define TTV_CORE_PEERS_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "core/status.h"

enum { PEERS_MAX = 1024 };

typedef struct PeersOptions {
    int rank, ranks;
    const char *address; /* host name or number of rank 0 */
    int port;            /* that rank 0 listens at */
    int listener;        /* rank 0: a socket that listens already, taken over; -1: none */
    uint64_t run;        /* the same on all ranks of a run, another in every other one */
    const char *build;   /* must be equal on all ranks */
    double join_timeout_s, timeout_s;
    /* Somebody was lost and this process did not leave: on the thread, which then ends. */
    void (*lost)(void *user, const char *message);
    void *lost_user;
} PeersOptions;

typedef struct Peers Peers;

/* Waits for all ranks. STATUS_PEER: not all came in time (the message lists them); STATUS_USAGE: a
 * rank that is another one's, or a rank of another number of ranks or another build. */
Status peers_join(const PeersOptions *o, Peers **out);
/* NULL: nothing. well: the run ended as it should; without it the others take this rank for lost.
 */
void peers_leave(Peers *p, bool well);
int peers_rank(const Peers *p);  /* NULL: 0 */
int peers_count(const Peers *p); /* NULL: 1 */

/* `bytes` of every rank, in their order, to all: all[ranks][bytes]. */
Status peers_gather(Peers *p, const void *mine, void *all, size_t bytes);
/* The same to rank 0 alone; `all` may be NULL elsewhere. */
Status peers_collect(Peers *p, const void *mine, void *all, size_t bytes);
/* Rank 0's bytes to all. */
Status peers_broadcast(Peers *p, void *data, size_t bytes);
/* Sums over the ranks, in place, on all of them. */
Status peers_sum_f32(Peers *p, float *data, int64_t count);

/* Whether it went well on all ranks: OK, else this rank's own failure, else that of the first rank
 * that has one, with "rank N: " before its message. STATUS_END and STATUS_STOPPED count as
 * failures.
 */
Status peers_agree(Peers *p, Status mine);

/* Between the two calls the process waits for something else that depends on the others (a card):
 * `lost` is called when it takes longer than `seconds`; `what` says what was waited for. */
void peers_guard(Peers *p, const char *what, double seconds);
void peers_unguard(Peers *p);
double peers_timeout(const Peers *p);

/* Asked each second on the thread that watches: whether something that joins the ranks in another
 * way (NCCL) has failed, and how. Then, unless a rank turns out to be lost, `lost` is called. It
 * must not wait. NULL: nobody is asked, and nobody is being asked when this returns. */
void peers_probe(Peers *p, bool (*failed)(void *user, char *message, size_t size), void *user);

#endif
