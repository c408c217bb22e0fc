/* One vector register of floats, for loops that must keep sums in registers (GNU vector extension).
 */
#ifndef TTV_KERNELS_CPU_VEC_H
#define TTV_KERNELS_CPU_VEC_H

#include <stdint.h>

#if defined(__AVX512F__)
#define LANES 16
#elif defined(__AVX__)
#define LANES 8
#else
#define LANES 4
#endif

/* May lie anywhere in memory and alias floats. */
typedef float Vec __attribute__((vector_size(4 * LANES), aligned(4), may_alias));

#define ALWAYS_INLINE static inline __attribute__((always_inline))

/* Sum of the lanes by halves: four steps for 16 lanes, where the compiler's own reduction takes 16.
 */
ALWAYS_INLINE float vec_sum(Vec v) {
    typedef int Lane __attribute__((vector_size(4 * LANES)));
#if LANES == 16
    v += __builtin_shuffle(v, (Lane){8, 9, 10, 11, 12, 13, 14, 15, 0, 1, 2, 3, 4, 5, 6, 7});
    v += __builtin_shuffle(v, (Lane){4, 5, 6, 7, 0, 1, 2, 3, 12, 13, 14, 15, 8, 9, 10, 11});
    v += __builtin_shuffle(v, (Lane){2, 3, 0, 1, 6, 7, 4, 5, 10, 11, 8, 9, 14, 15, 12, 13});
    v += __builtin_shuffle(v, (Lane){1, 0, 3, 2, 5, 4, 7, 6, 9, 8, 11, 10, 13, 12, 15, 14});
#elif LANES == 8
    v += __builtin_shuffle(v, (Lane){4, 5, 6, 7, 0, 1, 2, 3});
    v += __builtin_shuffle(v, (Lane){2, 3, 0, 1, 6, 7, 4, 5});
    v += __builtin_shuffle(v, (Lane){1, 0, 3, 2, 5, 4, 7, 6});
#else
    v += __builtin_shuffle(v, (Lane){2, 3, 0, 1});
    v += __builtin_shuffle(v, (Lane){1, 0, 3, 2});
#endif
    return v[0];
}

/* Sum of n values, and of n products. Two sums side by side: one would wait for itself. */
ALWAYS_INLINE float vec_total(const float *v, int64_t n) {
    Vec even = {0}, odd = {0};
    int64_t i = 0;
    for (; i + 2 * LANES <= n; i += 2 * LANES) {
        even += *(const Vec *)(v + i);
        odd += *(const Vec *)(v + i + LANES);
    }
    float sum = vec_sum(even + odd);
    for (; i < n; i++) sum += v[i];
    return sum;
}

ALWAYS_INLINE float vec_dot(const float *a, const float *b, int64_t n) {
    Vec even = {0}, odd = {0};
    int64_t i = 0;
    for (; i + 2 * LANES <= n; i += 2 * LANES) {
        even += *(const Vec *)(a + i) * *(const Vec *)(b + i);
        odd += *(const Vec *)(a + i + LANES) * *(const Vec *)(b + i + LANES);
    }
    float sum = vec_sum(even + odd);
    for (; i < n; i++) sum += a[i] * b[i];
    return sum;
}

#endif
