/* Attention within a few windows (Hopper, BF16, heads of 64 channels), such as one view. */
#ifndef TTV_KERNELS_CUDA_FEW_ATTENTION_CUH
#define TTV_KERNELS_CUDA_FEW_ATTENTION_CUH

#include "kernels/cuda/attention.cuh"

/* Windows of more than 128 and at most 256 tokens, no lse wanted. */
bool few_attention_fits(Device *d, const AttentionArgs &a);
Status few_attention(Device *d, const AttentionArgs &a, int64_t windows);

#endif
