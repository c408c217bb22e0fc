/* Newton-Schulz of matrices of 384 x 384, BF16 in, each by a cluster of two blocks
 * (newton_schulz_pair.cu).
 */
#ifndef TTV_KERNELS_CUDA_NEWTON_SCHULZ_PAIR_CUH
#define TTV_KERNELS_CUDA_NEWTON_SCHULZ_PAIR_CUH

#include "kernels/cuda/newton_schulz.cuh"

/* Whether it can, and is the faster way: tiles of all matrices (newton_schulz_chain.cuh) leave less
 * idle where there are few matrices, or few more than clusters. */
bool pair_fits(Device *d, Tensor u, Tensor g, const NewtonSchulz *s);
/* The whole slot; scratch is left to be given back. norms may be none. */
Status pair_run(Device *d, Tensor u, Tensor norms, Tensor g, const NewtonSchulz *s);

#endif
