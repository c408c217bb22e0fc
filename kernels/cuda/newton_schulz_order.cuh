/* Order between the tiles of a chain, and copies of boxes (newton_schulz_chain.cuh). */
#ifndef TTV_KERNELS_CUDA_NEWTON_SCHULZ_ORDER_CUH
#define TTV_KERNELS_CUDA_NEWTON_SCHULZ_ORDER_CUH

#include "kernels/cuda/newton_schulz_chain.cuh"
#include "kernels/cuda/wgmma.cuh"

#if HAVE_SM90A

/* ---- order between tiles -------------------------------------------------------------------- */

static __device__ __forceinline__ bool is_done(const Chain &c, int phase, int matrix) {
    int count;
    if (phase == NOBODY) return true;
    asm volatile("ld.acquire.gpu.global.s32 %0, [%1];"
                 : "=r"(count)
                 : "l"(c.done + phase * c.n + matrix)
                 : "memory");
    return count >= c.phase[phase].tiles;
}

/* Whether the operands of a tile are there, which the copy engine may read then. */
static __device__ __forceinline__ bool is_ready(const Chain &c, int phase, int matrix) {
    const Phase &p = c.phase[phase];
    if (!is_done(c, p.wait[0], matrix) || !is_done(c, p.wait[1], matrix)) return false;
    asm volatile("fence.proxy.async;" ::: "memory");
    return true;
}

/* After the copy engine has written all of this thread's boxes, which it sees by then
 * (boxes_wait). */
static __device__ __forceinline__ void done_add(const Chain &c, int phase, int matrix) {
    asm volatile("red.release.gpu.global.add.s32 [%0], 1;" ::"l"(c.done + phase * c.n + matrix)
                 : "memory");
}

/* One thread of the warp, which must be whole. Where the compiler sees that a single thread copies
 * boxes it does not put a loop over the threads of the warp around each copy. */
static __device__ __forceinline__ bool is_elected(void) {
    int one;
    asm volatile("{\n.reg .pred p;\nelect.sync _|p, 0xffffffff;\nselp.b32 %0, 1, 0, p;\n}\n"
                 : "=r"(one));
    return one;
}

/* ---- copies --------------------------------------------------------------------------------- */

static __device__ __forceinline__ void box_store(const CUtensorMap *map, int x, int y,
                                                 Shared from) {
    asm volatile(
        "cp.async.bulk.tensor.2d.global.shared::cta.bulk_group [%0, {%1, %2}], [%3];" ::"l"(map),
        "r"(x), "r"(y), "r"(from)
        : "memory");
}
static __device__ __forceinline__ void boxes_commit(void) {
    asm volatile("cp.async.bulk.commit_group;" ::: "memory");
}
/* Shared memory may be written again. */
static __device__ __forceinline__ void boxes_wait_read(void) {
    asm volatile("cp.async.bulk.wait_group.read 0;" ::: "memory");
}
/* The same of all but the last group. */
static __device__ __forceinline__ void boxes_wait_read_but_one(void) {
    asm volatile("cp.async.bulk.wait_group.read 1;" ::: "memory");
}
static __device__ __forceinline__ void boxes_wait(void) {
    asm volatile("cp.async.bulk.wait_group 0;" ::: "memory");
}

#endif /* HAVE_SM90A */

#endif
