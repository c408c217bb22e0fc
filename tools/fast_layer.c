/* Layers of every kind: tracing, and their tensors on the host. */
#include "tools/fast_layer.h"

#include <string.h>

#include "core/memory.h"

FastLayer fast_layer_vittt(VitttMixer *m, int64_t side) {
    return (FastLayer){.kind = LAYER_VITTT, .vittt = m, .side = side};
}

FastLayer fast_layer_lact(LactLayer *m) {
    return (FastLayer){.kind = LAYER_LACT, .lact = m};
}

FastLayer fast_layer_graph(SequenceMixer *m) {
    return (FastLayer){.kind = LAYER_GRAPH, .graph = m};
}

void fast_layer_trace(FastLayer *l, bool on) {
    if (l->kind == LAYER_VITTT) l->vittt->trace = on ? &l->vittt_trace : NULL;
    if (l->kind == LAYER_LACT) l->lact->trace = on ? &l->lact_trace : NULL;
    if (l->kind == LAYER_GRAPH) l->graph->trace = on ? &l->graph_trace : NULL;
}

bool fast_layer_has_muon(const FastLayer *l) {
    return l->kind == LAYER_LACT && !l->lact->variant.no_muon;
}

Status fast_layer_pull(Device *d, Tensor t, double **out) {
    const int64_t n = tensor_count(t);
    void *raw;
    TRY(mem_alloc(&raw, n, dtype_size(t.dtype), "a layer's values"));
    Status s = mem_alloc((void **)out, n, sizeof **out, "a layer's values");
    if (s == STATUS_OK) s = device_pull(d, raw, t);
    for (int64_t i = 0; s == STATUS_OK && i < n; i++)
        (*out)[i] = t.dtype == DTYPE_F32 ? (double)((float *)raw)[i]
                                         : (double)f32_from_bf16(((uint16_t *)raw)[i]);
    mem_free(raw);
    return s;
}

void matrix_columns(double *out, const double *x, int64_t rows, int64_t all, int64_t from,
                    int64_t width) {
    for (int64_t r = 0; r < rows; r++)
        memcpy(out + r * width, x + r * all + from, (size_t)width * sizeof *out);
}

/* ---- LaCT ---- */

/* Writing and reading tokens in one list, [writing + reading, width]. */
static Status join_tokens(LactInput *x, int64_t writing, int64_t reading, int64_t width) {
    double *both;
    TRY(mem_alloc((void **)&both, (writing + reading) * width, sizeof *both, "tokens"));
    memcpy(both, x->owned[0], (size_t)(writing * width) * sizeof *both);
    memcpy(both + writing * width, x->owned[1], (size_t)(reading * width) * sizeof *both);
    mem_free(x->owned[0]);
    x->owned[0] = both;
    return STATUS_OK;
}

Status lact_input(Device *d, const FastLayer *l, LactInput *x) {
    const LactLayer *m = l->lact;
    const LactTrace *t = &l->lact_trace;
    *x = (LactInput){.in = {.variant = m->variant,
                            .query_rows = m->qkv_w->value.shape[0] == 3 * m->width,
                            .steps = m->steps,
                            .tokens = t->x->value.shape[1],
                            .writing = t->writing,
                            .width = m->width,
                            .heads = m->heads,
                            .inter_multi = m->inter_multi}};
    const Tensor from[9] = {t->x->value,      t->read ? t->read->value : tensor_none(),
                            m->qkv_w->value,  m->rate_w->value,
                            m->rate_b->value, m->w[0]->value,
                            m->w[1]->value,   m->w[2]->value,
                            t->o->value};
    Status s = STATUS_OK;
    for (int i = 0; i < 9 && s == STATUS_OK; i++)
        if (!tensor_is_none(from[i])) s = fast_layer_pull(d, from[i], &x->owned[i]);
    if (s == STATUS_OK && t->read) {
        const int64_t reading = t->read->value.shape[1];
        s = join_tokens(x, t->writing, reading, m->width);
        x->in.tokens = t->writing + reading;
        x->in.first_read = t->writing;
    }
    if (s != STATUS_OK) {
        lact_input_free(x);
        return s;
    }
    x->in.x = x->owned[0];
    x->in.qkv_w = x->owned[2];
    x->in.rate_w = x->owned[3];
    x->in.rate_b = x->owned[4];
    for (int j = 0; j < 3; j++) x->in.w[j] = x->owned[5 + j];
    x->in.out = x->owned[8];
    return STATUS_OK;
}

void lact_input_free(LactInput *x) {
    for (int i = 0; i < 9; i++) mem_free(x->owned[i]);
    *x = (LactInput){0};
}

/* ---- graphs ---- */

static Status pull_nodes(Device *d, const FastLayer *l, GraphInput *x) {
    const SequenceMixer *m = l->graph;
    for (int j = 0; j < m->graph.count; j++) {
        const Var *rate = l->graph_trace.rate[j];
        if (rate) TRY(fast_layer_pull(d, rate->value, &x->rate[j]));
        if (m->weight[j]) TRY(fast_layer_pull(d, m->weight[j]->value, &x->weight[j]));
    }
    return STATUS_OK;
}

Status graph_input(Device *d, const FastLayer *l, GraphInput *x) {
    const GraphTrace *t = &l->graph_trace;
    *x = (GraphInput){.tokens = t->q->value.shape[2]};
    Status s = fast_layer_pull(d, t->q->value, &x->q);
    if (s == STATUS_OK) s = fast_layer_pull(d, t->k->value, &x->k);
    if (s == STATUS_OK) s = fast_layer_pull(d, t->v->value, &x->v);
    if (s == STATUS_OK) s = fast_layer_pull(d, t->o->value, &x->o);
    if (s == STATUS_OK) s = pull_nodes(d, l, x);
    if (s != STATUS_OK) graph_input_free(x);
    return s;
}

void graph_input_free(GraphInput *x) {
    double *tokens[] = {x->q, x->k, x->v, x->o};
    for (int i = 0; i < 4; i++) mem_free(tokens[i]);
    for (int j = 0; j < GRAPH_NODES; j++) {
        mem_free(x->rate[j]);
        mem_free(x->weight[j]);
    }
    *x = (GraphInput){0};
}

IdentityGraph graph_head(const GraphInput *x, const FastLayer *l, int64_t h) {
    const Graph *g = &l->graph->graph;
    const int64_t at = h * x->tokens * g->width;
    IdentityGraph in = {.graph = g,
                        .rule = &l->graph->rule,
                        .tokens = x->tokens,
                        .q = x->q + at,
                        .k = x->k + at,
                        .v = x->v + at,
                        .out = x->o + at};
    for (int j = 0; j < g->count; j++) {
        const GraphNode *n = &g->nodes[j];
        const int64_t rows = n->op == GRAPH_LINEAR ? graph_width_in(g, n) : 1;
        if (x->rate[j]) in.rate[j] = x->rate[j] + h * x->tokens;
        if (x->weight[j]) in.weight[j] = x->weight[j] + h * rows * n->width;
    }
    return in;
}
