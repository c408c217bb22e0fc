/* The attention form of a graph case against the file's output (fastweight.md 6). */
#ifndef TTV_TESTS_GOLDEN_FAST_GRAPH_IDENTITY_H
#define TTV_TESTS_GOLDEN_FAST_GRAPH_IDENTITY_H

#include "fast_case.h"
#include "ttt/graph.h"

/* For cases without decay, position factors, rates of vectors and output gate; others are passed
 * over. On the host, so only where the run is F32. */
Status fast_graph_identity(FastCase *c, const Graph *g, const GraphRule *rule,
                           const GraphTokens *in);

#endif
