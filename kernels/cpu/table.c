#include "kernels/cpu/table.h"

#define ENTRY(slot) .slot = slot##_cpu,
const Kernels kernels_cpu = {.name = "cpu", KERNEL_SLOTS(ENTRY)};
