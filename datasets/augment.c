/* Training augmentation: random resized crop or shift, flip, then a policy or colour jitter. */
#include <math.h>
#include <string.h>

#include "datasets/color.h"
#include "datasets/transform.h"

enum { CROP_TRIES = 10 };

/* When no drawn crop fits: the largest central one of allowed aspect. */
static ImageRegion central_region(const Augment *a, int64_t width, int64_t height) {
    double ratio = (double)width / (double)height;
    ImageRegion r = {0, 0, width, height};
    if (ratio < a->ratio_min) r.height = (int64_t)nearbyint((double)width / a->ratio_min);
    if (ratio > a->ratio_max) r.width = (int64_t)nearbyint((double)height * a->ratio_max);
    if (r.width < 1) r.width = 1;
    if (r.height < 1) r.height = 1;
    if (r.width > width) r.width = width;
    if (r.height > height) r.height = height;
    r.left = (width - r.width) / 2;
    r.top = (height - r.height) / 2;
    return r;
}

/* vittt.md 7.4 step 2 */
ImageRegion augment_region(const Augment *a, int64_t width, int64_t height, Rng *rng) {
    if (!a->random_resized_crop) return (ImageRegion){0, 0, width, height};
    double area = (double)width * (double)height;
    double log_min = log(a->ratio_min), log_max = log(a->ratio_max);
    for (int i = 0; i < CROP_TRIES; i++) {
        double share = rng_range(rng, a->scale_min, a->scale_max);
        double aspect = exp(rng_range(rng, log_min, log_max));
        int64_t w = (int64_t)nearbyint(sqrt(area * share * aspect));
        int64_t h = (int64_t)nearbyint(sqrt(area * share / aspect));
        if (w < 1 || h < 1 || w > width || h > height) continue;
        int64_t top = (int64_t)rng_below(rng, (uint64_t)(height - h + 1));
        int64_t left = (int64_t)rng_below(rng, (uint64_t)(width - w + 1));
        return (ImageRegion){left, top, w, h};
    }
    return central_region(a, width, height);
}

static void flip_rows(uint8_t *pixels, int64_t side) {
    for (int64_t y = 0; y < side; y++) {
        uint8_t *left = pixels + y * side * 3, *right = left + (side - 1) * 3;
        for (; left < right; left += 3, right -= 3) {
            uint8_t swap[3];
            memcpy(swap, left, 3);
            memcpy(left, right, 3);
            memcpy(right, swap, 3);
        }
    }
}

/* Moves the picture by (dx, dy) pixels in place; black comes in. */
static void shift_pixels(uint8_t *pixels, int64_t side, int64_t dx, int64_t dy) {
    int64_t keep = (side - (dx < 0 ? -dx : dx)) * 3;
    size_t row_bytes = (size_t)side * 3;
    for (int64_t i = 0; i < side; i++) {
        /* Rows are visited so that none is overwritten before it was read. */
        int64_t to = dy > 0 ? side - 1 - i : i, from = to - dy;
        uint8_t *row = pixels + (size_t)to * row_bytes;
        if (from < 0 || from >= side || keep <= 0) {
            memset(row, 0, row_bytes);
            continue;
        }
        const uint8_t *source = pixels + (size_t)from * row_bytes;
        memmove(row + (dx > 0 ? dx : 0) * 3, source + (dx < 0 ? -dx : 0) * 3, (size_t)keep);
        size_t gap = row_bytes - (size_t)keep;
        memset(dx > 0 ? row : row + keep, 0, gap);
    }
}

/* Index i of a row that goes on mirrored at both ends, the end pixels not repeated. */
static int64_t mirrored(int64_t i, int64_t side) {
    const int64_t period = side > 1 ? 2 * (side - 1) : 1;
    i = ((i % period) + period) % period;
    return i < side ? i : period - i;
}

static void shift_mirror(uint8_t *pixels, int64_t side, int64_t dx, int64_t dy, uint8_t *work) {
    memcpy(work, pixels, (size_t)(side * side * 3));
    for (int64_t y = 0; y < side; y++) {
        const uint8_t *source = work + mirrored(y - dy, side) * side * 3;
        for (int64_t x = 0; x < side; x++, pixels += 3)
            memcpy(pixels, source + mirrored(x - dx, side) * 3, 3);
    }
}

static Status shift_random(const Augment *a, uint8_t *pixels, int64_t side, Rng *rng,
                           ResizeScratch *scratch) {
    uint64_t range = (uint64_t)(2 * a->shift + 1);
    int64_t dx = (int64_t)rng_below(rng, range) - a->shift;
    int64_t dy = (int64_t)rng_below(rng, range) - a->shift;
    if (a->shift_fill == SHIFT_BLACK) {
        shift_pixels(pixels, side, dx, dy);
        return STATUS_OK;
    }
    TRY(resize_scratch_reserve(scratch, (size_t)(side * side * 3)));
    shift_mirror(pixels, side, dx, dy, scratch->memory);
    return STATUS_OK;
}

/* Three factors in random order, as torchvision's ColorJitter. */
static void jitter(const Augment *a, uint8_t *pixels, int64_t count, Rng *rng) {
    int64_t order[3];
    rng_permutation(rng, order, 3);
    for (int i = 0; i < 3; i++) {
        float factor = (float)rng_range(rng, 1.0 - a->jitter, 1.0 + a->jitter);
        if (order[i] == 0) color_brightness(pixels, count, factor);
        if (order[i] == 1) color_contrast(pixels, count, factor);
        if (order[i] == 2) color_saturation(pixels, count, factor);
    }
}

PolicyStyle augment_style(const Policy *policy, const Preprocess *p) {
    PolicyStyle s = {AFFINE_NEAREST, {0, 0, 0}};
    if (policy->kind != POLICY_RAND) return s;
    s.filter = p->filter == FILTER_BILINEAR ? AFFINE_BILINEAR : AFFINE_BICUBIC;
    for (int c = 0; c < 3; c++) s.fill[c] = (uint8_t)nearbyint(255.0 * p->mean[c]);
    return s;
}

static Status apply_policy(const Policy *policy, const Preprocess *p, Rng *rng, uint8_t *pixels,
                           ResizeScratch *scratch) {
    const PolicyStyle style = augment_style(policy, p);
    PolicyOp ops[POLICY_MAX_OPS];
    const int count = policy_draw(policy, p->image_size, rng, ops);
    TRY(resize_scratch_reserve(scratch, policy_work_bytes(p->image_size)));
    for (int i = 0; i < count; i++)
        policy_apply(&ops[i], pixels, p->image_size, &style, scratch->memory);
    return STATUS_OK;
}

static Status crop_or_shift(const Augment *a, const Preprocess *p, const Image *src, Rng *rng,
                            uint8_t *dst, ResizeScratch *scratch) {
    const int64_t s = p->image_size;
    if (a->random_resized_crop) {
        ImageRegion r = augment_region(a, src->width, src->height, rng);
        return resize_box(src, r.left, r.top, r.width, r.height, (Filter)p->filter, dst, s, s,
                          scratch);
    }
    TRY(preprocess_apply(p, src, dst, scratch));
    return a->shift > 0 ? shift_random(a, dst, s, rng, scratch) : STATUS_OK;
}

Status augment_apply(const Augment *a, const Preprocess *p, const Image *src, Rng *rng,
                     uint8_t *dst, ResizeScratch *scratch) {
    const int64_t s = p->image_size;
    Policy policy; /* a few characters: parsed anew, so that nothing can be out of date */
    TRY(policy_parse(a->policy, &policy));
    TRY(crop_or_shift(a, p, src, rng, dst, scratch));
    if (a->flip > 0 && rng_uniform(rng) < a->flip) flip_rows(dst, s);
    if (policy.kind != POLICY_NONE) return apply_policy(&policy, p, rng, dst, scratch);
    if (a->jitter > 0) jitter(a, dst, s * s, rng);
    return STATUS_OK;
}

bool augment_flips_first(const Augment *a) {
    Policy policy;
    return policy_parse(a->policy, &policy) == STATUS_OK && policy.kind != POLICY_NONE;
}

Status augment_check(const Augment *a) {
    Policy policy;
    TRY(policy_parse(a->policy, &policy));
    if (a->scale_min > a->scale_max || a->ratio_min > a->ratio_max) {
        return status_set(STATUS_USAGE,
                          "augment: scale_min %g, scale_max %g, ratio_min %g, ratio_max %g: a "
                          "minimum is above its maximum",
                          a->scale_min, a->scale_max, a->ratio_min, a->ratio_max);
    }
    return STATUS_OK;
}
