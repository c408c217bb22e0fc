/* Backward of attention in windows of 193 to 256 tokens (attention_window_backward.cu): what its
 * warpgroups share, and what comes in.
 */
#ifndef TTV_KERNELS_CUDA_ATTENTION_WINDOW_CUH
#define TTV_KERNELS_CUDA_ATTENTION_WINDOW_CUH

#include "kernels/cuda/attention_hopper_backward.cuh"
#include "kernels/cuda/attention_strip.cuh"

#define TILES 4 /* of 64 tokens, and entries */
#define PARTS 6 /* two halves of k and v, four tiles of q and dout */

typedef struct Numbers {
    /* of queries: 8 channels, three of -lse in powers of two, three of -delta */
    uint4 less[WINDOW];
    uint4 ones[2][8], zeros[64];
    float q_rate[WINDOW], k_rate[WINDOW];
    ChannelFactors w;
    float scaled_w[HEAD], sums[8][HEAD]; /* w ln 2; of the keys' warps */
} Numbers;

#define ENTRY_BYTES   (2 * TILE_BYTES) /* 64 queries, 2 x 64 keys */
#define BARRIER_BYTES 256
#define WINDOW_SHARED                                                                              \
    (4 * WINDOW_BYTES + TILES * ENTRY_BYTES + 2 * TILE_BYTES + 1024 + BARRIER_BYTES +              \
     (int)sizeof(Numbers))

/* Rows of packed, dout, o and dpacked as [windows][tokens][columns]: rows past the last token
 * arrive as zeros, and are not written. strips: packed in boxes of 16 rows. */
typedef struct WindowMaps {
    CUtensorMap packed, strips, dout, o, to;
} WindowMaps;

#if HAVE_SM90A

static __device__ __forceinline__ void window_box(Shared to, const CUtensorMap *map, int x,
                                                  int token, int window, Shared barrier) {
    asm volatile("cp.async.bulk.tensor.3d.shared::cluster.global.mbarrier::complete_tx::bytes"
                 " [%0], [%1, {%2, %3, %4}], [%5];" ::"r"(to),
                 "l"(map), "r"(x), "r"(token), "r"(window), "r"(barrier)
                 : "memory");
}
/* Asks for a head's rows of a window in the L2 cache. */
static __device__ __forceinline__ void window_ahead(const CUtensorMap *map, int x, int window) {
    asm volatile("cp.async.bulk.prefetch.tensor.3d.L2.global.tile [%0, {%1, %2, %3}];" ::"l"(map),
                 "r"(x), "r"(0), "r"(window)
                 : "memory");
}
/* Sends a strip of 16 rows that the warp has written. */
static __device__ __forceinline__ void strip_send(const CUtensorMap *map, int x, int token,
                                                  int window, Shared from, int lane) {
    sends_fence();
    __syncwarp();
    if (lane == 0) {
        asm volatile("cp.async.bulk.tensor.3d.global.shared::cta.bulk_group [%0, {%1, %2, %3}], "
                     "[%4];" ::"l"(map),
                     "r"(x), "r"(token), "r"(window), "r"(from)
                     : "memory");
        sends_commit();
    }
    __syncwarp();
}

/* Of which window and head an item is. */
typedef struct Item {
    int at, window, head;
} Item;
static __device__ __forceinline__ Item item_of(const AttentionArgs &a, int at) {
    return {at, at / a.heads, at % a.heads};
}

typedef struct Room {
    Shared q, k, v, g, entries, out; /* g: dout; out: a tile of each half of the keys */
    Shared here, ready;              /* barriers of parts: copied, normed */
    Shared full, empty;              /* of entries */
    Shared raw;                      /* of the keys' warps: their raw rows are there */
    Shared done;                     /* of halves of the keys: dq has their share */
    Shared less, ones, zeros;
    Numbers *numbers;
} Room;

static __device__ __forceinline__ Room room_init(char *memory) {
    const Shared start = shared_address(memory), data = (start + 1023) & ~1023u;
    Room r;
    r.q = data;
    r.k = data + WINDOW_BYTES;
    r.v = data + 2 * WINDOW_BYTES;
    r.g = data + 3 * WINDOW_BYTES;
    r.entries = data + 4 * WINDOW_BYTES;
    r.out = r.entries + TILES * ENTRY_BYTES;
    r.here = r.out + 2 * TILE_BYTES;
    r.ready = r.here + 8 * PARTS;
    r.full = r.ready + 8 * PARTS;
    r.empty = r.full + 8 * TILES;
    r.raw = r.empty + 8 * TILES;
    r.done = r.raw + 64;
    r.less = r.here + BARRIER_BYTES;
    r.ones = r.less + WINDOW * 16;
    r.zeros = r.ones + 256;
    r.numbers = (Numbers *)(memory + (r.less - start));
    return r;
}

/* ---- what comes in ---- */

/* Starts copying a part of a head; by one thread. */
static __device__ __forceinline__ void part_fetch(const AttentionArgs &a, const Room &r,
                                                  const WindowMaps &maps, int part,
                                                  const Item &item) {
    const int x = item.head * HEAD, width = a.heads * HEAD;
    const Shared here = r.here + 8 * part;
    if (part < 2) {
        barrier_expect(here, 4 * TILE_BYTES);
        for (int i = 2 * part; i < 2 * part + 2; i++) {
            window_box(r.k + i * TILE_BYTES, &maps.packed, x + width, 64 * i, item.window, here);
            window_box(r.v + i * TILE_BYTES, &maps.packed, x + 2 * width, 64 * i, item.window,
                       here);
        }
    } else {
        const int i = part - 2;
        barrier_expect(here, 2 * TILE_BYTES);
        window_box(r.q + i * TILE_BYTES, &maps.packed, x, 64 * i, item.window, here);
        window_box(r.g + i * TILE_BYTES, &maps.dout, x, 64 * i, item.window, here);
    }
}

/* What is computed from these is computed anew: the compiler would keep it all, in memory. */
static __device__ __forceinline__ void forget(Lanes &lanes, int &warp, int &lane) {
    asm volatile("" : "+r"(lanes.below), "+r"(lanes.beside), "+r"(warp), "+r"(lane));
}

static __device__ __forceinline__ void keys_prepare(const AttentionArgs &a, const Room &r, int half,
                                                    int phase, Lanes lanes, int warp, int lane) {
    forget(lanes, warp, lane);
    const int row0 = 128 * half + 16 * warp, row = row0 + (lane >> 2);
    barrier_wait(r.here + 8 * half, phase);
    if (a.q_w) {
#pragma unroll
        for (int i = 0; i < 2; i++) {
            const Shared strip = r.k + row0 * 128 + i * TILE_BYTES;
            uint32_t k[4][4];
            float squares[2], rate[2];
            strip_squares(k, squares, strip, lanes, lane);
            rate[0] = rate_of(a, squares[0]);
            rate[1] = rate_of(a, squares[1]);
            strip_norm(k, rate, r.numbers->w, lane);
            strip_put(k, strip, lanes);
            if ((lane & 3) == 0) {
                /* 0: what is no token has no share in the weights' gradients */
                r.numbers->k_rate[row + 64 * i] = row + 64 * i < a.tokens ? rate[0] : 0.0f;
                r.numbers->k_rate[row + 64 * i + 8] = row + 64 * i + 8 < a.tokens ? rate[1] : 0.0f;
            }
        }
    } else if ((lane & 3) == 0) {
        for (int i = 0; i < 4; i++) r.numbers->k_rate[row + 64 * (i / 2) + 8 * (i % 2)] = 1;
    }
    shared_is_written();
    barrier_arrive(r.ready + 8 * half);
}

/* What a tile of queries needs from memory besides its copies, asked for long before. */
typedef struct Outputs {
    Strip o;
    float lse[2];
} Outputs;

/* Asks for a head's o and lse in the L2 cache; all threads of a warpgroup. */
static __device__ __forceinline__ void outputs_ahead(const AttentionArgs &a, const WindowMaps &maps,
                                                     const Item &item) {
    if ((threadIdx.x & 127) == 0) window_ahead(&maps.o, item.head * HEAD, item.window);
    __syncwarp();
    if (32 * (threadIdx.x & 127) < a.tokens)
        asm volatile("prefetch.global.L2 [%0];" ::"l"(a.lse + (int64_t)item.at * a.tokens +
                                                      32 * (threadIdx.x & 127)));
}

static __device__ __forceinline__ void outputs_get(Outputs &x, const AttentionArgs &a, int tile,
                                                   const Item &item, int warp, int lane) {
    asm volatile("" : "+r"(warp), "+r"(lane));
    const int row = 64 * tile + 16 * warp + (lane >> 2), width = a.heads * HEAD;
    const bf16 *window = (const bf16 *)a.o + (int64_t)item.window * a.tokens * width;
    const float *lses = a.lse + (int64_t)item.at * a.tokens;
#pragma unroll
    for (int half = 0; half < 2; half++) {
        const bool real = row + 8 * half < a.tokens;
        const int at = real ? row + 8 * half : 0;
        const bf16 *from = window + at * width + item.head * HEAD;
#pragma unroll
        for (int part = 0; part < 2; part++)
            x.o.x[half][part] =
                *reinterpret_cast<const uint4 *>(from + strip_chunk(part, lane) * (HEAD / CHUNKS));
        x.lse[half] = lses[at]; /* as it is: nobody waits for it here */
    }
}

static __device__ __forceinline__ float rounded(float x) {
    return __bfloat162float(__float2bfloat16_rn(x));
}
/* Both numbers as sums of three in BF16, which have all of their 24 bits. */
static __device__ __forceinline__ uint4 less_of(float a, float b) {
    const float a0 = rounded(a), a1 = rounded(a - a0), b0 = rounded(b), b1 = rounded(b - b0);
    return make_uint4(pack2(a0, a1), pack2(a - a0 - a1, b0), pack2(b1, b - b0 - b1), 0);
}

static __device__ __forceinline__ void queries_prepare(const AttentionArgs &a, const Room &r,
                                                       int tile, const Outputs &x, int phase,
                                                       Lanes lanes, int warp, int lane) {
    forget(lanes, warp, lane);
    const int row0 = 64 * tile + 16 * warp, row = row0 + (lane >> 2);
    barrier_wait(r.here + 8 * (2 + tile), phase);
    float delta[2], squares[2];
    {
        Strip g;
        strip_load(g, r.g + row0 * 128, lane);
        strip_products(delta, g, x.o, lane);
    }
    uint32_t q[4][4];
    strip_squares(q, squares, r.q + row0 * 128, lanes, lane);
    const float rate[2] = {rate_of(a, squares[0]), rate_of(a, squares[1])};
    const float factor[2] = {rate[0] * (a.scale * LOG2_E), rate[1] * (a.scale * LOG2_E)};
    strip_rates(q, factor);
    strip_put(q, r.q + row0 * 128, lanes);
    if ((lane & 3) == 0) {
#pragma unroll
        for (int half = 0; half < 2; half++) {
            const bool real = row + 8 * half < a.tokens;
            r.numbers->less[row + 8 * half] =
                less_of(real ? x.lse[half] * -LOG2_E : -1e30f, -delta[half]);
            r.numbers->q_rate[row + 8 * half] = rate[half];
        }
    }
    shared_is_written();
    barrier_arrive(r.ready + 8 * (2 + tile));
}

#endif

#endif
