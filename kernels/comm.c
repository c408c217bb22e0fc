#include "kernels/comm.h"

#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "core/memory.h"
#ifdef TTV_HAVE_CUDA
#include "kernels/cuda/nccl.h"
#endif

struct Comm {
    Device *device;
    Peers *peers;
    struct Nccl *nccl; /* NULL: through the peers */
};

/* ---- every rank its own card ---- */

typedef struct CardOf {
    char host[64];
    unsigned char id[16]; /* zeros: no card */
} CardOf;

static Status identify(Device *d, CardOf *out) {
    (void)gethostname(out->host, sizeof out->host - 1);
#ifdef TTV_HAVE_CUDA
    if (d->kind == DEVICE_CUDA) return cuda_card_identity(d, out->id);
#endif
    (void)d;
    return STATUS_OK;
}

static Status compare_cards(const CardOf *all, int ranks) {
    static const unsigned char none[sizeof all->id];
    for (int i = 1; i < ranks; i++) {
        if (memcmp(all[i].id, none, sizeof none) == 0) continue;
        for (int j = 0; j < i; j++)
            if (memcmp(&all[i], &all[j], sizeof *all) == 0)
                return status_set(STATUS_USAGE,
                                  "ranks %d and %d on %s have the same card: take one rank for "
                                  "each card (fewer ranks, or a --device list)",
                                  j, i, all[i].host);
    }
    return STATUS_OK;
}

Status comm_check_cards(Device *d, Peers *p) {
    const int ranks = peers_count(p);
    CardOf mine = {.host = ""};
    void *all;
    if (ranks < 2) return STATUS_OK;
    TRY(mem_alloc(&all, ranks, sizeof mine, "cards of ranks"));
    Status s = peers_agree(p, identify(d, &mine));
    if (s == STATUS_OK) s = peers_gather(p, &mine, all, sizeof mine);
    if (s == STATUS_OK) s = compare_cards(all, ranks);
    mem_free(all);
    return s;
}

/* ---- opening ---- */

static Status open_backend(Comm *c) {
    if (c->device->kind == DEVICE_CPU) return STATUS_OK;
#ifdef TTV_HAVE_CUDA
    /* NCCL_HOSTID makes NCCL take ranks of one host for those of several: then it allows it. */
    if (c->device->kind == DEVICE_CUDA && !getenv("NCCL_HOSTID"))
        TRY(comm_check_cards(c->device, c->peers));
    if (c->device->kind == DEVICE_CUDA) return nccl_open(c->device, c->peers, &c->nccl);
#endif
    return status_set(STATUS_INTERNAL, "%s has no sums over ranks", c->device->name);
}

Status comm_open(Device *d, Peers *p, Comm **out) {
    void *block;
    *out = NULL;
    TRY(mem_alloc(&block, 1, sizeof(Comm), "sums over ranks"));
    Comm *c = block;
    *c = (Comm){.device = d, .peers = p};
    const Status s = open_backend(c);
    if (s == STATUS_OK)
        *out = c;
    else
        mem_free(c);
    return s;
}

void comm_close(Comm *c, bool well) {
    if (!c) return;
#ifdef TTV_HAVE_CUDA
    if (c->nccl) nccl_close(c->nccl, well);
#else
    (void)well;
#endif
    mem_free(c);
}

Status comm_library(char *out, size_t size) {
#ifdef TTV_HAVE_CUDA
    return nccl_library(out, size);
#else
    if (size > 0) out[0] = '\0';
    return status_set(STATUS_DEVICE, "this build has no CUDA backend");
#endif
}

int comm_ranks(const Comm *c) {
    return c ? peers_count(c->peers) : 1;
}

int comm_rank(const Comm *c) {
    return c ? peers_rank(c->peers) : 0;
}

Peers *comm_peers(const Comm *c) {
    return c ? c->peers : NULL;
}

Status comm_sum(Comm *c, Tensor t) {
    if (comm_ranks(c) < 2 || tensor_is_none(t) || tensor_count(t) == 0) return STATUS_OK;
    if (t.dtype != DTYPE_F32)
        return status_set(STATUS_INTERNAL, "a sum over ranks of %s", dtype_name(t.dtype));
#ifdef TTV_HAVE_CUDA
    if (c->nccl) return nccl_sum(c->nccl, t.data, tensor_count(t));
#endif
    return peers_sum_f32(c->peers, t.data, tensor_count(t));
}

Status comm_broadcast(Comm *c, Tensor t) {
    if (comm_ranks(c) < 2 || tensor_is_none(t) || tensor_count(t) == 0) return STATUS_OK;
#ifdef TTV_HAVE_CUDA
    if (c->nccl) return nccl_broadcast(c->nccl, t.data, tensor_bytes(t));
#endif
    return peers_broadcast(c->peers, t.data, tensor_bytes(t));
}
