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
