/* Private to ttt/: the passes of the graph learner over one chunk (fastweight.md 2.2). */
#ifndef TTV_TTT_GRAPH_PASS_H
#define TTV_TTT_GRAPH_PASS_H

#include "ttt/graph.h"
#include "ttt/scope.h"

/* One chunk of n tokens: [B,H,n,.]. */
typedef struct Chunk {
    const Graph *g;
    const GraphRule *rule;
    Tape *t;
    Scope *s;
    int64_t batch, heads, tokens;
    Var *q, *k, *v;
    Var *rate[GRAPH_NODES];    /* NULL, [B,H,n,1] or [B,H,n,width in] */
    Var *decay[GRAPH_NODES];   /* NULL, [B*H,n,1] or [B*H,n,width in] */
    Var *tau;                  /* NULL or [1,n,1] */
    Var *weight[GRAPH_NODES];  /* those that the inner step starts from; in the end the written ones
                                */
    Var *x[GRAPH_NODES];       /* train view */
    Var *inverse[GRAPH_NODES]; /* NORM: 1/sqrt(mean(x^2) + eps) of the train view, one a token */
    Var *
        slope[GRAPH_NODES]; /* inner gradient with respect to x; NULL where no fast node needs it */
} Chunk;

/* x of node j from its parents in `values` (of which `input` is GRAPH_INPUT). *inverse (may be
 * NULL) as Chunk.inverse. */
Var *graph_node(Chunk *c, int j, Var *input, Var *const *values, Var *const *weights,
                Var **inverse);
/* Passes 1 and 2: c->x and c->slope at c->weight. */
void graph_train_view(Chunk *c);
/* Pass 3: the output for c->q, and c->weight moved by one inner step. With INCLUSIVE and several
 * steps only the last one reads (`read`). */
Var *graph_query_view(Chunk *c, bool read);

/* Parent `which` of node j. */
static inline Var *graph_parent(const Graph *g, int j, int which, Var *input, Var *const *values) {
    const int p = g->nodes[j].in[which];
    return p == GRAPH_INPUT ? input : values[p];
}
/* x [B,H,a,b] as [B*H,a,b]. */
static inline Var *graph_groups(Tape *t, Var *x) {
    const int64_t *s = x->value.shape;
    return op_view(t, x, 3, (int64_t[]){s[0] * s[1], s[2], s[3]});
}
static inline Var *graph_heads(const Chunk *c, Var *x) {
    const int64_t *s = x->value.shape;
    return op_view(c->t, x, 4, (int64_t[]){c->batch, c->heads, s[1], s[2]});
}
/* w [B or 1,H,1,d] for each of the chunk's tokens. */
Var *graph_repeat(Chunk *c, Var *w);
/* x (-)= by the sign of the step: a + step b, step -1 in descent. */
static inline float graph_step(const Chunk *c) {
    return c->rule->ascend ? 1.0f : -1.0f;
}

#endif
