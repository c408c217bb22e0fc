/* Attention of BF16 heads of 64 channels in windows of at most 256 tokens, forward, on Hopper.
 *
 * A persistent block goes from head to head. One warpgroup brings q, k, v of the next head into one
 * of two buffers and norms them; two take 64 queries at a time against all keys, so that the
 * softmax has its row at once.
 */
#include "kernels/cuda/attention_hopper.cuh"

#define THREADS      384
#define BUFFER_BYTES (3 * WINDOW_BYTES)
#define SHARED_BYTES (2 * BUFFER_BYTES + 1024 + 512)

#if HAVE_SM90A

typedef struct Buffers {
    Shared data, full, empty; /* barriers of both */
    const float *w;
} Buffers;

static __device__ __forceinline__ void bring(const AttentionArgs &a, const Buffers &b,
                                             int64_t items, int thread) {
    const int64_t pitch = 3 * (int64_t)a.heads * HEAD;
    int round = 0;
    for (int64_t item = blockIdx.x; item < items; item += gridDim.x, round++) {
        const Shared to = b.data + (round & 1) * BUFFER_BYTES;
        const bf16 *from =
            (const bf16 *)a.packed + packed_at(a, item / a.heads, 0, (int)(item % a.heads), 0);
        barrier_wait(b.empty + 8 * (round & 1), (round >> 1 & 1) ^ 1);
#pragma unroll 1
        for (int third = 0; third < 3; third++)
            window_fetch<128>(to + third * WINDOW_BYTES, from + third * (pitch / 3), pitch,
                              a.tokens, thread);
        copies_commit();
        copies_wait<0>();
        asm volatile("bar.sync 1, 128;" ::: "memory"); /* all rows are there */
#pragma unroll 1
        for (int row = thread; row < WINDOW; row += 128) {
            window_norm(a, to, row, b.w);
            window_norm(a, to + WINDOW_BYTES, row, NULL);
        }
        shared_is_written();
        barrier_arrive(b.full + 8 * (round & 1));
    }
}

/* s (64 queries, of which the lane has parts of two rows, by 256 keys) becomes packed powers; the
 * rows' sums and references (scores in powers of two). */
static __device__ __forceinline__ void softmax(float (&s)[128], uint32_t (&p)[16][4],
                                               float (&sum)[2], float (&top)[2], float factor,
                                               int tokens, int lane) {
    if (tokens < WINDOW) {
#pragma unroll
        for (int i = 0; i < 128; i++)
            if (8 * (i / 4) + 2 * (lane & 3) + (i & 1) >= tokens) s[i] = -INFINITY;
    }
    top[0] = top[1] = -INFINITY;
#pragma unroll
    for (int i = 0; i < 128; i++) top[i >> 1 & 1] = fmaxf(top[i >> 1 & 1], s[i]);
#pragma unroll
    for (int half = 0; half < 2; half++) {
        float x = top[half];
        x = fmaxf(x, __shfl_xor_sync(0xffffffffu, x, 1));
        x = fmaxf(x, __shfl_xor_sync(0xffffffffu, x, 2));
        top[half] = x * factor;
        sum[half] = 0;
    }
#pragma unroll
    for (int i = 0; i < 128; i += 2) {
        const int half = i >> 1 & 1;
        const float x = exponential2(fmaf(s[i], factor, -top[half]));
        const float y = exponential2(fmaf(s[i + 1], factor, -top[half]));
        sum[half] += x + y;
        p[i / 8][i / 2 % 4] = pack2(x, y);
    }
    sum[0] = quad_sum(sum[0]);
    sum[1] = quad_sum(sum[1]);
}

/* 64 queries from `first` on of a head that stands in `at`. */
static __device__ __forceinline__ void queries(const AttentionArgs &a, Shared at, int64_t item,
                                               int first, const Lanes &lanes) {
    const int warp = threadIdx.x >> 5 & 3, lane = threadIdx.x & 31;
    const Shared tile = at + first * 128;
    float s[128], o[32], sum[2], top[2];
    uint32_t p[16][4];
    const uint64_t q = operand_straight(tile), k = operand_straight(at + WINDOW_BYTES);
    const uint64_t v = operand_turned(at + 2 * WINDOW_BYTES);
    wgmma_begin();
#pragma unroll
    for (int i = 0; i < 4; i++) wgmma<0>(s, q + 2 * i, k + 2 * i, i > 0);
    wgmma_commit();
    wgmma_wait<0>();
    softmax(s, p, sum, top, a.scale * LOG2_E, a.tokens, lane);
    wgmma_begin();
#pragma unroll
    for (int i = 0; i < 16; i++) wgmma_registers(o, p[i], v + i * (2048 >> 4), i > 0);
    wgmma_commit();
    wgmma_wait<0>();
    const int row = first + 16 * warp + (lane >> 2);
    const int64_t window = item / a.heads;
    const int head = (int)(item % a.heads);
#pragma unroll
    for (int half = 0; half < 2; half++) {
        const float inverse = 1.0f / sum[half];
        if (a.lse && (lane & 3) == 0 && row + 8 * half < a.tokens)
            a.lse[item * a.tokens + row + 8 * half] = LN_2 * (top[half] + log2f(sum[half]));
#pragma unroll
        for (int j = 0; j < 8; j++) {
            o[4 * j + 2 * half] *= inverse;
            o[4 * j + 2 * half + 1] *= inverse;
        }
    }
    /* the queries' own rows are read no more */
    warp_put(o, (bf16 *)a.to + plain_at(a, window, head, first + 16 * warp),
             (int64_t)a.heads * HEAD, tile, 16 * warp, a.tokens - first - 16 * warp, lanes, lane);
}

static __device__ __forceinline__ void take(const AttentionArgs &a, const Buffers &b, int64_t items,
                                            int group) {
    const Lanes lanes = lanes_init();
    int round = 0;
    for (int64_t item = blockIdx.x; item < items; item += gridDim.x, round++) {
        barrier_wait(b.full + 8 * (round & 1), round >> 1 & 1);
#pragma unroll 1
        for (int first = 64 * group; first < a.tokens; first += 128)
            queries(a, b.data + (round & 1) * BUFFER_BYTES, item, first, lanes);
        barrier_arrive(b.empty + 8 * (round & 1));
    }
}

#endif

__global__ void __launch_bounds__(THREADS, 1)
    attention_hopper_kernel(AttentionArgs a, int64_t items) {
#if HAVE_SM90A
    extern __shared__ char memory[];
    __shared__ float w[HEAD];
    Buffers b;
    b.data = (shared_address(memory) + 1023) & ~1023u;
    b.full = b.data + 2 * BUFFER_BYTES;
    b.empty = b.full + 16;
    b.w = w;
    if (threadIdx.x == 0) {
        for (int i = 0; i < 2; i++) {
            barrier_init(b.full + 8 * i, 128);
            barrier_init(b.empty + 8 * i, 256);
        }
        asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
    }
    if (threadIdx.x < HEAD) w[threadIdx.x] = a.q_w ? a.q_w[threadIdx.x] * a.k_w[threadIdx.x] : 1;
    __syncthreads();
    const int role = threadIdx.x / 128;
    if (role == 0) {
        registers_down<88>();
        bring(a, b, items, threadIdx.x);
    } else {
        registers_up<208>();
        take(a, b, items, role - 1);
    }
#endif
}

bool attention_hopper_fits(Device *d, const AttentionArgs &a) {
    return backend_of(d)->sm90a && a.tokens <= WINDOW && a.width == HEAD;
}

Status attention_hopper(Device *d, const AttentionArgs &a, int64_t windows) {
    const int64_t items = windows * a.heads, most = backend_of(d)->sm_count;
    CUDA_TRY(cudaFuncSetAttribute(attention_hopper_kernel,
                                  cudaFuncAttributeMaxDynamicSharedMemorySize, SHARED_BYTES),
             "attention: shared memory");
    attention_hopper_kernel<<<(unsigned)(items < most ? items : most), THREADS, SHARED_BYTES,
                              stream_of(d)>>>(a, items);
    return launched("attention");
}
