#include <math.h>

#include "op_case.h"

static double byte_value(int64_t i, void *user) {
    Run *r = user;
    return i < 256 ? (double)i : (double)(int64_t)(256.0 * random_uniform(r));
}

/* p: batch, rows and columns of patches, channels, patch. */
static void patchify_body(Run *r) {
    const int64_t b = r->p[0], rows = r->p[1], columns = r->p[2], ch = r->p[3], p = r->p[4];
    const int64_t width = columns * p, features = ch * p * p;
    Tensor x = input(r, "x", r->act, SHAPE(b, rows * p, width, ch), 1.0);
    Tensor y = output(r, "y", r->act, SHAPE(b, rows * columns, features));
    CALL(r, patchify, y, x, p);
    double *e = r->reference ? expected(r, y) : NULL;
    for (int64_t i = 0; e && i < b * rows * columns * features; i++) {
        const int64_t token = i / features, f = i % features;
        const int64_t c = f / (p * p), ky = f / p % p, kx = f % p;
        const int64_t line = token / columns * p + ky; /* over all samples */
        e[i] = values(r, x)[(line * width + token % columns * p + kx) * ch + c];
    }
}

/* p: batch, heads, tokens, head width, channels of packed, offset. */
static int64_t packed_at(const Run *r, int64_t i) {
    const int64_t heads = r->p[1], tokens = r->p[2], dim = r->p[3];
    const int64_t b = i / (heads * tokens * dim), h = i / (tokens * dim) % heads;
    const int64_t n = i / dim % tokens, c = i % dim;
    return (b * tokens + n) * r->p[4] + r->p[5] + h * dim + c;
}

static void split_heads_body(Run *r) {
    const int64_t count = r->p[0] * r->p[1] * r->p[2] * r->p[3];
    Tensor packed = input(r, "packed", r->act, SHAPE(r->p[0], r->p[2], r->p[4]), 1.0);
    Grad y = gradient(r, "y", r->act, SHAPE(r->p[0], r->p[1], r->p[2], r->p[3]));
    CALL(r, split_heads, y, packed, r->p[5]);
    double *e = r->reference ? expected(r, y.t) : NULL;
    for (int64_t i = 0; e && i < count; i++) e[i] = values(r, packed)[packed_at(r, i)];
}

/* Channels that are not written keep their values, also in the set mode. */
static void merge_heads_body(Run *r) {
    const int64_t count = r->p[0] * r->p[1] * r->p[2] * r->p[3];
    Tensor x = input(r, "x", r->act, SHAPE(r->p[0], r->p[1], r->p[2], r->p[3]), 1.0);
    Grad packed = gradient_in_place(r, "packed", r->act, SHAPE(r->p[0], r->p[2], r->p[4]));
    CALL(r, merge_heads, packed, x, r->p[5]);
    double *e = r->reference ? expected(r, packed.t) : NULL;
    for (int64_t i = 0; e && i < r->p[0] * r->p[2] * r->p[4]; i++) e[i] = values(r, packed.t)[i];
    for (int64_t i = 0; e && i < count; i++) {
        const int64_t at = packed_at(r, i);
        e[at] = (packed.add ? e[at] : 0.0) + values(r, x)[i];
    }
}

/* p: batch, tokens, channels. */
static void mean_tokens_body(Run *r) {
    const int64_t b = r->p[0], n = r->p[1], c = r->p[2];
    Tensor x = input(r, "x", r->act, SHAPE(b, n, c), 1.0);
    Tensor y = output(r, "y", DTYPE_F32, SHAPE(b, c));
    CALL(r, mean_tokens, y, x);
    double *e = r->reference ? expected(r, y) : NULL;
    for (int64_t i = 0; e && i < b * n * c; i++)
        e[i / (n * c) * c + i % c] += values(r, x)[i] / (double)n;
}

static void mean_tokens_backward_body(Run *r) {
    const int64_t b = r->p[0], n = r->p[1], c = r->p[2];
    Tensor dy = input(r, "dy", DTYPE_F32, SHAPE(b, c), 1.0);
    Grad dx = gradient(r, "dx", r->act, SHAPE(b, n, c));
    CALL(r, mean_tokens_backward, dx, dy);
    double *e = r->reference ? expected(r, dx.t) : NULL;
    for (int64_t i = 0; e && i < b * n * c; i++)
        e[i] = values(r, dy)[i / (n * c) * c + i % c] / (double)n;
}

/* p: scenes, views, input views, height, width, patch. */
static double camera_value(int64_t i, void *user) {
    Run *r = user;
    const double near = 0.2 * random_normal(r);
    /* about the unit pose, a focal length of 20 pixels, a centre near that of the view */
    const double usual[16] = {1, 0, 0, 0, 0, 1, 0, 0, 0, 0, 1, 0, 20, 20, 4, 4};
    return usual[i % 16] + near;
}

/* The twelve channels of pixel (row, column). */
static void expected_pixel(const double *c, int64_t row, int64_t column, const double *rgb,
                           double *out) {
    const double r[3] = {((double)column + 0.5 - c[14]) / c[12],
                         ((double)row + 0.5 - c[15]) / c[13], 1};
    const double length = sqrt(r[0] * r[0] + r[1] * r[1] + 1);
    double o[3], d[3];
    for (int i = 0; i < 3; i++) {
        o[i] = c[4 * i + 3];
        d[i] = (c[4 * i] * r[0] + c[4 * i + 1] * r[1] + c[4 * i + 2] * r[2]) / length;
    }
    for (int i = 0; i < 3; i++) {
        const int a = (i + 1) % 3, b = (i + 2) % 3;
        out[i] = o[i];
        out[3 + i] = d[i];
        out[6 + i] = o[a] * d[b] - o[b] * d[a];
        out[9 + i] = rgb ? 2 * rgb[i] / 255 - 1 : 0;
    }
}

static void view_tokens_body(Run *r) {
    const int64_t scenes = r->p[0], views = r->p[1], inputs = r->p[2], h = r->p[3], w = r->p[4];
    const int64_t p = r->p[5], across = w / p;
    Tensor cameras = input_of(r, "cameras", DTYPE_F32, SHAPE(scenes, views, 16), camera_value, r);
    Tensor rgb = inputs
                     ? input_of(r, "rgb", DTYPE_U8, SHAPE(scenes, inputs, h * w, 3), byte_value, r)
                     : tensor_none();
    Tensor y = output(r, "y", r->act, SHAPE(scenes, views * (h / p) * across, 12 * p * p));
    CALL(r, view_tokens, y, cameras, rgb, h, w, p);
    double *e = r->reference ? expected(r, y) : NULL;
    for (int64_t i = 0; e && i < scenes * views * h * w; i++) {
        const int64_t view = i / (h * w), row = i % (h * w) / w, column = i % w;
        const int64_t token = row / p * across + column / p, v = view % views;
        const int64_t at = ((view * (h / p) * across + token) * p + row % p) * p + column % p;
        const double *colour =
            v < inputs
                ? values(r, rgb) + ((view / views * inputs + v) * h * w + row * w + column) * 3
                : NULL;
        expected_pixel(values(r, cameras) + 16 * view, row, column, colour, e + 12 * at);
    }
}

#define BOTH (IN_BOTH | ANY_THREADS)

const OpCase cases_tokens[] = {
    {"patchify", patchify_body, {1, 1, 1, 1, 1}, BOTH, 0},
    {"patchify", patchify_body, {2, 6, 5, 3, 4}, BOTH, 0},
    {"patchify", patchify_body, {1, 2, 3, 5, 3}, BOTH, 0},
    {"view_tokens", view_tokens_body, {1, 1, 0, 1, 1, 1}, BOTH, 0},
    {"view_tokens", view_tokens_body, {2, 3, 2, 6, 9, 3}, BOTH, 0},
    {"view_tokens", view_tokens_body, {1, 2, 1, 16, 8, 8}, BOTH, 0},
    {"split_heads", split_heads_body, {1, 1, 1, 1, 1, 0}, BOTH, 0},
    {"split_heads", split_heads_body, {2, 3, 30, 8, 96, 24}, BOTH, 0},
    {"split_heads", split_heads_body, {2, 2, 5, 7, 31, 17}, BOTH, 0},
    {"split_heads", split_heads_body, {1, 1, 3, 1500, 1501, 1}, BOTH, 0},
    {"merge_heads", merge_heads_body, {1, 1, 1, 1, 1, 0}, BOTH, 0},
    {"merge_heads", merge_heads_body, {2, 3, 30, 8, 96, 24}, BOTH, 0},
    {"merge_heads", merge_heads_body, {2, 2, 5, 7, 31, 17}, BOTH, 0},
    {"mean_tokens", mean_tokens_body, {1, 1, 1}, BOTH, 0},
    {"mean_tokens", mean_tokens_body, {3, 49, 100}, BOTH, 0},
    {"mean_tokens", mean_tokens_body, {2, 7, 1030}, BOTH, 0},
    {"mean_tokens", mean_tokens_body, {3, 70, 136}, BOTH, 0},
    {"mean_tokens_backward", mean_tokens_backward_body, {1, 1, 1}, BOTH, 0},
    {"mean_tokens_backward", mean_tokens_backward_body, {3, 49, 130}, BOTH, 0},
    {"mean_tokens_backward", mean_tokens_backward_body, {2, 7, 1030}, BOTH, 0},
    {"mean_tokens_backward", mean_tokens_backward_body, {3, 37, 136}, BOTH, 0},
    {0},
};
