/* GLU branch, forward, on tensor cores (glu_mma.cuh has the picture).
 *
 * Pass over K, V: G; then W'; pass over Q: the output. Tiles of 64 tokens, the next one in flight.
 */
#include "kernels/cuda/glu_mma.cuh"

#define STAGES 2

/* Adds the 16 tokens at `row` of the stage's tiles to G1', G2'. */
template <int D>
static __device__ __forceinline__ void
glu_write_step(float (&g1)[D / 8][4], float (&g2)[D / 8][4], const uint32_t (&w1)[D / 16][4],
               const uint32_t (&w2)[D / 16][4], Shared k_tile, Shared v_tile, int row,
               const GluPlace<D> &p) {
    float z1[2][4] = {}, z2[2][4] = {};
#pragma unroll
    for (int k = 0; k < D / 16; k++) {
        uint32_t b[4];
        matrix_get(b, region(k_tile, p.all.beside, row, 2 * k));
#pragma unroll
        for (int n = 0; n < 2; n++) {
            mma(z1[n], w1[k], b[2 * n], b[2 * n + 1]);
            mma(z2[n], w2[k], b[2 * n], b[2 * n + 1]);
        }
    }
    uint32_t v[4];
    matrix_get_turned(v, region(v_tile, p.own.beside, row, 0));
#pragma unroll
    for (int n = 0; n < 2; n++)
#pragma unroll
        for (int e = 0; e < 4; e++) {
            const uint32_t pair = v[2 * n + (e >> 1)];
            const float vv = e & 1 ? high_of(pair) : low_of(pair), z = z2[n][e];
            float s, d;
            silu_slope(z, &s, &d);
            z2[n][e] = vv * z1[n][e] * d; /* V Z1 D */
            z1[n][e] = vv * s;            /* V A */
        }
    uint32_t a1[4], a2[4];
    pack_pair(a1, z1[0], z1[1]);
    pack_pair(a2, z2[0], z2[1]);
    glu_token_sums<D>(g1, g2, a1, a2, k_tile, row, p);
}

/* The output of the 16 tokens at `row`, into out_tile. */
template <int D>
static __device__ __forceinline__ void
glu_read_step(Shared out_tile, const uint32_t (&h1)[D / 16][4], const uint32_t (&r1)[D / 16][4],
              const uint32_t (&h2)[D / 16][4], const uint32_t (&r2)[D / 16][4], Shared q_tile,
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
#pragma unroll
    for (int n = 0; n < 2; n++)
#pragma unroll
        for (int e = 0; e < 4; e++) y1[n][e] *= y2[n][e] * logistic(y2[n][e]);
    uint32_t f[4];
    pack_pair(f, y1[0], y1[1]);
    matrix_put_turned(out_tile, p.own, row, 0, f);
}

/* G' times -c to memory as g[i][j], when the backward wants it. */
template <int D>
static __device__ __forceinline__ void glu_finish_sums(float (&g)[D / 8][4], float c, float *out,
                                                       const GluPlace<D> &p) {
#pragma unroll
    for (int n = 0; n < D / 8; n++)
#pragma unroll
        for (int e = 0; e < 4; e++) {
            g[n][e] *= -c;
            if (out) out[glu_element<D>(p, n, e)] = g[n][e];
        }
}

template <int D>
__global__ void __launch_bounds__(GLU_THREADS, 3)
    glu_mma_kernel(bf16 *cat, const bf16 *qkv, GluArgs a) {
    extern __shared__ __align__(128) char memory[];
    const Shared tiles = shared_address(memory); /* stage: [K or Q][V or output] */
    const int groups = (a.heads * D + GROUP - 1) / GROUP;
    const int group = blockIdx.x % groups;
    const int64_t b = blockIdx.x / groups;
    const GluPlace<D> p = glu_place<D>(a, group);
    const int wide = a.heads * D, left = (wide - group * GROUP) / 8, chunks = left < 8 ? left : 8;
    const bf16 *q_in = qkv + b * a.tokens * a.pitch + group * GROUP;
    const int steps = (a.tokens + TILE_ROWS - 1) / TILE_ROWS;
    char *weights = memory + 2 * TILE_BYTES; /* stage 1, before it takes tokens */

    GluFetch q_from = glu_fetch_init(q_in, a.pitch, a.tokens, chunks);
    GluFetch k_from = glu_fetch_init(q_in + wide, a.pitch, a.tokens, chunks);
    GluFetch v_from = glu_fetch_init(q_in + 2 * wide, a.pitch, a.tokens, chunks);
    glu_fetch(tiles, k_from);
    glu_fetch(tiles + TILE_BYTES, v_from);
    copies_commit();
    glu_weight_tile<D>(weights, a.w1, group, a.heads);
    glu_weight_tile<D>(weights + TILE_BYTES, a.w2, group, a.heads);
    __syncthreads();
    float g1[D / 8][4] = {}, g2[D / 8][4] = {};
    uint32_t f1[D / 16][4], f2[D / 16][4];
    glu_weight_rows<D>(f1, tiles + 2 * TILE_BYTES, p);
    glu_weight_rows<D>(f2, tiles + 3 * TILE_BYTES, p);
    for (int s = 0; s < steps; s++) {
        const Shared now = tiles + (s & 1) * 2 * TILE_BYTES,
                     next = tiles + (~s & 1) * 2 * TILE_BYTES;
        copies_wait<0>();
        __syncthreads();
        if (s + 1 < steps) {
            glu_fetch(next, k_from);
            glu_fetch(next + TILE_BYTES, v_from);
        } else {
            glu_fetch(next, q_from);
        }
        copies_commit();
        const int rows = min(TILE_ROWS, a.tokens - s * TILE_ROWS);
        for (int row = 0; row < rows; row += 16)
            glu_write_step<D>(g1, g2, f1, f2, now, now + TILE_BYTES, row, p);
    }
    const int64_t dd = (int64_t)D * D;
    float *g_out = a.g && p.real ? a.g + (b * a.heads + p.head) * 2 * dd : NULL;
    glu_finish_sums<D>(g1, a.c, g_out, p);
    glu_finish_sums<D>(g2, a.c, g_out ? g_out + dd : NULL, p);
    uint32_t r1[D / 16][4], r2[D / 16][4];
    float norm[2];
    glu_inner_step<D>(f1, r1, norm, g1, a.w1 + p.head * dd, p);
    glu_inner_step<D>(f2, r2, norm, g2, a.w2 + p.head * dd, p);
    bf16 *out = cat + b * a.tokens * a.cat_pitch + group * GROUP;
    for (int s = steps; s < 2 * steps; s++) {
        const Shared now = tiles + (s & 1) * 2 * TILE_BYTES,
                     next = tiles + (~s & 1) * 2 * TILE_BYTES;
        const int first = (s - steps) * TILE_ROWS;
        copies_wait<0>();
        __syncthreads();
        if (s + 1 < 2 * steps) glu_fetch(next, q_from);
        copies_commit();
        const int rows = min(TILE_ROWS, a.tokens - first);
        for (int row = 0; row < rows; row += 16)
            glu_read_step<D>(now + TILE_BYTES, f1, r1, f2, r2, now, row, p);
        if (p.real)
            glu_flush(out + first * a.cat_pitch, a.cat_pitch, now + TILE_BYTES, p.row,
                      a.tokens - first);
    }
}

/* ---- host ----------------------------------------------------------------------------------- */

bool glu_mma_fits(Device *d, VitttShape s, DType act, const void *p, const void *q) {
    return act == DTYPE_BF16 && (s.head_dim == 32 || s.head_dim == 64) &&
           backend_of(d)->compute >= 80 && is_aligned(p, 16) && is_aligned(q, 16);
}

template <int D> static Status glu_mma_launch(Device *d, GluArgs a, Tensor cat, Tensor qkv) {
    const int shared = STAGES * 2 * TILE_BYTES;
    const int64_t blocks = a.batch * ceil_div((int64_t)a.heads * D, GROUP);
    CUDA_TRY(cudaFuncSetAttribute(glu_mma_kernel<D>, cudaFuncAttributeMaxDynamicSharedMemorySize,
                                  shared),
             "vittt_glu");
    glu_mma_kernel<D><<<(unsigned)blocks, GLU_THREADS, shared, stream_of(d)>>>(
        (bf16 *)cat.data, (const bf16 *)qkv.data, a);
    return launched("vittt_glu");
}

Status glu_mma_forward(Device *d, GluArgs a, Tensor cat, Tensor qkv) {
    if (backend_of(d)->sm90a && a.head_dim == 64) return glu_wgmma_forward(d, a, cat, qkv);
    return a.head_dim == 64 ? glu_mma_launch<64>(d, a, cat, qkv)
                            : glu_mma_launch<32>(d, a, cat, qkv);
}
