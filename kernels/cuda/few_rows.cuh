/* Products of few rows (Hopper, BF16), such as the tokens of one view: y[m,n] = f(a[m,k] b),
 * b[n,k]' or b[k,n].
 *
 * Such a product is over before the usual kernels have filled the card. Small tiles, or a sum over
 * k shared by a cluster, give every multiprocessor a part, and the weights are on their way to the
 * L2 cache before the kernel in front has ended (chain.cuh).
 */
#ifndef TTV_KERNELS_CUDA_FEW_ROWS_CUH
#define TTV_KERNELS_CUDA_FEW_ROWS_CUH

#include "kernels/cuda/common.cuh"

/* What the row factors of a call are made of: partial sums that another call left. */
typedef enum FewRate {
    FEW_PLAIN,
    FEW_LAYER_NORM, /* y = f(LN(x) b) of an x whose `weighed` is a */
    FEW_UNIT,       /* the product's rows are divided by their a's norm + eps */
    FEW_RMS,        /* and by the root of its mean square + eps */
} FewRate;

typedef struct FewCall {
    int64_t m, n, k;
    const void *a, *b;
    void *y;
    bool turned;          /* b is [k,n] */
    bool steady;          /* no kernel that may still run writes b */
    bool gelu, silu;      /* of the product plus bias, rounded to BF16 */
    bool sigmoid;         /* y is F32 */
    bool gate;            /* turned; y [m,n/2] = silu(left half) times right half */
    const float *bias;    /* [n] or NULL */
    const void *residual; /* [m,n], added last; may be y; NULL: none */
    FewRate rate;
    const float *norm_w; /* FEW_LAYER_NORM: [k] */
    const float *sums;   /* [parts][m][2]: values and squares of a's (of a norm: x's) rows */
    int parts;
    float eps;
    const float *column_w; /* [n]: y is multiplied by it when its sums are taken; NULL: ones */
    void *weighed;         /* [m,n], beside a residual: y stays as it is, this is y column_w */
    float *sums_out;       /* the same of y; NULL: not wanted */
} FewCall;

/* Whether card, sizes and alignment suit this kernel. */
bool few_rows_fits(Device *d, const FewCall *g);
/* *parts (may be NULL): parts of sums_out, at most FEW_PARTS. */
#define FEW_PARTS 64
Status few_rows(Device *d, const FewCall *g, int *parts);

#endif
