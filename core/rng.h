/* Counter-based randomness: Philox4x32-10 (Salmon et al., SC'11).
 *
 * A stream is named by (seed, purpose, a, b) - for example (seed, RNG_AUGMENT, epoch, sample index)
 * - so a draw never depends on the number of threads, on other draws, or on what ran before a
 * resume. An Rng is a small value: copy it to fork it, keep none between steps.
 */
#ifndef TTV_CORE_RNG_H
#define TTV_CORE_RNG_H

#include <stdint.h>

#include "core/status.h"

typedef enum RngPurpose {
    RNG_INIT = 1,      /* a = parameter index */
    RNG_SHUFFLE = 2,   /* a = epoch */
    RNG_AUGMENT = 3,   /* a = epoch, b = sample index */
    RNG_DROP_PATH = 4, /* a = optimiser step, b = micro-step * 65536 + branch index */
    RNG_MIX = 5,       /* a = epoch, b = batch index: mixup, cutmix */
    RNG_TEST = 6,
    RNG_REPLACE = 7, /* a = epoch, b = sample index: stand-in for a corrupt sample */
    RNG_SYNTH = 8,
    RNG_PREPARE = 9, /* a = epoch, b = sample index: flip and erasing on the device */
    RNG_VIEWS = 10, /* a = attempt, b = sample: views of a scene; index: a = UINT32_MAX, b = name */
} RngPurpose;

typedef struct Rng {
    uint32_t key[2];
    uint32_t counter[4];
    uint32_t block[4];
    uint32_t used; /* words of `block` already handed out */
    int has_normal;
    double spare_normal;
} Rng;

/* One Philox4x32-10 block: out[4] from counter[4] and key[2]. Known-answer tested. */
void philox4x32(const uint32_t counter[4], const uint32_t key[2], uint32_t out[4]);

/* purpose: an RngPurpose (30 bits); a: 32 bits of it; b: 64 bits, folded. */
Rng rng_stream(uint64_t seed, uint32_t purpose, uint64_t a, uint64_t b);

uint32_t rng_u32(Rng *r);
uint64_t rng_below(Rng *r, uint64_t n);            /* uniform integer in [0,n), n > 0, unbiased */
double rng_uniform(Rng *r);                        /* [0,1), 53 bits */
double rng_range(Rng *r, double low, double high); /* [low, high) */
double rng_normal(Rng *r);                         /* N(0,1), Box-Muller in double */
double rng_trunc_normal(Rng *r, double low,
                        double high);                  /* N(0,1) cut to [low,high] by rejection */
double rng_beta(Rng *r, double a, double b);           /* Beta(a,b) through two Gamma draws */
void rng_permutation(Rng *r, int64_t *out, int64_t n); /* Fisher-Yates of 0..n-1 */

#endif
