/* Images to tokens, packed channels to heads and back, mean over tokens. */
#include "kernels/cuda/common.cuh"

#define THREADS 256

static unsigned blocks_of(int64_t n) {
    return (unsigned)ceil_div(n, THREADS);
}

/* One thread: a run of V outputs along kx. y[b, (py px), (c, ky, kx)]. */
template <typename T, int V>
__global__ void patchify_kernel(T *y, const T *x, int64_t total, int height, int width,
                                int channels, int patch) {
    const int64_t i = (int64_t)blockIdx.x * THREADS + threadIdx.x;
    if (i >= total) return;
    const int runs = patch / V, across = width / patch, down = height / patch;
    int64_t rest = i;
    const int kx = (int)(rest % runs) * V;
    rest /= runs;
    const int ky = (int)(rest % patch);
    rest /= patch;
    const int c = (int)(rest % channels);
    rest /= channels;
    const int px = (int)(rest % across);
    rest /= across;
    const int py = (int)(rest % down);
    const int64_t b = rest / down;
    const T *in = x + ((b * height + py * patch + ky) * width + px * patch + kx) * channels + c;
    float out[V];
#pragma unroll
    for (int v = 0; v < V; v++) out[v] = to_float(in[v * channels]);
    pack_store<T, V>(y + i * V, out);
}

/* RGB and patches of whole runs of 8: one thread takes 8 pixels, whose channels part ways. */
template <typename T>
__global__ void patchify_rgb_kernel(T *y, const T *x, int total, int height, int width, int patch) {
    const int i = blockIdx.x * THREADS + threadIdx.x;
    if (i >= total) return;
    const int runs = width / 8, column = i % runs * 8, row = i / runs; /* row of the batch */
    const int py = row % height / patch, ky = row % height % patch;
    const int px = column / patch, kx = column % patch;
    float in[3 * 8];
#pragma unroll
    for (int part = 0; part < 6; part++)
        pack_load<T, 4>(*reinterpret_cast<float(*)[4]>(&in[4 * part]),
                        x + (int64_t)i * 24 + 4 * part);
    const int64_t token = ((int64_t)(row / height) * (height / patch) + py) * (width / patch) + px;
#pragma unroll
    for (int c = 0; c < 3; c++) {
        T *out = y + ((token * 3 + c) * patch + ky) * patch + kx;
#pragma unroll
        for (int part = 0; part < 2; part++) {
            float value[4];
#pragma unroll
            for (int v = 0; v < 4; v++) value[v] = in[3 * (4 * part + v) + c];
            pack_store<T, 4>(out + 4 * part, value);
        }
    }
}

extern "C" Status patchify_cuda(Device *d, Tensor y, Tensor x, int64_t patch) {
    const int64_t n = tensor_count(y);
    if (n == 0) return STATUS_OK;
    if (y.dtype != x.dtype) return refuse_dtype("patchify", x.dtype);
    const int height = (int)x.shape[1], width = (int)x.shape[2], channels = (int)x.shape[3];
    const bool aligned = is_aligned(y.data, 16) && is_aligned(x.data, 16);
    const bool rgb = aligned && patch % 8 == 0 && channels == 3 && n / 24 < INT32_MAX - THREADS;
    const cudaStream_t stream = stream_of(d);
    WITH_ACT("patchify", y.dtype, T, T *to = (T *)y.data; const T *from = (const T *)x.data;
             if (rgb) patchify_rgb_kernel<T><<<blocks_of(n / 24), THREADS, 0, stream>>>(
                 to, from, (int)(n / 24), height, width, (int)patch);
             else if (aligned && patch % 4 == 0) patchify_kernel<T, 4>
             <<<blocks_of(n / 4), THREADS, 0, stream>>>(to, from, n / 4, height, width, channels,
                                                        (int)patch);
             else patchify_kernel<T, 1><<<blocks_of(n), THREADS, 0, stream>>>(
                 to, from, n, height, width, channels, (int)patch));
    return launched("patchify");
}

/* Element i of heads[B,nh,N,dh] beside its place in packed[B,N,P]. */
static __device__ __forceinline__ int64_t packed_place(int64_t i, int64_t heads, int64_t tokens,
                                                       int64_t dh, int64_t pitch, int64_t offset) {
    const int64_t c = i % dh, n = i / dh % tokens, h = i / dh / tokens % heads;
    const int64_t b = i / dh / tokens / heads;
    return (b * tokens + n) * pitch + offset + h * dh + c;
}

template <typename T, int V, bool SPLIT>
__global__ void heads_kernel(T *y, const T *x, int64_t total, int64_t heads, int64_t tokens,
                             int64_t dh, int64_t pitch, int64_t offset, bool add) {
    const int64_t i = ((int64_t)blockIdx.x * THREADS + threadIdx.x) * V;
    if (i >= total) return;
    const int64_t place = packed_place(i, heads, tokens, dh, pitch, offset);
    float value[V];
    pack_load<T, V>(value, x + (SPLIT ? place : i));
    pack_put<T, V>(y + (SPLIT ? i : place), value, add);
}

template <bool SPLIT>
static Status heads_launch(Device *d, const char *name, Tensor y, Tensor x, Tensor heads,
                           Tensor packed, int64_t offset, bool add) {
    const int64_t n = tensor_count(heads), dh = heads.shape[3], pitch = tensor_last(packed);
    if (n == 0) return STATUS_OK;
    if (x.dtype != y.dtype) return refuse_dtype(name, x.dtype);
    const bool whole = dh % 4 == 0 && pitch % 4 == 0 && offset % 4 == 0 && is_aligned(y.data, 16) &&
                       is_aligned(x.data, 16);
    WITH_ACT(name, y.dtype, T,
             if (whole) heads_kernel<T, 4, SPLIT><<<blocks_of(n / 4), THREADS, 0, stream_of(d)>>>(
                 (T *)y.data, (const T *)x.data, n, heads.shape[1], heads.shape[2], dh, pitch,
                 offset, add);
             else heads_kernel<T, 1, SPLIT><<<blocks_of(n), THREADS, 0, stream_of(d)>>>(
                 (T *)y.data, (const T *)x.data, n, heads.shape[1], heads.shape[2], dh, pitch,
                 offset, add));
    return launched(name);
}

extern "C" Status split_heads_cuda(Device *d, Grad y, Tensor packed, int64_t offset) {
    if (tensor_is_none(y.t)) return STATUS_OK;
    return heads_launch<true>(d, "split_heads", y.t, packed, y.t, packed, offset, y.add);
}

extern "C" Status merge_heads_cuda(Device *d, Grad packed, Tensor x, int64_t offset) {
    if (tensor_is_none(packed.t)) return STATUS_OK;
    return heads_launch<false>(d, "merge_heads", packed.t, x, x, packed.t, offset, packed.add);
}

#define TOKEN_LANES   32
#define CHANNEL_LANES 8

/* A layer norm in front of the mean. */
typedef struct MeanNorm {
    const float2 *stats;
    const float *gain, *shift;
} MeanNorm;

/* Block: CHANNEL_LANES V channels of one sample by TOKEN_LANES lanes over its tokens. */
template <typename T, int V, bool NORM>
__global__ void __launch_bounds__(CHANNEL_LANES *TOKEN_LANES)
    mean_tokens_kernel(float *y, const T *x, MeanNorm norm, int64_t tokens, int64_t channels) {
    __shared__ float sums[TOKEN_LANES][CHANNEL_LANES * V];
    const int64_t first = (int64_t)blockIdx.y * CHANNEL_LANES * V, b = blockIdx.x;
    const int at = threadIdx.x * V;
    float sum[V] = {};
    if (first + at < channels)
#pragma unroll 4
        for (int64_t n = threadIdx.y; n < tokens; n += TOKEN_LANES) {
            float value[V];
            pack_load<T, V>(value, x + (b * tokens + n) * channels + first + at);
            const float2 s = NORM ? norm.stats[b * tokens + n] : make_float2(0, 1);
#pragma unroll
            for (int v = 0; v < V; v++) sum[v] += NORM ? (value[v] - s.x) * s.y : value[v];
        }
#pragma unroll
    for (int v = 0; v < V; v++) sums[threadIdx.y][at + v] = sum[v];
    __syncthreads();
    const int c = threadIdx.y * CHANNEL_LANES + threadIdx.x;
    if (c >= CHANNEL_LANES * V || first + c >= channels) return;
    float total = 0;
    for (int lane = 0; lane < TOKEN_LANES; lane++) total += sums[lane][c];
    total /= tokens;
    if (NORM) total = total * norm.gain[first + c] + norm.shift[first + c];
    y[b * channels + first + c] = total;
}

template <typename T, int V, bool NORM>
static void mean_tokens_launch(Device *d, Tensor y, Tensor x, MeanNorm norm) {
    const int64_t channels = x.shape[2];
    const dim3 grid((unsigned)x.shape[0], (unsigned)ceil_div(channels, CHANNEL_LANES * V));
    mean_tokens_kernel<T, V, NORM><<<grid, dim3(CHANNEL_LANES, TOKEN_LANES), 0, stream_of(d)>>>(
        (float *)y.data, (const T *)x.data, norm, x.shape[1], channels);
}

template <bool NORM> static Status mean_tokens_run(Device *d, Tensor y, Tensor x, MeanNorm norm) {
    if (tensor_count(x) == 0) return STATUS_OK;
    WITH_ACT("mean_tokens", x.dtype, T, const int V = 16 / sizeof(T);
             if (x.shape[2] % V == 0 && is_aligned(x.data, 16))
                 mean_tokens_launch<T, V, NORM>(d, y, x, norm);
             else mean_tokens_launch<T, 1, NORM>(d, y, x, norm));
    return launched("mean_tokens");
}

extern "C" Status mean_tokens_cuda(Device *d, Tensor y, Tensor x) {
    return mean_tokens_run<false>(d, y, x, MeanNorm{});
}

extern "C" Status norm_mean_tokens_cuda(Device *d, Tensor y, Tensor x, Tensor stats, Tensor gain,
                                        Tensor shift) {
    return mean_tokens_run<true>(
        d, y, x, {(const float2 *)stats.data, (const float *)gain.data, (const float *)shift.data});
}

/* Grid: packs of one sample by samples. */
template <typename T, int V>
__global__ void mean_tokens_backward_kernel(T *dx, bool add, const float *dy, int64_t batch,
                                            int tokens, int channels) {
    const int64_t i = ((int64_t)blockIdx.x * THREADS + threadIdx.x) * V;
    const int64_t each = (int64_t)tokens * channels;
    if (i >= each) return;
    const int c = (int)(i % channels);
    const float inverse = 1.0f / tokens;
    for (int64_t b = blockIdx.y; b < batch; b += gridDim.y) {
        float value[V];
        pack_load<float, V>(value, dy + b * channels + c);
#pragma unroll
        for (int v = 0; v < V; v++) value[v] *= inverse;
        pack_put<T, V>(dx + b * each + i, value, add);
    }
}

extern "C" Status mean_tokens_backward_cuda(Device *d, Grad dx, Tensor dy) {
    const int64_t n = tensor_is_none(dx.t) ? 0 : tensor_count(dx.t);
    if (n == 0) return STATUS_OK;
    const int64_t batch = dx.t.shape[0], tokens = dx.t.shape[1], channels = dx.t.shape[2];
    const int64_t unit = 16 / (int64_t)dtype_size(dx.t.dtype);
    const bool packed =
        channels % unit == 0 && is_aligned(dx.t.data, 16) && is_aligned(dy.data, 32);
    const dim3 grid(blocks_of(tokens * channels / (packed ? unit : 1)),
                    (unsigned)(batch < 65535 ? batch : 65535));
    WITH_ACT(
        "mean_tokens_backward", dx.t.dtype, T, T *to = (T *)dx.t.data;
        const float *from = (const float *)dy.data;
        if (packed) mean_tokens_backward_kernel<T, 16 / sizeof(T)>
        <<<grid, THREADS, 0, stream_of(d)>>>(to, dx.add, from, batch, (int)tokens, (int)channels);
        else mean_tokens_backward_kernel<T, 1>
        <<<grid, THREADS, 0, stream_of(d)>>>(to, dx.add, from, batch, (int)tokens, (int)channels));
    return launched("mean_tokens_backward");
}
