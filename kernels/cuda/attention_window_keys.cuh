/* Backward of attention in windows of 193 to 256 tokens (attention_window_backward.cu): the two
 * warpgroups of the keys, 64 of them at a time.
 */
#ifndef TTV_KERNELS_CUDA_ATTENTION_WINDOW_KEYS_CUH
#define TTV_KERNELS_CUDA_ATTENTION_WINDOW_KEYS_CUH

#include "kernels/cuda/attention_window.cuh"

#if HAVE_SM90A

/* p = P', f = dS' over scale, packed, from P' and dP' - delta. */
static __device__ __forceinline__ void slopes(const float (&s)[32], const float (&d)[32],
                                              uint32_t (&p)[4][4], uint32_t (&f)[4][4]) {
#pragma unroll
    for (int i = 0; i < 32; i += 2) {
        p[i / 8][i / 2 % 4] = pack2(s[i], s[i + 1]);
        f[i / 8][i / 2 % 4] = pack2(s[i] * d[i], s[i + 1] * d[i + 1]);
    }
}

/* Rows of 8 channels, 16 bytes after one another, as an operand of 16: the upper eight are zeros.
 * pitch: from eight rows to the next. */
static __device__ __forceinline__ uint64_t operand_rows(const Room &r, Shared at, int pitch) {
    return (uint64_t)(at >> 4) | (uint64_t)((r.zeros - at) >> 4) << 16 |
           (uint64_t)(pitch >> 4) << 32;
}

/* Starts one of both: s = k q' - lse (NUMBER 0), or d = v dout' - delta (1). Further channels of k
 * and v have ones where those of q and dout have the three parts of the number. */
template <int NUMBER>
static __device__ __forceinline__ void product_start(float (&s)[32], const Room &r, Shared rows,
                                                     Shared columns, int tile) {
    const uint64_t a = operand_straight(rows), b = operand_straight(columns);
    wgmma_begin();
#pragma unroll
    for (int i = 0; i < 4; i++) wgmma_64<0>(s, a + 2 * i, b + 2 * i, i > 0);
    wgmma_64<0>(s, operand_rows(r, r.ones + 128 * NUMBER, 0),
                operand_rows(r, r.less + 1024 * tile, 128), 1);
    wgmma_commit();
}

/* Starts dv += P' dout and dk += dS' q. */
static __device__ __forceinline__ void sums_start(float (&dk)[32], float (&dv)[32], const Room &r,
                                                  const uint32_t (&p)[4][4],
                                                  const uint32_t (&f)[4][4], int tile) {
    const uint64_t g = operand_turned(r.g + tile * TILE_BYTES);
    const uint64_t q = operand_turned(r.q + tile * TILE_BYTES);
    wgmma_begin();
#pragma unroll
    for (int i = 0; i < 4; i++) wgmma_registers(dv, p[i], g + i * (2048 >> 4), tile > 0 || i > 0);
#pragma unroll
    for (int i = 0; i < 4; i++) wgmma_registers(dk, f[i], q + i * (2048 >> 4), tile > 0 || i > 0);
    wgmma_commit();
}

/* Has a warp's raw rows of k brought, once dk of the pass before has been read there. */
static __device__ __forceinline__ void raw_fetch(const AttentionArgs &a, const Room &r,
                                                 const WindowMaps &maps, const Item &item, int keys,
                                                 int group, int warp, int lane) {
    const Shared raw = r.raw + 8 * (4 * group + warp);
    if (lane == 0) {
        sends_read();
        barrier_expect(raw, 16 * 128);
        window_box(r.out + group * TILE_BYTES + 16 * warp * 128, &maps.strips,
                   (a.heads + item.head) * HEAD, keys + 16 * warp, item.window, raw);
    }
    __syncwarp();
}

/* The steps of four tiles of queries, for 64 keys; the scores of the next are begun before the sums
 * of one are waited for. */
static __device__ __forceinline__ void steps(const AttentionArgs &a, const Room &r,
                                             const WindowMaps &maps, const Item &item,
                                             float (&dk)[32], float (&dv)[32], int pass, int group,
                                             int phase, const Lanes &lanes, int warp, int lane) {
    const int keys = 128 * pass + 64 * group;
    float s[32], d[32];
    if (pass == 0) barrier_wait(r.ready + 8 * 2, phase);
    product_start<0>(s, r, r.k + keys * 128, r.q, 0);
#pragma unroll
    for (int tile = 0; tile < TILES; tile++) {
        const Shared entry = r.entries + tile * ENTRY_BYTES + group * TILE_BYTES;
        uint32_t p[4][4], f[4][4];
        product_start<1>(d, r, r.v + keys * 128, r.g + tile * TILE_BYTES, tile);
        wgmma_wait<1>();
#pragma unroll
        for (int i = 0; i < 32; i++) s[i] = exponential2(s[i]);
        barrier_wait(r.empty + 8 * tile, pass ^ 1); /* also: no power is moved over it, as over */
        wgmma_wait<0>();                            /* this, so that they run beside dP' */
        slopes(s, d, p, f);
        sums_start(dk, dv, r, p, f, tile);
        if (tile + 1 < TILES) {
            if (pass == 0) barrier_wait(r.ready + 8 * (3 + tile), phase);
            product_start<0>(s, r, r.k + keys * 128, r.q + (tile + 1) * TILE_BYTES, tile + 1);
        }
#pragma unroll
        for (int c = 0; c < 4; c++) /* dS with queries as rows */
            matrix_put_turned(entry, lanes, 16 * c, 2 * warp, f[c]);
        shared_is_written();
        if (tile == 0) raw_fetch(a, r, maps, item, keys, group, warp, lane);
        if (tile + 1 < TILES)
            wgmma_wait<1>();
        else
            wgmma_wait<0>();
        barrier_arrive(r.full + 8 * tile); /* also: the tile and what came before are read */
    }
}

/* The upper or lower half of x plus the same of the lane that differs in `bit`. */
template <int COUNT>
static __device__ __forceinline__ void half_add(float (&to)[COUNT / 2], const float (&x)[COUNT],
                                                int bit, int lane) {
#pragma unroll
    for (int i = 0; i < COUNT / 2; i++) {
        const bool upper = lane & bit;
        const float kept = upper ? x[COUNT / 2 + i] : x[i], sent = upper ? x[i] : x[COUNT / 2 + i];
        to[i] = kept + __shfl_xor_sync(0xffffffffu, sent, bit);
    }
}
/* Adds the sums over the warp's rows of the lanes' 16 channels (8 c + 2 (lane & 3), + 1): each lane
 * has those of one c. */
static __device__ __forceinline__ void rows_add(float (&sums)[2], const float (&x)[16], int lane) {
    float eight[8], four[4], two[2];
    half_add<16>(eight, x, 16, lane);
    half_add<8>(four, eight, 8, lane);
    half_add<4>(two, four, 4, lane);
    sums[0] += two[0];
    sums[1] += two[1];
}

/* dk and dv of the warpgroup's 64 keys to memory. Nobody reads its values any more: dv goes through
 * them. */
static __device__ __forceinline__ void keys_put(const AttentionArgs &a, const Room &r,
                                                const WindowMaps &maps, const Item &item,
                                                float (&dk)[32], const float (&dv)[32],
                                                float (&sums)[2], int pass, int group,
                                                const Lanes &lanes, int warp, int lane) {
    const int keys = 128 * pass + 64 * group, row0 = 16 * warp, row = keys + row0 + (lane >> 2);
    const int x = item.head * HEAD;
    const int width = a.heads * HEAD;
    const Shared values = r.v + (keys + row0) * 128;
    const Shared out = r.out + group * TILE_BYTES + row0 * 128;
    asm volatile("bar.sync %0, 128;" ::"r"(2 + group) : "memory");
    strip_round(dv, values, lanes);
    strip_send(&maps.to, x + 2 * width, keys + row0, item.window, values, lane);
    uint32_t n[4][4]; /* raw: [two chunks][chunk, row] */
    barrier_wait(r.raw + 8 * (4 * group + warp), pass);
    strip_get(n, out, lanes.below);
    float dot[2] = {0, 0}, products[16];
    const float rate[2] = {r.numbers->k_rate[row], r.numbers->k_rate[row + 8]};
#pragma unroll
    for (int j = 0; j < 8; j++) {
        const float2 w =
            *reinterpret_cast<const float2 *>(r.numbers->scaled_w + 8 * j + 2 * (lane & 3));
#pragma unroll
        for (int half = 0; half < 2; half++) {
            const float k0 = low_of(n[j / 2][j % 2 * 2 + half]),
                        k1 = high_of(n[j / 2][j % 2 * 2 + half]);
            float *x = &dk[4 * j + 2 * half];
            x[0] *= rate[half];
            x[1] *= rate[half];
            products[2 * j] = half ? fmaf(k0, x[0], products[2 * j]) : k0 * x[0];
            products[2 * j + 1] = half ? fmaf(k1, x[1], products[2 * j + 1]) : k1 * x[1];
            x[0] *= w.x;
            x[1] *= w.y;
            dot[half] = fmaf(k0, x[0], dot[half]);
            dot[half] = fmaf(k1, x[1], dot[half]);
        }
    }
    rows_add(sums, products, lane);
    const float share = a.q_w ? 1.0f / HEAD : 0.0f;
#pragma unroll
    for (int half = 0; half < 2; half++) {
        const float mean = quad_sum(dot[half]) * (rate[half] * rate[half] * share);
#pragma unroll
        for (int j = 0; j < 8; j++) {
            float *x = &dk[4 * j + 2 * half];
            x[0] = fmaf(-low_of(n[j / 2][j % 2 * 2 + half]), mean, x[0]);
            x[1] = fmaf(-high_of(n[j / 2][j % 2 * 2 + half]), mean, x[1]);
        }
    }
    strip_round(dk, out, lanes);
    strip_send(&maps.to, x + width, keys + row0, item.window, out, lane);
}

/* The sums over the block's keys, to weights[block]. */
static __device__ __forceinline__ void sums_put(const AttentionArgs &a, const Room &r,
                                                const float (&sums)[2], int warp, int lane) {
    if (!a.weights) return;
    const int c = (lane >> 4 & 1) * 4 + (lane >> 3 & 1) * 2 + (lane >> 2 & 1);
    r.numbers->sums[warp][8 * c + 2 * (lane & 3)] = sums[0];
    r.numbers->sums[warp][8 * c + 2 * (lane & 3) + 1] = sums[1];
    asm volatile("bar.sync 4, 256;" ::: "memory");
    const int channel = threadIdx.x - 128;
    if (channel >= HEAD) return;
    float all = 0;
    for (int i = 0; i < 8; i++) all += r.numbers->sums[i][channel];
    a.weights[(int64_t)blockIdx.x * HEAD + channel] = all * (LN_2 / a.scale);
}

static __device__ __forceinline__ void keys_take(const AttentionArgs &a, const Room &r,
                                                 const WindowMaps &maps, int items, int group) {
    const Lanes lanes = lanes_init();
    const int warp = threadIdx.x >> 5 & 3, lane = threadIdx.x & 31;
    int phase = 0;
    float sums[2] = {};
    for (int at = blockIdx.x; at < items; at += gridDim.x, phase ^= 1) {
        const Item item = item_of(a, at);
#pragma unroll 1
        for (int pass = 0; pass < 2; pass++) {
            float dk[32], dv[32];
            barrier_wait(r.ready + 8 * pass, phase);
            steps(a, r, maps, item, dk, dv, pass, group, phase, lanes, warp, lane);
            keys_put(a, r, maps, item, dk, dv, sums, pass, group, lanes, warp, lane);
        }
    }
    sums_put(a, r, sums, 4 * group + warp, lane);
    if (lane == 0) sends_done();
}

#endif

#endif
