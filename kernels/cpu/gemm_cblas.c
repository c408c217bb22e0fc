/* Matrix products through any CBLAS: F32 only, one call per matrix. */
#include <cblas.h>

#include "kernels/cpu/gemm.h"

Status gemm_open(Device *d) {
    (void)d;
    return STATUS_OK;
}

void gemm_close(Device *d) {
    (void)d;
}

GemmAbilities gemm_abilities(const Device *d) {
    (void)d;
    return (GemmAbilities){.bf16 = false, .bias = false, .gelu = false};
}

Status gemm_backend_run(Device *d, const Gemm *g) {
    (void)d;
    const int64_t sizes[] = {g->m, g->n, g->k, g->lda, g->ldb, g->ldc};
    for (int i = 0; i < 6; i++) {
        if (sizes[i] > INT32_MAX)
            return status_set(STATUS_DATA,
                              "a matrix of %lld rows or columns is too large for CBLAS",
                              (long long)sizes[i]);
    }
    for (int64_t i = 0; i < g->batch; i++) {
        cblas_sgemm(CblasRowMajor, g->ta ? CblasTrans : CblasNoTrans,
                    g->tb ? CblasTrans : CblasNoTrans, (int)g->m, (int)g->n, (int)g->k, g->alpha,
                    (const float *)g->a + i * g->stride_a, (int)g->lda,
                    (const float *)g->b + i * g->stride_b, (int)g->ldb, g->add ? 1.0f : 0.0f,
                    (float *)g->c + i * g->stride_c, (int)g->ldc);
    }
    return STATUS_OK;
}
