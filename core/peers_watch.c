/* The life lines: a thread that tells the others that this process lives, and hears when one does
 * not. On a line: 'b' each second, or, from rank 0, 'w' and the number (two bytes) of the rank that
 * it waits for; 'L' and a rank's number when rank 0 knows of a loss; 'q' at the end of a run that
 * went well, or of a rank that goes because rank 0 told it of a loss: it is none itself.
 */
#include <errno.h>
#include <math.h>
#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#include "core/clock.h"
#include "core/memory.h"
#include "core/peers_internal.h"

static const double beat_s = 1.0; /* or more often, where patience is short */
/* From a loss to the end of a process that does not leave; less where patience is short. */
static const double grace_s = 5.0;

int peers_links(const Peers *p) {
    return p->rank == 0 ? p->ranks : p->ranks > 1 ? 1 : 0;
}

static int first_link(const Peers *p) {
    return p->rank == 0 ? 1 : 0;
}

static void wake(Peers *p) {
    const uint64_t one = 1;
    if (p->wake >= 0 && write(p->wake, &one, sizeof one) < 0) return; /* it is awake already */
}

/* ---- losses ---- */

void peers_mark_lost(Peers *p, int rank, const char *reason) {
    pthread_mutex_lock(&p->mutex);
    if (p->lost_since == 0) {
        p->lost_since = seconds_now();
        snprintf(p->reason, sizeof p->reason, "%s", reason);
    }
    p->is_lost[rank] = 1;
    atomic_store(&p->any_lost, true);
    pthread_mutex_unlock(&p->mutex);
    wake(p);
}

void peers_describe_lost(Peers *p, char *out, size_t size) {
    size_t used = 0;
    out[0] = '\0';
    pthread_mutex_lock(&p->mutex);
    for (int i = 0; i < p->ranks && used < size; i++) {
        if (!p->is_lost[i]) continue;
        used += (size_t)snprintf(out + used, size - used, "%srank %d", used ? ", " : "", i);
        const Link *link = p->rank == 0 && i > 0 ? &p->links[i] : NULL;
        if (link && used < size)
            used += (size_t)snprintf(out + used, size - used, " (pid %ld on %s)", link->pid,
                                     link->host);
    }
    if (used < size) snprintf(out + used, size - used, ": %s", p->reason);
    pthread_mutex_unlock(&p->mutex);
}

/* ---- the lines ---- */

/* A line that takes nothing more is dead or slow; its silence tells. */
static void say(const Link *link, const void *data, size_t bytes) {
    if (link->life >= 0 && send(link->life, data, bytes, MSG_NOSIGNAL) < 0) return;
}

static void say_all(Peers *p, const void *data, size_t bytes) {
    for (int i = first_link(p); i < peers_links(p); i++) say(&p->links[i], data, bytes);
}

/* Rank 0 tells all about losses that it has not told yet. */
static void announce(Peers *p) {
    if (p->rank != 0 || !atomic_load(&p->any_lost)) return;
    for (int i = 0; i < p->ranks; i++) {
        pthread_mutex_lock(&p->mutex);
        const bool news = p->is_lost[i] && !p->announced[i];
        p->announced[i] = p->is_lost[i];
        pthread_mutex_unlock(&p->mutex);
        const unsigned char message[3] = {'L', (unsigned char)(i >> 8), (unsigned char)i};
        if (news) say_all(p, message, sizeof message);
    }
}

static void close_line(Peers *p, int i, const char *reason) {
    Link *link = &p->links[i];
    close(link->life);
    link->life = -1;
    /* Rank 0 goes when it has told of a loss: that is none of its own. */
    if (!link->left && !(p->rank != 0 && atomic_load(&p->any_lost))) peers_mark_lost(p, i, reason);
}

/* Reads what a line has. */
static void hear(Peers *p, int i) {
    Link *link = &p->links[i];
    unsigned char byte[64];
    const ssize_t n = recv(link->life, byte, sizeof byte, MSG_PEEK);
    if (n < 0 && (errno == EAGAIN || errno == EWOULDBLOCK || errno == EINTR)) return;
    if (n <= 0) {
        close_line(p, i, "its process ended");
        return;
    }
    ssize_t used = 0;
    while (used < n) {
        const bool long_one = byte[used] == 'L' || byte[used] == 'w';
        if (long_one && n - used < 3) break; /* the rest is on its way */
        if (byte[used] == 'q') link->left = true;
        if (p->rank != 0 && (byte[used] == 'b' || byte[used] == 'w'))
            atomic_store(&p->waits_for,
                         byte[used] == 'b' ? -1 : byte[used + 1] << 8 | byte[used + 2]);
        if (byte[used] == 'L') {
            const int rank = byte[used + 1] << 8 | byte[used + 2];
            if (rank < p->ranks) peers_mark_lost(p, rank, "rank 0 lost it");
        }
        used += long_one ? 3 : 1;
    }
    if (used > 0 && recv(link->life, byte, (size_t)used, 0) < 0) return;
    link->heard = seconds_now();
}

static void listen_for(Peers *p, struct pollfd *fds, double seconds) {
    int n = 0;
    fds[n++] = (struct pollfd){.fd = p->wake, .events = POLLIN};
    for (int i = first_link(p); i < peers_links(p); i++)
        fds[n++] = (struct pollfd){.fd = p->links[i].life, .events = POLLIN};
    if (poll(fds, (nfds_t)n, seconds > 0 ? (int)(1e3 * seconds) + 1 : 0) <= 0) return;
    uint64_t count;
    if (fds[0].revents && read(p->wake, &count, sizeof count) < 0) return;
    for (int i = 1; i < n; i++)
        if (fds[i].revents) hear(p, i - 1 + first_link(p));
}

static void look_for_silence(Peers *p, double now) {
    char reason[96];
    snprintf(reason, sizeof reason, "silent for %g s", p->timeout_s);
    for (int i = first_link(p); i < peers_links(p); i++) {
        const Link *link = &p->links[i];
        if (link->life >= 0 && !link->left && now - link->heard > p->timeout_s)
            close_line(p, i, reason);
    }
}

/* Whether this process has to end now: what for. */
static bool overdue(Peers *p, double now, char *message, size_t size) {
    const double grace = fmin(grace_s, p->timeout_s);
    pthread_mutex_lock(&p->mutex);
    const bool late = p->guard_until > 0 && now > p->guard_until;
    const bool lost = p->lost_since > 0 && now - p->lost_since > grace;
    /* Who is lost says more, and shows itself by then. */
    const bool broken = p->probe_since > 0 && now - p->probe_since > grace;
    if (broken) snprintf(message, size, "%s", p->probed);
    if (late) snprintf(message, size, "%s did not end within %g s", p->guarded, p->guard_seconds);
    pthread_mutex_unlock(&p->mutex);
    if (lost && size > 5) {
        memcpy(message, "lost ", 5);
        peers_describe_lost(p, message + 5, size - 5);
    }
    return late || lost || broken;
}

/* This process was halted: so much longer may the others be silent, and others' work take. */
static void forgive(Peers *p, double seconds) {
    const double halted = halted_s(seconds);
    if (halted <= 0) return;
    for (int i = first_link(p); i < peers_links(p); i++) p->links[i].heard += halted;
    pthread_mutex_lock(&p->mutex);
    if (p->guard_until > 0) p->guard_until += halted;
    pthread_mutex_unlock(&p->mutex);
}

static void say_beat(Peers *p) {
    const int rank = p->rank == 0 ? atomic_load(&p->waits_for) : -1;
    const unsigned char message[3] = {'w', (unsigned char)(rank >> 8), (unsigned char)rank};
    if (rank < 0)
        say_all(p, "b", 1);
    else
        say_all(p, message, sizeof message);
}

static void ask_probe(Peers *p, double now) {
    pthread_mutex_lock(&p->mutex);
    if (p->probe && p->probe_since == 0 && p->probe(p->probe_user, p->probed, sizeof p->probed))
        p->probe_since = now;
    pthread_mutex_unlock(&p->mutex);
}

static bool is_told_of_loss(Peers *p) {
    if (p->rank == 0 || !atomic_load(&p->any_lost)) return false;
    pthread_mutex_lock(&p->mutex);
    const bool told = !p->is_lost[0];
    pthread_mutex_unlock(&p->mutex);
    return told;
}

static void *watch(void *argument) {
    Peers *p = argument;
    const double beat = p->timeout_s < 4 * beat_s ? p->timeout_s / 4 : beat_s;
    double next = 0, before = seconds_now();
    void *block = NULL;
    char message[512];
    if (mem_alloc(&block, p->ranks + 1, sizeof(struct pollfd), "life lines") != STATUS_OK)
        return NULL;
    while (!atomic_load(&p->leaving)) {
        const double now = seconds_now();
        forgive(p, now - before);
        before = now;
        if (now >= next) {
            say_beat(p);
            ask_probe(p, now);
            next = now + beat;
        }
        look_for_silence(p, now);
        announce(p);
        if (overdue(p, now, message, sizeof message)) {
            if (p->lost) p->lost(p->lost_user, message);
            break;
        }
        listen_for(p, block, next - now);
    }
    announce(p);
    if (atomic_load(&p->left_well) || is_told_of_loss(p)) say_all(p, "q", 1);
    mem_free(block);
    return NULL;
}

/* Signals are for the main thread. */
Status watcher_start(Peers *p) {
    sigset_t all, before;
    sigfillset(&all);
    pthread_sigmask(SIG_BLOCK, &all, &before);
    const int error = pthread_create(&p->watcher, NULL, watch, p);
    pthread_sigmask(SIG_SETMASK, &before, NULL);
    p->watching = error == 0;
    errno = error;
    return error == 0 ? STATUS_OK : status_errno("a thread that watches the ranks");
}

void watcher_stop(Peers *p) {
    if (!p->watching) return;
    atomic_store(&p->leaving, true);
    wake(p);
    pthread_join(p->watcher, NULL);
    p->watching = false;
}

/* ---- guards ---- */

void peers_guard(Peers *p, const char *what, double seconds) {
    if (!p || p->ranks < 2) return;
    pthread_mutex_lock(&p->mutex);
    p->guard_until = seconds_now() + seconds;
    p->guard_seconds = seconds;
    snprintf(p->guarded, sizeof p->guarded, "%s", what);
    pthread_mutex_unlock(&p->mutex);
}

void peers_unguard(Peers *p) {
    if (!p || p->ranks < 2) return;
    pthread_mutex_lock(&p->mutex);
    p->guard_until = 0;
    pthread_mutex_unlock(&p->mutex);
}

void peers_probe(Peers *p, bool (*failed)(void *user, char *message, size_t size), void *user) {
    if (!p || p->ranks < 2) return;
    pthread_mutex_lock(&p->mutex);
    p->probe = failed;
    p->probe_user = user;
    pthread_mutex_unlock(&p->mutex);
}
