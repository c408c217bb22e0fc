#include "kernels/cuda/table.h"

#define ENTRY(slot) .slot = slot##_cuda,
const Kernels kernels_cuda = {.name = "cuda", KERNEL_SLOTS(ENTRY)};
