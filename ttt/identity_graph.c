/* A graph learner as a recursion of states, in doubles: the passes of fastweight.md 2.2 to 2.4
 * without decay and position factors, which models do not have. */
#include "ttt/identity_graph.h"

#include "core/memory.h"

Status pool_take(Pool *p, int64_t n, double **out) {
    void *list = p->blocks, *block;
    TRY(mem_grow(&list, p->count + 1, sizeof *p->blocks, "a learner's values"));
    p->blocks = list;
    TRY(mem_alloc(&block, n, sizeof **out, "a learner's values"));
    *out = p->blocks[p->count++] = block;
    return STATUS_OK;
}

void pool_free(Pool *p) {
    for (int64_t i = 0; i < p->count; i++) mem_free(p->blocks[i]);
    mem_free(p->blocks);
    *p = (Pool){0};
}

/* ---- functions ---- */

#define GELU_A 0.7978845608028654 /* sqrt(2 / pi) */
#define GELU_B 0.044715

static double function_value(Function f, double x) {
    switch (f) {
    case FUNCTION_RELU:
        return x > 0 ? x : 0;
    case FUNCTION_SILU:
        return dense_silu(x);
    case FUNCTION_GELU:
        return 0.5 * x * erfc(-x / sqrt(2));
    case FUNCTION_GELU_TANH:
        return 0.5 * x * (1 + tanh(GELU_A * (x + GELU_B * x * x * x)));
    case FUNCTION_TANH:
        return tanh(x);
    case FUNCTION_SIGMOID:
        return dense_sigma(x);
    default:
        return x;
    }
}

static double function_slope(Function f, double x) {
    switch (f) {
    case FUNCTION_RELU:
        return x > 0;
    case FUNCTION_SILU:
        return dense_silu_slope(x);
    case FUNCTION_GELU:
        return 0.5 * erfc(-x / sqrt(2)) + x * exp(-x * x / 2) * GELU_A / 2;
    case FUNCTION_GELU_TANH: {
        const double t = tanh(GELU_A * (x + GELU_B * x * x * x));
        return 0.5 * (1 + t) + 0.5 * x * (1 - t * t) * GELU_A * (1 + 3 * GELU_B * x * x);
    }
    case FUNCTION_TANH:
        return 1 - tanh(x) * tanh(x);
    case FUNCTION_SIGMOID:
        return dense_sigma(x) * (1 - dense_sigma(x));
    default:
        return 1;
    }
}

/* ---- nodes ---- */

static double mean_of(const double *x, int64_t d) {
    double sum = 0;
    for (int64_t i = 0; i < d; i++) sum += x[i];
    return sum / (double)d;
}

static double mean_product(const double *x, const double *y, int64_t d) {
    double sum = 0;
    for (int64_t i = 0; i < d; i++) sum += x[i] * y[i];
    return sum / (double)d;
}

/* One token of a node other than LINEAR; a and b its parents' values. */
static void token_value(const GraphNode *n, const double *a, const double *b, const double *w,
                        double *y, double *inverse) {
    const int64_t d = n->width;
    const double mean = n->op == GRAPH_CENTER ? mean_of(a, d) : 0;
    const double r = n->op == GRAPH_NORM ? 1 / sqrt(mean_product(a, a, d) + (double)n->eps) : 1;
    if (inverse) *inverse = r;
    for (int64_t i = 0; i < d; i++) switch (n->op) {
        case GRAPH_GATE:
            y[i] = a[i] * w[i];
            break;
        case GRAPH_BIAS:
            y[i] = a[i] + w[i];
            break;
        case GRAPH_ACT:
            y[i] = function_value(n->f, a[i]);
            break;
        case GRAPH_ADD:
            y[i] = a[i] + b[i];
            break;
        case GRAPH_MUL:
            y[i] = a[i] * b[i];
            break;
        default: /* NORM, CENTER */
            y[i] = (a[i] - mean) * r;
        }
}

void graph_node_value(const Graph *g, int j, int64_t n, const double *input, double *const *values,
                      const double *w, double *y, double *inverse) {
    const GraphNode *node = &g->nodes[j];
    const int64_t in = graph_width_in(g, node), d = node->width;
    const bool two = node->op == GRAPH_ADD || node->op == GRAPH_MUL;
    const double *a = graph_value_of(g, j, 0, input, values);
    const double *b = two ? graph_value_of(g, j, 1, input, values) : a;
    if (node->op == GRAPH_LINEAR) {
        dense_product(y, a, false, w, false, n, d, in, 1);
        return;
    }
    for (int64_t t = 0; t < n; t++)
        token_value(node, a + t * in, b + t * d, w, y + t * d, inverse ? inverse + t : NULL);
}

/* ---- the inner gradient ---- */

/* The train view of one chunk. */
typedef struct Train {
    const IdentityGraph *in;
    int64_t first, n;
    double *const *w;
    double *x[GRAPH_NODES], *g[GRAPH_NODES], *inverse[GRAPH_NODES];
} Train;

/* dl/dx of the output into g (fastweight.md 2.3). */
static void loss_gradient(const Train *t, double *g) {
    const Graph *graph = t->in->graph;
    const int64_t d = graph->width, size = t->n * d;
    const double s = t->in->rule->mean_scaling ? (double)t->n : 1;
    const double *x = t->x[graph->output], *v = t->in->v + t->first * d;
    double square = 0;
    for (int64_t i = 0; i < size; i++) square += (x[i] - v[i]) * (x[i] - v[i]);
    for (int64_t i = 0; i < size; i++) {
        const double r = x[i] - v[i];
        switch (t->in->rule->loss) {
        case GRAPH_INNER:
            g[i] = -v[i] / s;
            break;
        case GRAPH_MSE:
            g[i] = r / s;
            break;
        case GRAPH_L1:
            g[i] = ((r > 0) - (r < 0)) / s;
            break;
        default:
            g[i] = square > 0 ? r / sqrt(s * square) : 0;
        }
    }
}

/* g_a += g_j through one token of a node other than LINEAR; b: the other parent's value. */
static void token_gradient(const GraphNode *n, const double *gj, const double *a, const double *b,
                           const double *y, const double *w, double inverse, double *ga) {
    const int64_t d = n->width;
    const double mean = n->op == GRAPH_CENTER ? mean_of(gj, d) : 0;
    const double along = n->op == GRAPH_NORM ? mean_product(y, gj, d) : 0;
    for (int64_t i = 0; i < d; i++) switch (n->op) {
        case GRAPH_GATE:
            ga[i] += gj[i] * w[i];
            break;
        case GRAPH_ACT:
            ga[i] += gj[i] * function_slope(n->f, a[i]);
            break;
        case GRAPH_NORM:
            ga[i] += (gj[i] - along * y[i]) * inverse;
            break;
        case GRAPH_CENTER:
            ga[i] += gj[i] - mean;
            break;
        case GRAPH_MUL:
            ga[i] += gj[i] * b[i];
            break;
        default: /* BIAS, ADD */
            ga[i] += gj[i];
        }
}

static void node_gradient(Train *t, int j) {
    const Graph *g = t->in->graph;
    const GraphNode *n = &g->nodes[j];
    const double *input = t->in->k + t->first * g->width;
    const int both = n->op == GRAPH_ADD || n->op == GRAPH_MUL ? 2 : 1;
    const int64_t in = graph_width_in(g, n), d = n->width;
    for (int k = 0; k < both; k++) {
        const int p = n->in[k];
        if (p == GRAPH_INPUT) continue;
        if (n->op == GRAPH_LINEAR) {
            dense_add_product(t->g[p], t->g[j], false, t->w[j], true, t->n, in, d, 1);
            continue;
        }
        const double *a = t->x[p], *b = graph_value_of(g, j, both - 1 - k, input, t->x);
        for (int64_t s = 0; s < t->n; s++)
            token_gradient(n, t->g[j] + s * d, a + s * d, b + s * d, t->x[j] + s * d, t->w[j],
                           t->inverse[j][s], t->g[p] + s * d);
    }
}

/* Values and gradients of all nodes at the weights t->w. */
static Status train_view(Train *t, Pool *pool) {
    const Graph *g = t->in->graph;
    for (int j = 0; j < g->count; j++) {
        TRY(pool_take(pool, t->n * g->nodes[j].width, &t->x[j]));
        TRY(pool_take(pool, t->n * g->nodes[j].width, &t->g[j]));
        TRY(pool_take(pool, t->n, &t->inverse[j]));
        graph_node_value(g, j, t->n, t->in->k + t->first * g->width, t->x, t->w[j], t->x[j],
                         t->inverse[j]);
    }
    loss_gradient(t, t->g[g->output]);
    for (int j = g->count - 1; j >= 0; j--) node_gradient(t, j);
    return STATUS_OK;
}

/* ---- steps ---- */

/* weight += (eta x)' vhat of one token. */
static void write_token(const IdentityGraph *in, int j, const GraphEvent *e, int64_t s, double *w) {
    const Graph *g = in->graph;
    const GraphNode *n = &g->nodes[j];
    const double eta = graph_eta(in, j, e->first + s), *v = e->vhat[j] + s * n->width;
    const int64_t wide = graph_width_in(g, n);
    const double *x = e->x[j] + s * wide;
    if (n->op == GRAPH_LINEAR) {
        for (int64_t i = 0; i < wide; i++)
            for (int64_t o = 0; o < n->width; o++) w[i * n->width + o] += eta * x[i] * v[o];
        return;
    }
    for (int64_t o = 0; o < n->width; o++) w[o] += eta * (n->op == GRAPH_GATE ? x[o] : 1) * v[o];
}

/* The event of one step, from the weights as they are; they do not move yet. */
static Status take_step(GraphRun *r, int64_t first, int64_t n, GraphEvent *e) {
    const IdentityGraph *in = r->in;
    const Graph *g = in->graph;
    Train t = {.in = in, .first = first, .n = n, .w = r->w};
    *e = (GraphEvent){.first = first, .n = n};
    TRY(train_view(&t, &r->pool));
    const double sign = in->rule->ascend ? 1 : -1;
    for (int j = 0; j < g->count; j++) {
        if (!g->nodes[j].fast) continue;
        const int64_t wide = graph_width_in(g, &g->nodes[j]), d = g->nodes[j].width;
        TRY(pool_take(&r->pool, n * wide, &e->x[j]));
        TRY(pool_take(&r->pool, n * d, &e->vhat[j]));
        memcpy(e->x[j], graph_value_of(g, j, 0, in->k + first * g->width, t.x),
               (size_t)(n * wide) * sizeof(double));
        for (int64_t i = 0; i < n * d; i++) e->vhat[j][i] = sign * t.g[j][i];
    }
    return STATUS_OK;
}

static void move(GraphRun *r, const GraphEvent *e) {
    for (int j = 0; j < r->in->graph->count; j++)
        for (int64_t s = 0; r->in->graph->nodes[j].fast && s < e->n; s++)
            write_token(r->in, j, e, s, r->w[j]);
}

/* ---- reads ---- */

/* Token by token: each reads right behind its own write. */
static void read_causal(GraphRun *r, int j, const GraphEvent *e, GraphRead *read) {
    const Graph *g = r->in->graph;
    const GraphNode *n = &g->nodes[j];
    const double *input = r->in->q + read->first * g->width;
    for (int64_t t = 0; t < read->n; t++) {
        double *row[GRAPH_NODES];
        for (int i = 0; i < j; i++) row[i] = read->y[i] + t * g->nodes[i].width;
        write_token(r->in, j, e, t, r->w[j]);
        graph_node_value(g, j, 1, input + t * g->width, row, r->w[j], read->y[j] + t * n->width,
                         NULL);
    }
}

static Status read_chunk(GraphRun *r, int64_t first, int64_t n, const GraphEvent *own) {
    const Graph *g = r->in->graph;
    GraphRead *read = &r->reads[r->read_count++];
    *read = (GraphRead){.first = first, .n = n};
    for (int j = 0; j < g->count; j++) {
        TRY(pool_take(&r->pool, n * g->nodes[j].width, &read->y[j]));
        if (own && g->nodes[j].fast)
            read_causal(r, j, own, read);
        else
            graph_node_value(g, j, n, r->in->q + first * g->width, read->y, r->w[j], read->y[j],
                             NULL);
    }
    return STATUS_OK;
}

static Status run_chunk(GraphRun *r, int64_t first, int64_t n) {
    const GraphRule *rule = r->in->rule;
    if (rule->visibility == GRAPH_EXCLUSIVE) TRY(read_chunk(r, first, n, NULL));
    for (int64_t s = 0; s < rule->steps; s++) {
        GraphEvent *e = &r->events[r->event_count++];
        TRY(take_step(r, first, n, e));
        if (rule->visibility == GRAPH_CAUSAL) return read_chunk(r, first, n, e); /* and moves */
        move(r, e);
    }
    return rule->visibility == GRAPH_INCLUSIVE ? read_chunk(r, first, n, NULL) : STATUS_OK;
}

Status graph_run(const IdentityGraph *in, GraphRun *r) {
    const Graph *g = in->graph;
    const int64_t size =
        in->rule->chunk > 0 && in->rule->chunk < in->tokens ? in->rule->chunk : in->tokens;
    const int64_t chunks = (in->tokens + size - 1) / size;
    *r = (GraphRun){.in = in};
    TRY(mem_alloc((void **)&r->events, chunks * in->rule->steps, sizeof *r->events, "events"));
    TRY(mem_alloc((void **)&r->reads, chunks, sizeof *r->reads, "reads"));
    for (int j = 0; j < g->count; j++) {
        if (!graph_has_weight(&g->nodes[j])) continue;
        const int64_t count = graph_rows(g, j) * g->nodes[j].width;
        TRY(pool_take(&r->pool, count, &r->w[j]));
        memcpy(r->w[j], in->weight[j], (size_t)count * sizeof(double));
    }
    for (int64_t at = 0; at < in->tokens; at += size)
        TRY(run_chunk(r, at, in->tokens - at < size ? in->tokens - at : size));
    return STATUS_OK;
}

void graph_run_free(GraphRun *r) {
    pool_free(&r->pool);
    mem_free(r->events);
    mem_free(r->reads);
}
