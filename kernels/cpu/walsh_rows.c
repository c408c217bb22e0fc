/* Rows of the Walsh matrix in an order of their own. */
#include <math.h>

#include "kernels/cpu/table.h"
#include "kernels/cpu/values.h"

static bool is_odd(uint64_t x) {
    for (int by = 32; by; by /= 2) x ^= x >> by;
    return x & 1;
}

/* Where row t goes: behind all of more energy, and of as much in front of it. */
static int64_t place_of(const float *energy, int64_t t, int64_t n) {
    int64_t place = 0;
    for (int64_t s = 0; s < n; s++)
        place += energy[s] > energy[t] || (energy[s] == energy[t] && s < t);
    return place;
}

Status walsh_rows_cpu(Device *d, Tensor w, Tensor energy) {
    (void)d;
    if (!act_dtype(w.dtype)) return refuse_dtype("walsh_rows", w.dtype);
    const int64_t n = w.shape[1], run = n & -n, rows = w.shape[0] * n;
    const Grad to = grad_set(w);
    const float value = (float)(1.0 / sqrt((double)run));
#pragma omp parallel for schedule(static) if (rows * n >= PARALLEL_MIN)
    for (int64_t row = 0; row < rows; row++) {
        const int64_t t = row % n, first = row - t;
        const float *own = energy.data ? (const float *)energy.data + first : NULL;
        const int64_t place = own ? place_of(own, t, n) : t;
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
