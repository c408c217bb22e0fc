/* Philox4x32-10 as an inline function for host and device code: one definition, the same bits. */
#ifndef TTV_CORE_PHILOX_H
#define TTV_CORE_PHILOX_H

#include <stdint.h>

/* Device code defines PHILOX_INLINE with its own qualifiers before it includes this. */
#ifndef PHILOX_INLINE
#define PHILOX_INLINE static inline
#endif

PHILOX_INLINE void philox_round(uint32_t x[4], uint32_t key0, uint32_t key1) {
    const uint64_t p0 = (uint64_t)0xD2511F53u * x[0];
    const uint64_t p1 = (uint64_t)0xCD9E8D57u * x[2];
    const uint32_t y0 = (uint32_t)(p1 >> 32) ^ x[1] ^ key0;
    const uint32_t y2 = (uint32_t)(p0 >> 32) ^ x[3] ^ key1;
    x[0] = y0;
    x[1] = (uint32_t)p1;
    x[2] = y2;
    x[3] = (uint32_t)p0;
}

/* x: the counter on entry, four random words on return. */
PHILOX_INLINE void philox_block(uint32_t x[4], uint32_t key0, uint32_t key1) {
    for (int i = 0; i < 10; i++) {
        philox_round(x, key0, key1);
        key0 += 0x9E3779B9u; /* golden ratio and sqrt(3) - 1: the Weyl steps of the paper */
        key1 += 0xBB67AE85u;
    }
}

#endif
