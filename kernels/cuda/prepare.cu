/* Images to what the model reads: normalise, for training also flip, erase and mix (vittt.md 7.3,
 * 7.4), as maps [B,H,W,3] or in patches at once.
 *
 * A thread makes a run of eight pixels of a row. Rows or patches of other lengths, and unaligned
 * views, are done pixel by pixel.
 */
#include "kernels/cuda/common.cuh"

#define PHILOX_INLINE static __device__ __forceinline__
#include "core/philox.h"

#define THREADS 256
#define RUN     8

typedef struct Images {
    const uint8_t *x;
    const int32_t *samples;          /* [B,8]; NULL: normalise only */
    const float *mix;                /* [8] */
    float scale[3], shift[3];        /* (v/255 - mean) / std = scale v + shift */
    int batch, height, width, patch; /* patch 0: maps */
} Images;

/* Three N(0,1) values of a pixel by Box-Muller. */
static __device__ void pixel_noise(const int32_t *sample, int pixel, float out[3]) {
    uint32_t r[4] = {(uint32_t)pixel, 0, 0, 0};
    philox_block(r, (uint32_t)sample[5], (uint32_t)sample[6]);
    const float far = sqrtf(-2.0f * logf(((float)(r[0] >> 8) + 0.5f) * 0x1p-24f));
    const float again = sqrtf(-2.0f * logf(((float)(r[2] >> 8) + 0.5f) * 0x1p-24f));
    float sine, cosine;
    sincospif((float)r[1] * 0x1p-31f, &sine, &cosine);
    out[0] = far * cosine;
    out[1] = far * sine;
    out[2] = again * cospif((float)r[3] * 0x1p-31f);
}

/* Where channel 0 of a pixel goes, and how far apart channels are. */
static __device__ __forceinline__ int64_t pixel_place(const Images &p, int b, int row, int column,
                                                      int *apart) {
    *apart = p.patch ? p.patch * p.patch : 1;
    if (!p.patch) return 3 * (((int64_t)b * p.height + row) * p.width + column);
    const int down = row / p.patch, right = column / p.patch;
    const int64_t token = ((int64_t)b * (p.height / p.patch) + down) * (p.width / p.patch) + right;
    return (3 * token * p.patch + row - down * p.patch) * p.patch + column - right * p.patch;
}

/* ---- runs of eight pixels ------------------------------------------------------------------- */

/* Byte i of three words as a float: 2^23 + byte, less 2^23. */
static __device__ __forceinline__ float byte_value(const uint32_t (&words)[6], int i) {
    return __uint_as_float(__byte_perm(words[i / 4], 0x4b000000u, 0x7540 + i % 4)) - 8388608.0f;
}

template <bool FLIP>
static __device__ __forceinline__ void run_normalise(float (&v)[RUN][3], const Images &p,
                                                     const uint32_t (&words)[6]) {
#pragma unroll
    for (int i = 0; i < RUN; i++)
#pragma unroll
        for (int c = 0; c < 3; c++)
            v[i][c] = byte_value(words, 3 * (FLIP ? RUN - 1 - i : i) + c) * p.scale[c] + p.shift[c];
}

/* e(b, row, column .. column+7): normalised, flipped, erased. */
template <bool PREPARE>
static __device__ __forceinline__ void run_values(float (&v)[RUN][3], const Images &p, int b,
                                                  int row, int column) {
    const int32_t *s = PREPARE ? p.samples + 8 * b : NULL;
    const bool flip = PREPARE && s[0] != 0;
    const int from = flip ? p.width - RUN - column : column;
    const uint2 *x =
        reinterpret_cast<const uint2 *>(p.x + (((int64_t)b * p.height + row) * p.width + from) * 3);
    const uint2 parts[3] = {x[0], x[1], x[2]};
    const uint32_t words[6] = {parts[0].x, parts[0].y, parts[1].x,
                               parts[1].y, parts[2].x, parts[2].y};
    if (flip)
        run_normalise<true>(v, p, words);
    else
        run_normalise<false>(v, p, words);
    if (!PREPARE) return;
    const int down = row - s[1], right = column - s[2];
    if (down < 0 || down >= s[3] || right + RUN <= 0 || right >= s[4]) return;
#pragma unroll
    for (int i = 0; i < RUN; i++)
        if (right + i >= 0 && right + i < s[4]) pixel_noise(s, row * p.width + column + i, v[i]);
}

/* Mixes the partner's values in: v = own v + (1-own) other. */
static __device__ __forceinline__ void run_mix(float (&v)[RUN][3], const Images &p, int b, int row,
                                               int column) {
    const float lambda = p.mix[0], down = row - p.mix[1], right = column - p.mix[2];
    const bool cut_row = down >= 0 && down < p.mix[3];
    const bool cut = cut_row && right + (RUN - 1) >= 0 && right < p.mix[4];
    if (lambda == 1.0f && !cut) return;
    float other[RUN][3];
    run_values<true>(other, p, p.batch - 1 - b, row, column);
#pragma unroll
    for (int i = 0; i < RUN; i++) {
        const bool inside = cut_row && right + i >= 0 && right + i < p.mix[4];
        const float own = inside ? 0.0f : lambda;
#pragma unroll
        for (int c = 0; c < 3; c++) {
            if (own == 0.0f)
                v[i][c] = other[i][c];
            else if (own != 1.0f)
                v[i][c] = own * v[i][c] + (1.0f - own) * other[i][c];
        }
    }
}

template <typename T> static __device__ __forceinline__ void store8(T *to, const float (&v)[RUN]) {
    const int V = 16 / sizeof(T);
#pragma unroll
    for (int part = 0; part < RUN; part += V) {
        float out[V];
#pragma unroll
        for (int i = 0; i < V; i++) out[i] = v[part + i];
        pack_store<T, V>(to + part, out);
    }
}

template <typename T, bool PREPARE>
__global__ void __launch_bounds__(THREADS) image_run_kernel(T *y, Images p) {
    const int i = blockIdx.x * THREADS + threadIdx.x, runs = p.width / RUN;
    if (i >= p.batch * p.height * runs) return;
    const int line = i / runs, column = (i - line * runs) * RUN;
    const int b = line / p.height, row = line - b * p.height;
    float v[RUN][3], out[RUN];
    run_values<PREPARE>(v, p, b, row, column);
    if (PREPARE) run_mix(v, p, b, row, column);
    int apart;
    T *to = y + pixel_place(p, b, row, column, &apart);
#pragma unroll
    for (int part = 0; part < 3; part++) {
#pragma unroll
        for (int k = 0; k < RUN; k++)
            out[k] = p.patch ? v[k][part] : v[(RUN * part + k) / 3][(RUN * part + k) % 3];
        store8<T>(to + part * (p.patch ? apart : RUN), out);
    }
}

/* ---- pixel by pixel ------------------------------------------------------------------------- */

static __device__ void sample_pixel(const Images &p, int b, int row, int column, float out[3]) {
    const int32_t *s = p.samples ? p.samples + 8 * b : NULL;
    const int down = s ? row - s[1] : 0, right = s ? column - s[2] : 0;
    if (s && down >= 0 && down < s[3] && right >= 0 && right < s[4]) {
        pixel_noise(s, row * p.width + column, out);
        return;
    }
    const int from = s && s[0] ? p.width - 1 - column : column;
    const uint8_t *x = p.x + (((int64_t)b * p.height + row) * p.width + from) * 3;
#pragma unroll
    for (int c = 0; c < 3; c++) out[c] = x[c] * p.scale[c] + p.shift[c];
}

template <typename T> __global__ void __launch_bounds__(THREADS) image_any_kernel(T *y, Images p) {
    const int64_t i = (int64_t)blockIdx.x * THREADS + threadIdx.x;
    const int pixels = p.height * p.width;
    if (i >= (int64_t)p.batch * pixels) return;
    const int b = (int)(i / pixels), pixel = (int)(i % pixels);
    const int row = pixel / p.width, column = pixel % p.width;
    float own = 1.0f, a[3] = {0, 0, 0}, other[3] = {0, 0, 0};
    if (p.samples) {
        const float down = row - p.mix[1], right = column - p.mix[2];
        const bool cut = down >= 0 && down < p.mix[3] && right >= 0 && right < p.mix[4];
        own = cut ? 0.0f : p.mix[0];
    }
    if (own != 0.0f) sample_pixel(p, b, row, column, a);
    if (own != 1.0f) sample_pixel(p, p.batch - 1 - b, row, column, other);
    int apart;
    T *to = y + pixel_place(p, b, row, column, &apart);
#pragma unroll
    for (int c = 0; c < 3; c++) from_float(to + c * apart, own * a[c] + (1.0f - own) * other[c]);
}

/* ---- host ----------------------------------------------------------------------------------- */

static Status images_launch(Device *d, const char *name, Tensor y, Tensor x, Images p,
                            const float *mean, const float *std) {
    const int64_t count = tensor_count(x) / 3;
    if (count == 0) return STATUS_OK;
    p.x = (const uint8_t *)x.data;
    p.batch = (int)x.shape[0];
    p.height = (int)x.shape[1];
    p.width = (int)x.shape[2];
    for (int c = 0; c < 3; c++) {
        p.scale[c] = (float)(1.0 / (255.0 * (double)std[c]));
        p.shift[c] = (float)(-(double)mean[c] / (double)std[c]);
    }
    const bool runs = p.width % RUN == 0 && p.patch % RUN == 0 && is_aligned(x.data, 8) &&
                      is_aligned(y.data, 16) && count / RUN < INT32_MAX - THREADS;
    const unsigned blocks = (unsigned)ceil_div(runs ? count / RUN : count, THREADS);
    WITH_ACT(name, y.dtype, T, T *to = (T *)y.data;
             if (!runs) image_any_kernel<T><<<blocks, THREADS, 0, stream_of(d)>>>(to, p);
             else if (p.samples)
                 image_run_kernel<T, true><<<blocks, THREADS, 0, stream_of(d)>>>(to, p);
             else image_run_kernel<T, false><<<blocks, THREADS, 0, stream_of(d)>>>(to, p));
    return launched(name);
}

extern "C" Status image_normalise_cuda(Device *d, Tensor y, Tensor x, const float *mean,
                                       const float *std, int64_t patch) {
    Images p = {};
    p.patch = (int)patch;
    return images_launch(d, "image_normalise", y, x, p, mean, std);
}

extern "C" Status image_prepare_cuda(Device *d, Tensor y, Tensor x, Tensor samples, Tensor mix,
                                     const float *mean, const float *std, int64_t patch) {
    Images p = {};
    p.samples = (const int32_t *)samples.data;
    p.mix = (const float *)mix.data;
    p.patch = (int)patch;
    return images_launch(d, "image_prepare", y, x, p, mean, std);
}
