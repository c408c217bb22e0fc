#include "ttt/sequence_mixer.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

#include "nn/ops_check.h"

#define NORM_EPS    1e-5f
#define UNIT_OFFSET 1e-5f

/* ---- names ---- */

static const char *const names[] = {
    "lact",    "lact_V1",     "lact_V2",           "lact_V3",    "lact_V4", "lact_V5",
    "lact_V6", "lact_ascent", "lact_query_is_key", "ttt_linear", "ttt_mlp"};

const char *sequence_name(int i) {
    return i >= 0 && (size_t)i < sizeof names / sizeof *names ? names[i] : NULL;
}

static const GraphRule whole_set = {
    .loss = GRAPH_MSE, .mean_scaling = true, .visibility = GRAPH_INCLUSIVE, .steps = 1};
static const GraphRule mini_batch = {
    .loss = GRAPH_MSE, .mean_scaling = true, .visibility = GRAPH_CAUSAL, .chunk = 16, .steps = 1};

bool sequence_spec_by_name(const char *name, SequenceSpec *out) {
    if (strncmp(name, "graph:", 6) == 0) {
        const char *preset = graph_preset(name + 6);
        *out = (SequenceSpec){SEQUENCE_GRAPH, {0}, preset ? preset : name + 6, whole_set, 1};
        return true;
    }
    if (strcmp(name, "ttt_linear") == 0 || strcmp(name, "ttt_mlp") == 0) {
        *out = (SequenceSpec){SEQUENCE_GRAPH, {0}, graph_preset(name), mini_batch, 1};
        return true;
    }
    bool known = false;
    for (int i = 0; sequence_name(i); i++) known |= strcmp(name, sequence_name(i)) == 0;
    LactVariant v;
    if (!known || lact_variant_by_name(name[4] ? name + 5 : "base", &v) != STATUS_OK) return false;
    *out = (SequenceSpec){.kind = SEQUENCE_LACT, .lact = v};
    return true;
}

/* ---- parameters ---- */

static Var *add(Params *p, const char *prefix, const char *name, int rank, const int64_t *shape,
                Init init, int flags) {
    char full[192];
    snprintf(full, sizeof full, "%s%s", prefix, name);
    return params_add(p, full, rank, shape, init,
                      flags | (params_decays(full, rank) ? PARAM_DECAY : 0));
}

static void add_linear(Params *p, const char *prefix, const char *name, int64_t out, int64_t in,
                       int flags, Var **w, Var **b) {
    char leaf[64];
    snprintf(leaf, sizeof leaf, "%s.weight", name);
    *w = add(p, prefix, leaf, 2, (int64_t[]){out, in}, (Init){INIT_NORMAL, 0.02f}, flags);
    snprintf(leaf, sizeof leaf, "%s.bias", name);
    *b = add(p, prefix, leaf, 1, (int64_t[]){out}, (Init){INIT_ZERO, 0}, 0);
}

/* The node's start: linear N(0, 1/in), a fan-in scale since keys have unit length; gates 1, biases
 * 0. */
static Var *add_node(const SequenceMixer *m, Params *p, const char *prefix, const GraphNode *n) {
    const int64_t in = graph_width_in(&m->graph, n);
    char leaf[64];
    snprintf(leaf, sizeof leaf, "fast.%s", n->name);
    Init init = {INIT_NORMAL, 1.0f / sqrtf((float)in)};
    if (n->op == GRAPH_GATE) init = (Init){INIT_ONE, 0};
    if (n->op == GRAPH_BIAS || n->zero) init = (Init){INIT_ZERO, 0};
    const int64_t shape[] = {1, m->heads, n->op == GRAPH_LINEAR ? in : 1, n->width};
    return add(p, prefix, leaf, 4, shape, init, 0);
}

static int fast_nodes(const Graph *g) {
    int count = 0;
    for (int j = 0; j < g->count; j++) count += g->nodes[j].fast;
    return count;
}

static Status register_graph(SequenceMixer *m, Params *p, const char *prefix,
                             const SequenceSpec *spec) {
    const int64_t c = m->width, d = c / m->heads;
    TRY(graph_parse(&m->graph, spec->graph, d, 4 * d));
    TRY(graph_rule_check(&spec->rule));
    m->rule = spec->rule;
    m->rate = spec->rate;
    for (int j = 0; j < m->graph.count; j++)
        if (graph_has_weight(&m->graph.nodes[j]))
            m->weight[j] = add_node(m, p, prefix, &m->graph.nodes[j]);
    add_linear(p, prefix, "qkv", 3 * c, c, PARAM_MATMUL, &m->qkv_w, &m->qkv_b);
    add_linear(p, prefix, "rate", fast_nodes(&m->graph) * m->heads, c, PARAM_MATMUL, &m->rate_w,
               &m->rate_b);
    m->norm_w = add(p, prefix, "norm.weight", 1, (int64_t[]){d}, (Init){INIT_ONE, 0}, 0);
    add_linear(p, prefix, "proj", c, c, PARAM_MATMUL, &m->proj_w, &m->proj_b);
    return p->status;
}

Status sequence_mixer_register(SequenceMixer *m, Params *p, const char *prefix, int64_t width,
                               int64_t heads, const SequenceSpec *spec) {
    if (width < 1 || heads < 1 || width % heads != 0)
        return status_set(STATUS_USAGE, "%s: width %lld is not a multiple of %lld heads", prefix,
                          (long long)width, (long long)heads);
    *m = (SequenceMixer){.kind = spec->kind, .width = width, .heads = heads};
    if (spec->kind == SEQUENCE_LACT)
        return lact_register(&m->lact, p, prefix, width, heads, 1, spec->lact, 0.02f);
    return register_graph(m, p, prefix, spec);
}

/* ---- the graph layer ---- */

/* Heads of a third of packed [B,N,3C] as F32 [B,H,N,d]; unit length where asked. */
static Var *heads_of(const SequenceMixer *m, Tape *t, Var *packed, int third, bool unit) {
    const int64_t d = m->width / m->heads;
    Var *x = op_split_heads(t, packed, third * m->width, m->heads, d);
    if (!unit || tape_poison(t)) return x;
    Var *y = op_normalise(t, x, tensor_rows(x->value), d, 1, UNIT_OFFSET);
    tape_drop(t, x);
    return y;
}

/* eta of the i-th fast node, F32 [B,H,N]. */
static Var *rate_of(const SequenceMixer *m, Tape *t, Var *rates, int i) {
    Var *beta = op_split_heads(t, rates, i * m->heads, m->heads, 1);
    if (tape_poison(t)) return tape_poison(t);
    const int64_t *s = beta->value.shape;
    Var *eta = graph_rate(t, op_view(t, beta, 3, (int64_t[]){s[0], s[1], s[2]}), m->rate);
    tape_drop(t, beta);
    return eta;
}

/* x in F32; x itself where it is that. */
static Var *widened(Tape *t, Var *x) {
    Var *y = op_cast(t, x, DTYPE_F32);
    if (y != x) tape_drop(t, x);
    return y;
}

static GraphTokens tokens_of(const SequenceMixer *m, Tape *t, Var *x) {
    Var *packed = widened(t, op_linear(t, x, m->qkv_w, m->qkv_b));
    if (m->swap) {
        const QueryPlace place = {0, m->width, m->heads, m->width / m->heads};
        Var *other = query_swap(t, packed, m->swap, place);
        if (!tape_poison(t)) tape_drop(t, packed);
        packed = other;
    }
    Var *rates = widened(t, op_linear(t, x, m->rate_w, m->rate_b));
    GraphTokens in = {.q = heads_of(m, t, packed, 0, true),
                      .k = heads_of(m, t, packed, 1, true),
                      .v = heads_of(m, t, packed, 2, false)};
    for (int j = 0, i = 0; j < m->graph.count; j++) {
        in.weight[j] = m->weight[j];
        if (m->graph.nodes[j].fast) in.rate[j] = rate_of(m, t, rates, i++);
    }
    if (tape_poison(t)) return in;
    tape_drop(t, packed);
    tape_drop(t, rates);
    return in;
}

static void keep_trace(const SequenceMixer *m, Tape *t, const GraphTokens *in, Var *o) {
    *m->trace = (GraphTrace){.q = op_scale(t, in->q, 1),
                             .k = op_scale(t, in->k, 1),
                             .v = op_scale(t, in->v, 1),
                             .o = op_scale(t, o, 1)};
    for (int j = 0; j < m->graph.count; j++)
        if (in->rate[j]) m->trace->rate[j] = op_scale(t, in->rate[j], 1);
}

/* [B,N,C] in the activations' dtype: heads normed and merged. */
static Var *graph_layer(const SequenceMixer *m, Tape *t, Var *x) {
    if (tape_poison(t)) return tape_poison(t);
    const GraphTokens in = tokens_of(m, t, x);
    Var *o = graph_forward(&m->graph, &m->rule, t, &in, NULL);
    if (m->trace) keep_trace(m, t, &in, o);
    Var *normed = op_rmsnorm(t, o, m->norm_w, NORM_EPS);
    Var *merged = op_merge_heads(t, normed, NULL);
    if (tape_poison(t)) return tape_poison(t);
    Var *spent[] = {in.q, in.k, in.v, o, normed};
    for (int i = 0; i < 5; i++) tape_drop(t, spent[i]);
    for (int j = 0; j < m->graph.count; j++)
        if (in.rate[j]) tape_drop(t, in.rate[j]);
    Var *y = op_cast(t, merged, tape_act(t));
    if (y != merged) tape_drop(t, merged);
    return y;
}

Var *sequence_mixer_join(const SequenceMixer *m, Tape *t, Var *x, Var *residual, Tensor scale) {
    if (tape_poison(t)) return tape_poison(t);
    if (m->kind == SEQUENCE_GRAPH) {
        Var *y = graph_layer(m, t, x);
        Var *out = op_linear_residual(t, y, m->proj_w, m->proj_b, residual, scale);
        if (!tape_poison(t)) tape_drop(t, y);
        return out;
    }
    const bool plain = tensor_is_none(scale);
    Var *y = lact_forward(&m->lact, t, x, x->value.shape[1], plain ? residual : NULL, NULL);
    if (plain || tape_poison(t)) return y;
    Var *out = op_residual(t, residual, y, scale);
    tape_drop(t, y);
    return out;
}
