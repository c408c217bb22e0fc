/* Passes 1 and 2 of the graph learner (fastweight.md 2.2): the inner model on the keys, and the
 * gradient of the inner loss with respect to every node. */
#include "ttt/graph_pass.h"

#include <math.h>

#include "nn/ops_check.h"

/* ---- broadcasts by products with ones, which are exact ---- */

static Var *ones(Chunk *c, int64_t rows, int64_t columns, float value) {
    return scope_constant(c->s, 4, (int64_t[]){1, 1, rows, columns}, value);
}

Var *graph_repeat(Chunk *c, Var *w) {
    Var *all = w;
    if (w->value.shape[0] != c->batch) {
        const int64_t *s = w->value.shape;
        Var *zero = scope_constant(c->s, 4, (int64_t[]){c->batch, s[1], s[2], s[3]}, 0);
        all = scope_keep(c->s, op_add(c->t, w, zero, 1));
    }
    Var *column = ones(c, c->tokens, 1, 1);
    return scope_keep(c->s, op_matmul(c->t, column, false, all, false, 1, DTYPE_F32));
}

/* Mean over the channels of x [B,H,n,d] -> [B,H,n,1]. */
static Var *channel_mean(Chunk *c, Var *x) {
    const int64_t d = tensor_last(x->value);
    Var *weights = ones(c, d, 1, 1.0f / (float)d);
    return scope_keep(c->s, op_matmul(c->t, x, false, weights, false, 1, DTYPE_F32));
}

/* ---- nodes ---- */

/* x - mean(x); symmetric, so that it is its own adjoint. */
static Var *center(Chunk *c, Var *x) {
    Var *row = ones(c, 1, tensor_last(x->value), 1);
    Var *mean =
        scope_keep(c->s, op_matmul(c->t, channel_mean(c, x), false, row, false, 1, DTYPE_F32));
    return scope_keep(c->s, op_add(c->t, x, mean, -1));
}

static Var *norm(Chunk *c, Var *x, float eps, Var **inverse) {
    Tape *t = c->t;
    Var *square = scope_keep(c->s, op_mul(t, x, x));
    Var *mean = channel_mean(c, square);
    if (tape_poison(t)) return tape_poison(t);
    Var *small = scope_constant(c->s, 4, mean->value.shape, eps);
    Var *r = scope_keep(c->s, op_rsqrt(t, scope_keep(c->s, op_add(t, mean, small, 1))));
    if (inverse) *inverse = r;
    return scope_keep(c->s, op_scale_tokens(t, x, r));
}

Var *graph_node(Chunk *c, int j, Var *input, Var *const *values, Var *const *weights,
                Var **inverse) {
    Tape *t = c->t;
    const GraphNode *n = &c->g->nodes[j];
    Var *x = graph_parent(c->g, j, 0, input, values);
    if (tape_poison(t)) return tape_poison(t);
    switch (n->op) {
    case GRAPH_LINEAR:
        return scope_keep(c->s, op_matmul(t, x, false, weights[j], false, 1, DTYPE_F32));
    case GRAPH_GATE:
        return scope_keep(c->s, op_mul(t, x, graph_repeat(c, weights[j])));
    case GRAPH_BIAS:
        return scope_keep(c->s, op_add(t, x, graph_repeat(c, weights[j]), 1));
    case GRAPH_NORM:
        return norm(c, x, n->eps, inverse);
    case GRAPH_CENTER:
        return center(c, x);
    case GRAPH_ACT: /* the identity is x itself, which is not this node's to drop */
        return n->f == FUNCTION_IDENTITY ? x : scope_keep(c->s, op_function(t, x, n->f));
    case GRAPH_ADD:
        return scope_keep(c->s, op_add(t, x, graph_parent(c->g, j, 1, input, values), 1));
    default:
        return scope_keep(c->s, op_mul(t, x, graph_parent(c->g, j, 1, input, values)));
    }
}

/* ---- pass 2 ---- */

/* dl/dx of the output (2.3); s is the chunk's token count or 1. */
static Var *loss_slope(Chunk *c, Var *out) {
    Tape *t = c->t;
    const float s = c->rule->mean_scaling ? (float)c->tokens : 1.0f;
    if (c->rule->loss == GRAPH_INNER) return scope_keep(c->s, op_scale(t, c->v, -1.0f / s));
    Var *residual = scope_keep(c->s, op_add(t, out, c->v, -1));
    if (tape_poison(t)) return tape_poison(t);
    if (c->rule->loss == GRAPH_MSE) return scope_keep(c->s, op_scale(t, residual, 1.0f / s));
    if (c->rule->loss == GRAPH_L1)
        return scope_keep(c->s, op_scale(t, scope_keep(c->s, op_sign(t, residual)), 1.0f / s));
    /* RMSE: R / sqrt(s |R|^2), one norm for each head's chunk. */
    const int64_t groups = c->batch * c->heads, size = tensor_count(residual->value) / groups;
    Var *rows = op_view(t, residual, 2, (int64_t[]){groups, size});
    Var *square = scope_keep(c->s, op_mul(t, rows, rows));
    Var *weights = scope_constant(c->s, 2, (int64_t[]){size, 1}, s);
    Var *sum = scope_keep(c->s, op_matmul(t, square, false, weights, false, 1, DTYPE_F32));
    Var *scaled = scope_keep(c->s, op_scale_tokens(t, rows, scope_keep(c->s, op_rsqrt(t, sum))));
    if (tape_poison(t)) return tape_poison(t);
    return op_view(t, scaled, 4, residual->value.shape);
}

/* Adds to the slope of node p; the learner's input needs none. */
static void slope_add(Chunk *c, int p, Var *slope) {
    if (p == GRAPH_INPUT) return;
    c->slope[p] = c->slope[p] ? scope_keep(c->s, op_add(c->t, c->slope[p], slope, 1)) : slope;
}

/* (g - mean(y g) y) r. */
static Var *norm_slope(Chunk *c, int j, Var *g) {
    Tape *t = c->t;
    Var *product = scope_keep(c->s, op_mul(t, c->x[j], g));
    Var *mean = channel_mean(c, product);
    Var *along = scope_keep(c->s, op_scale_tokens(t, c->x[j], mean));
    Var *across = scope_keep(c->s, op_add(t, g, along, -1));
    return scope_keep(c->s, op_scale_tokens(t, across, c->inverse[j]));
}

static void node_slopes(Chunk *c, int j) {
    Tape *t = c->t;
    const GraphNode *n = &c->g->nodes[j];
    Var *g = c->slope[j], *x = graph_parent(c->g, j, 0, c->k, c->x);
    if (tape_poison(t) || !g) return;
    switch (n->op) {
    case GRAPH_LINEAR:
        if (n->in[0] != GRAPH_INPUT)
            slope_add(c, n->in[0],
                      scope_keep(c->s, op_matmul(t, g, false, c->weight[j], true, 1, DTYPE_F32)));
        return;
    case GRAPH_GATE:
        slope_add(c, n->in[0], scope_keep(c->s, op_mul(t, g, graph_repeat(c, c->weight[j]))));
        return;
    case GRAPH_BIAS:
        slope_add(c, n->in[0], g);
        return;
    case GRAPH_NORM:
        slope_add(c, n->in[0], norm_slope(c, j, g));
        return;
    case GRAPH_CENTER:
        slope_add(c, n->in[0], center(c, g));
        return;
    case GRAPH_ACT: {
        Var *slope = scope_keep(c->s, op_function_grad(t, x, n->f));
        slope_add(c, n->in[0], slope ? scope_keep(c->s, op_mul(t, g, slope)) : g);
        return;
    }
    case GRAPH_ADD:
        slope_add(c, n->in[0], g);
        slope_add(c, n->in[1], g);
        return;
    default: {
        Var *other = graph_parent(c->g, j, 1, c->k, c->x);
        slope_add(c, n->in[0], scope_keep(c->s, op_mul(t, g, other)));
        slope_add(c, n->in[1], scope_keep(c->s, op_mul(t, g, x)));
    }
    }
}

void graph_train_view(Chunk *c) {
    const Graph *g = c->g;
    for (int j = 0; j < g->count; j++) {
        c->slope[j] = NULL;
        c->x[j] = graph_node(c, j, c->k, c->x, c->weight, &c->inverse[j]);
    }
    c->slope[g->output] = loss_slope(c, c->x[g->output]);
    for (int j = g->count - 1; j >= 0; j--) node_slopes(c, j);
}
