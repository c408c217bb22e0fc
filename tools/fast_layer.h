/* One fast-weight layer of a trained model, of any kind: what it saw in the last pass, checked
 * against its linear-attention form (`ttv ttt verify`) or looked at (`ttv ttt probe`). Passes have
 * one sample.
 */
#ifndef TTV_TOOLS_FAST_LAYER_H
#define TTV_TOOLS_FAST_LAYER_H

#include "ttt/identity.h"
#include "ttt/sequence_mixer.h"

typedef enum LayerKind { LAYER_VITTT, LAYER_LACT, LAYER_GRAPH } LayerKind;

/* The layer is the model's; switches and traces are set in it. */
typedef struct FastLayer {
    LayerKind kind;
    VitttMixer *vittt;
    LactLayer *lact;
    SequenceMixer *graph;
    int64_t side; /* VITTT: tokens of a row */
    VitttTrace vittt_trace;
    LactTrace lact_trace;
    GraphTrace graph_trace;
} FastLayer;

FastLayer fast_layer_vittt(VitttMixer *m, int64_t side);
FastLayer fast_layer_lact(LactLayer *m);
FastLayer fast_layer_graph(SequenceMixer *m);
/* Whether passes keep what the layer sees. The layer must not move while they do. */
void fast_layer_trace(FastLayer *l, bool on);

/* ---- verifying (fast_layer_verify.c) ---- */

/* One row of the report: a branch, node or whole layer, worst of all heads and inputs. */
typedef struct VerifyRow {
    int64_t layer;
    const char *branch;
    IdentityResult result;
    bool seen;
    char note[96]; /* why there is no linear form; "" where there is one */
} VerifyRow;

enum { LAYER_ROWS = GRAPH_NODES + 1 }; /* at most */
/* Names the layer's rows into rows[LAYER_ROWS]; returns how many: glu and depthwise; lact; or the
 * nodes of a graph that are written, then its output. */
int fast_layer_rows(const FastLayer *l, int64_t layer, VerifyRow *rows);
/* Merges what the last pass shows into them. */
Status fast_layer_verify(Device *d, const FastLayer *l, VerifyRow *rows);
/* Whether it goes through Newton-Schulz. */
bool fast_layer_has_muon(const FastLayer *l);

/* ---- looking (fast_layer_study.c) ---- */

/* The inner loop in the last pass, mean over heads. */
Status fast_layer_inner(Device *d, const FastLayer *l, InnerLoop *out);

typedef enum VectorKind {
    VECTOR_QUERY,
    VECTOR_KEY,
    VECTOR_VALUE,
    VECTOR_OUTPUT,
    VECTOR_READ_FEATURE, /* phi(q) with the written gates: the effective queries of the identity */
    VECTOR_WRITE_FEATURE /* phi(k) with the start gates */
} VectorKind;
/* Vectors of the last pass as the layer's core meets them, of all heads: rows [count, width]
 * (mem_free). Outputs are before the layer's last norm; of ViTTT, those of the GLU branch. Queries
 * and outputs are of tokens that read, keys and values of those that write. Features: of layers
 * that have them. */
Status fast_layer_vectors(Device *d, const FastLayer *l, VectorKind kind, double **out,
                          int64_t *count, int64_t *width);
/* Whether queries and keys go through features: LaCT but for its linear variants. */
bool fast_layer_has_features(const FastLayer *l);
/* Mean cosine of a token's query and its key, over heads and tokens that do both; NaN: none do. */
Status fast_layer_cosine(Device *d, const FastLayer *l, double *out);

/* ---- shared by both ---- */

/* A device tensor as doubles (mem_free). */
Status fast_layer_pull(Device *d, Tensor t, double **out);
/* A LaCT layer as the identity takes it; owned memory behind it. */
typedef struct LactInput {
    IdentityLact in;
    double *owned[9];
} LactInput;
Status lact_input(Device *d, const FastLayer *l, LactInput *out);
void lact_input_free(LactInput *x);
/* A graph layer's tokens, rates and weights, of all heads. */
typedef struct GraphInput {
    double *q, *k, *v, *o, *rate[GRAPH_NODES], *weight[GRAPH_NODES];
    int64_t tokens;
} GraphInput;
Status graph_input(Device *d, const FastLayer *l, GraphInput *out);
void graph_input_free(GraphInput *x);
/* Head h of it; the layer's graph and rule stay the layer's. */
IdentityGraph graph_head(const GraphInput *x, const FastLayer *l, int64_t h);
/* Columns [from, from + width) of x [rows, all]. */
void matrix_columns(double *out, const double *x, int64_t rows, int64_t all, int64_t from,
                    int64_t width);

#endif
