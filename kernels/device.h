/* Device: where tensors live and kernels run, and the arenas that own device memory.
 *
 * One Device per processor: "cpu" or "cuda:N". It holds the kernel table, library handles, and four
 * arenas: weights (parameters and their bf16 shadow), state (gradients, Adam moments), step
 * (activations and gradients of one step) and scratch (a kernel's own temporaries, reset by each
 * kernel). Arenas grow in the first step only: afterwards the sequence of sizes repeats, so
 * addresses repeat too and a whole step can be captured as a CUDA graph. Threads: one thread at a
 * time per Device.
 */
#ifndef TTV_KERNELS_DEVICE_H
#define TTV_KERNELS_DEVICE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "core/status.h"
#include "core/tensor.h"

typedef struct Device Device;
typedef struct Kernels Kernels;
typedef struct DeviceMemory DeviceMemory; /* kernels/backend.h */

/* DEVICE_DRY: addresses without memory, kernels that do nothing (device_open_dry). */
typedef enum DeviceKind { DEVICE_CPU, DEVICE_CUDA, DEVICE_DRY } DeviceKind;

/* Bump allocator over large blocks; what is given back fills gaps. */
typedef struct ArenaBlock ArenaBlock;
typedef struct Arena {
    Device *device;
    const char *name;
    ArenaBlock *blocks; /* newest first */
    ArenaBlock *oldest;
    size_t used;     /* bytes handed out now */
    size_t peak;     /* largest `used` ever */
    size_t placed;   /* bytes below the tops of the blocks, gaps and all */
    size_t extent;   /* largest `placed` ever: what one block must have for the same requests */
    size_t largest;  /* largest single request ever */
    size_t reserved; /* bytes taken from the device */
    int64_t growths; /* calls to the device's allocator so far: constant after step 1 (tested) */
} Arena;

Status arena_init(Arena *a, Device *device, const char *name);
void arena_free(Arena *a);
/* `bytes` at a 256-byte boundary; contents undefined. STATUS_MEMORY says need, free and arena. */
Status arena_take(Arena *a, size_t bytes, void **out);
/* Gives back a region of `bytes` as it was asked for. */
void arena_give(Arena *a, void *region, size_t bytes);
/* One block of `bytes`, unless some block is that large already; an unused arena gives its smaller
 * ones back first. Before the first request of a pass. STATUS_MEMORY as arena_take. */
Status arena_reserve(Arena *a, size_t bytes);
/* Forgets every region; keeps the blocks. */
void arena_reset(Arena *a);
/* A tensor of the given description in the arena. */
Status arena_tensor(Arena *a, DType dtype, int rank, const int64_t *shape, Tensor *out);

struct Device {
    DeviceKind kind;
    int index;        /* card number; 0 for the CPU */
    char name[128];   /* what the hardware calls itself */
    const Kernels *k; /* kernels_cpu or kernels_cuda */
    Arena weights, state, step, scratch;
    bool allow_tf32;            /* f32 products may round operands to tf32 (CUDA only) */
    const DeviceMemory *memory; /* the backend's allocator and copies */
    void *backend;              /* streams, handles, primitive caches of the backend */
};

/* spec: "cpu", "cuda", "cuda:1". STATUS_DEVICE with a plain reason when there is no such device,
 * the driver is too old, or the build lacks CUDA or the card's architecture. */
Status device_open(const char *spec, Device **out);
/* A device without memory: to learn what a pass would take. */
Status device_open_dry(Device **out);
void device_close(Device *d);

/* Bytes free and in all on the device. */
Status device_memory(Device *d, size_t *available, size_t *total);

/* Raw memory: for arenas. */
Status device_alloc(Device *d, size_t bytes, void **out);
void device_release(Device *d, void *memory);

/* push: host -> device, pull: device -> host, same dtype and count. pull waits for the result;
 * push may return before the copy ran, after it has read `src` (or src is pinned). */
Status device_push(Device *d, Tensor dst, const void *src);
Status device_pull(Device *d, void *dst, Tensor src);
Status device_sync(Device *d);

/* Data of a coming step. device_stage: as device_push, but the copy may run beside the kernels that
 * were launched before; `dst` has the data after device_commit(), in order with the kernels. */
Status device_stage(Device *d, Tensor dst, const void *src);
Status device_commit(Device *d);
/* Whether kernels run on after their call returned: then it pays to prepare the next step. */
bool device_is_async(const Device *d);

/* Whether the slot linear_rated does BF16 products of these sizes as fast as linear does, so that a
 * layer norm in front of one is best folded into it. */
bool device_folds_norms(Device *d, int64_t rows, int64_t outputs, int64_t inputs);

/* Graphs: what is called on the device between begin and end is recorded instead of run; launch
 * runs it, with the same addresses. In between only kernels may be called (no push, pull, sync,
 * growing arena). end must follow begin even when a kernel failed. STATUS_DEVICE where nothing was
 * recorded.
 */
typedef struct DeviceGraph DeviceGraph;
bool device_can_capture(const Device *d);
Status device_graph_begin(Device *d);
Status device_graph_end(Device *d, DeviceGraph **out);
Status device_graph_launch(Device *d, DeviceGraph *g);
void device_graph_free(Device *d, DeviceGraph *g);

/* The CPU's worker threads (OpenMP); 0: the machine's default. */
void device_set_threads(int threads);

/* Whether the running processor has every instruction set that this build was compiled for
 * (-march); STATUS_DEVICE names the missing one. device_open("cpu") asks first. */
Status device_check_cpu(void);

#endif
