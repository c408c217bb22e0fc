/* A block of 64 x 64 of slot token_basis: its Cholesky factor and the inverse of that, by four
 * warps from shared memory.
 *
 * Two warps have a row of a panel of 16 columns a thread and take four columns at a time. What the
 * next four columns need is worked out by every thread for itself, so that one barrier a step is
 * enough; the others get the step's product a step later, while the next pivots' roots are awaited.
 * All four warps then subtract the panel's product from what is right of it, by tensor cores, and
 * the other two make rows of the inverse while the next panel is factored.
 *
 * No pivot of S + shift diag(S) is below the shift, twice its least value. One that is shows that
 * what is left of its row is rounding: it is held at the least value, and the column below it is 0.
 * Multiples of such a row would grow without bound.
 */
#ifndef TTV_KERNELS_CUDA_TOKEN_BASIS_BLOCK_CUH
#define TTV_KERNELS_CUDA_TOKEN_BASIS_BLOCK_CUH

#include "kernels/cuda/gemm_ring.cuh"
#include "kernels/cuda/token_basis_parts.cuh"

#define SIDE    64
#define PITCH   68 /* of a block's rows in shared memory, in floats */
#define WORKERS 128
#define PANELS  (SIDE / 16)
#define KEPT    1.96f /* times the least pivot: just below the shift */

/* c has -C and becomes the factor; y its inverse; both with zeros above the diagonal. */
typedef struct BlockSpace {
    float c[SIDE * PITCH], y[SIDE * PITCH];
    float u[2][SIDE * 4]; /* the next four columns, by turns */
    float rate[SIDE];     /* one over the factor's diagonal */
    float kept[SIDE];     /* 0 where the column below was dropped, else 1 */
} BlockSpace;

#if HAVE_SM90A

/* The factor of four columns' own rows: below its diagonal, on it, one over that, and the same or 0
 * where the pivot was held. */
typedef struct Corner {
    float l10, l20, l21, l30, l31, l32;
    float own[4], over[4], rate[4];
} Corner;

static __device__ __forceinline__ void pivot(Corner &k, int i, float p, float least) {
    const bool kept = p >= KEPT * least;
    p = fmaxf(p, least);
    asm("rsqrt.approx.ftz.f32 %0, %1;" : "=f"(k.over[i]) : "f"(p));
    k.own[i] = p * k.over[i];
    k.rate[i] = kept ? k.over[i] : 0.0f;
}

static __device__ __forceinline__ Corner corner(const float4 *p, float least) {
    Corner k;
    const float4 a = p[0], b = p[1], c = p[2], d = p[3];
    pivot(k, 0, a.x, least);
    k.l10 = b.x * k.rate[0], k.l20 = c.x * k.rate[0], k.l30 = d.x * k.rate[0];
    pivot(k, 1, fmaf(-k.l10, k.l10, b.y), least);
    k.l21 = fmaf(-k.l20, k.l10, c.y) * k.rate[1];
    k.l31 = fmaf(-k.l30, k.l10, d.y) * k.rate[1];
    pivot(k, 2, fmaf(-k.l21, k.l21, fmaf(-k.l20, k.l20, c.z)), least);
    k.l32 = fmaf(-k.l31, k.l21, fmaf(-k.l30, k.l20, d.z)) * k.rate[2];
    pivot(k, 3, fmaf(-k.l32, k.l32, fmaf(-k.l31, k.l31, fmaf(-k.l30, k.l30, d.w))), least);
    return k;
}

static __device__ __forceinline__ float4 quad(const float *p) {
    return *reinterpret_cast<const float4 *>(p);
}

/* L^-1 v: a row of the factor in the four columns. */
static __device__ __forceinline__ float4 solve(const Corner &k, float4 v) {
    v.x *= k.rate[0];
    v.y = fmaf(-k.l10, v.x, v.y) * k.rate[1];
    v.z = fmaf(-k.l21, v.y, fmaf(-k.l20, v.x, v.z)) * k.rate[2];
    v.w = fmaf(-k.l32, v.z, fmaf(-k.l31, v.y, fmaf(-k.l30, v.x, v.w))) * k.rate[3];
    return v;
}

/* v - a b */
static __device__ __forceinline__ float less(float v, float4 a, float4 b) {
    return fmaf(-a.w, b.w, fmaf(-a.z, b.z, fmaf(-a.y, b.y, fmaf(-a.x, b.x, v))));
}

/* Row i as it stands in the factor: in the pivots' own rows, of which it is number `at`, the
 * diagonal as it was held, and zeros beyond it. */
static __device__ __forceinline__ float4 settled(const Corner &k, float4 r, int at) {
    if (at > 3) return r;
    r.x = at < 0 ? 0.0f : at == 0 ? k.own[0] : r.x;
    r.y = at < 1 ? 0.0f : at == 1 ? k.own[1] : r.y;
    r.z = at < 2 ? 0.0f : at == 2 ? k.own[2] : r.z;
    r.w = at < 3 ? 0.0f : k.own[3];
    return r;
}

static __device__ __forceinline__ float pick(const float (&v)[4], int i) {
    return i == 0 ? v[0] : i == 1 ? v[1] : i == 2 ? v[2] : v[3];
}

/* Row i of C to that of the factor in the panel's columns; 64 threads, barrier 1. */
static __device__ __forceinline__ void panel_factor(BlockSpace *b, int i, int panel, float least) {
    float *own = b->c + i * PITCH + 16 * panel;
    float4 v[4], r = make_float4(0.0f, 0.0f, 0.0f, 0.0f);
#pragma unroll
    for (int g = 0; g < 4; g++) {
        const float4 o = quad(own + 4 * g);
        v[g] = make_float4(-o.x, -o.y, -o.z, -o.w);
    }
    *reinterpret_cast<float4 *>(b->u[0] + 4 * i) = v[0];
#pragma unroll
    for (int s = 0; s < 4; s++) {
        const int step = 4 * panel + s;
        meet(1, SIDE);
        const float *u = b->u[s & 1];
        const Corner k = corner((const float4 *)u + 4 * step, least);
#pragma unroll
        for (int g = s + 1; s > 0 && g < 4; g++) {
            const float *o = b->c + (16 * panel + 4 * g) * PITCH + 4 * (step - 1);
            v[g].x = less(v[g].x, r, quad(o)), v[g].y = less(v[g].y, r, quad(o + PITCH));
            v[g].z = less(v[g].z, r, quad(o + 2 * PITCH));
            v[g].w = less(v[g].w, r, quad(o + 3 * PITCH));
        }
        r = solve(k, v[s]);
        if (s < 3) {
            const float *next = u + 16 * (step + 1);
            float4 &o = v[s < 3 ? s + 1 : 3];
            o.x = less(o.x, r, solve(k, quad(next)));
            o.y = less(o.y, r, solve(k, quad(next + 4)));
            o.z = less(o.z, r, solve(k, quad(next + 8)));
            o.w = less(o.w, r, solve(k, quad(next + 12)));
            *reinterpret_cast<float4 *>(b->u[(s + 1) & 1] + 4 * i) = o;
        }
        *reinterpret_cast<float4 *>(own + 4 * s) = settled(k, r, i - 4 * step);
        if (i < 4) {
            b->rate[4 * step + i] = pick(k.over, i);
            b->kept[4 * step + i] = pick(k.rate, i) > 0.0f ? 1.0f : 0.0f;
        }
    }
}

/* 16 x 16 numbers at p as an operand; and turned. */
static __device__ __forceinline__ void tile_straight(uint4 &high, uint4 &low, const float *p) {
    const int lane = threadIdx.x & 31;
    p += lane / 4 * PITCH + 2 * (lane & 3);
    parts_of(high.x, low.x, p[0], p[1]);
    parts_of(high.y, low.y, p[8 * PITCH], p[8 * PITCH + 1]);
    parts_of(high.z, low.z, p[8], p[9]);
    parts_of(high.w, low.w, p[8 * PITCH + 8], p[8 * PITCH + 9]);
}
static __device__ __forceinline__ void tile_turned(uint4 &high, uint4 &low, const float *p) {
    const int lane = threadIdx.x & 31;
    p += lane / 4 + 2 * (lane & 3) * PITCH;
    parts_of(high.x, low.x, p[0], p[PITCH]);
    parts_of(high.y, low.y, p[8], p[PITCH + 8]);
    parts_of(high.z, low.z, p[8 * PITCH], p[9 * PITCH]);
    parts_of(high.w, low.w, p[8 * PITCH + 8], p[9 * PITCH + 8]);
}

/* d += a b' of tiles as operands of A. */
static __device__ __forceinline__ void
tile_product(float (&d)[2][4], const uint4 &ah, const uint4 &al, const uint4 &bh, const uint4 &bl) {
    half_mma(d[0], ah, bh.x, bh.z);
    half_mma(d[1], ah, bh.y, bh.w);
    half_mma(d[0], al, bh.x, bh.z);
    half_mma(d[1], al, bh.y, bh.w);
    half_mma(d[0], ah, bl.x, bl.z);
    half_mma(d[1], ah, bl.y, bl.w);
}

/* C's tiles right of the panel, less its product, by four warps. */
static __device__ __forceinline__ void panel_subtract(BlockSpace *b, int panel, int warp) {
    const int lane = threadIdx.x & 31;
    int i = panel + 1, j = panel + 1; /* the warp's tile: number `warp`, then every fourth */
#pragma unroll 1
    for (int at = 0; i < PANELS; at++) {
        if ((at & 3) == warp) {
            uint4 ah, al, bh, bl;
            tile_straight(ah, al, b->c + 16 * (i * PITCH + panel));
            tile_straight(bh, bl, b->c + 16 * (j * PITCH + panel));
            float *c = b->c + 16 * (i * PITCH + j) + lane / 4 * PITCH + 2 * (lane & 3);
            float sum[2][4] = {};
            tile_product(sum, ah, al, bh, bl);
#pragma unroll
            for (int h = 0; h < 4; h++) {
                float2 *p = (float2 *)(c + (h & 1) * 8 * PITCH + h / 2 * 8), v = *p;
                v.x += sum[h / 2][2 * (h & 1)], v.y += sum[h / 2][2 * (h & 1) + 1];
                *p = v;
            }
        }
        if (++j > i) i++, j = panel + 1;
    }
}

/* The inverse's tile on the diagonal, a column a lane; and what stands right of it is 0. */
static __device__ __forceinline__ void inverse_tile(BlockSpace *b, int panel) {
    const int j = threadIdx.x & 15, first = 16 * panel;
    float y[16];
    if (threadIdx.x & 16) {
        for (int t = 0; t < 16; t++)
            for (int k = first + 16 + j; k < SIDE; k += 16) b->y[(first + t) * PITCH + k] = 0.0f;
        return;
    }
    const float *rows = b->c + first * PITCH + first;
#pragma unroll
    for (int t = 0; t < 16; t++) {
        float sum[4] = {t == j ? 1.0f : 0.0f, 0.0f, 0.0f, 0.0f};
#pragma unroll
        for (int k = 0; k < t; k += 4) {
            const float4 r = quad(rows + t * PITCH + k); /* 0 beyond the diagonal */
            sum[0] = fmaf(-r.x, y[k], sum[0]);
            if (k + 1 < t) sum[1] = fmaf(-r.y, y[k + 1], sum[1]);
            if (k + 2 < t) sum[2] = fmaf(-r.z, y[k + 2], sum[2]);
            if (k + 3 < t) sum[3] = fmaf(-r.w, y[k + 3], sum[3]);
        }
        y[t] = (sum[0] + sum[1] + (sum[2] + sum[3])) * b->rate[first + t];
        b->y[(first + t) * PITCH + first + j] = y[t];
    }
}

/* Tile j of the panel's rows of the inverse: - Y_pp sum_k R_pk Y_kj, k from j to p - 1, worked out
 * turned. */
static __device__ __forceinline__ void inverse_row(BlockSpace *b, int panel, int j) {
    const int lane = threadIdx.x & 31;
    uint4 ah, al, bh, bl;
    float sum[2][4] = {}, out[2][4] = {};
#pragma unroll 1
    for (int k = j; k < panel; k++) {
        tile_turned(ah, al, b->y + 16 * (k * PITCH + j));
        tile_straight(bh, bl, b->c + 16 * (panel * PITCH + k));
        tile_product(sum, ah, al, bh, bl);
    }
    tile_parts(ah, al, sum[0], sum[1], -1.0f);
    tile_straight(bh, bl, b->y + 16 * (panel * PITCH + panel));
    tile_product(out, ah, al, bh, bl);
    float *y = b->y + 16 * (panel * PITCH + j) + lane / 4 + 2 * (lane & 3) * PITCH;
#pragma unroll
    for (int h = 0; h < 4; h++) {
        float *p = y + (h & 1) * 8 + h / 2 * 8 * PITCH;
        p[0] = out[h / 2][2 * (h & 1)], p[PITCH] = out[h / 2][2 * (h & 1) + 1];
    }
}

/* WORKERS threads, the first of them a multiple of that; barriers 1, 4 and 5. Pivots are at least
 * `least`. */
static __device__ __forceinline__ void block_factor(BlockSpace *b, float least) {
    const int warp = threadIdx.x / 32 & 3;
#pragma unroll 1
    for (int p = 0; p < PANELS; p++) {
        if (warp < 2) panel_factor(b, threadIdx.x & 63, p, least);
        meet(4, WORKERS);
        panel_subtract(b, p, warp);
        meet(4, WORKERS);
        if (warp < 2 || p + 1 == PANELS) continue;
        if (warp == 2) inverse_tile(b, p);
        meet(5, 64);
        for (int j = warp - 2; j < p; j += 2) inverse_row(b, p, j);
        meet(5, 64);
    }
    if (warp == 3) inverse_tile(b, PANELS - 1);
    meet(4, WORKERS);
    if (warp < 3) inverse_row(b, PANELS - 1, warp);
}

#endif

#endif
