/* What a backend gives to device.c, inside kernels/ only.
 *
 * <backend>_device_open() allocates a Device (mem_alloc) and fills kind, index, name, k, memory and
 * backend; device.c sets up the arenas. device_close() frees the arenas (through memory->release),
 * then calls memory->close(), which gives back d->backend and its handles, then mem_free(d).
 */
#ifndef TTV_KERNELS_BACKEND_H
#define TTV_KERNELS_BACKEND_H

#include "kernels/device.h"

typedef struct DeviceMemory {
    /* `bytes` > 0 at a 256-byte boundary; STATUS_MEMORY when the device has no more (device.c and
     * the arena add names and sizes). */
    Status (*alloc)(Device *d, size_t bytes, void **out);
    void (*release)(Device *d, void *memory);
    /* host -> device and device -> host; `bytes` > 0. The rules of device_push and device_pull. */
    Status (*push)(Device *d, void *dst, const void *src, size_t bytes);
    Status (*pull)(Device *d, void *dst, const void *src, size_t bytes);
    Status (*sync)(Device *d);
    Status (*available)(Device *d, size_t *available, size_t *total);
    void (*close)(Device *d);
    /* The rules of device_stage and device_commit; NULL: push at once. */
    Status (*stage)(Device *d, void *dst, const void *src, size_t bytes);
    Status (*commit)(Device *d);
    /* The rules of device_graph_*; NULL: the backend cannot record. */
    Status (*graph_begin)(Device *d);
    Status (*graph_end)(Device *d, DeviceGraph **out);
    Status (*graph_launch)(Device *d, DeviceGraph *g);
    void (*graph_free)(DeviceGraph *g);
    /* The answer of device_folds_norms; NULL: never. */
    bool (*folds_norms)(Device *d, int64_t rows, int64_t outputs, int64_t inputs);
} DeviceMemory;

Status cpu_device_open(Device **out);
Status dry_device_open(Device **out);

/* Instruction sets that kernels/cpu was compiled for: data, so that it can be read on any
 * processor. */
enum {
    CPU_ISA_AVX2 = 1,
    CPU_ISA_FMA = 2,
    CPU_ISA_AVX512F = 4,
    CPU_ISA_AVX512BW = 8,
    CPU_ISA_AVX512DQ = 16,
    CPU_ISA_AVX512VL = 32,
    CPU_ISA_AVX512BF16 = 64,
};
extern const unsigned cpu_isa_compiled;

/* The CUDA one is declared in kernels/cuda/cuda_device.h: Status cuda_device_open(int index, Device
 * **). */

#endif
