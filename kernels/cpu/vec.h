/* One vector register of floats, for loops that must keep sums in registers (GNU vector extension).
 */
#ifndef TTV_KERNELS_CPU_VEC_H
#define TTV_KERNELS_CPU_VEC_H

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

#endif
