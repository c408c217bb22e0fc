/* Affine transforms of 8-bit RGB with the arithmetic of Pillow's Image.transform and Image.rotate:
 * not a byte differs (tests/data/images/policy.tsv). */
#ifndef TTV_DATASETS_AFFINE_H
#define TTV_DATASETS_AFFINE_H

#include <stddef.h>
#include <stdint.h>

typedef enum AffineFilter { AFFINE_NEAREST, AFFINE_BILINEAR, AFFINE_BICUBIC } AffineFilter;

/* Where an output point (x, y) comes from: (m[0] x + m[1] y + m[2], m[3] x + m[4] y + m[5]), with
 * pixel centres at half-integers. */
typedef struct Affine {
    double m[6];
} Affine;

Affine affine_shear(double x, double y);
Affine affine_translation(double x, double y);
/* Counter-clockwise about the middle of a width x height picture. */
Affine affine_rotation(double degrees, int64_t width, int64_t height);

/* Bytes of `work` below, which is aligned for integers. */
size_t affine_work_bytes(int64_t width, int64_t height);
/* In place; what comes from outside gets the colour `fill`. Not antialiased. */
void affine_apply(uint8_t *rgb, int64_t width, int64_t height, const Affine *a, AffineFilter filter,
                  const uint8_t fill[3], void *work);

#endif
