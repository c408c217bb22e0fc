/* Depthwise 3x3 for any size and alignment: one channel per thread, straight from memory. */
#include "kernels/cuda/dwconv.cuh"
#include "kernels/cuda/stencil.cuh"

typedef struct MapSize {
    int64_t pixels, channels; /* pixels of the batch */
    int height, width;
} MapSize;

static MapSize size_of(Tensor x) {
    return {x.shape[0] * x.shape[1] * x.shape[2], x.shape[3], (int)x.shape[1], (int)x.shape[2]};
}

/* x[p+t] of channel c, 0 outside the map. */
template <typename T>
static __device__ __forceinline__ float neighbour(const T *x, const MapSize &s, int64_t p,
                                                  int64_t c, int t) {
    const int row = (int)(p / s.width % s.height) + t / 3 - 1,
              column = (int)(p % s.width) + t % 3 - 1;
    if (row < 0 || row >= s.height || column < 0 || column >= s.width) return 0;
    return to_float(x[(p + (t / 3 - 1) * s.width + t % 3 - 1) * s.channels + c]);
}

template <typename T>
__global__ void __launch_bounds__(256) dwconv3_any_kernel(T *y, const T *x, MapSize s, ConvArgs g) {
    const int64_t i = (int64_t)blockIdx.x * 256 + threadIdx.x;
    if (i >= s.pixels * s.channels) return;
    const int64_t p = i / s.channels, c = i % s.channels;
    float w[9][1], sum[1];
    conv_taps<1>(w, sum, g, p / ((int64_t)s.height * s.width), c);
#pragma unroll
    for (int t = 0; t < 9; t++) sum[0] += w[t][0] * neighbour(x, s, p, c, t);
    pack_put<T, 1>(y + i, sum, g.put_add);
}

Status dwconv3_any(Device *d, Tensor y, Tensor x, ConvArgs g) {
    const MapSize s = size_of(x);
    const unsigned grid = (unsigned)ceil_div(s.pixels * s.channels, 256);
    WITH_ACT("dwconv3", x.dtype, T,
             dwconv3_any_kernel<T>
             <<<grid, 256, 0, stream_of(d)>>>((T *)y.data, (const T *)x.data, s, g));
    return launched("dwconv3");
}

/* Block: 32 channels by 8 rows of threads over the part's pixels. */
template <typename T>
__global__ void __launch_bounds__(256)
    dwconv3_taps_any_kernel(const T *x, const T *y, MapSize s, int64_t pixels_per_part,
                            TapsArgs g) {
    __shared__ float joined[10 * 32];
    const int64_t c = (int64_t)blockIdx.y * 32 + threadIdx.x;
    const int64_t begin = blockIdx.x * pixels_per_part,
                  end = min(s.pixels, begin + pixels_per_part);
    float sum[10] = {};
    for (int64_t p = begin + threadIdx.y; c < s.channels && p < end; p += blockDim.y) {
        const float out = to_float(y[p * s.channels + c]);
#pragma unroll
        for (int t = 0; t < 9; t++) sum[t] += out * neighbour(x, s, p, c, t);
        sum[9] += out;
    }
    rows_join<10>(joined, sum);
    taps_put<1>(joined, c, s.channels, g);
}

Status dwconv3_taps_any(Device *d, Tensor x, Tensor y, TapsArgs *g, unsigned *parts) {
    const MapSize s = size_of(x);
    const int64_t across = ceil_div(s.channels, 32);
    int64_t each = (int64_t)s.height * s.width;
    if (!g->per_sample) each = ceil_div(s.pixels, ceil_div(4 * backend_of(d)->sm_count, across));
    *parts = (unsigned)ceil_div(s.pixels, each);
    TRY(scratch_take(d, sizeof(float) * g->stride * *parts, (void **)&g->partial));
    WITH_ACT("dwconv3_taps", x.dtype, T,
             dwconv3_taps_any_kernel<T>
             <<<dim3(*parts, (unsigned)across), dim3(32, 8), 0, stream_of(d)>>>(
                 (const T *)x.data, (const T *)y.data, s, each, *g));
    return launched("dwconv3_taps");
}
