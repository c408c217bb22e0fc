/* The rules that hold for any graph (fastweight.md 2.7). */
#include <string.h>

#include "ttt/graph.h"

bool graph_has_weight(const GraphNode *n) {
    return n->op == GRAPH_LINEAR || n->op == GRAPH_GATE || n->op == GRAPH_BIAS;
}

static int parents_of(const GraphNode *n) {
    return n->op == GRAPH_ADD || n->op == GRAPH_MUL ? 2 : 1;
}

static int64_t width_of(const Graph *g, int node) {
    return node == GRAPH_INPUT ? g->width : g->nodes[node].width;
}

int64_t graph_width_in(const Graph *g, const GraphNode *n) {
    return width_of(g, n->in[0]);
}

static Status refuse(const GraphNode *n, const char *why) {
    return status_set(STATUS_USAGE, "graph node '%s' %s", n->name, why);
}

/* ---- order ---- */

/* Whether node j may stand next: its parents have. */
static bool is_ready(const Graph *g, const int *place, int j) {
    const GraphNode *n = &g->nodes[j];
    for (int k = 0; k < parents_of(n); k++)
        if (n->in[k] != GRAPH_INPUT && place[n->in[k]] < 0) return false;
    return true;
}

/* Rearranges the nodes so that parents stand before children. */
static Status sort(Graph *g) {
    int place[GRAPH_NODES], order[GRAPH_NODES], done = 0;
    for (int j = 0; j < g->count; j++) place[j] = -1;
    while (done < g->count) {
        int next = -1;
        for (int j = 0; next < 0 && j < g->count; j++)
            if (place[j] < 0 && is_ready(g, place, j)) next = j;
        if (next < 0) break;
        place[next] = done;
        order[done++] = next;
    }
    for (int j = 0; j < g->count; j++)
        if (place[j] < 0) return refuse(&g->nodes[j], "is part of a cycle, or behind one");
    const Graph old = *g;
    for (int j = 0; j < g->count; j++) {
        g->nodes[j] = old.nodes[order[j]];
        for (int k = 0; k < 2; k++)
            if (g->nodes[j].in[k] != GRAPH_INPUT) g->nodes[j].in[k] = place[g->nodes[j].in[k]];
    }
    g->output = place[old.output];
    return STATUS_OK;
}

/* ---- connections and widths ---- */

static Status check_parents(const Graph *g) {
    if (g->count < 1 || g->count > GRAPH_NODES || g->output < 0 || g->output >= g->count)
        return status_set(STATUS_USAGE, "a graph has 1 to %d nodes, one of them the output",
                          GRAPH_NODES);
    for (int j = 0; j < g->count; j++)
        for (int k = 0; k < parents_of(&g->nodes[j]); k++)
            if (g->nodes[j].in[k] < GRAPH_INPUT || g->nodes[j].in[k] >= g->count)
                return refuse(&g->nodes[j], "has a parent that does not exist");
    return STATUS_OK;
}

/* Every node depends on the input by construction (it has parents, and there is no cycle); the
 * output must depend on every node. */
static Status check_use(const Graph *g) {
    bool used[GRAPH_NODES] = {0};
    used[g->output] = true;
    for (int j = g->count - 1; j >= 0; j--)
        for (int k = 0; used[j] && k < parents_of(&g->nodes[j]); k++)
            if (g->nodes[j].in[k] != GRAPH_INPUT) used[g->nodes[j].in[k]] = true;
    for (int j = 0; j < g->count; j++)
        if (!used[j]) return refuse(&g->nodes[j], "is disconnected: the output does not use it");
    return STATUS_OK;
}

static Status check_widths(const Graph *g) {
    for (int j = 0; j < g->count; j++) {
        const GraphNode *n = &g->nodes[j];
        const int64_t in = graph_width_in(g, n);
        if (n->width < 1) return refuse(n, "has no width");
        if (parents_of(n) == 2 && width_of(g, n->in[1]) != in)
            return status_set(STATUS_USAGE, "graph node '%s' joins widths %lld and %lld", n->name,
                              (long long)in, (long long)width_of(g, n->in[1]));
        if (n->op != GRAPH_LINEAR && n->width != in)
            return status_set(STATUS_USAGE, "graph node '%s' has width %lld behind one of %lld",
                              n->name, (long long)n->width, (long long)in);
    }
    if (g->nodes[g->output].width != g->width)
        return status_set(STATUS_USAGE, "graph node '%s' is the output of width %lld, not %lld",
                          g->nodes[g->output].name, (long long)g->nodes[g->output].width,
                          (long long)g->width);
    return STATUS_OK;
}

/* ---- what can be learnt ---- */

static Status check_fast(const Graph *g) {
    bool any = false;
    for (int j = 0; j < g->count; j++) {
        any |= g->nodes[j].fast;
        if (g->nodes[j].fast && !graph_has_weight(&g->nodes[j]))
            return refuse(&g->nodes[j], "has no weight that could be fast");
    }
    return any ? STATUS_OK : status_set(STATUS_USAGE, "the graph has no fast node to write to");
}

/* Zero factors on the longest such path to each node. MUL is a path of both its parents: a zero on
 * either side makes the product zero. */
static Status check_zero_trap(const Graph *g) {
    int zeros[GRAPH_NODES];
    for (int j = 0; j < g->count; j++)
        if (g->nodes[j].op == GRAPH_BIAS) return STATUS_OK;
    for (int j = 0; j < g->count; j++) {
        const GraphNode *n = &g->nodes[j];
        int before[2] = {0, 0};
        for (int k = 0; k < parents_of(n); k++)
            before[k] = n->in[k] == GRAPH_INPUT ? 0 : zeros[n->in[k]];
        const int most = before[0] > before[1] ? before[0] : before[1];
        zeros[j] = n->op == GRAPH_MUL ? before[0] + before[1] : most;
        zeros[j] += n->op == GRAPH_LINEAR && n->fast && n->zero;
        if (zeros[j] >= 2)
            return refuse(n, "is behind two fast weights that start at zero: the inner gradients "
                             "of both are zero for ever");
    }
    return STATUS_OK;
}

Status graph_check(Graph *g) {
    TRY(check_parents(g));
    TRY(sort(g));
    TRY(check_use(g));
    TRY(check_widths(g));
    TRY(check_fast(g));
    return check_zero_trap(g);
}
