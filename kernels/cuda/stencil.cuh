/* 3x3 depthwise stencils over channels-last maps, from padded tiles in shared memory.
 *
 * A tile holds some rows of one sample's map, 128 bytes of channels per pixel, with a border of
 * zeros (or of neighbouring rows) on every side, so that no access asks whether it is inside.
 * Strips of two rows walk along x: each pixel that is read takes part at once in the (up to six)
 * outputs that it touches, in three rolling columns of accumulators. Tap index: (ty+1)*3 + tx+1.
 */
#ifndef TTV_KERNELS_CUDA_STENCIL_CUH
#define TTV_KERNELS_CUDA_STENCIL_CUH

#include "kernels/cuda/mma.cuh"

#define PIXEL_BYTES 128
#define STRIP_ROWS  2
#define STRIP_V     4 /* channels per thread */
#define MAX_THREADS 128

/* How a map is cut: tiles of `rows` rows, each of strips x `parts` ranges of columns. */
typedef struct Cut {
    int64_t batch, channels;
    int height, width;
    int rows, tiles;   /* rows per tile (even), tiles per map */
    int parts, across; /* ranges of columns, columns per range */
    int tile_bytes;    /* with its border */
} Cut;

/* false: rows are too wide for tiles of at most `limit` bytes. */
static inline bool cut_map(Cut *c, int64_t batch, int height, int width, int64_t channels,
                           int64_t limit) {
    const int64_t line = (int64_t)(width + 2) * PIXEL_BYTES;
    c->batch = batch;
    c->channels = channels;
    c->height = height;
    c->width = width;
    c->rows = (height + 1) / 2 * 2;
    while (c->rows > 2 && (c->rows + 2) * line > limit) c->rows -= 2;
    c->tiles = (height + c->rows - 1) / c->rows;
    c->rows = ((height + c->tiles - 1) / c->tiles + 1) / 2 * 2; /* tiles of like size */
    c->parts = 1;
    while (c->parts < 8 && c->rows / STRIP_ROWS * c->parts < 6 && width / c->parts > 8)
        c->parts *= 2;
    c->across = (width + c->parts - 1) / c->parts;
    c->tile_bytes = (int)((c->rows + 2) * line);
    return (c->rows + 2) * line <= limit;
}

static inline int cut_items(const Cut *c) {
    return c->rows / STRIP_ROWS * c->parts;
}

/* Threads: x = the pixel's channels, y = strips. */
template <typename T> static inline dim3 cut_block(const Cut *c) {
    const int items = cut_items(c);
    return dim3(PIXEL_BYTES / sizeof(T) / STRIP_V, items < 8 ? items : 8);
}

/* Starts the copy of rows y0-1 .. y0+rows of a map into a tile; zeros outside of it. `in`: pixel 0
 * at the tile's first channel; `pitch`: elements per pixel; `channels` that are there (a multiple
 * of 16 bytes). */
template <typename T>
static __device__ __forceinline__ void tile_fetch(Shared tile, const T *in, int64_t pitch,
                                                  const Cut &c, int y0, int64_t channels) {
    const int chunks = channels * sizeof(T) < PIXEL_BYTES ? (int)(channels * sizeof(T) / 16) : 8;
    const int me = threadIdx.y * blockDim.x + threadIdx.x, chunk = me % 8;
    const int threads = blockDim.x * blockDim.y, line = c.width + 2;
    for (int i = me / 8; i < (c.rows + 2) * line; i += threads / 8) {
        const int y = y0 - 1 + i / line, x = i % line - 1;
        const bool real = y >= 0 && y < c.height && x >= 0 && x < c.width && chunk < chunks;
        const T *from = in + (real ? ((int64_t)y * c.width + x) * pitch : 0);
        copy_chunk(tile + i * PIXEL_BYTES + chunk * 16,
                   (const char *)from + (real ? chunk * 16 : 0), real);
    }
}

/* Which outputs a strip makes: rows y0, y0+1 of the map, columns x0 .. x1-1. */
typedef struct Strip {
    int y0, x0, x1;
} Strip;

static __device__ __forceinline__ Strip strip_of(const Cut &c, int y0, int item) {
    const int x0 = item % c.parts * c.across;
    return {y0 + item / c.parts * STRIP_ROWS, x0, min(c.width, x0 + c.across)};
}

/* The thread's channels of pixel (y, x) of the map in a tile that begins at row y0. */
template <typename T>
static __device__ __forceinline__ const T *tile_pixel(const char *tile, const Cut &c, int y0, int y,
                                                      int x) {
    return (const T *)(tile + ((y - y0 + 1) * (c.width + 2) + x + 1) * PIXEL_BYTES) +
           threadIdx.x * STRIP_V;
}

/* One column of inputs into the three columns of sums that it touches; `fresh` starts. */
template <typename T>
static __device__ __forceinline__ void
strip_column(float (&past)[STRIP_ROWS][STRIP_V], float (&here)[STRIP_ROWS][STRIP_V],
             float (&fresh)[STRIP_ROWS][STRIP_V], const T *in, int line,
             const float (&w)[9][STRIP_V], const float (&bias)[STRIP_V]) {
    float now[STRIP_ROWS + 2][STRIP_V];
#pragma unroll
    for (int r = 0; r < STRIP_ROWS + 2; r++) pack_load<T, STRIP_V>(now[r], in + r * line);
#pragma unroll
    for (int r = 0; r < STRIP_ROWS; r++)
#pragma unroll
        for (int v = 0; v < STRIP_V; v++) {
            fresh[r][v] = bias[v];
#pragma unroll
            for (int t = 0; t < 3; t++) {
                past[r][v] += w[3 * t + 2][v] * now[r + t][v];
                here[r][v] += w[3 * t + 1][v] * now[r + t][v];
                fresh[r][v] += w[3 * t][v] * now[r + t][v];
            }
        }
}

/* out (+)= bias + sum_t w[t] in[p+t] over a strip; the adjoint takes the taps in reverse order.
 * `out`: pixel 0 of the map at the thread's channels. */
template <typename T>
static __device__ __forceinline__ void
strip_apply(T *out, int64_t pitch, bool add, const char *tile, const Cut &c, int y0, Strip s,
            const float (&w)[9][STRIP_V], const float (&bias)[STRIP_V]) {
    float sum[3][STRIP_ROWS][STRIP_V]; /* three columns that take turns */
    const int line = (c.width + 2) * (PIXEL_BYTES / sizeof(T));
    const T *in = tile_pixel<T>(tile, c, y0, s.y0 - 1, s.x0 - 1);
    T *to = out + ((int64_t)s.y0 * c.width + s.x0) * pitch;
    const bool second = s.y0 + 1 < c.height;
#pragma unroll
    for (int r = 0; r < STRIP_ROWS; r++)
#pragma unroll
        for (int v = 0; v < STRIP_V; v++) sum[1][r][v] = sum[2][r][v] = bias[v];
    strip_column<T>(sum[1], sum[2], sum[0], in, line, w, bias);
    in += PIXEL_BYTES / sizeof(T);
    strip_column<T>(sum[2], sum[0], sum[1], in, line, w, bias);
    for (int x = s.x0; x < s.x1;) {
#pragma unroll
        for (int turn = 0; turn < 3; turn++) { /* column x is in sum[turn] */
            if (x >= s.x1) break;
            in += PIXEL_BYTES / sizeof(T);
            strip_column<T>(sum[turn], sum[(turn + 1) % 3], sum[(turn + 2) % 3], in, line, w, bias);
            pack_put<T, STRIP_V>(to, sum[turn][0], add);
            if (second) pack_put<T, STRIP_V>(to + c.width * pitch, sum[turn][1], add);
            to += pitch;
            x++;
        }
    }
}

/* g[t] += sum over the strip's pixels p of in[p+t] out[p]; total += sum of out. The rows of `out`
 * beyond the map are zeros in its tile. */
template <typename T>
static __device__ __forceinline__ void strip_taps(float (&g)[9][STRIP_V], float (&total)[STRIP_V],
                                                  const char *in_tile, const char *out_tile,
                                                  const Cut &c, int y0, Strip s) {
    float side[3][STRIP_ROWS][STRIP_V] = {}; /* columns x-1, x, x+1 of out, taking turns */
    const int line = (c.width + 2) * (PIXEL_BYTES / sizeof(T));
    const T *in = tile_pixel<T>(in_tile, c, y0, s.y0 - 1, s.x0 - 1);
    const T *out = tile_pixel<T>(out_tile, c, y0, s.y0, s.x0);
    for (int x = s.x0 - 1; x <= s.x1;) {
#pragma unroll
        for (int turn = 0; turn < 3; turn++) { /* column x is in side[turn] */
            if (x > s.x1) break;
            float now[STRIP_ROWS + 2][STRIP_V];
#pragma unroll
            for (int r = 0; r < STRIP_ROWS + 2; r++) pack_load<T, STRIP_V>(now[r], in + r * line);
            float(&next)[STRIP_ROWS][STRIP_V] = side[(turn + 1) % 3];
#pragma unroll
            for (int r = 0; r < STRIP_ROWS; r++) {
                if (x + 1 < s.x1) {
                    pack_load<T, STRIP_V>(next[r], out + r * line);
                } else {
#pragma unroll
                    for (int v = 0; v < STRIP_V; v++) next[r][v] = 0;
                }
#pragma unroll
                for (int v = 0; v < STRIP_V; v++) {
                    total[v] += next[r][v];
#pragma unroll
                    for (int t = 0; t < 9; t++)
                        g[t][v] += now[r + t / 3][v] * side[(turn + 4 - t % 3) % 3][r][v];
                }
            }
            in += PIXEL_BYTES / sizeof(T);
            out += PIXEL_BYTES / sizeof(T);
            x++;
        }
    }
}

/* Joins the values of the block's rows of threads in order: shared[i * lanes + lane] is the sum
 * over the rows of value i of lane threadIdx.x. Begins and ends with a barrier. */
template <int COUNT>
static __device__ __forceinline__ void rows_join(float *shared, const float (&value)[COUNT]) {
    const int lanes = blockDim.x;
    __syncthreads();
    for (int row = 0; row < (int)blockDim.y; row++) {
        if ((int)threadIdx.y == row) {
            float sum[COUNT]; /* all loads before the first store: the compiler may not swap them */
#pragma unroll
            for (int i = 0; i < COUNT; i++)
                sum[i] = row ? shared[i * lanes + threadIdx.x] + value[i] : value[i];
#pragma unroll
            for (int i = 0; i < COUNT; i++) shared[i * lanes + threadIdx.x] = sum[i];
        }
        __syncthreads();
    }
}

#endif
