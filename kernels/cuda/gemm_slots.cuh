/* Workspaces of cuBLASLt's products that need little: one for each call of a recorded graph.
 *
 * Most of its kernels for Hopper share out their tiles by a counter in the workspace, which the
 * library clears before each call: in a recorded graph a node between the kernel before and the
 * product, some 4 us. With a counter of its own for each call, one node at the graph's beginning
 * clears all.
 */
#ifndef TTV_KERNELS_CUDA_GEMM_SLOTS_CUH
#define TTV_KERNELS_CUDA_GEMM_SLOTS_CUH

#include "kernels/cuda/common.cuh"

#define SLOT_BYTES ((size_t)64 << 10)
#define SLOTS      512

typedef struct GemmSlots {
    char *memory;
    int64_t next; /* calls since the recording began */
} GemmSlots;

Status slots_open(GemmSlots *s);
void slots_close(GemmSlots *s);
/* The next call's, of SLOT_BYTES. */
void *slots_take(GemmSlots *s);
/* Calls from here on are recorded. */
void slots_begin(GemmSlots *s);
/* Puts one node in the place of those that clear the slots; where the graph is not what this
 * expects, it stays as it is. */
Status slots_hoist(GemmSlots *s, cudaGraph_t graph);

#endif
