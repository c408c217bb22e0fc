/* Warp-level tensor-core building blocks for BF16 (m16n8k16, F32 accumulators; compute
 * capability 8.0).
 *
 * Tiles in shared memory have rows of 64 elements (128 bytes) as eight 16-byte chunks; chunk c of
 * row r lies at place c ^ (r & 7), so that eight rows of one chunk column touch all 32 banks.
 *
 * Fragment layout, lane = 4 r + q: an accumulator holds rows r and r+8 and columns 2q, 2q+1; two
 * neighbouring accumulators (16 x 16), rounded and packed, are at once the A operand of a next
 * product.
 */
#ifndef TTV_KERNELS_CUDA_MMA_CUH
#define TTV_KERNELS_CUDA_MMA_CUH

#include "kernels/cuda/common.cuh"

#define TILE_ROWS  64
#define TILE_BYTES (TILE_ROWS * 128)

typedef uint32_t Shared; /* a shared-memory address */

static __device__ __forceinline__ Shared shared_address(const void *p) {
    return (Shared)__cvta_generic_to_shared(p);
}

static __device__ __forceinline__ Shared tile_at(Shared tile, int row, int chunk) {
    return tile + row * 128 + ((chunk ^ (row & 7)) << 4);
}

/* ---- copies from global memory, in flight until copies_wait --------------------------------- */

/* 16 bytes, or zeros when not `real`. */
static __device__ __forceinline__ void copy_chunk(Shared to, const void *from, bool real) {
    const int bytes = real ? 16 : 0;
    asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;" ::"r"(to), "l"(from), "r"(bytes)
                 : "memory");
}
static __device__ __forceinline__ void copies_commit(void) {
    asm volatile("cp.async.commit_group;" ::: "memory");
}
/* All but the newest `LEFT` groups have arrived. */
template <int LEFT> static __device__ __forceinline__ void copies_wait(void) {
    asm volatile("cp.async.wait_group %0;" ::"n"(LEFT) : "memory");
}

/* ---- 8x8 matrices between shared memory and fragments --------------------------------------- */

static __device__ __forceinline__ void matrix_get(uint32_t (&f)[4], Shared at) {
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0,%1,%2,%3}, [%4];"
                 : "=r"(f[0]), "=r"(f[1]), "=r"(f[2]), "=r"(f[3])
                 : "r"(at)
                 : "memory");
}
static __device__ __forceinline__ void matrix_get_turned(uint32_t (&f)[4], Shared at) {
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0,%1,%2,%3}, [%4];"
                 : "=r"(f[0]), "=r"(f[1]), "=r"(f[2]), "=r"(f[3])
                 : "r"(at)
                 : "memory");
}

/* A lane's part of the address of a 16x16 region. Regions begin at rows that are multiples of 8 and
 * at even chunks, so the place of chunk c is a lane constant xor c: region = tile + 128 row + (lane
 * ^ 16 c). */
typedef struct Lanes {
    Shared below;  /* matrices 0, 1 below each other, 2, 3 to their right */
    Shared beside; /* matrices 0, 1 beside each other, 2, 3 below them */
    Shared value;  /* two neighbouring elements of a fragment's row */
} Lanes;

static __device__ __forceinline__ Lanes lanes_init(void) {
    const int l = threadIdx.x & 31, row = l & 7;
    Lanes a;
    a.below = (((l >> 3) & 1) * 8 + row) * 128 + (((l >> 4) ^ row) << 4);
    a.beside = ((l >> 4) * 8 + row) * 128 + ((((l >> 3) & 1) ^ row) << 4);
    a.value = (l >> 2) * 128 + ((l >> 2) << 4) + 4 * (l & 3);
    return a;
}

static __device__ __forceinline__ Shared region(Shared tile, Shared lane, int row, int chunk) {
    return tile + row * 128 + (lane ^ (chunk << 4));
}

/* Writes a packed 16x16 accumulator pair (f as from pack_pair) turned over: tile[row + column of
 * the fragment][8 chunk + row of the fragment]. */
static __device__ __forceinline__ void matrix_put_turned(Shared tile, const Lanes &lane, int row,
                                                         int chunk, const uint32_t (&f)[4]) {
#if __CUDA_ARCH__ >= 900
    const Shared at = region(tile, lane.beside, row, chunk);
    asm volatile("stmatrix.sync.aligned.m8n8.x4.trans.shared.b16 [%0], {%1,%2,%3,%4};" ::"r"(at),
                 "r"(f[0]), "r"(f[1]), "r"(f[2]), "r"(f[3])
                 : "memory");
#else
    (void)lane;
    const int r = (threadIdx.x & 31) >> 2, q = threadIdx.x & 3;
#pragma unroll
    for (int i = 0; i < 4; i++) {
#pragma unroll
        for (int half = 0; half < 2; half++) {
            const Shared at =
                tile_at(tile, row + (i >> 1) * 8 + 2 * q + half, chunk + (i & 1)) + 2 * r;
            const uint16_t value = (uint16_t)(f[i] >> (16 * half));
            asm volatile("st.shared.u16 [%0], %1;" ::"r"(at), "h"(value) : "memory");
        }
    }
#endif
}

/* Writes it as it is: tile[row + row of the fragment][8 chunk + column of the fragment]. */
static __device__ __forceinline__ void matrix_put(Shared tile, const Lanes &lane, int row,
                                                  int chunk, const uint32_t (&f)[4]) {
#pragma unroll
    for (int i = 0; i < 4; i++) {
        const Shared at = region(tile, lane.value, row + (i & 1) * 8, chunk) ^ ((i >> 1) << 4);
        asm volatile("st.shared.u32 [%0], %1;" ::"r"(at), "r"(f[i]) : "memory");
    }
}

/* ---- arithmetic ----------------------------------------------------------------------------- */

/* acc += A B; A: 16x16 (a[0]: rows 0-7, k 0-7; a[1]: rows 8-15; a[2], a[3]: k 8-15), B: 16x8. */
static __device__ __forceinline__ void mma(float (&acc)[4], const uint32_t (&a)[4], uint32_t b0,
                                           uint32_t b1) {
    asm volatile("mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0,%1,%2,%3}, "
                 "{%4,%5,%6,%7}, {%8,%9}, {%0,%1,%2,%3};"
                 : "+f"(acc[0]), "+f"(acc[1]), "+f"(acc[2]), "+f"(acc[3])
                 : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
}

static __device__ __forceinline__ uint32_t pack2(float low, float high) {
    const __nv_bfloat162 v = __floats2bfloat162_rn(low, high);
    return *reinterpret_cast<const uint32_t *>(&v);
}
static __device__ __forceinline__ float low_of(uint32_t v) {
    return __uint_as_float(v << 16);
}
static __device__ __forceinline__ float high_of(uint32_t v) {
    return __uint_as_float(v & 0xffff0000u);
}

/* Two neighbouring accumulators (columns 0-7 and 8-15) as one A operand. */
static __device__ __forceinline__ void pack_pair(uint32_t (&f)[4], const float (&left)[4],
                                                 const float (&right)[4]) {
    f[0] = pack2(left[0], left[1]);
    f[1] = pack2(left[2], left[3]);
    f[2] = pack2(right[0], right[1]);
    f[3] = pack2(right[2], right[3]);
}

/* What rounding took away: value - f, rounded. value = f + rest to about 16 bits. */
static __device__ __forceinline__ void pack_rest(uint32_t (&rest)[4], const uint32_t (&f)[4],
                                                 const float (&left)[4], const float (&right)[4]) {
    rest[0] = pack2(left[0] - low_of(f[0]), left[1] - high_of(f[0]));
    rest[1] = pack2(left[2] - low_of(f[1]), left[3] - high_of(f[1]));
    rest[2] = pack2(right[0] - low_of(f[2]), right[1] - high_of(f[2]));
    rest[3] = pack2(right[2] - low_of(f[3]), right[3] - high_of(f[3]));
}

/* Sum over the four lanes that share a fragment row. */
static __device__ __forceinline__ float quad_sum(float x) {
    x += __shfl_xor_sync(0xffffffffu, x, 1);
    return x + __shfl_xor_sync(0xffffffffu, x, 2);
}

#endif
