/* fastweight/graph_* and fastweight/ttt_*: the modular graph learner, and TTT-Linear and TTT-MLP as
 * graphs (fastweight.md 2, 3): output, final fast weights, and the gradient of every input. */
#include <stdio.h>
#include <string.h>

#include "fast_graph_identity.h"
#include "ttt/graph.h"

typedef struct GraphRun {
    FastCase c;
    Graph graph;
    GraphRule rule;
} GraphRun;

static bool recognise(const SafeFile *f) {
    return fast_family_is(f, "graph") || fast_family_is(f, "ttt");
}

/* ---- configuration ---- */

static int node_number(const Graph *g, const char *name) {
    for (int i = 0; i < g->count; i++)
        if (strcmp(g->nodes[i].name, name) == 0) return i;
    return GRAPH_INPUT;
}

static Status read_node(Graph *g, const cJSON *item) {
    static const char *const ops[] = {"linear", "gate", "bias", "norm", "center",
                                      "act",    "add",  "mul",  NULL};
    static const char *const functions[] = {"identity",  "relu", "silu",    "gelu",
                                            "gelu_tanh", "tanh", "sigmoid", NULL};
    GraphNode *n = &g->nodes[g->count];
    const int op = fast_index_of(fast_text_of(item, "op", ""), ops);
    const int f = fast_index_of(fast_text_of(item, "fn", "identity"), functions);
    const cJSON *in = cJSON_GetObjectItemCaseSensitive(item, "in");
    if (op < 0 || f < 0 || !cJSON_IsArray(in) || g->count == GRAPH_NODES)
        return status_set(STATUS_DATA, "config: a node of an unknown kind");
    *n = (GraphNode){.op = (GraphOp)op, .f = (Function)f, .fast = fast_flag_of(item, "fast")};
    snprintf(n->name, sizeof n->name, "%s", fast_text_of(item, "name", ""));
    n->eps = (float)fast_number_of(item, "eps", 1e-5);
    for (int k = 0; k < 2 && k < cJSON_GetArraySize(in); k++)
        n->in[k] = node_number(g, cJSON_GetArrayItem(in, k)->valuestring);
    n->width = (int64_t)fast_number_of(item, "d_out", 0);
    if (!n->width) n->width = graph_width_in(g, n);
    g->count++;
    return STATUS_OK;
}

static Status read_graph(GraphRun *r) {
    static const char *const losses[] = {"inner", "mse", "l1", "rmse", NULL};
    static const char *const views[] = {"causal", "inclusive", "exclusive", NULL};
    static const char *const scans[] = {"fwd", "bwd", "bidir", NULL};
    const cJSON *nodes = cJSON_GetObjectItemCaseSensitive(r->c.config, "nodes"), *item;
    r->graph = (Graph){.width = (int64_t)fast_number(&r->c, "d", 0)};
    cJSON_ArrayForEach(item, nodes) TRY(read_node(&r->graph, item));
    r->graph.output = node_number(&r->graph, fast_text(&r->c, "output", ""));
    TRY(graph_check(&r->graph));
    const int loss = fast_index_of(fast_text(&r->c, "loss", ""), losses);
    const int view = fast_index_of(fast_text(&r->c, "vis", ""), views);
    const int scan = fast_index_of(fast_text(&r->c, "scan", "fwd"), scans);
    if (loss < 0 || view < 0 || scan < 0)
        return status_set(STATUS_DATA, "config: an unknown loss, visibility or scan");
    r->rule = (GraphRule){.loss = (GraphLoss)loss,
                          .visibility = (GraphVisibility)view,
                          .scan = (GraphScan)scan,
                          .mean_scaling = fast_flag(&r->c, "mean_scaling"),
                          .chunk = (int64_t)fast_number(&r->c, "chunk", 0),
                          .steps = (int64_t)fast_number(&r->c, "steps", 1),
                          .ascend = fast_number(&r->c, "sign", 1) < 0,
                          .leak = true};
    return STATUS_OK;
}

/* TTT-Linear and TTT-MLP as the presets of section 3. */
static Status read_ttt(GraphRun *r) {
    const FastCase *c = &r->c;
    const char *norm = fast_text(c, "norm", "");
    const bool mlp = strcmp(fast_text(c, "inner", ""), "mlp") == 0;
    const char *name = strcmp(norm, "pre") == 0    ? "ttt_mlp_pre"
                       : strcmp(norm, "none") == 0 ? "ttt_linear_plain"
                       : mlp                       ? "ttt_mlp"
                                                   : "ttt_linear";
    TRY(graph_parse(&r->graph, graph_preset(name), (int64_t)fast_number(c, "d", 0), 1));
    for (int j = 0; j < r->graph.count; j++)
        if (r->graph.nodes[j].op == GRAPH_NORM)
            r->graph.nodes[j].eps = (float)fast_number(c, "ln_eps", 1e-6);
    r->rule =
        (GraphRule){.loss = GRAPH_MSE,
                    .visibility = strcmp(fast_text(c, "vis", ""), "causal") == 0 ? GRAPH_CAUSAL
                                                                                 : GRAPH_INCLUSIVE,
                    .chunk = (int64_t)fast_number(c, "b", 0),
                    .steps = 1,
                    .ascend = fast_number(c, "sign", 1) < 0};
    return STATUS_OK;
}

/* ---- inputs ---- */

/* [H,...] as the learner takes it: [1,H,in,out] or [1,H,1,width]. */
static Var *as_weight(const GraphRun *r, Var *w) {
    if (!w) return NULL;
    const int64_t *s = w->value.shape;
    const bool matrix = w->value.rank == 3;
    return op_view(r->c.t, w, 4, (int64_t[]){1, s[0], matrix ? s[1] : 1, s[matrix ? 2 : 1]});
}

static Var *rate_of(const GraphRun *r, const char *node) {
    Var *beta = fast_find(&r->c, "beta.", node);
    if (!beta) return fast_find(&r->c, "eta.", node);
    return graph_rate(r->c.t, beta, fast_number(&r->c, "eta0", 1));
}

static Var *decay_of(const GraphRun *r, const char *node) {
    Var *a = fast_find(&r->c, "araw.", node);
    if (!a) return fast_find(&r->c, "logf.", node);
    return graph_log_decay(r->c.t, a, fast_number(&r->c, "f0", 0.99));
}

static void fill_tokens(GraphRun *r, GraphTokens *in) {
    const FastCase *c = &r->c;
    Var *lambda = fast_find(c, "lam", "");
    if (lambda) lambda = op_scale(c->t, lambda, (float)fast_number(c, "grad_scale", 1));
    const bool swapped = strcmp(fast_text(c, "q_from", "q"), "k") == 0;
    *in = (GraphTokens){.q = fast_find(c, swapped ? "k" : "q", ""),
                        .k = fast_find(c, "k", ""),
                        .v = fast_find(c, "v", ""),
                        .tau = fast_find(c, "tau", "")};
    for (int j = 0; j < r->graph.count; j++) {
        const GraphNode *n = &r->graph.nodes[j];
        if (graph_has_weight(n)) in->weight[j] = as_weight(r, fast_find(c, "w.", n->name));
        if (!n->fast) continue;
        in->rate[j] = lambda ? lambda : rate_of(r, n->name);
        in->decay[j] = decay_of(r, n->name);
    }
}

/* ---- the run ---- */

static Status run_case(GraphRun *r) {
    FastCase *c = &r->c;
    GraphTokens in;
    GraphState end = {0};
    fill_tokens(r, &in);
    TRY(tape_status(c->t));
    TRY(fast_graph_identity(c, &r->graph, &r->rule, &in));
    const bool both = r->rule.scan == GRAPH_BOTH;
    Var *out = graph_forward(&r->graph, &r->rule, c->t, &in, both ? NULL : &end);
    Var *z = fast_find(c, "gate_logit", ""), *gamma = fast_find(c, "gate_gamma", "");
    if (z && gamma)
        out = graph_output_gate(c->t, out, z, as_weight(r, gamma),
                                (float)fast_number(c, "gate_eps", 1e-5));
    Var *loss = fast_loss(c, out);
    TRY(fast_compare_out(c, "graph", out));
    for (int j = 0; j < r->graph.count; j++) {
        loss = fast_loss_end(c, loss, r->graph.nodes[j].name, end.weight[j]);
        TRY(fast_compare_end(c, "graph", r->graph.nodes[j].name, end.weight[j]));
    }
    return fast_compare_gradients(c, "graph", loss);
}

static Status run(Golden *g) {
    GraphRun r = {0};
    Status s = fast_begin(&r.c, g);
    const char *name = safetensors_meta(g->file, "case");
    if (name && strstr(name, "strong")) r.c.out32 = 2e-5, r.c.grad32 = 1e-4;
    if (s == STATUS_OK) s = fast_family_is(g->file, "ttt") ? read_ttt(&r) : read_graph(&r);
    if (s == STATUS_OK) s = run_case(&r);
    fast_end(&r.c);
    return s;
}

const GoldenKind golden_kind_graph = {"fastweight/graph", recognise, run};
