#include "tools/ranks.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "datasets/loader.h"
#include "tools/cli.h"
#include "tools/sections.h"
#include "version.h"

enum { DEFAULT_PORT = 29500 }; /* torchrun's MASTER_PORT */

/* What the environment says of this process. */
typedef struct Place {
    int64_t rank, ranks, local, on_host;
} Place;

static Place place = {0, 1, 0, 1};
static Peers *peers;

Peers *ranks_peers(void) {
    return peers;
}

int ranks_rank(void) {
    return peers_rank(peers);
}

int ranks_count(void) {
    return peers_count(peers);
}

Shard ranks_shard(void) {
    return (Shard){ranks_rank(), ranks_count()};
}

int ranks_on_host(void) {
    return (int)(place.on_host > 0 ? place.on_host : 1);
}

/* ---- the environment ---- */

static bool number(const char *name, int64_t *out) {
    const char *text = name ? getenv(name) : NULL;
    char *end;
    if (!text || !*text) return false;
    const long long value = strtoll(text, &end, 10);
    if (*end || value < 0) return false;
    *out = value;
    return true;
}

/* Launchers by the variables of rank, ranks, rank on the host, ranks on the host. That of srun
 * counts in a step alone: a batch script that runs this program itself is one process. */
static const char *const launchers[][4] = {
    {"RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE"},
    {"OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE", "OMPI_COMM_WORLD_LOCAL_RANK",
     "OMPI_COMM_WORLD_LOCAL_SIZE"},
    {"SLURM_PROCID", "SLURM_STEP_NUM_TASKS", "SLURM_LOCALID", NULL},
    {"PMI_RANK", "PMI_SIZE", "MPI_LOCALRANKID", "MPI_LOCALNRANKS"},
};

/* False: this process is alone. */
static bool find_place(Place *p) {
    for (size_t i = 0; i < sizeof launchers / sizeof launchers[0]; i++) {
        *p = (Place){0, 1, 0, 0};
        if (!number(launchers[i][0], &p->rank) || !number(launchers[i][1], &p->ranks)) continue;
        const bool local = number(launchers[i][2], &p->local);
        if (!number(launchers[i][3], &p->on_host)) p->on_host = 0;
        if (!local) p->local = p->rank;
        if (p->ranks > 1) return true;
    }
    *p = (Place){0, 1, 0, 1};
    return false;
}

/* FNV-1a of what names the run to its launcher: keeps two runs of one network apart. */
static uint64_t run_number(void) {
    static const char *const names[] = {"TTV_RUN_ID", "TORCHELASTIC_RUN_ID", "SLURM_JOB_ID",
                                        "SLURM_STEP_ID", "PMIX_NAMESPACE"};
    uint64_t h = 1469598103934665603u;
    for (size_t i = 0; i < sizeof names / sizeof names[0]; i++)
        for (const char *c = getenv(names[i]); c && *c; c++)
            h = (h ^ (unsigned char)*c) * 1099511628211u;
    return h;
}

/* The first host of a list such as "gpu[03-06,9]" or "a,b". */
static bool first_of_slurm(char *out, size_t size) {
    const char *list = getenv("SLURM_STEP_NODELIST");
    if (!list || !*list) return false;
    const size_t name = strcspn(list, "[,");
    const char *inside = list[name] == '[' ? list + name + 1 : "";
    snprintf(out, size, "%.*s%.*s", (int)name, list, (int)strcspn(inside, "-,]"), inside);
    return true;
}

static Status find_address(char *out, size_t size) {
    const char *given = getenv("MASTER_ADDR");
    if (given && *given) {
        snprintf(out, size, "%s", given);
    } else if (!first_of_slurm(out, size)) {
        if (place.on_host > 0 && place.on_host < place.ranks)
            return status_set(STATUS_USAGE,
                              "%lld ranks on several hosts: MASTER_ADDR has to name "
                              "the host of rank 0",
                              (long long)place.ranks);
        snprintf(out, size, "127.0.0.1");
    }
    return STATUS_OK;
}

static Status find_port(int *out) {
    int64_t port = DEFAULT_PORT;
    *out = (int)settings.dist.port;
    if (number("TTV_LAUNCH_PORT", &port)) *out = (int)port; /* launch.c made it */
    if (*out > 0) return STATUS_OK;
    (void)number("MASTER_PORT", &port);
    if (port > 65534)
        return status_set(STATUS_USAGE,
                          "MASTER_PORT is %lld: ranks meet at the port after it, 65535 at most; "
                          "name another with --rdzv-port",
                          (long long)port);
    *out = (int)port + 1; /* the port itself is the launcher's */
    return STATUS_OK;
}

/* ---- cards and threads ---- */

static const char *card_list(void) {
    return strncmp(common.device, "cuda:", 5) == 0 && strchr(common.device, ',') ? common.device + 5
                                                                                 : NULL;
}

static int64_t listed_cards(void) {
    const char *list = card_list();
    int64_t count = list ? 1 : 0;
    for (; list && *list; list++) count += *list == ',';
    return count;
}

Status ranks_device(char *spec, size_t size) {
    const char *list = card_list();
    snprintf(spec, size, "%s", common.device);
    if (list && place.ranks < 2)
        return status_set(STATUS_USAGE,
                          "--device %s is for several ranks: name one card, or start "
                          "one rank for each",
                          common.device);
    if (place.ranks < 2) return STATUS_OK;
    if (list) {
        if (place.local >= listed_cards())
            return status_set(STATUS_USAGE, "--device %s has no card for rank %lld of this host",
                              common.device, (long long)place.local);
        for (int64_t i = 0; i < place.local; i++) list = strchr(list, ',') + 1;
        snprintf(spec, size, "cuda:%.*s", (int)strcspn(list, ","), list);
    } else if (strcmp(common.device, "cuda") == 0) {
        /* Where each rank sees a card of its own only, that is number 0. */
        const char *visible = getenv("CUDA_VISIBLE_DEVICES");
        const bool one = visible && *visible && !strchr(visible, ',');
        snprintf(spec, size, "cuda:%lld", one ? 0LL : (long long)place.local);
    }
    return STATUS_OK;
}

int64_t ranks_threads(int64_t asked) {
    if (asked > 0 || ranks_on_host() < 2) return asked;
    const int share = loader_processors() / ranks_on_host();
    return share > 0 ? share : 1;
}

/* ---- batches ---- */

Status ranks_batch(int64_t batch, bool mirrored, int64_t *own) {
    const int64_t ranks = ranks_count(), parts = mirrored ? 2 * ranks : ranks;
    *own = batch;
    if (ranks < 2) return STATUS_OK;
    if (batch % parts != 0)
        return status_set(STATUS_USAGE,
                          "--batch-size %lld, which all %lld ranks share, has to be a multiple of "
                          "%lld%s",
                          (long long)batch, (long long)ranks, (long long)parts,
                          mirrored ? " (mixup and cutmix pair the images of a batch)" : "");
    *own = batch / ranks;
    return STATUS_OK;
}

int64_t ranks_batch_of(int64_t batch) {
    return batch / ranks_count();
}

/* ---- joining and leaving ---- */

bool ranks_launch(int *code) {
    const int64_t cards = listed_cards(), asked = settings.dist.ranks;
    const int64_t ranks = asked > 0 ? asked : cards > 0 ? cards : 1;
    if (find_place(&place)) return false;
    if (ranks < 2) return false;
    if (cards > 0 && cards != ranks) {
        complain("--ranks %lld, but --device %s lists %lld cards", (long long)asked, common.device,
                 (long long)cards);
        *code = 2;
    } else {
        *code = launch_ranks((int)ranks);
    }
    return true;
}

/* On the watching thread: the main one waits for something that will not come. */
static void lost(void *user, const char *message) {
    (void)user;
    complain("%s", message);
    _exit(75);
}

Status ranks_join(void) {
    char address[512];
    int64_t listener = -1;
    int port;
    if (place.ranks < 2) return STATUS_OK;
    if (settings.dist.ranks > 0 && settings.dist.ranks != place.ranks)
        return status_set(STATUS_USAGE, "--ranks %lld, but this process was started as one of %lld",
                          (long long)settings.dist.ranks, (long long)place.ranks);
    if (place.ranks > PEERS_MAX || place.rank >= place.ranks) /* before they become an int */
        return status_set(STATUS_USAGE,
                          "the environment says rank %lld of %lld ranks: 1 to %d ranks are "
                          "possible, counted from 0",
                          (long long)place.rank, (long long)place.ranks, PEERS_MAX);
    TRY(find_address(address, sizeof address));
    TRY(find_port(&port));
    output_rank((int)place.rank);
    if (place.rank == 0) (void)number("TTV_LISTENER", &listener);
    const PeersOptions o = {.rank = (int)place.rank,
                            .ranks = (int)place.ranks,
                            .address = address,
                            .port = port,
                            .listener = (int)listener,
                            .run = run_number(),
                            .build = TTV_VERSION " " TTV_GIT_ID,
                            .join_timeout_s = settings.dist.join_timeout_s,
                            .timeout_s = settings.dist.timeout_s,
                            .lost = lost};
    return peers_join(&o, &peers);
}

/* A loss meanwhile changes nothing: this rank's own work is done. */
void ranks_wait_saved(void) {
    (void)peers_agree(peers, STATUS_OK);
}

void ranks_leave(bool well) {
    peers_leave(peers, well);
    peers = NULL;
}

Status ranks_agree_all(Status mine) {
    const Status s = peers_agree(peers, mine);
    if (s != STATUS_OK && s != STATUS_PEER && ranks_rank() > 0) output_hush();
    return s;
}
