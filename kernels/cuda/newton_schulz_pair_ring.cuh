/* What the two blocks of a cluster and their threads wait for and share (newton_schulz_pair.cu).
 */
#ifndef TTV_KERNELS_CUDA_NEWTON_SCHULZ_PAIR_RING_CUH
#define TTV_KERNELS_CUDA_NEWTON_SCHULZ_PAIR_RING_CUH

#include "kernels/cuda/newton_schulz_pair_tile.cuh"

#define CLUSTER     2
#define MAKERS      3
#define ROWS        (64 * MAKERS) /* of a block */
#define THREADS     (128 * (MAKERS + 1))
#define WARPS       (4 * MAKERS) /* of makers */
#define PER_CHUNK   3            /* stages of the right operand: 128 k, two boxes */
#define STAGES      5
#define STAGE_BYTES (2 * TILE_BYTES)
#define KEPT_BYTES  (MAKERS * CHUNKS * TILE_BYTES)
#define SUMS_BYTES  (4 * CLUSTER * WARPS)
#define SHARED      (KEPT_BYTES + STAGES * STAGE_BYTES + 1024 + 512)

#if HAVE_SM90A

/* ---- barriers between the blocks ------------------------------------------------------------ */

/* Waits for what the other block has written, too. */
static __device__ __forceinline__ void barrier_wait_cluster(Shared barrier, int parity) {
    asm volatile("{\n.reg .pred done;\n"
                 "again:\n"
                 "mbarrier.try_wait.parity.acquire.cluster.shared::cta.b64 done, [%0], %1;\n"
                 "@done bra over;\nbra again;\nover:\n}\n" ::"r"(barrier),
                 "r"(parity)
                 : "memory");
}

/* Tells block `rank` that what this thread has written is there. */
static __device__ __forceinline__ void barrier_tell(Shared barrier, int rank) {
    asm volatile(
        "{\n.reg .b32 remote;\nmapa.shared::cluster.u32 remote, %0, %1;\n"
        "mbarrier.arrive.release.cluster.shared::cluster.b64 _, [remote];\n}\n" ::"r"(barrier),
        "r"(rank)
        : "memory");
}

static __device__ __forceinline__ void put_at(Shared to, int rank, float value) {
    asm volatile("{\n.reg .b32 remote;\nmapa.shared::cluster.u32 remote, %0, %1;\n"
                 "st.shared::cluster.f32 [remote], %2;\n}\n" ::"r"(to),
                 "r"(rank), "f"(value)
                 : "memory");
}

/* ---- shared memory -------------------------------------------------------------------------- */

/* Addresses of shared memory. Barriers: of a stage full, empty; `come`, rows of g are there;
 * `summed`, of every second matrix, both blocks' parts of the norm, in two places at `sums`;
 * `done`, of 64 columns of a result, both blocks have written them to memory; `staged`, of a maker
 * and 64 columns; `idle`, all of a matrix has left. */
typedef struct Ring {
    Shared kept, data, full, empty, come, summed, idle, done, staged, sums;
} Ring;

static __device__ __forceinline__ Shared kept_at(const Ring &r, int strip, int chunk) {
    return r.kept + (strip * CHUNKS + chunk) * TILE_BYTES;
}

typedef struct Turn {
    int stage, round;
} Turn;

static __device__ __forceinline__ void turn_next(Turn &t) {
    if (++t.stage == STAGES) t.stage = 0, t.round ^= 1;
}

static __device__ __forceinline__ Ring ring_init(Shared memory) {
    Ring r;
    r.kept = (memory + 1023) & ~1023u;
    r.data = r.kept + KEPT_BYTES;
    r.full = r.data + STAGES * STAGE_BYTES;
    r.empty = r.full + 8 * STAGES;
    r.come = r.empty + 8 * STAGES;
    r.summed = r.come + 8;
    r.idle = r.summed + 2 * 8;
    r.done = r.idle + 8;
    r.staged = r.done + 8 * CHUNKS;
    r.sums = r.staged + 8 * CHUNKS * MAKERS;
    if (threadIdx.x == 0) {
        for (int i = 0; i < STAGES; i++) {
            barrier_init(r.full + 8 * i, 1);
            barrier_init(r.empty + 8 * i, CLUSTER * WARPS);
        }
        barrier_init(r.come, 1);
        for (int i = 0; i < 2; i++) barrier_init(r.summed + 8 * i, CLUSTER * WARPS);
        barrier_init(r.idle, MAKERS);
        for (int i = 0; i < CHUNKS; i++) barrier_init(r.done + 8 * i, CLUSTER * MAKERS);
        for (int i = 0; i < CHUNKS * MAKERS; i++) barrier_init(r.staged + 8 * i, 4);
        asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
    }
    cluster_sync();
    return r;
}

#endif /* HAVE_SM90A */

#endif
