/* fastweight/qk_distance and fastweight/weight_norm: single pieces (fastweight.md 4.1, 10.3). */
#include <stdio.h>

#include "core/memory.h"
#include "fast_case.h"
#include "nn/ops.h"
#include "ttt/chunked_parts.h"
#include "ttt/distance.h"

/* ---- distances of queries and keys ---- */

static bool is_distance(const SafeFile *f) {
    return fast_family_is(f, "qk_distance");
}

static Status compare_distance(Golden *g, const GoldenArray *q, const GoldenArray *k,
                               const GoldenArray *out) {
    CloudDistance d;
    if (q->rank != 2 || k->rank != 2 || out->count != 5)
        return status_set(STATUS_DATA, "expected q and k [n,d] and five statistics");
    TRY(cloud_distance(q->values, q->shape[0], k->values, k->shape[0], q->shape[1], &d));
    const double got[] = {d.frechet, d.mmd2, d.energy, d.mean_cos, d.auc};
    static const char *const names[] = {"frechet", "mmd2", "energy", "mean_cos", "fisher_auc"};
    for (int i = 0; i < 5; i++) {
        const double want = out->values[i], off = got[i] > want ? got[i] - want : want - got[i];
        /* The file rounds to F32. */
        const bool good = off <= 2e-7 * (want > 0 ? want : -want) + 1e-9;
        printf("  %-42s %-9s %9.2e  %s\n", names[i], "host", off, good ? "ok" : "FAIL");
        g->checked++;
        g->failed += !good;
    }
    return STATUS_OK;
}

static Status run_distance(Golden *g) {
    GoldenArray q = {0}, k = {0}, out = {0};
    Status s = golden_read(g, &q, "q");
    if (s == STATUS_OK) s = golden_read(g, &k, "k");
    if (s == STATUS_OK) s = golden_read(g, &out, "out");
    if (s == STATUS_OK) s = compare_distance(g, &q, &k, &out);
    mem_free(q.values);
    mem_free(k.values);
    mem_free(out.values);
    return s;
}

const GoldenKind golden_kind_distance = {"fastweight/qk_distance", is_distance, run_distance};

/* ---- weight norm ---- */

static bool is_weight_norm(const SafeFile *f) {
    return fast_family_is(f, "weight_norm");
}

static Status run_norm_case(FastCase *c) {
    Scope scope = {.t = c->t};
    Var *raw = fast_find(c, "Wraw", ""), *init = fast_find(c, "w.init", "");
    if (!raw || !init) return status_set(STATUS_DATA, "expected Wraw and w.init");
    const int64_t *s = raw->value.shape;
    const ChunkedRule rule = {0};
    const ChunkedRun r = {.rule = &rule, .t = c->t, .s = &scope, .batch = s[0], .heads = 1};
    Var *w = op_view(c->t, raw, 4, (int64_t[]){s[0], 1, s[1], s[2]});
    Var *like = op_view(c->t, init, 4, (int64_t[]){1, 1, s[1], s[2]});
    Var *y = chunked_weight_norm(&r, w, like);
    TRY(fast_compare_out(c, "composed", y));
    const Status status = fast_compare_gradients(c, "composed", fast_loss(c, y));
    scope_end(&scope);
    return status;
}

static Status run_weight_norm(Golden *g) {
    FastCase c;
    Status s = fast_begin(&c, g);
    if (s == STATUS_OK) s = run_norm_case(&c);
    fast_end(&c);
    return s;
}

const GoldenKind golden_kind_weight_norm = {"fastweight/weight_norm", is_weight_norm,
                                            run_weight_norm};
