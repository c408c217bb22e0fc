#include "kernels/cpu/taps.h"

#include "kernels/cpu/values.h"

/* Channels that taps_gradient keeps in registers. */
#define BLOCK 16

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

/* All nine taps of one pixel; in[t] points at the neighbour's channels. */
static void pixel_inside(float *restrict out, const float *centre, int64_t up, int64_t side,
                         const float *w, int64_t channels) {
    const float *top = centre - up, *bottom = centre + up;
    const float *w0 = w, *w1 = w + 3 * channels, *w2 = w + 6 * channels;
#pragma omp simd
    for (int64_t c = 0; c < channels; c++) {
        float sum = out[c];
        sum += w0[c] * top[c - side];
        sum += w0[c + channels] * top[c];
        sum += w0[c + 2 * channels] * top[c + side];
        sum += w1[c] * centre[c - side];
        sum += w1[c + channels] * centre[c];
        sum += w1[c + 2 * channels] * centre[c + side];
        sum += w2[c] * bottom[c - side];
        sum += w2[c + channels] * bottom[c];
        sum += w2[c + 2 * channels] * bottom[c + side];
        out[c] = sum;
    }
}

static void pixel_border(float *restrict out, const Map *x, int64_t row, int64_t column,
                         const float *w) {
    for (int64_t t = 0; t < 9; t++) {
        const int64_t r = row + t / 3 - 1, s = column + t % 3 - 1;
        if (r < 0 || r >= x->height || s < 0 || s >= x->width) continue;
        const float *in = x->data + ((r - x->first) * x->width + s) * x->pixel;
        const float *tap = w + t * x->channels;
#pragma omp simd
        for (int64_t c = 0; c < x->channels; c++) out[c] += tap[c] * in[c];
    }
}

void taps_row(float *out, int64_t out_pixel, const Map *x, int64_t row, const float *w,
              const float *bias, bool add_input) {
    const int64_t channels = x->channels, up = x->width * x->pixel;
    const float *centre = x->data + (row - x->first) * up;
    const bool border_row = row == 0 || row == x->height - 1;
    for (int64_t column = 0; column < x->width; column++) {
        float *o = out + column * out_pixel;
        const float *in = centre + column * x->pixel;
        if (bias) {
            memcpy(o, bias, (size_t)channels * sizeof *o);
        } else {
            memset(o, 0, (size_t)channels * sizeof *o);
        }
        if (add_input) {
#pragma omp simd
            for (int64_t c = 0; c < channels; c++) o[c] += in[c];
        }
        if (border_row || column == 0 || column == x->width - 1) {
            pixel_border(o, x, row, column, w);
        } else {
            pixel_inside(o, in, up, x->pixel, w, channels);
        }
    }
}

/* One block of channels over the whole image, sums in registers. */
static inline __attribute__((always_inline)) void
gradient_block(float *g, float *sum_y, const Map *x, const Map *y, int64_t c, const int n) {
    float sum[9][BLOCK] = {{0}}, total[BLOCK] = {0};
    for (int64_t row = 0; row < y->height; row++) {
        for (int64_t column = 0; column < y->width; column++) {
            const float *v = y->data + (row * y->width + column) * y->pixel + c;
            for (int i = 0; i < n; i++) total[i] += v[i];
            for (int64_t t = 0; t < 9; t++) {
                const int64_t r = row + t / 3 - 1, s = column + t % 3 - 1;
                if (r < 0 || r >= x->height || s < 0 || s >= x->width) continue;
                const float *in = x->data + (r * x->width + s) * x->pixel + c;
                for (int i = 0; i < n; i++) sum[t][i] += in[i] * v[i];
            }
        }
    }
    for (int t = 0; t < 9; t++) {
        for (int i = 0; i < n; i++) g[t * x->channels + c + i] += sum[t][i];
    }
    for (int i = 0; sum_y && i < n; i++) sum_y[c + i] += total[i];
}

void taps_gradient(float *g, float *sum_y, const Map *x, const Map *y, int64_t begin, int64_t end) {
    int64_t c = begin;
    for (; c + BLOCK <= end; c += BLOCK) gradient_block(g, sum_y, x, y, c, BLOCK);
    for (; c < end; c++) gradient_block(g, sum_y, x, y, c, 1);
}
