/* The CPU's kernels: one function <slot>_cpu per slot, with the slot's type. */
#ifndef TTV_KERNELS_CPU_TABLE_H
#define TTV_KERNELS_CPU_TABLE_H

#include "kernels/slots.h"

#define DECLARE_CPU(slot) __typeof__(*((Kernels *)0)->slot) slot##_cpu;
KERNEL_SLOTS(DECLARE_CPU)
#undef DECLARE_CPU

#endif
