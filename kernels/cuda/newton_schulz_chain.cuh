/* All products of a Newton-Schulz iteration in one kernel (Hopper, BF16 operands, F32 sums).
 *
 * A phase is one product of every matrix, result = alpha (sum of one or two terms a b) + beta s +
 * kappa carry + gamma I, cut into tiles of 128 x 128, or of 64 x 128 where matrices are few.
 * Symmetric results are computed on and below the diagonal and written twice. The tiles of all
 * phases form one list, which persistent blocks go through with equal strides, so there is no gap
 * between products; a tile waits until the phase before has finished its matrix. Waiting points
 * backwards in the list and every block is resident: it ends.
 *
 * A block is three warpgroups: of the first, one thread streams operands through a ring in shared
 * memory and two more write finished tiles; the others are two makers that take turns, so that one
 * multiplies while the other rounds its tile.
 *
 * Step forward:  A = XX';  B = bA + cAA;  X <- aX + BX, aX from F32 values kept beside.
 * Step backward: H = dX X' + X dX';  Q = bH + c(HA + AH);  dX <- a dX + B dX + QX. By quads the
 * norm's slope follows, dg = rate dX - rate^2 <dX, g> / norm g, a phase without products.
 */
#ifndef TTV_KERNELS_CUDA_NEWTON_SCHULZ_CHAIN_CUH
#define TTV_KERNELS_CUDA_NEWTON_SCHULZ_CHAIN_CUH

#include <cuda.h>

#include "kernels/cuda/newton_schulz.cuh"

#define CLUSTER 2
#define TILE    128
#define QUAD    256
#define BOX     64 /* rows and columns of what the copy engine moves at a time */

#define MAPS   15
#define PHASES (6 * NEWTON_SCHULZ_MOST + 1)
#define COVERS 136 /* sets of a symmetric result of at most 2048 rows */
#define NOBODY 255 /* in a cover */

/* a, b, out: numbers of matrices' maps. */
typedef struct Phase {
    uint8_t a[2], b[2];
    uint8_t out, s;  /* NOBODY: no such matrix */
    uint8_t second;  /* by quads, added to s: what the norm's slope takes off, x; or NOBODY */
    uint8_t wait[2]; /* phases that have to be finished with the matrix; NOBODY: none */
    uint8_t terms;
    uint8_t halves;      /* 64 rows of a tile, not by quads */
    bool turned;         /* b lies as [k, n], not as [n, k] */
    bool symmetric;      /* tiles on and below the diagonal, each written twice */
    bool low;            /* a and, unless turned, b are symmetric: no quads above the diagonal */
    int depth;           /* of one term */
    int columns, across; /* of the result, in elements and tiles */
    int tiles, sets;     /* of one matrix; a set is what the blocks of a cluster do together */
    int beside;          /* sets of the next phase that come before a matrix's own, by quads */
    float alpha, beta, gamma, kappa;
    int power;          /* of the matrix's rate, by which all four are multiplied */
    const float *carry; /* F32 [n, r, columns], or NULL */
    float *wide;        /* the result in F32, or NULL; may be `carry` */
    float *dots; /* by quads: <s, result> by warps and strips, instead of adding s; or NULL */
} Phase;

typedef struct Chain {
    CUtensorMap map[MAPS];
    Phase phase[PHASES];
    int phases, n, r;
    int group; /* matrices that go through all phases together */
    int sets_each, sets;
    bool late;          /* by quads: a cluster takes a quad when it begins the one before */
    int *done;          /* [phases][n]: finished tiles */
    int *taken;         /* sets of the list that clusters have taken */
    const float *rates; /* [n] */
    const float *norms; /* [n], and inner products [n, parts], for a phase that has `second` */
    const float *dots;
    int parts;
    uint8_t cover[COVERS][4]; /* of symmetric results: row of each block, column, in tiles */
} Chain;

/* Runs it with tiles of 128 rows (`halves` 2), or symmetric results by 64 (1), as phases and cover
 * were made for. */
Status chain_launch(Device *d, const Chain *c, int halves);
/* Runs it by quads. */
Status quad_launch(Device *d, const Chain *c);
/* Starts one of the kernels with as many clusters as are resident at a time. */
Status chain_start(Device *d, const Chain *c, const void *kernel, int threads, int shared);

#endif
