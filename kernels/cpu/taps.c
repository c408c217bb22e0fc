/* Rows are walked once per vector of channels: three columns of the map slide through registers,
 * the taps or the sums stay there. Channels beyond the last full vector are done one by one.
 */
#include "kernels/cpu/taps.h"

#include "kernels/cpu/values.h"
#include "kernels/cpu/vec.h"

Map map_rows(const ActMap *a, int64_t begin, int64_t end, float *buffer) {
    Map m = {NULL, begin, a->height, a->width, a->channels, a->pixel};
    const int64_t at = a->at + begin * a->width * a->pixel;
    if (a->t.dtype == DTYPE_F32) {
        m.data = (const float *)a->t.data + at;
        return m;
    }
    for (int64_t p = 0; p < (end - begin) * a->width; p++)
        values_read(&a->t, at + p * a->pixel, a->channels, buffer + p * a->channels);
    m.data = buffer;
    m.pixel = a->channels;
    return m;
}

void taps_transpose(float *out, const float *w, int64_t channels, bool flip) {
    for (int t = 0; t < 9; t++) {
        for (int64_t c = 0; c < channels; c++)
            out[t * channels + c] = w[c * 9 + (flip ? 8 - t : t)];
    }
}

/* The row in front of, at and behind `row`; NULL outside the map. */
static void three_rows(const Map *x, int64_t row, const float *rows[3]) {
    for (int64_t i = 0; i < 3; i++) {
        const int64_t r = row + i - 1;
        const bool inside = r >= 0 && r < x->height;
        rows[i] = inside ? x->data + (r - x->first) * x->width * x->pixel : NULL;
    }
}

ALWAYS_INLINE Vec vec_at(const float *row, int64_t at) {
    Vec v = {0};
    if (row) v = *(const Vec *)(row + at);
    return v;
}

/* One vector of channels, at c; the rows of `rows` that exist are known where this is inlined. */
ALWAYS_INLINE void row_vector(float *out, int64_t out_pixel, const Map *x, const float *top,
                              const float *centre, const float *bottom, const float *w, Vec base,
                              bool add_input, int64_t c) {
    const float *rows[3] = {top, centre, bottom};
    Vec tap[9], left[3], here[3], right[3];
#pragma GCC unroll 9
    for (int t = 0; t < 9; t++) tap[t] = *(const Vec *)(w + t * x->channels + c);
#pragma GCC unroll 3
    for (int i = 0; i < 3; i++) {
        left[i] = (Vec){0};
        here[i] = vec_at(rows[i], c);
    }
    for (int64_t column = 0; column < x->width; column++) {
        Vec sum = base;
        if (add_input) sum += here[1];
        const int64_t next = (column + 1) * x->pixel + c;
        const bool inside = column + 1 < x->width;
#pragma GCC unroll 3
        for (int i = 0; i < 3; i++) {
            right[i] = vec_at(inside ? rows[i] : NULL, next);
            if (!rows[i]) continue;
            sum += tap[3 * i] * left[i];
            sum += tap[3 * i + 1] * here[i];
            sum += tap[3 * i + 2] * right[i];
        }
        *(Vec *)(out + column * out_pixel + c) = sum;
#pragma GCC unroll 3
        for (int i = 0; i < 3; i++) {
            left[i] = here[i];
            here[i] = right[i];
        }
    }
}

/* One channel of one row. */
static void row_channel(float *out, int64_t out_pixel, const Map *x, const float *const rows[3],
                        const float *w, float base, bool add_input, int64_t c) {
    for (int64_t column = 0; column < x->width; column++) {
        float sum = add_input ? base + rows[1][column * x->pixel + c] : base;
        for (int64_t t = 0; t < 9; t++) {
            const int64_t s = column + t % 3 - 1;
            if (!rows[t / 3] || s < 0 || s >= x->width) continue;
            sum += w[t * x->channels + c] * rows[t / 3][s * x->pixel + c];
        }
        out[column * out_pixel + c] = sum;
    }
}

void taps_row(float *out, int64_t out_pixel, const Map *x, int64_t row, const float *w,
              const float *bias, bool add_input) {
    const float *r[3];
    int64_t c = 0;
    three_rows(x, row, r);
    for (; c + LANES <= x->channels; c += LANES) {
        const Vec base = vec_at(bias, c);
        if (r[0] && r[2]) {
            row_vector(out, out_pixel, x, r[0], r[1], r[2], w, base, add_input, c);
        } else if (r[0]) {
            row_vector(out, out_pixel, x, r[0], r[1], NULL, w, base, add_input, c);
        } else if (r[2]) {
            row_vector(out, out_pixel, x, NULL, r[1], r[2], w, base, add_input, c);
        } else {
            row_vector(out, out_pixel, x, NULL, r[1], NULL, w, base, add_input, c);
        }
    }
    for (; c < x->channels; c++)
        row_channel(out, out_pixel, x, r, w, bias ? bias[c] : 0.0f, add_input, c);
}

/* sums[0..2] += the products of one row of y with columns x-1, x, x+1 of one row of the map, for
 * two vectors of channels (so that six sums hide the latency of the multiply-add), or one. */
ALWAYS_INLINE void gradient_row(Vec sums[3][2], const float *in, int64_t in_pixel, const float *y,
                                int64_t y_pixel, int64_t width, const int vectors) {
    Vec left[2] = {{0}}, here[2] = {{0}};
#pragma GCC unroll 2
    for (int i = 0; i < vectors; i++) here[i] = vec_at(in, i * LANES);
    for (int64_t column = 0; column < width; column++) {
#pragma GCC unroll 2
        for (int i = 0; i < vectors; i++) {
            const Vec value = vec_at(y, column * y_pixel + i * LANES);
            const Vec right =
                vec_at(column + 1 < width ? in : NULL, (column + 1) * in_pixel + i * LANES);
            sums[0][i] += left[i] * value;
            sums[1][i] += here[i] * value;
            sums[2][i] += right * value;
            left[i] = here[i];
            here[i] = right;
        }
    }
}

ALWAYS_INLINE void gradient_vectors(float *g, const Map *x, const Map *y, int64_t c,
                                    const int vectors) {
    for (int64_t dy = 0; dy < 3; dy++) {
        Vec sums[3][2] = {{{0}}};
        for (int64_t row = 0; row < y->height; row++) {
            const int64_t from = row + dy - 1;
            if (from < 0 || from >= x->height) continue;
            gradient_row(sums, x->data + from * x->width * x->pixel + c, x->pixel,
                         y->data + row * y->width * y->pixel + c, y->pixel, y->width, vectors);
        }
#pragma GCC unroll 3
        for (int dx = 0; dx < 3; dx++) {
#pragma GCC unroll 2
            for (int i = 0; i < vectors; i++)
                *(Vec *)(g + (3 * dy + dx) * x->channels + c + i * LANES) += sums[dx][i];
        }
    }
}

static void gradient_channel(float *g, const Map *x, const Map *y, int64_t c) {
    for (int64_t t = 0; t < 9; t++) {
        float sum = 0.0f;
        for (int64_t row = 0; row < y->height; row++) {
            const int64_t r = row + t / 3 - 1;
            if (r < 0 || r >= x->height) continue;
            for (int64_t column = 0; column < y->width; column++) {
                const int64_t s = column + t % 3 - 1;
                if (s < 0 || s >= x->width) continue;
                sum += x->data[(r * x->width + s) * x->pixel + c] *
                       y->data[(row * y->width + column) * y->pixel + c];
            }
        }
        g[t * x->channels + c] += sum;
    }
}

void taps_gradient(float *g, float *sum_y, const Map *x, const Map *y) {
    int64_t c = 0;
    for (; c + 2 * LANES <= x->channels; c += 2 * LANES) gradient_vectors(g, x, y, c, 2);
    for (; c + LANES <= x->channels; c += LANES) gradient_vectors(g, x, y, c, 1);
    for (; c < x->channels; c++) gradient_channel(g, x, y, c);
    for (int64_t p = 0; sum_y && p < y->height * y->width; p++) {
        const float *value = y->data + p * y->pixel;
#pragma omp simd
        for (int64_t i = 0; i < y->channels; i++) sum_y[i] += value[i];
    }
}
