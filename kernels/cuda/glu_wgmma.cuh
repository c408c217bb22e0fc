/* The GLU kernel on warpgroup products (Hopper, heads of 64): geometry, operands, inner weights.
 *
 * A block is one warpgroup and works on one head. As in glu_mma.cuh everything is computed turned
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

#define CHUNK      TILE_ROWS
#define TAIL       16 /* tokens of a short last chunk */
#define SMEM_ALIGN 1024
#define ROW_BYTES  128

typedef GluPlace<GROUP> Place;

static __device__ __forceinline__ Shared weight_tile(Shared base, int index) {
    return base + index * TILE_BYTES;
}

/* A thread's share of the copies of token tiles: every 16th row, one 16-byte chunk of it. */
static __device__ __forceinline__ void chunk_fetch(Shared tile, const bf16 *in, int64_t pitch,
                                                   int left) {
    const int row = threadIdx.x / 8, part = threadIdx.x % 8;
    const bf16 *from = in + row * pitch + 8 * part;
#pragma unroll
    for (int i = 0; i < CHUNK / FETCH_STEP; i++) {
        const int r = row + i * FETCH_STEP; /* past the end: zeros, the address is not read */
        copy_chunk(tile_at(tile, r, part), from + i * FETCH_STEP * pitch, r < left);
    }
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
        uint4 v;
        asm volatile("ld.shared.v4.u32 {%0,%1,%2,%3}, [%4];"
                     : "=r"(v.x), "=r"(v.y), "=r"(v.z), "=r"(v.w)
                     : "r"(at + i * 16 * ROW_BYTES)
                     : "memory");
        *reinterpret_cast<uint4 *>(to + i * 16 * pitch) = v;
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

#define EIGHT(i)                                                                                   \
    "+f"(d[i]), "+f"(d[i + 1]), "+f"(d[i + 2]), "+f"(d[i + 3]), "+f"(d[i + 4]), "+f"(d[i + 5]),    \
        "+f"(d[i + 6]), "+f"(d[i + 7])
#define NAMES_8  "%0, %1, %2, %3, %4, %5, %6, %7"
#define NAMES_16 NAMES_8 ", %8, %9, %10, %11, %12, %13, %14, %15"
#define NAMES_24 NAMES_16 ", %16, %17, %18, %19, %20, %21, %22, %23"
#define NAMES_32 NAMES_24 ", %24, %25, %26, %27, %28, %29, %30, %31"

/* d (64 x 2 COUNT) = a (64 x 16) b (16 x 2 COUNT), plus d when `keep`; b straight. */
template <int TURNED_A>
static __device__ __forceinline__ void product(float (&d)[32], uint64_t a, uint64_t b, int keep) {
    asm volatile("{\n.reg .pred p;\nsetp.ne.b32 p, %34, 0;\n"
                 "wgmma.mma_async.sync.aligned.m64n64k16.f32.bf16.bf16 {" NAMES_32
                 "}, %32, %33, p, 1, 1, %35, 0;\n}\n"
                 : EIGHT(0), EIGHT(8), EIGHT(16), EIGHT(24)
                 : "l"(a), "l"(b), "r"(keep), "n"(TURNED_A)
                 : "memory");
}
template <int TURNED_A>
static __device__ __forceinline__ void product(float (&d)[8], uint64_t a, uint64_t b, int keep) {
    asm volatile("{\n.reg .pred p;\nsetp.ne.b32 p, %10, 0;\n"
                 "wgmma.mma_async.sync.aligned.m64n16k16.f32.bf16.bf16 {" NAMES_8
                 "}, %8, %9, p, 1, 1, %11, 0;\n}\n"
                 : EIGHT(0)
                 : "l"(a), "l"(b), "r"(keep), "n"(TURNED_A)
                 : "memory");
}
/* d (64 x 64) += a (64 x 16, registers) b (16 x 64, turned). */
static __device__ __forceinline__ void product_add(float (&d)[32], const uint32_t (&a)[4],
                                                   uint64_t b) {
    asm volatile("{\n.reg .pred p;\nsetp.ne.b32 p, %37, 0;\n"
                 "wgmma.mma_async.sync.aligned.m64n64k16.f32.bf16.bf16 {" NAMES_32
                 "}, {%32, %33, %34, %35}, %36, p, 1, 1, 1;\n}\n"
                 : EIGHT(0), EIGHT(8), EIGHT(16), EIGHT(24)
                 : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b), "r"(1)
                 : "memory");
}
#undef EIGHT
#undef NAMES_8
#undef NAMES_16
#undef NAMES_24
#undef NAMES_32

/* d (j, token) = or += weights' tokens'. */
template <int N>
static __device__ __forceinline__ void project(float (&d)[N], Shared weights, Shared tokens,
                                               bool add) {
#pragma unroll
    for (int k = 0; k < GROUP / 16; k++)
        product<1>(d, operand_turned(weights + 2048 * k), operand_straight(tokens + 32 * k),
                   add || k > 0);
}

/* d (i, token) = or += weights exchange'. */
template <int N>
static __device__ __forceinline__ void mix(float (&d)[N], Shared weights, Shared exchange,
                                           bool add) {
#pragma unroll
    for (int k = 0; k < GROUP / 16; k++)
        product<0>(d, operand_straight(weights + 32 * k), operand_straight(exchange + 32 * k),
                   add || k > 0);
}

/* s (j, i) += a (j, token) tokens. */
template <int STEPS>
static __device__ __forceinline__ void token_sums(float (&s)[32], const uint32_t (&a)[STEPS][4],
                                                  Shared tokens) {
#pragma unroll
    for (int t = 0; t < STEPS; t++) product_add(s, a[t], operand_turned(tokens + 2048 * t));
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

/* The initial weights of a head, rounded, as tile[i][j]. All loads in flight together. */
static __device__ __forceinline__ void head_weights(char *tile, const float *w) {
    const int turns = GROUP * GROUP / 8 / GLU_THREADS;
    float x[turns][8];
#pragma unroll
    for (int t = 0; t < turns; t++) {
        const float *from = w + 8 * (t * GLU_THREADS + threadIdx.x);
        const float4 f = load4_here(from), g = load4_here(from + 4);
        x[t][0] = f.x, x[t][1] = f.y, x[t][2] = f.z, x[t][3] = f.w;
        x[t][4] = g.x, x[t][5] = g.y, x[t][6] = g.z, x[t][7] = g.w;
    }
#pragma unroll
    for (int t = 0; t < turns; t++) {
        const int i = t * GLU_THREADS + threadIdx.x, row = i / 8, part = i % 8;
        uint32_t h[4];
        pack_columns(h, x[t]);
        *reinterpret_cast<uint4 *>(tile + row * ROW_BYTES + ((part ^ (row & 7)) << 4)) =
            make_uint4(h[0], h[1], h[2], h[3]);
    }
}

/* Where a thread's elements lie in the head's matrix: the first of them, and from there on number
 * e of its 32 sums. */
static __device__ __forceinline__ int first_element(const Place &p) {
    return (2 * p.lane_quad - p.base) * GROUP + p.row - p.base + p.lane_row;
}
static __device__ __forceinline__ constexpr int element(int e) {
    return (8 * (e / 4) + (e & 1)) * GROUP + (e >> 1 & 1) * 8;
}

/* Two matrices of the warp's rows, e.g. G1' and G2': all loads in flight together. */
static __device__ __forceinline__ void load_pair(Sums &x1, Sums &x2, const float *in1,
                                                 const float *in2, const Place &p) {
    in1 += first_element(p);
    in2 += first_element(p);
#pragma unroll
    for (int e = 0; e < 32; e++) flat(x1)[e] = load_here(in1 + element(e));
#pragma unroll
    for (int e = 0; e < 32; e++) flat(x2)[e] = load_here(in2 + element(e));
}

/* s times -c, set or added; all loads in flight together. */
static __device__ __forceinline__ void put_sums(float *out, Sums &s, float c, bool add,
                                                const Place &p) {
    Sums old = {};
    out += first_element(p);
    if (add) {
#pragma unroll
        for (int e = 0; e < 32; e++) flat(old)[e] = out[element(e)];
    }
#pragma unroll
    for (int e = 0; e < 32; e++) out[element(e)] = flat(old)[e] - c * flat(s)[e];
}

/* W' = W - softnorm(G), high and rest, into two tiles; norm: of rows r and r + 8. */
static __device__ __forceinline__ void train_weights(Shared high, Shared rest, float (&norm)[2],
                                                     Sums &g, Sums &w, const Place &p) {
    float square[2] = {}, rate[2];
#pragma unroll
    for (int e = 0; e < 32; e++) square[e >> 1 & 1] += flat(g)[e] * flat(g)[e];
#pragma unroll
    for (int half = 0; half < 2; half++) {
        norm[half] = sqrtf(quad_sum(square[half]));
        rate[half] = 1.0f / (norm[half] + 1.0f);
    }
#pragma unroll
    for (int k = 0; k < GROUP / 16; k++) {
        float u[8];
        uint32_t f[4], x[4];
#pragma unroll
        for (int e = 0; e < 8; e++)
            u[e] = flat(w)[8 * k + e] - rate[e >> 1 & 1] * flat(g)[8 * k + e];
        pack_columns(f, u);
        pack_columns_rest(x, f, u);
        matrix_put_turned(high, p.own, 16 * k, 0, f);
        matrix_put_turned(rest, p.own, 16 * k, 0, x);
    }
}

/* dW' in s -> dG into a tile; s is left as dW' / -c, so that K' dZ (which lacks the factor -c) can
 * be added to it. */
static __device__ __forceinline__ void
train_backward(Shared tile, Sums &s, Sums &g, const float (&norm)[2], float c, const Place &p) {
    float t[2] = {}, rate[2], back[2];
#pragma unroll
    for (int e = 0; e < 32; e++) t[e >> 1 & 1] -= flat(g)[e] * flat(s)[e];
#pragma unroll
    for (int half = 0; half < 2; half++) {
        rate[half] = 1.0f / (norm[half] + 1.0f);
        t[half] = quad_sum(t[half]);
        back[half] = norm[half] > 0 ? rate[half] * rate[half] * t[half] / norm[half] : 0.0f;
    }
    const float scale = -1.0f / c;
#pragma unroll
    for (int k = 0; k < GROUP / 16; k++) {
        float u[8];
        uint32_t f[4];
#pragma unroll
        for (int e = 0; e < 8; e++) {
            const int half = e >> 1 & 1;
            u[e] = -rate[half] * flat(s)[8 * k + e] - back[half] * flat(g)[8 * k + e];
            flat(s)[8 * k + e] *= scale;
        }
        pack_columns(f, u);
        matrix_put_turned(tile, p.own, 16 * k, 0, f);
    }
}

#endif
