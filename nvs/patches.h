/* Views as tokens (lact_nvs.md 2): rays and colours in, colours out.
 *
 * Tokens stand in the order patch row, patch column; inside a token row, column, channel, the
 * channel fastest. 12 channels for each pixel: ray origin, direction, origin x direction, and
 * 2 rgb - 1 (input views) or zeros (target views).
 */
#ifndef TTV_NVS_PATCHES_H
#define TTV_NVS_PATCHES_H

#include "core/tensor.h"
#include "nvs/camera.h"

#define VIEW_CHANNELS 12

/* One view: [(height/p)(width/p), 12 p^2] floats to `tokens`. rgb: [height, width, 3] on the host,
 * U8 or F32 in 0..1; none for a target view. STATUS_DATA when sides are no multiples of the patch
 * or rgb has another shape. */
Status view_tokens(const Camera *c, int64_t height, int64_t width, int64_t patch, Tensor rgb,
                   float *tokens);

/* An image [height, width, 3], U8 or F32, as patches [l, 3 p^2] in 0..1, and back as F32. */
Status image_to_patches(Tensor rgb, int64_t patch, float *patches);
Status image_from_patches(const float *patches, int64_t height, int64_t width, int64_t patch,
                          float *rgb);

#endif
