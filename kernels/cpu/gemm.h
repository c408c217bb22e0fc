/* The one matrix product behind every kernel.
 *
 * gemm.c converts what the backend cannot take; gemm_onednn.c and gemm_cblas.c are the backends, of
 * which CMake picks one (TTV_GEMM_BACKEND).
 */
#ifndef TTV_KERNELS_CPU_GEMM_H
#define TTV_KERNELS_CPU_GEMM_H

#include "kernels/device.h"

/* c[i] (+)= act(alpha op(a[i]) op(b[i]) + bias), i < batch; op(a) is m x k, op(b) is k x n,
 * row-major. */
typedef struct Gemm {
    int64_t batch, m, n, k;
    const void *a, *b;     /* F32 or BF16, the same for both */
    DType in, out;         /* F32 out for F32 in; either for BF16 in */
    bool ta, tb;           /* stored transposed: a is k x m, b is n x k */
    int64_t lda, ldb, ldc; /* elements between rows as stored */
    int64_t stride_a, stride_b,
        stride_c; /* elements between matrices of the batch; a, b: 0 broadcasts */
    void *c;
    float alpha;
    bool add;          /* accumulate into c; excludes bias and gelu */
    const float *bias; /* n values or NULL; needs alpha 1 */
    bool gelu;         /* erf form, after the bias */
} Gemm;

Status gemm_open(Device *d);
void gemm_close(Device *d);

/* May take d->scratch, which the calling kernel resets. */
Status gemm_run(Device *d, const Gemm *g);

/* What a backend does by itself; gemm.c does the rest for it. */
typedef struct GemmAbilities {
    bool bf16; /* BF16 operands */
    bool bias;
    bool gelu; /* in F32; a BF16 result gets it from gemm.c, at BF16's accuracy */
} GemmAbilities;

/* Of the backend: the product, for what it can do. */
GemmAbilities gemm_abilities(const Device *d);
Status gemm_backend_run(Device *d, const Gemm *g);

#endif
