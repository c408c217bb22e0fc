/* TCP with deadlines. A message is whole or an error: recv and send may be short. */
#include <errno.h>
#include <fcntl.h>
#include <math.h>
#include <netdb.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <stdio.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#include "core/clock.h"
#include "core/peers_internal.h"

enum { SLICE_MS = 50, BACKLOG = 1024 };

/* ---- messages ---- */

/* Waits in slices, so that a loss that another thread notices ends the wait. A process that was
 * halted (SIGSTOP, a suspended job) gets that time back: the others were halted, too, or have given
 * it up. */
static Wire wait_since(int fd, short events, double *start, double seconds,
                       const atomic_bool *cancel) {
    for (double before = seconds_now();;) {
        struct pollfd p = {.fd = fd, .events = events};
        const int n = poll(&p, 1, SLICE_MS);
        const double now = seconds_now();
        if (n > 0) return WIRE_OK; /* an error shows itself in the call that follows */
        if (cancel && atomic_load(cancel)) return WIRE_CANCELLED;
        *start += halted_s(now - before);
        if (now > *start + seconds) return WIRE_LATE;
        before = now;
    }
}

static Wire wait_for(int fd, short events, double deadline, const atomic_bool *cancel) {
    double start = seconds_now();
    return wait_since(fd, events, &start, deadline - start, cancel);
}

Wire wire_wait(int fd, double *start, double seconds, const atomic_bool *cancel) {
    return wait_since(fd, POLLIN, start, seconds, cancel);
}

static bool would_block(void) {
    return errno == EAGAIN || errno == EWOULDBLOCK || errno == EINTR;
}

Wire wire_send(int fd, const void *data, size_t bytes, double deadline, const atomic_bool *cancel) {
    const char *at = data;
    while (bytes > 0) {
        const ssize_t n = send(fd, at, bytes, MSG_NOSIGNAL);
        if (n < 0 && !would_block()) return WIRE_CLOSED;
        if (n < 0) {
            const Wire w = wait_for(fd, POLLOUT, deadline, cancel);
            if (w != WIRE_OK) return w;
            continue;
        }
        at += n;
        bytes -= (size_t)n;
    }
    return WIRE_OK;
}

Wire wire_receive(int fd, void *data, size_t bytes, double deadline, const atomic_bool *cancel) {
    char *at = data;
    while (bytes > 0) {
        const ssize_t n = recv(fd, at, bytes, 0);
        if (n == 0 || (n < 0 && !would_block())) return WIRE_CLOSED;
        if (n < 0) {
            const Wire w = wait_for(fd, POLLIN, deadline, cancel);
            if (w != WIRE_OK) return w;
            continue;
        }
        at += n;
        bytes -= (size_t)n;
    }
    return WIRE_OK;
}

/* ---- connections ---- */

Status wire_prepare(int fd) {
    const int one = 1;
    (void)setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &one, sizeof one);
    (void)setsockopt(fd, SOL_SOCKET, SO_KEEPALIVE, &one, sizeof one);
    if (fcntl(fd, F_SETFL, O_NONBLOCK) != 0 || fcntl(fd, F_SETFD, FD_CLOEXEC) != 0)
        return status_errno("a connection between ranks");
    return STATUS_OK;
}

/* One socket for both families where the machine has both. */
static int listen_at(int family, int port, bool inside) {
    const int fd = socket(family, SOCK_STREAM | SOCK_CLOEXEC, 0), one = 1, zero = 0;
    if (fd < 0) return -1;
    struct sockaddr_in6 six = {.sin6_family = AF_INET6, .sin6_port = htons((uint16_t)port)};
    struct sockaddr_in four = {.sin_family = AF_INET, .sin_port = htons((uint16_t)port)};
    if (inside) four.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    (void)setsockopt(fd, SOL_SOCKET, SO_REUSEADDR, &one, sizeof one);
    if (family == AF_INET6) (void)setsockopt(fd, IPPROTO_IPV6, IPV6_V6ONLY, &zero, sizeof zero);
    const int bound = family == AF_INET6 ? bind(fd, (struct sockaddr *)&six, sizeof six)
                                         : bind(fd, (struct sockaddr *)&four, sizeof four);
    if (bound == 0 && listen(fd, BACKLOG) == 0) return fd;
    const int error = errno;
    close(fd);
    errno = error;
    return -1;
}

Status wire_listen(const char *address, int port, int *fd) {
    const bool inside = strcmp(address, "127.0.0.1") == 0 || strcmp(address, "localhost") == 0;
    *fd = inside ? -1 : listen_at(AF_INET6, port, false);
    if (inside || (*fd < 0 && errno != EADDRINUSE)) *fd = listen_at(AF_INET, port, inside);
    if (*fd < 0)
        return status_errno("rank 0 cannot listen at port %d (another one: --rdzv-port)", port);
    return STATUS_OK;
}

static Wire finish_connect(int fd, const struct addrinfo *a, double deadline) {
    if (connect(fd, a->ai_addr, a->ai_addrlen) == 0) return WIRE_OK;
    if (errno != EINPROGRESS) return WIRE_CLOSED;
    const Wire w = wait_for(fd, POLLOUT, deadline, NULL);
    if (w != WIRE_OK) return w;
    int error = 0;
    socklen_t size = sizeof error;
    if (getsockopt(fd, SOL_SOCKET, SO_ERROR, &error, &size) != 0 || error != 0) {
        errno = error ? error : errno;
        return WIRE_CLOSED;
    }
    return WIRE_OK;
}

/* While nobody listens at a port of the range that the kernel gives to connections, it may give
 * this one that very port: TCP then joins it to itself, and rank 0 finds its port taken. */
static bool reached_itself(int fd) {
    struct sockaddr_storage own = {0}, other = {0};
    socklen_t n = sizeof own, m = sizeof other;
    return getsockname(fd, (struct sockaddr *)&own, &n) == 0 &&
           getpeername(fd, (struct sockaddr *)&other, &m) == 0 && n == m &&
           memcmp(&own, &other, n) == 0;
}

/* A host that swallows what is sent to it must not take the time of the others of the list. */
static const double try_s = 10;

Status wire_connect(const char *address, int port, double deadline, int *fd) {
    struct addrinfo hints = {.ai_socktype = SOCK_STREAM}, *list = NULL;
    char service[16];
    snprintf(service, sizeof service, "%d", port);
    *fd = -1;
    const int failed = getaddrinfo(address, service, &hints, &list);
    if (failed)
        return status_set(STATUS_PEER, "%s: %s", address,
                          failed == EAI_SYSTEM ? strerror(errno) : gai_strerror(failed));
    int error = ECONNREFUSED;
    for (const struct addrinfo *a = list; a && *fd < 0; a = a->ai_next) {
        const int s = socket(a->ai_family, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
        if (s < 0) continue;
        const Wire w = finish_connect(s, a, fmin(deadline, seconds_now() + try_s));
        const bool itself = w == WIRE_OK && reached_itself(s);
        if (w == WIRE_OK && !itself) {
            *fd = s;
        } else {
            error = itself ? ECONNREFUSED : w == WIRE_LATE ? ETIMEDOUT : errno;
            close(s);
        }
    }
    freeaddrinfo(list);
    if (*fd < 0) return status_set(STATUS_PEER, "%s port %d: %s", address, port, strerror(error));
    return wire_prepare(*fd);
}

Status wire_accept(int listener, double deadline, int *fd) {
    *fd = -1;
    if (wait_for(listener, POLLIN, deadline, NULL) != WIRE_OK) return STATUS_OK;
    *fd = accept4(listener, NULL, NULL, SOCK_CLOEXEC);
    if (*fd >= 0) return wire_prepare(*fd);
    if (would_block() || errno == ECONNABORTED) return STATUS_OK;
    return status_errno("waiting for other ranks");
}
