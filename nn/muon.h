/* Muon for the matrices of a model, AdamW for everything else.
 *
 * The step of a weight matrix is its momentum made nearly orthogonal by five Newton-Schulz steps,
 * so that all directions of the matrix move alike (K. Jordan, "Muon", 2024); times 0.2 sqrt(max(r,
 * c)), which gives it about the size of AdamW's steps, so that both share one rate and one decay
 * (Liu et al., "Muon is Scalable for LLM Training", 2025). Matrices: decayed parameters of rank 2
 * that are operands of products (PARAM_MATMUL); the head and convolutions keep AdamW.
 *
 * Set as AdamW.muon it is part of the update. Its momentum lies in AdamW's first moments, whose
 * second moments of those parameters stay zero, so that checkpoints and resumes know nothing of it.
 */
#ifndef TTV_NN_MUON_H
#define TTV_NN_MUON_H

#include "nn/params.h"

/* Matrices of one shape at equal distances in the flat block: one batch. */
typedef struct MuonGroup {
    int64_t first, stride, count, rows, columns; /* first and stride: elements */
} MuonGroup;

typedef struct Muon {
    Params *params;
    MuonGroup *groups;
    int64_t count;
    float momentum;
    DType dtype;        /* of momentum on its way through Newton-Schulz: BF16 with a shadow */
    Tensor ahead, unit; /* of the largest group, in the state arena */
} Muon;

bool muon_takes(const Param *item);
/* 0 <= momentum < 1; STATUS_USAGE when the model has no such matrix. */
Status muon_init(Muon *m, Params *p, float momentum);
void muon_free(Muon *m);
/* Kernels alone. moments: AdamW's first moments; control of grad_norm, lr on the device. */
Status muon_apply(Muon *m, Tensor moments, Tensor lr, Tensor control, float weight_decay);

#endif
