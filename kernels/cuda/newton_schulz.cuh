/* Newton-Schulz on matrices that lie with r <= c, F32 or BF16 (lact_nvs.md 4.3, 5.3): the two ways
 * of doing its products, and what is elementwise.
 */
#ifndef TTV_KERNELS_CUDA_NEWTON_SCHULZ_CUH
#define TTV_KERNELS_CUDA_NEWTON_SCHULZ_CUH

#include "kernels/cuda/common.cuh"

#define NORM_OFFSET   1e-7f  /* added to norms before one divides by them */
#define NORM_VANISHED 1e-20f /* a gradient of this size counts as none (fastweight.md 4.3) */

/* n matrices [r, c], r <= c; operands of products are of type `type`. */
typedef struct Iteration {
    Device *d;
    int64_t n, r, c;
    DType type;
    const NewtonSchulz *s; /* at least one step */
    const float *rates;    /* of a chain: x is still to be multiplied by it, matrix by matrix */
    const float *carry;    /* of a chain: the F32 values of x, where x was rounded; or NULL */
} Iteration;

/* What a chain leaves behind on the way back. */
typedef struct Slope {
    void *dx0; /* the gradient at x, F32 or BF16 */
    DType type;
    Tensor u; /* X after all steps, or none */
    /* <x, dx0> in `parts` parts a matrix, which whoever needs them adds up; NULL: not found */
    float *dots;
    int parts;
    void *dg;           /* BF16: the gradient at g, too, if the chain can; or NULL */
    const float *norms; /* for that */
    bool is_whole;      /* it did */
} Slope;

/* y[n,r,r] = p + b s; p F32, s and y of the iteration's type. */
Status polynomial_add(const Iteration *it, void *y, const float *p, const void *s, float b);

/* Norms of the n matrices x of r c elements (a multiple of 8, at 16 bytes), and 1 / (norm +
 * offset); copy (BF16, or NULL) = x. For cards that chains run on. */
Status norms_find(const Iteration *it, float *norms, float *rates, Tensor x, void *copy);

/* With cuBLASLt. u = X after all steps, x = X before; x is not kept. */
Status iterate_blas(const Iteration *it, float *u, float *x);
/* dx0 = the gradient at x from dx at the end; neither is kept. u (or NULL) = X after all steps. */
Status iterate_blas_backward(const Iteration *it, float *dx0, float *u, float *dx, float *x);

/* With one kernel of our own (Hopper, BF16): the same two, and whether it suits. x and dx (BF16)
 * are kept and may be the caller's own tensors; u is F32 or BF16. */
bool chain_fits(const Iteration *it);
Status iterate_chain(const Iteration *it, void *u, DType type, const void *x);
Status iterate_chain_backward(const Iteration *it, Slope *slope, const void *dx, const void *x);

#endif
