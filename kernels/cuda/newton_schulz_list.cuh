/* The list that clusters take quads from, and what of a quad is wanted (newton_schulz_quad.cu).
 */
#ifndef TTV_KERNELS_CUDA_NEWTON_SCHULZ_LIST_CUH
#define TTV_KERNELS_CUDA_NEWTON_SCHULZ_LIST_CUH

#include "kernels/cuda/newton_schulz_chain.cuh"
#include "kernels/cuda/wgmma.cuh"

#define BOXES 4  /* across a quad */
#define DEPTH 64 /* k per stage */

#if HAVE_SM90A

/* ---- where a quad is ------------------------------------------------------------------------ */

typedef struct Quad {
    int phase, matrix, row, column;
    int strips, boxes; /* down and across, 4 but at the end of a matrix */
    bool diagonal;     /* of a symmetric result */
    bool real;
} Quad;

static __device__ Quad quad_of(const Chain &c, int set) {
    const int whole = c.group * c.sets_each, group = set / whole, first = group * c.group;
    const int size = min(c.group, c.n - first);
    int left = set - group * whole, i = 0;
    Quad q = {};
    int beside = c.phase[0].beside, sets = c.phase[0].sets + beside;
    while (left >= size * sets) {
        left -= size * sets;
        q.phase += beside > 0 ? 2 : 1;
        beside = c.phase[q.phase].beside;
        sets = c.phase[q.phase].sets + beside;
    }
    q.matrix = first + left / sets;
    left %= sets;
    if (left < beside)
        q.phase++;
    else
        left -= beside;
    const Phase &p = c.phase[q.phase];
    if (p.symmetric) {
        while (left > i) left -= ++i;
    } else {
        const int across = (p.columns + QUAD - 1) / QUAD;
        i = left / across;
        left %= across;
    }
    q.row = i * QUAD;
    q.column = left * QUAD;
    q.diagonal = p.symmetric && i == left;
    return q;
}

/* The strip of maker `which` of block `rank`; there may be none. */
static __device__ __forceinline__ int strip_of(const Quad &q, int rank, int which) {
    if (!q.diagonal) return rank + 2 * which;
    return rank == 0 ? 3 * which : 1 + which;
}

/* Boxes of a strip that are wanted, and those of them that have a mirror image in the quad. */
static __device__ __forceinline__ int boxes_of(const Quad &q, int strip) {
    if (strip >= q.strips) return 0;
    return q.diagonal ? strip + 1 : q.boxes;
}
static __device__ __forceinline__ int mirrored_of(const Quad &q, int strip) {
    return q.diagonal && strip < q.strips ? strip : 0;
}

/* k of a term from which an operand with rows from `row` is turned: quads above the diagonal of a
 * symmetric matrix are not in memory, so those below are read in their place. */
static __device__ __forceinline__ int turned_from(const Phase &p, int row) {
    return p.low ? row + QUAD : p.depth;
}

/* Rows of a are among those of b. */
static __device__ __forceinline__ bool is_within(const Phase &p, const Quad &q) {
    return q.diagonal && p.terms == 1 && p.a[0] == p.b[0];
}

static __device__ __forceinline__ int stages_of(const Phase &p) {
    return p.terms * (p.depth / DEPTH);
}

/* Stages that bring s, two boxes a maker. */
static __device__ __forceinline__ int addend_stages(const Phase &p, const Quad &q) {
    return p.s != NOBODY ? (q.boxes + 1) / 2 : 0;
}
/* And then the second. */
static __device__ __forceinline__ int second_stages(const Phase &p, const Quad &q) {
    return p.second != NOBODY ? (q.boxes + 1) / 2 : 0;
}

#endif /* HAVE_SM90A */

#endif
