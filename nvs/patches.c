#include "nvs/patches.h"

#include <string.h>

static Status check_sides(int64_t height, int64_t width, int64_t patch) {
    if (patch >= 1 && height >= patch && width >= patch && height % patch == 0 &&
        width % patch == 0)
        return STATUS_OK;
    return status_set(STATUS_DATA,
                      "view is %lldx%lld pixels (width x height), expected multiples of the patch "
                      "%lld",
                      (long long)width, (long long)height, (long long)patch);
}

static Status check_rgb(Tensor rgb, int64_t height, int64_t width) {
    char text[64];
    if (rgb.rank == 3 && rgb.shape[0] == height && rgb.shape[1] == width && rgb.shape[2] == 3 &&
        (rgb.dtype == DTYPE_U8 || rgb.dtype == DTYPE_F32))
        return STATUS_OK;
    return status_set(STATUS_DATA, "image is %s %s, expected [%lld, %lld, 3] U8 or F32",
                      tensor_shape_text(rgb, text, sizeof text), dtype_name(rgb.dtype),
                      (long long)height, (long long)width);
}

/* Colour of a pixel, 0..1. */
static float colour(Tensor rgb, int64_t pixel, int c) {
    if (rgb.dtype == DTYPE_U8) return (float)((const uint8_t *)rgb.data)[3 * pixel + c] / 255.0f;
    return ((const float *)rgb.data)[3 * pixel + c];
}

/* Where pixel (row, column) stands in patches of `channels` values a pixel. */
static int64_t patch_index(int64_t row, int64_t column, int64_t width, int64_t patch,
                           int64_t channels) {
    const int64_t token = row / patch * (width / patch) + column / patch;
    return ((token * patch + row % patch) * patch + column % patch) * channels;
}

Status view_tokens(const Camera *c, int64_t height, int64_t width, int64_t patch, Tensor rgb,
                   float *tokens) {
    TRY(check_sides(height, width, patch));
    if (!tensor_is_none(rgb)) TRY(check_rgb(rgb, height, width));
    for (int64_t i = 0; i < height; i++) {
        for (int64_t j = 0; j < width; j++) {
            float *out = tokens + patch_index(i, j, width, patch, VIEW_CHANNELS);
            double o[3], d[3];
            camera_ray(c, (double)i, (double)j, o, d);
            for (int k = 0; k < 3; k++) {
                const int a = (k + 1) % 3, b = (k + 2) % 3;
                out[k] = (float)o[k];
                out[3 + k] = (float)d[k];
                out[6 + k] = (float)(o[a] * d[b] - o[b] * d[a]);
                out[9 + k] = tensor_is_none(rgb) ? 0 : 2 * colour(rgb, i * width + j, k) - 1;
            }
        }
    }
    return STATUS_OK;
}

Status image_to_patches(Tensor rgb, int64_t patch, float *patches) {
    const int64_t height = rgb.rank == 3 ? rgb.shape[0] : 0,
                  width = rgb.rank == 3 ? rgb.shape[1] : 0;
    TRY(check_rgb(rgb, height, width));
    TRY(check_sides(height, width, patch));
    for (int64_t i = 0; i < height; i++)
        for (int64_t j = 0; j < width; j++)
            for (int c = 0; c < 3; c++)
                patches[patch_index(i, j, width, patch, 3) + c] = colour(rgb, i * width + j, c);
    return STATUS_OK;
}

Status image_from_patches(const float *patches, int64_t height, int64_t width, int64_t patch,
                          float *rgb) {
    TRY(check_sides(height, width, patch));
    for (int64_t i = 0; i < height; i++)
        for (int64_t j = 0; j < width; j++)
            memcpy(rgb + 3 * (i * width + j), patches + patch_index(i, j, width, patch, 3),
                   3 * sizeof *rgb);
    return STATUS_OK;
}
