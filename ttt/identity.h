/* The linear-attention identity (fastweight.md 6): what a fast-weight layer reads equals
 *
 *     o_t = qhat_t (S0 + sum_s khat_s' vhat_s)
 *
 * with queries, keys, values and a start state that the layer's own update defines. Here both sides
 * are computed on the host in double precision, from what a layer saw: the layer as a recursion of
 * states, and the sum over pairs of tokens, which never forms a written weight.
 */
#ifndef TTV_TTT_IDENTITY_H
#define TTV_TTT_IDENTITY_H

#include "ttt/chunked.h"
#include "ttt/graph.h"
#include "ttt/lact.h"
#include "ttt/vittt_mixer.h"

#define IDENTITY_CONTROLS 4

/* A wrong version of the identity, which must miss: otherwise the check would prove nothing. */
typedef struct IdentityControl {
    const char *name;
    double error; /* relative, as IdentityResult.f64 */
} IdentityControl;

/* What the inner loop did to a layer's weights (fastweight.md 10.1). */
typedef struct InnerLoop {
    double loss[2]; /* on the layer's keys and values, before the first and after the last step */
    double alignment[2]; /* mean of -cos(f(k), v), at the same times */
    double moved;        /* |W' - W| / |W| over the written weights */
} InnerLoop;

typedef struct IdentityResult {
    double f64;    /* |layer in double - attention form| / |layer| */
    double layer;  /* |production output - attention form| / |production output| */
    double most;   /* largest absolute difference of production output and attention form */
    double cosine; /* of the two */
    double start;  /* |q S0| / |o|: the share of what was not written */
    int controls;
    IdentityControl control[IDENTITY_CONTROLS];
} IdentityResult;

/* Keeps the worst of two results (several heads, several images). */
void identity_merge(IdentityResult *into, const IdentityResult *other);

/* One head of the GLU branch: q, k, v, out [tokens, width], w1, w2 [width, width]. */
typedef struct IdentityGlu {
    int64_t tokens, width;
    VitttVariant variant;
    const double *q, *k, *v, *w1, *w2, *out;
} IdentityGlu;
Status identity_glu(const IdentityGlu *in, IdentityResult *out);
/* Its inner loop; the loss is -sum <f(k), v> / (3N) whatever the variant trains with, `moved` of
 * W1. in->q and in->out are not read. */
Status inner_glu(const IdentityGlu *in, InnerLoop *out);

/* The depthwise branch: q, k, v, out [height * columns, width], w3 [width, 9]. */
typedef struct IdentityDwc {
    int64_t height, columns, width;
    VitttVariant variant;
    const double *q, *k, *v, *w3, *out;
} IdentityDwc;
Status identity_dwc(const IdentityDwc *in, IdentityResult *out);

/* One head of the chunked layer; rate and momentum may be NULL (1, none). */
typedef struct IdentityChunked {
    const ChunkedRule *rule;
    int64_t tokens, dk, dh, dv;
    const double *q, *k, *v;          /* [tokens, dk], [tokens, dk], [tokens, dv] */
    const double *rate[3], *momentum; /* [tokens] */
    const double *w[3], *out;         /* [dk,dh], [dh,dv], [dk,dh]; [tokens - first_read, dv] */
    int64_t first_read;               /* earlier tokens are not compared: nobody reads there */
} IdentityChunked;
Status identity_chunked(const IdentityChunked *in, IdentityResult *out);

/* A whole LaCT layer (ttt/lact.h) on one sample: x [tokens, width], of which the first `writing`
 * write and those from `first_read` on read; weights as the layer has them; out [heads, tokens -
 * first_read, width/heads], f_W'(q) before o_norm. The worst of all heads. */
typedef struct IdentityLact {
    LactVariant variant;
    bool query_rows; /* qkv_w has rows of queries, though query_is_key may pass them over */
    int64_t steps;   /* 0: 1 */
    int64_t tokens, writing, first_read, width, heads, inter_multi;
    const double *x, *qkv_w, *rate_w, *rate_b, *w[3], *out;
} IdentityLact;
Status identity_lact(const IdentityLact *in, IdentityResult *out);
/* Its inner loop from `written`, the weights in the end, in the layout of in->w: the loss is the
 * mean of -<f(k), v> over writing tokens (each of the layer's rates is of one weight, so they do
 * not weigh it), mean over heads. in->out is not read. */
Status inner_lact(const IdentityLact *in, const double *const written[3], InnerLoop *out);
/* What head `h` sees: queries of unit length of the tokens that read, keys and values of those that
 * write; each [n, width/heads] (mem_free), in one block: q first. */
typedef struct LactVectors {
    double *q, *k, *v;
    int64_t reading, writing, width;
} LactVectors;
Status lact_vectors(const IdentityLact *in, int64_t h, LactVectors *out);
/* phi(x) = silu(x W0) * (x W2) of n vectors x [n, width/heads] with head h of w (in->w or what was
 * written), into out [n, width/heads * inter_multi]; work of the same size. Not of linear variants.
 */
void lact_features(const IdentityLact *in, int64_t h, const double *const w[3], const double *x,
                   int64_t n, double *work, double *out);

/* One head of a graph learner (ttt/graph.h), without decay and position factors. */
typedef struct IdentityGraph {
    const Graph *graph;
    const GraphRule *rule;
    int64_t tokens;
    const double *q, *k, *v, *out;     /* [tokens, width] */
    const double *rate[GRAPH_NODES];   /* [tokens] of fast nodes; NULL: 1 */
    const double *weight[GRAPH_NODES]; /* of LINEAR, GATE, BIAS: as in GraphTokens, one head */
} IdentityGraph;
/* out [graph->count + 1]: what each fast node reads, from the queries that reach it (a gate channel
 * by channel; a bias with the constant 1 as query and key), and last the learner's output with
 * every read in attention form; its comparison with the production output stands in the nodes'
 * rows, too. Entries of other nodes are zero. With both scans the worst of the two orders, and the
 * mean output. */
Status identity_graph(const IdentityGraph *in, IdentityResult *out);
/* Whether the value of node j (graph->count: the learner's output) is a linear-attention read, up
 * to maps and gates that no token writes; otherwise `why` says what stands between. */
bool graph_linear_form(const Graph *g, int j, char *why, size_t size);
/* The inner loop over the whole sequence: the rule's loss as a mean over tokens (RMSE: |R| /
 * sqrt(N)); of the first order where both are scanned. in->q and in->out are not compared. */
Status inner_graph(const IdentityGraph *in, InnerLoop *out);

/* The parts of chunk `i`: qhat [n, dh], s0 [dh, dv], khat [pairs, dh], vhat [pairs, dv]: every
 * earlier event with all that its momentum still carries. For tests; identity_parts_free(). */
typedef struct IdentityParts {
    int64_t n, pairs;
    double *qhat, *s0, *khat, *vhat;
} IdentityParts;
Status identity_chunked_parts(const IdentityChunked *in, int64_t i, IdentityParts *out);
void identity_parts_free(IdentityParts *p);

#endif
