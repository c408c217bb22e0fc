/* Images to what the model reads: normalise, for training also flip, erase and mix in one pass
 * (vittt.md 7.3, 7.4). */
#include <math.h>

#include "core/philox.h"
#include "kernels/cpu/table.h"
#include "kernels/cpu/values.h"

typedef struct Prepare {
    const uint8_t *x;
    const int32_t *samples; /* [B,8] */
    const float *mean;
    float inverse[3];
    int64_t height, width;
} Prepare;

/* Three N(0,1) values of a pixel by Box-Muller, in single precision as on the device. */
static void pixel_noise(const int32_t *sample, int64_t pixel, float out[3]) {
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
static void sample_pixel(const Prepare *p, int64_t b, int64_t row, int64_t column, float out[3]) {
    const int32_t *s = p->samples + 8 * b;
    const int64_t down = row - s[1], right = column - s[2];
    if (down >= 0 && down < s[3] && right >= 0 && right < s[4]) {
        pixel_noise(s, row * p->width + column, out);
        return;
    }
    const int64_t from = s[0] ? p->width - 1 - column : column;
    const uint8_t *x = p->x + ((b * p->height + row) * p->width + from) * 3;
    for (int c = 0; c < 3; c++) out[c] = ((float)x[c] / 255.0f - p->mean[c]) * p->inverse[c];
}

static void mix_row(const Prepare *p, const float *mix, int64_t b, int64_t partner, int64_t row,
                    float *out) {
    const float down = (float)row - mix[1];
    const bool row_in_cut = down >= 0.0f && down < mix[3];
    for (int64_t column = 0; column < p->width; column++, out += 3) {
        const float right = (float)column - mix[2];
        const bool cut = row_in_cut && right >= 0.0f && right < mix[4];
        const float own = cut ? 0.0f : mix[0];
        float a[3] = {0}, other[3] = {0};
        if (own != 0.0f) sample_pixel(p, b, row, column, a);
        if (own != 1.0f) sample_pixel(p, partner, row, column, other);
        for (int c = 0; c < 3; c++) out[c] = own * a[c] + (1.0f - own) * other[c];
    }
}

/* One row of an image, [width][3] values, to its place in y: maps (patch 0) or patches. `run` has
 * room for a patch's row. */
static void row_write(const Grad *to, int64_t image_row, int64_t height, int64_t width,
                      int64_t patch, const float *row, float *run) {
    if (patch == 0) {
        values_write(to, image_row * width * 3, width * 3, row);
        return;
    }
    const int64_t b = image_row / height, y = image_row % height;
    const int64_t first = (b * (height / patch) + y / patch) * (width / patch);
    for (int64_t x = 0; x < width; x += patch) {
        for (int64_t c = 0; c < 3; c++) {
            for (int64_t i = 0; i < patch; i++) run[i] = row[(x + i) * 3 + c];
            values_write(to, (((first + x / patch) * 3 + c) * patch + y % patch) * patch, patch,
                         run);
        }
    }
}

Status image_prepare_cpu(Device *d, Tensor y, Tensor x, Tensor samples, Tensor mix,
                         const float *mean, const float *std, int64_t patch) {
    if (!act_dtype(y.dtype) || x.dtype != DTYPE_U8) return refuse_dtype("image_prepare", y.dtype);
    const int64_t batch = x.shape[0], height = x.shape[1], width = x.shape[2];
    const Prepare p = {x.data, samples.data, mean, {1.0f / std[0], 1.0f / std[1], 1.0f / std[2]},
                       height, width};
    const Grad to = grad_set(y);
    const int64_t room = 3 * width + patch;
    float *rows;
    TRY(scratch_floats(d, batch * room, &rows));
#pragma omp parallel for schedule(static)
    for (int64_t b = 0; b < batch; b++) {
        float *out = rows + b * room;
        for (int64_t row = 0; row < height; row++) {
            mix_row(&p, mix.data, b, batch - 1 - b, row, out);
            row_write(&to, b * height + row, height, width, patch, out, out + 3 * width);
        }
    }
    return scratch_done(d, STATUS_OK);
}

/* The values of 3 * pixels bytes. */
static void bytes_normalise(float *out, const uint8_t *in, int64_t pixels, float (*table)[3]) {
    for (int64_t i = 0; i < pixels; i++) {
        for (int c = 0; c < 3; c++) out[3 * i + c] = table[in[3 * i + c]][c];
    }
}

static Status normalise_patches(Device *d, Tensor y, Tensor x, float (*table)[3], int64_t patch) {
    const int64_t height = x.shape[1], width = x.shape[2], rows = x.shape[0] * height;
    const int64_t parts = min_i64(rows, 64), room = 3 * width + patch;
    const uint8_t *in = x.data;
    const Grad to = grad_set(y);
    float *buffers;
    TRY(scratch_floats(d, parts * room, &buffers));
#pragma omp parallel for schedule(static) if (rows * width >= PARALLEL_MIN)
    for (int64_t part = 0; part < parts; part++) {
        float *out = buffers + part * room;
        for (int64_t row = rows * part / parts; row < rows * (part + 1) / parts; row++) {
            bytes_normalise(out, in + row * width * 3, width, table);
            row_write(&to, row, height, width, patch, out, out + 3 * width);
        }
    }
    return STATUS_OK;
}

Status image_normalise_cpu(Device *d, Tensor y, Tensor x, const float *mean, const float *std,
                           int64_t patch) {
    if (x.dtype != DTYPE_U8) return refuse_dtype("image_normalise", x.dtype);
    if (!act_dtype(y.dtype)) return refuse_dtype("image_normalise (y)", y.dtype);
    /* Exactly (v/255 - mean)/std in F32 for every byte value: one table for all pixels. */
    float table[256][3];
    for (int v = 0; v < 256; v++) {
        for (int c = 0; c < 3; c++) table[v][c] = ((float)v / 255.0f - mean[c]) / std[c];
    }
    if (patch > 0) return scratch_done(d, normalise_patches(d, y, x, table, patch));
    const int64_t pixels = tensor_count(x) / 3;
    const uint8_t *in = x.data;
    const Grad to = grad_set(y);
#pragma omp parallel for schedule(static) if (pixels >= PARALLEL_MIN)
    for (int64_t start = 0; start < pixels; start += CHUNK / 3) {
        float buffer[CHUNK];
        const int64_t n = min_i64(CHUNK / 3, pixels - start);
        float *out = values_target(&to, start * 3, buffer);
        bytes_normalise(out, in + 3 * start, n, table);
        values_write(&to, start * 3, 3 * n, out);
    }
    return STATUS_OK;
}
