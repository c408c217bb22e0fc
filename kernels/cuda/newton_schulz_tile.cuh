/* A tile of a chain in a warpgroup's registers: its products, what is added to it, and its way to
 * the staging tile (newton_schulz_chain.cu).
 */
#ifndef TTV_KERNELS_CUDA_NEWTON_SCHULZ_TILE_CUH
#define TTV_KERNELS_CUDA_NEWTON_SCHULZ_TILE_CUH

#include "kernels/cuda/newton_schulz_chain.cuh"
#include "kernels/cuda/wgmma.cuh"

#define DEPTH 64 /* k per stage */

#if HAVE_SM90A

typedef struct Spot {
    int phase, matrix, row, column;
    bool real; /* not only there to keep a cluster in step */
} Spot;

/* Whether a tile of a symmetric result has a mirror image elsewhere. */
static __device__ __forceinline__ bool is_mirrored(const Phase &p, const Spot &s) {
    return p.symmetric && s.row / TILE != s.column / TILE;
}

/* ---- products ------------------------------------------------------------------------------- */

#define D8(i)                                                                                      \
    "%" #i "0, %" #i "1, %" #i "2, %" #i "3, %" #i "4, %" #i "5, %" #i "6, %" #i "7, %" #i         \
    "8, %" #i "9, "
#define LOW                                                                                        \
    "{%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, " D8(1) D8(2) D8(3) D8(4) D8(5) "%60, %61, %62, "    \
                                                                              "%63}"
#define HIGH                                                                                       \
    "{%64, %65, %66, %67, %68, %69, " D8(7) D8(8) D8(9) D8(10) D8(11) "%120, %121, %122, %123, "   \
                                                                      "%124, %125, %126, %127}"
#define ONE(p, turned)                                                                             \
    "wgmma.mma_async.sync.aligned.m64n128k16.f32.bf16.bf16 " LOW ", a0, b0, " p                    \
    ", 1, 1, 0, " turned ";\n"
/* 16 k of both halves; `step`: from one 16 k of b to the next, in units of 16 bytes. */
#define PAIR(p, turned)                                                                            \
    "wgmma.mma_async.sync.aligned.m64n128k16.f32.bf16.bf16 " LOW ", a0, b0, " p                    \
    ", 1, 1, 0, " turned ";\n"                                                                     \
    "wgmma.mma_async.sync.aligned.m64n128k16.f32.bf16.bf16 " HIGH ", a1, b0, " p                   \
    ", 1, 1, 0, " turned ";\n"
#define NEXT(step)     "add.s64 a0, a0, 2;\nadd.s64 a1, a1, 2;\nadd.s64 b0, b0, " step ";\n"
#define NEXT_ONE(step) "add.s64 a0, a0, 2;\nadd.s64 b0, b0, " step ";\n"
#define STAGE_ONE(step, turned)                                                                    \
    "wgmma.fence.sync.aligned;\n" ONE("keep", turned) NEXT_ONE(step) ONE("1", turned)              \
        NEXT_ONE(step) ONE("1", turned) NEXT_ONE(step)                                             \
            ONE("1", turned) "wgmma.commit_group.sync.aligned;\n"
#define STAGE(step, turned)                                                                        \
    "wgmma.fence.sync.aligned;\n" PAIR("keep", turned) NEXT(step) PAIR("1", turned) NEXT(step)     \
        PAIR("1", turned) NEXT(step) PAIR("1", turned) "wgmma.commit_group.sync.aligned;\n"
#define EIGHT(h, i)                                                                                \
    "+f"(sum[h][i]), "+f"(sum[h][i + 1]), "+f"(sum[h][i + 2]), "+f"(sum[h][i + 3]),                \
        "+f"(sum[h][i + 4]), "+f"(sum[h][i + 5]), "+f"(sum[h][i + 6]), "+f"(sum[h][i + 7])
#define ALL(h)                                                                                     \
    EIGHT(h, 0), EIGHT(h, 8), EIGHT(h, 16), EIGHT(h, 24), EIGHT(h, 32), EIGHT(h, 40),              \
        EIGHT(h, 48), EIGHT(h, 56)

/* The products of a stage, both ways that b may lie in one statement: a choice in C would join two
 * sets of accumulators afterwards, and the compiler would wait for each product. */
static __device__ __forceinline__ void stage_multiply(float (&sum)[2][64], uint64_t a0, uint64_t a1,
                                                      uint64_t b, int keep, int turned) {
    asm volatile("{\n.reg .pred keep, turned;\n.reg .b64 a0, a1, b0;\n"
                 "setp.ne.b32 keep, %131, 0;\nsetp.ne.b32 turned, %132, 0;\n"
                 "mov.b64 a0, %128;\nmov.b64 a1, %129;\nmov.b64 b0, %130;\n"
                 "@turned bra.uni turned_over;\n" STAGE("2", "0") "bra over;\n"
                                                                  "turned_over:\n" STAGE(
                                                                      "128", "1") "over:\n}\n"
                 : ALL(0), ALL(1)
                 : "l"(a0), "l"(a1), "l"(b), "r"(keep), "r"(turned));
}

static __device__ __forceinline__ void stage_multiply(float (&sum)[1][64], uint64_t a, uint64_t,
                                                      uint64_t b, int keep, int turned) {
    asm volatile("{\n.reg .pred keep, turned;\n.reg .b64 a0, b0;\n"
                 "setp.ne.b32 keep, %66, 0;\nsetp.ne.b32 turned, %67, 0;\n"
                 "mov.b64 a0, %64;\nmov.b64 b0, %65;\n"
                 "@turned bra.uni turned_over;\n" STAGE_ONE("2", "0") "bra over;\n"
                                                                      "turned_over:\n" STAGE_ONE(
                                                                          "128", "1") "over:\n}\n"
                 : ALL(0)
                 : "l"(a), "l"(b), "r"(keep), "r"(turned));
}

#undef D8
#undef LOW
#undef HIGH
#undef ONE
#undef PAIR
#undef NEXT
#undef NEXT_ONE
#undef STAGE
#undef STAGE_ONE
#undef EIGHT
#undef ALL

/* ---- results -------------------------------------------------------------------------------- */

/* Accumulators 4 j + 2 e and the next one of half h are row 64 h + 16 warp + 8 e + lane / 4 and
 * columns 8 j + 2 (lane % 4) and the next one. */

/* Part of the matrix of half h and group j of 8 columns, as an offset of the first element;
 * negative beyond the matrix, which ends where 64 rows or columns end. */
static __device__ __forceinline__ int64_t part_at(const Chain &c, const Phase &p, const Spot &s,
                                                  int h, int j) {
    const int lane = threadIdx.x & 31, first = threadIdx.x / 32 % 4 * 16 + lane / 4;
    const int row = s.row + h * BOX, column = s.column + 8 * j;
    if (row >= c.r || s.column + j / 8 * BOX >= p.columns) return -1;
    return ((int64_t)s.matrix * c.r + row + first) * p.columns + column + lane % 4 * 2;
}

/* sum <- alpha sum + kappa carry */
template <int HALVES>
static __device__ __forceinline__ void tile_carry(float (&sum)[HALVES][64], const Chain &c,
                                                  const Phase &p, const Spot &s, float alpha,
                                                  float kappa) {
#pragma unroll
    for (int h = 0; h < HALVES; h++) {
#pragma unroll
        for (int j = 0; j < 16; j++) {
            const int64_t at = part_at(c, p, s, h, j);
#pragma unroll
            for (int e = 0; e < 2; e++) {
                float *v = &sum[h][4 * j + 2 * e];
                float2 old = make_float2(0.0f, 0.0f);
                if (at >= 0) /* past the first-level cache, which knows nothing of other blocks */
                    old =
                        __ldcg(reinterpret_cast<const float2 *>(p.carry + at + 8 * e * p.columns));
                v[0] = alpha * v[0] + kappa * old.x;
                v[1] = alpha * v[1] + kappa * old.y;
            }
        }
    }
}

template <int HALVES>
static __device__ __forceinline__ void tile_scale(float (&sum)[HALVES][64], float alpha) {
#pragma unroll
    for (int h = 0; h < HALVES; h++) {
#pragma unroll
        for (int i = 0; i < 64; i++) sum[h][i] *= alpha;
    }
}

/* sum <- sum + gamma I; `down`: the tile's first row, seen from the row of its first column. */
template <int HALVES>
static __device__ __forceinline__ void tile_identity(float (&sum)[HALVES][64], int down,
                                                     float gamma) {
    const int lane = threadIdx.x & 31, first = threadIdx.x / 32 % 4 * 16 + lane / 4;
#pragma unroll
    for (int h = 0; h < HALVES; h++) {
#pragma unroll
        for (int i = 0; i < 64; i++) {
            const int row = down + h * BOX + first + (i & 2) * 4;
            if (row == i / 4 * 8 + lane % 4 * 2 + (i & 1)) sum[h][i] += gamma;
        }
    }
}

template <int HALVES>
static __device__ __forceinline__ void tile_put_wide(const float (&sum)[HALVES][64], const Chain &c,
                                                     const Phase &p, const Spot &s) {
#pragma unroll
    for (int h = 0; h < HALVES; h++) {
#pragma unroll
        for (int j = 0; j < 16; j++) {
            const int64_t at = part_at(c, p, s, h, j);
            if (at < 0) continue;
#pragma unroll
            for (int e = 0; e < 2; e++)
                *reinterpret_cast<float2 *>(p.wide + at + 8 * e * p.columns) =
                    make_float2(sum[h][4 * j + 2 * e], sum[h][4 * j + 2 * e + 1]);
        }
    }
}

/* The same of a tile of 64 x 128 that is mirrored, beside the tile itself. */
static __device__ __forceinline__ Shared beside_at(Shared staging, int row, int column) {
    return tile_at(staging + (2 + (row >> 6)) * TILE_BYTES, row & 63, column >> 3 & 7);
}

/* Eight neighbouring elements of the staging tile, four boxes of 64 x 64. */
static __device__ __forceinline__ Shared staging_at(Shared staging, int row, int column) {
    const Shared box = staging + ((row >> 6) * 2 + (column >> 6)) * TILE_BYTES;
    return tile_at(box, row & 63, column >> 3 & 7);
}

/* sum <- sum + beta s, s from the staging tile: each warp reads the part that it writes later. */
template <int HALVES>
static __device__ __forceinline__ void tile_add(float (&sum)[HALVES][64], Shared staging,
                                                float beta) {
    const int l = threadIdx.x & 31, row0 = threadIdx.x / 32 % 4 * 16;
    const int below = (l >> 3 & 1) * 8, right = (l >> 4) * 8, line = l & 7;
#pragma unroll
    for (int h = 0; h < HALVES; h++) {
#pragma unroll
        for (int i = 0; i < 8; i++) {
            uint32_t f[4];
            matrix_get(f, staging_at(staging, h * 64 + row0 + below + line, 16 * i + right));
#pragma unroll
            for (int k = 0; k < 4; k++) {
                sum[h][8 * i + 2 * k] += beta * low_of(f[k]);
                sum[h][8 * i + 2 * k + 1] += beta * high_of(f[k]);
            }
        }
    }
}

/* Rounds the warp's part into the staging tile, as it is or mirrored. */
template <bool MIRRORED, int HALVES>
static __device__ __forceinline__ void tile_stage(const float (&sum)[HALVES][64], Shared staging) {
    const int l = threadIdx.x & 31, row0 = threadIdx.x / 32 % 4 * 16;
    const int below = (l >> 3 & 1) * 8, right = (l >> 4) * 8, line = l & 7;
#pragma unroll
    for (int h = 0; h < HALVES; h++) {
#pragma unroll
        for (int i = 0; i < 8; i++) {
            const float *v = &sum[h][8 * i];
            const uint32_t f0 = pack2(v[0], v[1]), f1 = pack2(v[2], v[3]);
            const uint32_t f2 = pack2(v[4], v[5]), f3 = pack2(v[6], v[7]);
            if (MIRRORED) {
                const Shared at =
                    HALVES == 1 ? beside_at(staging, 16 * i + right + line, row0 + below)
                                : staging_at(staging, 16 * i + right + line, h * 64 + row0 + below);
                asm volatile(
                    "stmatrix.sync.aligned.m8n8.x4.trans.shared.b16 [%0], {%1,%2,%3,%4};" ::"r"(at),
                    "r"(f0), "r"(f1), "r"(f2), "r"(f3)
                    : "memory");
            } else {
                const Shared at = staging_at(staging, h * 64 + row0 + below + line, 16 * i + right);
                asm volatile(
                    "stmatrix.sync.aligned.m8n8.x4.shared.b16 [%0], {%1,%2,%3,%4};" ::"r"(at),
                    "r"(f0), "r"(f1), "r"(f2), "r"(f3)
                    : "memory");
            }
        }
    }
}

#endif /* HAVE_SM90A */

#endif
