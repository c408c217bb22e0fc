/* Matrix products through cuBLASLt, with plans kept per shape.
 *
 * A plan is made on the first call of a shape: cuBLASLt proposes algorithms, the fastest measured
 * one is kept among those whose result is bit for bit that of the first proposal. So the choice
 * depends on timing, the numbers never do. Algorithms that join split sums with atomics are not
 * asked for.
 */
#ifndef TTV_KERNELS_CUDA_GEMM_CUH
#define TTV_KERNELS_CUDA_GEMM_CUH

#include "kernels/cuda/common.cuh"

/* c[m,n] (+)= alpha op(a)[m,k] op(b)[k,n], row-major, `batch` times. Row pitches and batch strides
 * in elements; a and b are F32 or BF16, c likewise or F32. */
typedef struct GemmCall {
    int64_t m, n, k;
    const void *a, *b;
    void *c;
    int64_t lda, ldb, ldc;
    int64_t batch, step_a, step_b, step_c;
    bool ta, tb, add;
    DType in, out;
    float alpha;
    const float *bias; /* [n], one per column; NULL: none */
    const void *from;  /* with add: what is added to, laid out as c; NULL: c itself */
} GemmCall;

Status gemm_open(Device *d, GemmCache **out);
void gemm_close(GemmCache *cache);

/* Dense matrices, one of them: pitches and batch filled in. */
GemmCall gemm_call(int64_t m, int64_t n, int64_t k, const void *a, bool ta, const void *b, bool tb,
                   void *c, DType in, DType out, bool add);

/* Runs the call; without an algorithm in cuBLASLt, by a simple kernel. May take scratch. */
Status gemm_run(Device *d, const GemmCall *g);

/* A graph begins to be recorded, and is about to be built: what clears counters of its products is
 * gathered (gemm_slots.cuh). */
void gemm_record(GemmCache *cache);
Status gemm_recorded(GemmCache *cache, cudaGraph_t graph);

/* The simple kernel (gemm_simple.cu). */
Status gemm_simple(Device *d, const GemmCall *g);

#endif
