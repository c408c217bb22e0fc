/* Pass 3 of the graph learner (fastweight.md 2.4): reads by the queries, and the step of the fast
 * weights. For a linear node with input x, khat = eta x and inner gradient g
 *
 *     W_t = diag(f_t) W_{t-1} - khat_t' g_t,   y_t = q_t W_t
 *
 * whose closed form over a chunk needs only differences of summed log decays.
 */
#include "ttt/graph_pass.h"

/* eta x, [B,H,n,d]. */
static Var *rated(Chunk *c, int j, Var *x) {
    Var *eta = c->rate[j];
    if (!eta) return x;
    return scope_keep(c->s, tensor_last(eta->value) == 1 ? op_scale_tokens(c->t, x, eta)
                                                         : op_mul(c->t, x, eta));
}

/* x * factor [.., n, 1 or d] of x [.., n, d]. */
static Var *scaled(Chunk *c, Var *x, Var *factor) {
    return scope_keep(c->s, tensor_last(factor->value) == 1 && tensor_last(x->value) != 1
                                ? op_scale_tokens(c->t, x, factor)
                                : op_mul(c->t, x, factor));
}

/* Position factors for every head: tau_t as [B*H, n, 1], or the last one as [B*H, 1, 1]. */
static Var *positions(Chunk *c, bool last) {
    Tape *t = c->t;
    Var *tau = last && c->tokens > 1
                   ? scope_keep(c->s, op_slice_tokens(t, c->tau, c->tokens - 1, 1))
                   : c->tau;
    const int64_t n = last ? 1 : c->tokens, groups = c->batch * c->heads;
    Var *row = op_view(t, tau, 2, (int64_t[]){1, n});
    Var *column = scope_constant(c->s, 2, (int64_t[]){groups, 1}, 1);
    Var *all = scope_keep(c->s, op_matmul(t, column, false, row, false, 1, DTYPE_F32));
    return op_view(t, all, 3, (int64_t[]){groups, n, 1});
}

/* ---- linear ---- */

/* Row factors of a weight: factor [B*H, 1, 1 or in]. */
static Var *scaled_weight(Chunk *c, Var *w, Var *factor) {
    Tape *t = c->t;
    const int64_t *s = w->value.shape, groups = c->batch * c->heads;
    Var *all = w;
    if (s[0] != c->batch) {
        Var *zero = scope_constant(c->s, 4, (int64_t[]){c->batch, s[1], s[2], s[3]}, 0);
        all = scope_keep(c->s, op_add(t, w, zero, 1));
    }
    const int64_t rows = tensor_last(factor->value) == 1 ? groups : groups * s[2];
    Var *flat = op_view(t, all, 2, (int64_t[]){rows, groups * s[2] * s[3] / rows});
    Var *y = scope_keep(c->s, op_scale_tokens(t, flat, factor));
    return op_view(t, y, 4, (int64_t[]){c->batch, c->heads, s[2], s[3]});
}

/* e^(L_n - L_s) for every token and e^(L_n), from summed log decays [B*H,n,w]. */
typedef struct Decayed {
    Var *sums, *rest, *whole;
} Decayed;

static Decayed decayed(Chunk *c, int j) {
    Tape *t = c->t;
    Decayed d = {0};
    if (!c->decay[j]) return d;
    d.sums = scope_keep(c->s, op_decay_scan(t, c->decay[j], NULL, NULL));
    Var *last = scope_keep(c->s, op_slice_tokens(t, d.sums, c->tokens - 1, 1));
    Var *column = scope_constant(c->s, 3, (int64_t[]){1, c->tokens, 1}, 1);
    Var *all = scope_keep(c->s, op_matmul(t, column, false, last, false, 1, DTYPE_F32));
    d.rest = scope_keep(c->s, op_exp(t, scope_keep(c->s, op_add(t, all, d.sums, -1))));
    d.whole = scope_keep(c->s, op_exp(t, last));
    return d;
}

/* W after the chunk. */
static Var *linear_write(Chunk *c, int j, Var *khat, Decayed d) {
    Tape *t = c->t;
    Var *keys = khat, *w = c->weight[j];
    if (d.rest) {
        keys = graph_heads(c, scaled(c, graph_groups(t, khat), d.rest));
        w = scaled_weight(c, w, d.whole);
    } else if (c->tau) {
        const int64_t groups = c->batch * c->heads, size = tensor_count(khat->value) / groups;
        Var *flat = op_view(t, khat, 2, (int64_t[]){groups, size});
        Var *y = scope_keep(c->s, op_scale_tokens(t, flat, positions(c, true)));
        keys = op_view(t, y, 4, khat->value.shape);
    }
    Var *moved = scope_keep(c->s, op_matmul(t, keys, true, c->slope[j], false, 1, DTYPE_F32));
    return op_add(t, w, moved, graph_step(c));
}

/* (Q e^L) W - A G, A the scores of the tokens up to each one. */
static Var *linear_read(Chunk *c, int j, Var *q, Var *khat, Decayed d) {
    Tape *t = c->t;
    Var *queries = graph_groups(t, q);
    Var *scores = scope_keep(c->s, op_decay_scores(t, queries, graph_groups(t, khat), d.sums));
    if (c->tau) scores = scope_keep(c->s, op_scale_tokens(t, scores, positions(c, false)));
    Var *written = scope_keep(
        c->s, op_matmul(t, graph_heads(c, scores), false, c->slope[j], false, 1, DTYPE_F32));
    if (d.sums) queries = scaled(c, queries, scope_keep(c->s, op_exp(t, d.sums)));
    Var *start = scope_keep(
        c->s, op_matmul(t, graph_heads(c, queries), false, c->weight[j], false, 1, DTYPE_F32));
    return scope_keep(c->s, op_add(t, start, written, graph_step(c)));
}

/* ---- gate and bias ---- */

/* w_t of every token, [B*H,n,d]: a running sum of khat g (gate) or eta g (bias). */
static Var *vector_prefix(Chunk *c, int j, Var *x) {
    Tape *t = c->t;
    const GraphNode *n = &c->g->nodes[j];
    Var *u = rated(c, j, c->slope[j]);
    if (n->op == GRAPH_GATE) u = scope_keep(c->s, op_mul(t, u, x));
    u = graph_groups(t, scope_keep(c->s, op_scale(t, u, graph_step(c))));
    const int64_t groups = c->batch * c->heads;
    Var *w = c->weight[j];
    if (w->value.shape[0] != c->batch) {
        Var *zero = scope_constant(c->s, 4, (int64_t[]){c->batch, c->heads, 1, n->width}, 0);
        w = scope_keep(c->s, op_add(t, w, zero, 1));
    }
    if (!c->tau) {
        Var *start = op_view(t, w, 2, (int64_t[]){groups, n->width});
        return scope_keep(c->s, op_decay_scan(t, u, c->decay[j], start));
    }
    Var *sums = scope_keep(c->s, op_decay_scan(t, u, NULL, NULL));
    Var *moved = scope_keep(c->s, op_scale_tokens(t, sums, positions(c, false)));
    return scope_keep(c->s, op_add(t, graph_groups(t, graph_repeat(c, w)), moved, 1));
}

/* The prefix behind the last token, [B,H,1,d]. */
static Var *vector_write(Chunk *c, int j, Var *prefix) {
    Tape *t = c->t;
    Var *last = op_slice_tokens(t, prefix, c->tokens - 1, 1);
    if (c->tokens == 1 && tape_poison(t)) return tape_poison(t);
    return op_view(t, last, 4, (int64_t[]){c->batch, c->heads, 1, c->g->nodes[j].width});
}

/* ---- the pass ---- */

/* Reads of a fast node by the tokens' own prefix. */
static Var *causal_read(Chunk *c, int j, Var *q, Var *khat, Decayed d, Var *prefix) {
    const GraphNode *n = &c->g->nodes[j];
    if (n->op == GRAPH_LINEAR) return linear_read(c, j, q, khat, d);
    Var *w = graph_heads(c, prefix);
    return scope_keep(c->s, n->op == GRAPH_GATE ? op_mul(c->t, q, w) : op_add(c->t, q, w, 1));
}

Var *graph_query_view(Chunk *c, bool read) {
    const Graph *g = c->g;
    Tape *t = c->t;
    Var *y[GRAPH_NODES] = {0}, *moved[GRAPH_NODES] = {0}, *khat[GRAPH_NODES] = {0};
    Var *prefix[GRAPH_NODES] = {0};
    Decayed d[GRAPH_NODES] = {0};
    for (int j = 0; j < g->count && !tape_poison(t); j++) {
        const GraphNode *n = &g->nodes[j];
        if (!n->fast) continue;
        Var *x = graph_parent(g, j, 0, c->k, c->x);
        if (n->op == GRAPH_LINEAR) {
            khat[j] = rated(c, j, x);
            d[j] = decayed(c, j);
            moved[j] = linear_write(c, j, khat[j], d[j]);
        } else {
            prefix[j] = vector_prefix(c, j, x);
            moved[j] = vector_write(c, j, prefix[j]);
        }
    }
    const bool causal = c->rule->visibility == GRAPH_CAUSAL;
    Var *weights[GRAPH_NODES];
    for (int j = 0; j < g->count; j++)
        weights[j] = moved[j] && c->rule->visibility == GRAPH_INCLUSIVE ? moved[j] : c->weight[j];
    for (int j = 0; read && j < g->count && !tape_poison(t); j++) {
        Var *q = graph_parent(g, j, 0, c->q, y);
        y[j] = causal && g->nodes[j].fast ? causal_read(c, j, q, khat[j], d[j], prefix[j])
                                          : graph_node(c, j, c->q, y, weights, NULL);
    }
    for (int j = 0; j < g->count; j++)
        if (moved[j]) c->weight[j] = moved[j];
    if (tape_poison(t)) return tape_poison(t);
    return read ? y[g->output] : NULL;
}
