#include "fast_graph_identity.h"

#include <stdio.h>

#include "core/memory.h"
#include "ttt/identity.h"

/* A device tensor as doubles (mem_free). */
static Status pull(Device *d, Tensor x, double **out) {
    const int64_t n = tensor_count(x);
    float *raw;
    TRY(mem_alloc((void **)&raw, n, sizeof *raw, "values"));
    Status s = mem_alloc((void **)out, n, sizeof **out, "values");
    if (s == STATUS_OK) s = device_pull(d, raw, x);
    for (int64_t i = 0; s == STATUS_OK && i < n; i++) (*out)[i] = (double)raw[i];
    mem_free(raw);
    return s;
}

static bool applies(const FastCase *c, const Graph *g, const GraphTokens *in) {
    if (c->g->precision != GOLDEN_FP32 || in->tau || fast_find(c, "gate_logit", "")) return false;
    for (int j = 0; j < g->count; j++)
        if (in->decay[j] || (in->rate[j] && in->rate[j]->value.rank == 4)) return false;
    return true;
}

/* All of a case on the host, heads one after another. */
typedef struct Host {
    double *q, *k, *v, *rate[GRAPH_NODES], *weight[GRAPH_NODES];
    GoldenArray out;
} Host;

static Status pull_all(FastCase *c, const Graph *g, const GraphTokens *in, Host *h) {
    Device *d = c->g->device;
    TRY(golden_read(c->g, &h->out, "out"));
    TRY(pull(d, in->q->value, &h->q));
    TRY(pull(d, in->k->value, &h->k));
    TRY(pull(d, in->v->value, &h->v));
    for (int j = 0; j < g->count; j++) {
        if (in->rate[j]) TRY(pull(d, in->rate[j]->value, &h->rate[j]));
        if (in->weight[j]) TRY(pull(d, in->weight[j]->value, &h->weight[j]));
    }
    return STATUS_OK;
}

static void report(Golden *g, const char *what, int64_t head, double error, bool good) {
    printf("  %s head %lld: %.2e  %s\n", what, (long long)head, error, good ? "ok" : "FAIL");
    g->checked++;
    g->failed += !good;
}

/* One head of one sample; constant rates [H] are spread over its tokens. */
static Status check_head(FastCase *c, const Graph *g, const GraphRule *rule, const GraphTokens *in,
                         const Host *h, int64_t b, int64_t head, double *spread) {
    const int64_t *shape = in->q->value.shape, n = shape[2], at = (b * shape[1] + head) * n;
    IdentityGraph x = {.graph = g,
                       .rule = rule,
                       .tokens = n,
                       .q = h->q + at * shape[3],
                       .k = h->k + at * shape[3],
                       .v = h->v + at * shape[3],
                       .out = h->out.values + at * shape[3]};
    for (int j = 0; j < g->count; j++) {
        if (h->weight[j]) {
            const Tensor w = in->weight[j]->value;
            const int64_t size = w.shape[2] * w.shape[3];
            x.weight[j] = h->weight[j] + ((w.shape[0] == 1 ? 0 : b) * shape[1] + head) * size;
        }
        if (!h->rate[j]) continue;
        const bool constant = in->rate[j]->value.rank == 1;
        for (int64_t t = 0; constant && t < n; t++) spread[j * n + t] = h->rate[j][head];
        x.rate[j] = constant ? spread + j * n : h->rate[j] + at;
    }
    IdentityResult r[GRAPH_NODES + 1];
    TRY(identity_graph(&x, r));
    double worst = 0;
    for (int j = 0; j < g->count; j++) worst = r[j].f64 > worst ? r[j].f64 : worst;
    report(c->g, "reads, f64,", head, worst, worst <= 1e-10);
    report(c->g, "output, file,", head, r[g->count].layer, r[g->count].layer <= 1e-6);
    return STATUS_OK;
}

Status fast_graph_identity(FastCase *c, const Graph *g, const GraphRule *rule,
                           const GraphTokens *in) {
    if (!applies(c, g, in)) return STATUS_OK;
    const int64_t *shape = in->q->value.shape;
    Host h = {0};
    double *spread = NULL;
    Status s = pull_all(c, g, in, &h);
    if (s == STATUS_OK)
        s = mem_alloc((void **)&spread, GRAPH_NODES * shape[2], sizeof *spread, "rates");
    for (int64_t b = 0; b < shape[0] && s == STATUS_OK; b++)
        for (int64_t head = 0; head < shape[1] && s == STATUS_OK; head++)
            s = check_head(c, g, rule, in, &h, b, head, spread);
    double *owned[] = {h.q, h.k, h.v, h.out.values, spread};
    for (int i = 0; i < 5; i++) mem_free(owned[i]);
    for (int j = 0; j < GRAPH_NODES; j++) {
        mem_free(h.rate[j]);
        mem_free(h.weight[j]);
    }
    return s;
}
