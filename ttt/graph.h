/* The modular graph learner (fastweight.md 2): the inner model f(x; W) of a fast-weight layer is a
 * graph of small nodes, written by one gradient step (or a few) of an inner loss on the tokens'
 * keys and values, and read by their queries. TTT-Linear and TTT-MLP are graphs (section 3).
 *
 * Everything here is composed from ops, so the outer gradient is the tape's. Row vectors: a linear
 * node is y = x W. All tensors are F32.
 */
#ifndef TTV_TTT_GRAPH_H
#define TTV_TTT_GRAPH_H

#include "nn/ops.h"

#define GRAPH_NODES 16
#define GRAPH_INPUT (-1) /* as a parent: the learner's input */
#define GRAPH_NAME  24

typedef enum GraphOp {
    GRAPH_LINEAR, /* x W, W [in, width] */
    GRAPH_GATE,   /* x * w, w [width] */
    GRAPH_BIAS,   /* x + w */
    GRAPH_NORM,   /* x / sqrt(mean(x^2) + eps) */
    GRAPH_CENTER, /* x - mean(x) */
    GRAPH_ACT,    /* f(x) */
    GRAPH_ADD,
    GRAPH_MUL,
} GraphOp;

typedef struct GraphNode {
    char name[GRAPH_NAME];
    GraphOp op;
    int in[2];     /* parents: node numbers or GRAPH_INPUT; the second of ADD and MUL only */
    int64_t width; /* of the result */
    Function f;    /* of ACT */
    float eps;     /* of NORM */
    bool fast;     /* LINEAR, GATE, BIAS: written by the inner step; otherwise a slow parameter */
    bool zero;     /* LINEAR: starts at zero */
} GraphNode;

/* Nodes in topological order. */
typedef struct Graph {
    int64_t width; /* of input and output */
    int count, output;
    GraphNode nodes[GRAPH_NODES];
} Graph;

/* From text: `name = op(parent width ...)`, separated by commas, in any order; the last one is the
 * output. Ops: linear(x WIDTH [slow] [zero]), gate(x [slow]), bias(x [slow]), norm(x [eps=E]),
 * center(x), add(a b), mul(a b), and the functions identity, relu, silu, gelu, gelu_tanh, tanh,
 * sigmoid. WIDTH is a number, d or h, each with an optional factor: 4d. `width` is d, `hidden` is
 * h. A graph that is cyclic, disconnected, ill-shaped or trapped at zero is refused as graph_check
 * does. STATUS_USAGE, naming the node. */
Status graph_parse(Graph *g, const char *text, int64_t width, int64_t hidden);
/* Text of a preset of fastweight.md 2.7 and 3 ("linear", "swiglu", "ttt_mlp", ...), NULL when
 * unknown; i-th name, NULL past the end. */
const char *graph_preset(const char *name);
const char *graph_preset_name(int i);
/* The rules that hold for any graph; sorts nodes topologically. A cycle; a node that the output
 * does not depend on or that does not depend on the input; widths that do not meet; no fast node;
 * two zero fast linear nodes on one path of a learner without bias, whose inner gradients stay zero
 * for ever. STATUS_USAGE, naming the node. */
Status graph_check(Graph *g);

typedef enum GraphLoss { GRAPH_INNER, GRAPH_MSE, GRAPH_L1, GRAPH_RMSE } GraphLoss;
/* Which tokens' writes a query reads (fastweight.md 1). */
typedef enum GraphVisibility { GRAPH_CAUSAL, GRAPH_INCLUSIVE, GRAPH_EXCLUSIVE } GraphVisibility;
typedef enum GraphScan { GRAPH_FORWARD, GRAPH_BACKWARD, GRAPH_BOTH } GraphScan;

typedef struct GraphRule {
    GraphLoss loss;
    bool mean_scaling; /* the loss is a mean over the chunk's tokens, not a sum */
    GraphVisibility visibility;
    GraphScan scan; /* BOTH: the mean of both orders */
    int64_t chunk;  /* tokens; 0: all */
    int64_t steps;  /* inner steps per chunk, >= 1 */
    bool ascend;    /* gradient ascent */
    bool leak;      /* allows RMSE with CAUSAL, where a chunk's later tokens show */
} GraphRule;

/* The refusals of graph_forward() that need no tokens: STATUS_USAGE. */
Status graph_rule_check(const GraphRule *rule);

/* What one call works on. Per node where it is an array; NULL where the node has none. */
typedef struct GraphTokens {
    Var *q, *k, *v;           /* [B,H,N,d] */
    Var *weight[GRAPH_NODES]; /* LINEAR [B or 1,H,in,out], GATE and BIAS [B or 1,H,1,width]: slow
                                 parameters, or where fast weights start */
    Var *rate[GRAPH_NODES];   /* of fast nodes: NULL (1), [H], [B,H,N] or [B,H,N,width of input] */
    Var *decay[GRAPH_NODES]; /* log f <= 0 of fast nodes: NULL, [B,H,N] or [B,H,N,width of input] */
    Var *tau;                /* [chunk] position factors, or NULL; not with decay */
} GraphTokens;

typedef struct GraphState {
    Var *weight[GRAPH_NODES]; /* of fast nodes, after the last chunk: [B,H,...] */
} GraphState;

/* -> [B,H,N,d]. *end (may be NULL; not with scan BOTH) receives the fast weights, the caller's to
 * drop. Inputs stay the caller's. Refuses (STATUS_USAGE) more than one step with CAUSAL or decay,
 * tau with decay, and RMSE with CAUSAL unless rule->leak. */
Var *graph_forward(const Graph *g, const GraphRule *rule, Tape *t, const GraphTokens *in,
                   GraphState *end);
/* Reads alone: the learner with given weights at q [B,H,N,d]. */
Var *graph_read(const Graph *g, Tape *t, Var *q, Var *const weight[GRAPH_NODES]);

/* Whether a node of this kind owns a weight. */
bool graph_has_weight(const GraphNode *n);
/* Width of what flows into a node. */
int64_t graph_width_in(const Graph *g, const GraphNode *n);

/* eta = 2 sigma(beta + b), b so that beta = 0 gives `standard` (0 < standard < 2); log f =
 * -softplus(-(a + logit)) so that a = 0 gives `standard` < 1 (fastweight.md 2.5). */
Var *graph_rate(Tape *t, Var *beta, double standard);
Var *graph_log_decay(Tape *t, Var *a, double standard);
/* RMSNorm(y; gamma, eps) * sigma(z) (2.6): y, z [B,H,N,d], gamma [1,H,1,d]. */
Var *graph_output_gate(Tape *t, Var *y, Var *z, Var *gamma, float eps);

#endif
