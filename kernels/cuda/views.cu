/* Posed views as tokens (lact_nvs.md 2). */
#include "kernels/cuda/chain.cuh"

#define THREADS  256
#define CHANNELS 12

typedef struct ViewArgs {
    const float *cameras;
    const uint8_t *rgb;
    int views, inputs, height, width, patch;
} ViewArgs;

/* One thread: a pixel, in the order of the tokens. */
template <typename T> __global__ void view_tokens_kernel(T *y, ViewArgs a, int64_t total) {
    const int64_t i = (int64_t)blockIdx.x * THREADS + threadIdx.x;
    chain_wait();
    if (i >= total) return;
    const int pixels = a.height * a.width, across = a.width / a.patch, area = a.patch * a.patch;
    const int64_t view = i / pixels, scene = view / a.views;
    const int at = (int)(i % pixels), token = at / area, inside = at % area;
    const int v = (int)(view % a.views);
    const int row = token / across * a.patch + inside / a.patch;
    const int column = token % across * a.patch + inside % a.patch;
    float camera[16], out[CHANNELS];
#pragma unroll
    for (int part = 0; part < 4; part++)
        pack_load<float, 4>(*reinterpret_cast<float(*)[4]>(&camera[4 * part]),
                            a.cameras + 16 * view + 4 * part);
    const float x = (column + 0.5f - camera[14]) / camera[12];
    const float down = (row + 0.5f - camera[15]) / camera[13];
    const float inverse = 1.0f / sqrtf(x * x + down * down + 1.0f);
    const uint8_t *colour = a.rgb + ((scene * a.inputs + v) * pixels + row * a.width + column) * 3;
#pragma unroll
    for (int c = 0; c < 3; c++) {
        out[c] = camera[4 * c + 3];
        out[3 + c] = (camera[4 * c] * x + camera[4 * c + 1] * down + camera[4 * c + 2]) * inverse;
        out[9 + c] = v < a.inputs ? 2.0f * (colour[c] / 255.0f) - 1.0f : 0.0f;
    }
#pragma unroll
    for (int c = 0; c < 3; c++) {
        const int j = (c + 1) % 3, k = (c + 2) % 3;
        out[6 + c] = out[j] * out[3 + k] - out[k] * out[3 + j];
    }
#pragma unroll
    for (int part = 0; part < CHANNELS / 4; part++)
        pack_store<T, 4>(y + i * CHANNELS + 4 * part,
                         *reinterpret_cast<float(*)[4]>(&out[4 * part]));
}

extern "C" Status view_tokens_cuda(Device *d, Tensor y, Tensor cameras, Tensor rgb, int64_t height,
                                   int64_t width, int64_t patch) {
    const int64_t total = cameras.shape[0] * cameras.shape[1] * height * width;
    if (total == 0) return STATUS_OK;
    if (!is_aligned(y.data, 16) || !is_aligned(cameras.data, 16) || height * width > INT32_MAX)
        return status_set(STATUS_INTERNAL,
                          "view_tokens on CUDA: unaligned memory or views of "
                          "%lldx%lld pixels",
                          (long long)width, (long long)height);
    ViewArgs a = {};
    a.cameras = (const float *)cameras.data;
    a.rgb = (const uint8_t *)rgb.data;
    a.views = (int)cameras.shape[1];
    a.inputs = rgb.data ? (int)rgb.shape[1] : 0;
    a.height = (int)height, a.width = (int)width, a.patch = (int)patch;
    WITH_ACT("view_tokens", y.dtype, T,
             chain_launch(d, total <= CHAIN_ROWS * 256, (unsigned)ceil_div(total, THREADS), THREADS,
                          0, view_tokens_kernel<T>, (T *)y.data, a, total));
    return launched("view_tokens");
}
