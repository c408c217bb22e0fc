/* Graphs as text, and the presets. */
#include <ctype.h>
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "core/config.h"
#include "ttt/graph.h"

/* ---- presets (fastweight.md 2.7, 3, 4) ---- */

static const struct {
    const char *name, *text;
} presets[] = {
    {"linear", "w = linear(input d)"},
    {"linear_silu", "w = linear(input d), a = silu(w)"},
    {"linear_gelu", "w = linear(input d), a = gelu(w)"},
    {"linear_norm", "w = linear(input d), n = norm(w eps=1e-2)"},
    {"linear_rmsnorm_fast", "w = linear(input d), n = norm(w eps=1e-2), g = gate(n)"},
    {"linear_rmsnorm_slow", "w = linear(input d), n = norm(w eps=1e-2), g = gate(n slow)"},
    {"linear_linear", "w0 = linear(input h), w1 = linear(w0 d)"},
    {"linear_silu_linear", "w0 = linear(input h), a = silu(w0), w1 = linear(a d)"},
    {"linear_silu_linear_silu",
     "w0 = linear(input h), a = silu(w0), w1 = linear(a d), b = silu(w1)"},
    {"linear_silu_linear_norm",
     "w0 = linear(input h), a = silu(w0), w1 = linear(a d), n = norm(w1 eps=1e-2)"},
    {"linear_norm_linear", "w0 = linear(input h), n = norm(w0 eps=1e-2), w1 = linear(n d)"},
    {"res_act", "w = linear(input d), a = silu(w), r = add(input a)"},
    {"res_norm", "w = linear(input d), n = norm(w eps=1e-2), r = add(input n)"},
    {"swiglu", "w0 = linear(input h), a = silu(w0), w2 = linear(input h), m = mul(a w2), "
               "w1 = linear(m d)"},
    {"swiglu_norm", "w0 = linear(input h), a = silu(w0), w2 = linear(input h), m = mul(a w2), "
                    "w1 = linear(m d), n = norm(w1 eps=1e-2)"},
    {"swiglu_static", "w0 = linear(input h slow), a = silu(w0), w2 = linear(input h slow), "
                      "m = mul(a w2), w1 = linear(m d)"},
    {"glu", "wg = linear(input d), a = silu(wg), wl = linear(input d), m = mul(a wl)"},
    {"gate", "w = gate(input)"},
    {"ttt_linear_plain", "W1 = linear(input d)"},
    {"ttt_linear", "W1 = linear(input d), b1 = bias(W1), c = center(b1), n = norm(c eps=1e-6), "
                   "gamma = gate(n slow), beta = bias(gamma slow), r = add(input beta)"},
    {"ttt_mlp", "W1 = linear(input 4d), b1 = bias(W1), a = gelu_tanh(b1), W2 = linear(a d), "
                "b2 = bias(W2), c = center(b2), n = norm(c eps=1e-6), gamma = gate(n slow), "
                "beta = bias(gamma slow), r = add(input beta)"},
    {"ttt_mlp_pre", "W1 = linear(input 4d), c = center(W1), n = norm(c eps=1e-6), "
                    "gamma = gate(n slow), beta = bias(gamma slow), a = gelu_tanh(beta), "
                    "W2 = linear(a d), r = add(input W2)"},
};

const char *graph_preset(const char *name) {
    for (size_t i = 0; i < sizeof presets / sizeof *presets; i++)
        if (strcmp(presets[i].name, name) == 0) return presets[i].text;
    return NULL;
}

const char *graph_preset_name(int i) {
    return i >= 0 && (size_t)i < sizeof presets / sizeof *presets ? presets[i].name : NULL;
}

/* ---- parsing ---- */

static const char *const op_names[] = {"linear", "gate", "bias", "norm", "center", "add", "mul"};
static const GraphOp ops[] = {GRAPH_LINEAR, GRAPH_GATE, GRAPH_BIAS, GRAPH_NORM,
                              GRAPH_CENTER, GRAPH_ADD,  GRAPH_MUL};
static const char *const function_names[] = {"identity",  "relu", "silu",   "gelu",
                                             "gelu_tanh", "tanh", "sigmoid"};

/* A parent's name, resolved once all nodes are known. */
typedef struct Parse {
    Graph *g;
    const char *at;
    int64_t width, hidden;
    char parents[GRAPH_NODES][2][GRAPH_NAME];
} Parse;

static void skip_blanks(Parse *p) {
    while (isspace((unsigned char)*p->at)) p->at++;
}

static bool take(Parse *p, char c) {
    skip_blanks(p);
    if (*p->at != c) return false;
    p->at++;
    return true;
}

/* A word of letters, digits and the signs in `also` into out; false when there is none or it is too
 * long. */
static bool take_signs(Parse *p, const char *also, char *out, size_t size) {
    skip_blanks(p);
    size_t n = 0;
    while (isalnum((unsigned char)p->at[n]) || (p->at[n] && strchr(also, p->at[n]))) n++;
    if (n == 0 || n >= size) return false;
    memcpy(out, p->at, n);
    out[n] = '\0';
    p->at += n;
    return true;
}

static bool take_word(Parse *p, char *out, size_t size) {
    return take_signs(p, "_", out, size);
}

static Status unexpected(const Parse *p, const char *wanted) {
    if (*p->at) return status_set(STATUS_USAGE, "graph: expected %s at \"%.24s\"", wanted, p->at);
    return status_set(STATUS_USAGE, "graph: expected %s, but the text ends", wanted);
}

/* "96", "d", "4d", "h": a number and d or h, at least one of them. */
static bool parse_width(const Parse *p, const char *word, int64_t *out) {
    char *end;
    errno = 0;
    const bool number = isdigit((unsigned char)*word);
    const long long factor = number ? strtoll(word, &end, 10) : 1;
    if (!number) end = (char *)(uintptr_t)word;
    if (errno || factor < 1 || factor > (1 << 20)) return false;
    const bool unit = (*end == 'd' || *end == 'h') && end[1] == '\0';
    if (!unit && (*end || !number)) return false;
    *out = factor * (!unit ? 1 : *end == 'd' ? p->width : p->hidden);
    return *out >= 1 && *out <= (1 << 20);
}

static Status unknown_op(const char *node, const char *word) {
    const char *all[14];
    int n = 0;
    for (size_t i = 0; i < 7; i++) all[n++] = op_names[i];
    for (size_t i = 0; i < 7; i++) all[n++] = function_names[i];
    const char *near = nearest_name(word, all, n);
    return status_set(STATUS_USAGE, "graph node '%s': unknown op '%s'%s%s%s", node, word,
                      near ? "; did you mean '" : "", near ? near : "", near ? "'?" : "");
}

static Status parse_op(GraphNode *n, const char *word) {
    for (size_t i = 0; i < sizeof ops / sizeof *ops; i++)
        if (strcmp(word, op_names[i]) == 0) {
            n->op = ops[i];
            n->fast = graph_has_weight(n);
            n->eps = 1e-5f;
            return STATUS_OK;
        }
    for (size_t i = 0; i < sizeof function_names / sizeof *function_names; i++)
        if (strcmp(word, function_names[i]) == 0) {
            n->op = GRAPH_ACT;
            n->f = (Function)i;
            return STATUS_OK;
        }
    return unknown_op(n->name, word);
}

/* One of what may follow the parents: a width, slow, zero, eps=. */
static Status parse_extra(const Parse *p, GraphNode *n, const char *word) {
    char *end;
    if (n->op == GRAPH_LINEAR && !n->width && parse_width(p, word, &n->width)) return STATUS_OK;
    if (graph_has_weight(n) && strcmp(word, "slow") == 0) {
        n->fast = false;
        return STATUS_OK;
    }
    if (n->op == GRAPH_LINEAR && strcmp(word, "zero") == 0) {
        n->zero = true;
        return STATUS_OK;
    }
    if (n->op == GRAPH_NORM && strncmp(word, "eps=", 4) == 0) {
        n->eps = strtof(word + 4, &end);
        if (end != word + 4 && !*end && n->eps > 0 && n->eps <= 1) return STATUS_OK;
    }
    return status_set(STATUS_USAGE, "graph node '%s': '%s' is not understood here", n->name, word);
}

static Status parse_arguments(Parse *p, int j) {
    GraphNode *n = &p->g->nodes[j];
    const int parents = n->op == GRAPH_ADD || n->op == GRAPH_MUL ? 2 : 1;
    char word[GRAPH_NAME];
    if (!take(p, '(')) return unexpected(p, "'('");
    for (int k = 0; k < parents; k++)
        if (!take_word(p, p->parents[j][k], GRAPH_NAME)) return unexpected(p, "a parent's name");
    while (take_signs(p, "_.+-=", word, sizeof word)) TRY(parse_extra(p, n, word));
    if (!take(p, ')')) return unexpected(p, "')'");
    if (n->op == GRAPH_LINEAR && !n->width)
        return status_set(STATUS_USAGE, "graph node '%s': linear needs a width", n->name);
    return STATUS_OK;
}

static Status parse_node(Parse *p) {
    Graph *g = p->g;
    if (g->count == GRAPH_NODES)
        return status_set(STATUS_USAGE, "graph: more than %d nodes", GRAPH_NODES);
    GraphNode *n = &g->nodes[g->count];
    char word[GRAPH_NAME];
    *n = (GraphNode){.in = {GRAPH_INPUT, GRAPH_INPUT}};
    if (!take_word(p, n->name, sizeof n->name)) return unexpected(p, "a node's name");
    for (int j = 0; j < g->count; j++)
        if (strcmp(g->nodes[j].name, n->name) == 0)
            return status_set(STATUS_USAGE, "graph: two nodes are called '%s'", n->name);
    if (strcmp(n->name, "input") == 0)
        return status_set(STATUS_USAGE, "graph: 'input' is the learner's input, not a node");
    if (!take(p, '=')) return unexpected(p, "'='");
    if (!take_word(p, word, sizeof word)) return unexpected(p, "an op");
    TRY(parse_op(n, word));
    TRY(parse_arguments(p, g->count));
    g->count++;
    return STATUS_OK;
}

static Status resolve(Parse *p, int j, int k) {
    Graph *g = p->g;
    const char *name = p->parents[j][k];
    if (strcmp(name, "input") == 0) return STATUS_OK;
    for (int i = 0; i < g->count; i++)
        if (strcmp(g->nodes[i].name, name) == 0) {
            g->nodes[j].in[k] = i;
            return STATUS_OK;
        }
    return status_set(STATUS_USAGE, "graph node '%s': no node is called '%s'", g->nodes[j].name,
                      name);
}

/* Widths of nodes that keep that of their parent; as often as nodes can stand in a row. */
static void spread_widths(Graph *g) {
    for (int round = 0; round < g->count; round++)
        for (int j = 0; j < g->count; j++)
            if (g->nodes[j].op != GRAPH_LINEAR) g->nodes[j].width = graph_width_in(g, &g->nodes[j]);
}

Status graph_parse(Graph *g, const char *text, int64_t width, int64_t hidden) {
    Parse p = {.g = g, .at = text, .width = width, .hidden = hidden};
    *g = (Graph){.width = width};
    do TRY(parse_node(&p));
    while (take(&p, ','));
    skip_blanks(&p);
    if (*p.at) return unexpected(&p, "',' or the end");
    for (int j = 0; j < g->count; j++) {
        const bool two = g->nodes[j].op == GRAPH_ADD || g->nodes[j].op == GRAPH_MUL;
        for (int k = 0; k < 1 + two; k++) TRY(resolve(&p, j, k));
    }
    g->output = g->count - 1;
    spread_widths(g);
    return graph_check(g);
}
