/* Rows of the Walsh matrix in an order of their own, and the energies that make the order. */
#include <math.h>
#include <string.h>

#include "kernels/cpu/table.h"
#include "kernels/cpu/values.h"

static bool is_odd(uint64_t x) {
    for (int by = 32; by; by /= 2) x ^= x >> by;
    return x & 1;
}

/* Energies are not negative, so their bits are in the same order; and all of them have one: rows of
 * NaN, too, go to a place each. */
static uint32_t order_of(float energy) {
    uint32_t bits;
    memcpy(&bits, &energy, sizeof bits);
    return bits;
}

/* Where row t goes: behind all of more energy, and of as much in front of it. */
static int64_t place_of(const float *energy, int64_t t, int64_t n) {
    const uint32_t own = order_of(energy[t]);
    int64_t place = 0;
    for (int64_t s = 0; s < n; s++) {
        const uint32_t other = order_of(energy[s]);
        place += other > own || (other == own && s < t);
    }
    return place;
}

Status walsh_rows_cpu(Device *d, Tensor w, Tensor energy) {
    (void)d;
    if (!act_dtype(w.dtype)) return refuse_dtype("walsh_rows", w.dtype);
    const int64_t n = w.shape[1], run = walsh_run(n), rows = w.shape[0] * n;
    const Grad to = grad_set(w);
    const float value = (float)(1.0 / sqrt((double)run));
#pragma omp parallel for schedule(static) if (rows * n >= PARALLEL_MIN)
    for (int64_t row = 0; row < rows; row++) {
        const int64_t t = row % n, first = row - t;
        const int64_t place = place_of((const float *)energy.data + first, t, n);
        for (int64_t at = 0; at < n; at += CHUNK) {
            const int64_t count = min_i64(CHUNK, n - at);
            float out[CHUNK];
            for (int64_t j = 0; j < count; j++) {
                const bool odd = is_odd((uint64_t)(t & (at + j) & (run - 1)));
                out[j] = t / run != (at + j) / run ? 0.0f : odd ? -value : value;
            }
            values_write(&to, (first + place) * n + at, count, out);
        }
    }
    return STATUS_OK;
}

/* Rows y[n,c] become sums and differences of pairs, of pairs of those, and so on within a run. */
static void transform(float *y, int64_t n, int64_t c, int64_t run) {
    for (int64_t half = 1; half < run; half *= 2)
        for (int64_t t = 0; t < n; t++) {
            if (t & half) continue;
            float *a = y + t * c, *b = a + half * c;
#pragma omp simd
            for (int64_t i = 0; i < c; i++) {
                const float sum = a[i] + b[i];
                b[i] = a[i] - b[i];
                a[i] = sum;
            }
        }
}

static Status energies(Device *d, float *energy, const Tensor *x) {
    const int64_t n = x->shape[1], c = x->shape[2], run = walsh_run(n);
    float *y;
    TRY(scratch_floats(d, n * c, &y));
    for (int64_t g = 0; g < x->shape[0]; g++) {
        for (int64_t at = 0; at < n * c; at += CHUNK) {
            const int64_t count = min_i64(CHUNK, n * c - at);
            const float *v = values_read(x, g * n * c + at, count, y + at);
            if (v != y + at) memcpy(y + at, v, (size_t)count * sizeof *v);
        }
        transform(y, n, c, run);
        for (int64_t t = 0; t < n; t++) {
            double sum = 0.0;
            for (int64_t i = 0; i < c; i++) sum += (double)y[t * c + i] * (double)y[t * c + i];
            energy[g * n + t] = (float)(sum / (double)run);
        }
    }
    return STATUS_OK;
}

Status walsh_energy_cpu(Device *d, Tensor energy, Tensor x) {
    if (!act_dtype(x.dtype)) return refuse_dtype("walsh_energy", x.dtype);
    return scratch_done(d, energies(d, energy.data, &x));
}
