/* Training images: normalise, flip, erase and mix in one pass (vittt.md 7.3, 7.4). */
#include "kernels/cuda/common.cuh"

#define PHILOX_INLINE static __device__ __forceinline__
#include "core/philox.h"

#define THREADS 256

typedef struct Prepare {
    const uint8_t *x;
    const int32_t *samples; /* [B,8] */
    const float *mix;       /* [8] */
    float mean[3], inverse[3];
    int batch, height, width;
} Prepare;

/* Three N(0,1) values of a pixel by Box-Muller. */
static __device__ void pixel_noise(const int32_t *sample, int pixel, float out[3]) {
    uint32_t r[4] = {(uint32_t)pixel, 0, 0, 0};
    philox_block(r, (uint32_t)sample[5], (uint32_t)sample[6]);
    const float turn = 6.283185307179586f * 0x1p-32f;
    const float far = sqrtf(-2.0f * logf(((float)(r[0] >> 8) + 0.5f) * 0x1p-24f));
    const float again = sqrtf(-2.0f * logf(((float)(r[2] >> 8) + 0.5f) * 0x1p-24f));
    out[0] = far * cosf(turn * (float)r[1]);
    out[1] = far * sinf(turn * (float)r[1]);
    out[2] = again * cosf(turn * (float)r[3]);
}

/* e(b, row, column): one sample's pixel, normalised, flipped, erased. */
static __device__ void sample_pixel(const Prepare &p, int b, int row, int column, float out[3]) {
    const int32_t *s = p.samples + 8 * b;
    const int down = row - s[1], right = column - s[2];
    if (down >= 0 && down < s[3] && right >= 0 && right < s[4]) {
        pixel_noise(s, row * p.width + column, out);
        return;
    }
    const int from = s[0] ? p.width - 1 - column : column;
    const uint8_t *x = p.x + (((int64_t)b * p.height + row) * p.width + from) * 3;
#pragma unroll
    for (int c = 0; c < 3; c++) out[c] = (x[c] / 255.0f - p.mean[c]) * p.inverse[c];
}

template <typename T> __global__ void __launch_bounds__(THREADS) prepare_kernel(T *y, Prepare p) {
    const int64_t i = (int64_t)blockIdx.x * THREADS + threadIdx.x;
    const int pixels = p.height * p.width;
    if (i >= (int64_t)p.batch * pixels) return;
    const int b = (int)(i / pixels), pixel = (int)(i % pixels);
    const int row = pixel / p.width, column = pixel % p.width;
    const float down = row - p.mix[1], right = column - p.mix[2];
    const bool cut = down >= 0 && down < p.mix[3] && right >= 0 && right < p.mix[4];
    const float own = cut ? 0.0f : p.mix[0];
    float a[3] = {0, 0, 0}, other[3] = {0, 0, 0};
    if (own != 0.0f) sample_pixel(p, b, row, column, a);
    if (own != 1.0f) sample_pixel(p, p.batch - 1 - b, row, column, other);
#pragma unroll
    for (int c = 0; c < 3; c++) from_float(y + 3 * i + c, own * a[c] + (1.0f - own) * other[c]);
}

extern "C" Status image_prepare_cuda(Device *d, Tensor y, Tensor x, Tensor samples, Tensor mix,
                                     const float *mean, const float *std) {
    Prepare p = {(const uint8_t *)x.data, (const int32_t *)samples.data, (const float *)mix.data};
    for (int c = 0; c < 3; c++) {
        p.mean[c] = mean[c];
        p.inverse[c] = 1.0f / std[c];
    }
    p.batch = (int)x.shape[0];
    p.height = (int)x.shape[1];
    p.width = (int)x.shape[2];
    const int64_t count = (int64_t)p.batch * p.height * p.width;
    if (count == 0) return STATUS_OK;
    const unsigned blocks = (unsigned)ceil_div(count, THREADS);
    WITH_ACT("image_prepare", y.dtype, T,
             prepare_kernel<T><<<blocks, THREADS, 0, stream_of(d)>>>((T *)y.data, p));
    return launched("image_prepare");
}
