/* What the blocks of a cluster and their threads wait for and share, and how quads are dealt
 * (newton_schulz_quad.cu).
 */
#ifndef TTV_KERNELS_CUDA_NEWTON_SCHULZ_QUAD_RING_CUH
#define TTV_KERNELS_CUDA_NEWTON_SCHULZ_QUAD_RING_CUH

#include "kernels/cuda/newton_schulz_list.cuh"
#include "kernels/cuda/newton_schulz_order.cuh"

#define STAGES      4
#define STAGE_BYTES ((BOXES + 2) * TILE_BYTES) /* of b, of a */
#define STAGING     (2 * TILE_BYTES)           /* of a maker: two boxes that take turns */
#define AHEAD       2                          /* quads that are dealt before they are needed */

#if HAVE_SM90A

/* ---- shared memory -------------------------------------------------------------------------- */

/* Addresses of shared memory. Barriers of a stage: full, empty. Of each staging box of a maker:
 * `staged`, it holds a result; `taken`, that has been read. Of the quads dealt: given, read;
 * `begun`, by makers. */
typedef struct Ring {
    Shared data, staging, full, empty, staged, taken, given, read, begun, quads;
} Ring;

static __device__ __forceinline__ Shared stage_at(const Ring &r, int slot) {
    return r.data + (unsigned)slot % STAGES * STAGE_BYTES;
}
static __device__ __forceinline__ Shared full_at(const Ring &r, int slot) {
    return r.full + 8 * ((unsigned)slot % STAGES);
}
static __device__ __forceinline__ Shared empty_at(const Ring &r, int slot) {
    return r.empty + 8 * ((unsigned)slot % STAGES);
}
static __device__ __forceinline__ int round_of(int slot) {
    return (unsigned)slot / STAGES & 1;
}

/* The place of the i-th quad dealt, and the parity of its barriers. */
static __device__ __forceinline__ int place_of(int i) {
    return (unsigned)i % AHEAD;
}
static __device__ __forceinline__ int parity_of(int i) {
    return (unsigned)i / AHEAD & 1;
}

/* ---- who does what -------------------------------------------------------------------------- */

/* Clusters take the next quad of the list when they need one. One thread of a cluster does so, two
 * ahead, waits until its operands are there, and tells both blocks; everybody there reads all of
 * them. Where the list says so it takes a quad no earlier than makers begin the one before: quads
 * in hand but not begun are what others may wait for (backward, 96 of 512 x 768: 2.37 to 2.32 ms;
 * forward no difference). */
#define READERS 11 /* of a block: copier, writers, warps of makers */

static __device__ void dealer_run(const Ring &r, const Chain &c) {
    const int clusters = gridDim.x / CLUSTER;
    int set = blockIdx.x / CLUSTER;
    for (int i = 0; set < c.sets; i++) {
        const int at = place_of(i);
        uint32_t low = 0, high = 0;
        barrier_wait(r.read + 8 * at, parity_of(i) ^ 1);
        if (c.late && i > 0) barrier_wait(r.begun, i & 1 ^ 1); /* of quad i - 1 */
        if (i > 0) set = clusters + atomicAdd(c.taken, 1);
        if (set < c.sets) {
            const Quad q = quad_of(c, set);
            low = (uint32_t)(q.phase | q.matrix << 8);
            high = (uint32_t)(q.row / QUAD | q.column / QUAD << 8 | q.diagonal << 24 | 1 << 25);
            while (!is_ready(c, q.phase, q.matrix)) continue;
        }
        for (int rank = 0; rank < CLUSTER; rank++)
            asm volatile(
                "{\n.reg .b32 to, barrier;\n.reg .b64 quad;\n"
                "mapa.shared::cluster.u32 to, %0, %2;\n"
                "mapa.shared::cluster.u32 barrier, %1, %2;\n"
                "mov.b64 quad, {%3, %4};\n"
                "mbarrier.arrive.expect_tx.shared::cluster.b64 _, [barrier], 8;\n"
                "st.async.shared::cluster.mbarrier::complete_tx::bytes.b64 [to], quad, [barrier];\n"
                "}\n" ::"r"(r.quads + 8 * at),
                "r"(r.given + 8 * at), "r"(rank), "r"(low), "r"(high)
                : "memory");
    }
}

/* The i-th quad of the cluster, not real at the end; for whole warps, or single threads of others.
 */
static __device__ __forceinline__ Quad quad_next(const Ring &r, const Chain &c, int i, bool warp) {
    const int at = place_of(i);
    uint32_t low, high;
    Quad q;
    barrier_wait(r.given + 8 * at, parity_of(i));
    asm volatile("ld.shared.v2.b32 {%0, %1}, [%2];"
                 : "=r"(low), "=r"(high)
                 : "r"(r.quads + 8 * at)
                 : "memory");
    if (warp) __syncwarp();
    if ((!warp || threadIdx.x % 32 == 0) && high != ~0u) /* which it never is: once it is here */
    {
        barrier_arrive_at(r.read + 8 * at, 0);
        if (warp) barrier_arrive_at(r.begun, 0);
    }
    q.phase = low & 0xff, q.matrix = low >> 8;
    q.row = (int)(high & 0xff) * QUAD, q.column = (int)(high >> 8 & 0xffff) * QUAD;
    q.diagonal = high >> 24 & 1;
    q.real = high >> 25 & 1;
    q.strips = min((c.r - q.row) / BOX, 4);
    q.boxes = min((c.phase[q.phase].columns - q.column) / BOX, BOXES);
    return q;
}

/* What a maker has come to: quads, stages, and passes over its staging boxes. */
typedef struct Count {
    int quads, slot, passes;
} Count;

static __device__ __forceinline__ void stage_release(const Ring &r, int slot) {
    const int lane = threadIdx.x & 31;
    if (lane < CLUSTER) barrier_arrive_at(empty_at(r, slot), lane);
}

static __device__ __forceinline__ Ring ring_init(Shared memory) {
    Ring r;
    r.data = (memory + 1023) & ~1023u;
    r.staging = r.data + STAGES * STAGE_BYTES;
    r.full = r.staging + 2 * STAGING;
    r.empty = r.full + 8 * STAGES;
    r.staged = r.empty + 8 * STAGES;
    r.taken = r.staged + 32;
    r.given = r.taken + 32;
    r.read = r.given + 8 * AHEAD;
    r.begun = r.read + 8 * AHEAD;
    r.quads = r.begun + 8;
    if (threadIdx.x == 0) {
        for (int i = 0; i < 4; i++) {
            barrier_init(r.staged + 8 * i, 128);
            barrier_init(r.taken + 8 * i, 1);
        }
        for (int i = 0; i < AHEAD; i++) {
            barrier_init(r.given + 8 * i, 1);
            barrier_init(r.read + 8 * i, READERS * CLUSTER);
        }
        barrier_init(r.begun, 8 * CLUSTER);
        for (int i = 0; i < STAGES; i++) {
            barrier_init(r.full + 8 * i, 1);
            barrier_init(r.empty + 8 * i, 8 * CLUSTER); /* the warps of all makers */
        }
        asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
    }
    cluster_sync();
    return r;
}

#endif /* HAVE_SM90A */

#endif
