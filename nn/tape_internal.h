/* What tape.c and tape_backward.c share. */
#ifndef TTV_NN_TAPE_INTERNAL_H
#define TTV_NN_TAPE_INTERNAL_H

#include "nn/tape.h"

#define CHUNK   256
#define MESSAGE 1024

/* Stable storage: chunks stay where they are and are used again in the next pass. */
typedef struct VarChunk {
    Var items[CHUNK];
} VarChunk;
typedef struct NodeChunk {
    Node items[CHUNK];
} NodeChunk;

#define ZEROS 8 /* lengths of zeros that are kept */

struct Tape {
    Device *device;
    DType act;
    bool recording;
    TapeThrift thrift;
    bool spent; /* a backward went over this pass: its values are gone */
    Status status;
    char message[MESSAGE];
    Var poison;
    VarChunk **var_chunks;
    NodeChunk **node_chunks;
    int64_t var_chunk_count, node_chunk_count;
    int64_t vars, nodes;    /* used in this pass */
    int64_t first, running; /* of the walk: its first node, and the one whose backward runs */
    Tensor zeros[ZEROS];    /* by length; in the state arena */
};

/* Give the memory of a value's gradient, or of the value, back; both may have none. */
void tape_give_grad(Tape *t, Var *v);
void tape_give_value(Tape *t, Var *v);

/* Node i of this pass; Var i. */
Node *tape_node_at(const Tape *t, int64_t i);
Var *tape_var_at(const Tape *t, int64_t i);
/* The next node, all zeros; NULL when memory ran out (the tape has the error). */
Node *tape_take_node(Tape *t);

#endif
