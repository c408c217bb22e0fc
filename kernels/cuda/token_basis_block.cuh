/* A block of 64 x 64 of slot token_basis: its Cholesky factor and the inverse of that, by four
 * warps from shared memory.
 *
 * Elimination by four columns at a time, in place: columns of C that are done become columns of the
 * inverse, as if the identity stood beside C. Thread (i, h) has row i of every other group of four
 * columns in registers.
 *
 * No pivot of S + shift diag(S) is below the shift, twice its least value. One that is shows that
 * what is left of its row is rounding: it is held at the least value, and the column below it is 0.
 * Multiples of such a row would grow without bound.
 */
#ifndef TTV_KERNELS_CUDA_TOKEN_BASIS_BLOCK_CUH
#define TTV_KERNELS_CUDA_TOKEN_BASIS_BLOCK_CUH

#include "kernels/cuda/gemm_ring.cuh"

#define SIDE    64
#define PITCH   68 /* of a block's rows in shared memory, in floats */
#define WORKERS 128
#define KEPT    1.96f /* times the least pivot: just below the shift */

/* c becomes the factor; y its inverse; both with zeros above the diagonal. */
typedef struct BlockSpace {
    float c[SIDE * PITCH], y[SIDE * PITCH];
    float u[SIDE * 4], e[4 * SIDE]; /* the four columns, and what stands in their rows of y */
    float kept[SIDE];               /* 0 where the column below was dropped, else 1 */
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
    const float y = rsqrtf(p);
    k.over[i] = y * fmaf(-0.5f * p * y, y, 1.5f);
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

/* v becomes L^-1 v, with the given numbers in place of one over L's diagonal. */
static __device__ __forceinline__ void solve(const Corner &k, const float (&rate)[4],
                                             float (&v)[4]) {
    v[0] *= rate[0];
    v[1] = fmaf(-k.l10, v[0], v[1]) * rate[1];
    v[2] = fmaf(-k.l21, v[1], fmaf(-k.l20, v[0], v[2])) * rate[2];
    v[3] = fmaf(-k.l32, v[2], fmaf(-k.l31, v[1], fmaf(-k.l30, v[0], v[3]))) * rate[3];
}

static __device__ __forceinline__ float4 quad(const float *p) {
    return *reinterpret_cast<const float4 *>(p);
}
static __device__ __forceinline__ void quad_put(float *p, const float (&v)[4]) {
    *reinterpret_cast<float4 *>(p) = make_float4(v[0], v[1], v[2], v[3]);
}

/* Row i of the factor in columns 4 s to 4 s + 3. */
static __device__ __forceinline__ void factor_row(BlockSpace *b, const Corner &k, int i, int s) {
    const float4 u = quad(b->u + 4 * i);
    float v[4] = {u.x, u.y, u.z, u.w};
    solve(k, k.rate, v);
    const int at = i - 4 * s; /* of the rows of the pivots themselves: 0 to 3 */
#pragma unroll
    for (int j = 0; j < 4; j++)
        if (j >= at) v[j] = j == at ? k.own[j] : at < 4 ? 0.0f : v[j];
    quad_put(b->c + i * PITCH + 4 * s, v);
#pragma unroll
    for (int j = 0; j < 4; j++)
        if (j == at) b->kept[i] = k.rate[j] > 0.0f ? 1.0f : 0.0f;
}

/* Column j of four rows of the inverse. */
static __device__ __forceinline__ void inverse_column(BlockSpace *b, const Corner &k, int j,
                                                      int s) {
    float v[4];
#pragma unroll
    for (int a = 0; a < 4; a++)
        v[a] = j / 4 < s ? b->e[SIDE * a + j] : j == 4 * s + a ? 1.0f : 0.0f;
    solve(k, k.over, v);
#pragma unroll
    for (int a = 0; a < 4; a++) b->y[(4 * s + a) * PITCH + j] = v[a];
}

/* Rows behind the pivots, group g: v -= r u' for columns of C, r y for those of the inverse. */
static __device__ __forceinline__ void group_update(const BlockSpace *b, float (&v)[4],
                                                    const float4 &r, int at, int s) {
    if (at > 4 * s) {
#pragma unroll
        for (int j = 0; j < 4; j++) {
            const float4 o = quad(b->c + (at + j) * PITCH + 4 * s);
            v[j] = fmaf(-r.x, o.x, fmaf(-r.y, o.y, fmaf(-r.z, o.z, fmaf(-r.w, o.w, v[j]))));
        }
        return;
    }
    const float rate[4] = {-r.x, -r.y, -r.z, -r.w};
#pragma unroll
    for (int a = 0; a < 4; a++) {
        const float4 o = quad(b->y + (4 * s + a) * PITCH + at);
        const bool first = a == 0 && at == 4 * s; /* a column of C until now */
        v[0] = fmaf(rate[a], o.x, first ? 0.0f : v[0]);
        v[1] = fmaf(rate[a], o.y, first ? 0.0f : v[1]);
        v[2] = fmaf(rate[a], o.z, first ? 0.0f : v[2]);
        v[3] = fmaf(rate[a], o.w, first ? 0.0f : v[3]);
    }
}

/* WORKERS threads, the first of them a multiple of that; barrier 1. Pivots are at least `least`. */
static __device__ __forceinline__ void block_factor(BlockSpace *b, float least) {
    const int i = threadIdx.x & 63, h = threadIdx.x >> 6 & 1;
    float v[8][4];
#pragma unroll
    for (int g = 0; g < 8; g++) {
        const float4 c = quad(b->c + i * PITCH + 4 * (2 * g + h));
        v[g][0] = c.x, v[g][1] = c.y, v[g][2] = c.z, v[g][3] = c.w;
    }
#pragma unroll
    for (int s = 0; s < 16; s++) {
        if (h == (s & 1)) quad_put(b->u + 4 * i, v[s / 2]);
        if (i / 4 == s) {
#pragma unroll
            for (int g = 0; g < 8; g++)
                if (2 * g + h < s) quad_put(b->e + SIDE * (i & 3) + 4 * (2 * g + h), v[g]);
        }
        meet(1, WORKERS);
        const Corner k = corner((const float4 *)b->u + 4 * s, least);
        if (h == 0)
            factor_row(b, k, i, s);
        else
            inverse_column(b, k, i, s);
        meet(1, WORKERS);
        if (i >= 4 * s + 4) {
            const float4 r = quad(b->c + i * PITCH + 4 * s);
#pragma unroll
            for (int g = 0; g < 8; g++) group_update(b, v[g], r, 4 * (2 * g + h), s);
        }
    }
}

#endif

#endif
