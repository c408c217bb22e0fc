/* How strips of basis_factor (token_basis_factor.cu) leave as BF16. */
#ifndef TTV_KERNELS_CUDA_TOKEN_BASIS_RESULTS_CUH
#define TTV_KERNELS_CUDA_TOKEN_BASIS_RESULTS_CUH

#include "kernels/cuda/token_basis_strips.cuh"

#if HAVE_SM90A

/* The warp's rows of the diagonal block of r, inv and rest. */
static __device__ __forceinline__ void diagonal_put(const FactorArgs &a, const Strip &w, int t) {
    const int lane = threadIdx.x & 31, base = (w.at & 3) * STRIP;
    const float *y = space(t)->y + 2 * lane, *c = space(t)->c + 2 * lane;
    const float *own = rates() + SIDE * t;
    const float2 right = *(const float2 *)(own + 2 * lane);
#pragma unroll 2
    for (int i = base; i < base + PAIR * STRIP; i++) {
        const int64_t at = w.matrix + (SIDE * t + i) * a.n + SIDE * t + 2 * lane;
        const float2 f = *(const float2 *)(c + i * PITCH), v = *(const float2 *)(y + i * PITCH);
        const float back = 1.0f / own[i], v0 = v.x * right.x, v1 = v.y * right.y;
        const uint32_t high = pack2(v0, v1);
        *(uint32_t *)(a.r + at) = pack2(f.x * back, f.y * back);
        *(uint32_t *)(a.inv + at) = high;
        *(uint32_t *)(a.rest + at) = pack2(v0 - low_of(high), v1 - high_of(high));
    }
}

/* rate x two values. */
static __device__ __forceinline__ float2 whole(uint32_t high, uint32_t low, float rate) {
    const float2 h = __half22float2(*reinterpret_cast<const __half2 *>(&high)),
                 l = __half22float2(*reinterpret_cast<const __half2 *>(&low));
    return make_float2((h.x + l.x) * rate, (h.y + l.y) * rate);
}

static __device__ __forceinline__ void word_stage(Shared at, uint32_t v) {
    asm volatile("st.shared.b32 [%0], %1;" ::"r"(at), "r"(v) : "memory");
}

/* BF16 pairs of half a strip, as its parts lie, and what rounding took away. */
typedef struct Words {
    uint32_t high[8], rest[8];
} Words;

static __device__ __forceinline__ void word_make(Words &o, int i, uint32_t high, uint32_t low,
                                                 float rate) {
    const float2 v = whole(high, low, rate);
    o.high[i] = pack2(v.x, v.y);
    o.rest[i] = pack2(v.x - low_of(o.high[i]), v.y - high_of(o.high[i]));
}

static __device__ __forceinline__ void words_make(Words &o, const Parts &v, int half, float up,
                                                  float down) {
#pragma unroll
    for (int j = 0; j < 2; j++) {
        const uint4 h = v.high[2 * half + j], l = v.low[2 * half + j];
        word_make(o, 4 * j, h.x, l.x, up);
        word_make(o, 4 * j + 1, h.y, l.y, down);
        word_make(o, 4 * j + 2, h.z, l.z, up);
        word_make(o, 4 * j + 3, h.w, l.w, down);
    }
}

/* 32 x 32 elements to memory through the warp's stage: half of both strips of R; or of X turned,
 * columns of the inverse. */
static __device__ __forceinline__ void square_put(bf16 *to, int n, Shared staged,
                                                  const uint32_t (&a)[8], const uint32_t (&b)[8],
                                                  bool turn) {
    const int lane = threadIdx.x & 31, r = lane / 4;
#pragma unroll
    for (int i = 0; i < 16; i++) {
        const int p = i / 8, j = i % 8;
        uint32_t v = p == 0 ? a[j] : b[j];
        if (turn) v = turned(v);
        const int row = turn ? 8 * (j / 2) + r : 16 * p + 8 * (j & 1) + r;
        const int chunk = turn ? 2 * p + (j & 1) : j / 2;
        word_stage(staged + 64 * row + ((chunk ^ (row >> 1 & 3)) << 4) + 4 * (lane & 3), v);
    }
    __syncwarp();
#pragma unroll
    for (int i = 0; i < 4; i++) {
        const int row = 8 * i + r, chunk = lane & 3;
        *(uint4 *)(to + row * n + 8 * chunk) =
            shared_chunk(staged + 64 * row + ((chunk ^ (row >> 1 & 3)) << 4));
    }
    __syncwarp();
}

/* The strips' blocks of r, or of inv and rest. */
static __device__ __forceinline__ void strips_put(const Parts (&v)[PAIR], const FactorArgs &a,
                                                  const Strip &w, int t) {
    const bool turn = w.block < t;
    const float *own = rates() + w.row + (threadIdx.x & 31) / 4;
    float up[PAIR], down[PAIR];
#pragma unroll
    for (int p = 0; p < PAIR; p++) {
        up[p] = own[STRIP * p], down[p] = own[STRIP * p + 8];
        if (!turn) up[p] = 1.0f / up[p], down[p] = 1.0f / down[p];
    }
#pragma unroll
    for (int half = 0; half < 2; half++) {
        Words o[PAIR];
#pragma unroll
        for (int p = 0; p < PAIR; p++) words_make(o[p], v[p], half, up[p], down[p]);
        const int column = SIDE * t + 32 * half;
        const int64_t at = w.matrix + (turn ? column * a.n + w.row : w.row * a.n + column);
        square_put((turn ? a.inv : a.r) + at, a.n, staged(), o[0].high, o[1].high, turn);
        if (turn) square_put(a.rest + at, a.n, staged(), o[0].rest, o[1].rest, true);
    }
}

#endif

#endif
