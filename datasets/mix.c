#include "datasets/mix.h"

#include <math.h>
#include <string.h>

enum { ERASE_TRIES = 10 };

/* vittt.md 7.4 step 6 */
static const double erase_area_min = 0.02, erase_area_max = 1.0 / 3.0, erase_aspect_min = 0.3;

BatchMix batch_mix_none(void) {
    return (BatchMix){.pixels = 1.0, .target = 1.0};
}

bool batch_mix_wanted(const Augment *a) {
    return a->mixup_prob > 0 && (a->mixup > 0 || a->cutmix > 0);
}

static int64_t clip(int64_t x, int64_t high) {
    return x < 0 ? 0 : x > high ? high : x;
}

MixBox cutmix_box(int64_t size, double lambda, int64_t row, int64_t column) {
    const int64_t half = (int64_t)((double)size * sqrt(1.0 - lambda)) / 2;
    const int64_t top = clip(row - half, size), bottom = clip(row + half, size);
    const int64_t left = clip(column - half, size), right = clip(column + half, size);
    return (MixBox){top, left, bottom - top, right - left};
}

static BatchMix cutmix_draw(double alpha, int64_t size, Rng *rng) {
    const double lambda = rng_beta(rng, alpha, alpha);
    const int64_t row = (int64_t)rng_below(rng, (uint64_t)size);
    const int64_t column = (int64_t)rng_below(rng, (uint64_t)size);
    BatchMix m = batch_mix_none();
    m.cut = cutmix_box(size, lambda, row, column);
    m.target = 1.0 - (double)(m.cut.height * m.cut.width) / (double)(size * size);
    return m;
}

/* vittt.md 7.3 */
BatchMix batch_mix_draw(const Augment *a, int64_t size, Rng *rng) {
    BatchMix m = batch_mix_none();
    if (!batch_mix_wanted(a) || rng_uniform(rng) >= a->mixup_prob) return m;
    bool cut = a->mixup <= 0;
    if (a->mixup > 0 && a->cutmix > 0) cut = rng_uniform(rng) < a->mixup_switch_prob;
    if (cut) return cutmix_draw(a->cutmix, size, rng);
    m.pixels = m.target = rng_beta(rng, a->mixup, a->mixup);
    return m;
}

static MixBox erase_draw(int64_t size, Rng *rng) {
    const double area = (double)(size * size), widest = log(1.0 / erase_aspect_min);
    for (int i = 0; i < ERASE_TRIES; i++) {
        const double share = rng_range(rng, erase_area_min, erase_area_max) * area;
        const double aspect = exp(rng_range(rng, -widest, widest));
        const int64_t height = (int64_t)nearbyint(sqrt(share * aspect));
        const int64_t width = (int64_t)nearbyint(sqrt(share / aspect));
        if (height >= size || width >= size) continue;
        const int64_t top = (int64_t)rng_below(rng, (uint64_t)(size - height + 1));
        const int64_t left = (int64_t)rng_below(rng, (uint64_t)(size - width + 1));
        return (MixBox){top, left, height, width};
    }
    return (MixBox){0};
}

SampleMix sample_mix_draw(const Augment *a, int64_t size, Rng *rng) {
    SampleMix m = {0};
    m.flip = a->flip > 0 && rng_uniform(rng) < a->flip;
    if (a->reprob <= 0 || rng_uniform(rng) >= a->reprob) return m;
    m.erased = erase_draw(size, rng);
    m.key[0] = rng_u32(rng);
    m.key[1] = rng_u32(rng);
    return m;
}

void mix_targets(float *rows, const int64_t *labels, int64_t count, int64_t classes,
                 double smoothing, double share) {
    const double off = smoothing / (double)classes, on = 1.0 - smoothing;
    for (int64_t i = 0; i < count * classes; i++) rows[i] = (float)off;
    for (int64_t i = 0; i < count; i++) {
        const int64_t own = labels[i], other = labels[count - 1 - i];
        float *row = rows + i * classes;
        row[other] = (float)(off + on * (1.0 - share));
        row[own] = (float)(off + on * (own == other ? 1.0 : share));
    }
}

void batch_mix_write(const BatchMix *m, float out[MIX_NUMBERS]) {
    const MixBox *c = &m->cut;
    const float row[MIX_NUMBERS] = {(float)m->pixels, (float)c->top, (float)c->left,
                                    (float)c->height, (float)c->width};
    memcpy(out, row, sizeof row);
}

/* A key is 32 bits, whatever their sign. */
static int32_t bits(uint32_t key) {
    int32_t out;
    memcpy(&out, &key, sizeof out);
    return out;
}

void sample_mix_write(const SampleMix *m, int32_t out[MIX_NUMBERS]) {
    const MixBox *e = &m->erased;
    const int32_t row[MIX_NUMBERS] = {
        m->flip,           (int32_t)e->top, (int32_t)e->left, (int32_t)e->height,
        (int32_t)e->width, bits(m->key[0]), bits(m->key[1])};
    memcpy(out, row, sizeof row);
}
