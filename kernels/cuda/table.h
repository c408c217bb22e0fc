/* The CUDA kernels: one function <slot>_cuda per slot, with the slot's type. */
#ifndef TTV_KERNELS_CUDA_TABLE_H
#define TTV_KERNELS_CUDA_TABLE_H

#ifdef __cplusplus
extern "C" {
#endif

#include "kernels/slots.h"

#define DECLARE_CUDA(slot) __typeof__(*((Kernels *)0)->slot) slot##_cuda;
KERNEL_SLOTS(DECLARE_CUDA)
#undef DECLARE_CUDA

#ifdef __cplusplus
}
#endif

#endif
