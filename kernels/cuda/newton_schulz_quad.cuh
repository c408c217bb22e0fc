/* A strip of a quad in a warpgroup's registers: 64 rows, up to 256 columns (newton_schulz_quad.cu).
 */
#ifndef TTV_KERNELS_CUDA_NEWTON_SCHULZ_QUAD_CUH
#define TTV_KERNELS_CUDA_NEWTON_SCHULZ_QUAD_CUH

#include "kernels/cuda/newton_schulz_chain.cuh"
#include "kernels/cuda/wgmma.cuh"

#if HAVE_SM90A

/* ---- products ------------------------------------------------------------------------------- */

#define TEN(i)                                                                                     \
    "%" #i "0, %" #i "1, %" #i "2, %" #i "3, %" #i "4, %" #i "5, %" #i "6, %" #i "7, %" #i         \
    "8, %" #i "9"
#define TO_31 "%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, " TEN(1) ", " TEN(2) ", %30, %31"
#define TO_63                                                                                      \
    TO_31 ", %32, %33, %34, %35, %36, %37, %38, %39, " TEN(4) ", " TEN(5) ", %60, %61, %62, %63"
#define TO_95                                                                                      \
    TO_63 ", %64, %65, %66, %67, %68, %69, " TEN(7) ", " TEN(8) ", %90, %91, %92, %93, %94, %95"
#define TO_127                                                                                     \
    TO_95 ", %96, %97, %98, %99, " TEN(10) ", " TEN(11) ", %120, %121, %122, %123, %124, %125, "   \
                                                        "%126, %127"
/* `way`: 0 or 1 for each of a and b, straight or turned; `step`: for each, from one 16 k to the
 * next in units of 16 bytes. */
#define ONE(n, list, p, way)                                                                       \
    "wgmma.mma_async.sync.aligned.m64n" n "k16.f32.bf16.bf16 {" list "}, a0, b0, " p               \
    ", 1, 1, " way ";\n"
#define NEXT(a_step, b_step) "add.s64 a0, a0, " a_step ";\nadd.s64 b0, b0, " b_step ";\n"
#define STAGE(n, list, a_step, b_step, way)                                                        \
    "wgmma.fence.sync.aligned;\n" ONE(n, list, "keep", way) NEXT(a_step, b_step)                   \
        ONE(n, list, "1", way) NEXT(a_step, b_step) ONE(n, list, "1", way) NEXT(a_step, b_step)    \
            ONE(n, list, "1", way) "wgmma.commit_group.sync.aligned;\n"
#define EIGHT(i)                                                                                   \
    "+f"(sum[i]), "+f"(sum[i + 1]), "+f"(sum[i + 2]), "+f"(sum[i + 3]), "+f"(sum[i + 4]),          \
        "+f"(sum[i + 5]), "+f"(sum[i + 6]), "+f"(sum[i + 7])

#define BOTH(name, n, list)     name ":\n" STAGE(n, list, "2", "2", "0, 0") "bra over;\n"
#define B_TURNED(name, n, list) name ":\n" STAGE(n, list, "2", "128", "0, 1") "bra over;\n"
#define TURNED(name, n, list)   name ":\n" STAGE(n, list, "128", "128", "1, 1") "bra over;\n"
#define WHEN(number, name)      "setp.eq.s32 p, %131, " number ";\n@p bra.uni " name ";\n"
#define BEGIN                                                                                      \
    "{\n.reg .pred keep, p;\n.reg .b64 a0, b0;\nmov.b64 a0, %128;\nmov.b64 b0, %129;\n"            \
    "setp.ne.b32 keep, %130, 0;\n"

/* The products of a stage: none (way 0), with 1 to 4 boxes of 64 columns of b (ways 1 to 4), with
 * as many that are turned (ways 5 to 8), or with a turned as well (ways 9 to 12). All in one
 * statement: a choice in C would join sets of accumulators afterwards, and the compiler would wait
 * for each product. */
static __device__ __forceinline__ void stage_multiply(float (&sum)[128], uint64_t a, uint64_t b,
                                                      int keep, int way) {
    asm volatile(BEGIN                                                                           //
                     WHEN("8", "b4") WHEN("4", "both4") WHEN("12", "turned4") WHEN("1", "both1") //
                 WHEN("2", "both2") WHEN("3", "both3") WHEN("5", "b1") WHEN("6", "b2")           //
                 WHEN("7", "b3") WHEN("9", "turned1") WHEN("10", "turned2")                      //
                 WHEN("11", "turned3") "bra over;\n"                                             //
                 B_TURNED("b4", "256", TO_127) BOTH("both4", "256", TO_127)                      //
                 TURNED("turned4", "256", TO_127) BOTH("both1", "64", TO_31)                     //
                 BOTH("both2", "128", TO_63) BOTH("both3", "192", TO_95)                         //
                 B_TURNED("b1", "64", TO_31) B_TURNED("b2", "128", TO_63)                        //
                 B_TURNED("b3", "192", TO_95) TURNED("turned1", "64", TO_31)                     //
                 TURNED("turned2", "128", TO_63) TURNED("turned3", "192", TO_95) "over:\n}\n"
                 : EIGHT(0), EIGHT(8), EIGHT(16), EIGHT(24), EIGHT(32), EIGHT(40), EIGHT(48),
                   EIGHT(56), EIGHT(64), EIGHT(72), EIGHT(80), EIGHT(88), EIGHT(96), EIGHT(104),
                   EIGHT(112), EIGHT(120)
                 : "l"(a), "l"(b), "r"(keep), "r"(way));
}

#undef BOTH
#undef B_TURNED
#undef TURNED
#undef WHEN
#undef BEGIN
#undef TEN
#undef TO_31
#undef TO_63
#undef TO_95
#undef TO_127
#undef ONE
#undef NEXT
#undef STAGE
#undef EIGHT

/* ---- results -------------------------------------------------------------------------------- */

/* Accumulators 4 j + 2 e and the next one are row 16 warp + 8 e + lane / 4 of the strip and columns
 * 8 j + 2 (lane % 4) and the next one. */

static __device__ __forceinline__ int own_row(void) {
    return threadIdx.x / 32 % 4 * 16 + (threadIdx.x & 31) / 4;
}

static __device__ __forceinline__ int own_column(void) {
    return threadIdx.x % 4 * 2;
}

static __device__ __forceinline__ void strip_clear(float (&sum)[128]) {
#pragma unroll
    for (int i = 0; i < 128; i++) sum[i] = 0.0f;
}

static __device__ __forceinline__ void strip_scale(float (&sum)[128], float alpha) {
#pragma unroll
    for (int i = 0; i < 128; i++) sum[i] *= alpha;
}

/* sum <- alpha sum + kappa carry, `carry` at the strip's first element; past the first-level cache,
 * which knows nothing of other blocks. */
static __device__ __forceinline__ void strip_carry(float (&sum)[128], const float *carry, int pitch,
                                                   int boxes, float alpha, float kappa) {
    carry += (int64_t)own_row() * pitch + own_column();
#pragma unroll
    for (int j = 0; j < 32; j++) {
#pragma unroll
        for (int e = 0; e < 2; e++) {
            float *v = &sum[4 * j + 2 * e];
            float2 old = make_float2(0.0f, 0.0f);
            if (j / 8 < boxes) old = __ldcg((const float2 *)(carry + 8 * e * pitch + 8 * j));
            v[0] = alpha * v[0] + kappa * old.x;
            v[1] = alpha * v[1] + kappa * old.y;
        }
    }
}

static __device__ __forceinline__ void strip_put_wide(const float (&sum)[128], float *to, int pitch,
                                                      int boxes) {
    to += (int64_t)own_row() * pitch + own_column();
#pragma unroll
    for (int j = 0; j < 32; j++) {
        if (j / 8 >= boxes) return;
#pragma unroll
        for (int e = 0; e < 2; e++)
            *(float2 *)(to + 8 * e * pitch + 8 * j) =
                make_float2(sum[4 * j + 2 * e], sum[4 * j + 2 * e + 1]);
    }
}

/* sum <- sum + gamma I in the box whose diagonal is the matrix's. */
static __device__ __forceinline__ void strip_identity(float (&sum)[128], int box, float gamma) {
#pragma unroll
    for (int i = 0; i < 128; i++)
        if (i / 32 == box && own_row() + (i & 2) * 4 == i % 32 / 4 * 8 + own_column() + (i & 1))
            sum[i] += gamma;
}

/* Where a lane has its row of 8 for the four 8 x 8 parts of 16 x 16 at row 16 warp, column 16 i of
 * a box; mirrored, of the box turned. */
static __device__ __forceinline__ Shared part_of_box(Shared box, int i, bool mirrored) {
    const int l = threadIdx.x & 31, row0 = threadIdx.x / 32 % 4 * 16;
    const int below = row0 + (l >> 3 & 1) * 8, right = 16 * i + (l >> 4) * 8, line = l & 7;
    return mirrored ? tile_at(box, right + line, below >> 3)
                    : tile_at(box, below + line, right >> 3);
}

/* Two boxes: sum <- sum + beta s, s from shared memory. */
template <int FIRST>
static __device__ __forceinline__ void boxes_add(float (&sum)[128], Shared at, float beta) {
#pragma unroll
    for (int i = 0; i < 8; i++) {
        uint32_t f[4];
        matrix_get(f, part_of_box(at + i / 4 * TILE_BYTES, i % 4, false));
#pragma unroll
        for (int k = 0; k < 4; k++) {
            sum[32 * FIRST + 8 * i + 2 * k] += beta * low_of(f[k]);
            sum[32 * FIRST + 8 * i + 2 * k + 1] += beta * high_of(f[k]);
        }
    }
}

/* Two boxes, those that there are of `boxes`: a thread's part of <s, sum>. */
template <int FIRST>
static __device__ __forceinline__ float boxes_dot(const float (&sum)[128], Shared at, int boxes) {
    float dot = 0;
#pragma unroll
    for (int i = 0; i < 8; i++) {
        if (FIRST + i / 4 >= boxes) break;
        uint32_t f[4];
        matrix_get(f, part_of_box(at + i / 4 * TILE_BYTES, i % 4, false));
#pragma unroll
        for (int k = 0; k < 4; k++) {
            dot += sum[32 * FIRST + 8 * i + 2 * k] * low_of(f[k]);
            dot += sum[32 * FIRST + 8 * i + 2 * k + 1] * high_of(f[k]);
        }
    }
    return dot;
}

static __device__ __forceinline__ void strip_pack(uint32_t (&packed)[64], const float (&sum)[128]) {
#pragma unroll
    for (int i = 0; i < 64; i++) packed[i] = pack2(sum[2 * i], sum[2 * i + 1]);
}

/* The warp's part of a box, as it is or mirrored. */
template <int NUMBER, bool MIRRORED>
static __device__ __forceinline__ void box_stage(const uint32_t (&packed)[64], Shared to) {
#pragma unroll
    for (int i = 0; i < 4; i++) {
        const uint32_t *f = &packed[16 * NUMBER + 4 * i];
        const Shared at = part_of_box(to, i, MIRRORED);
        if (MIRRORED)
            asm volatile(
                "stmatrix.sync.aligned.m8n8.x4.trans.shared.b16 [%0], {%1,%2,%3,%4};" ::"r"(at),
                "r"(f[0]), "r"(f[1]), "r"(f[2]), "r"(f[3])
                : "memory");
        else
            asm volatile("stmatrix.sync.aligned.m8n8.x4.shared.b16 [%0], {%1,%2,%3,%4};" ::"r"(at),
                         "r"(f[0]), "r"(f[1]), "r"(f[2]), "r"(f[3])
                         : "memory");
    }
}

template <bool MIRRORED>
static __device__ __forceinline__ void box_stage(const uint32_t (&packed)[64], int number,
                                                 Shared to) {
    if (number == 0) box_stage<0, MIRRORED>(packed, to);
    if (number == 1) box_stage<1, MIRRORED>(packed, to);
    if (number == 2) box_stage<2, MIRRORED>(packed, to);
    if (number == 3) box_stage<3, MIRRORED>(packed, to);
}

#endif /* HAVE_SM90A */

#endif
