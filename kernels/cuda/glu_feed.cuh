/* Tokens of the mixer's branches by the copy engine (Hopper). The GLU branch: a stream of chunks of
 * one block's channels, of Q and dO, then of K and V, sample by sample, into a ring of stages. Rows
 * past a sample's end and channels of heads that are not there arrive as zeros.
 */
#ifndef TTV_KERNELS_CUDA_GLU_FEED_CUH
#define TTV_KERNELS_CUDA_GLU_FEED_CUH

#include "kernels/cuda/glu.cuh"
#include "kernels/cuda/wgmma.cuh"

/* q, k, v of qkv and dO of dcat as [batch][tokens][channels of all heads]. */
typedef struct FeedMaps {
    CUtensorMap q, k, v, o;
} FeedMaps;

/* BF16 numbers from p on in `rank` dimensions (the first is dense, `pitches`: elements from one to
 * the next of the others), to be copied in boxes without swizzle. */
Status map_boxes(CUtensorMap *map, const void *p, int rank, const int64_t *size,
                 const int64_t *pitches, const int *box);

/* a.g as rows of 32 columns (glu_train.cuh). */
Status gradients_map(CUtensorMap *map, const GluArgs &a);
/* Boxes of 64 channels and `rows` tokens, in 128-byte swizzle. */
Status feed_maps(FeedMaps *maps, const GluArgs &a, const void *qkv, const void *dcat, int rows);

/* dQ, dK, dV in the same way; only q, k, v are set. */
Status output_maps(FeedMaps *maps, const GluArgs &a, const void *dqkv, int rows);

/* The next chunk that is not yet in flight: of Q, dO (pass 0) or K, V (pass 1) of sample b. One
 * thread's. */
typedef struct TokenFeed {
    int b, pass, first, stage;
} TokenFeed;

/* Where a reader is: the stage of its chunk and its barrier's parity. */
typedef struct FeedPlace {
    int stage, parity;
} FeedPlace;

#if HAVE_SM90A

static __device__ __forceinline__ void box3_fetch(Shared to, const CUtensorMap *map, int x, int y,
                                                  int z, Shared barrier) {
    asm volatile("cp.async.bulk.tensor.3d.shared::cluster.global.mbarrier::complete_tx::bytes"
                 " [%0], [%1, {%2, %3, %4}], [%5];" ::"r"(to),
                 "l"(map), "r"(x), "r"(y), "r"(z), "r"(barrier)
                 : "memory");
}

/* A tile to the box at (x, y, z); what lies outside of the map is left out. One thread, after all
 * have published their writes; the tile may be written again after boxes_left. */
static __device__ __forceinline__ void box3_put(const CUtensorMap *map, int x, int y, int z,
                                                Shared from) {
    asm volatile(
        "cp.async.bulk.tensor.3d.global.shared::cta.bulk_group [%0, {%1, %2, %3}], [%4];" ::"l"(
            map),
        "r"(x), "r"(y), "r"(z), "r"(from)
        : "memory");
}
static __device__ __forceinline__ void boxes_commit(void) {
    asm volatile("cp.async.bulk.commit_group;" ::: "memory");
}
static __device__ __forceinline__ void boxes_left(void) {
    asm volatile("cp.async.bulk.wait_group.read 0;" ::: "memory");
}
static __device__ __forceinline__ void boxes_done(void) {
    asm volatile("cp.async.bulk.wait_group 0;" ::: "memory");
}

static __device__ __forceinline__ void box4_fetch(Shared to, const CUtensorMap *map, int x, int y,
                                                  int z, int w, Shared barrier) {
    asm volatile("cp.async.bulk.tensor.4d.shared::cluster.global.mbarrier::complete_tx::bytes"
                 " [%0], [%1, {%2, %3, %4, %5}], [%6];" ::"r"(to),
                 "l"(map), "r"(x), "r"(y), "r"(z), "r"(w), "r"(barrier)
                 : "memory");
}

/* One thread, before the block meets. */
static __device__ __forceinline__ void feed_barriers(Shared barriers, int stages) {
    for (int i = 0; i < stages; i++) barrier_init(barriers + 8 * i, 1);
    asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
}

/* Brings the next chunk into its stage, which is free. One thread. */
template <int CHUNK, int STAGES>
static __device__ __forceinline__ void feed_next(TokenFeed &f, const FeedMaps &maps, Shared stages,
                                                 Shared barriers, int channel, const GluArgs &a) {
    if (f.b >= a.batch) return;
    const Shared stage = stages + f.stage * 2 * CHUNK * 128, barrier = barriers + 8 * f.stage;
    barrier_expect(barrier, 2 * CHUNK * 128);
    box3_fetch(stage, f.pass ? &maps.k : &maps.q, channel, f.first, f.b, barrier);
    box3_fetch(stage + CHUNK * 128, f.pass ? &maps.v : &maps.o, channel, f.first, f.b, barrier);
    f.stage = f.stage + 1 == STAGES ? 0 : f.stage + 1;
    f.first += CHUNK;
    if (f.first < a.tokens) return;
    f.first = 0;
    f.pass ^= 1;
    if (f.pass == 0) f.b += a.parts;
}

static __device__ __forceinline__ void feed_wait(const FeedPlace &p, Shared barriers) {
    barrier_wait(barriers + 8 * p.stage, p.parity);
}
template <int STAGES> static __device__ __forceinline__ void feed_step(FeedPlace &p) {
    if (++p.stage < STAGES) return;
    p.stage = 0;
    p.parity ^= 1;
}

#endif /* HAVE_SM90A */

#endif
