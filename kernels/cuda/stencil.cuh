/* 3x3 depthwise stencils over channels-last maps, for V neighbouring channels and two rows at a
 * time.
 *
 * A thread walks along x. Each loaded pixel is used at once for the (up to six) outputs that it
 * touches, so three columns of accumulators roll along instead of a window of inputs: four loads
 * make two outputs, and neighbouring rows meet in L1. Pixels outside the map are zero. Tap index:
 * (ty+1)*3 + tx+1.
 */
#ifndef TTV_KERNELS_CUDA_STENCIL_CUH
#define TTV_KERNELS_CUDA_STENCIL_CUH

#include "kernels/cuda/common.cuh"

#define STRIP_ROWS 2

/* One sample's map: `data` at (pixel 0, the thread's first channel), `pitch` elements per pixel. */
template <typename T> struct Map {
    T *data;
    int64_t pitch;
    int height, width;
};

template <typename T>
static __device__ __forceinline__ Map<T> map_of(T *data, int64_t pitch, int height, int width) {
    Map<T> m;
    m.data = data;
    m.pitch = pitch;
    m.height = height;
    m.width = width;
    return m;
}

/* Pixels (first .. first+ROWS-1, x); zeros outside. */
template <typename T, int V, int ROWS>
static __device__ __forceinline__ void column_load(float (&out)[ROWS][V], const Map<const T> &m,
                                                   int first, int x) {
#pragma unroll
    for (int r = 0; r < ROWS; r++) {
        const int y = first + r;
        if (y >= 0 && y < m.height && x >= 0 && x < m.width) {
            pack_load<T, V>(out[r], m.data + ((int64_t)y * m.width + x) * m.pitch);
        } else {
#pragma unroll
            for (int v = 0; v < V; v++) out[r][v] = 0;
        }
    }
}

/* out rows y0, y0+1 (+)= bias + sum_t w[t] in[p+t]. The adjoint takes the taps in reverse order. */
template <typename T, int V>
static __device__ __forceinline__ void strip_apply(const Map<T> &out, bool add,
                                                   const Map<const T> &in, int y0,
                                                   const float (&w)[9][V], const float (&bias)[V]) {
    float sum[3][STRIP_ROWS][V]; /* output columns x-1, x, x+1 */
    float next[STRIP_ROWS + 2][V];
#pragma unroll
    for (int c = 0; c < 3; c++)
#pragma unroll
        for (int r = 0; r < STRIP_ROWS; r++)
#pragma unroll
            for (int v = 0; v < V; v++) sum[c][r][v] = bias[v];
    column_load<T, V, STRIP_ROWS + 2>(next, in, y0 - 1, 0);
    for (int x = 0; x <= in.width; x++) {
        float now[STRIP_ROWS + 2][V];
#pragma unroll
        for (int r = 0; r < STRIP_ROWS + 2; r++)
#pragma unroll
            for (int v = 0; v < V; v++) now[r][v] = next[r][v];
        column_load<T, V, STRIP_ROWS + 2>(next, in, y0 - 1, x + 1);
#pragma unroll
        for (int r = 0; r < STRIP_ROWS; r++)
#pragma unroll
            for (int t = 0; t < 9; t++)
#pragma unroll
                for (int v = 0; v < V; v++) sum[2 - t % 3][r][v] += w[t][v] * now[r + t / 3][v];
#pragma unroll
        for (int r = 0; r < STRIP_ROWS; r++) {
            if (x > 0 && y0 + r < out.height)
                pack_put<T, V>(out.data + ((int64_t)(y0 + r) * out.width + x - 1) * out.pitch,
                               sum[0][r], add);
#pragma unroll
            for (int v = 0; v < V; v++) {
                sum[0][r][v] = sum[1][r][v];
                sum[1][r][v] = sum[2][r][v];
                sum[2][r][v] = bias[v];
            }
        }
    }
}

/* g[t] += sum over the pixels p of rows y0, y0+1 of in[p+t] out[p]; total += sum of out. */
template <typename T, int V>
static __device__ __forceinline__ void strip_taps(float (&g)[9][V], float (&total)[V],
                                                  const Map<const T> &in, const Map<const T> &out,
                                                  int y0) {
    float side[3][STRIP_ROWS][V]; /* columns x-1, x, x+1 of out */
    column_load<T, V, STRIP_ROWS>(side[1], out, y0, -1);
    column_load<T, V, STRIP_ROWS>(side[2], out, y0, 0);
    for (int x = 0; x < in.width; x++) {
        float now[STRIP_ROWS + 2][V];
        column_load<T, V, STRIP_ROWS + 2>(now, in, y0 - 1, x);
#pragma unroll
        for (int r = 0; r < STRIP_ROWS; r++)
#pragma unroll
            for (int v = 0; v < V; v++) {
                side[0][r][v] = side[1][r][v];
                side[1][r][v] = side[2][r][v];
                total[v] += side[1][r][v];
            }
        column_load<T, V, STRIP_ROWS>(side[2], out, y0, x + 1);
#pragma unroll
        for (int r = 0; r < STRIP_ROWS; r++)
#pragma unroll
            for (int t = 0; t < 9; t++)
#pragma unroll
                for (int v = 0; v < V; v++) g[t][v] += now[r + t / 3][v] * side[2 - t % 3][r][v];
    }
}

/* Joins the values of the block's row lanes (threadIdx.y) in order: shared[i * lanes + lane] is the
 * sum over the rows of value i of lane threadIdx.x. Ends with a barrier. */
template <int COUNT>
static __device__ __forceinline__ void rows_join(float *shared, const float (&value)[COUNT]) {
    const int lanes = blockDim.x;
    for (int row = 0; row < (int)blockDim.y; row++) {
        if ((int)threadIdx.y == row) {
#pragma unroll
            for (int i = 0; i < COUNT; i++) {
                float *at = shared + i * lanes + threadIdx.x;
                *at = row ? *at + value[i] : value[i];
            }
        }
        __syncthreads();
    }
}

/* Block of 256 threads: lanes over channel packs, rows over strips. */
static inline dim3 stencil_block(int64_t packs) {
    int lanes = 1;
    while (lanes < 32 && lanes < packs) lanes *= 2;
    return dim3(lanes, 256 / lanes);
}

#endif
