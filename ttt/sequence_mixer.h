/* Token mixers of the other papers as layers of an image model: the LaCT layer (ttt/lact.h) and any
 * graph learner (ttt/graph.h), TTT-Linear and TTT-MLP among them. Tokens stand in raster order.
 *
 * A graph layer: queries, keys and values by one projection, queries and keys of unit length per
 * head, a rate per token, head and fast node from the layer's input, RMS norm of each head's
 * result, output projection. From the projection to the norm all is F32.
 */
#ifndef TTV_TTT_SEQUENCE_MIXER_H
#define TTV_TTT_SEQUENCE_MIXER_H

#include "nn/params.h"
#include "ttt/graph.h"
#include "ttt/lact.h"

typedef enum SequenceKind { SEQUENCE_NONE, SEQUENCE_LACT, SEQUENCE_GRAPH } SequenceKind;

/* What a name and the options around it ask for. */
typedef struct SequenceSpec {
    SequenceKind kind;
    LactVariant lact;
    const char *graph; /* text of the graph */
    GraphRule rule;
    double rate; /* at the start of training */
} SequenceSpec;

/* lact, lact_V1 to lact_V6, lact_ascent, lact_query_is_key: bidirectional. ttt_linear, ttt_mlp:
 * causal, mini-batches of 16 tokens, squared error. graph:PRESET or graph:TEXT (graph_parse): all
 * tokens write, then all read; mean squared error. False for other names, with *out untouched. */
bool sequence_spec_by_name(const char *name, SequenceSpec *out);
/* The names without free text, for messages; NULL past the end. */
const char *sequence_name(int i);

/* What one pass of a graph layer saw, for study: copies that live as long as the tape's other
 * values. */
typedef struct GraphTrace {
    Var *q, *k, *v, *o;     /* F32 [B,H,N,d]: what the learner got and gave */
    Var *rate[GRAPH_NODES]; /* F32 [B,H,N] of fast nodes, else NULL */
} GraphTrace;

typedef struct SequenceMixer {
    SequenceKind kind;
    int64_t width, heads;
    LactLayer lact;
    Graph graph;
    GraphRule rule;
    double rate;
    Var *weight[GRAPH_NODES];
    Var *qkv_w, *qkv_b, *rate_w, *rate_b, *norm_w, *proj_w, *proj_b;
    GraphTrace *trace;     /* of a graph; optional, the caller's (lact has its own) */
    const QuerySwap *swap; /* of a graph; optional, the caller's (lact has its own) */
} SequenceMixer;

/* Registers the layer's parameters behind `prefix`. STATUS_USAGE for a graph that graph_check
 * refuses or rules that do not go together. */
Status sequence_mixer_register(SequenceMixer *m, Params *p, const char *prefix, int64_t width,
                               int64_t heads, const SequenceSpec *spec);

/* residual + scale * layer(x); x, residual [B,N,C]; scale F32 [B] or none (1). */
Var *sequence_mixer_join(const SequenceMixer *m, Tape *t, Var *x, Var *residual, Tensor scale);

#endif
