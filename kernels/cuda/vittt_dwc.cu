/* Depthwise branch of the ViTTT mixer (vittt.md 2.2, 3.2): a block per sample and 128 bytes of
 * channels, on padded tiles (stencil.cuh). The per-sample kernel w' lives in shared memory only. */
#include "kernels/cuda/dwc.cuh"
#include "kernels/cuda/glu_feed.cuh"
#include "kernels/cuda/stencil.cuh"

#define TILE_LIMIT ((int64_t)36 << 10)
#define TILES      3 /* in shared memory at a time */

/* Tiles with their borders by the copy engine (Hopper, BF16, maps of one tile): q, k, v and dO as
 * [batch][height][width][channels]. */
typedef struct DwcMaps {
    CUtensorMap q, k, v, o;
} DwcMaps;

/* Where the block works: its sample and first channel. */
typedef struct DwcPlace {
    int64_t in,
        cat;  /* offsets of the sample's q2 and of the branch in cat, at the block's channels */
    int left; /* channels from there on */
    int lane; /* the thread's first channel within the block's */
    bool active;
} DwcPlace;

template <typename T>
static __device__ __forceinline__ DwcPlace dwc_place(const DwcArgs &a, const Cut &c) {
    const int first = blockIdx.y * (PIXEL_BYTES / sizeof(T));
    const int64_t row = (int64_t)blockIdx.x * c.height * c.width;
    DwcPlace p;
    p.in = row * a.pitch + a.first + first;
    p.cat = row * a.cat_pitch + a.cat_first + first;
    p.left = a.channels - first;
    p.lane = threadIdx.x * STRIP_V;
    p.active = p.lane < p.left;
    return p;
}

/* The thread's taps from shared[(t*V+v)*lanes + lane], scaled, reversed for the adjoint. */
static __device__ __forceinline__ void taps_load(float (&w)[9][STRIP_V], const float *shared,
                                                 float scale, bool reverse) {
#pragma unroll
    for (int t = 0; t < 9; t++)
#pragma unroll
        for (int v = 0; v < STRIP_V; v++)
            w[t][v] =
                scale * shared[((reverse ? 8 - t : t) * STRIP_V + v) * blockDim.x + threadIdx.x];
}

/* Strips of a tile: out = taps applied to it. */
template <typename T>
static __device__ __forceinline__ void tile_apply(T *out, int64_t pitch, const char *tile,
                                                  const Cut &c, int y0, const DwcPlace &p,
                                                  const float *taps, float scale, bool reverse) {
    const float none[STRIP_V] = {};
    float w[9][STRIP_V];
    if (!p.active) return;
    taps_load(w, taps, scale, reverse);
    for (int item = threadIdx.y; item < c.rows / STRIP_ROWS * c.parts; item += blockDim.y) {
        const Strip s = strip_of(c, y0, item);
        if (s.y0 < c.height && s.x0 < s.x1)
            strip_apply<T>(out + p.lane, pitch, false, tile, c, y0, s, w, none);
    }
}

/* Strips of a tile: g += in[p+t] out[p]. */
template <typename T>
static __device__ __forceinline__ void tile_taps(float (&g)[9][STRIP_V], const char *in,
                                                 const char *out, const Cut &c, int y0,
                                                 const DwcPlace &p) {
    float total[STRIP_V] = {};
    for (int item = threadIdx.y; p.active && item < c.rows / STRIP_ROWS * c.parts;
         item += blockDim.y) {
        const Strip s = strip_of(c, y0, item);
        if (s.y0 < c.height && s.x0 < s.x1) strip_taps<T>(g, total, in, out, c, y0, s);
    }
}

#if HAVE_SM90A

/* Two barriers in shared memory; begins and ends with the block's. */
static __device__ __forceinline__ void tiles_init(Shared full) {
    if (threadIdx.x == 0 && threadIdx.y == 0) feed_barriers(full, 2);
    __syncthreads();
}

/* Starts the copy of a tile, whose place is free; `full` counts its bytes. */
static __device__ __forceinline__ void tile_bring(Shared tile, const CUtensorMap *map,
                                                  Shared full) {
    if (threadIdx.x == 0 && threadIdx.y == 0)
        box4_fetch(tile, map, blockIdx.y * (PIXEL_BYTES / (int)sizeof(bf16)), -1, -1,
                   (int)blockIdx.x, full);
}
static __device__ __forceinline__ void tiles_expect(Shared full, int bytes) {
    if (threadIdx.x == 0 && threadIdx.y == 0) barrier_expect(full, bytes);
}

#endif /* HAVE_SM90A */

template <typename T, bool BULK>
__global__ void __launch_bounds__(MAX_THREADS, 2)
    vittt_dwc_kernel(T *cat, float *g_out, const T *qkv, const float *w3, DwcArgs a, Cut c,
                     const __grid_constant__ DwcMaps maps) {
    extern __shared__ __align__(128) char memory[];
    const Shared tiles = shared_address(memory);
    float *taps = (float *)(memory + TILES * c.tile_bytes);
    const DwcPlace p = dwc_place<T>(a, c);
    const T *q = qkv + p.in, *k = q + a.channels, *v = k + a.channels;
    float sum[9][STRIP_V] = {};
#if HAVE_SM90A
    __shared__ uint64_t barriers[2];
    const Shared full = shared_address(barriers);
    if (BULK) {
        tiles_init(full);
        tiles_expect(full, 2 * c.tile_bytes);
        tile_bring(tiles, &maps.k, full);
        tile_bring(tiles + c.tile_bytes, &maps.v, full);
        tiles_expect(full + 8, c.tile_bytes);
        tile_bring(tiles + 2 * c.tile_bytes, &maps.q, full + 8);
        barrier_wait(full, 0);
    }
#endif
    for (int tile = 0; tile < c.tiles; tile++) {
        const int y0 = tile * c.rows;
        if (!BULK) {
            tile_fetch<T>(tiles, k, a.pitch, c, y0, p.left);
            tile_fetch<T>(tiles + c.tile_bytes, v, a.pitch, c, y0, p.left);
            if (c.tiles == 1) tile_fetch<T>(tiles + 2 * c.tile_bytes, q, a.pitch, c, y0, p.left);
            copies_commit();
            copies_wait<0>();
            __syncthreads();
        }
        tile_taps<T>(sum, memory, memory + c.tile_bytes, c, y0, p);
        __syncthreads();
    }
    rows_join<9 * STRIP_V>(taps, *reinterpret_cast<float(*)[9 * STRIP_V]>(&sum[0]));
    for (int i = threadIdx.y; p.active && i < STRIP_V; i += blockDim.y) {
        const int ch = blockIdx.y * (PIXEL_BYTES / sizeof(T)) + p.lane + i;
        float g[9];
        for (int t = 0; t < 9; t++)
            g[t] = -a.c * taps[(t * STRIP_V + i) * blockDim.x + threadIdx.x];
        if (g_out)
            for (int t = 0; t < 9; t++)
                g_out[((int64_t)blockIdx.x * a.channels + ch) * 9 + t] = g[t];
        dwc_inner_step(g, w3 + ch * 9);
        for (int t = 0; t < 9; t++) taps[(t * STRIP_V + i) * blockDim.x + threadIdx.x] = g[t];
    }
#if HAVE_SM90A
    if (BULK) barrier_wait(full + 8, 0);
#endif
    __syncthreads();
    for (int tile = 0; tile < c.tiles; tile++) {
        const int y0 = tile * c.rows;
        if (c.tiles > 1) {
            tile_fetch<T>(tiles + 2 * c.tile_bytes, q, a.pitch, c, y0, p.left);
            copies_commit();
            copies_wait<0>();
            __syncthreads();
        }
        tile_apply<T>(cat + p.cat, a.cat_pitch, memory + 2 * c.tile_bytes, c, y0, p, taps, 1.0f,
                      false);
        __syncthreads();
    }
}

/* Between the passes: dw' in `dg` (shared) becomes dg, `w` becomes w'; dw' also goes to dw3_part.
 */
template <typename T>
static __device__ __forceinline__ void dwc_middle(float *w, float *dg, float *dw3_part,
                                                  const float *g_in, const float *w3,
                                                  const DwcArgs &a, const DwcPlace &p) {
    for (int i = threadIdx.y; p.active && i < STRIP_V; i += blockDim.y) {
        const int ch = blockIdx.y * (PIXEL_BYTES / sizeof(T)) + p.lane + i;
        const int64_t at = ((int64_t)blockIdx.x * a.channels + ch) * 9;
        float g[9], dw[9];
        for (int t = 0; t < 9; t++) {
            g[t] = g_in[at + t];
            dw[t] = dg[(t * STRIP_V + i) * blockDim.x + threadIdx.x];
            if (dw3_part) dw3_part[at + t] = dw[t];
        }
        dwc_inner_backward(dw, g);
        dwc_inner_step(g, w3 + ch * 9);
        for (int t = 0; t < 9; t++) {
            dg[(t * STRIP_V + i) * blockDim.x + threadIdx.x] = dw[t];
            w[(t * STRIP_V + i) * blockDim.x + threadIdx.x] = g[t];
        }
    }
    __syncthreads();
}

template <typename T, bool BULK>
__global__ void __launch_bounds__(MAX_THREADS, 2)
    vittt_dwc_backward_kernel(T *dqkv, float *dw3_partial, const T *dcat, const T *qkv,
                              const float *g, const float *w3, DwcArgs a, Cut c,
                              const __grid_constant__ DwcMaps maps) {
    extern __shared__ __align__(128) char memory[];
    const Shared tiles = shared_address(memory);
    char *side = memory + c.tile_bytes, *third = side + c.tile_bytes;
    float *dg = (float *)(third + c.tile_bytes), *w = dg + 9 * STRIP_V * blockDim.x;
    const DwcPlace p = dwc_place<T>(a, c);
    const T *q = qkv + p.in, *k = q + a.channels, *v = k + a.channels, *out = dcat + p.cat;
    T *dq = dqkv + p.in, *dk = dq + a.channels, *dv = dk + a.channels;
    float sum[9][STRIP_V] = {};
#if HAVE_SM90A
    __shared__ uint64_t barriers[2];
    const Shared full = shared_address(barriers);
    if (BULK) {
        tiles_init(full);
        tiles_expect(full, 2 * c.tile_bytes);
        tile_bring(tiles, &maps.q, full);
        tile_bring(tiles + c.tile_bytes, &maps.o, full);
        tiles_expect(full + 8, 2 * c.tile_bytes); /* v, and k later */
        tile_bring(tiles + 2 * c.tile_bytes, &maps.v, full + 8);
        barrier_wait(full, 0);
    }
#endif
    for (int tile = 0; tile < c.tiles; tile++) {
        const int y0 = tile * c.rows;
        if (!BULK) {
            tile_fetch<T>(tiles, q, a.pitch, c, y0, p.left);
            tile_fetch<T>(tiles + c.tile_bytes, out, a.cat_pitch, c, y0, p.left);
            if (c.tiles == 1) tile_fetch<T>(tiles + 2 * c.tile_bytes, v, a.pitch, c, y0, p.left);
            copies_commit();
            copies_wait<0>();
            __syncthreads();
        }
        tile_taps<T>(sum, memory, side, c, y0, p);
        __syncthreads();
    }
#if HAVE_SM90A
    if (BULK) tile_bring(tiles, &maps.k, full + 8); /* all have read q */
#endif
    if (!BULK && c.tiles == 1) { /* k takes the place of q, while the sums are joined */
        tile_fetch<T>(tiles, k, a.pitch, c, 0, p.left);
        copies_commit();
    }
    rows_join<9 * STRIP_V>(dg, *reinterpret_cast<float(*)[9 * STRIP_V]>(&sum[0]));
    dwc_middle<T>(w, dg, dw3_partial, g, w3, a, p);
    for (int tile = 0; tile < c.tiles; tile++) {
        const int y0 = tile * c.rows;
        if (c.tiles > 1) {
            tile_fetch<T>(tiles, k, a.pitch, c, y0, p.left);
            tile_fetch<T>(tiles + c.tile_bytes, out, a.cat_pitch, c, y0, p.left);
            tile_fetch<T>(tiles + 2 * c.tile_bytes, v, a.pitch, c, y0, p.left);
            copies_commit();
        }
        if (!BULK) copies_wait<0>();
#if HAVE_SM90A
        if (BULK) barrier_wait(full + 8, 0);
#endif
        __syncthreads();
        tile_apply<T>(dq, a.pitch, side, c, y0, p, w, 1.0f, true);
        tile_apply<T>(dk, a.pitch, third, c, y0, p, dg, -a.c, true);
        tile_apply<T>(dv, a.pitch, memory, c, y0, p, dg, -a.c, false);
        __syncthreads();
    }
}

/* ---- slots ----------------------------------------------------------------------------------- */

/* Whether the tiled kernels suit: whole 16 bytes everywhere. */
static bool dwc_tiled(Cut *c, VitttShape s, const DwcArgs &a, size_t size, const void *p,
                      const void *q, const void *r) {
    const int64_t unit = 16 / (int64_t)size;
    return cut_map(c, s.batch, (int)s.height, (int)s.width, s.head_dim, TILE_LIMIT) &&
           a.channels % unit == 0 && a.cat_first % unit == 0 && is_aligned(p, 16) &&
           is_aligned(q, 16) && is_aligned(r, 16);
}

/* A map of the branch from p on, `pitch` elements from pixel to pixel, in tiles with borders. */
static Status dwc_map(CUtensorMap *map, const bf16 *p, const DwcArgs &a, int64_t batch,
                      int64_t pitch, const Cut &c) {
    const int64_t size[4] = {a.channels, a.width, a.height, batch},
                  pitches[3] = {pitch, a.width * pitch, a.height * a.width * pitch};
    const int box[4] = {PIXEL_BYTES / (int)sizeof(bf16), c.width + 2, c.rows + 2, 1};
    return map_boxes(map, p, 4, size, pitches, box);
}

/* Whether the copy engine can bring the tiles. */
static bool dwc_bulk(Device *d, const Cut &c, DType act) {
    return backend_of(d)->sm90a && act == DTYPE_BF16 && c.tiles == 1 && c.width + 2 <= 256 &&
           c.rows + 2 <= 256;
}

static Status dwc_maps(DwcMaps *maps, const DwcArgs &a, int64_t batch, const Cut &c,
                       const void *qkv, const void *dcat) {
    const bf16 *q = (const bf16 *)qkv + a.first;
    TRY(dwc_map(&maps->q, q, a, batch, a.pitch, c));
    TRY(dwc_map(&maps->k, q + a.channels, a, batch, a.pitch, c));
    TRY(dwc_map(&maps->v, q + 2 * a.channels, a, batch, a.pitch, c));
    if (!dcat) return STATUS_OK;
    return dwc_map(&maps->o, (const bf16 *)dcat + a.cat_first, a, batch, a.cat_pitch, c);
}

template <typename T, bool BULK>
static Status dwc_forward_launch(Device *d, int64_t batch, const DwcArgs &a, T *out, float *g,
                                 const T *in, const float *w, const Cut &c, dim3 block) {
    const dim3 grid((unsigned)batch,
                    (unsigned)ceil_div(a.channels * (int64_t)sizeof(T), PIXEL_BYTES));
    const int bytes = TILES * c.tile_bytes + (int)sizeof(float) * 9 * STRIP_V * (int)block.x;
    DwcMaps maps = {};
    if (BULK) TRY(dwc_maps(&maps, a, batch, c, in, NULL));
    CUDA_TRY(cudaFuncSetAttribute(vittt_dwc_kernel<T, BULK>,
                                  cudaFuncAttributeMaxDynamicSharedMemorySize, bytes),
             "vittt_dwc");
    vittt_dwc_kernel<T, BULK><<<grid, block, bytes, stream_of(d)>>>(out, g, in, w, a, c, maps);
    return launched("vittt_dwc");
}

template <typename T, bool BULK>
static Status dwc_backward_launch(Device *d, int64_t batch, const DwcArgs &a, T *out,
                                  float *partial, const T *dout, const T *in, const float *g,
                                  const float *w, const Cut &c, dim3 block) {
    const dim3 grid((unsigned)batch,
                    (unsigned)ceil_div(a.channels * (int64_t)sizeof(T), PIXEL_BYTES));
    const int bytes = TILES * c.tile_bytes + (int)sizeof(float) * 18 * STRIP_V * (int)block.x;
    DwcMaps maps = {};
    if (BULK) TRY(dwc_maps(&maps, a, batch, c, in, dout));
    CUDA_TRY(cudaFuncSetAttribute(vittt_dwc_backward_kernel<T, BULK>,
                                  cudaFuncAttributeMaxDynamicSharedMemorySize, bytes),
             "vittt_dwc_backward");
    vittt_dwc_backward_kernel<T, BULK>
        <<<grid, block, bytes, stream_of(d)>>>(out, partial, dout, in, g, w, a, c, maps);
    return launched("vittt_dwc_backward");
}

template <typename T>
static Status dwc_forward(Device *d, VitttShape s, const DwcArgs &a, Tensor cat, Tensor g,
                          Tensor qkv, Tensor w3) {
    Cut c;
    T *out = (T *)cat.data;
    const T *in = (const T *)qkv.data;
    const float *w = (const float *)w3.data;
    if (!dwc_tiled(&c, s, a, sizeof(T), cat.data, qkv.data, NULL))
        return dwc_any_forward<T>(d, s, a, out, (float *)g.data, in, w);
    const dim3 block = cut_block<T>(&c);
    if (dwc_bulk(d, c, qkv.dtype))
        return dwc_forward_launch<T, true>(d, s.batch, a, out, (float *)g.data, in, w, c, block);
    return dwc_forward_launch<T, false>(d, s.batch, a, out, (float *)g.data, in, w, c, block);
}

template <typename T>
static Status dwc_backward(Device *d, VitttShape s, const DwcArgs &a, Tensor dqkv, float *partial,
                           Tensor dcat, Tensor qkv, Tensor g, Tensor w3) {
    Cut c;
    T *out = (T *)dqkv.data;
    const T *in = (const T *)qkv.data, *dout = (const T *)dcat.data;
    const float *w = (const float *)w3.data, *raw = (const float *)g.data;
    if (!dwc_tiled(&c, s, a, sizeof(T), dqkv.data, qkv.data, dcat.data))
        return dwc_any_backward<T>(d, s, a, out, partial, dout, in, raw, w);
    const dim3 block = cut_block<T>(&c);
    if (dwc_bulk(d, c, qkv.dtype))
        return dwc_backward_launch<T, true>(d, s.batch, a, out, partial, dout, in, raw, w, c,
                                            block);
    return dwc_backward_launch<T, false>(d, s.batch, a, out, partial, dout, in, raw, w, c, block);
}

extern "C" Status vittt_dwc_cuda(Device *d, VitttShape s, Tensor cat, Tensor g, Tensor qkv,
                                 Tensor w3) {
    if (cat.dtype != qkv.dtype) return refuse_dtype("vittt_dwc", cat.dtype);
    WITH_ACT("vittt_dwc", qkv.dtype, T, return dwc_forward<T>(d, s, dwc_args(s), cat, g, qkv, w3));
}

extern "C" Status vittt_dwc_backward_cuda(Device *d, VitttShape s, Tensor dqkv, Grad dw3,
                                          Tensor dcat, Tensor qkv, Tensor g, Tensor w3) {
    if (dqkv.dtype != qkv.dtype || dcat.dtype != qkv.dtype)
        return refuse_dtype("vittt_dwc_backward", dcat.dtype);
    float *partial = NULL;
    if (!tensor_is_none(dw3.t))
        TRY(scratch_take(d, sizeof(float) * s.batch * s.head_dim * 9, (void **)&partial));
    Status status = STATUS_OK;
    WITH_ACT("vittt_dwc_backward", qkv.dtype, T,
             status = dwc_backward<T>(d, s, dwc_args(s), dqkv, partial, dcat, qkv, g, w3));
    if (status == STATUS_OK)
        status = reduce_partials(d, dw3, partial, s.batch, s.head_dim * 9, 1.0f);
    scratch_done(d);
    return status;
}
