/* For study: other queries in the place of a layer's own (fastweight.md 10.4). A layer that had its
 * queries replaced reads what it wrote as before. Evaluation only: no gradient passes.
 */
#ifndef TTV_TTT_QUERY_SWAP_H
#define TTV_TTT_QUERY_SWAP_H

#include "nn/tape.h"

typedef enum QueryKind {
    QUERY_OWN,
    QUERY_KEYS,     /* each token's key */
    QUERY_SHUFFLED, /* the query of another token: one permutation of (seed, layer, tokens) */
    QUERY_NOISE,    /* normal directions as long as the query was, of (seed, layer, head, token) */
} QueryKind;

typedef struct QuerySwap {
    QueryKind kind;
    uint64_t seed;
    int64_t layer;
} QuerySwap;

/* Where heads' queries and keys stand in a packed projection: `heads` times `width` channels from
 * channel `query` and from channel `key`. */
typedef struct QueryPlace {
    int64_t query, key, heads, width;
} QueryPlace;

/* packed [B,N,P], F32 or BF16, with its query channels replaced, as a new value; `packed` stays the
 * caller's. All samples get the same permutation and the same noise, whatever the batch. Goes
 * through the host. STATUS_USAGE while the tape records. */
Var *query_swap(Tape *t, Var *packed, const QuerySwap *s, QueryPlace place);

#endif
