/* The graph learner over a sequence: chunks, scans, and what stands around it (fastweight.md 1, 2).
 */
#include <math.h>
#include <string.h>

#include "core/memory.h"
#include "nn/ops_check.h"
#include "ttt/graph_pass.h"

/* ---- refusals ---- */

Status graph_rule_check(const GraphRule *r) {
    if (r->steps < 1) return status_set(STATUS_USAGE, "steps must be at least 1");
    if (r->steps > 1 && r->visibility == GRAPH_CAUSAL)
        return status_set(STATUS_USAGE,
                          "%lld inner steps: only with inclusive or exclusive visibility, since a "
                          "token prefix has one step",
                          (long long)r->steps);
    if (r->loss == GRAPH_RMSE && r->visibility == GRAPH_CAUSAL && !r->leak)
        return status_set(STATUS_USAGE, "the rmse loss couples all tokens of a chunk: with causal "
                                        "visibility later tokens would show");
    return STATUS_OK;
}

static Status check_rule(const Graph *g, const GraphRule *r, const GraphTokens *in) {
    bool decays = false;
    for (int j = 0; j < g->count; j++) decays |= in->decay[j] != NULL;
    TRY(graph_rule_check(r));
    if (r->steps > 1 && decays)
        return status_set(STATUS_USAGE, "several inner steps and decay exclude each other");
    if (in->tau && decays)
        return status_set(STATUS_USAGE, "position factors and decay exclude each other");
    return STATUS_OK;
}

/* Message about a tensor of node n. */
static Status refuse_node(const GraphNode *n, const char *what, const char *expected) {
    return status_set(STATUS_USAGE, "node '%s': its %s must be %s", n->name, what, expected);
}

/* Whether v is one of the layouts that a rate or decay may have. */
static bool factor_fits(const Var *v, const int64_t *q, int64_t width, bool constant) {
    const Tensor x = v->value;
    if (x.dtype != DTYPE_F32) return false;
    if (constant && x.rank == 1) return x.shape[0] == q[1];
    if (x.rank < 3 || x.shape[0] != q[0] || x.shape[1] != q[1] || x.shape[2] != q[2]) return false;
    return x.rank == 3 || x.shape[3] == width;
}

static Status check_weight(const Graph *g, const GraphNode *n, const Var *w, const int64_t *q) {
    const int64_t rows = n->op == GRAPH_LINEAR ? graph_width_in(g, n) : 1;
    if (!w || w->value.rank != 4 || w->value.dtype != DTYPE_F32 ||
        (w->value.shape[0] != 1 && w->value.shape[0] != q[0]) || w->value.shape[1] != q[1] ||
        w->value.shape[2] != rows || w->value.shape[3] != n->width)
        return refuse_node(n, "weight",
                           "F32 [batch or 1, heads, width in (1 for a vector), width]");
    return STATUS_OK;
}

static Status check_tokens(const Graph *g, const GraphTokens *in) {
    const int64_t *q = in->q->value.shape;
    if (in->q->value.rank != 4 || in->q->value.dtype != DTYPE_F32 || q[3] != g->width ||
        !tensor_same_shape(in->q->value, in->k->value) ||
        !tensor_same_shape(in->q->value, in->v->value))
        return status_set(STATUS_USAGE, "queries, keys and values must all be F32 [B,H,N,%lld]",
                          (long long)g->width);
    for (int j = 0; j < g->count; j++) {
        const GraphNode *n = &g->nodes[j];
        if (graph_has_weight(n)) TRY(check_weight(g, n, in->weight[j], q));
        const int64_t width = graph_width_in(g, n);
        if (in->rate[j] && (!n->fast || !factor_fits(in->rate[j], q, width, true)))
            return refuse_node(n, "rate", "[H], [B,H,N] or [B,H,N,width in] of a fast node");
        if (in->decay[j] && (!n->fast || !factor_fits(in->decay[j], q, width, false)))
            return refuse_node(n, "log decay", "[B,H,N] or [B,H,N,width in] of a fast node");
    }
    return STATUS_OK;
}

/* ---- one order of the tokens ---- */

/* Everything of a call as [B*H, N, .], so that chunks are runs of tokens. */
typedef struct Sequence {
    Var *q, *k, *v, *rate[GRAPH_NODES], *decay[GRAPH_NODES], *tau;
    int64_t batch, heads, tokens;
} Sequence;

static Var *factor_rows(Tape *t, Var *v, int64_t groups) {
    const Tensor x = v->value;
    const int64_t width = x.rank == 4 ? x.shape[3] : 1;
    return op_view(t, v, 3, (int64_t[]){groups, x.shape[2], width});
}

/* A rate [H] for every token: [B*H, N, 1]. */
static Var *constant_rows(Scope *s, Var *v, const Sequence *q) {
    Tape *t = s->t;
    Var *column = scope_constant(s, 4, (int64_t[]){q->batch, q->heads, q->tokens, 1}, 1);
    Var *each = op_view(t, v, 4, (int64_t[]){1, q->heads, 1, 1});
    Var *all = scope_keep(s, op_matmul(t, column, false, each, false, 1, DTYPE_F32));
    return op_view(t, all, 3, (int64_t[]){q->batch * q->heads, q->tokens, 1});
}

static Sequence sequence_of(const Graph *g, Scope *s, const GraphTokens *in) {
    const int64_t *shape = in->q->value.shape;
    Sequence q = {.batch = shape[0], .heads = shape[1], .tokens = shape[2], .tau = in->tau};
    q.q = graph_groups(s->t, in->q);
    q.k = graph_groups(s->t, in->k);
    q.v = graph_groups(s->t, in->v);
    for (int j = 0; j < g->count; j++) {
        Var *rate = in->rate[j], *decay = in->decay[j];
        if (rate)
            q.rate[j] = rate->value.rank == 1 ? constant_rows(s, rate, &q)
                                              : factor_rows(s->t, rate, q.batch * q.heads);
        if (decay) q.decay[j] = factor_rows(s->t, decay, q.batch * q.heads);
    }
    return q;
}

/* Tokens [first, first + n) of x [G,N,.]. */
static Var *run_of(Scope *s, Var *x, int64_t first, int64_t n) {
    if (!x || tape_poison(s->t) || x->value.shape[1] == n) return x;
    return scope_keep(s, op_slice_tokens(s->t, x, first, n));
}

static Var *heads_of(const Chunk *c, Var *x) {
    return x && !tape_poison(c->t) ? graph_heads(c, x) : x;
}

static void chunk_tokens(Chunk *c, const Sequence *q, int64_t first) {
    const int64_t n = c->tokens;
    c->q = heads_of(c, run_of(c->s, q->q, first, n));
    c->k = heads_of(c, run_of(c->s, q->k, first, n));
    c->v = heads_of(c, run_of(c->s, q->v, first, n));
    for (int j = 0; j < c->g->count; j++) {
        c->rate[j] = heads_of(c, run_of(c->s, q->rate[j], first, n));
        c->decay[j] = run_of(c->s, q->decay[j], first, n);
    }
    if (!q->tau) return;
    Var *tau = op_view(c->t, q->tau, 3, (int64_t[]){1, tensor_count(q->tau->value), 1});
    c->tau = run_of(c->s, tau, 0, n);
}

/* The chunk's output, [B*H,n,d]; c->weight moves on. */
static Var *chunk_run(Chunk *c) {
    Var *out = NULL, *before[GRAPH_NODES];
    for (int64_t step = 0; step < c->rule->steps && !tape_poison(c->t); step++) {
        /* INCLUSIVE reads behind the last step, EXCLUSIVE before the first. */
        const bool read =
            c->rule->visibility == GRAPH_EXCLUSIVE ? step == 0 : step == c->rule->steps - 1;
        memcpy(before, c->weight, sizeof before);
        graph_train_view(c);
        Var *y = graph_query_view(c, read);
        if (read) out = y;
        for (int j = 0; j < c->g->count; j++)
            if (step > 0 && c->g->nodes[j].fast) scope_keep(c->s, before[j]);
    }
    if (tape_poison(c->t)) return tape_poison(c->t);
    return graph_groups(c->t, scope_release(c->s, out));
}

static Var *append(Tape *t, Var *all, Var *out) {
    if (!all || tape_poison(t)) return tape_poison(t) ? tape_poison(t) : out;
    Var *longer = op_concat_tokens(t, all, out);
    tape_drop(t, all);
    return longer;
}

/* [B*H,N,d]; *end receives the written weights (those of slow nodes as they were). */
static Var *run_sequence(const Graph *g, const GraphRule *r, Scope *s, const Sequence *q,
                         Var *const weight[GRAPH_NODES], Var *end[GRAPH_NODES]) {
    Tape *t = s->t;
    const int64_t size = r->chunk > 0 && r->chunk < q->tokens ? r->chunk : q->tokens;
    Chunk c = {.g = g, .rule = r, .t = t, .s = s, .batch = q->batch, .heads = q->heads};
    memcpy(c.weight, weight, sizeof c.weight);
    Var *all = NULL;
    for (int64_t first = 0; first < q->tokens && !tape_poison(t); first += size) {
        Var *before[GRAPH_NODES];
        memcpy(before, c.weight, sizeof before);
        c.tokens = q->tokens - first < size ? q->tokens - first : size;
        chunk_tokens(&c, q, first);
        all = append(t, all, chunk_run(&c));
        scope_end(s);
        for (int j = 0; first > 0 && j < g->count && !tape_poison(t); j++)
            if (g->nodes[j].fast && before[j] != c.weight[j]) tape_drop(t, before[j]);
    }
    memcpy(end, c.weight, sizeof c.weight);
    return tape_poison(t) ? tape_poison(t) : all;
}

/* ---- both orders ---- */

static Var *reversed(Tape *t, Var *x) {
    return x ? op_reverse_tokens(t, x) : NULL;
}

static Sequence reversed_sequence(const Graph *g, Tape *t, const Sequence *q) {
    Sequence r = *q;
    r.q = reversed(t, q->q);
    r.k = reversed(t, q->k);
    r.v = reversed(t, q->v);
    for (int j = 0; j < g->count; j++) {
        r.rate[j] = reversed(t, q->rate[j]);
        r.decay[j] = reversed(t, q->decay[j]);
    }
    return r;
}

static void sequence_drop(const Graph *g, Tape *t, const Sequence *q) {
    if (tape_poison(t)) return;
    tape_drop(t, q->q);
    tape_drop(t, q->k);
    tape_drop(t, q->v);
    for (int j = 0; j < g->count; j++) {
        if (q->rate[j]) tape_drop(t, q->rate[j]);
        if (q->decay[j]) tape_drop(t, q->decay[j]);
    }
}

static void weights_drop(const Graph *g, Tape *t, Var *const weight[GRAPH_NODES],
                         Var *const start[GRAPH_NODES]) {
    for (int j = 0; j < g->count && !tape_poison(t); j++)
        if (g->nodes[j].fast && weight[j] != start[j]) tape_drop(t, weight[j]);
}

static Var *run_backward(const Graph *g, const GraphRule *r, Scope *s, const Sequence *q,
                         const GraphTokens *in, Var *end[GRAPH_NODES]) {
    Tape *t = s->t;
    const Sequence turned = reversed_sequence(g, t, q);
    if (tape_poison(t)) return tape_poison(t);
    Var *y = run_sequence(g, r, s, &turned, in->weight, end);
    sequence_drop(g, t, &turned);
    Var *out = op_reverse_tokens(t, y);
    if (!tape_poison(t)) tape_drop(t, y);
    return out;
}

static Var *run_orders(const Graph *g, const GraphRule *r, Scope *s, const GraphTokens *in,
                       Var *end[GRAPH_NODES]) {
    Tape *t = s->t;
    Scope outer = {.t = t}; /* constant rates live as long as the sequence */
    const Sequence q = sequence_of(g, &outer, in);
    Var *y = tape_poison(t);
    if (!y && r->scan == GRAPH_FORWARD) {
        y = run_sequence(g, r, s, &q, in->weight, end);
    } else if (!y && r->scan == GRAPH_BACKWARD) {
        y = run_backward(g, r, s, &q, in, end);
    } else if (!y) {
        Var *a = run_sequence(g, r, s, &q, in->weight, end);
        weights_drop(g, t, end, in->weight);
        Var *b = run_backward(g, r, s, &q, in, end);
        Var *sum = op_add(t, a, b, 1);
        y = op_scale(t, sum, 0.5f);
        Var *spent[] = {a, b, sum};
        for (int i = 0; i < 3 && !tape_poison(t); i++) tape_drop(t, spent[i]);
    }
    scope_end(&outer);
    return tape_poison(t) ? tape_poison(t) : op_view(t, y, 4, in->q->value.shape);
}

Var *graph_forward(const Graph *g, const GraphRule *rule, Tape *t, const GraphTokens *in,
                   GraphState *end) {
    Var *tokens[] = {in->q, in->k, in->v};
    if (!op_ready(t, "graph learner", 3, tokens)) return tape_poison(t);
    Status s = check_rule(g, rule, in);
    if (s == STATUS_OK) s = check_tokens(g, in);
    if (s == STATUS_OK && end && rule->scan == GRAPH_BOTH)
        s = status_set(STATUS_INTERNAL, "two scans end in two states");
    if (s == STATUS_OK && in->tau &&
        tensor_count(in->tau->value) < (rule->chunk > 0 ? rule->chunk : in->q->value.shape[2]))
        s = status_set(STATUS_USAGE, "fewer position factors than tokens in a chunk");
    Scope *scope = NULL;
    if (s == STATUS_OK) s = scope_new(t, &scope);
    if (s != STATUS_OK) return tape_fail(t, status_context(s, "graph learner"));
    Var *last[GRAPH_NODES] = {0}, *y = run_orders(g, rule, scope, in, last);
    mem_free(scope);
    if (end)
        for (int j = 0; j < g->count; j++) end->weight[j] = g->nodes[j].fast ? last[j] : NULL;
    else
        weights_drop(g, t, last, in->weight);
    return y;
}

Var *graph_read(const Graph *g, Tape *t, Var *q, Var *const weight[GRAPH_NODES]) {
    if (!op_ready(t, "graph learner", 1, &q)) return tape_poison(t);
    Scope *scope;
    Status s = scope_new(t, &scope);
    if (s != STATUS_OK) return tape_fail(t, s);
    const GraphRule rule = {.steps = 1};
    const int64_t *shape = q->value.shape;
    Chunk c = {.g = g,
               .rule = &rule,
               .t = t,
               .s = scope,
               .batch = shape[0],
               .heads = shape[1],
               .tokens = shape[2]};
    Var *y[GRAPH_NODES];
    for (int j = 0; j < g->count; j++) y[j] = graph_node(&c, j, q, y, weight, NULL);
    Var *out = scope_release(scope, y[g->output]);
    scope_end(scope);
    mem_free(scope);
    return tape_poison(t) ? tape_poison(t) : out;
}

/* ---- rates, decays and the output gate ---- */

/* f(x + offset), offset a constant of x's shape. */
static Var *shifted(Tape *t, Scope *s, Var *x, double offset) {
    if (tape_poison(t)) return tape_poison(t);
    Var *constant = scope_constant(s, x->value.rank, x->value.shape, (float)offset);
    return scope_keep(s, op_add(t, x, constant, 1));
}

Var *graph_rate(Tape *t, Var *beta, double standard) {
    Scope s = {.t = t};
    const double p = standard / 2;
    Var *sigma = scope_keep(&s, op_sigmoid(t, shifted(t, &s, beta, log(p / (1 - p)))));
    Var *y = op_scale(t, sigma, 2);
    scope_end(&s);
    return y;
}

Var *graph_log_decay(Tape *t, Var *a, double standard) {
    Scope s = {.t = t};
    Var *x = shifted(t, &s, a, log(standard / (1 - standard)));
    Var *soft = scope_keep(&s, op_softplus(t, scope_keep(&s, op_scale(t, x, -1))));
    Var *y = op_scale(t, soft, -1);
    scope_end(&s);
    return y;
}

Var *graph_output_gate(Tape *t, Var *y, Var *z, Var *gamma, float eps) {
    const int64_t width = tensor_last(y->value);
    const Graph g = {
        .width = width,
        .count = 2,
        .output = 1,
        .nodes = {
            {.name = "norm", .op = GRAPH_NORM, .in = {GRAPH_INPUT, 0}, .width = width, .eps = eps},
            {.name = "gamma", .op = GRAPH_GATE, .in = {0, 0}, .width = width}}};
    Var *weights[GRAPH_NODES] = {NULL, gamma};
    Var *normed = graph_read(&g, t, y, weights);
    Var *gate = op_sigmoid(t, z);
    Var *out = op_mul(t, normed, gate);
    if (tape_poison(t)) return tape_poison(t);
    tape_drop(t, normed);
    tape_drop(t, gate);
    return out;
}
