#include "core/rng.h"

#include <float.h>
#include <math.h>

#include "core/philox.h"

void philox4x32(const uint32_t counter[4], const uint32_t key[2], uint32_t out[4]) {
    for (int i = 0; i < 4; i++) out[i] = counter[i];
    philox_block(out, key[0], key[1]);
}

/* Counter layout: [0] block number, [1] purpose (30 bits) with the block number's carry above it,
 * [2] a, [3] b folded. Streams of different names share no block for 2^34 blocks. */
Rng rng_stream(uint64_t seed, uint32_t purpose, uint64_t a, uint64_t b) {
    Rng r = {
        .key = {(uint32_t)seed, (uint32_t)(seed >> 32)},
        .counter = {0, purpose & 0x3fffffffu, (uint32_t)a,
                    (uint32_t)b ^ (uint32_t)(b >> 32) * 0x9E3779B1u},
        .used = 4,
    };
    return r;
}

uint32_t rng_u32(Rng *r) {
    if (r->used >= 4) {
        philox4x32(r->counter, r->key, r->block);
        if (++r->counter[0] == 0) r->counter[1] += 1u << 30;
        r->used = 0;
    }
    return r->block[r->used++];
}

static uint64_t rng_u64(Rng *r) {
    uint64_t low = rng_u32(r);
    return low | (uint64_t)rng_u32(r) << 32;
}

uint64_t rng_below(Rng *r, uint64_t n) {
    if (n < 2) return 0;
    uint64_t skip = (0 - n) % n; /* 2^64 mod n: so many values would make small results likelier */
    uint64_t x;
    do {
        x = rng_u64(r);
    } while (x < skip);
    return x % n;
}

double rng_uniform(Rng *r) {
    return (double)(rng_u64(r) >> 11) * 0x1p-53;
}

double rng_range(Rng *r, double low, double high) {
    double x = low + (high - low) * rng_uniform(r);
    return x < high || high <= low ? x : nextafter(high, low); /* rounding may reach `high` */
}

double rng_normal(Rng *r) {
    if (r->has_normal) {
        r->has_normal = 0;
        return r->spare_normal;
    }
    double radius = sqrt(-2.0 * log(1.0 - rng_uniform(r))); /* 1 - u lies in (0, 1] */
    double angle = 2.0 * M_PI * rng_uniform(r);
    r->spare_normal = radius * sin(angle);
    r->has_normal = 1;
    return radius * cos(angle);
}

/* 0 < low < high: proposals from the exponential tail of rate `low`, cut at `high`. The accepted
 * density is exp(-x^2/2) because x^2/2 - low x + low^2/2 = (x - low)^2/2. */
static double normal_tail(Rng *r, double low, double high) {
    double mass = -expm1(-low * (high - low));
    for (;;) {
        double step = -log1p(-rng_uniform(r) * mass) / low;
        if (rng_uniform(r) <= exp(-0.5 * step * step)) return fmin(low + step, high);
    }
}

double rng_trunc_normal(Rng *r, double low, double high) {
    if (!(low < high)) return low;
    if (low > 0.5) return normal_tail(r, low, high);
    if (high < -0.5) return -normal_tail(r, -high, -low);
    if (high - low < 0.5) { /* narrow and near 0: the density is almost flat */
        for (;;) {
            double x = rng_range(r, low, high);
            if (rng_uniform(r) <= exp(-0.5 * x * x)) return x;
        }
    }
    for (;;) {
        double x = rng_normal(r);
        if (x >= low && x <= high) return x;
    }
}

/* log of a Gamma(a, 1) draw (Marsaglia and Tsang 2000). In logs, because draws for a << 1
 * underflow. */
static double log_gamma_draw(Rng *r, double a) {
    double boost = 0.0;
    if (a < 1.0) { /* Gamma(a) = Gamma(a + 1) U^(1/a) */
        boost = log(1.0 - rng_uniform(r)) / a;
        a += 1.0;
    }
    double d = a - 1.0 / 3.0;
    double c = 1.0 / sqrt(9.0 * d);
    for (;;) {
        double x = rng_normal(r);
        double v = 1.0 + c * x;
        if (v <= 0.0) continue;
        double log_v = 3.0 * log(v);
        double u = 1.0 - rng_uniform(r);
        if (log(u) < 0.5 * x * x + d - d * exp(log_v) + d * log_v) return log(d) + log_v + boost;
    }
}

double rng_beta(Rng *r, double a, double b) {
    double x = log_gamma_draw(r, fmax(a, DBL_EPSILON));
    double y = log_gamma_draw(r, fmax(b, DBL_EPSILON));
    return 1.0 / (1.0 + exp(y - x));
}

void rng_permutation(Rng *r, int64_t *out, int64_t n) {
    for (int64_t i = 0; i < n; i++) out[i] = i;
    for (int64_t i = n - 1; i > 0; i--) {
        int64_t j = (int64_t)rng_below(r, (uint64_t)i + 1);
        int64_t t = out[i];
        out[i] = out[j];
        out[j] = t;
    }
}
