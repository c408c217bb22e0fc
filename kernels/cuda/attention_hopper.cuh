/* Pieces of attention by warpgroups (attention_hopper.cu, attention_hopper_backward.cu): BF16 heads
 * of 64 channels, windows of at most 256 tokens.
 *
 * In shared memory stand q rate w and k rate, w the product of both norms' weights and the rates
 * those of the rows, rounded to BF16: products of them are scores over scale.
 */
#ifndef TTV_KERNELS_CUDA_ATTENTION_HOPPER_CUH
#define TTV_KERNELS_CUDA_ATTENTION_HOPPER_CUH

#include "kernels/cuda/attention_mma.cuh"
#include "kernels/cuda/tensor_map.cuh"
#include "kernels/cuda/wgmma.cuh"

#define WINDOW       256 /* most tokens */
#define WINDOW_BYTES (WINDOW * 128)

#if HAVE_SM90A

/* d (64 x 64) = a (64 x 16, registers) b, plus d when `keep`; b turned: rows of k. */
static __device__ __forceinline__ void wgmma_registers(float (&d)[32], const uint32_t (&a)[4],
                                                       uint64_t b, int keep) {
    asm volatile("{\n.reg .pred p;\nsetp.ne.b32 p, %37, 0;\n"
                 "wgmma.mma_async.sync.aligned.m64n64k16.f32.bf16.bf16 {" NAMES_32
                 "}, {%32, %33, %34, %35}, %36, p, 1, 1, 1;\n}\n"
                 : SUMS_8(0), SUMS_8(8), SUMS_8(16), SUMS_8(24)
                 : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b), "r"(keep));
}

static __device__ __forceinline__ void chunk_put(Shared at, const uint4 &x) {
    asm volatile("st.shared.v4.u32 [%0], {%1,%2,%3,%4};" ::"r"(at), "r"(x.x), "r"(x.y), "r"(x.z),
                 "r"(x.w)
                 : "memory");
}

static __device__ __forceinline__ void shared_is_written(void) {
    asm volatile("fence.proxy.async.shared::cta;" ::: "memory");
}

static __device__ __forceinline__ uint32_t scaled(uint32_t x, float a, float b) {
    return pack2(low_of(x) * a, high_of(x) * b);
}

/* Multiplies a row by its rate, and by w [64] in shared memory when there is one. The rate. */
static __device__ __forceinline__ float window_norm(const AttentionArgs &a, Shared tile, int row,
                                                    const float *w) {
    if (!a.q_w) return 1;
    uint4 x[CHUNKS];
    float squares = 0;
#pragma unroll
    for (int c = 0; c < CHUNKS; c++) {
        x[c] = chunk_get(tile_at(tile, row, c));
        squares += square_sum(x[c]);
    }
    const float rate = rate_of(a, squares);
#pragma unroll
    for (int c = 0; c < CHUNKS; c++) {
        float4 p = make_float4(1, 1, 1, 1), q = p;
        if (w) {
            p = *reinterpret_cast<const float4 *>(w + 8 * c);
            q = *reinterpret_cast<const float4 *>(w + 8 * c + 4);
        }
        chunk_put(tile_at(tile, row, c), make_uint4(scaled(x[c].x, rate * p.x, rate * p.y),
                                                    scaled(x[c].y, rate * p.z, rate * p.w),
                                                    scaled(x[c].z, rate * q.x, rate * q.y),
                                                    scaled(x[c].w, rate * q.z, rate * q.w)));
    }
    return rate;
}

/* Rounds a warp's 16 rows of 64 channels and writes those below `left`, through 16 rows of `tile`
 * that are the warp's own. */
static __device__ __forceinline__ void warp_put(const float (&d)[32], bf16 *to, int64_t pitch,
                                                Shared tile, int row0, int left, const Lanes &lanes,
                                                int lane) {
#pragma unroll
    for (int c = 0; c < 4; c++) {
        const uint32_t f[4] = {pack2(d[8 * c], d[8 * c + 1]), pack2(d[8 * c + 2], d[8 * c + 3]),
                               pack2(d[8 * c + 4], d[8 * c + 5]),
                               pack2(d[8 * c + 6], d[8 * c + 7])};
        matrix_put(tile, lanes, row0, 2 * c, f);
    }
    __syncwarp();
    rows_store<16, CHUNKS>(to, pitch, tile, row0, 0, left, lane);
    __syncwarp();
}

/* Two warpgroups multiply by turns, so that one is at its exponentials meanwhile. Group 1 gives the
 * first turn; what a group wrote before it gives a turn, the other sees. */
static __device__ __forceinline__ void turn_wait(int group) {
    asm volatile("bar.sync %0, 256;" ::"r"(4 + group) : "memory");
}
static __device__ __forceinline__ void turn_give(int group) {
    asm volatile("bar.arrive %0, 256;" ::"r"(5 - group) : "memory");
}

#endif

#endif
