/* Both passes do one thing: neighbouring bytes, times one weight, added up. In the vertical pass
 * the neighbours are those in a row. In the horizontal pass they come from 16 rows, which are
 * transposed first and back afterwards, so that every tap is a plain vector load there too. */
#include "datasets/resize_passes.h"

#include <string.h>
#ifdef __AVX512F__
#include <immintrin.h>
#endif

enum { LANES = 16, HALF = 1 << (RESIZE_FRACTION_BITS - 1) };

typedef uint8_t Bytes __attribute__((vector_size(LANES)));

static Bytes load(const uint8_t *p) {
    Bytes b;
    memcpy(&b, p, sizeof b);
    return b;
}

static void store(uint8_t *p, Bytes b) {
    memcpy(p, &b, sizeof b);
}

/* The integer part, cut to 0...255; the shift rounds down, as the added half expects. */
static uint8_t narrow(int32_t sum) {
    int32_t v = sum >> RESIZE_FRACTION_BITS;
    return (uint8_t)(v < 0 ? 0 : v > 255 ? 255 : v);
}

/* dst[i] = sum over t of weights[t] * src[t * pitch + i], for n * 16 neighbours i; n <= 4 is a
 * constant where this is inlined, so that the sums stay in registers. */
#ifdef __AVX512F__

static inline __attribute__((always_inline)) void convolve(const uint8_t *src, int64_t pitch,
                                                           const int32_t *weights, int64_t taps,
                                                           uint8_t *dst, int n) {
    __m512i sum[4];
    for (int k = 0; k < n; k++) sum[k] = _mm512_set1_epi32(HALF);
    for (int64_t t = 0; t < taps; t++, src += pitch) {
        __m512i w = _mm512_set1_epi32(weights[t]);
        for (int k = 0; k < n; k++) {
            __m512i x = _mm512_cvtepu8_epi32((__m128i)load(src + k * LANES));
            sum[k] = _mm512_add_epi32(sum[k], _mm512_mullo_epi32(x, w));
        }
    }
    for (int k = 0; k < n; k++) {
        __m512i v = _mm512_srai_epi32(sum[k], RESIZE_FRACTION_BITS);
        v = _mm512_max_epi32(v, _mm512_setzero_si512());
        store(dst + k * LANES, (Bytes)_mm512_cvtusepi32_epi8(v));
    }
}

#else

static inline __attribute__((always_inline)) void convolve(const uint8_t *src, int64_t pitch,
                                                           const int32_t *weights, int64_t taps,
                                                           uint8_t *dst, int n) {
    int32_t sum[4 * LANES];
    for (int i = 0; i < n * LANES; i++) sum[i] = HALF;
    for (int64_t t = 0; t < taps; t++, src += pitch) {
        int32_t w = weights[t];
        for (int i = 0; i < n * LANES; i++) sum[i] += w * src[i];
    }
    for (int i = 0; i < n * LANES; i++) dst[i] = narrow(sum[i]);
}

#endif

static uint8_t convolve_byte(const uint8_t *src, int64_t pitch, const int32_t *weights,
                             int64_t taps) {
    int32_t sum = HALF;
    for (int64_t t = 0; t < taps; t++) sum += weights[t] * src[t * pitch];
    return narrow(sum);
}

/* Byte matrix 16x16: four rounds of interleaving the upper half of the rows with the lower. */
static void transpose(Bytes m[LANES]) {
    for (int round = 0; round < 4; round++) {
        Bytes t[LANES];
        for (int i = 0; i < LANES / 2; i++) {
            Bytes a = m[i], b = m[i + LANES / 2];
            t[2 * i] = __builtin_shufflevector(a, b, 0, 16, 1, 17, 2, 18, 3, 19, 4, 20, 5, 21, 6,
                                               22, 7, 23);
            t[2 * i + 1] = __builtin_shufflevector(a, b, 8, 24, 9, 25, 10, 26, 11, 27, 12, 28, 13,
                                                   29, 14, 30, 15, 31);
        }
        memcpy(m, t, sizeof t);
    }
}

/* columns[i][r] = byte i of row r; rows beyond `count` repeat the last one. */
static void rows_to_columns(const uint8_t *rows, int64_t pitch, int64_t count, int64_t bytes,
                            uint8_t *columns) {
    const uint8_t *row[LANES];
    for (int64_t r = 0; r < LANES; r++) row[r] = rows + (r < count ? r : count - 1) * pitch;
    int64_t i = 0;
    for (; i + LANES <= bytes; i += LANES) {
        Bytes m[LANES];
        for (int r = 0; r < LANES; r++) m[r] = load(row[r] + i);
        transpose(m);
        memcpy(columns + i * LANES, m, sizeof m);
    }
    for (; i < bytes; i++) {
        for (int r = 0; r < LANES; r++) columns[i * LANES + r] = row[r][i];
    }
}

static void columns_to_rows(const uint8_t *columns, int64_t bytes, int64_t count, uint8_t *rows) {
    int64_t i = 0;
    for (; i + LANES <= bytes; i += LANES) {
        Bytes m[LANES];
        memcpy(m, columns + i * LANES, sizeof m);
        transpose(m);
        for (int64_t r = 0; r < count; r++) store(rows + r * bytes + i, m[r]);
    }
    for (; i < bytes; i++) {
        for (int64_t r = 0; r < count; r++) rows[r * bytes + i] = columns[i * LANES + r];
    }
}

size_t horizontal_pass_bytes(int64_t in_width, int64_t out_width) {
    return (size_t)(in_width + out_width) * 3 * LANES;
}

void horizontal_pass(const ResizeTaps *h, const uint8_t *src, int64_t pitch, int64_t rows,
                     uint8_t *dst, uint8_t *work) {
    int64_t from = h->start[0], out_bytes = h->count * 3;
    int64_t to = h->start[h->count - 1] + h->taps[h->count - 1];
    uint8_t *columns = work, *results = work + (to - from) * 3 * LANES;
    for (int64_t y = 0; y < rows; y += LANES) {
        int64_t count = rows - y < LANES ? rows - y : LANES;
        rows_to_columns(src + y * pitch + from * 3, pitch, count, (to - from) * 3, columns);
        for (int64_t x = 0; x < h->count; x++) {
            convolve(columns + (h->start[x] - from) * 3 * LANES, 3 * LANES,
                     h->weights + x * h->stride, h->taps[x], results + x * 3 * LANES, 3);
        }
        columns_to_rows(results, out_bytes, count, dst + y * out_bytes);
    }
}

void vertical_pass(const ResizeTaps *v, const uint8_t *src, int64_t pitch, int64_t origin,
                   int64_t row_bytes, uint8_t *dst) {
    for (int64_t y = 0; y < v->count; y++, dst += row_bytes) {
        const uint8_t *from = src + (v->start[y] - origin) * pitch;
        const int32_t *weights = v->weights + y * v->stride;
        int64_t taps = v->taps[y], x = 0;
        for (; x + 4 * LANES <= row_bytes; x += 4 * LANES) {
            convolve(from + x, pitch, weights, taps, dst + x, 4);
        }
        for (; x + LANES <= row_bytes; x += LANES) {
            convolve(from + x, pitch, weights, taps, dst + x, 1);
        }
        for (; x < row_bytes; x++) dst[x] = convolve_byte(from + x, pitch, weights, taps);
    }
}
