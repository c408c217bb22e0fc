#include "datasets/affine.h"

#include <math.h>
#include <stdbool.h>
#include <string.h>

/* Four channels at a time: the fourth is padding that makes loads and sums whole vectors. They go
 * through pointers, since how such vectors are passed depends on the processor. */
typedef double Channels __attribute__((vector_size(32)));
typedef int32_t Pixel __attribute__((vector_size(16)));

/* The cubic of a point on the first pixel's half reaches two pixels beyond the edge. */
enum { BORDER = 2 };

/* The picture with its edge pixels repeated around it. */
typedef struct Source {
    const int32_t *origin; /* of pixel (0, 0); 4 numbers a pixel, which convert at once */
    int64_t width, height, pitch;
} Source;

Affine affine_shear(double x, double y) {
    return (Affine){{1, x, 0, y, 1, 0}};
}

Affine affine_translation(double x, double y) {
    return (Affine){{1, 0, x, 0, 1, y}};
}

/* To 15 decimals, as Image.rotate does, so that right angles are exact. */
static double round_15(double v) {
    return nearbyint(v * 1e15) / 1e15;
}

Affine affine_rotation(double degrees, int64_t width, int64_t height) {
    const double turn = fmod(degrees, 360.0), pi = 3.14159265358979323846;
    const double angle = -((turn < 0 ? turn + 360.0 : turn) * (pi / 180.0));
    const double x = (double)width / 2.0, y = (double)height / 2.0;
    Affine a = {{round_15(cos(angle)), round_15(sin(angle)), 0, round_15(-sin(angle)),
                 round_15(cos(angle)), 0}};
    a.m[2] = a.m[0] * -x + a.m[1] * -y + x;
    a.m[5] = a.m[3] * -x + a.m[4] * -y + y;
    return a;
}

/* ---- interpolation ---- */

static inline const int32_t *pixel_at(const Source *s, int64_t x, int64_t y) {
    return s->origin + y * s->pitch + x * 4;
}

static inline void load(const int32_t *pixel, Channels *out) {
    Pixel p;
    memcpy(&p, pixel, sizeof p);
    *out = __builtin_convertvector(p, Channels);
}

static inline void linear(const Channels v[2], double d, Channels *out) {
    *out = v[0] + (v[1] - v[0]) * d;
}

/* The cubic of parameter -1 through v[1] and v[2]; in this order of operations it is exactly v[1]
 * at d = 0. */
static inline void cubic(const Channels v[4], double d, Channels *out) {
    const Channels p2 = -v[0] + v[2], p3 = 2 * (v[0] - v[1]) + v[2] - v[3];
    const Channels p4 = -v[0] + v[1] - v[2] + v[3];
    *out = v[1] + d * (p2 + d * (p3 + d * p4));
}

static inline void linear_row(const int32_t *pixel, double d, Channels *out) {
    Channels v[2];
    for (int i = 0; i < 2; i++) load(pixel + 4 * i, &v[i]);
    linear(v, d, out);
}

static inline void cubic_row(const int32_t *pixel, double d, Channels *out) {
    Channels v[4];
    for (int i = 0; i < 4; i++) load(pixel + 4 * (i - 1), &v[i]);
    cubic(v, d, out);
}

/* Shears and shifts along x leave dy at 0, those along y dx: one row or column is enough there. */
static inline void cubic_at(const Source *s, const int32_t *pixel, double dx, double dy,
                            Channels *out) {
    Channels v[4];
    if (dy == 0) {
        cubic_row(pixel, dx, out);
        return;
    }
    pixel -= s->pitch;
    for (int k = 0; k < 4; k++, pixel += s->pitch) {
        if (dx == 0)
            load(pixel, &v[k]);
        else
            cubic_row(pixel, dx, &v[k]);
    }
    cubic(v, dy, out);
}

static inline void linear_at(const Source *s, const int32_t *pixel, double dx, double dy,
                             Channels *out) {
    Channels v[2];
    for (int k = 0; k < 2; k++) linear_row(pixel + k * s->pitch, dx, &v[k]);
    linear(v, dy, out);
}

/* Truncated and cut to 0..255. */
static inline void store(const Channels *v, uint8_t *out) {
    Pixel p = __builtin_convertvector(*v, Pixel);
    p &= ~(p >> 31);
    const Pixel above = p > 255;
    p = (p & ~above) | (above & 255);
    for (int c = 0; c < 3; c++) out[c] = (uint8_t)p[c];
}

static inline void smooth_pixel(const Source *s, double x, double y, AffineFilter filter,
                                const uint8_t fill[3], uint8_t *out) {
    if (!(x >= 0 && x < (double)s->width && y >= 0 && y < (double)s->height)) {
        memcpy(out, fill, 3);
        return;
    }
    const double left = floor(x - 0.5), top = floor(y - 0.5);
    const double dx = x - 0.5 - left, dy = y - 0.5 - top;
    const int32_t *pixel = pixel_at(s, (int64_t)left, (int64_t)top);
    Channels v;
    if (filter == AFFINE_BICUBIC)
        cubic_at(s, pixel, dx, dy, &v);
    else
        linear_at(s, pixel, dx, dy, &v);
    store(&v, out);
}

static void apply_smooth(const Source *s, const Affine *a, AffineFilter filter,
                         const uint8_t fill[3], uint8_t *out) {
    const double *m = a->m;
    for (int64_t y = 0; y < s->height; y++) {
        for (int64_t x = 0; x < s->width; x++, out += 3) {
            const double cx = (double)x + 0.5, cy = (double)y + 0.5;
            smooth_pixel(s, m[0] * cx + m[1] * cy + m[2], m[3] * cx + m[4] * cy + m[5], filter,
                         fill, out);
        }
    }
}

/* ---- nearest ---- */

static void nearest_pixel(const Source *s, int64_t x, int64_t y, const uint8_t fill[3],
                          uint8_t *out) {
    const bool inside = x >= 0 && x < s->width && y >= 0 && y < s->height;
    const int32_t *pixel = pixel_at(s, inside ? x : 0, inside ? y : 0);
    for (int c = 0; c < 3; c++) out[c] = inside ? (uint8_t)pixel[c] : fill[c];
}

/* 16 fractional bits. */
static int64_t fixed(double v) {
    return (int64_t)floor(v * 65536.0 + 0.5);
}

/* Positions are summed up in fixed point, as Pillow does. */
static void apply_nearest(const Source *s, const Affine *a, const uint8_t fill[3], uint8_t *out) {
    const double *m = a->m;
    const int64_t step[4] = {fixed(m[0]), fixed(m[1]), fixed(m[3]), fixed(m[4])};
    int64_t x0 = fixed(m[2] + m[0] * 0.5 + m[1] * 0.5), y0 = fixed(m[5] + m[3] * 0.5 + m[4] * 0.5);
    for (int64_t y = 0; y < s->height; y++, x0 += step[1], y0 += step[3]) {
        int64_t px = x0, py = y0;
        for (int64_t x = 0; x < s->width; x++, px += step[0], py += step[2], out += 3)
            nearest_pixel(s, px >> 16, py >> 16, fill, out);
    }
}

/* Without shear and rotation the sums are of doubles. */
static void apply_nearest_scale(const Source *s, const Affine *a, const uint8_t fill[3],
                                uint8_t *out) {
    const double *m = a->m;
    double py = m[5] + m[4] * 0.5;
    for (int64_t y = 0; y < s->height; y++, py += m[4]) {
        double px = m[2] + m[0] * 0.5;
        for (int64_t x = 0; x < s->width; x++, px += m[0], out += 3)
            nearest_pixel(s, (int64_t)floor(px), (int64_t)floor(py), fill, out);
    }
}

/* ---- all of it ---- */

size_t affine_work_bytes(int64_t width, int64_t height) {
    return (size_t)((width + 2 * BORDER) * (height + 2 * BORDER)) * sizeof(Pixel);
}

static int64_t clamp(int64_t v, int64_t count) {
    return v < 0 ? 0 : v >= count ? count - 1 : v;
}

static void copy_row(const uint8_t *rgb, int64_t width, int32_t *out) {
    for (int64_t x = -BORDER; x < width + BORDER; x++, out += 4) {
        const uint8_t *p = rgb + clamp(x, width) * 3;
        const Pixel pixel = {p[0], p[1], p[2], 0};
        memcpy(out, &pixel, sizeof pixel);
    }
}

static Source source_of(const uint8_t *rgb, int64_t width, int64_t height, void *work) {
    const int64_t pitch = (width + 2 * BORDER) * 4;
    int32_t *numbers = work;
    for (int64_t y = -BORDER; y < height + BORDER; y++)
        copy_row(rgb + clamp(y, height) * width * 3, width, numbers + (y + BORDER) * pitch);
    return (Source){numbers + BORDER * pitch + BORDER * 4, width, height, pitch};
}

void affine_apply(uint8_t *rgb, int64_t width, int64_t height, const Affine *a, AffineFilter filter,
                  const uint8_t fill[3], void *work) {
    const Source s = source_of(rgb, width, height, work);
    if (filter != AFFINE_NEAREST)
        apply_smooth(&s, a, filter, fill, rgb);
    else if (a->m[1] == 0 && a->m[3] == 0)
        apply_nearest_scale(&s, a, fill, rgb);
    else
        apply_nearest(&s, a, fill, rgb);
}
