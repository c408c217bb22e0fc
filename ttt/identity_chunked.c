/* The identity of the chunked layer (fastweight.md 6): with momentum, Newton-Schulz as a linear map
 * T of keys (or values) that a chunk's tokens share, weight norm as a decay R per output channel.
 */
#include "core/memory.h"
#include "ttt/identity_parts.h"

#define COLUMN_OFFSET 1e-5

/* One update event: a step of a chunk. */
typedef struct Event {
    int64_t first, n;    /* its tokens */
    double carry;        /* momentum factor of what came before */
    double *khat, *vhat; /* [n, dh], [n, dv] */
    double *map;         /* T [dh,dh] of keys, or [dv,dv] of values; NULL: none */
    double *decay;       /* R [dv]; NULL: none */
} Event;

/* Weights that a chunk reads with. */
typedef struct ReadPoint {
    int64_t first, n, events; /* events before it */
    double *w0, *w2;          /* NULL where linear */
    double *y;                /* the recursion's output, [n, dv] */
} ReadPoint;

typedef struct History {
    const IdentityChunked *in;
    bool on_values; /* T acts on values: more rows than columns */
    Event *events;
    ReadPoint *reads;
    int64_t event_count, read_count;
    double *w[3], *update[3], *initial[3], *moved; /* recursion state; column norms to keep */
} History;

static int64_t rows_of(const IdentityChunked *in, int j) {
    return j == 1 ? in->dh : in->dk;
}
static int64_t columns_of(const IdentityChunked *in, int j) {
    return j == 1 ? in->dv : in->dh;
}

static Status take(double **out, int64_t n) {
    return mem_alloc((void **)out, n, sizeof **out, "an attention form");
}

static Status copy_of(double **out, const double *x, int64_t n) {
    TRY(take(out, n));
    memcpy(*out, x, (size_t)n * sizeof **out);
    return STATUS_OK;
}

/* phi of n tokens x [n, dk] into out [n, dh]; z0, z2 (may be NULL) the products. */
static Status features(const IdentityChunked *in, const double *x, int64_t n, const double *w0,
                       const double *w2, double *out) {
    if (in->rule->linear) {
        memcpy(out, x, (size_t)(n * in->dk) * sizeof *out);
        return STATUS_OK;
    }
    double *z;
    TRY(take(&z, n * in->dh));
    dense_product(out, x, false, w0, false, n, in->dh, in->dk, 1);
    dense_product(z, x, false, w2, false, n, in->dh, in->dk, 1);
    for (int64_t i = 0; i < n * in->dh; i++) out[i] = dense_silu(out[i]) * z[i];
    mem_free(z);
    return STATUS_OK;
}

static double rate_of(const IdentityChunked *in, int j, int64_t token) {
    return in->rate[j] ? in->rate[j][token] : 1;
}

/* ---- the recursion ---- */

/* D_j of chunk tokens [first, first + n) into d. */
static Status direction(const History *h, int j, int64_t first, int64_t n, double *d) {
    const IdentityChunked *in = h->in;
    const int64_t hidden = in->dh;
    double *work;
    TRY(take(&work, 4 * n * hidden + n * in->dk));
    double *z0 = work, *z2 = z0 + n * hidden, *dh = z2 + n * hidden, *e = dh + n * hidden;
    double *keys = e + n * hidden;
    const double *k = in->k + first * in->dk, *v = in->v + first * in->dv;
    if (j == 1) {
        Status s = features(in, k, n, h->w[0], h->w[2], e);
        for (int64_t i = 0; i < n * hidden; i++) e[i] *= rate_of(in, 1, first + i / hidden);
        if (s == STATUS_OK) dense_product(d, e, true, v, false, hidden, in->dv, n, 1);
        mem_free(work);
        return s;
    }
    dense_product(z0, k, false, h->w[0], false, n, hidden, in->dk, 1);
    dense_product(z2, k, false, h->w[2], false, n, hidden, in->dk, 1);
    dense_product(dh, v, false, h->w[1], true, n, hidden, in->dv, 1);
    for (int64_t i = 0; i < n * hidden; i++)
        e[i] = dh[i] * (j == 2 ? dense_silu(z0[i]) : z2[i] * dense_silu_slope(z0[i]));
    for (int64_t i = 0; i < n * in->dk; i++) keys[i] = k[i] * rate_of(in, j, first + i / in->dk);
    dense_product(d, keys, true, e, false, in->dk, hidden, n, 1);
    mem_free(work);
    return STATUS_OK;
}

/* W += sign U, then weight norm; the factors per column into decay (may be NULL). */
static void move(History *h, int j, const double *u, double *decay, double *norms) {
    const int64_t r = rows_of(h->in, j), c = columns_of(h->in, j);
    const double sign = h->in->rule->ascend ? -1 : 1;
    for (int64_t i = 0; i < r * c; i++) h->w[j][i] += sign * u[i];
    if (h->in->rule->no_weight_norm) return;
    dense_column_norms(norms, h->w[j], r, c);
    for (int64_t i = 0; i < c; i++) norms[i] = h->initial[j][i] / (norms[i] + COLUMN_OFFSET);
    for (int64_t i = 0; i < r * c; i++) h->w[j][i] *= norms[i % c];
    if (decay) memcpy(decay, norms, (size_t)c * sizeof *decay);
}

/* U from the momentum's state of weight j; `map` (may be NULL) receives T. */
static Status orthogonal(const History *h, int j, double *u, double **map) {
    const int64_t r = rows_of(h->in, j), c = columns_of(h->in, j);
    const double *p = h->update[j];
    if (h->in->rule->no_muon) {
        memcpy(u, p, (size_t)(r * c) * sizeof *u);
        return STATUS_OK;
    }
    double *own = NULL;
    const Status s = identity_muon_map(&h->in->rule->newton_schulz, p, r, c, &own);
    if (s != STATUS_OK) {
        mem_free(own);
        return s;
    }
    if (r > c)
        dense_product(u, p, false, own, true, r, c, c, 1);
    else
        dense_product(u, own, false, p, false, r, c, r, 1);
    if (map)
        *map = own;
    else
        mem_free(own);
    return STATUS_OK;
}

static Status event_values(History *h, Event *e) {
    const IdentityChunked *in = h->in;
    TRY(take(&e->khat, e->n * in->dh));
    TRY(take(&e->vhat, e->n * in->dv));
    TRY(features(in, in->k + e->first * in->dk, e->n, h->w[0], h->w[2], e->khat));
    const double sign = in->rule->ascend ? -1 : 1;
    for (int64_t i = 0; i < e->n * in->dv; i++)
        e->vhat[i] = sign * rate_of(in, 1, e->first + i / in->dv) * in->v[e->first * in->dv + i];
    return STATUS_OK;
}

/* All written weights at once, from the old ones. */
static Status step(History *h, Event *e) {
    const IdentityChunked *in = h->in;
    const bool all = !in->rule->static_gates && !in->rule->linear;
    TRY(event_values(h, e));
    for (int j = 0; j < 3; j++) {
        if (j != 1 && !all) continue;
        const int64_t size = rows_of(in, j) * columns_of(in, j);
        TRY(direction(h, j, e->first, e->n, h->moved));
        for (int64_t i = 0; i < size; i++)
            h->update[j][i] = h->moved[i] + e->carry * h->update[j][i];
    }
    if (!in->rule->no_weight_norm) TRY(take(&e->decay, in->dv));
    for (int j = 0; j < 3; j++) {
        if (j != 1 && !all) continue;
        TRY(orthogonal(h, j, h->moved, j == 1 ? &e->map : NULL));
        double *norms = h->moved + rows_of(in, j) * columns_of(in, j);
        move(h, j, h->moved, j == 1 ? e->decay : NULL, norms);
    }
    return STATUS_OK;
}

static Status read_point(History *h, int64_t first, int64_t n) {
    const IdentityChunked *in = h->in;
    ReadPoint *r = &h->reads[h->read_count++];
    *r = (ReadPoint){.first = first, .n = n, .events = h->event_count};
    double *phi;
    TRY(take(&r->y, n * in->dv));
    if (!in->rule->linear) {
        TRY(copy_of(&r->w0, h->w[0], in->dk * in->dh));
        TRY(copy_of(&r->w2, h->w[2], in->dk * in->dh));
    }
    TRY(take(&phi, n * in->dh));
    const Status s = features(in, in->q + first * in->dk, n, h->w[0], h->w[2], phi);
    dense_product(r->y, phi, false, h->w[1], false, n, in->dv, in->dh, 1);
    mem_free(phi);
    return s;
}

static double chunk_momentum(const IdentityChunked *in, int64_t first, int64_t n) {
    double sum = 0;
    if (!in->momentum) return 0;
    for (int64_t i = first; i < first + n; i++) sum += in->momentum[i] / (double)n;
    return sum;
}

static Status run_chunks(History *h) {
    const IdentityChunked *in = h->in;
    const ChunkedRule *rule = in->rule;
    const int64_t size = rule->chunk > 0 && rule->chunk < in->tokens ? rule->chunk : in->tokens;
    for (int64_t at = 0; at < in->tokens; at += size) {
        const int64_t n = in->tokens - at < size ? in->tokens - at : size;
        if (!rule->inclusive) TRY(read_point(h, at, n));
        for (int64_t s = 0; s < rule->steps; s++) {
            Event *e = &h->events[h->event_count++];
            *e = (Event){.first = at, .n = n, .carry = chunk_momentum(in, at, n)};
            TRY(step(h, e));
        }
        if (rule->inclusive) TRY(read_point(h, at, n));
    }
    return STATUS_OK;
}

static void history_free(History *h) {
    for (int64_t i = 0; h->events && i < h->event_count; i++) {
        mem_free(h->events[i].khat);
        mem_free(h->events[i].vhat);
        mem_free(h->events[i].map);
        mem_free(h->events[i].decay);
    }
    for (int64_t i = 0; h->reads && i < h->read_count; i++) {
        mem_free(h->reads[i].w0);
        mem_free(h->reads[i].w2);
        mem_free(h->reads[i].y);
    }
    for (int j = 0; j < 3; j++) {
        mem_free(h->w[j]);
        mem_free(h->update[j]);
        mem_free(h->initial[j]);
    }
    mem_free(h->events);
    mem_free(h->reads);
    mem_free(h->moved);
}

static Status start_state(History *h) {
    const IdentityChunked *in = h->in;
    int64_t most = 0;
    for (int j = 0; j < 3; j++) {
        if (!in->w[j]) continue;
        const int64_t r = rows_of(in, j), c = columns_of(in, j);
        most = r * c + c > most ? r * c + c : most;
        TRY(copy_of(&h->w[j], in->w[j], r * c));
        TRY(take(&h->update[j], r * c));
        TRY(take(&h->initial[j], c));
        dense_column_norms(h->initial[j], in->w[j], r, c);
    }
    return take(&h->moved, most);
}

static Status history_new(const IdentityChunked *in, History *h) {
    *h = (History){.in = in, .on_values = in->dh > in->dv};
    const int64_t size = in->rule->chunk > 0 ? in->rule->chunk : in->tokens;
    const int64_t chunks = (in->tokens + size - 1) / size;
    Status s =
        mem_alloc((void **)&h->events, chunks * in->rule->steps, sizeof *h->events, "events");
    if (s == STATUS_OK) s = mem_alloc((void **)&h->reads, chunks, sizeof *h->reads, "reads");
    if (s == STATUS_OK) s = start_state(h);
    if (s == STATUS_OK) s = run_chunks(h);
    if (s != STATUS_OK) history_free(h);
    return s;
}

/* ---- the parts of a read ---- */

/* What a control leaves out. */
typedef enum Without { WITHOUT_NOTHING, WITHOUT_MAP, WITHOUT_DECAY, WITHOUT_TIME } Without;

/* Product of the factors of events `from` up to the read. */
static void decay_since(const History *h, int64_t from, int64_t events, Without w, double *out) {
    for (int64_t c = 0; c < h->in->dv; c++) out[c] = 1;
    for (int64_t e = from; e < events && w != WITHOUT_DECAY; e++)
        for (int64_t c = 0; h->events[e].decay && c < h->in->dv; c++)
            out[c] *= h->events[e].decay[c];
}

/* Tokens of event `e` as event `at` carries them: khat T, beta vhat R. */
static void add_pairs(const History *h, int64_t e, int64_t at, double beta, const double *decay,
                      Without w, IdentityParts *p) {
    const IdentityChunked *in = h->in;
    const Event *from = &h->events[e], *by = &h->events[at];
    double *k = p->khat + p->pairs * in->dh, *v = p->vhat + p->pairs * in->dv;
    const bool mapped = by->map && w != WITHOUT_MAP;
    if (mapped && !h->on_values) /* U = T P: key rows times T' */
        dense_product(k, from->khat, false, by->map, true, from->n, in->dh, in->dh, 1);
    else
        memcpy(k, from->khat, (size_t)(from->n * in->dh) * sizeof *k);
    if (mapped && h->on_values)
        dense_product(v, from->vhat, false, by->map, true, from->n, in->dv, in->dv, 1);
    else
        memcpy(v, from->vhat, (size_t)(from->n * in->dv) * sizeof *v);
    for (int64_t i = 0; i < from->n * in->dv; i++) v[i] *= beta * decay[i % in->dv];
    p->pairs += from->n;
}

static int64_t count_pairs(const History *h, int64_t events) {
    int64_t count = 0;
    for (int64_t at = 0; at < events; at++)
        for (int64_t e = 0; e <= at; e++)
            if (e == at || h->in->momentum) count += h->events[e].n;
    return count;
}

static Status collect(const History *h, const ReadPoint *r, Without w, IdentityParts *p) {
    const IdentityChunked *in = h->in;
    double *decay;
    TRY(take(&decay, in->dv));
    for (int64_t at = 0; at < r->events; at++) {
        double beta = 1;
        decay_since(h, at, r->events, w, decay);
        for (int64_t e = at; e >= 0; e--) { /* newest first: beta grows by one factor at a time */
            add_pairs(h, e, at, beta, decay, w, p);
            beta *= h->events[e].carry;
            if (!in->momentum) break;
        }
    }
    decay_since(h, 0, r->events, w, decay);
    for (int64_t i = 0; i < in->dh * in->dv; i++) p->s0[i] = in->w[1][i] * decay[i % in->dv];
    mem_free(decay);
    return STATUS_OK;
}

static Status parts_of(const History *h, const ReadPoint *r, Without w, IdentityParts *p) {
    const IdentityChunked *in = h->in;
    const int64_t pairs = count_pairs(h, r->events);
    *p = (IdentityParts){.n = r->n};
    TRY(take(&p->qhat, r->n * in->dh));
    TRY(take(&p->s0, in->dh * in->dv));
    TRY(take(&p->khat, (pairs + 1) * in->dh));
    TRY(take(&p->vhat, (pairs + 1) * in->dv));
    const bool early = w == WITHOUT_TIME && !in->rule->linear;
    TRY(features(in, in->q + r->first * in->dk, r->n, early ? in->w[0] : r->w0,
                 early ? in->w[2] : r->w2, p->qhat));
    return collect(h, r, w, p);
}

void identity_parts_free(IdentityParts *p) {
    mem_free(p->qhat);
    mem_free(p->s0);
    mem_free(p->khat);
    mem_free(p->vhat);
    *p = (IdentityParts){0};
}

/* qhat (s0 + khat' vhat) as a sum over pairs of tokens, and qhat s0 alone. */
static Status attention(const IdentityChunked *in, const IdentityParts *p, double *y,
                        double *start) {
    double *scores;
    TRY(take(&scores, p->n * (p->pairs + 1)));
    dense_product(start, p->qhat, false, p->s0, false, p->n, in->dv, in->dh, 1);
    memcpy(y, start, (size_t)(p->n * in->dv) * sizeof *y);
    dense_product(scores, p->qhat, false, p->khat, true, p->n, p->pairs, in->dh, 1);
    dense_add_product(y, scores, false, p->vhat, false, p->n, in->dv, p->pairs, 1);
    mem_free(scores);
    return STATUS_OK;
}

/* The whole sequence in attention form. */
static Status attend_all(const History *h, Without w, double *y, double *start) {
    for (int64_t i = 0; i < h->read_count; i++) {
        IdentityParts p = {0};
        const ReadPoint *r = &h->reads[i];
        Status s = parts_of(h, r, w, &p);
        if (s == STATUS_OK)
            s = attention(h->in, &p, y + r->first * h->in->dv, start + r->first * h->in->dv);
        identity_parts_free(&p);
        TRY(s);
    }
    return STATUS_OK;
}

static Status controls(const History *h, const double *layer, double *wrong, double *start,
                       IdentityResult *out) {
    const ChunkedRule *r = h->in->rule;
    const int64_t skip = h->in->first_read * h->in->dv;
    const int64_t size = h->in->tokens * h->in->dv - skip;
    const struct {
        bool applies;
        Without what;
        const char *name;
    } list[] = {
        {!r->no_muon, WITHOUT_MAP, "no Newton-Schulz map"},
        {!r->no_weight_norm, WITHOUT_DECAY, "no weight-norm decay"},
        {!r->static_gates && !r->linear, WITHOUT_TIME, "features before the step"},
    };
    for (int i = 0; i < 3; i++) {
        if (!list[i].applies) continue;
        TRY(attend_all(h, list[i].what, wrong, start));
        identity_control(out, list[i].name, layer + skip, wrong + skip, size);
    }
    return STATUS_OK;
}

static Status compare(const History *h, double *memory, IdentityResult *out) {
    const int64_t size = h->in->tokens * h->in->dv;
    double *layer = memory, *y = memory + size, *start = y + size, *wrong = start + size;
    for (int64_t i = 0; i < h->read_count; i++)
        memcpy(layer + h->reads[i].first * h->in->dv, h->reads[i].y,
               (size_t)(h->reads[i].n * h->in->dv) * sizeof *layer);
    TRY(attend_all(h, WITHOUT_NOTHING, y, start));
    const int64_t skip = h->in->first_read * h->in->dv, read = size - skip;
    identity_compare(out, h->in->out, layer + skip, y + skip, read);
    out->start = dense_norm(start + skip, read) / fmax(dense_norm(y + skip, read), 1e-300);
    return controls(h, layer, wrong, start, out);
}

Status identity_chunked(const IdentityChunked *in, IdentityResult *out) {
    History h;
    double *memory = NULL;
    *out = (IdentityResult){0};
    TRY(history_new(in, &h));
    Status s = take(&memory, 4 * in->tokens * in->dv);
    if (s == STATUS_OK) s = compare(&h, memory, out);
    mem_free(memory);
    history_free(&h);
    return s;
}

Status identity_chunked_parts(const IdentityChunked *in, int64_t i, IdentityParts *out) {
    History h;
    TRY(history_new(in, &h));
    Status s = i < 0 || i >= h.read_count ? status_set(STATUS_USAGE, "no chunk %lld", (long long)i)
                                          : parts_of(&h, &h.reads[i], WITHOUT_NOTHING, out);
    if (s != STATUS_OK) identity_parts_free(out);
    history_free(&h);
    return s;
}
