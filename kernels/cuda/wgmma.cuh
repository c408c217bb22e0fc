/* Hopper's own instructions (sm_90a): barriers in shared memory, bulk tensor copies, warpgroup
 * products.
 *
 * Tiles lie in shared memory as the copy engine writes them with 128-byte swizzle: rows of 64 BF16
 * elements, chunk c of row r at place c ^ (r & 7), bases at multiples of 1024 bytes.
 */
#ifndef TTV_KERNELS_CUDA_WGMMA_CUH
#define TTV_KERNELS_CUDA_WGMMA_CUH

#include <cuda.h>

#include "kernels/cuda/mma.cuh"

#define NARROW_BYTES (TILE_BYTES / 2) /* of a tile of 64 rows of 32 elements */

#if defined(__CUDA_ARCH_FEAT_SM90_ALL)
#define HAVE_SM90A 1
#else
#define HAVE_SM90A 0
#endif

#if HAVE_SM90A

/* ---- barriers
 * --------------------------------------------------------------------------------------- */

static __device__ __forceinline__ void barrier_init(Shared barrier, int count) {
    asm volatile("mbarrier.init.shared::cta.b64 [%0], %1;" ::"r"(barrier), "r"(count) : "memory");
}
static __device__ __forceinline__ void barrier_arrive(Shared barrier) {
    asm volatile("mbarrier.arrive.shared::cta.b64 _, [%0];" ::"r"(barrier) : "memory");
}
/* Arrives at the same barrier of block `rank` of the cluster. Not a release at cluster scope, which
 * would cost a fence: it says that reading is over, no data goes with it. */
static __device__ __forceinline__ void barrier_arrive_at(Shared barrier, int rank) {
    asm volatile("{\n.reg .b32 remote;\nmapa.shared::cluster.u32 remote, %0, %1;\n"
                 "mbarrier.arrive.shared::cluster.b64 _, [remote];\n}\n" ::"r"(barrier),
                 "r"(rank)
                 : "memory");
}
/* Arrives and announces `bytes` that the copy engine will bring. */
static __device__ __forceinline__ void barrier_expect(Shared barrier, int bytes) {
    asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;" ::"r"(barrier), "r"(bytes)
                 : "memory");
}
/* Waits until the phase of the given parity is over. */
static __device__ __forceinline__ void barrier_wait(Shared barrier, int parity) {
#ifdef BOUNDED
    for (int i = 0; i < 20000000; i++) {
        int done;
        asm volatile("{\n.reg .pred p;\nmbarrier.try_wait.parity.shared::cta.b64 p, [%1], %2;\n"
                     "selp.b32 %0, 1, 0, p;\n}\n"
                     : "=r"(done)
                     : "r"(barrier), "r"(parity)
                     : "memory");
        if (done) return;
    }
    __trap();
#endif
    asm volatile("{\n.reg .pred done;\n"
                 "again:\n"
                 "mbarrier.try_wait.parity.shared::cta.b64 done, [%0], %1;\n"
                 "@done bra over;\nbra again;\nover:\n}\n" ::"r"(barrier),
                 "r"(parity)
                 : "memory");
}
static __device__ __forceinline__ void cluster_sync(void) {
    asm volatile("barrier.cluster.arrive.release.aligned;\nbarrier.cluster.wait.acquire.aligned;" ::
                     : "memory");
}
static __device__ __forceinline__ int cluster_rank(void) {
    int rank;
    asm("mov.u32 %0, %%cluster_ctarank;" : "=r"(rank));
    return rank;
}

/* ---- bulk tensor copies
 * ----------------------------------------------------------------------------- */

/* A box at (x, y) of the map, x along memory, into shared memory; the barrier counts its bytes. */
static __device__ __forceinline__ void box_fetch(Shared to, const CUtensorMap *map, int x, int y,
                                                 Shared barrier) {
    asm volatile("cp.async.bulk.tensor.2d.shared::cluster.global.mbarrier::complete_tx::bytes"
                 " [%0], [%1, {%2, %3}], [%4];" ::"r"(to),
                 "l"(map), "r"(x), "r"(y), "r"(barrier)
                 : "memory");
}
/* Asks for the map itself, which the first copy would wait for. */
static __device__ __forceinline__ void map_ahead(const CUtensorMap *map) {
    asm volatile("prefetch.tensormap [%0];" ::"l"(map) : "memory");
}
/* Asks for a box in the L2 cache. */
static __device__ __forceinline__ void box_ahead(const CUtensorMap *map, int x, int y) {
    asm volatile("cp.async.bulk.prefetch.tensor.2d.L2.global.tile [%0, {%1, %2}];" ::"l"(map),
                 "r"(x), "r"(y)
                 : "memory");
}
/* The same into every block of the cluster in `mask`, at the same addresses. */
static __device__ __forceinline__ void box_fetch_all(Shared to, const CUtensorMap *map, int x,
                                                     int y, Shared barrier, uint16_t mask) {
    asm volatile("cp.async.bulk.tensor.2d.shared::cluster.global.mbarrier::complete_tx::bytes"
                 ".multicast::cluster [%0], [%1, {%2, %3}], [%4], %5;" ::"r"(to),
                 "l"(map), "r"(x), "r"(y), "r"(barrier), "h"(mask)
                 : "memory");
}

/* A box from shared memory to (x, y) of the map; what lies beyond the matrix is left out. */
static __device__ __forceinline__ void send_box(const CUtensorMap *map, int x, int y, Shared from) {
    asm volatile(
        "cp.async.bulk.tensor.2d.global.shared::cta.bulk_group [%0, {%1, %2}], [%3];" ::"l"(map),
        "r"(x), "r"(y), "r"(from)
        : "memory");
}
/* What this thread sent since the last commit is one group. */
static __device__ __forceinline__ void sends_commit(void) {
    asm volatile("cp.async.bulk.commit_group;" ::: "memory");
}
/* All groups of this thread have been read from shared memory. */
static __device__ __forceinline__ void sends_read(void) {
    asm volatile("cp.async.bulk.wait_group.read 0;" ::: "memory");
}
/* All groups of this thread have been written. */
static __device__ __forceinline__ void sends_done(void) {
    asm volatile("cp.async.bulk.wait_group 0;" ::: "memory");
}
/* What this thread wrote to shared memory comes before what the copy engine reads there. */
static __device__ __forceinline__ void sends_fence(void) {
    asm volatile("fence.proxy.async.shared::cta;" ::: "memory");
}

/* ---- warpgroup products
 * ----------------------------------------------------------------------------- */

/* Operand with k along the rows of its tile (rows: m or n): the next 16 k are 32 bytes on. */
static __device__ __forceinline__ uint64_t operand_straight(Shared at) {
    return (uint64_t)(at >> 4 & 0x3fff) | (uint64_t)1 << 16 | (uint64_t)(1024 >> 4) << 32 |
           (uint64_t)1 << 62;
}
/* Operand with n along the rows of its tiles (rows: k), 64 n per tile, tiles of 64 k one after the
 * other: the next 16 k are 2048 bytes on. */
static __device__ __forceinline__ uint64_t operand_turned(Shared at) {
    return (uint64_t)(at >> 4 & 0x3fff) | (uint64_t)(TILE_BYTES >> 4) << 16 |
           (uint64_t)(1024 >> 4) << 32 | (uint64_t)1 << 62;
}

/* The same in tiles of 32 n, rows of 64 bytes (CU_TENSOR_MAP_SWIZZLE_64B: chunk c of row r at place
 * c ^ (r / 2 & 3)): the next 16 k are 1024 bytes on. */
static __device__ __forceinline__ uint64_t operand_narrow(Shared at) {
    return (uint64_t)(at >> 4 & 0x3fff) | (uint64_t)(NARROW_BYTES >> 4) << 16 |
           (uint64_t)(512 >> 4) << 32 | (uint64_t)2 << 62;
}

static __device__ __forceinline__ void wgmma_begin(void) {
    asm volatile("wgmma.fence.sync.aligned;" ::: "memory");
}
static __device__ __forceinline__ void wgmma_commit(void) {
    asm volatile("wgmma.commit_group.sync.aligned;" ::: "memory");
}
template <int LEFT> static __device__ __forceinline__ void wgmma_wait(void) {
    asm volatile("wgmma.wait_group.sync.aligned %0;" ::"n"(LEFT) : "memory");
}

template <int COUNT> static __device__ __forceinline__ void registers_up(void) {
    asm volatile("setmaxnreg.inc.sync.aligned.u32 %0;" ::"n"(COUNT));
}
template <int COUNT> static __device__ __forceinline__ void registers_down(void) {
    asm volatile("setmaxnreg.dec.sync.aligned.u32 %0;" ::"n"(COUNT));
}

/* Accumulators of products: operands d[i] to d[i + 7], and the names of the first ones. */
#define SUMS_8(i)                                                                                  \
    "+f"(d[i]), "+f"(d[i + 1]), "+f"(d[i + 2]), "+f"(d[i + 3]), "+f"(d[i + 4]), "+f"(d[i + 5]),    \
        "+f"(d[i + 6]), "+f"(d[i + 7])
#define NAMES_8  "%0, %1, %2, %3, %4, %5, %6, %7"
#define NAMES_16 NAMES_8 ", %8, %9, %10, %11, %12, %13, %14, %15"
#define NAMES_24 NAMES_16 ", %16, %17, %18, %19, %20, %21, %22, %23"
#define NAMES_32 NAMES_24 ", %24, %25, %26, %27, %28, %29, %30, %31"

/* d (64 x 2 COUNT) = a (64 x 16) b (16 x 2 COUNT), plus d when `keep`; operands straight or turned.
 */
template <int TURNED_B, int TURNED_A = 0>
static __device__ __forceinline__ void wgmma(float (&d)[128], uint64_t a, uint64_t b, int keep) {
    asm volatile("{\n.reg .pred p;\nsetp.ne.b32 p, %130, 0;\n"
                 "wgmma.mma_async.sync.aligned.m64n256k16.f32.bf16.bf16 {"
                 "%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15, "
                 "%16, %17, %18, %19, %20, %21, %22, %23, %24, %25, %26, %27, %28, %29, %30, %31, "
                 "%32, %33, %34, %35, %36, %37, %38, %39, %40, %41, %42, %43, %44, %45, %46, %47, "
                 "%48, %49, %50, %51, %52, %53, %54, %55, %56, %57, %58, %59, %60, %61, %62, %63, "
                 "%64, %65, %66, %67, %68, %69, %70, %71, %72, %73, %74, %75, %76, %77, %78, %79, "
                 "%80, %81, %82, %83, %84, %85, %86, %87, %88, %89, %90, %91, %92, %93, %94, %95, "
                 "%96, %97, %98, %99, %100, %101, %102, %103, %104, %105, %106, %107, %108, %109, "
                 "%110, %111, "
                 "%112, %113, %114, %115, %116, %117, %118, %119, %120, %121, %122, %123, %124, "
                 "%125, %126, %127"
                 "}, %128, %129, p, 1, 1, %132, %131;\n}\n"
                 : SUMS_8(0), SUMS_8(8), SUMS_8(16), SUMS_8(24), SUMS_8(32), SUMS_8(40), SUMS_8(48),
                   SUMS_8(56), SUMS_8(64), SUMS_8(72), SUMS_8(80), SUMS_8(88), SUMS_8(96),
                   SUMS_8(104), SUMS_8(112), SUMS_8(120)
                 : "l"(a), "l"(b), "r"(keep), "n"(TURNED_B), "n"(TURNED_A));
}

template <int TURNED_B, int TURNED_A = 0>
static __device__ __forceinline__ void wgmma(float (&d)[96], uint64_t a, uint64_t b, int keep) {
    asm volatile("{\n.reg .pred p;\nsetp.ne.b32 p, %98, 0;\n"
                 "wgmma.mma_async.sync.aligned.m64n192k16.f32.bf16.bf16 {"
                 "%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15, "
                 "%16, %17, %18, %19, %20, %21, %22, %23, %24, %25, %26, %27, %28, %29, %30, %31, "
                 "%32, %33, %34, %35, %36, %37, %38, %39, %40, %41, %42, %43, %44, %45, %46, %47, "
                 "%48, %49, %50, %51, %52, %53, %54, %55, %56, %57, %58, %59, %60, %61, %62, %63, "
                 "%64, %65, %66, %67, %68, %69, %70, %71, %72, %73, %74, %75, %76, %77, %78, %79, "
                 "%80, %81, %82, %83, %84, %85, %86, %87, %88, %89, %90, %91, %92, %93, %94, %95"
                 "}, %96, %97, p, 1, 1, %100, %99;\n}\n"
                 : SUMS_8(0), SUMS_8(8), SUMS_8(16), SUMS_8(24), SUMS_8(32), SUMS_8(40), SUMS_8(48),
                   SUMS_8(56), SUMS_8(64), SUMS_8(72), SUMS_8(80), SUMS_8(88)
                 : "l"(a), "l"(b), "r"(keep), "n"(TURNED_B), "n"(TURNED_A));
}

/* 128 columns whose accumulators are d[FIRST] and the 63 after it. */
template <int TURNED_B, int FIRST, int TURNED_A = 0, int COUNT>
static __device__ __forceinline__ void wgmma_128(float (&d)[COUNT], uint64_t a, uint64_t b,
                                                 int keep) {
    asm volatile("{\n.reg .pred p;\nsetp.ne.b32 p, %66, 0;\n"
                 "wgmma.mma_async.sync.aligned.m64n128k16.f32.bf16.bf16 {"
                 "%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15, "
                 "%16, %17, %18, %19, %20, %21, %22, %23, %24, %25, %26, %27, %28, %29, %30, %31, "
                 "%32, %33, %34, %35, %36, %37, %38, %39, %40, %41, %42, %43, %44, %45, %46, %47, "
                 "%48, %49, %50, %51, %52, %53, %54, %55, %56, %57, %58, %59, %60, %61, %62, %63"
                 "}, %64, %65, p, 1, 1, %68, %67;\n}\n"
                 : SUMS_8(FIRST), SUMS_8(FIRST + 8), SUMS_8(FIRST + 16), SUMS_8(FIRST + 24),
                   SUMS_8(FIRST + 32), SUMS_8(FIRST + 40), SUMS_8(FIRST + 48), SUMS_8(FIRST + 56)
                 : "l"(a), "l"(b), "r"(keep), "n"(TURNED_B), "n"(TURNED_A));
}

/* The sums of the rows of a, turned, in every column of d: b is an operand of ones. */
static __device__ __forceinline__ void wgmma_rows(float (&d)[4], uint64_t a, uint64_t ones,
                                                  int keep) {
    asm volatile("{\n.reg .pred p;\nsetp.ne.b32 p, %6, 0;\n"
                 "wgmma.mma_async.sync.aligned.m64n8k16.f32.bf16.bf16 {%0, %1, %2, %3}, %4, %5, p, "
                 "1, 1, 1, 0;\n}\n"
                 : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
                 : "l"(a), "l"(ones), "r"(keep));
}

template <int TURNED_B, int TURNED_A = 0>
static __device__ __forceinline__ void wgmma(float (&d)[64], uint64_t a, uint64_t b, int keep) {
    wgmma_128<TURNED_B, 0, TURNED_A>(d, a, b, keep);
}

/* d (64 x 64) = a (64 x 16, in registers) b, plus d when `keep`. */
template <int TURNED>
static __device__ __forceinline__ void wgmma_kept(float (&d)[32], const uint32_t *a, uint64_t b,
                                                  int keep) {
    asm volatile("{\n.reg .pred p;\nsetp.ne.b32 p, %37, 0;\n"
                 "wgmma.mma_async.sync.aligned.m64n64k16.f32.bf16.bf16 {" NAMES_32
                 "}, {%32, %33, %34, %35}, %36, p, 1, 1, %38;\n}\n"
                 : SUMS_8(0), SUMS_8(8), SUMS_8(16), SUMS_8(24)
                 : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b), "r"(keep), "n"(TURNED));
}

/* Nothing that reads d moves in front of this. */
static __device__ __forceinline__ void sums_settle(float (&d)[32]) {
    asm volatile("" : SUMS_8(0), SUMS_8(8), SUMS_8(16), SUMS_8(24)::"memory");
}
static __device__ __forceinline__ void sums_settle(float (&d)[48]) {
    asm volatile(""
                 : SUMS_8(0), SUMS_8(8), SUMS_8(16), SUMS_8(24), SUMS_8(32), SUMS_8(40)::"memory");
}
static __device__ __forceinline__ void sums_settle(float (&d)[64]) {
    asm volatile(""
                 : SUMS_8(0), SUMS_8(8), SUMS_8(16), SUMS_8(24), SUMS_8(32), SUMS_8(40), SUMS_8(48),
                   SUMS_8(56)::"memory");
}
static __device__ __forceinline__ void sums_settle(float (&d)[96]) {
    asm volatile(""
                 : SUMS_8(0), SUMS_8(8), SUMS_8(16), SUMS_8(24), SUMS_8(32), SUMS_8(40), SUMS_8(48),
                   SUMS_8(56), SUMS_8(64), SUMS_8(72), SUMS_8(80), SUMS_8(88)::"memory");
}

/* 256 columns as twice 128: one instruction for all needs 154 registers a thread at the kernel's
 * entry, which blocks of 512 threads and more do not have. */
template <int TURNED_B>
static __device__ __forceinline__ void wgmma_halves(float (&d)[128], uint64_t a, uint64_t b,
                                                    int keep) {
    wgmma_128<TURNED_B, 0>(d, a, b, keep);
    wgmma_128<TURNED_B, 64>(d, a, b + (2 * TILE_BYTES >> 4), keep);
}

#endif /* HAVE_SM90A */

#endif
