/* A scoring pass over a data set, by one process or by all ranks. */
#include <string.h>

#include "core/memory.h"
#include "tools/cli.h"
#include "tools/ranks.h"
#include "tools/train_task.h"

static void show(const Score *s, int64_t images) {
    progress_line(10, "scoring %lld of %lld images", (long long)(s->scored + s->left_out),
                  (long long)images);
}

static Status end(Status s, const Score *score) {
    if (s != STATUS_END) return s;
    if (score->scored == 0) return status_set(STATUS_DATA, "no image could be scored");
    return STATUS_OK;
}

static Status score_alone(Predictor *p, Loader *l, int64_t images, float *logits, Score *score,
                          ScoreVisit visit, void *visit_user) {
    HostBatch b;
    Status s;
    TRY(loader_begin(l, 0, 0));
    while ((s = loader_next(l, &b)) == STATUS_OK) {
        TRY(predict(p, b.pixels, b.count, logits));
        score_add(score, logits, b.count, p->model->config.classes, b.labels, b.valid);
        if (visit) visit(visit_user, &b, logits);
        show(score, images);
        if (train_stop_requested()) return status_set(STATUS_STOPPED, "stopped while scoring");
    }
    return end(s, score);
}

/* ---- several ranks: round by round, each scores a batch ---- */

/* What a rank sends of a batch. Behind it lie, when somebody visits, labels, samples, flags and
 * logits. */
typedef struct Share {
    int64_t count; /* 0: it has no more */
    int64_t stop;
    ImageScore images[]; /* [batch] */
} Share;

typedef struct Rounds {
    Predictor *predictor;
    Loader *loader;
    float *logits;
    int64_t batch, classes, images;
    size_t labels, samples, valid, scores, bytes; /* where the parts lie, and of all */
    unsigned char *mine, *all;                    /* `all`: rank 0 alone */
    ScoreVisit visit;
    void *visit_user;
} Rounds;

static size_t part(size_t *end, size_t bytes) {
    const size_t at = *end;
    *end += (bytes + 7) / 8 * 8;
    return at;
}

static Status rounds_init(Rounds *r) {
    const size_t n = (size_t)r->batch;
    void *block;
    size_t end = sizeof(Share) + n * sizeof(ImageScore);
    if (r->visit) {
        r->labels = part(&end, n * sizeof(int64_t));
        r->samples = part(&end, n * sizeof(int64_t));
        r->valid = part(&end, n);
        r->scores = part(&end, n * (size_t)r->classes * sizeof(float));
    }
    r->bytes = end;
    TRY(mem_alloc(&block, 1, end, "scores of a batch"));
    r->mine = block;
    if (ranks_rank() != 0) return STATUS_OK;
    TRY(mem_alloc(&block, ranks_count(), end, "scores of the ranks"));
    r->all = block;
    return STATUS_OK;
}

static void fill_share(const Rounds *r, const HostBatch *b) {
    Share *share = (Share *)(void *)r->mine;
    const size_t n = (size_t)b->count;
    share->count = b->count;
    share->stop = train_stop_requested();
    if (n == 0) return;
    score_images(share->images, r->logits, b->count, r->classes, b->labels, b->valid);
    if (!r->visit) return;
    memcpy(r->mine + r->labels, b->labels, n * sizeof(int64_t));
    memcpy(r->mine + r->samples, b->samples, n * sizeof(int64_t));
    memset(r->mine + r->valid, 1, n);
    if (b->valid) memcpy(r->mine + r->valid, b->valid, n);
    memcpy(r->mine + r->scores, r->logits, n * (size_t)r->classes * sizeof(float));
}

static Status own_batch(const Rounds *r) {
    HostBatch b = {0};
    const Status s = loader_next(r->loader, &b);
    if (s == STATUS_OK) TRY(predict(r->predictor, b.pixels, b.count, r->logits));
    if (s != STATUS_OK && s != STATUS_END) return s;
    fill_share(r, &b);
    return STATUS_OK;
}

/* Rank 0: the batches of a round in their order. */
static void join(const Rounds *r, Score *score, int64_t *verdict) {
    int64_t taken = 0, stop = 0;
    for (int i = 0; i < ranks_count(); i++) {
        unsigned char *from = r->all + (size_t)i * r->bytes;
        const Share *share = (const Share *)(const void *)from;
        taken += share->count;
        stop |= share->stop;
        score_join(score, share->images, share->count);
        if (!r->visit || share->count == 0) continue;
        const HostBatch b = {.labels = (const int64_t *)(const void *)(from + r->labels),
                             .samples = (const int64_t *)(const void *)(from + r->samples),
                             .valid = from + r->valid,
                             .count = share->count};
        r->visit(r->visit_user, &b, (const float *)(const void *)(from + r->scores));
    }
    *verdict = taken == 0 ? STATUS_END : stop ? STATUS_STOPPED : STATUS_OK;
    show(score, r->images);
}

/* STATUS_END after the last round. */
static Status round_of_all(const Rounds *r, Score *score) {
    Peers *p = ranks_peers();
    int64_t verdict = STATUS_OK;
    TRY(peers_agree(p, own_batch(r)));
    TRY(peers_collect(p, r->mine, r->all, r->bytes));
    if (ranks_rank() == 0) join(r, score, &verdict);
    TRY(peers_broadcast(p, &verdict, sizeof verdict));
    if (verdict == STATUS_STOPPED) return status_set(STATUS_STOPPED, "stopped while scoring");
    return (Status)verdict;
}

static Status score_together(Rounds *r, Score *score) {
    Status s = rounds_init(r);
    if (s == STATUS_OK) s = loader_begin(r->loader, 0, 0);
    s = peers_agree(ranks_peers(), s);
    while (s == STATUS_OK) s = round_of_all(r, score);
    if (s == STATUS_END) {
        s = peers_broadcast(ranks_peers(), score, sizeof *score);
        if (s == STATUS_OK) s = STATUS_END;
    }
    mem_free(r->mine);
    mem_free(r->all);
    return end(s, score);
}

Status score_all(Predictor *p, Loader *l, int64_t images, float *logits, Score *score,
                 ScoreVisit visit, void *visit_user) {
    *score = (Score){0};
    if (ranks_count() < 2) return score_alone(p, l, images, logits, score, visit, visit_user);
    Rounds r = {.predictor = p,
                .loader = l,
                .logits = logits,
                .batch = p->batch,
                .classes = p->model->config.classes,
                .images = images,
                .visit = visit,
                .visit_user = visit_user};
    return score_together(&r, score);
}
