/* Graph learners in attention form: every read of a fast node as a sum over pairs of tokens that
 * never forms a written weight (fastweight.md 6), beside the recursion of states. */
#include <stdio.h>

#include "core/memory.h"
#include "ttt/identity_graph.h"

/* What a control has wrong; NO_WRITES shows what the start weights alone would read. */
typedef enum Wrong { NOTHING, VISIBILITY, NO_RATES, TARGETS, NO_WRITES } Wrong;
enum { WRONGS = 3 };
static const char *const wrong_names[] = {"", "other visibility", "no rates", "targets as values"};

/* How many tokens of event e the query t of a chunk sees: those from the front. */
static int64_t seen(const GraphRun *run, const GraphRead *r, const GraphEvent *e, int64_t t,
                    Wrong wrong) {
    if (e->first > r->first || wrong == NO_WRITES) return 0;
    if (e->first < r->first) return e->n;
    const bool other = wrong == VISIBILITY;
    switch (run->in->rule->visibility) {
    case GRAPH_CAUSAL:
        return other ? e->n : t + 1;
    case GRAPH_INCLUSIVE:
        return other ? t + 1 : e->n;
    default:
        return other ? e->n : 0;
    }
}

/* The value that token s of event e wrote, or, for a control, its target. */
static const double *value_of(const GraphRun *run, const GraphEvent *e, int j, int64_t s,
                              Wrong wrong, double *scale) {
    const GraphNode *n = &run->in->graph->nodes[j];
    *scale = 1;
    if (wrong != TARGETS || n->width != run->in->graph->width) return e->vhat[j] + s * n->width;
    *scale = (run->in->rule->ascend ? -1 : 1) / (run->in->rule->mean_scaling ? (double)e->n : 1);
    return run->in->v + (e->first + s) * n->width;
}

/* y [n, width]: what queries q read from the start weights. */
static void read_start(const IdentityGraph *in, int j, int64_t n, const double *q, double *y) {
    const GraphNode *node = &in->graph->nodes[j];
    const int64_t wide = graph_width_in(in->graph, node), d = node->width;
    const double *w = in->weight[j];
    if (node->op == GRAPH_LINEAR) dense_product(y, q, false, w, false, n, d, wide, 1);
    for (int64_t i = 0; node->op != GRAPH_LINEAR && i < n * d; i++)
        y[i] = node->op == GRAPH_GATE ? q[i] * w[i % d] : q[i] + w[i % d];
}

/* y [n, width] of fast node j, whose queries are q [n, width in]. */
static void attend(const GraphRun *run, const GraphRead *r, int j, const double *q, Wrong wrong,
                   double *y) {
    const IdentityGraph *in = run->in;
    const GraphNode *n = &in->graph->nodes[j];
    const int64_t wide = graph_width_in(in->graph, n), d = n->width;
    read_start(in, j, r->n, q, y);
    for (int64_t t = 0; t < r->n; t++)
        for (int64_t i = 0; i < run->event_count; i++) {
            const GraphEvent *e = &run->events[i];
            const int64_t count = seen(run, r, e, t, wrong);
            for (int64_t s = 0; s < count; s++) {
                double scale, score = wrong == NO_RATES ? 1 : graph_eta(in, j, e->first + s);
                const double *v = value_of(run, e, j, s, wrong, &scale), *x = e->x[j] + s * wide;
                double dot = 0;
                for (int64_t c = 0; n->op == GRAPH_LINEAR && c < wide; c++)
                    dot += q[t * wide + c] * x[c];
                score *= scale;
                for (int64_t c = 0; c < d; c++)
                    y[t * d + c] += v[c] * score *
                                    (n->op == GRAPH_LINEAR ? dot
                                     : n->op == GRAPH_GATE ? q[t * d + c] * x[c]
                                                           : 1);
            }
        }
}

/* The learner's output for one chunk, all fast nodes read in attention form. */
static Status query_view(GraphRun *run, const GraphRead *r, Wrong wrong, double *out) {
    const Graph *g = run->in->graph;
    const double *input = run->in->q + r->first * g->width;
    Pool pool = {0};
    double *y[GRAPH_NODES];
    Status s = STATUS_OK;
    for (int j = 0; j < g->count && s == STATUS_OK; j++) {
        s = pool_take(&pool, r->n * g->nodes[j].width, &y[j]);
        if (s != STATUS_OK) break;
        if (g->nodes[j].fast)
            attend(run, r, j, graph_value_of(g, j, 0, input, y), wrong, y[j]);
        else
            graph_node_value(g, j, r->n, input, y, run->w[j], y[j], NULL);
    }
    if (s == STATUS_OK) memcpy(out, y[g->output], (size_t)(r->n * g->width) * sizeof *out);
    pool_free(&pool);
    return s;
}

/* ---- one node ---- */

static bool wrong_applies(const IdentityGraph *in, int j, Wrong w) {
    const Graph *g = in->graph;
    if (w == NO_RATES) return in->rate[j] != NULL;
    return w != TARGETS ||
           (g->nodes[j].width == g->width && (in->rule->loss != GRAPH_INNER || j != g->output));
}

/* All chunks of node j in attention form, from the recursion's own queries. */
static void attend_all(const GraphRun *run, int j, Wrong wrong, double *out) {
    const Graph *g = run->in->graph;
    for (int64_t i = 0; i < run->read_count; i++) {
        const GraphRead *r = &run->reads[i];
        const double *q =
            graph_value_of(g, j, 0, run->in->q + r->first * g->width, (double *const *)r->y);
        attend(run, r, j, q, wrong, out + r->first * g->nodes[j].width);
    }
}

static Status check_node(GraphRun *run, int j, IdentityResult *out) {
    const int64_t d = run->in->graph->nodes[j].width, size = run->in->tokens * d;
    double *layer, *form, *wrong;
    *out = (IdentityResult){0};
    TRY(pool_take(&run->pool, size, &layer));
    TRY(pool_take(&run->pool, size, &form));
    TRY(pool_take(&run->pool, size, &wrong));
    for (int64_t i = 0; i < run->read_count; i++)
        memcpy(layer + run->reads[i].first * d, run->reads[i].y[j],
               (size_t)(run->reads[i].n * d) * sizeof *layer);
    attend_all(run, j, NOTHING, form);
    identity_compare(out, layer, layer, form, size);
    attend_all(run, j, NO_WRITES, wrong);
    out->start = dense_norm(wrong, size) / fmax(dense_norm(form, size), 1e-300);
    for (int w = 1; w <= WRONGS; w++) {
        if (!wrong_applies(run->in, j, (Wrong)w)) continue;
        attend_all(run, j, (Wrong)w, wrong);
        identity_control(out, wrong_names[w], layer, wrong, size);
    }
    return STATUS_OK;
}

/* ---- the output ---- */

/* Sums over the orders: by the recursion, in attention form, without writes, and the controls. */
typedef struct Outputs {
    double *layer, *form, *start, *wrong;
} Outputs;

/* Adds factor times the chunk y to rows of `sum`, from behind where the order is turned. */
static void add_rows(const IdentityGraph *in, const GraphRead *r, bool turned, double factor,
                     const double *y, double *sum) {
    const int64_t d = in->graph->width;
    for (int64_t t = 0; t < r->n; t++) {
        const int64_t at = turned ? in->tokens - 1 - r->first - t : r->first + t;
        for (int64_t c = 0; c < d; c++) sum[at * d + c] += factor * y[t * d + c];
    }
}

static Status add_outputs(GraphRun *run, bool turned, double factor, Outputs *o) {
    const Graph *g = run->in->graph;
    const struct {
        Wrong wrong;
        double *sum;
    } views[] = {{NOTHING, o->form}, {NO_WRITES, o->start}, {VISIBILITY, o->wrong}};
    double *y;
    TRY(pool_take(&run->pool, run->in->tokens * g->width, &y));
    for (int64_t i = 0; i < run->read_count; i++) {
        const GraphRead *r = &run->reads[i];
        add_rows(run->in, r, turned, factor, r->y[g->output], o->layer);
        for (int k = 0; k < 3; k++) {
            TRY(query_view(run, r, views[k].wrong, y));
            add_rows(run->in, r, turned, factor, y, views[k].sum);
        }
    }
    return STATUS_OK;
}

/* ---- orders ---- */

static Status turned_rows(Pool *p, const double *x, int64_t n, int64_t d, const double **out) {
    double *y;
    TRY(pool_take(p, n * d, &y));
    for (int64_t t = 0; t < n; t++) memcpy(y + t * d, x + (n - 1 - t) * d, (size_t)d * sizeof *y);
    *out = y;
    return STATUS_OK;
}

static Status turn(const IdentityGraph *in, Pool *p, IdentityGraph *out) {
    const int64_t n = in->tokens, d = in->graph->width;
    *out = *in;
    TRY(turned_rows(p, in->q, n, d, &out->q));
    TRY(turned_rows(p, in->k, n, d, &out->k));
    TRY(turned_rows(p, in->v, n, d, &out->v));
    for (int j = 0; j < in->graph->count; j++)
        if (in->rate[j]) TRY(turned_rows(p, in->rate[j], n, 1, &out->rate[j]));
    return STATUS_OK;
}

/* One order: its nodes merged into out, its outputs added. */
static Status check_order(const IdentityGraph *in, bool turned, bool first, double factor,
                          Outputs *o, IdentityResult *out) {
    GraphRun run;
    Status s = graph_run(in, &run);
    for (int j = 0; j < in->graph->count && s == STATUS_OK; j++) {
        if (!in->graph->nodes[j].fast) continue;
        IdentityResult one;
        s = check_node(&run, j, &one);
        if (s != STATUS_OK) break;
        if (first)
            out[j] = one;
        else
            identity_merge(&out[j], &one);
    }
    if (s == STATUS_OK) s = add_outputs(&run, turned, factor, o);
    graph_run_free(&run);
    return s;
}

static Status check_orders(const IdentityGraph *in, Pool *p, IdentityResult *out) {
    const Graph *g = in->graph;
    const int64_t size = in->tokens * g->width;
    const GraphScan scan = in->rule->scan;
    const double factor = scan == GRAPH_BOTH ? 0.5 : 1;
    Outputs o;
    IdentityGraph turned;
    TRY(pool_take(p, size, &o.layer));
    TRY(pool_take(p, size, &o.form));
    TRY(pool_take(p, size, &o.start));
    TRY(pool_take(p, size, &o.wrong));
    if (scan != GRAPH_BACKWARD) TRY(check_order(in, false, true, factor, &o, out));
    if (scan != GRAPH_FORWARD) {
        TRY(turn(in, p, &turned));
        TRY(check_order(&turned, true, scan == GRAPH_BACKWARD, factor, &o, out));
    }
    IdentityResult *whole = &out[g->count];
    identity_compare(whole, in->out, o.layer, o.form, size);
    whole->start = dense_norm(o.start, size) / fmax(dense_norm(o.form, size), 1e-300);
    identity_control(whole, wrong_names[VISIBILITY], o.layer, o.wrong, size);
    for (int j = 0; j < g->count; j++) {
        out[j].layer = whole->layer;
        out[j].most = whole->most;
        out[j].cosine = whole->cosine;
    }
    return STATUS_OK;
}

Status identity_graph(const IdentityGraph *in, IdentityResult *out) {
    Pool pool = {0};
    memset(out, 0, (size_t)(in->graph->count + 1) * sizeof *out);
    const Status s = check_orders(in, &pool, out);
    pool_free(&pool);
    return s;
}

/* ---- what has a linear form ---- */

typedef enum Form { FORM_FIXED, FORM_READ, FORM_NONE } Form;

static const char *op_word(const GraphNode *n) {
    static const char *const words[] = {"linear", "gate", "bias", "norm",
                                        "center", "act",  "add",  "mul"};
    static const char *const functions[] = {"identity",  "relu", "silu",   "gelu",
                                            "gelu_tanh", "tanh", "sigmoid"};
    return n->op == GRAPH_ACT ? functions[n->f] : words[n->op];
}

/* The form of node j from those of its parents; `culprit` is the node that ends it. */
static Form form_of(const Graph *g, int j, const Form *forms, const int *culprits, int *culprit) {
    const GraphNode *n = &g->nodes[j];
    const bool two = n->op == GRAPH_ADD || n->op == GRAPH_MUL;
    Form f[2] = {FORM_FIXED, FORM_FIXED};
    for (int k = 0; k <= two; k++) {
        if (n->in[k] == GRAPH_INPUT) continue;
        f[k] = forms[n->in[k]];
        if (f[k] == FORM_NONE) *culprit = culprits[n->in[k]];
    }
    if (n->fast && n->op != GRAPH_BIAS) return FORM_READ; /* whatever its queries are */
    /* A written bias is one more row of the weight, which the constant 1 reads. */
    if (n->fast && f[0] != FORM_NONE) return FORM_READ;
    const Form most = f[0] > f[1] ? f[0] : f[1];
    if (most == FORM_NONE) return FORM_NONE;
    const bool bends = n->op == GRAPH_NORM || (n->op == GRAPH_ACT && n->f != FUNCTION_IDENTITY);
    const bool ends = (bends && most == FORM_READ) ||
                      (n->op == GRAPH_MUL && f[0] == FORM_READ && f[1] == FORM_READ);
    if (ends) *culprit = j;
    return ends ? FORM_NONE : most;
}

bool graph_linear_form(const Graph *g, int j, char *why, size_t size) {
    Form forms[GRAPH_NODES];
    int culprits[GRAPH_NODES];
    const int wanted = j == g->count ? g->output : j;
    for (int i = 0; i < g->count; i++) {
        culprits[i] = i;
        forms[i] = form_of(g, i, forms, culprits, &culprits[i]);
    }
    if (size > 0) why[0] = '\0';
    if (forms[wanted] != FORM_NONE) return true;
    const GraphNode *n = &g->nodes[culprits[wanted]];
    snprintf(why, size, "%s '%s' follows what was read", op_word(n), n->name);
    return false;
}

/* ---- the inner loop ---- */

static double loss_of(const IdentityGraph *in, const double *y) {
    double sum = 0;
    const int64_t size = in->tokens * in->graph->width;
    for (int64_t i = 0; i < size; i++) {
        const double r = y[i] - in->v[i];
        sum += in->rule->loss == GRAPH_INNER ? -y[i] * in->v[i]
               : in->rule->loss == GRAPH_L1  ? fabs(r)
                                             : r * r;
    }
    sum /= (double)in->tokens;
    return in->rule->loss == GRAPH_MSE ? sum / 2 : in->rule->loss == GRAPH_RMSE ? sqrt(sum) : sum;
}

/* Loss and alignment of the learner with weights w on all keys. */
static Status measure(const IdentityGraph *in, double *const *w, int which, InnerLoop *out) {
    const Graph *g = in->graph;
    Pool pool = {0};
    double *y[GRAPH_NODES];
    Status s = STATUS_OK;
    for (int j = 0; j < g->count && s == STATUS_OK; j++) {
        s = pool_take(&pool, in->tokens * g->nodes[j].width, &y[j]);
        if (s == STATUS_OK) graph_node_value(g, j, in->tokens, in->k, y, w[j], y[j], NULL);
    }
    if (s == STATUS_OK) {
        inner_measure(out, which, y[g->output], in->v, in->tokens, g->width, 1);
        out->loss[which] = loss_of(in, y[g->output]);
    }
    pool_free(&pool);
    return s;
}

static Status measure_both(GraphRun *run, InnerLoop *out) {
    const Graph *g = run->in->graph;
    double *start[GRAPH_NODES] = {NULL}, off = 0, all = 0;
    for (int j = 0; j < g->count; j++) {
        if (!graph_has_weight(&g->nodes[j])) continue;
        const int64_t size = graph_rows(g, j) * g->nodes[j].width;
        TRY(pool_take(&run->pool, size, &start[j]));
        memcpy(start[j], run->in->weight[j], (size_t)size * sizeof(double));
        for (int64_t i = 0; g->nodes[j].fast && i < size; i++) {
            off += (run->w[j][i] - start[j][i]) * (run->w[j][i] - start[j][i]);
            all += start[j][i] * start[j][i];
        }
    }
    out->moved = sqrt(off / fmax(all, 1e-300));
    TRY(measure(run->in, start, 0, out));
    return measure(run->in, run->w, 1, out);
}

static Status inner_of(const IdentityGraph *in, InnerLoop *out) {
    GraphRun run;
    Status s = graph_run(in, &run);
    if (s == STATUS_OK) s = measure_both(&run, out);
    graph_run_free(&run);
    return s;
}

Status inner_graph(const IdentityGraph *in, InnerLoop *out) {
    Pool pool = {0};
    IdentityGraph turned;
    *out = (InnerLoop){0};
    if (in->rule->scan != GRAPH_BACKWARD) return inner_of(in, out);
    Status s = turn(in, &pool, &turned);
    if (s == STATUS_OK) s = inner_of(&turned, out);
    pool_free(&pool);
    return s;
}
