/* The position encoding with its layer norm on whole rows: the kernel that keeps a row's outputs in
 * registers (dwconv_norm_keep.cu). */
#ifndef TTV_KERNELS_CUDA_DWCONV_NORM_CUH
#define TTV_KERNELS_CUDA_DWCONV_NORM_CUH

#include "kernels/cuda/dwconv.cuh"
#include "kernels/cuda/norm.cuh"

/* Whether it takes x [B,H,W,C] (sm_90a, 16-byte alignment of all tensors is the caller's): BF16
 * rows of 14 or 16 pixels, channels a multiple of 64 and at most 768. */
bool dwconv3_norm_keeps(Tensor x);
Status dwconv3_norm_keep(Device *d, Tensor sum, Tensor y, Tensor stats, Tensor x, const ConvArgs &g,
                         const NormArgs &n);

#endif
