/* GLU branch, backward, on Hopper's warpgroup products (vittt.md 3.1; glu_wgmma.cuh has the
 * picture).
 *
 * Pass over Q, dO: dY, dW' and dQ; then dG; pass over K, V: dZ, dV, K' dZ and dK. A block walks
 * through the samples part, part + parts, ... of its head and adds their dw up. The tokens of all
 * passes form one stream through two stages: the next chunk, or the first one of the next pass or
 * sample, is in flight while one is worked on.
 */
#include "kernels/cuda/glu_wgmma.cuh"

#define BLOCKS 2 /* per multiprocessor */

/* Shared memory: four weight tiles, two stages of two token tiles, four exchange tiles. */
#define STAGES_AT   (4 * TILE_BYTES)
#define STAGE_BYTES (2 * TILE_BYTES)
#define EXCHANGE_AT (STAGES_AT + 2 * STAGE_BYTES)
#define SHARED_SIZE (EXCHANGE_AT + 4 * TILE_BYTES + SMEM_ALIGN)

/* What a block works on. */
typedef struct Task {
    char *memory;
    Shared base; /* of the same */
    bf16 *dqkv;
    const bf16 *dcat, *qkv;
} Task;

/* The next chunk that is not yet in flight: of Q, dO (pass 0) or K, V (pass 1) of sample b. */
typedef struct Cursor {
    int64_t b;
    int pass, first;
} Cursor;

#if HAVE_SM90A

/* Brings g of the block's next sample near: it is read in short lines with little in flight. */
static __device__ __forceinline__ void prefetch_sums(const float *g) {
    for (int line = threadIdx.x; line < 2 * GROUP * GROUP / 32; line += GLU_THREADS)
        asm volatile("prefetch.global.L2 [%0];" ::"l"(g + line * 32));
}

static __device__ __forceinline__ Shared stage_at(const Task &k, int stage) {
    return k.base + STAGES_AT + stage * STAGE_BYTES;
}
static __device__ __forceinline__ Shared exchange_at(const Task &k, int index) {
    return k.base + EXCHANGE_AT + index * TILE_BYTES;
}

/* Starts the copies of the cursor's chunk into a stage and moves on. */
static __device__ __forceinline__ void cursor_fetch(Shared stage, Cursor &c, const Task &k,
                                                    const GluArgs &a, const Place &p) {
    if (c.b < a.batch) {
        const int64_t token = c.b * a.tokens + c.first, wide = (int64_t)a.heads * GROUP;
        const bf16 *x = k.qkv + token * a.pitch + p.head * GROUP;
        const int left = a.tokens - c.first;
        chunk_fetch(stage, c.pass ? x + wide : x, a.pitch, left);
        chunk_fetch(stage + TILE_BYTES,
                    c.pass ? x + 2 * wide : k.dcat + token * a.cat_pitch + p.head * GROUP,
                    c.pass ? a.pitch : a.cat_pitch, left);
    }
    copies_commit();
    c.first += CHUNK;
    if (c.first < a.tokens) return;
    c.first = 0;
    c.pass ^= 1;
    if (c.pass == 0) c.b += a.parts;
}

/* What is summed over N tokens, as operands. */
template <int N> struct Operands { uint32_t a1[N / 16][4], a2[N / 16][4]; };

/* s1, s2 += operands times tokens: begins. */
template <int N>
static __device__ __forceinline__ void sums_start(Sums &s1, Sums &s2, const Operands<N> &o,
                                                  Shared tokens) {
    settle(flat(s1));
    settle(flat(s2));
    wgmma_begin();
    token_sums(flat(s1), o.a1, tokens);
    token_sums(flat(s2), o.a2, tokens);
    wgmma_commit();
}
/* Waits for all products; `out` is written by the last of them. */
template <int N>
static __device__ __forceinline__ void products_finish(float (&out)[N / 2], Sums &s1, Sums &s2,
                                                       Operands<N> &o) {
    wgmma_wait<0>();
    settle(out);
    settle(flat(s1));
    settle(flat(s2));
    settle(o.a1);
    settle(o.a2);
}

/* (i, token) sums times scale into the warp's channels of a tile. */
template <int N>
static __device__ __forceinline__ void mix_put(Shared tile, float (&d)[N], float scale,
                                               const Place &p) {
#pragma unroll
    for (int t = 0; t < N / 8; t++) {
        uint32_t f[4];
#pragma unroll
        for (int e = 8 * t; e < 8 * t + 8; e++) d[e] *= scale;
        pack_columns(f, d + 8 * t);
        matrix_put_turned(tile, p.own, 16 * t, 0, f);
    }
}

/* ---- pass over Q, dO ------------------------------------------------------------------------ */

/* dY1, dY2 from Y1, Y2, in their places. */
static __device__ __forceinline__ void read_back_element(float *y1, float *y2, float out) {
    float s, d;
    silu_slope(*y2, &s, &d);
    *y2 = out * *y1 * d;
    *y1 = out * s;
}

/* N tokens in stage x (Q, dO): dW' into s1, s2; dQ to memory (`left` tokens at most) through the
 * place of dO. Weights: high and rest of U1, of U2. */
template <int N>
static __device__ __forceinline__ void read_chunk(Sums &s1, Sums &s2, Shared x, bf16 *dq_out,
                                                  int64_t pitch, int left, const Task &k,
                                                  const Place &p) {
    const Shared o_tile = x + TILE_BYTES;
    float y1[N / 2], y2[N / 2], dq[N / 2];
    Operands<N> o;
    wgmma_begin();
    project(y1, weight_tile(k.base, 0), x, false);
    project(y2, weight_tile(k.base, 2), x, false);
    project(y1, weight_tile(k.base, 1), x, true);
    project(y2, weight_tile(k.base, 3), x, true);
    wgmma_commit();
    wgmma_wait<0>();
    settle(y1);
    settle(y2);
#pragma unroll
    for (int t = 0; t < N / 16; t++) {
        uint32_t f[4];
        matrix_get_turned(f, region(o_tile, p.own.beside, 16 * t, 0));
#pragma unroll
        for (int e = 0; e < 8; e++)
            read_back_element(&y1[8 * t + e], &y2[8 * t + e], fragment_value(f, e));
        pack_columns(o.a1[t], y1 + 8 * t);
        pack_columns(o.a2[t], y2 + 8 * t);
        matrix_put_turned(exchange_at(k, 0), p.own, 16 * t, 0, o.a1[t]);
        matrix_put_turned(exchange_at(k, 1), p.own, 16 * t, 0, o.a2[t]);
    }
    copies_wait<0>();
    writes_publish();
    sums_start(s1, s2, o, x);
    __syncthreads();
    wgmma_begin();
    mix(dq, weight_tile(k.base, 0), exchange_at(k, 0), false);
    mix(dq, weight_tile(k.base, 1), exchange_at(k, 0), true);
    mix(dq, weight_tile(k.base, 2), exchange_at(k, 1), true);
    mix(dq, weight_tile(k.base, 3), exchange_at(k, 1), true);
    wgmma_commit();
    products_finish<N>(dq, s1, s2, o);
    mix_put(o_tile, dq, 1.0f, p);
    chunk_flush<N>(dq_out, pitch, o_tile, p.row, left);
    __syncthreads();
}

/* ---- pass over K, V ------------------------------------------------------------------------- */

/* Eight values of each accumulator, 16 tokens from `row` on: P1, P2, dZ1, dZ2 into the exchange
 * tiles, dZ as operands too; dV into the place of V. */
static __device__ __forceinline__ void write_back_part(uint32_t (&a1)[4], uint32_t (&a2)[4],
                                                       float *z1, float *z2, float *p1, float *p2,
                                                       Shared v_tile, int row, float c,
                                                       const Task &k, const Place &p) {
    uint32_t v[4], f[4];
    float dv[8];
    matrix_get_turned(v, region(v_tile, p.own.beside, row, 0));
#pragma unroll
    for (int e = 0; e < 8; e++)
        dv[e] = -c * write_back_element(fragment_value(v, e), &z1[e], &z2[e], &p1[e], &p2[e]);
    pack_columns(f, dv);
    matrix_put_turned(v_tile, p.own, row, 0, f);
    pack_columns(f, p1);
    matrix_put_turned(exchange_at(k, 0), p.own, row, 0, f);
    pack_columns(f, p2);
    matrix_put_turned(exchange_at(k, 1), p.own, row, 0, f);
    pack_columns(a1, z1);
    matrix_put_turned(exchange_at(k, 2), p.own, row, 0, a1);
    pack_columns(a2, z2);
    matrix_put_turned(exchange_at(k, 3), p.own, row, 0, a2);
}

/* N tokens in stage x (K, V): dZ into s1, s2; dK and, `wide` channels on, dV to memory, both
 * through the place of V. Weights: dG1, dG2, W1, W2. */
template <int N>
static __device__ __forceinline__ void write_chunk(Sums &s1, Sums &s2, Shared x, bf16 *dk_out,
                                                   int64_t wide, int left, const Task &k,
                                                   const GluArgs &a, const Place &p) {
    const Shared v_tile = x + TILE_BYTES;
    float z1[N / 2], z2[N / 2], p1[N / 2], p2[N / 2], dk[N / 2];
    Operands<N> o;
    wgmma_begin();
    project(z1, weight_tile(k.base, 2), x, false);
    project(z2, weight_tile(k.base, 3), x, false);
    project(p1, weight_tile(k.base, 0), x, false);
    project(p2, weight_tile(k.base, 1), x, false);
    wgmma_commit();
    wgmma_wait<0>();
    settle(z1);
    settle(z2);
    settle(p1);
    settle(p2);
#pragma unroll
    for (int t = 0; t < N / 16; t++)
        write_back_part(o.a1[t], o.a2[t], z1 + 8 * t, z2 + 8 * t, p1 + 8 * t, p2 + 8 * t, v_tile,
                        16 * t, a.c, k, p);
    copies_wait<0>();
    writes_publish();
    sums_start(s1, s2, o, x);
    chunk_flush<N>(dk_out + wide, a.pitch, v_tile, p.row, left);
    __syncthreads();
    wgmma_begin();
#pragma unroll
    for (int i = 0; i < 4; i++) mix(dk, weight_tile(k.base, i), exchange_at(k, i), i > 0);
    wgmma_commit();
    products_finish<N>(dk, s1, s2, o);
    mix_put(v_tile, dk, -a.c, p);
    chunk_flush<N>(dk_out, a.pitch, v_tile, p.row, left);
    __syncthreads();
}

/* ---- a block -------------------------------------------------------------------------------- */

/* Weight tiles and the pass's first chunk are there. */
static __device__ __forceinline__ void pass_await(void) {
    copies_wait<1>();
    writes_publish();
    __syncthreads();
}

/* The pass over Q, dO of sample b from `stage` on; returns the stage after its last. */
static __device__ __forceinline__ int read_pass(Sums &s1, Sums &s2, int stage, Cursor &ahead,
                                                int64_t b, const Task &k, const GluArgs &a,
                                                const Place &p) {
    bf16 *dq = k.dqkv + b * a.tokens * a.pitch + p.head * GROUP;
    pass_await();
    int first = 0;
    for (; a.tokens - first > TAIL; first += CHUNK, stage ^= 1) {
        read_chunk<CHUNK>(s1, s2, stage_at(k, stage), dq + first * a.pitch, a.pitch,
                          a.tokens - first, k, p);
        cursor_fetch(stage_at(k, stage), ahead, k, a, p);
    }
    if (first < a.tokens) {
        read_chunk<TAIL>(s1, s2, stage_at(k, stage), dq + first * a.pitch, a.pitch,
                         a.tokens - first, k, p);
        cursor_fetch(stage_at(k, stage), ahead, k, a, p);
        stage ^= 1;
    }
    return stage;
}

/* The same over K, V. */
static __device__ __forceinline__ int write_pass(Sums &s1, Sums &s2, int stage, Cursor &ahead,
                                                 int64_t b, const Task &k, const GluArgs &a,
                                                 const Place &p) {
    const int64_t wide = (int64_t)a.heads * GROUP;
    bf16 *dk = k.dqkv + b * a.tokens * a.pitch + p.head * GROUP + wide;
    pass_await();
    int first = 0;
    for (; a.tokens - first > TAIL; first += CHUNK, stage ^= 1) {
        write_chunk<CHUNK>(s1, s2, stage_at(k, stage), dk + first * a.pitch, wide, a.tokens - first,
                           k, a, p);
        cursor_fetch(stage_at(k, stage), ahead, k, a, p);
    }
    if (first < a.tokens) {
        write_chunk<TAIL>(s1, s2, stage_at(k, stage), dk + first * a.pitch, wide, a.tokens - first,
                          k, a, p);
        cursor_fetch(stage_at(k, stage), ahead, k, a, p);
        stage ^= 1;
    }
    return stage;
}

/* Samples part, part + parts, ... */
static __device__ __forceinline__ void head_backward(const Task &k, int part, const GluArgs &a,
                                                     const Place &p) {
    const int64_t dd = GROUP * GROUP;
    const float *w1 = a.w1 + p.head * dd, *w2 = a.w2 + p.head * dd;
    float *dw = a.dw_partial ? a.dw_partial + ((int64_t)part * 2 * a.heads + p.head) * dd : NULL;
    Cursor ahead = {part, 0, 0};
    cursor_fetch(stage_at(k, 0), ahead, k, a, p);
    cursor_fetch(stage_at(k, 1), ahead, k, a, p);
    int stage = 0;
    for (int64_t b = part; b < a.batch; b += a.parts) {
        const float *g = a.g + (b * a.heads + p.head) * 2 * dd;
        float norm1[2], norm2[2];
        Sums g1, g2, x1, x2;
        load_pair(g1, g2, g, g + dd, p);
        load_pair(x1, x2, w1, w2, p);
        train_weights(weight_tile(k.base, 0), weight_tile(k.base, 1), norm1, g1, x1, p);
        train_weights(weight_tile(k.base, 2), weight_tile(k.base, 3), norm2, g2, x2, p);
        Sums s1 = {}, s2 = {};
        stage = read_pass(s1, s2, stage, ahead, b, k, a, p);
        load_pair(g1, g2, g, g + dd, p);
        train_backward(weight_tile(k.base, 0), s1, g1, norm1, a.c, p);
        train_backward(weight_tile(k.base, 1), s2, g2, norm2, a.c, p);
        head_weights(k.memory + 2 * TILE_BYTES, w1);
        head_weights(k.memory + 3 * TILE_BYTES, w2);
        if (b + a.parts < a.batch) prefetch_sums(g + (int64_t)a.parts * a.heads * 2 * dd);
        stage = write_pass(s1, s2, stage, ahead, b, k, a, p);
        if (!dw) continue;
        put_sums(dw, s1, a.c, b > part, p);
        put_sums(dw + a.heads * dd, s2, a.c, b > part, p);
    }
    copies_wait<0>();
}

#endif /* HAVE_SM90A */

static __global__ void __launch_bounds__(GLU_THREADS, BLOCKS)
    glu_wgmma_backward_kernel(bf16 *dqkv, const bf16 *dcat, const bf16 *qkv, GluArgs a) {
#if HAVE_SM90A
    extern __shared__ char memory[];
    const Shared begin = shared_address(memory),
                 base = (begin + SMEM_ALIGN - 1) / SMEM_ALIGN * SMEM_ALIGN;
    const Task k = {memory + (base - begin), base, dqkv, dcat, qkv};
    head_backward(k, blockIdx.x / a.heads, a, glu_place<GROUP>(a, blockIdx.x % a.heads));
#endif
}

/* ---- host ----------------------------------------------------------------------------------- */

bool glu_wgmma_fits(Device *d, int head_dim) {
    return backend_of(d)->sm90a && head_dim == GROUP;
}

Status glu_wgmma_backward(Device *d, GluArgs a, Tensor dqkv, Tensor dcat, Tensor qkv) {
    CUDA_TRY(cudaFuncSetAttribute(glu_wgmma_backward_kernel,
                                  cudaFuncAttributeMaxDynamicSharedMemorySize, SHARED_SIZE),
             "vittt_glu_backward");
    glu_wgmma_backward_kernel<<<(unsigned)(a.parts * a.heads), GLU_THREADS, SHARED_SIZE,
                                stream_of(d)>>>((bf16 *)dqkv.data, (const bf16 *)dcat.data,
                                                (const bf16 *)qkv.data, a);
    return launched("vittt_glu_backward");
}
