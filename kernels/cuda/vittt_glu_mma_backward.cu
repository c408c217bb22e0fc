/* GLU branch, backward, on tensor cores (vittt.md 3.1; glu_mma.cuh has the picture).
 *
 * Pass over Q, dO: dY, dW' (sums over tokens) and dQ; then dG; pass over K, V: dZ, dV, K' dZ and
 * dK. dQ and dK contract over j, which is spread over the warps: the (j, token) operands go through
 * exchange tiles in shared memory, and each warp makes 16 rows i of the result from rows i of the
 * weights. A block walks through the samples part, part + parts, ... of its heads and adds their dw
 * up.
 */
#include "kernels/cuda/glu_mma.cuh"

/* Shared memory in tiles: two stages of two token tiles, four weight tiles, four exchange tiles. */
#define WEIGHTS      4
#define EXCHANGE     8
#define SHARED_TILES 12
#define HALF         32 /* tokens of a dQ or dK step */

static __device__ __forceinline__ Shared tile_of(Shared tiles, int index) {
    return tiles + index * TILE_BYTES;
}

/* sum[n] += rows i of the weights (tile[i][j]) times an exchange tile[j][token], 32 tokens from
 * `token`. */
template <int D>
static __device__ __forceinline__ void glu_mix(float (&sum)[HALF / 8][4], Shared weights,
                                               Shared exchange, int token, const GluPlace<D> &p) {
#pragma unroll
    for (int k = 0; k < D / 16; k++) {
        uint32_t a[4];
        matrix_get(a, region(weights, p.all.below, p.row, 2 * k));
#pragma unroll
        for (int n = 0; n < HALF / 16; n++) {
            uint32_t b[4];
            matrix_get_turned(b,
                              region(exchange, p.lane.below, p.base + 16 * k, token / 8 + 2 * n));
            mma(sum[2 * n], a, b[0], b[1]);
            mma(sum[2 * n + 1], a, b[2], b[3]);
        }
    }
}

/* Two weight tiles for one exchange tile (W' = high + rest). */
template <int D>
static __device__ __forceinline__ void glu_mix_two(float (&sum)[HALF / 8][4], Shared high,
                                                   Shared rest, Shared exchange, int token,
                                                   const GluPlace<D> &p) {
#pragma unroll
    for (int k = 0; k < D / 16; k++) {
        uint32_t a[4], r[4];
        matrix_get(a, region(high, p.all.below, p.row, 2 * k));
        matrix_get(r, region(rest, p.all.below, p.row, 2 * k));
#pragma unroll
        for (int n = 0; n < HALF / 16; n++) {
            uint32_t b[4];
            matrix_get_turned(b,
                              region(exchange, p.lane.below, p.base + 16 * k, token / 8 + 2 * n));
            mma(sum[2 * n], a, b[0], b[1]);
            mma(sum[2 * n + 1], a, b[2], b[3]);
            mma(sum[2 * n], r, b[0], b[1]);
            mma(sum[2 * n + 1], r, b[2], b[3]);
        }
    }
}

/* (i, token) sums, scaled, turned into tile[token][i]. */
static __device__ __forceinline__ void glu_put_half(Shared tile, const Lanes &own, int token,
                                                    float (&sum)[HALF / 8][4], float scale) {
#pragma unroll
    for (int n = 0; n < HALF / 16; n++) {
        uint32_t f[4];
#pragma unroll
        for (int e = 0; e < 4; e++) {
            sum[2 * n][e] *= scale;
            sum[2 * n + 1][e] *= scale;
        }
        pack_pair(f, sum[2 * n], sum[2 * n + 1]);
        matrix_put_turned(tile, own, token + 16 * n, 0, f);
    }
}

/* ---- pass over Q, dO ------------------------------------------------------------------------ */

/* dY of 16 tokens into the exchange tiles, and into dW'. */
template <int D>
static __device__ __forceinline__ void
read_back_step(float (&s1)[D / 8][4], float (&s2)[D / 8][4], const uint32_t (&h1)[D / 16][4],
               const uint32_t (&r1)[D / 16][4], const uint32_t (&h2)[D / 16][4],
               const uint32_t (&r2)[D / 16][4], Shared q_tile, Shared o_tile, Shared exchange,
               int row, const GluPlace<D> &p) {
    float y1[2][4] = {}, y2[2][4] = {};
#pragma unroll
    for (int k = 0; k < D / 16; k++) {
        uint32_t b[4];
        matrix_get(b, region(q_tile, p.all.beside, row, 2 * k));
#pragma unroll
        for (int n = 0; n < 2; n++) {
            mma(y1[n], h1[k], b[2 * n], b[2 * n + 1]);
            mma(y2[n], h2[k], b[2 * n], b[2 * n + 1]);
            mma(y1[n], r1[k], b[2 * n], b[2 * n + 1]);
            mma(y2[n], r2[k], b[2 * n], b[2 * n + 1]);
        }
    }
    uint32_t o[4];
    matrix_get_turned(o, region(o_tile, p.own.beside, row, 0));
#pragma unroll
    for (int n = 0; n < 2; n++)
#pragma unroll
        for (int e = 0; e < 4; e++) {
            const uint32_t pair = o[2 * n + (e >> 1)];
            const float out = e & 1 ? high_of(pair) : low_of(pair), y = y2[n][e];
            float s, d;
            silu_slope(y, &s, &d);
            y2[n][e] = out * y1[n][e] * d; /* dY2 */
            y1[n][e] = out * s;            /* dY1 */
        }
    uint32_t a1[4], a2[4];
    pack_pair(a1, y1[0], y1[1]);
    pack_pair(a2, y2[0], y2[1]);
    matrix_put(tile_of(exchange, 0), p.lane, p.row, row / 8, a1);
    matrix_put(tile_of(exchange, 1), p.lane, p.row, row / 8, a2);
    glu_token_sums<D>(s1, s2, a1, a2, q_tile, row, p);
}

template <int D>
static __device__ __forceinline__ void read_back_mix(Shared tiles, Shared out_tile, int rows,
                                                     const GluPlace<D> &p) {
    const Shared weights = tile_of(tiles, WEIGHTS), exchange = tile_of(tiles, EXCHANGE);
    for (int token = 0; token < rows; token += HALF) {
        float sum[HALF / 8][4] = {};
        glu_mix_two<D>(sum, weights, tile_of(weights, 1), exchange, token, p);
        glu_mix_two<D>(sum, tile_of(weights, 2), tile_of(weights, 3), tile_of(exchange, 1), token,
                       p);
        glu_put_half(out_tile, p.own, token, sum, 1.0f);
    }
}

/* ---- between the passes --------------------------------------------------------------------- */

/* G' of the warp's rows. */
template <int D>
static __device__ __forceinline__ void glu_load_sums(float (&g)[D / 8][4], const float *in,
                                                     const GluPlace<D> &p) {
#pragma unroll
    for (int n = 0; n < D / 8; n++)
#pragma unroll
        for (int e = 0; e < 4; e++) g[n][e] = p.real ? in[glu_element<D>(p, n, e)] : 0.0f;
}

/* A operands (j, i) into tile[i][j]. */
template <int D>
static __device__ __forceinline__ void glu_put_weights(Shared tile, const uint32_t (&f)[D / 16][4],
                                                       const GluPlace<D> &p) {
#pragma unroll
    for (int k = 0; k < D / 16; k++) matrix_put_turned(tile, p.own, p.base + 16 * k, 0, f[k]);
}

/* dW' in s -> dG as A operands, also into tile[i][j]; s is left as dW' / -c, so that K' dZ (which
 * lacks the factor -c) can be added to it. */
template <int D>
static __device__ __forceinline__ void
glu_inner_backward(uint32_t (&f)[D / 16][4], Shared tile, float (&s)[D / 8][4],
                   const float (&norm)[2], const float *g_in, float c, const GluPlace<D> &p) {
    float g[D / 8][4], t[2] = {};
    glu_load_sums<D>(g, g_in, p);
#pragma unroll
    for (int n = 0; n < D / 8; n++)
#pragma unroll
        for (int e = 0; e < 4; e++) t[e >> 1] -= g[n][e] * s[n][e];
    float r[2], back[2];
#pragma unroll
    for (int half = 0; half < 2; half++) {
        r[half] = 1.0f / (norm[half] + 1.0f);
        t[half] = quad_sum(t[half]);
        back[half] = norm[half] > 0 ? r[half] * r[half] * t[half] / norm[half] : 0.0f;
    }
    const float scale = -1.0f / c;
#pragma unroll
    for (int k = 0; k < D / 16; k++) {
        float u[2][4];
#pragma unroll
        for (int n = 0; n < 2; n++)
#pragma unroll
            for (int e = 0; e < 4; e++) {
                u[n][e] = -r[e >> 1] * s[2 * k + n][e] - back[e >> 1] * g[2 * k + n][e];
                s[2 * k + n][e] *= scale;
            }
        pack_pair(f[k], u[0], u[1]);
    }
    glu_put_weights<D>(tile, f, p);
}

/* ---- pass over K, V ------------------------------------------------------------------------- */

/* 16 tokens: P1, P2, dZ1, dZ2 into the exchange tiles, dZ into dw, dV into the place of V. */
template <int D>
static __device__ __forceinline__ void
write_back_step(float (&s1)[D / 8][4], float (&s2)[D / 8][4], const uint32_t (&w1)[D / 16][4],
                const uint32_t (&w2)[D / 16][4], const uint32_t (&g1)[D / 16][4],
                const uint32_t (&g2)[D / 16][4], Shared k_tile, Shared v_tile, Shared exchange,
                int row, float c, const GluPlace<D> &p) {
    float z1[2][4] = {}, z2[2][4] = {}, p1[2][4] = {}, p2[2][4] = {};
#pragma unroll
    for (int k = 0; k < D / 16; k++) {
        uint32_t b[4];
        matrix_get(b, region(k_tile, p.all.beside, row, 2 * k));
#pragma unroll
        for (int n = 0; n < 2; n++) {
            mma(z1[n], w1[k], b[2 * n], b[2 * n + 1]);
            mma(z2[n], w2[k], b[2 * n], b[2 * n + 1]);
            mma(p1[n], g1[k], b[2 * n], b[2 * n + 1]);
            mma(p2[n], g2[k], b[2 * n], b[2 * n + 1]);
        }
    }
    uint32_t v[4], f[4];
    float dv[2][4];
    matrix_get_turned(v, region(v_tile, p.own.beside, row, 0));
#pragma unroll
    for (int n = 0; n < 2; n++)
#pragma unroll
        for (int e = 0; e < 4; e++) {
            const uint32_t pair = v[2 * n + (e >> 1)];
            dv[n][e] = -c * write_back_element(e & 1 ? high_of(pair) : low_of(pair), &z1[n][e],
                                               &z2[n][e], &p1[n][e], &p2[n][e]);
        }
    pack_pair(f, dv[0], dv[1]);
    matrix_put_turned(v_tile, p.own, row, 0, f);
    pack_pair(f, p1[0], p1[1]);
    matrix_put(tile_of(exchange, 0), p.lane, p.row, row / 8, f);
    pack_pair(f, p2[0], p2[1]);
    matrix_put(tile_of(exchange, 1), p.lane, p.row, row / 8, f);
    uint32_t a1[4], a2[4];
    pack_pair(a1, z1[0], z1[1]);
    pack_pair(a2, z2[0], z2[1]);
    matrix_put(tile_of(exchange, 2), p.lane, p.row, row / 8, a1);
    matrix_put(tile_of(exchange, 3), p.lane, p.row, row / 8, a2);
    glu_token_sums<D>(s1, s2, a1, a2, k_tile, row, p);
}

/* dK = -c (P1 dG1' + P2 dG2' + dZ1 W1' + dZ2 W2'). */
template <int D>
static __device__ __forceinline__ void write_back_mix(Shared tiles, Shared out_tile, int rows,
                                                      float c, const GluPlace<D> &p) {
    for (int token = 0; token < rows; token += HALF) {
        float sum[HALF / 8][4] = {};
#pragma unroll
        for (int i = 0; i < 4; i++)
            glu_mix<D>(sum, tile_of(tiles, WEIGHTS + i), tile_of(tiles, EXCHANGE + i), token, p);
        glu_put_half(out_tile, p.own, token, sum, -c);
    }
}

/* s times -c, set or added. */
template <int D>
static __device__ __forceinline__ void glu_put_sums(float *out, const float (&s)[D / 8][4], float c,
                                                    bool add, const GluPlace<D> &p) {
#pragma unroll
    for (int n = 0; n < D / 8; n++)
#pragma unroll
        for (int e = 0; e < 4; e++) {
            float *at = out + glu_element<D>(p, n, e);
            const float value = -c * s[n][e];
            *at = add ? *at + value : value;
        }
}

/* Streams the tokens of two matrices through the stages: step(stage tiles, first token, rows). */
template <typename F>
static __device__ __forceinline__ void glu_stream(Shared tiles, const bf16 *in0, int64_t pitch0,
                                                  const bf16 *in1, int64_t pitch1, int tokens,
                                                  int chunks, F step) {
    const int steps = (tokens + TILE_ROWS - 1) / TILE_ROWS;
    GluFetch from0 = glu_fetch_init(in0, pitch0, tokens, chunks);
    GluFetch from1 = glu_fetch_init(in1, pitch1, tokens, chunks);
    glu_fetch(tiles, from0);
    glu_fetch(tile_of(tiles, 1), from1);
    copies_commit();
    for (int s = 0; s < steps; s++) {
        const Shared now = tile_of(tiles, (s & 1) * 2), next = tile_of(tiles, (~s & 1) * 2);
        const int first = s * TILE_ROWS;
        copies_wait<0>();
        __syncthreads();
        if (s + 1 < steps) {
            glu_fetch(next, from0);
            glu_fetch(tile_of(next, 1), from1);
        }
        copies_commit();
        step(now, first, min(TILE_ROWS, tokens - first));
    }
    __syncthreads();
}

template <int D>
static __device__ __forceinline__ void
glu_sample_backward(Shared tiles, char *memory, bf16 *dq, const bf16 *q_in, const bf16 *do_in,
                    const float *g_in, float *dw_out, bool dw_add, const GluArgs &a, int group,
                    int chunks, const GluPlace<D> &p) {
    const int64_t dd = (int64_t)D * D, wide = (int64_t)a.heads * D;
    const Shared weights = tile_of(tiles, WEIGHTS), exchange = tile_of(tiles, EXCHANGE);
    float s1[D / 8][4], s2[D / 8][4], norm1[2], norm2[2];
    uint32_t f1[D / 16][4], f2[D / 16][4];
    {
        uint32_t r1[D / 16][4], r2[D / 16][4];
        glu_load_sums<D>(s1, g_in, p);
        glu_inner_step<D>(f1, r1, norm1, s1, a.w1 + p.head * dd, p);
        glu_load_sums<D>(s2, g_in + dd, p);
        glu_inner_step<D>(f2, r2, norm2, s2, a.w2 + p.head * dd, p);
        glu_put_weights<D>(weights, f1, p);
        glu_put_weights<D>(tile_of(weights, 1), r1, p);
        glu_put_weights<D>(tile_of(weights, 2), f2, p);
        glu_put_weights<D>(tile_of(weights, 3), r2, p);
#pragma unroll
        for (int n = 0; n < D / 8; n++)
#pragma unroll
            for (int e = 0; e < 4; e++) s1[n][e] = s2[n][e] = 0;
        glu_stream(tiles, q_in, a.pitch, do_in, a.cat_pitch, a.tokens, chunks,
                   [&](Shared now, int first, int rows) {
                       for (int row = 0; row < rows; row += 16)
                           read_back_step<D>(s1, s2, f1, r1, f2, r2, now, tile_of(now, 1), exchange,
                                             row, p);
                       __syncthreads();
                       read_back_mix<D>(tiles, tile_of(now, 1), rows, p);
                       if (p.real)
                           glu_flush(dq + first * a.pitch, a.pitch, tile_of(now, 1), p.row,
                                     a.tokens - first);
                   });
    }
    uint32_t g1[D / 16][4], g2[D / 16][4];
    glu_inner_backward<D>(g1, weights, s1, norm1, g_in, a.c, p);
    glu_inner_backward<D>(g2, tile_of(weights, 1), s2, norm2, g_in + dd, a.c, p);
    glu_weight_tile<D>(memory + (WEIGHTS + 2) * TILE_BYTES, a.w1, group, a.heads);
    glu_weight_tile<D>(memory + (WEIGHTS + 3) * TILE_BYTES, a.w2, group, a.heads);
    __syncthreads();
    glu_weight_rows<D>(f1, tile_of(weights, 2), p);
    glu_weight_rows<D>(f2, tile_of(weights, 3), p);
    glu_stream(tiles, q_in + wide, a.pitch, q_in + 2 * wide, a.pitch, a.tokens, chunks,
               [&](Shared now, int first, int rows) {
                   for (int row = 0; row < rows; row += 16)
                       write_back_step<D>(s1, s2, f1, f2, g1, g2, now, tile_of(now, 1), exchange,
                                          row, a.c, p);
                   __syncthreads();
                   write_back_mix<D>(tiles, now, rows, a.c, p);
                   if (p.real) {
                       glu_flush(dq + wide + first * a.pitch, a.pitch, now, p.row,
                                 a.tokens - first);
                       glu_flush(dq + 2 * wide + first * a.pitch, a.pitch, tile_of(now, 1), p.row,
                                 a.tokens - first);
                   }
               });
    if (!dw_out || !p.real) return;
    glu_put_sums<D>(dw_out, s1, a.c, dw_add, p);
    glu_put_sums<D>(dw_out + a.heads * dd, s2, a.c, dw_add, p);
}

template <int D>
__global__ void __launch_bounds__(GLU_THREADS, 2)
    glu_mma_backward_kernel(bf16 *dqkv, const bf16 *dcat, const bf16 *qkv, GluArgs a) {
    extern __shared__ __align__(128) char memory[];
    const int groups = (a.heads * D + GROUP - 1) / GROUP;
    const int group = blockIdx.x % groups, part = blockIdx.x / groups;
    const GluPlace<D> p = glu_place<D>(a, group);
    const int left = (a.heads * D - group * GROUP) / 8, chunks = left < 8 ? left : 8;
    const int64_t dd = (int64_t)D * D;
    float *dw = a.dw_partial ? a.dw_partial + ((int64_t)part * 2 * a.heads + p.head) * dd : NULL;
    for (int64_t b = part; b < a.batch; b += a.parts) {
        const int64_t in = b * a.tokens * a.pitch + group * GROUP;
        glu_sample_backward<D>(shared_address(memory), memory, dqkv + in, qkv + in,
                               dcat + b * a.tokens * a.cat_pitch + group * GROUP,
                               a.g + (b * a.heads + p.head) * 2 * dd, dw, b > part, a, group,
                               chunks, p);
    }
}

/* ---- host ----------------------------------------------------------------------------------- */

/* Two blocks per multiprocessor, shared out over the groups of heads. */
int glu_mma_parts(Device *d, GluArgs a) {
    const int64_t groups = ceil_div((int64_t)a.heads * a.head_dim, GROUP);
    const int64_t parts = 2 * backend_of(d)->sm_count / groups;
    const int64_t least = parts > 1 ? parts : 1;
    return (int)(least < a.batch ? least : a.batch);
}

template <int D>
static Status glu_mma_backward_launch(Device *d, GluArgs a, Tensor dqkv, Tensor dcat, Tensor qkv) {
    const int shared = SHARED_TILES * TILE_BYTES;
    const int64_t blocks = a.parts * ceil_div((int64_t)a.heads * D, GROUP);
    CUDA_TRY(cudaFuncSetAttribute(glu_mma_backward_kernel<D>,
                                  cudaFuncAttributeMaxDynamicSharedMemorySize, shared),
             "vittt_glu_backward");
    glu_mma_backward_kernel<D><<<(unsigned)blocks, GLU_THREADS, shared, stream_of(d)>>>(
        (bf16 *)dqkv.data, (const bf16 *)dcat.data, (const bf16 *)qkv.data, a);
    return launched("vittt_glu_backward");
}

Status glu_mma_backward(Device *d, GluArgs a, Tensor dqkv, Tensor dcat, Tensor qkv) {
    if (backend_of(d)->sm90a) return glu_wgmma_backward(d, a, dqkv, dcat, qkv);
    return a.head_dim == 64 ? glu_mma_backward_launch<64>(d, a, dqkv, dcat, qkv)
                            : glu_mma_backward_launch<32>(d, a, dqkv, dcat, qkv);
}
