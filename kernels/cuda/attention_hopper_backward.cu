/* Attention of BF16 heads of 64 channels in windows of at most 256 tokens, backward, on Hopper.
 *
 * A block has one head: q, k, v and dout stand in shared memory. Two warpgroups make dk and dv of
 * 64 keys at a time, then dq of 64 queries at a time; scores are computed in both passes, so that
 * nothing passes between warpgroups.
 */
#include "kernels/cuda/attention_hopper.cuh"

#define THREADS 256
#define HALF    (128 * 128) /* bytes of 128 rows */

/* Numbers of tokens, and sums. */
typedef struct Numbers {
    float2 query[WINDOW]; /* lse in powers of two, delta */
    float q_rate[WINDOW], k_rate[WINDOW];
    float w[HEAD], sums[THREADS / 32][HEAD];
} Numbers;
#define SPARE_BYTES  (2 * TILE_BYTES)
#define SHARED_BYTES (4 * WINDOW_BYTES + SPARE_BYTES + 1024 + (int)sizeof(Numbers))

#if HAVE_SM90A

typedef struct Head {
    Shared q, k, v, g, staging; /* g: dout */
    Numbers *numbers;
    int64_t window, item;
    int head;
} Head;

/* The sum of products of a row of dout, in shared memory, and one of o. */
static __device__ __forceinline__ float delta_of(const AttentionArgs &a, const Head &h,
                                                 const uint4 (&o)[CHUNKS], int row) {
    float sum = 0;
#pragma unroll
    for (int c = 0; c < CHUNKS; c++) sum += dot(o[c], chunk_get(tile_at(h.g, row, c)));
    return row < a.tokens ? sum : 0.0f;
}

/* Brings everything; thread t has row t. */
static __device__ __forceinline__ void head_get(const AttentionArgs &a, const Head &h) {
    const int64_t pitch = (int64_t)a.heads * HEAD, plain = plain_at(a, h.window, h.head, 0);
    const bf16 *packed = (const bf16 *)a.packed + packed_at(a, h.window, 0, h.head, 0);
    const int row = threadIdx.x;
    const bool real = row < a.tokens;
    window_fetch<THREADS>(h.q, packed, 3 * pitch, a.tokens, row);
    window_fetch<THREADS>(h.k, packed + pitch, 3 * pitch, a.tokens, row);
    window_fetch<THREADS>(h.v, packed + 2 * pitch, 3 * pitch, a.tokens, row);
    window_fetch<THREADS>(h.g, (const bf16 *)a.dout + plain, pitch, a.tokens, row);
    copies_commit();
    uint4 o[CHUNKS];
    const bf16 *from = (const bf16 *)a.o + plain + (real ? row : 0) * pitch;
#pragma unroll
    for (int c = 0; c < CHUNKS; c++)
        o[c] = *reinterpret_cast<const uint4 *>(from + c * (HEAD / CHUNKS));
    const float lse = real ? a.lse[h.item * a.tokens + row] * LOG2_E : INFINITY;
    if (row < HEAD) h.numbers->w[row] = a.q_w ? a.q_w[row] * a.k_w[row] : 1;
    copies_wait<0>();
    __syncthreads();
    h.numbers->query[row] = make_float2(lse, delta_of(a, h, o, row));
    h.numbers->q_rate[row] = window_norm(a, h.q, row, h.numbers->w);
    h.numbers->k_rate[row] = window_norm(a, h.k, row, NULL);
    shared_is_written();
    __syncthreads();
}

/* s = x y' and d = u z' of 64 rows of x and u, 128 of y and z. */
static __device__ __forceinline__ void two_products(float (&s)[64], float (&d)[64], Shared x,
                                                    Shared y, Shared u, Shared z) {
    const uint64_t a = operand_straight(x), b = operand_straight(y);
    const uint64_t c = operand_straight(u), e = operand_straight(z);
    wgmma_begin();
#pragma unroll
    for (int i = 0; i < 4; i++) wgmma<0>(s, a + 2 * i, b + 2 * i, i > 0);
#pragma unroll
    for (int i = 0; i < 4; i++) wgmma<0>(d, c + 2 * i, e + 2 * i, i > 0);
    wgmma_commit();
    wgmma_wait<0>();
}

/* sum += f x of packed f (64 x 128), x with 128 rows. */
static __device__ __forceinline__ void add_product(float (&sum)[32], const uint32_t (&f)[8][4],
                                                   Shared x, bool keep) {
    const uint64_t b = operand_turned(x);
#pragma unroll
    for (int i = 0; i < 8; i++) wgmma_registers(sum, f[i], b + i * (2048 >> 4), keep || i > 0);
}

/* Rows: keys, columns: 128 queries from `first` on. p = P', f = dS' over scale. */
static __device__ __forceinline__ void key_slopes(const float (&s)[64], const float (&d)[64],
                                                  uint32_t (&p)[8][4], uint32_t (&f)[8][4],
                                                  const Numbers *numbers, float factor, int first,
                                                  int lane) {
#pragma unroll
    for (int j = 0; j < 16; j++) { /* columns 8 j + 2 (lane & 3), + 1 */
        const float4 n =
            *reinterpret_cast<const float4 *>(&numbers->query[first + 8 * j + 2 * (lane & 3)]);
#pragma unroll
        for (int half = 0; half < 2; half++) {
            const int i = 4 * j + 2 * half;
            const float x = exponential2(fmaf(s[i], factor, -n.x));
            const float y = exponential2(fmaf(s[i + 1], factor, -n.z));
            p[j / 2][j % 2 * 2 + half] = pack2(x, y);
            f[j / 2][j % 2 * 2 + half] = pack2(x * (d[i] - n.y), y * (d[i + 1] - n.w));
        }
    }
}

/* Rows: queries, of which the lane has two with the given numbers; columns: 128 keys, `left` of
 * which exist. f = dS over scale. */
static __device__ __forceinline__ void query_slopes(const float (&s)[64], const float (&d)[64],
                                                    uint32_t (&f)[8][4], const float2 (&n)[2],
                                                    float factor, int left, int lane) {
#pragma unroll
    for (int j = 0; j < 16; j++) {
#pragma unroll
        for (int half = 0; half < 2; half++) {
            const int i = 4 * j + 2 * half, c = 8 * j + 2 * (lane & 3);
            float x = exponential2(fmaf(s[i], factor, -n[half].x)) * (d[i] - n[half].y);
            float y = exponential2(fmaf(s[i + 1], factor, -n[half].x)) * (d[i + 1] - n[half].y);
            if (left < 128 && c >= left) x = 0;
            if (left < 128 && c + 1 >= left) y = 0;
            f[j / 2][j % 2 * 2 + half] = pack2(x, y);
        }
    }
}

static __device__ __forceinline__ uint32_t pair_get(Shared at) {
    uint32_t x;
    asm volatile("ld.shared.u32 %0, [%1];" : "=r"(x) : "r"(at) : "memory");
    return x;
}

/* g *= scale (the gradient of the row times its rate n, which has the pairs n[j] of two rows), then
 * through the norm: rate (g - n mean(n g)). */
static __device__ __forceinline__ void norm_back(float (&g)[32], const uint32_t (&n)[8][2],
                                                 const float (&rate)[2], const AttentionArgs &a) {
#pragma unroll
    for (int half = 0; half < 2; half++) {
        float sum = 0;
#pragma unroll
        for (int j = 0; j < 8; j++)
            sum += low_of(n[j][half]) * g[4 * j + 2 * half] +
                   high_of(n[j][half]) * g[4 * j + 2 * half + 1];
        const float mean = a.q_w ? quad_sum(sum) * (1.0f / HEAD) : 0.0f;
#pragma unroll
        for (int j = 0; j < 8; j++) {
            float *x = &g[4 * j + 2 * half];
            x[0] = rate[half] * (x[0] - low_of(n[j][half]) * mean);
            x[1] = rate[half] * (x[1] - high_of(n[j][half]) * mean);
        }
    }
}

/* dk and dv of 64 keys from `first` on. */
static __device__ __forceinline__ void keys_pass(const AttentionArgs &a, const Head &h, int first,
                                                 const Lanes &lanes, int warp, int lane) {
    const Shared k = h.k + first * 128;
    float dk[32], dv[32];
#pragma unroll 1
    for (int half = 0; half < 2 && 128 * half < a.tokens; half++) {
        float s[64], d[64];
        uint32_t p[8][4], f[8][4];
        two_products(s, d, k, h.q + half * HALF, h.v + first * 128, h.g + half * HALF);
        key_slopes(s, d, p, f, h.numbers, a.scale * LOG2_E, 128 * half, lane);
        wgmma_begin();
        add_product(dv, p, h.g + half * HALF, half > 0);
        add_product(dk, f, h.q + half * HALF, half > 0);
        wgmma_commit();
        wgmma_wait<0>();
    }
    const int row0 = 16 * (warp & 3), left = a.tokens - first - row0;
    const int row = first + row0 + (lane >> 2);
    uint32_t n[8][2];
    const float rate[2] = {h.numbers->k_rate[row], h.numbers->k_rate[row + 8]};
#pragma unroll
    for (int j = 0; j < 8; j++) {
        n[j][0] = pair_get(tile_at(h.k, row, j) + 4 * (lane & 3));
        n[j][1] = pair_get(tile_at(h.k, row + 8, j) + 4 * (lane & 3));
    }
#pragma unroll
    for (int i = 0; i < 32; i++) dk[i] *= a.scale;
    norm_back(dk, n, rate, a);
    const Shared staging = h.staging + warp / 4 * TILE_BYTES;
    const int64_t pitch = 3 * (int64_t)a.heads * HEAD;
    bf16 *to = (bf16 *)a.to + packed_at(a, h.window, 1, h.head, first + row0);
    warp_put(dk, to, pitch, staging, row0, left, lanes, lane);
    warp_put(dv, to + pitch / 3, pitch, staging, row0, left, lanes, lane);
}

/* dq of 64 queries from `first` on; adds to the weights' sums of the lane's 16 channels. */
static __device__ __forceinline__ void queries_pass(const AttentionArgs &a, const Head &h,
                                                    int first, float (&sums)[16],
                                                    const Lanes &lanes, int warp, int lane) {
    const int row0 = 16 * (warp & 3), row = first + row0 + (lane >> 2);
    const int64_t pitch = 3 * (int64_t)a.heads * HEAD;
    const int64_t place = packed_at(a, h.window, 0, h.head, 0);
    uint32_t n[8][2];
    float dq[32], rate[2];
    float2 numbers[2];
#pragma unroll
    for (int half = 0; half < 2; half++) { /* the raw rows, far ahead of their use */
        const bool real = row + 8 * half < a.tokens;
        const bf16 *raw = (const bf16 *)a.packed + place + (real ? row + 8 * half : 0) * pitch;
#pragma unroll
        for (int j = 0; j < 8; j++) {
            const uint32_t x = *reinterpret_cast<const uint32_t *>(raw + 8 * j + 2 * (lane & 3));
            n[j][half] = real ? x : 0;
        }
        rate[half] = h.numbers->q_rate[row + 8 * half];
        numbers[half] = h.numbers->query[row + 8 * half];
    }
#pragma unroll 1
    for (int half = 0; half < 2 && 128 * half < a.tokens; half++) {
        float s[64], d[64];
        uint32_t f[8][4];
        two_products(s, d, h.q + first * 128, h.k + half * HALF, h.g + first * 128,
                     h.v + half * HALF);
        query_slopes(s, d, f, numbers, a.scale * LOG2_E, a.tokens - 128 * half, lane);
        wgmma_begin();
        add_product(dq, f, h.k + half * HALF, half > 0);
        wgmma_commit();
        wgmma_wait<0>();
    }
#pragma unroll
    for (int j = 0; j < 8; j++) {
        const float2 w = *reinterpret_cast<const float2 *>(h.numbers->w + 8 * j + 2 * (lane & 3));
#pragma unroll
        for (int half = 0; half < 2; half++) {
            n[j][half] = scaled(n[j][half], rate[half], rate[half]);
            float *x = &dq[4 * j + 2 * half];
            sums[2 * j] += low_of(n[j][half]) * x[0];
            sums[2 * j + 1] += high_of(n[j][half]) * x[1];
            x[0] *= a.scale * w.x;
            x[1] *= a.scale * w.y;
        }
    }
    norm_back(dq, n, rate, a);
    warp_put(dq, (bf16 *)a.to + place + (first + row0) * pitch, pitch,
             h.staging + warp / 4 * TILE_BYTES, row0, a.tokens - first - row0, lanes, lane);
}

/* The block's sums over queries, to weights[item]. */
static __device__ __forceinline__ void sums_put(const AttentionArgs &a, const Head &h,
                                                float (&sums)[16], int warp, int lane) {
#pragma unroll
    for (int i = 0; i < 16; i++) {
        float x = sums[i];
#pragma unroll
        for (int mask = 4; mask < 32; mask *= 2) x += __shfl_xor_sync(0xffffffffu, x, mask);
        if (lane < 4) h.numbers->sums[warp][i / 2 * 8 + 2 * lane + i % 2] = x;
    }
    __syncthreads();
    if (threadIdx.x >= HEAD || !a.weights) return;
    float all = 0;
    for (int i = 0; i < THREADS / 32; i++) all += h.numbers->sums[i][threadIdx.x];
    a.weights[h.item * HEAD + threadIdx.x] = all;
}

#endif

__global__ void __launch_bounds__(THREADS, 1) attention_hopper_backward_kernel(AttentionArgs a) {
#if HAVE_SM90A
    extern __shared__ char memory[];
    const Shared start = shared_address(memory), data = (start + 1023) & ~1023u;
    const Lanes lanes = lanes_init();
    const int warp = threadIdx.x >> 5, lane = threadIdx.x & 31;
    Head h;
    h.item = blockIdx.x;
    h.window = h.item / a.heads;
    h.head = (int)(h.item % a.heads);
    h.q = data;
    h.k = data + WINDOW_BYTES;
    h.v = data + 2 * WINDOW_BYTES;
    h.g = data + 3 * WINDOW_BYTES;
    h.staging = data + 4 * WINDOW_BYTES;
    h.numbers = (Numbers *)(memory + (h.staging + SPARE_BYTES - start));
    head_get(a, h);
    float sums[16] = {};
#pragma unroll 1
    for (int first = 64 * (warp / 4); first < a.tokens; first += 128)
        keys_pass(a, h, first, lanes, warp, lane);
#pragma unroll 1
    for (int first = 64 * (warp / 4); first < a.tokens; first += 128)
        queries_pass(a, h, first, sums, lanes, warp, lane);
    sums_put(a, h, sums, warp, lane);
#endif
}

Status attention_hopper_backward(Device *d, const AttentionArgs &a, int64_t windows) {
    CUDA_TRY(cudaFuncSetAttribute(attention_hopper_backward_kernel,
                                  cudaFuncAttributeMaxDynamicSharedMemorySize, SHARED_BYTES),
             "attention_backward: shared memory");
    attention_hopper_backward_kernel<<<(unsigned)(windows * a.heads), THREADS, SHARED_BYTES,
                                       stream_of(d)>>>(a);
    return launched("attention_backward");
}
