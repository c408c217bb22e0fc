/* NCCL is no package of Debian, so it is looked for at run time and this file declares what it
 * needs of it: names and values of NCCL's documented C interface, the same since 2.0.
 */
#include "kernels/cuda/nccl.h"

#include <dlfcn.h>
#include <stdio.h>
#include <string.h>

#include "core/log.h"
#include "core/memory.h"
#include "kernels/cuda/cuda_device.h"

enum { NCCL_SUCCESS = 0, NCCL_SUM = 0, NCCL_BYTE = 1, NCCL_FLOAT = 7, NCCL_IN_PROGRESS = 7 };

typedef struct UniqueId {
    char internal[128];
} UniqueId;

typedef struct Api {
    void *library;
    int (*version)(int *version);
    int (*unique_id)(UniqueId *id);
    int (*init_rank)(void **comm, int ranks, UniqueId id, int rank);
    int (*destroy)(void *comm);
    int (*abort)(void *comm);
    int (*async_error)(void *comm, int *result);
    const char *(*error_text)(int result);
    int (*all_reduce)(const void *from, void *to, size_t count, int type, int operation, void *comm,
                      void *stream);
    int (*broadcast)(const void *from, void *to, size_t count, int type, int root, void *comm,
                     void *stream);
} Api;

struct Nccl {
    Api api;
    Device *device;
    Peers *peers;
    void *comm;
};

/* ---- loading ---- */

static Status find(const Api *a, const char *name, void *function) {
    void *found = dlsym(a->library, name);
    if (!found) return status_set(STATUS_DEVICE, "libnccl has no %s: it is too old", name);
    memcpy(function, &found, sizeof found); /* what POSIX asks for in place of a cast */
    return STATUS_OK;
}

static Status load(Api *a) {
    char first[512];
    a->library = dlopen("libnccl.so.2", RTLD_NOW | RTLD_LOCAL);
    if (!a->library) {
        const char *reason = dlerror();
        snprintf(first, sizeof first, "%s", reason ? reason : "not found");
        a->library = dlopen("libnccl.so", RTLD_NOW | RTLD_LOCAL);
        if (!a->library)
            return status_set(STATUS_DEVICE,
                              "several cards need NVIDIA's NCCL (libnccl.so.2, package libnccl2 of "
                              "NVIDIA's repository, or its folder in LD_LIBRARY_PATH): %s",
                              first);
    }
    TRY(find(a, "ncclGetVersion", &a->version));
    TRY(find(a, "ncclGetUniqueId", &a->unique_id));
    TRY(find(a, "ncclCommInitRank", &a->init_rank));
    TRY(find(a, "ncclCommDestroy", &a->destroy));
    TRY(find(a, "ncclCommAbort", &a->abort));
    TRY(find(a, "ncclCommGetAsyncError", &a->async_error));
    TRY(find(a, "ncclGetErrorString", &a->error_text));
    TRY(find(a, "ncclAllReduce", &a->all_reduce));
    return find(a, "ncclBroadcast", &a->broadcast);
}

static Status check(const Nccl *n, int result, const char *what) {
    if (result == NCCL_SUCCESS) return STATUS_OK;
    return status_set(STATUS_DEVICE, "NCCL, %s: %s (NCCL_DEBUG=WARN tells more)", what,
                      n->api.error_text(result));
}

/* 2.8.3 is 2803, 2.28.9 is 22809. */
Status nccl_library(char *out, size_t size) {
    Api a;
    int n = 0;
    TRY(load(&a));
    if (a.version(&n) != NCCL_SUCCESS) return status_set(STATUS_DEVICE, "NCCL has no version");
    const int unit = n >= 10000 ? 10000 : 1000;
    snprintf(out, size, "NCCL %d.%d.%d", n / unit, n % unit / 100, n % 100);
    return STATUS_OK;
}

/* ---- joining ---- */

static Status prepare(Nccl *n, int rank, UniqueId *id) {
    TRY(load(&n->api));
    return rank == 0 ? check(n, n->api.unique_id(id), "making an id") : STATUS_OK;
}

/* On the thread that watches: a sum that broke off does not end by itself. */
static bool broke_off(void *user, char *message, size_t size) {
    Nccl *n = user;
    int result = NCCL_SUCCESS;
    if (n->api.async_error(n->comm, &result) != NCCL_SUCCESS || result == NCCL_SUCCESS ||
        result == NCCL_IN_PROGRESS)
        return false;
    snprintf(message, size, "NCCL, between the cards: %s (NCCL_DEBUG=WARN tells more)",
             n->api.error_text(result));
    return true;
}

/* The call has no time limit of its own. */
static Status join(Nccl *n, Peers *p, const UniqueId *id) {
    int version = 0;
    peers_guard(p, "joining the cards by NCCL", peers_timeout(p));
    const int result = n->api.init_rank(&n->comm, peers_count(p), *id, peers_rank(p));
    peers_unguard(p);
    TRY(check(n, result, "joining the cards"));
    peers_probe(p, broke_off, n);
    if (n->api.version(&version) == NCCL_SUCCESS && peers_rank(p) == 0)
        log_debug("NCCL %d joins %d cards", version, peers_count(p));
    return STATUS_OK;
}

Status nccl_open(Device *d, Peers *p, Nccl **out) {
    void *block;
    UniqueId id = {{0}};
    TRY(mem_alloc(&block, 1, sizeof(Nccl), "NCCL"));
    Nccl *n = block;
    n->device = d;
    n->peers = p;
    /* A rank that waits for one which has no NCCL would wait for ever. */
    Status s = peers_agree(p, prepare(n, peers_rank(p), &id));
    if (s == STATUS_OK) s = peers_broadcast(p, &id, sizeof id);
    if (s == STATUS_OK) s = peers_agree(p, join(n, p, &id));
    if (s == STATUS_OK)
        *out = n;
    else
        nccl_close(n, false);
    return s;
}

/* destroy waits for the others; abort does not. The library stays loaded: it has threads. */
void nccl_close(Nccl *n, bool well) {
    peers_probe(n->peers, NULL, NULL);
    if (n->comm) (void)(well ? n->api.destroy(n->comm) : n->api.abort(n->comm));
    mem_free(n);
}

/* ---- sums ---- */

Status nccl_sum(Nccl *n, void *data, int64_t count) {
    return check(n,
                 n->api.all_reduce(data, data, (size_t)count, NCCL_FLOAT, NCCL_SUM, n->comm,
                                   cuda_device_stream(n->device)),
                 "a sum over the cards");
}

Status nccl_broadcast(Nccl *n, void *data, size_t bytes) {
    return check(
        n,
        n->api.broadcast(data, data, bytes, NCCL_BYTE, 0, n->comm, cuda_device_stream(n->device)),
        "a broadcast to the cards");
}
