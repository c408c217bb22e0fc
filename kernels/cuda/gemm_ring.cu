/* The host's part of what the products written for Hopper share. */
#include "kernels/cuda/gemm_fused.cuh"
#include "kernels/cuda/gemm_ring.cuh"

/* Whether the code that was loaded for this card is the one for sm_90a. */
__global__ void feature_kernel(int *has) {
    *has = HAVE_SM90A;
}

Status gemm_fused_probe(CudaBackend *b) {
    int *has, answer = 0;
    if (b->compute != 90) return STATUS_OK;
    CUDA_TRY(cudaMalloc((void **)&has, sizeof(int)), "asking for sm_90a");
    feature_kernel<<<1, 1, 0, b->stream>>>(has);
    cudaError_t code =
        cudaMemcpyAsync(&answer, has, sizeof(int), cudaMemcpyDeviceToHost, b->stream);
    if (code == cudaSuccess) code = cudaStreamSynchronize(b->stream);
    (void)cudaFree(has);
    CUDA_TRY(code, "asking for sm_90a");
    b->sm90a = answer == 1;
    return STATUS_OK;
}

typedef CUresult (*EncodeTiled)(CUtensorMap *, CUtensorMapDataType, cuuint32_t, void *,
                                const cuuint64_t *, const cuuint64_t *, const cuuint32_t *,
                                const cuuint32_t *, CUtensorMapInterleave, CUtensorMapSwizzle,
                                CUtensorMapL2promotion, CUtensorMapFloatOOBfill);

Status map_matrix(CUtensorMap *map, const void *p, int64_t rows, int64_t columns, int box_rows) {
    static EncodeTiled encode; /* the driver's function: the same for all devices */
    if (!encode) {
        void *entry = NULL;
        cudaDriverEntryPointQueryResult found;
        CUDA_TRY(cudaGetDriverEntryPointByVersion("cuTensorMapEncodeTiled", &entry, 12000,
                                                  cudaEnableDefault, &found),
                 "looking for cuTensorMapEncodeTiled");
        if (!entry) return status_set(STATUS_DEVICE, "the driver has no cuTensorMapEncodeTiled");
        encode = (EncodeTiled)entry;
    }
    const cuuint64_t size[2] = {(cuuint64_t)columns, (cuuint64_t)rows};
    const cuuint64_t pitch[1] = {(cuuint64_t)columns * sizeof(bf16)};
    const cuuint32_t box[2] = {64, (cuuint32_t)box_rows}, step[2] = {1, 1};
    const CUresult code =
        encode(map, CU_TENSOR_MAP_DATA_TYPE_BFLOAT16, 2, (void *)p, size, pitch, box, step,
               CU_TENSOR_MAP_INTERLEAVE_NONE, CU_TENSOR_MAP_SWIZZLE_128B,
               CU_TENSOR_MAP_L2_PROMOTION_L2_256B, CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE);
    if (code != CUDA_SUCCESS)
        return status_set(STATUS_DEVICE, "describing a matrix to the copy engine: error %d", code);
    return STATUS_OK;
}
