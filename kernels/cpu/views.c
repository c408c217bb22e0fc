/* Posed views as tokens (lact_nvs.md 2). */
#include <math.h>

#include "kernels/cpu/table.h"
#include "kernels/cpu/values.h"

#define CHANNELS 12

/* Channels of pixel (row, column) seen by `camera`; colour NULL: zeros. */
static void pixel_channels(const float *camera, int64_t row, int64_t column, const uint8_t *colour,
                           float *out) {
    const float r[3] = {((float)column + 0.5f - camera[14]) / camera[12],
                        ((float)row + 0.5f - camera[15]) / camera[13], 1};
    const float inverse = 1.0f / sqrtf(r[0] * r[0] + r[1] * r[1] + 1);
    for (int i = 0; i < 3; i++) {
        const float *pose = camera + 4 * i;
        out[i] = pose[3];
        out[3 + i] = (pose[0] * r[0] + pose[1] * r[1] + pose[2]) * inverse;
    }
    for (int i = 0; i < 3; i++) {
        const int a = (i + 1) % 3, b = (i + 2) % 3;
        out[6 + i] = out[a] * out[3 + b] - out[b] * out[3 + a];
        out[9 + i] = colour ? 2 * ((float)colour[i] / 255.0f) - 1 : 0;
    }
}

Status view_tokens_cpu(Device *d, Tensor y, Tensor cameras, Tensor rgb, int64_t height,
                       int64_t width, int64_t patch) {
    (void)d;
    if (!act_dtype(y.dtype)) return refuse_dtype("view_tokens", y.dtype);
    const int64_t views = cameras.shape[1], inputs = rgb.data ? rgb.shape[1] : 0;
    const int64_t across = width / patch, pixels = height * width, count = cameras.shape[0] * views;
    const Grad to = grad_set(y);
#pragma omp parallel for schedule(static) if (count * pixels * CHANNELS >= PARALLEL_MIN)
    for (int64_t line = 0; line < count * (pixels / patch); line++) { /* a row of a patch */
        const int64_t view = line / (pixels / patch), at = line % (pixels / patch);
        const int64_t token = at / patch, scene = view / views, v = view % views;
        const int64_t row = token / across * patch + at % patch, left = token % across * patch;
        const uint8_t *colours =
            v < inputs ? (const uint8_t *)rgb.data + (scene * inputs + v) * pixels * 3 : NULL;
        for (int64_t j = 0; j < patch; j++) {
            float channels[CHANNELS];
            pixel_channels((const float *)cameras.data + 16 * view, row, left + j,
                           colours ? colours + 3 * (row * width + left + j) : NULL, channels);
            values_write(&to, (line * patch + j) * CHANNELS, CHANNELS, channels);
        }
    }
    return STATUS_OK;
}
