/* LPIPS 0.1 with VGG16 (Zhang et al. 2018; lact_nvs.md 8): how far two pictures are apart in the
 * features of a classifier. Only with weights of the user's: none come with this program.
 *
 * The file is safetensors, F32 (or F64, F16, BF16), with
 *   features.<n>.weight [out, in, 3, 3] and .bias [out] of torchvision's VGG16, n = 0, 2, 5, 7, 10,
 * 12, 14, 17, 19, 21, 24, 26, 28; or net.slice<k>.<n>.weight and .bias, as the package lpips names
 *       the same, k = 1 to 5;
 *   lin<k>.model.1.weight [1, channels, 1, 1], k = 0 to 4: the learned weights of its VGG version.
 * Other tensors in it are passed over.
 *
 * On the CPU; one thread at a time, products are spread over OpenMP's.
 */
#ifndef TTV_TOOLS_LPIPS_H
#define TTV_TOOLS_LPIPS_H

#include <stdint.h>

#include "core/status.h"

typedef struct Lpips Lpips;

#define LPIPS_WEIGHTS_HELP                                                                         \
    "safetensors with the weights of LPIPS 0.1 (VGG): then it is computed, too"

enum { LPIPS_SIDE = 16 }; /* smaller sides leave nothing after four poolings */

/* STATUS_DATA names a tensor that is missing, ill-shaped, not finite, or a negative weight of a
 * lin. */
Status lpips_open(const char *path, Lpips **out);
void lpips_close(Lpips *l); /* NULL is allowed */

/* Pictures [height, width, 3] in 0..1. STATUS_DATA when a side is below LPIPS_SIDE. */
Status lpips_distance(Lpips *l, const float *a, const float *b, int64_t height, int64_t width,
                      double *out);

#endif
