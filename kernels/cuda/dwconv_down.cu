/* The depthwise 3x3 convolution with stride 2 of merging layers, between two relu. Straight from
 * memory: the caches hold what neighbours share.
 */
#include "kernels/cuda/places.cuh"

#define THREADS 256
#define RUN     7 /* places of one thread, side by side: the taps' weights stay in registers */

template <int V>
static __device__ __forceinline__ void taps_load(float (&w)[9][V], const float *from, int c) {
#pragma unroll
    for (int i = 0; i < V; i++)
#pragma unroll
        for (int t = 0; t < 9; t++) w[t][i] = from[(c + i) * 9 + t];
}

/* Thread: V channels of RUN places of a row. */
typedef struct Spot {
    int row, first, c; /* of the map walked over; first < 0: nothing to do */
} Spot;

template <int V>
static __device__ __forceinline__ Spot spot_of(int rows, int columns, int channels) {
    const int packs = channels / V, runs = (columns + RUN - 1) / RUN;
    const int i = blockIdx.x * THREADS + threadIdx.x, run = i / packs;
    if (run >= rows * runs) return {0, -1, 0};
    return {run / runs, run % runs * RUN, i % packs * V};
}

/* relu of V channels at a pixel, 0 outside the map. Reads in any case, so that the reads of all
 * taps are under way together. */
template <typename T, int V>
static __device__ __forceinline__ void relu_load(float (&v)[V], const T *map, const Places &p,
                                                 int h, int w) {
    const bool inside = h >= 0 && h < p.height && w >= 0 && w < p.width;
    pack_load<T, V>(v, map + (inside ? (int64_t)(h * p.width + w) * p.channels : 0));
#pragma unroll
    for (int i = 0; i < V; i++) v[i] = inside ? fmaxf(v[i], 0.0f) : 0.0f;
}

template <typename T, int V>
__global__ void __launch_bounds__(THREADS)
    dwconv3_down_kernel(T *y, const T *x, const float *w, const float *bias, Places p) {
    const Spot s = spot_of<V>(p.rows, p.columns, p.channels);
    if (s.first < 0) return;
    float taps[9][V], start[V];
    taps_load<V>(taps, w, s.c);
#pragma unroll
    for (int i = 0; i < V; i++) start[i] = bias[s.c + i];
    const int last = min(s.first + RUN, p.columns);
    for (int64_t b = blockIdx.y; b < p.batch; b += gridDim.y) {
        const T *map = x + b * p.height * p.width * p.channels + s.c;
        T *out = y + (b * p.rows + s.row) * p.columns * p.channels + s.c;
        for (int column = s.first; column < last; column++) {
            float sum[V], v[9][V];
#pragma unroll
            for (int t = 0; t < 9; t++)
                relu_load<T, V>(v[t], map, p, 2 * s.row + t / 3 - 1, 2 * column + t % 3 - 1);
#pragma unroll
            for (int i = 0; i < V; i++) sum[i] = start[i];
#pragma unroll
            for (int t = 0; t < 9; t++)
#pragma unroll
                for (int i = 0; i < V; i++) sum[i] = fmaf(taps[t][i], v[t][i], sum[i]);
#pragma unroll
            for (int i = 0; i < V; i++) sum[i] = sum[i] > 0 ? sum[i] : 0;
            pack_store<T, V>(out + (int64_t)column * p.channels, sum);
        }
    }
}

/* dy where y > 0, else 0. */
template <typename T, int V>
static __device__ __forceinline__ void slope_load(float (&e)[V], const T *dy, const T *y,
                                                  int64_t at) {
    float v[V];
    pack_load<T, V>(e, dy + at);
    pack_load<T, V>(v, y + at);
#pragma unroll
    for (int i = 0; i < V; i++)
        if (!(v[i] > 0)) e[i] = 0;
}

/* The same of place (row, column) of a sample, 0 where there is none. */
template <typename T, int V>
static __device__ __forceinline__ void slope_at(float (&e)[V], const T *dy, const T *y,
                                                const Places &p, int row, int column) {
    const bool inside = row < p.rows && column < p.columns;
    slope_load<T, V>(e, dy, y,
                     inside ? (int64_t)(row * p.columns + column) * p.channels : (int64_t)0);
#pragma unroll
    for (int i = 0; i < V; i++)
        if (!inside) e[i] = 0;
}

/* d relu(x), V channels, times where x > 0. */
template <typename T, int V>
static __device__ __forceinline__ void dx_put(const Grad &dx, const T *x, int64_t at,
                                              float (&sum)[V]) {
    float v[V];
    pack_load<T, V>(v, x + at);
#pragma unroll
    for (int i = 0; i < V; i++)
        if (!(v[i] > 0)) sum[i] = 0;
    pack_put<T, V>((T *)dx.t.data + at, sum, dx.add);
}

/* Thread: the pixels of a row that RUN columns of places look at, two for each. Places of its own
 * row see an even row by their middle taps; an odd one is seen by the places above with the last
 * taps and by those below with the first. Columns are alike. */
template <typename T, int V>
__global__ void __launch_bounds__(THREADS)
    dwconv3_down_dx_kernel(Grad dx, const T *dy, const T *y, const T *x, const float *w, Places p) {
    const Spot s = spot_of<V>(p.height, p.columns, p.channels);
    if (s.first < 0) return;
    const int above = s.row / 2;
    const bool odd = s.row & 1;
    float w0[3][V], w1[3][V];
#pragma unroll
    for (int t = 0; t < 3; t++)
#pragma unroll
        for (int i = 0; i < V; i++) {
            w0[t][i] = w[(s.c + i) * 9 + (odd ? 6 : 3) + t];
            w1[t][i] = odd ? w[(s.c + i) * 9 + t] : 0.0f;
        }
    const int last = min(s.first + RUN, p.columns);
    for (int64_t b = blockIdx.y; b < p.batch; b += gridDim.y) {
        const int64_t places = b * p.rows * p.columns * p.channels + s.c;
        const int64_t line = (b * p.height + s.row) * p.width * p.channels + s.c;
        float e0[V], e1[V] = {}, next0[V], next1[V] = {};
        slope_at<T, V>(e0, dy + places, y + places, p, above, s.first);
        if (odd) slope_at<T, V>(e1, dy + places, y + places, p, above + 1, s.first);
        for (int column = s.first; column < last; column++) {
            float left[V], right[V];
            slope_at<T, V>(next0, dy + places, y + places, p, above, column + 1);
            if (odd) slope_at<T, V>(next1, dy + places, y + places, p, above + 1, column + 1);
#pragma unroll
            for (int i = 0; i < V; i++) {
                left[i] = fmaf(w0[1][i], e0[i], w1[1][i] * e1[i]);
                right[i] = fmaf(w0[2][i], e0[i], w0[0][i] * next0[i]);
                right[i] += fmaf(w1[2][i], e1[i], w1[0][i] * next1[i]);
                e0[i] = next0[i];
                e1[i] = next1[i];
            }
            const int64_t at = line + (int64_t)(2 * column) * p.channels;
            dx_put<T, V>(dx, x, at, left);
            if (2 * column + 1 < p.width) dx_put<T, V>(dx, x, at + p.channels, right);
        }
    }
}

/* partial[blockIdx.x]: taps [C][9], then the bias [C], over the block's places. Block: 32 lanes of
 * V channels by 8 places. */
template <typename T, int V>
__global__ void __launch_bounds__(THREADS)
    dwconv3_down_dw_kernel(float *partial, const T *dy, const T *y, const T *x, Places p) {
    __shared__ float joined[10 * 32 * V];
    const int lane = threadIdx.x * V, c = blockIdx.y * 32 * V + lane;
    const int64_t places = p.batch * p.rows * p.columns;
    float sum[10][V] = {};
    for (int64_t i = (int64_t)blockIdx.x * 8 + threadIdx.y; c < p.channels && i < places;
         i += (int64_t)gridDim.x * 8) {
        float e[V];
        slope_load<T, V>(e, dy, y, i * p.channels + c);
        const int64_t line = i / p.columns, b = line / p.rows;
        const int row = (int)(line - b * p.rows), column = (int)(i - line * p.columns);
        const T *map = x + b * p.height * p.width * p.channels + c;
        float v[9][V];
#pragma unroll
        for (int t = 0; t < 9; t++)
            relu_load<T, V>(v[t], map, p, 2 * row + t / 3 - 1, 2 * column + t % 3 - 1);
#pragma unroll
        for (int t = 0; t < 9; t++)
#pragma unroll
            for (int k = 0; k < V; k++) sum[t][k] = fmaf(e[k], v[t][k], sum[t][k]);
#pragma unroll
        for (int k = 0; k < V; k++) sum[9][k] += e[k];
    }
    for (int turn = 0; turn < 8; turn++) {
        if ((int)threadIdx.y == turn) {
#pragma unroll
            for (int t = 0; t < 10; t++)
#pragma unroll
                for (int k = 0; k < V; k++) {
                    float *at = joined + t * 32 * V + lane + k;
                    *at = turn ? *at + sum[t][k] : sum[t][k];
                }
        }
        __syncthreads();
    }
    float *out = partial + (int64_t)blockIdx.x * 10 * p.channels;
    for (int j = threadIdx.y * 32 + threadIdx.x; j < 10 * 32 * V; j += THREADS) {
        const int t = j / (32 * V), channel = blockIdx.y * 32 * V + j % (32 * V);
        if (channel >= p.channels) continue;
        out[t < 9 ? channel * 9 + t : 9 * p.channels + channel] = joined[j];
    }
}

/* Whether all maps may be read in packs of 4 channels. */
static bool in_fours(const Places &p, Tensor x, const void *a, const void *b, const void *c) {
    const size_t bytes = 4 * dtype_size(x.dtype);
    return p.channels % 4 == 0 && is_aligned(x.data, bytes) && is_aligned(a, bytes) &&
           is_aligned(b, bytes) && is_aligned(c, bytes);
}

/* Blocks for all runs of a sample, and for as many samples at once as keep the card busy: a thread
 * reads its taps once for all samples that it sees. */
static dim3 runs_grid(Device *d, const Places &p, int rows, int columns, int v) {
    const int64_t runs = rows * ceil_div(columns, RUN) * (p.channels / v);
    const int64_t blocks = ceil_div(runs, THREADS);
    const int64_t samples = ceil_div(6 * backend_of(d)->sm_count, blocks);
    const int64_t most = p.batch < 65535 ? p.batch : 65535;
    return dim3((unsigned)blocks, (unsigned)(samples < most ? samples : most));
}

template <typename T, int V>
static void down_launch(Device *d, Tensor y, Tensor x, Tensor w, Tensor bias, const Places &p) {
    const dim3 grid = runs_grid(d, p, p.rows, p.columns, V);
    dwconv3_down_kernel<T, V><<<grid, THREADS, 0, stream_of(d)>>>(
        (T *)y.data, (const T *)x.data, (const float *)w.data, (const float *)bias.data, p);
}

extern "C" Status dwconv3_down_cuda(Device *d, Tensor y, Tensor x, Tensor w, Tensor bias) {
    if (tensor_count(x) == 0) return STATUS_OK;
    if (y.dtype != x.dtype) return refuse_dtype("dwconv3_down", y.dtype);
    const Places p = places_of(x, 2);
    TRY(fits_sample("dwconv3_down", p));
    WITH_ACT("dwconv3_down", x.dtype, T, {
        if (in_fours(p, x, y.data, NULL, NULL))
            down_launch<T, 4>(d, y, x, w, bias, p);
        else
            down_launch<T, 1>(d, y, x, w, bias, p);
    });
    return launched("dwconv3_down");
}

template <typename T, int V>
static Status down_backward(Device *d, Grad dx, Grad dw, Grad db, Tensor dy, Tensor y, Tensor x,
                            Tensor w, const Places &p) {
    const dim3 grid = runs_grid(d, p, p.height, p.columns, V);
    if (dx.t.data)
        dwconv3_down_dx_kernel<T, V><<<grid, THREADS, 0, stream_of(d)>>>(
            dx, (const T *)dy.data, (const T *)y.data, (const T *)x.data, (const float *)w.data, p);
    TRY(launched("dwconv3_down_backward"));
    if (!dw.t.data && !db.t.data) return STATUS_OK;
    const int64_t places = p.batch * p.rows * p.columns, across = ceil_div(p.channels, 32 * V);
    const int64_t most = ceil_div(8 * backend_of(d)->sm_count, across);
    const int64_t want = ceil_div(places, 32);
    const unsigned parts = (unsigned)(want < most ? want : most);
    float *partial;
    TRY(scratch_take(d, sizeof(float) * 10 * p.channels * parts, (void **)&partial));
    dwconv3_down_dw_kernel<T, V><<<dim3(parts, (unsigned)across), dim3(32, 8), 0, stream_of(d)>>>(
        partial, (const T *)dy.data, (const T *)y.data, (const T *)x.data, p);
    TRY(launched("dwconv3_down_backward"));
    return reduce_partials_two(d, dw, db, partial, partial + 9 * p.channels, parts,
                               10 * p.channels);
}

static Status down_backward_any(Device *d, Grad dx, Grad dw, Grad db, Tensor dy, Tensor y, Tensor x,
                                Tensor w, const Places &p) {
    const bool fours = in_fours(p, x, y.data, dy.data, dx.t.data);
    WITH_ACT("dwconv3_down_backward", x.dtype, T, {
        if (fours) return down_backward<T, 4>(d, dx, dw, db, dy, y, x, w, p);
        return down_backward<T, 1>(d, dx, dw, db, dy, y, x, w, p);
    });
    return STATUS_OK;
}

extern "C" Status dwconv3_down_backward_cuda(Device *d, Grad dx, Grad dw, Grad db, Tensor dy,
                                             Tensor y, Tensor x, Tensor w) {
    if (tensor_count(x) == 0) return STATUS_OK;
    if (dy.dtype != x.dtype || y.dtype != x.dtype)
        return refuse_dtype("dwconv3_down_backward", dy.dtype);
    const Places p = places_of(x, 2);
    TRY(fits_sample("dwconv3_down_backward", p));
    const Status s = down_backward_any(d, dx, dw, db, dy, y, x, w, p);
    scratch_done(d);
    return s;
}
