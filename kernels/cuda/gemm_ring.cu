/* The host's part of what the products written for Hopper share. */
#include "kernels/cuda/gemm_fused.cuh"
#include "kernels/cuda/gemm_ring.cuh"
#include "kernels/cuda/tensor_map.cuh"

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

Status map_matrix(CUtensorMap *map, const void *p, int64_t rows, int64_t columns, int box_rows) {
    const cuuint64_t size[2] = {(cuuint64_t)columns, (cuuint64_t)rows};
    const cuuint64_t pitch[1] = {(cuuint64_t)columns * sizeof(bf16)};
    const cuuint32_t box[2] = {64, (cuuint32_t)box_rows};
    return tensor_map(map, CU_TENSOR_MAP_DATA_TYPE_BFLOAT16, 2, p, size, pitch, box,
                      CU_TENSOR_MAP_SWIZZLE_128B, CU_TENSOR_MAP_L2_PROMOTION_L2_256B);
}
