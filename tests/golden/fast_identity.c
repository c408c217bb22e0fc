/* fastweight/lact_identity_*: the effective queries, keys, values and start states of every chunk,
 * and that they give the layer's output (fastweight.md 6). */
#include <math.h>
#include <stdio.h>
#include <string.h>

#include "core/memory.h"
#include "fast_case.h"
#include "fast_lact.h"
#include "ttt/identity.h"

static bool recognise(const SafeFile *f) {
    return fast_family_is(f, "lact_identity");
}

/* All of a case; heads follow each other in every array. */
typedef struct IdentityRun {
    FastCase *c;
    ChunkedRule rule;
    GoldenArray a[11];
} IdentityRun;

static const char *const names[11] = {"q",   "k",    "v",    "lr.w0", "lr.w1", "lr.w2",
                                      "mom", "w.w0", "w.w1", "w.w2",  "out"};

static IdentityChunked head_of(const IdentityRun *r, int64_t head) {
    const int64_t *q = r->a[0].shape;
    IdentityChunked in = {.rule = &r->rule,
                          .tokens = q[2],
                          .dk = q[3],
                          .dv = r->a[2].shape[3],
                          .dh = r->a[8].shape[1]};
    const double *at[11];
    const int64_t heads = q[0] * q[1];
    for (int i = 0; i < 11; i++)
        at[i] = r->a[i].values ? r->a[i].values + r->a[i].count / heads * head : NULL;
    in.q = at[0], in.k = at[1], in.v = at[2];
    in.momentum = at[6];
    for (int j = 0; j < 3; j++) in.rate[j] = at[3 + j], in.w[j] = at[7 + j];
    in.out = at[10];
    return in;
}

/* One part of one head against <name>.<chunk>. */
static Status compare_part(Golden *g, const char *name, int64_t chunk, int64_t heads, int64_t head,
                           const double *got, int64_t count) {
    GoldenArray want;
    TRY(golden_read(g, &want, "%s.%lld", name, (long long)chunk));
    double off = 0, size = 0;
    const bool fits = want.count == count * heads;
    for (int64_t i = 0; fits && i < count; i++) {
        const double x = want.values[head * count + i];
        off += (got[i] - x) * (got[i] - x);
        size += x * x;
    }
    mem_free(want.values);
    const double error = fits ? sqrt(off / size) : NAN;
    const bool good = error <= 5e-7; /* the file rounds to F32 (9) */
    printf("  %s.%lld head %lld %*s %-9s %9.2e  %s\n", name, (long long)chunk, (long long)head, 25,
           "", "host", error, good ? "ok" : "FAIL");
    g->checked++;
    g->failed += !good;
    return STATUS_OK;
}

/* A different order of pairs is no difference: what counts is khat' vhat. */
static Status pair_product(const IdentityParts *p, const IdentityChunked *in, const double *k,
                           const double *v, double *out) {
    memset(out, 0, (size_t)(in->dh * in->dv) * sizeof *out);
    for (int64_t s = 0; s < p->pairs; s++)
        for (int64_t i = 0; i < in->dh; i++)
            for (int64_t o = 0; o < in->dv; o++)
                out[i * in->dv + o] += k[s * in->dh + i] * v[s * in->dv + o];
    return STATUS_OK;
}

static Status compare_pairs(Golden *g, int64_t chunk, int64_t heads, int64_t head,
                            const IdentityChunked *in, const IdentityParts *p) {
    GoldenArray k, v;
    double mine[1024], theirs[1024], off = 0, size = 0;
    if (p->pairs == 0) return STATUS_OK;
    TRY(golden_read(g, &k, "khat.%lld", (long long)chunk));
    TRY(golden_read(g, &v, "vhat.%lld", (long long)chunk));
    const bool fits = k.count == heads * p->pairs * in->dh &&
                      v.count == heads * p->pairs * in->dv && in->dh * in->dv <= 1024;
    if (fits) {
        TRY(pair_product(p, in, p->khat, p->vhat, mine));
        TRY(pair_product(p, in, k.values + head * p->pairs * in->dh,
                         v.values + head * p->pairs * in->dv, theirs));
    }
    for (int64_t i = 0; fits && i < in->dh * in->dv; i++) {
        off += (mine[i] - theirs[i]) * (mine[i] - theirs[i]);
        size += theirs[i] * theirs[i];
    }
    mem_free(k.values);
    mem_free(v.values);
    const double error = fits ? sqrt(off / size) : NAN;
    printf("  khat' vhat.%lld head %lld %*s %-9s %9.2e  %s\n", (long long)chunk, (long long)head,
           19, "", "host", error, error <= 1e-6 ? "ok" : "FAIL");
    g->checked++;
    g->failed += !(error <= 1e-6);
    return STATUS_OK;
}

static Status check_chunk(IdentityRun *r, int64_t head, int64_t chunk) {
    Golden *g = r->c->g;
    const IdentityChunked in = head_of(r, head);
    const int64_t heads = r->a[0].shape[0] * r->a[0].shape[1];
    IdentityParts p;
    TRY(identity_chunked_parts(&in, chunk, &p));
    Status s = compare_part(g, "qhat", chunk, heads, head, p.qhat, p.n * in.dh);
    if (s == STATUS_OK) s = compare_part(g, "s0", chunk, heads, head, p.s0, in.dh * in.dv);
    if (s == STATUS_OK) s = compare_pairs(g, chunk, heads, head, &in, &p);
    identity_parts_free(&p);
    return s;
}

static Status check_head(IdentityRun *r, int64_t head) {
    Golden *g = r->c->g;
    const IdentityChunked in = head_of(r, head);
    IdentityResult result;
    for (int64_t chunk = 0; chunk * r->rule.chunk < in.tokens; chunk++)
        TRY(check_chunk(r, head, chunk));
    TRY(identity_chunked(&in, &result));
    const bool good = result.f64 <= 1e-10 && result.layer <= 5e-7;
    printf("  identity head %lld: f64 %.2e, file %.2e  %s\n", (long long)head, result.f64,
           result.layer, good ? "ok" : "FAIL");
    g->checked++;
    g->failed += !good;
    for (int i = 0; i < result.controls; i++) {
        const bool misses = result.control[i].error >= 1e-2;
        printf("  control '%s': %.2e  %s\n", result.control[i].name, result.control[i].error,
               misses ? "ok" : "FAIL");
        g->checked++;
        g->failed += !misses;
    }
    return STATUS_OK;
}

static Status run_case(FastCase *c) {
    IdentityRun r = {.c = c};
    TRY(fast_lact_rule(c->config, &r.rule));
    Status s = STATUS_OK;
    for (int i = 0; s == STATUS_OK && i < 11; i++)
        if (golden_has(c->g, names[i])) s = golden_read(c->g, &r.a[i], "%s", names[i]);
    for (int64_t h = 0; s == STATUS_OK && h < r.a[0].shape[0] * r.a[0].shape[1]; h++)
        s = check_head(&r, h);
    for (int i = 0; i < 11; i++) mem_free(r.a[i].values);
    return s;
}

static Status run(Golden *g) {
    FastCase c;
    Status s = fast_begin(&c, g);
    if (s == STATUS_OK) s = run_case(&c);
    fast_end(&c);
    return s;
}

const GoldenKind golden_kind_identity = {"fastweight/lact_identity", recognise, run};
