/* image_prepare against its formula, pixel by pixel in double precision. */
#include <math.h>

#include "core/rng.h"
#include "op_case.h"

static const float mean[3] = {0.485f, 0.456f, 0.406f}, std[3] = {0.229f, 0.224f, 0.225f};

static double byte_value(int64_t i, void *user) {
    Run *r = user;
    return i < 256 ? (double)i : (double)(int64_t)(256.0 * random_uniform(r));
}

/* Samples: every second is flipped, every third has an erased box (sample 0 one beyond the edge).
 */
static double sample_value(int64_t i, void *user) {
    const Run *r = user;
    const int64_t b = i / 8, height = r->p[1], width = r->p[2];
    const int64_t boxed = b % 3 == 0;
    const int64_t row[8] = {b % 2,
                            height / 3,
                            width / 4,
                            boxed * (b == 0 ? height : height / 2),
                            boxed * (width / 2),
                            1234 + b,
                            99,
                            0};
    return (double)row[i % 8];
}

/* p[3]: 0 no mixing, 1 mixup, 2 cutmix. */
static double mix_value(int64_t i, void *user) {
    const Run *r = user;
    const double up[8] = {r->p[3] == 1 ? (double)0.3f : 1.0, (double)(r->p[1] / 4),
                          (double)(r->p[2] / 3), r->p[3] == 2 ? (double)(r->p[1] / 2) : 0.0,
                          (double)(r->p[2] / 2)};
    return up[i];
}

static double noise(const double *sample, int64_t pixel, int64_t c) {
    const uint32_t counter[4] = {(uint32_t)pixel, 0, 0, 0};
    const uint32_t key[2] = {(uint32_t)sample[5], (uint32_t)sample[6]};
    uint32_t u[4];
    philox4x32(counter, key, u);
    const uint32_t *pair = u + (c == 2 ? 2 : 0);
    const double far = sqrt(-2.0 * log(((double)(pair[0] >> 8) + 0.5) * 0x1p-24));
    const double angle = 2.0 * acos(-1.0) * (double)pair[1] * 0x1p-32;
    return far * (c == 1 ? sin(angle) : cos(angle));
}

static bool inside(double row, double column, const double box[4]) {
    return row >= box[0] && row < box[0] + box[2] && column >= box[1] && column < box[1] + box[3];
}

static double one_sample(Run *r, Tensor x, Tensor samples, int64_t b, int64_t row, int64_t column,
                         int64_t c) {
    const int64_t height = r->p[1], width = r->p[2];
    const double *s = values(r, samples) + 8 * b;
    if (inside((double)row, (double)column, s + 1)) return noise(s, row * width + column, c);
    const int64_t from = s[0] != 0.0 ? width - 1 - column : column;
    const double level = values(r, x)[((b * height + row) * width + from) * 3 + c];
    return (level / 255.0 - (double)mean[c]) / (double)std[c];
}

/* p[4]: the patch, 0 for maps. */
static Tensor image_output(Run *r) {
    const int64_t batch = r->p[0], height = r->p[1], width = r->p[2], p = r->p[4];
    if (p == 0) return output(r, "y", r->act, SHAPE(batch, height, width, 3));
    return output(r, "y", r->act, SHAPE(batch, height / p * (width / p), 3 * p * p));
}

/* Where channel c of a pixel is in y. */
static int64_t place(const Run *r, int64_t b, int64_t row, int64_t column, int64_t c) {
    const int64_t height = r->p[1], width = r->p[2], p = r->p[4];
    if (p == 0) return ((b * height + row) * width + column) * 3 + c;
    const int64_t token = (b * (height / p) + row / p) * (width / p) + column / p;
    return ((token * 3 + c) * p + row % p) * p + column % p;
}

/* p: batch, height, width, -, patch. */
static void image_normalise_body(Run *r) {
    const int64_t batch = r->p[0], height = r->p[1], width = r->p[2];
    Tensor x = input_of(r, "x", DTYPE_U8, SHAPE(batch, height, width, 3), byte_value, r);
    Tensor y = image_output(r);
    CALL(r, image_normalise, y, x, mean, std, r->p[4]);
    double *e = r->reference ? expected(r, y) : NULL;
    for (int64_t i = 0; e && i < batch * height * width * 3; i++) {
        const int64_t b = i / (height * width * 3), c = i % 3;
        e[place(r, b, i / (width * 3) % height, i / 3 % width, c)] =
            (values(r, x)[i] / 255.0 - (double)mean[c]) / (double)std[c];
    }
}

/* p: batch, height, width, kind of mixing, patch. */
static void image_prepare_body(Run *r) {
    const int64_t batch = r->p[0], height = r->p[1], width = r->p[2];
    Tensor x = input_of(r, "x", DTYPE_U8, SHAPE(batch, height, width, 3), byte_value, r);
    Tensor samples = input_of(r, "samples", DTYPE_I32, SHAPE(batch, 8), sample_value, r);
    Tensor mix = input_of(r, "mix", DTYPE_F32, SHAPE(8), mix_value, r);
    Tensor y = image_output(r);
    CALL(r, image_prepare, y, x, samples, mix, mean, std, r->p[4]);
    double *e = r->reference ? expected(r, y) : NULL;
    if (!e) return;
    const double *m = values(r, mix);
    for (int64_t i = 0; i < batch * height * width * 3; i++) {
        const int64_t b = i / (height * width * 3), c = i % 3;
        const int64_t row = i / (width * 3) % height, column = i / 3 % width;
        const double own = inside((double)row, (double)column, m + 1) ? 0.0 : m[0];
        e[place(r, b, row, column, c)] =
            own * one_sample(r, x, samples, b, row, column, c) +
            (1.0 - own) * one_sample(r, x, samples, batch - 1 - b, row, column, c);
    }
}

#define BOTH (IN_BOTH | ANY_THREADS)

const OpCase cases_prepare[] = {
    {"image_normalise", image_normalise_body, {1, 1, 1}, BOTH, 0},
    {"image_normalise", image_normalise_body, {2, 13, 9}, BOTH, 0},
    {"image_normalise", image_normalise_body, {1, 160, 120}, BOTH, 0},
    {"image_normalise", image_normalise_body, {3, 16, 32, 0, 16}, BOTH, 0},
    {"image_normalise", image_normalise_body, {2, 15, 10, 0, 5}, BOTH, 0},
    {"image_prepare", image_prepare_body, {1, 1, 1, 0}, BOTH, 0},
    {"image_prepare", image_prepare_body, {3, 7, 5, 0}, BOTH, 0},
    {"image_prepare", image_prepare_body, {4, 9, 12, 1}, BOTH, 0},
    {"image_prepare", image_prepare_body, {5, 12, 9, 2}, BOTH, 0},
    {"image_prepare", image_prepare_body, {5, 12, 24, 2}, BOTH, 0},
    {"image_prepare", image_prepare_body, {4, 16, 40, 0, 8}, BOTH, 0},
    {"image_prepare", image_prepare_body, {5, 32, 48, 1, 16}, BOTH, 0},
    {"image_prepare", image_prepare_body, {4, 32, 48, 2, 16}, BOTH, 0},
    {"image_prepare", image_prepare_body, {5, 12, 9, 2, 3}, BOTH, 0},
    {"image_prepare", image_prepare_body, {64, 224, 224, 2}, IN_BF16 | ONLY_BENCH, 0},
    {0},
};
