/* Private to ttt/: a graph learner on the host in double precision, one head and one order of the
 * tokens (fastweight.md 2.2), with all that its steps wrote.
 */
#ifndef TTV_TTT_IDENTITY_GRAPH_H
#define TTV_TTT_IDENTITY_GRAPH_H

#include "ttt/identity_parts.h"

/* Memory that ends together. */
typedef struct Pool {
    double **blocks;
    int64_t count;
} Pool;
Status pool_take(Pool *p, int64_t n, double **out);
void pool_free(Pool *p);

/* One inner step on the tokens [first, first + n) of a chunk. Per fast node: what its weight got is
 * sum_s (eta_s x_s)' vhat_s. */
typedef struct GraphEvent {
    int64_t first, n;
    double *x[GRAPH_NODES], *vhat[GRAPH_NODES]; /* [n, width in], [n, width] */
} GraphEvent;

/* One chunk's reads. */
typedef struct GraphRead {
    int64_t first, n;
    double *y[GRAPH_NODES]; /* the recursion's values of the queries, [n, width] */
} GraphRead;

typedef struct GraphRun {
    const IdentityGraph *in;
    Pool pool;
    GraphEvent *events;
    GraphRead *reads;
    int64_t event_count, read_count;
    double *w[GRAPH_NODES]; /* in the end: the written weights */
} GraphRun;

/* All chunks in order. graph_run_free() also after a failure. */
Status graph_run(const IdentityGraph *in, GraphRun *out);
void graph_run_free(GraphRun *r);

/* Widths and the size of a node's weight. */
static inline int64_t graph_rows(const Graph *g, int j) {
    return g->nodes[j].op == GRAPH_LINEAR ? graph_width_in(g, &g->nodes[j]) : 1;
}
static inline double graph_eta(const IdentityGraph *in, int j, int64_t token) {
    return in->rate[j] ? in->rate[j][token] : 1;
}
/* The value of parent `which` of node j. */
static inline const double *graph_value_of(const Graph *g, int j, int which, const double *input,
                                           double *const *values) {
    const int p = g->nodes[j].in[which];
    return p == GRAPH_INPUT ? input : values[p];
}

/* y [n, width] of node j with weight w; inverse (may be NULL) [n] as in GRAPH_NORM. */
void graph_node_value(const Graph *g, int j, int64_t n, const double *input, double *const *values,
                      const double *w, double *y, double *inverse);

#endif
