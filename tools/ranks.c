#include "tools/ranks.h"

#include <errno.h>
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

static bool is_set(const char *name) {
    return name && getenv(name);
}

/* Leaves *out alone where the variable is not set. */
static Status number(const char *name, int64_t *out) {
    const char *text = name ? getenv(name) : NULL;
    char *end;
    if (!text) return STATUS_OK;
    errno = 0;
    const long long value = strtoll(text, &end, 10);
    if (!*text || *end || value < 0 || errno)
        return status_set(STATUS_USAGE, "%s is '%s' in the environment: a number is expected", name,
                          text);
    *out = value;
    return STATUS_OK;
}

typedef struct Launcher {
    const char *name, *rank, *ranks, *local, *on_host;
    /* That of srun counts in a step alone: a batch script that runs this program itself is one
     * process, in which some of the variables are set. */
    bool whole;
} Launcher;

static const Launcher launchers[] = {
    {"torchrun", "RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE", true},
    {"mpirun", "OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE", "OMPI_COMM_WORLD_LOCAL_RANK",
     "OMPI_COMM_WORLD_LOCAL_SIZE", true},
    {"srun", "SLURM_PROCID", "SLURM_STEP_NUM_TASKS", "SLURM_LOCALID", NULL, false},
    {"mpirun", "PMI_RANK", "PMI_SIZE", "MPI_LOCALRANKID", "MPI_LOCALNRANKS", true},
};

/* Below what the environment says it has to be. */
static Status check_below(const char *name, int64_t value, const char *of, int64_t count) {
    if (value < count) return STATUS_OK;
    return status_set(STATUS_USAGE,
                      "%s is %lld and %s is %lld in the environment: it counts from 0, so it has "
                      "to be below that",
                      name, (long long)value, of, (long long)count);
}

static Status read_place(const Launcher *l, Place *p) {
    *p = (Place){0, 1, -1, 0};
    TRY(number(l->rank, &p->rank));
    TRY(number(l->ranks, &p->ranks));
    TRY(number(l->local, &p->local));
    TRY(number(l->on_host, &p->on_host));
    TRY(check_below(l->rank, p->rank, l->ranks, p->ranks));
    if (p->ranks > PEERS_MAX)
        return status_set(STATUS_USAGE, "%s is %lld in the environment: %d ranks are possible",
                          l->ranks, (long long)p->ranks, PEERS_MAX);
    if (is_set(l->on_host) && is_set(l->local))
        TRY(check_below(l->local, p->local, l->on_host, p->on_host));
    if (is_set(l->on_host) && p->on_host > p->ranks)
        return status_set(STATUS_USAGE,
                          "%s is %lld in the environment, more than %s, which is %lld", l->on_host,
                          (long long)p->on_host, l->ranks, (long long)p->ranks);
    return STATUS_OK;
}

/* One of two variables without the other: to run alone then would train as many models as there
 * are processes, all into one folder. */
static Status half(const char *there, const char *gone) {
    return status_set(STATUS_USAGE,
                      "%s is set in the environment (%s), but %s is not: a rank needs both; 'env "
                      "-u %s' runs alone",
                      there, getenv(there), gone, there);
}

/* p->ranks 1: this process is alone. */
static Status find_place(Place *p) {
    for (size_t i = 0; i < sizeof launchers / sizeof launchers[0]; i++) {
        const Launcher *l = &launchers[i];
        const bool rank = is_set(l->rank), ranks = is_set(l->ranks);
        if (l->whole && rank != ranks)
            return rank ? half(l->rank, l->ranks) : half(l->ranks, l->rank);
        if (!rank || !ranks) continue;
        TRY(read_place(l, p));
        if (p->ranks > 1) return STATUS_OK;
    }
    *p = (Place){0, 1, 0, 1};
    return is_set("LOCAL_RANK") ? half("LOCAL_RANK", "RANK") : STATUS_OK;
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

/* The first host of a list such as "gpu[03-06,9]", "rack[1-2]n[1-4]" or "a,b". */
static bool first_of_slurm(char *out, size_t size) {
    const char *at = getenv("SLURM_STEP_NODELIST");
    size_t used = 0;
    if (!at || !*at) return false;
    for (; *at && *at != ',' && used + 1 < size; at++) {
        if (*at != '[') {
            out[used++] = *at;
            continue;
        }
        const size_t length = strcspn(at + 1, "-,]");
        for (size_t k = 1; k <= length && used + 1 < size; k++) out[used++] = at[k];
        at += strcspn(at, "]");
        if (!*at) break;
    }
    out[used] = '\0';
    return used > 0;
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
    int64_t own = settings.dist.port, port = DEFAULT_PORT;
    TRY(number("TTV_LAUNCH_PORT", &own)); /* launch.c made it */
    *out = (int)own;
    if (own > 0) return STATUS_OK;
    TRY(number("MASTER_PORT", &port));
    if (port < 1 || port > 65534)
        return status_set(STATUS_USAGE,
                          "MASTER_PORT is %lld: ranks meet at the port after it, 2 to 65535; "
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

/* Cards that CUDA_VISIBLE_DEVICES leaves this process; -1: it does not say. */
static int64_t visible_cards(void) {
    const char *list = getenv("CUDA_VISIBLE_DEVICES");
    int64_t count = list && *list ? 1 : 0;
    for (const char *c = list; c && *c; c++) count += *c == ',';
    return list ? count : -1;
}

/* --device cuda: the card of this rank's place on the host. Where a launcher leaves each rank a
 * card of its own only, that is number 0. */
static Status card_by_place(char *spec, size_t size) {
    const int64_t visible = visible_cards();
    const bool own = visible == 1 && !is_set("TTV_LAUNCH_PORT");
    if (!own && place.local < 0)
        return status_set(STATUS_USAGE,
                          "--device cuda: rank %lld of %lld does not know its place on this host, "
                          "which says whose card is which: set LOCAL_RANK, or name the card, "
                          "--device cuda:N",
                          (long long)place.rank, (long long)place.ranks);
    if (!own && visible >= 0 && place.local >= visible)
        return status_set(STATUS_DEVICE,
                          "--device cuda: rank %lld, number %lld of its host, needs a card of its "
                          "own, but CUDA_VISIBLE_DEVICES has %lld",
                          (long long)place.rank, (long long)place.local, (long long)visible);
    snprintf(spec, size, "cuda:%lld", own ? 0LL : (long long)place.local);
    return STATUS_OK;
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
        if (place.local < 0)
            return status_set(STATUS_USAGE,
                              "--device %s: LOCAL_RANK has to say which of the cards is this "
                              "rank's",
                              common.device);
        if (place.local >= listed_cards())
            return status_set(STATUS_USAGE, "--device %s has no card for rank %lld of this host",
                              common.device, (long long)place.local);
        for (int64_t i = 0; i < place.local; i++) list = strchr(list, ',') + 1;
        snprintf(spec, size, "cuda:%.*s", (int)strcspn(list, ","), list);
    }
    return strcmp(common.device, "cuda") == 0 ? card_by_place(spec, size) : STATUS_OK;
}

Status ranks_device_opened(Status s) {
    if (s != STATUS_DEVICE || place.ranks < 2) return s;
    return status_context(s,
                          "rank %lld of %lld takes the card of its place on the host (fewer ranks, "
                          "or --device cuda:0,1,... with the card of each)",
                          (long long)place.rank, (long long)place.ranks);
}

Status ranks_check_cards(Device *d) {
    return card_list() ? STATUS_OK : comm_check_cards(d, peers);
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

/* What can be known before ranks are started. Cards that are not there otherwise are found by the
 * ranks: to ask the driver takes longer than to start them. */
static Status check_launch(int64_t ranks) {
    const int64_t cards = listed_cards(), visible = visible_cards();
    if (cards > 0 && cards != ranks)
        return status_set(STATUS_USAGE, "--ranks %lld, but --device %s lists %lld cards",
                          (long long)ranks, common.device, (long long)cards);
    if (strcmp(common.device, "cuda") == 0 && visible >= 0 && visible < ranks)
        return status_set(STATUS_DEVICE,
                          "--ranks %lld --device cuda needs %lld cards, but CUDA_VISIBLE_DEVICES "
                          "has %lld: take fewer ranks, or name the card of each (one may be named "
                          "twice for scoring, not for training: --device cuda:0,0)",
                          (long long)ranks, (long long)ranks, (long long)visible);
    if (ranks > 1 && strncmp(common.device, "cuda:", 5) == 0 && cards == 0)
        return status_set(STATUS_USAGE,
                          "--ranks %lld, but --device %s is one card: take --device cuda, or name "
                          "the card of each rank (--device cuda:0,1)",
                          (long long)ranks, common.device);
    return STATUS_OK;
}

/* HOST, HOST:PORT, [IPv6]:PORT; "tcp:" in front, as others write it, changes nothing. */
static Status parse_meeting(LaunchPlan *plan) {
    const char *text = settings.dist.rdzv;
    if (strncmp(text, "tcp:", 4) == 0) text += strncmp(text, "tcp://", 6) == 0 ? 6 : 4;
    const char *colon = strrchr(text, ':');
    const bool bracket = text[0] == '[', plain = colon && strchr(text, ':') != colon && !bracket;
    size_t length = strlen(text);
    plan->port = settings.dist.port > 0 ? (int)settings.dist.port : DEFAULT_PORT;
    if (colon && !plain && (!bracket || colon[-1] == ']')) {
        char *end;
        const long port = strtol(colon + 1, &end, 10);
        if (!colon[1] || *end || port < 1 || port > 65535)
            return status_set(STATUS_USAGE, "--rdzv %s: the port has to be 1 to 65535", text);
        plan->port = (int)port;
        length = (size_t)(colon - text);
    }
    if (bracket && length > 2 && text[length - 1] == ']') text++, length -= 2;
    if (length == 0)
        return status_set(STATUS_USAGE, "--rdzv %s: HOST or HOST:PORT is expected",
                          settings.dist.rdzv);
    snprintf(plan->address, sizeof plan->address, "%.*s", (int)length, text);
    return STATUS_OK;
}

static Status plan_nodes(LaunchPlan *plan) {
    const DistConfig *d = &settings.dist;
    if (d->nodes < 2 && (d->rdzv[0] || d->node_rank > 0))
        return status_set(STATUS_USAGE, "--rdzv and --node-rank are for several hosts: --nodes N");
    if (d->nodes < 2) return STATUS_OK;
    if (d->node_rank >= d->nodes)
        return status_set(STATUS_USAGE, "--node-rank %lld of --nodes %lld: it counts from 0",
                          (long long)d->node_rank, (long long)d->nodes);
    if (d->nodes * plan->ranks > PEERS_MAX)
        return status_set(STATUS_USAGE, "--nodes %lld with %d ranks each: %d ranks are possible",
                          (long long)d->nodes, plan->ranks, PEERS_MAX);
    if (!d->rdzv[0])
        return status_set(STATUS_USAGE,
                          "--nodes %lld needs --rdzv HOST:PORT, where node 0 can be reached",
                          (long long)d->nodes);
    return parse_meeting(plan);
}

bool ranks_launch(int *code) {
    const int64_t cards = listed_cards(), asked = settings.dist.ranks;
    LaunchPlan plan = {.ranks = (int)(asked > 0   ? asked
                                      : cards > 0 ? cards
                                                  : 1),
                       .nodes = (int)settings.dist.nodes,
                       .node_rank = (int)settings.dist.node_rank};
    Status s = find_place(&place);
    if (s == STATUS_OK && place.ranks > 1) return false;
    if (s == STATUS_OK) s = plan_nodes(&plan);
    if (s == STATUS_OK && plan.ranks * plan.nodes < 2) return false;
    if (s == STATUS_OK) s = check_launch(plan.ranks);
    *code = s == STATUS_OK ? launch_ranks(&plan) : cli_fail(s);
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
    const int64_t asked = settings.dist.ranks * settings.dist.nodes;
    if (asked > 0 && asked != place.ranks)
        return status_set(
            STATUS_USAGE, "--ranks %lld%s, but this process was started as one of %lld",
            (long long)settings.dist.ranks, settings.dist.nodes > 1 ? " on each of --nodes" : "",
            (long long)place.ranks);
    TRY(find_address(address, sizeof address));
    TRY(find_port(&port));
    output_rank((int)place.rank);
    if (place.rank == 0) TRY(number("TTV_LISTENER", &listener));
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
