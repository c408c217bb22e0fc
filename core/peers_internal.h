/* Parts of core/peers.h; for core/peers*.c only. */
#ifndef TTV_CORE_PEERS_INTERNAL_H
#define TTV_CORE_PEERS_INTERNAL_H

#include <pthread.h>
#include <stdatomic.h>
#include <stdbool.h>

#include "core/peers.h"

/* ---- sockets (peers_socket.c): whole messages with a deadline ---- */

typedef enum Wire {
    WIRE_OK,
    WIRE_CLOSED,    /* the other side is gone */
    WIRE_LATE,      /* the deadline passed */
    WIRE_CANCELLED, /* *cancel became true */
} Wire;

/* Of the seconds between two looks of a loop that looks each second at least: those in which the
 * process cannot have run. */
static inline double halted_s(double seconds) {
    return seconds > 3.0 ? seconds : 0.0;
}
/* Until the first bytes are there, none of which is read, or *start + seconds, where *start moves
 * on by the time in which the process was halted. */
Wire wire_wait(int fd, double *start, double seconds, const atomic_bool *cancel);
Wire wire_send(int fd, const void *data, size_t bytes, double deadline, const atomic_bool *cancel);
Wire wire_receive(int fd, void *data, size_t bytes, double deadline, const atomic_bool *cancel);
/* Non-blocking, closed on exec, no delay. */
Status wire_prepare(int fd);
/* On this host's own address alone when `address` is that. */
Status wire_listen(const char *address, int port, int *fd);
/* One try. STATUS_PEER when nobody answers (yet). */
Status wire_connect(const char *address, int port, double deadline, int *fd);
/* A connection that came in; *fd -1 when none came before the deadline. */
Status wire_accept(int listener, double deadline, int *fd);

/* ---- the peers ---- */

typedef struct Link {
    int data, life; /* sockets; -1: none */
    double heard;   /* when the life line last spoke */
    bool left;      /* said good-bye */
    long pid;
    char host[64];
} Link;

struct Peers {
    int rank, ranks;
    double timeout_s;
    void (*lost)(void *user, const char *message);
    void *lost_user;
    Link *links; /* rank 0: one for each rank, the first unused; others: the first, to rank 0 */
    void *buffer;
    pthread_t watcher;
    bool watching;
    int wake; /* an eventfd that interrupts the watcher's wait; -1: none */

    atomic_bool any_lost, leaving, left_well;
    atomic_int waits_for;  /* the rank that rank 0 waits for, as far as is known here; -1: none */
    pthread_mutex_t mutex; /* guards what follows */
    unsigned char is_lost[PEERS_MAX], announced[PEERS_MAX];
    char reason[160]; /* of the first loss */
    double lost_since;
    double guard_until; /* 0: none */
    double guard_seconds;
    char guarded[160];
    bool (*probe)(void *user, char *message, size_t size);
    void *probe_user;
    double probe_since; /* when it failed first; 0: it did not */
    char probed[160];
};

int peers_links(const Peers *p); /* links in use: 0 to this, on rank 0 from 1 */
/* Marks a rank as lost; the watcher tells the others. */
void peers_mark_lost(Peers *p, int rank, const char *reason);
/* "rank 1 (pid 7 on host), rank 3: reason" */
void peers_describe_lost(Peers *p, char *out, size_t size);
Status watcher_start(Peers *p);
void watcher_stop(Peers *p);

#endif
