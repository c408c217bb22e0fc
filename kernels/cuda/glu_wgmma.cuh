/* The GLU kernels on warpgroup products (Hopper): geometry shared by forward and backward.
 *
 * A block is one warpgroup and works on 64 channels, a head of 64 or two heads of 32 (whose weights
 * stand on the diagonal of the 64 x 64 tiles). As in glu_mma.cuh everything is computed turned
 * over: rows = channel j (warp w holds 16w .. 16w+15), columns = tokens, CHUNK of them at a time.
 * Weights are operands in shared memory, tile[i][j], and so are tokens, tile[token][i]; registers
 * hold accumulators only:
 *  - projection Z' = W' K': weights turned, tokens straight;
 *  - sum over tokens G' = P' K: P' from registers (accumulators are at once operands), tokens
 * turned;
 *  - mix dK' = W P': weights straight, P through an exchange tile[token][j].
 */
#ifndef TTV_KERNELS_CUDA_GLU_WGMMA_CUH
#define TTV_KERNELS_CUDA_GLU_WGMMA_CUH

#include "kernels/cuda/glu_mma.cuh"
#include "kernels/cuda/wgmma.cuh"

#define TAIL       16 /* tokens of a short last chunk */
#define SMEM_ALIGN 1024
#define ROW_BYTES  128

/* sqrt(x) to about one unit in the last place; sqrtf has a slow path. */
static __device__ __forceinline__ float square_root(float x) {
    float r;
    asm("sqrt.approx.ftz.f32 %0, %1;" : "=f"(r) : "f"(x));
    return r;
}

static __device__ __forceinline__ Shared weight_tile(Shared base, int index) {
    return base + index * TILE_BYTES;
}

/* 16 bytes of a tile to memory. In these words: left to itself the compiler stores four times four
 * bytes, which costs four times the work. */
static __device__ __forceinline__ void pack_flush(bf16 *to, Shared from) {
    uint4 v;
    asm volatile("ld.shared.v4.u32 {%0,%1,%2,%3}, [%4];"
                 : "=r"(v.x), "=r"(v.y), "=r"(v.z), "=r"(v.w)
                 : "r"(from)
                 : "memory");
    asm volatile("st.global.v4.u32 [%0], {%1,%2,%3,%4};" ::"l"(to), "r"(v.x), "r"(v.y), "r"(v.z),
                 "r"(v.w)
                 : "memory");
}

/* The warp's 16 channels of N tokens to memory, `left` at most; call after the warp has written
 * them. `out`: the first token. */
template <int N>
static __device__ __forceinline__ void chunk_flush(bf16 *out, int64_t pitch, Shared tile, int row,
                                                   int left) {
    __syncwarp();
    const int lane = threadIdx.x & 31, t = lane / 2, part = row / 8 + lane % 2;
    const Shared at = tile_at(tile, t, part);
    bf16 *to = out + t * pitch + 8 * part;
#pragma unroll
    for (int i = 0; i < N / 16; i++) {
        if (t + 16 * i >= left) break;
        pack_flush(to + i * 16 * pitch, at + i * 16 * ROW_BYTES);
    }
}

#if HAVE_SM90A

/* Ordinary writes of this thread to shared memory become visible to the tensor cores (after the
 * barrier that follows). */
static __device__ __forceinline__ void writes_publish(void) {
    asm volatile("fence.proxy.async.shared::cta;" ::: "memory");
}

/* The values of an array may have changed: after the wait for the products that write it, or read
 * it. */
template <int N> static __device__ __forceinline__ void settle(float (&d)[N]) {
#pragma unroll
    for (int i = 0; i < N; i++) asm volatile("" : "+f"(d[i])::"memory");
}
template <int N> static __device__ __forceinline__ void settle(uint32_t (&d)[N][4]) {
#pragma unroll
    for (int i = 0; i < N; i++)
        asm volatile("" : "+r"(d[i][0]), "+r"(d[i][1]), "+r"(d[i][2]), "+r"(d[i][3])::"memory");
}

/* Low word of the descriptor of an operand that begins at `at` (operand_straight, operand_turned);
 * all operands here share the high word, so that a step along k is one addition. */
static __device__ __forceinline__ uint32_t straight(Shared at) {
    return at >> 4 | 1u << 16;
}
static __device__ __forceinline__ uint32_t turned(Shared at) {
    return at >> 4 | (uint32_t)(TILE_BYTES >> 4) << 16;
}
static __device__ __forceinline__ uint64_t described(uint32_t low) {
    return (uint64_t)(1024 >> 4 | 1u << 30) << 32 | low;
}
#define STRAIGHT_STEP (32 >> 4) /* 16 k on */
#define TURNED_STEP   (2048 >> 4)

/* d (64 x 2 COUNT) = a (64 x 16) b (16 x 2 COUNT), plus d when `keep`; b straight. */
template <int TURNED_A>
static __device__ __forceinline__ void product(float (&d)[32], uint64_t a, uint64_t b, int keep) {
    asm volatile("{\n.reg .pred p;\nsetp.ne.b32 p, %34, 0;\n"
                 "wgmma.mma_async.sync.aligned.m64n64k16.f32.bf16.bf16 {" NAMES_32
                 "}, %32, %33, p, 1, 1, %35, 0;\n}\n"
                 : SUMS_8(0), SUMS_8(8), SUMS_8(16), SUMS_8(24)
                 : "l"(a), "l"(b), "r"(keep), "n"(TURNED_A)
                 : "memory");
}
template <int TURNED_A>
static __device__ __forceinline__ void product(float (&d)[24], uint64_t a, uint64_t b, int keep) {
    asm volatile("{\n.reg .pred p;\nsetp.ne.b32 p, %26, 0;\n"
                 "wgmma.mma_async.sync.aligned.m64n48k16.f32.bf16.bf16 {" NAMES_24
                 "}, %24, %25, p, 1, 1, %27, 0;\n}\n"
                 : SUMS_8(0), SUMS_8(8), SUMS_8(16)
                 : "l"(a), "l"(b), "r"(keep), "n"(TURNED_A)
                 : "memory");
}
template <int TURNED_A>
static __device__ __forceinline__ void product(float (&d)[8], uint64_t a, uint64_t b, int keep) {
    asm volatile("{\n.reg .pred p;\nsetp.ne.b32 p, %10, 0;\n"
                 "wgmma.mma_async.sync.aligned.m64n16k16.f32.bf16.bf16 {" NAMES_8
                 "}, %8, %9, p, 1, 1, %11, 0;\n}\n"
                 : SUMS_8(0)
                 : "l"(a), "l"(b), "r"(keep), "n"(TURNED_A)
                 : "memory");
}
/* d (64 x 64) += a (64 x 16, registers) b (16 x 64, turned). */
static __device__ __forceinline__ void product_add(float (&d)[32], const uint32_t (&a)[4],
                                                   uint64_t b) {
    asm volatile("{\n.reg .pred p;\nsetp.ne.b32 p, %37, 0;\n"
                 "wgmma.mma_async.sync.aligned.m64n64k16.f32.bf16.bf16 {" NAMES_32
                 "}, {%32, %33, %34, %35}, %36, p, 1, 1, 1;\n}\n"
                 : SUMS_8(0), SUMS_8(8), SUMS_8(16), SUMS_8(24)
                 : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b), "r"(1)
                 : "memory");
}

/* d (j, token) = or += weights' tokens'. */
template <int N>
static __device__ __forceinline__ void project(float (&d)[N], Shared weights, Shared tokens,
                                               bool add) {
#pragma unroll
    for (int k = 0; k < GROUP / 16; k++)
        product<1>(d, described(turned(weights) + TURNED_STEP * k),
                   described(straight(tokens) + STRAIGHT_STEP * k), add || k > 0);
}

/* d (i, token) = or += weights exchange'. */
template <int N>
static __device__ __forceinline__ void mix(float (&d)[N], Shared weights, Shared exchange,
                                           bool add) {
#pragma unroll
    for (int k = 0; k < GROUP / 16; k++)
        product<0>(d, described(straight(weights) + STRAIGHT_STEP * k),
                   described(straight(exchange) + STRAIGHT_STEP * k), add || k > 0);
}

/* s (j, i) += a (j, token) tokens. */
template <int STEPS>
static __device__ __forceinline__ void token_sums(float (&s)[32], const uint32_t (&a)[STEPS][4],
                                                  Shared tokens) {
#pragma unroll
    for (int t = 0; t < STEPS; t++)
        product_add(s, a[t], described(turned(tokens) + TURNED_STEP * t));
}

#endif /* HAVE_SM90A */

/* Sums (j, i) as the functions of glu_mma.cuh want them. */
typedef float Sums[GROUP / 8][4];

static __device__ __forceinline__ float (&flat(Sums &s))[32] {
    return reinterpret_cast<float(&)[32]>(s);
}

/* Elements 8t .. 8t+7 of an accumulator, 16 columns, as an operand, and what rounding took away. */
static __device__ __forceinline__ void pack_columns(uint32_t (&f)[4], const float *d) {
#pragma unroll
    for (int i = 0; i < 4; i++) f[i] = pack2(d[2 * i], d[2 * i + 1]);
}
static __device__ __forceinline__ void pack_columns_rest(uint32_t (&rest)[4],
                                                         const uint32_t (&f)[4], const float *d) {
#pragma unroll
    for (int i = 0; i < 4; i++)
        rest[i] = pack2(d[2 * i] - low_of(f[i]), d[2 * i + 1] - high_of(f[i]));
}

/* Element e of the eight that go with a packed 16 x 16 fragment. */
static __device__ __forceinline__ float fragment_value(const uint32_t (&f)[4], int e) {
    return e & 1 ? high_of(f[e >> 1]) : low_of(f[e >> 1]);
}

/* Whether accumulator columns 8n .. 8n+7 belong to the head of the warp's rows: heads of 32 come in
 * pairs and what lies between two heads means nothing. */
template <int D> static __device__ __forceinline__ bool is_own(const GluPlace<D> &p, int n) {
    return D == GROUP || (p.real && n / (D / 8) == p.base / D);
}
/* Where a thread's elements lie in the head's d x d matrix: the first of them, and from there on
 * register e of accumulator columns 8n .. 8n+7. */
template <int D> static __device__ __forceinline__ int first_element(const GluPlace<D> &p) {
    return (2 * p.lane_quad - p.base) * D + p.row - p.base + p.lane_row;
}
template <int D> static __device__ __forceinline__ constexpr int element(int n, int e) {
    return (8 * n + (e & 1)) * D + (e >> 1) * 8;
}

/* Loads of what no kernel writes, at their place: the compiler would keep the weights of the whole
 * loop over samples in registers that are not there. */
static __device__ __forceinline__ float load_here(const float *p) {
    float v;
    asm volatile("ld.global.nc.f32 %0, [%1];" : "=f"(v) : "l"(p));
    return v;
}
static __device__ __forceinline__ float4 load4_here(const float *p) {
    float4 v;
    asm volatile("ld.global.nc.v4.f32 {%0, %1, %2, %3}, [%4];"
                 : "=f"(v.x), "=f"(v.y), "=f"(v.z), "=f"(v.w)
                 : "l"(p));
    return v;
}

/* Two matrices of the warp's rows, e.g. G1' and G2': all loads in flight together. */
template <int D>
static __device__ __forceinline__ void load_pair(Sums &x1, Sums &x2, const float *in1,
                                                 const float *in2, const GluPlace<D> &p) {
    in1 += first_element(p);
    in2 += first_element(p);
#pragma unroll
    for (int e = 0; e < 32; e++)
        x1[e / 4][e % 4] = is_own(p, e / 4) ? load_here(in1 + element<D>(e / 4, e % 4)) : 0.0f;
#pragma unroll
    for (int e = 0; e < 32; e++)
        x2[e / 4][e % 4] = is_own(p, e / 4) ? load_here(in2 + element<D>(e / 4, e % 4)) : 0.0f;
}

/* W' = W - softnorm(G), high and rest, into two tiles. */
template <int D>
static __device__ __forceinline__ void train_weights(Shared high, Shared rest, const Sums &g,
                                                     const Sums &w, const GluPlace<D> &p) {
    float square[2] = {}, rate[2];
#pragma unroll
    for (int e = 0; e < 32; e++) square[e >> 1 & 1] += g[e / 4][e % 4] * g[e / 4][e % 4];
#pragma unroll
    for (int half = 0; half < 2; half++) {
        rate[half] = reciprocal(square_root(quad_sum(square[half])) + 1.0f);
    }
#pragma unroll
    for (int k = 0; k < GROUP / 16; k++) {
        float u[8];
        uint32_t f[4], x[4];
#pragma unroll
        for (int e = 0; e < 8; e++)
            u[e] = w[2 * k + e / 4][e % 4] - rate[e >> 1 & 1] * g[2 * k + e / 4][e % 4];
        pack_columns(f, u);
        pack_columns_rest(x, f, u);
        matrix_put_turned(high, p.own, 16 * k, 0, f);
        matrix_put_turned(rest, p.own, 16 * k, 0, x);
    }
}

#endif
