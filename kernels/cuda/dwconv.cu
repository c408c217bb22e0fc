/* Depthwise 3x3 on [B,H,W,C]: application (and its adjoint), and the gradient of the taps. */
#include "kernels/cuda/stencil.cuh"

typedef struct ConvArgs {
    const float *w, *bias; /* w[Bw,C,9]; bias[C] or NULL */
    int64_t w_step;        /* from one sample's taps to the next; 0: shared */
    int64_t batch, channels;
    int height, width;
    bool transpose, add_input, put_add;
} ConvArgs;

template <typename T, int V>
__global__ void __launch_bounds__(256) dwconv3_kernel(T *y, const T *x, ConvArgs g) {
    const int64_t c = ((int64_t)blockIdx.y * blockDim.x + threadIdx.x) * V;
    const int strips = (g.height + STRIP_ROWS - 1) / STRIP_ROWS;
    const int64_t item = (int64_t)blockIdx.x * blockDim.y + threadIdx.y;
    if (c >= g.channels || item >= g.batch * strips) return;
    const int64_t b = item / strips;
    const int y0 = (int)(item % strips) * STRIP_ROWS;
    float w[9][V], bias[V];
#pragma unroll
    for (int v = 0; v < V; v++) {
        const float *taps = g.w + b * g.w_step + (c + v) * 9;
#pragma unroll
        for (int t = 0; t < 9; t++) w[t][v] = taps[g.transpose ? 8 - t : t];
        if (g.add_input) w[4][v] += 1.0f;
        bias[v] = g.bias ? g.bias[c + v] : 0.0f;
    }
    const int64_t base = b * g.height * g.width * g.channels + c;
    const Map<T> out = map_of<T>(y + base, g.channels, g.height, g.width);
    const Map<const T> in = map_of<const T>(x + base, g.channels, g.height, g.width);
    strip_apply<T, V>(out, g.put_add, in, y0, w, bias);
}

template <typename T, int V>
static void dwconv3_launch(Device *d, Tensor y, Tensor x, const ConvArgs &g) {
    const dim3 block = stencil_block(ceil_div(g.channels, V));
    const int64_t items = g.batch * ceil_div(g.height, STRIP_ROWS);
    const dim3 grid((unsigned)ceil_div(items, block.y),
                    (unsigned)ceil_div(g.channels, (int64_t)block.x * V));
    dwconv3_kernel<T, V><<<grid, block, 0, stream_of(d)>>>((T *)y.data, (const T *)x.data, g);
}

extern "C" Status dwconv3_cuda(Device *d, Grad y, Tensor x, Tensor w, Tensor bias, TapMode mode,
                               bool add_input) {
    if (tensor_is_none(y.t) || tensor_count(x) == 0) return STATUS_OK;
    if (y.t.dtype != x.dtype) return refuse_dtype("dwconv3", x.dtype);
    ConvArgs g = {};
    g.w = (const float *)w.data;
    g.bias = (const float *)bias.data;
    g.batch = x.shape[0];
    g.height = (int)x.shape[1];
    g.width = (int)x.shape[2];
    g.channels = x.shape[3];
    g.w_step = w.shape[0] == 1 ? 0 : g.channels * 9;
    g.transpose = mode == TAPS_TRANSPOSE;
    g.add_input = add_input;
    g.put_add = y.add;
    const bool packed = g.channels % 4 == 0 && is_aligned(x.data, 16) && is_aligned(y.t.data, 16);
    WITH_ACT("dwconv3", x.dtype, T, if (packed) dwconv3_launch<T, 4>(d, y.t, x, g);
             else dwconv3_launch<T, 1>(d, y.t, x, g));
    return launched("dwconv3");
}

/* ---- gradient of the taps
 * -------------------------------------------------------------------------- partial[part][C*9 +
 * C]: taps, then the sum of y. A part is a sample (`per_sample`) or a share of all strips of the
 * batch. */

typedef struct TapsArgs {
    float *partial;
    int64_t stride; /* floats per part */
    int64_t batch, channels;
    int height, width;
    bool per_sample, sums;
} TapsArgs;

template <typename T, int V>
__global__ void __launch_bounds__(256) dwconv3_taps_kernel(const T *x, const T *y, TapsArgs g) {
    extern __shared__ float shared[];
    const int64_t c = ((int64_t)blockIdx.y * blockDim.x + threadIdx.x) * V;
    const int strips = (g.height + STRIP_ROWS - 1) / STRIP_ROWS;
    const int64_t part = blockIdx.x, rows = blockDim.y;
    const int64_t first = g.per_sample ? part * strips + threadIdx.y : part * rows + threadIdx.y;
    const int64_t end = g.per_sample ? (part + 1) * strips : g.batch * strips;
    const int64_t step = g.per_sample ? rows : rows * gridDim.x;
    float sum[10][V] = {};
    float(&taps)[9][V] = *reinterpret_cast<float(*)[9][V]>(&sum[0]);
    for (int64_t item = first; c < g.channels && item < end; item += step) {
        const int64_t base = item / strips * g.height * g.width * g.channels + c;
        strip_taps<T, V>(taps, sum[9], map_of<const T>(x + base, g.channels, g.height, g.width),
                         map_of<const T>(y + base, g.channels, g.height, g.width),
                         (int)(item % strips) * STRIP_ROWS);
    }
    rows_join<10 * V>(shared, *reinterpret_cast<float(*)[10 * V]>(&sum[0]));
    const int lanes = blockDim.x;
    for (int i = threadIdx.y; i < 10 * V; i += (int)rows) {
        const int t = i / V, v = i % V;
        if (c >= g.channels || (t == 9 && !g.sums)) continue;
        float *at =
            g.partial + part * g.stride + (t < 9 ? (c + v) * 9 + t : g.channels * 9 + c + v);
        *at = shared[i * lanes + threadIdx.x];
    }
}

template <typename T, int V>
static void taps_launch(Device *d, Tensor x, Tensor y, unsigned parts, const TapsArgs &g) {
    const dim3 block = stencil_block(ceil_div(g.channels, V));
    const dim3 grid(parts, (unsigned)ceil_div(g.channels, (int64_t)block.x * V));
    const size_t bytes = sizeof(float) * 10 * V * block.x;
    dwconv3_taps_kernel<T, V>
        <<<grid, block, bytes, stream_of(d)>>>((const T *)x.data, (const T *)y.data, g);
}

/* Enough parts to fill the card about four times over, no more than there are strips. */
static unsigned taps_parts(Device *d, const TapsArgs *g, int V) {
    const dim3 block = stencil_block(ceil_div(g->channels, V));
    const int64_t across = ceil_div(g->channels, (int64_t)block.x * V);
    const int64_t most = ceil_div(g->batch * ceil_div(g->height, STRIP_ROWS), block.y);
    const int64_t want = ceil_div(8 * backend_of(d)->sm_count, across);
    return (unsigned)(want < most ? want : most);
}

extern "C" Status dwconv3_taps_cuda(Device *d, Grad g, Grad sum_y, Tensor x, Tensor y,
                                    float alpha) {
    if ((tensor_is_none(g.t) && tensor_is_none(sum_y.t)) || tensor_count(x) == 0) return STATUS_OK;
    if (y.dtype != x.dtype) return refuse_dtype("dwconv3_taps", y.dtype);
    TapsArgs a = {};
    a.batch = x.shape[0];
    a.height = (int)x.shape[1];
    a.width = (int)x.shape[2];
    a.channels = x.shape[3];
    a.per_sample = !tensor_is_none(g.t) && g.t.shape[0] == a.batch && a.batch > 1;
    a.sums = !a.per_sample && !tensor_is_none(sum_y.t);
    a.stride = a.channels * 9 + (a.sums ? a.channels : 0);
    const bool packed = a.channels % 4 == 0 && is_aligned(x.data, 16) && is_aligned(y.data, 16);
    const unsigned parts = a.per_sample ? (unsigned)a.batch : taps_parts(d, &a, packed ? 4 : 1);
    TRY(scratch_take(d, sizeof(float) * a.stride * parts, (void **)&a.partial));
    WITH_ACT("dwconv3_taps", x.dtype, T, if (packed) taps_launch<T, 4>(d, x, y, parts, a);
             else taps_launch<T, 1>(d, x, y, parts, a));
    Status status = launched("dwconv3_taps");
    if (status == STATUS_OK) /* samples lie one after the other: a single part */
        status = reduce_partials(d, g, a.partial, a.per_sample ? 1 : parts, a.stride, alpha);
    if (status == STATUS_OK && a.sums)
        status = reduce_partials(d, sum_y, a.partial + a.channels * 9, parts, a.stride, 1.0f);
    scratch_done(d);
    return status;
}
