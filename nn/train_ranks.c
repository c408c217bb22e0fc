/* Several ranks that train one model: they start from the same weights, and before every sum they
 * tell each other that they are well and whether someone asked to stop. So no rank waits in a sum
 * for one that failed, and all stop at the same step.
 */
#include <inttypes.h>
#include <math.h>
#include <stdio.h>

#include "core/clock.h"
#include "core/memory.h"
#include "nn/train_loop.h"

#define GUARD_MARGIN_S 5.0

typedef struct Edge {
    int64_t step, best_step;
    double best_metric;
    int32_t status, stop, late;
    float norm; /* of the step before */
    char message[240];
} Edge;

static bool alone(const Loop *l) {
    return comm_ranks(l->options->comm) < 2;
}

bool saves_files(const Loop *l) {
    return comm_rank(l->options->comm) == 0;
}

static bool own_time_is_up(const Loop *l) {
    const double limit = l->options->time_limit_s;
    return limit > 0.0 && seconds_now() - l->start_s >= limit;
}

bool stop_wanted(const Loop *l) {
    return alone(l) ? train_stop_requested() : l->all_stop;
}

bool time_is_up(const Loop *l) {
    return alone(l) ? own_time_is_up(l) : l->all_late;
}

/* ---- the same start ---- */

static Status share_start(Loop *l) {
    Comm *c = l->options->comm;
    AdamW *o = l->optim;
    TRY(comm_broadcast(c, o->params->master));
    TRY(comm_broadcast(c, o->m));
    TRY(comm_broadcast(c, o->v));
    TRY(comm_broadcast(c, o->taken));
    if (o->ema) TRY(comm_broadcast(c, o->ema->average));
    TRY(peers_broadcast(comm_peers(c), l->state, sizeof *l->state));
    return params_refresh(o->params);
}

Status ranks_share_buffers(Loop *l) {
    Comm *c = l->options->comm;
    AdamW *o = l->optim;
    if (alone(l) || !o->params->has_buffers) return STATUS_OK;
    ranks_wait_begin(l);
    TRY(comm_broadcast(c, o->params->master));
    if (o->ema) TRY(comm_broadcast(c, o->ema->average));
    TRY(device_sync(tape_device(l->tape)));
    ranks_wait_end(l);
    return STATUS_OK;
}

Status ranks_init(Loop *l) {
    if (alone(l)) return STATUS_OK;
    TRY(mem_alloc(&l->edges, comm_ranks(l->options->comm), sizeof(Edge), "reports of ranks"));
    ranks_wait_begin(l);
    TRY(share_start(l));
    TRY(device_sync(tape_device(l->tape)));
    ranks_wait_end(l);
    return STATUS_OK;
}

void ranks_free(Loop *l) {
    mem_free(l->edges);
    l->edges = NULL;
}

void ranks_wait_begin(Loop *l) {
    char what[128];
    if (alone(l)) return;
    Peers *p = comm_peers(l->options->comm);
    snprintf(what, sizeof what,
             "step %" PRId64
             ", to which all ranks had come, on this rank's device (--dist-timeout)",
             l->state->step);
    /* Later than the silence of a rank, which says more, would be noticed. */
    peers_guard(p, what, peers_timeout(p) + GUARD_MARGIN_S);
}

void ranks_wait_end(Loop *l) {
    if (!alone(l)) peers_unguard(comm_peers(l->options->comm));
}

/* ---- every step ---- */

/* A failure is worth more than a stop, and this rank's own message more than another's. */
static Status judge(const Edge *all, int ranks, Status mine) {
    bool stopped = false;
    if (mine != STATUS_OK && mine != STATUS_STOPPED) return mine; /* its message stands */
    for (int i = 0; i < ranks; i++) {
        const Status s = (Status)all[i].status;
        stopped |= s == STATUS_STOPPED;
        if (s == STATUS_OK || s == STATUS_STOPPED) continue;
        if (s == STATUS_END) return status_set(STATUS_DATA, "rank %d has no data left", i);
        return status_set(s, "rank %d: %.239s", i, all[i].message);
    }
    return stopped ? STATUS_STOPPED : STATUS_OK;
}

/* The same step, and about the same norm of the step before: the weights were the same. */
static Status compare(const Edge *a, const Edge *b, int rank) {
    if (a->step != b->step)
        return status_set(STATUS_INTERNAL, "rank %d is at step %" PRId64 ", rank 0 at %" PRId64,
                          rank, b->step, a->step);
    if (isfinite(a->norm) != isfinite(b->norm) ||
        (isfinite(a->norm) && fabsf(a->norm - b->norm) > 1e-3f * fabsf(a->norm)))
        return status_set(STATUS_INTERNAL,
                          "before step %" PRId64 " the gradient norm of rank %d was %g, that of "
                          "rank 0 %g: their weights are not the same",
                          a->step, rank, (double)b->norm, (double)a->norm);
    return STATUS_OK;
}

static void say(const Loop *l, Status mine, Edge *e) {
    const TrainState *s = l->state;
    *e = (Edge){.step = s->step, .best_step = s->best_step, .best_metric = s->best_metric};
    e->status = (int32_t)mine;
    e->stop = train_stop_requested();
    e->late = own_time_is_up(l);
    e->norm = (float)l->grad_norm;
    if (mine != STATUS_OK) snprintf(e->message, sizeof e->message, "%s", status_message());
}

/* Rank 0 has the clock, and its disk decides what is the best. */
static void take_over(Loop *l, const Edge *all) {
    const int ranks = comm_ranks(l->options->comm);
    for (int i = 0; i < ranks; i++) l->all_stop |= all[i].stop != 0;
    l->all_late = all[0].late != 0;
    l->state->best_metric = all[0].best_metric;
    l->state->best_step = all[0].best_step;
}

Status ranks_agree(Loop *l, Status mine) {
    if (alone(l)) return mine;
    const int ranks = comm_ranks(l->options->comm);
    Edge edge, *all = l->edges;
    say(l, mine, &edge);
    TRY(peers_gather(comm_peers(l->options->comm), &edge, all, sizeof edge));
    for (int i = 0; i < ranks; i++) all[i].message[sizeof all[i].message - 1] = '\0';
    const Status s = judge(all, ranks, mine);
    /* A rank that failed may have no norm of this step: its own message says more. */
    if (s != STATUS_OK && s != STATUS_STOPPED) return s;
    for (int i = 1; i < ranks; i++) TRY(compare(&all[0], &all[i], i));
    take_over(l, all);
    return s;
}
