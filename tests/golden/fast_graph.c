/* fastweight/graph_* and fastweight/ttt_*: the modular graph learner, and TTT-Linear and TTT-MLP as
 * graphs (fastweight.md 2, 3): output, final fast weights, and the gradient of every input. */
#include <cjson/cJSON.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "core/json.h"
#include "core/memory.h"
#include "golden.h"
#include "ttt/graph.h"

#define GRAPH_INPUTS 64

/* One input tensor of the file. */
typedef struct GraphInput {
    char name[64];
    Var *v;
} GraphInput;

typedef struct GraphRun {
    Golden *g;
    Tape *t;
    const cJSON *config;
    Graph graph;
    GraphRule rule;
    GraphInput inputs[GRAPH_INPUTS];
    int count;
    double floor;
} GraphRun;

static bool family_is(const SafeFile *f, const char *family) {
    const char *text = safetensors_meta(f, "family");
    return text && strcmp(text, family) == 0;
}

static bool recognise(const SafeFile *f) {
    return family_is(f, "graph") || family_is(f, "ttt");
}

/* ---- configuration ---- */

static const char *text_of(const cJSON *o, const char *key, const char *absent) {
    const cJSON *v = cJSON_GetObjectItemCaseSensitive(o, key);
    return cJSON_IsString(v) ? v->valuestring : absent;
}
static double number_of(const cJSON *o, const char *key, double absent) {
    const cJSON *v = cJSON_GetObjectItemCaseSensitive(o, key);
    return cJSON_IsNumber(v) ? v->valuedouble : absent;
}
static bool flag_of(const cJSON *o, const char *key) {
    return cJSON_IsTrue(cJSON_GetObjectItemCaseSensitive(o, key));
}

/* Index of `word` among `names`, which NULL ends; -1 when absent. */
static int index_of(const char *word, const char *const *names) {
    for (int i = 0; names[i]; i++)
        if (strcmp(word, names[i]) == 0) return i;
    return -1;
}

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
    const int op = index_of(text_of(item, "op", ""), ops);
    const int f = index_of(text_of(item, "fn", "identity"), functions);
    const cJSON *in = cJSON_GetObjectItemCaseSensitive(item, "in");
    if (op < 0 || f < 0 || !cJSON_IsArray(in) || g->count == GRAPH_NODES)
        return status_set(STATUS_DATA, "config: a node of an unknown kind");
    *n = (GraphNode){.op = (GraphOp)op, .f = (Function)f, .fast = flag_of(item, "fast")};
    snprintf(n->name, sizeof n->name, "%s", text_of(item, "name", ""));
    n->eps = (float)number_of(item, "eps", 1e-5);
    for (int k = 0; k < 2 && k < cJSON_GetArraySize(in); k++)
        n->in[k] = node_number(g, cJSON_GetArrayItem(in, k)->valuestring);
    n->width = (int64_t)number_of(item, "d_out", 0);
    if (!n->width) n->width = graph_width_in(g, n);
    g->count++;
    return STATUS_OK;
}

static Status read_graph(GraphRun *r) {
    static const char *const losses[] = {"inner", "mse", "l1", "rmse", NULL};
    static const char *const views[] = {"causal", "inclusive", "exclusive", NULL};
    static const char *const scans[] = {"fwd", "bwd", "bidir", NULL};
    const cJSON *nodes = cJSON_GetObjectItemCaseSensitive(r->config, "nodes"), *item;
    r->graph = (Graph){.width = (int64_t)number_of(r->config, "d", 0)};
    cJSON_ArrayForEach(item, nodes) TRY(read_node(&r->graph, item));
    r->graph.output = node_number(&r->graph, text_of(r->config, "output", ""));
    TRY(graph_check(&r->graph));
    const int loss = index_of(text_of(r->config, "loss", ""), losses);
    const int view = index_of(text_of(r->config, "vis", ""), views);
    const int scan = index_of(text_of(r->config, "scan", "fwd"), scans);
    if (loss < 0 || view < 0 || scan < 0)
        return status_set(STATUS_DATA, "config: an unknown loss, visibility or scan");
    r->rule = (GraphRule){.loss = (GraphLoss)loss,
                          .visibility = (GraphVisibility)view,
                          .scan = (GraphScan)scan,
                          .mean_scaling = flag_of(r->config, "mean_scaling"),
                          .chunk = (int64_t)number_of(r->config, "chunk", 0),
                          .steps = (int64_t)number_of(r->config, "steps", 1),
                          .ascend = number_of(r->config, "sign", 1) < 0,
                          .leak = true};
    return STATUS_OK;
}

/* TTT-Linear and TTT-MLP as the presets of section 3. */
static Status read_ttt(GraphRun *r) {
    const cJSON *c = r->config;
    const char *norm = text_of(c, "norm", "");
    const bool mlp = strcmp(text_of(c, "inner", ""), "mlp") == 0;
    const char *name = strcmp(norm, "pre") == 0    ? "ttt_mlp_pre"
                       : strcmp(norm, "none") == 0 ? "ttt_linear_plain"
                       : mlp                       ? "ttt_mlp"
                                                   : "ttt_linear";
    TRY(graph_parse(&r->graph, graph_preset(name), (int64_t)number_of(c, "d", 0), 1));
    for (int j = 0; j < r->graph.count; j++)
        if (r->graph.nodes[j].op == GRAPH_NORM)
            r->graph.nodes[j].eps = (float)number_of(c, "ln_eps", 1e-6);
    r->rule = (GraphRule){
        .loss = GRAPH_MSE,
        .visibility = strcmp(text_of(c, "vis", ""), "causal") == 0 ? GRAPH_CAUSAL : GRAPH_INCLUSIVE,
        .chunk = (int64_t)number_of(c, "b", 0),
        .steps = 1,
        .ascend = number_of(c, "sign", 1) < 0};
    return STATUS_OK;
}

/* ---- inputs ---- */

static Status read_inputs(GraphRun *r) {
    const char *names = safetensors_meta(r->g->file, "inputs");
    if (!names) return status_set(STATUS_DATA, "metadata 'inputs' is missing");
    for (const char *at = names; *at;) {
        const size_t n = strcspn(at, ",");
        if (r->count == GRAPH_INPUTS) return status_set(STATUS_DATA, "too many inputs");
        GraphInput *in = &r->inputs[r->count++];
        snprintf(in->name, sizeof in->name, "%.*s", (int)n, at);
        GoldenArray a;
        Tensor x;
        TRY(golden_read(r->g, &a, "%s", in->name));
        Status s = golden_push(r->t, &a, DTYPE_F32, &x);
        mem_free(a.values);
        TRY(s);
        in->v = strncmp(in->name, "cot", 3) == 0 ? tape_input(r->t, x, in->name)
                                                 : tape_input_grad(r->t, x, in->name);
        at += n + (at[n] == ',');
        while (*at == ' ') at++;
    }
    return tape_status(r->t);
}

/* The input <prefix><name>, or NULL. */
static Var *find(const GraphRun *r, const char *prefix, const char *name) {
    char full[96];
    snprintf(full, sizeof full, "%s%s", prefix, name);
    for (int i = 0; i < r->count; i++)
        if (strcmp(r->inputs[i].name, full) == 0) return r->inputs[i].v;
    return NULL;
}

/* [H,...] as the learner takes it: [1,H,in,out] or [1,H,1,width]. */
static Var *as_weight(const GraphRun *r, Var *w) {
    if (!w) return NULL;
    const int64_t *s = w->value.shape;
    const bool matrix = w->value.rank == 3;
    return op_view(r->t, w, 4, (int64_t[]){1, s[0], matrix ? s[1] : 1, s[matrix ? 2 : 1]});
}

static void fill_tokens(GraphRun *r, GraphTokens *in) {
    const bool raw_rate = strcmp(text_of(r->config, "lr_param", "direct"), "direct") != 0;
    const bool raw_decay = strcmp(text_of(r->config, "decay_param", "direct"), "direct") != 0;
    Var *lambda = find(r, "lam", "");
    const double scale = number_of(r->config, "grad_scale", 1);
    if (lambda) lambda = op_scale(r->t, lambda, (float)scale);
    *in =
        (GraphTokens){.q = find(r, strcmp(text_of(r->config, "q_from", "q"), "k") ? "q" : "k", ""),
                      .k = find(r, "k", ""),
                      .v = find(r, "v", ""),
                      .tau = find(r, "tau", "")};
    for (int j = 0; j < r->graph.count; j++) {
        const GraphNode *n = &r->graph.nodes[j];
        if (graph_has_weight(n)) in->weight[j] = as_weight(r, find(r, "w.", n->name));
        if (!n->fast) continue;
        in->rate[j] = lambda ? lambda : find(r, "eta.", n->name);
        in->decay[j] = find(r, "logf.", n->name);
        Var *beta = find(r, "beta.", n->name), *a = find(r, "araw.", n->name);
        if (raw_rate && beta) in->rate[j] = graph_rate(r->t, beta, number_of(r->config, "eta0", 1));
        if (raw_decay && a)
            in->decay[j] = graph_log_decay(r->t, a, number_of(r->config, "f0", 0.99));
    }
}

/* ---- checks (limits of fastweight.md 9) ---- */

static double meta_number(const GraphRun *r, const char *key) {
    const char *text = safetensors_meta(r->g->file, key);
    return text ? strtod(text, NULL) : 0;
}

static void set_limits(const GraphRun *r, bool gradient) {
    const bool strong = strstr(text_of(r->config, "case", ""), "strong") ||
                        (safetensors_meta(r->g->file, "case") &&
                         strstr(safetensors_meta(r->g->file, "case"), "strong"));
    const double own = meta_number(r, gradient ? "f32_grad" : "f32_out");
    const double half = meta_number(r, gradient ? "bf16_grad" : "bf16_out");
    const double plain = gradient ? (strong ? 1e-4 : 2e-5) : (strong ? 2e-5 : 1e-5);
    const double bf16 = fmax(gradient ? 5e-2 : 1e-2, 3 * half);
    golden_set_limits(r->g, fmax(plain, 10 * own), bf16 / 4, bf16);
}

static Status check_outputs(GraphRun *r, Var *out, const GraphState *end) {
    set_limits(r, false);
    TRY(golden_compare(r->g, "out", "graph", out->value, 0));
    for (int j = 0; j < r->graph.count; j++) {
        char name[64];
        snprintf(name, sizeof name, "end.%s", r->graph.nodes[j].name);
        if (end && end->weight[j] && golden_has(r->g, name))
            TRY(golden_compare(r->g, name, "graph", end->weight[j]->value, 0));
    }
    return STATUS_OK;
}

static Status zero_like(Tape *t, Tensor x, Tensor *out) {
    Device *d = tape_device(t);
    TRY(tape_take(t, DTYPE_F32, x.rank, x.shape, out));
    return d->k->zero(d, *out);
}

static Status check_gradients(GraphRun *r) {
    set_limits(r, true);
    for (int i = 0; i < r->count; i++) {
        char name[96];
        snprintf(name, sizeof name, "grad.%s", r->inputs[i].name);
        if (!golden_has(r->g, name)) continue;
        /* None reaches v through the sign of the l1 loss, nor q where k takes its place. */
        Tensor gradient = r->inputs[i].v->grad;
        if (tensor_is_none(gradient)) TRY(zero_like(r->t, r->inputs[i].v->value, &gradient));
        TRY(golden_compare(r->g, name, "graph", gradient, r->floor));
    }
    return STATUS_OK;
}

/* sum(out cot) + sum(end cot_end). */
static Var *loss_of(GraphRun *r, Var *out, const GraphState *end) {
    Var *cot = find(r, "cot", "");
    if (tape_poison(r->t) || !cot) return tape_poison(r->t);
    Var *loss = golden_weighted_sum(r->t, out, cot->value);
    for (int j = 0; end && j < r->graph.count; j++) {
        Var *c = find(r, "cot_end.", r->graph.nodes[j].name);
        if (c && end->weight[j])
            loss = op_add(r->t, loss, golden_weighted_sum(r->t, end->weight[j], c->value), 1);
    }
    return loss;
}

static Status run_case(GraphRun *r) {
    GraphTokens in;
    GraphState end = {0};
    TRY(read_inputs(r));
    fill_tokens(r, &in);
    const bool both = r->rule.scan == GRAPH_BOTH;
    Var *out = graph_forward(&r->graph, &r->rule, r->t, &in, both ? NULL : &end);
    Var *z = find(r, "gate_logit", ""), *gamma = find(r, "gate_gamma", "");
    if (z && gamma)
        out = graph_output_gate(r->t, out, z, as_weight(r, gamma),
                                (float)number_of(r->config, "gate_eps", 1e-5));
    Var *loss = loss_of(r, out, both ? NULL : &end);
    TRY(tape_status(r->t));
    TRY(golden_gradient_floor(r->g, "grad.", &r->floor));
    TRY(check_outputs(r, out, both ? NULL : &end));
    TRY(tape_backward(r->t, loss, 1));
    return check_gradients(r);
}

static Status run(Golden *g) {
    GraphRun r = {.g = g};
    const char *text = safetensors_meta(g->file, "config");
    cJSON *config = NULL;
    if (!text) return status_set(STATUS_DATA, "metadata 'config' is missing");
    TRY(json_parse(text, strlen(text), "config", &config));
    r.config = config;
    Status s = family_is(g->file, "ttt") ? read_ttt(&r) : read_graph(&r);
    if (s == STATUS_OK) s = tape_new(g->device, &r.t);
    if (s == STATUS_OK) {
        tape_set_act(r.t, DTYPE_F32);
        tape_reset(r.t, true);
        s = run_case(&r);
    }
    if (r.t) tape_free(r.t);
    json_free(config);
    return s;
}

const GoldenKind golden_kind_graph = {"fastweight/graph", recognise, run};
