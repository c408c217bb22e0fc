/* Mixup, cutmix, erasing and flips: arithmetic exactly, draws by their moments, targets. Streams
 * are fixed, so a statistical check passes always or never. */
#include "core_fixture.h"

#include <math.h>
#include <string.h>

#include "datasets/mix.h"

enum { DRAWS = 40000, SIDE = 224 };

static const Augment recipe = {.flip = 0.5,
                               .mixup = 0.8,
                               .cutmix = 1.0,
                               .mixup_prob = 1.0,
                               .mixup_switch_prob = 0.5,
                               .reprob = 0.25};

static void assert_share(int64_t hits, int64_t draws, double p) {
    const double share = (double)hits / (double)draws;
    if (fabs(share - p) > 5 * sqrt(p * (1 - p) / (double)draws) + 1e-12)
        fail_msg("a share of %g, expected %g", share, p);
}

static void assert_mean(double sum, int64_t draws, double mean, double variance) {
    const double got = sum / (double)draws;
    if (fabs(got - mean) > 5 * sqrt(variance / (double)draws))
        fail_msg("a mean of %g, expected %g", got, mean);
}

/* ---- boxes ---- */

static void boxes_are_exact(void **state) {
    (void)state;
    static const struct {
        int64_t size;
        double lambda;
        int64_t row, column;
        MixBox box;
    } cases[] = {
        {224, 1.0, 100, 100, {100, 100, 0, 0}},    /* nothing is cut */
        {224, 0.75, 112, 112, {56, 56, 112, 112}}, /* cut 112 */
        {224, 0.0, 112, 112, {0, 0, 224, 224}},    /* all of it */
        {224, 0.0, 0, 223, {0, 111, 112, 113}},    /* clipped at two edges */
        {224, 0.75, 10, 220, {0, 164, 66, 60}},    /* one edge each way */
        {32, 0.5, 16, 16, {5, 5, 22, 22}},         /* int(22.627) = 22, half 11 */
        {33, 0.75, 16, 16, {8, 8, 16, 16}},        /* int(16.5) = 16, half 8 */
        {8, 0.9, 4, 4, {3, 3, 2, 2}},              /* int(2.53) = 2, half 1 */
        {8, 0.99, 4, 4, {4, 4, 0, 0}},             /* int(0.8) = 0 */
        {1, 0.0, 0, 0, {0, 0, 0, 0}},              /* half of 1 is 0 */
    };
    for (int i = 0; i < COUNT(cases); i++) {
        const MixBox b = cutmix_box(cases[i].size, cases[i].lambda, cases[i].row, cases[i].column);
        const MixBox *e = &cases[i].box;
        if (b.top != e->top || b.left != e->left || b.height != e->height || b.width != e->width)
            fail_msg("case %d: %d %d %d %d", i, (int)b.top, (int)b.left, (int)b.height,
                     (int)b.width);
    }
}

/* ---- batches ---- */

static void batches_follow_the_recipe(void **state) {
    (void)state;
    int64_t cut = 0, mixed = 0, row_zero = 0;
    double sum = 0, squares = 0;
    for (uint64_t i = 0; i < DRAWS; i++) {
        Rng rng = rng_stream(3, RNG_MIX, 5, i);
        const BatchMix m = batch_mix_draw(&recipe, SIDE, &rng);
        assert_true(m.target >= 0 && m.target <= 1);
        if (m.pixels == 1.0) {
            const MixBox *b = &m.cut;
            cut++;
            row_zero += b->top == 0;
            assert_true(b->top >= 0 && b->left >= 0 && b->height >= 0 && b->width >= 0);
            assert_true(b->top + b->height <= SIDE && b->left + b->width <= SIDE);
            assert_true(m.target == 1.0 - (double)(b->height * b->width) / (SIDE * SIDE));
        } else {
            mixed++;
            assert_true(m.cut.height == 0 && m.pixels == m.target);
            sum += m.pixels;
            squares += m.pixels * m.pixels;
        }
    }
    assert_share(cut, DRAWS, 0.5);
    assert_mean(sum, mixed, 0.5, 1 / (4 * 2.6));
    /* E x^2 of Beta(a, a) = (a + 1) / (2 (2a + 1)); its own variance is below 0.1. */
    assert_mean(squares, mixed, 1.8 / (2 * 2.6), 0.1);
    assert_true(row_zero > cut / 10);
}

/* The centre is uniform and lambda uniform for alpha 1: the mean area of the clipped box.
 * With s = cut / size: E over the centre of the clipped width is s - s^2 / 4 of the size. */
static void cutmix_covers_its_area(void **state) {
    (void)state;
    Augment a = recipe;
    a.mixup = 0;
    double sum = 0;
    for (uint64_t i = 0; i < DRAWS; i++) {
        Rng rng = rng_stream(4, RNG_MIX, 0, i);
        sum += batch_mix_draw(&a, 4096, &rng).target;
    }
    /* 1 - integral over lambda of (s - s^2/4)^2, s = sqrt(1 - lambda): 1 - (1/2 - 1/5 + 1/48) */
    assert_mean(sum, DRAWS, 1 - (0.5 - 0.2 + 1.0 / 48), 0.1);
}

static void switches_are_obeyed(void **state) {
    (void)state;
    Augment a = recipe;
    int64_t touched = 0, cut = 0;
    a.mixup_prob = 0.3;
    a.mixup_switch_prob = 0.8;
    for (uint64_t i = 0; i < DRAWS; i++) {
        Rng rng = rng_stream(5, RNG_MIX, 0, i);
        const BatchMix m = batch_mix_draw(&a, SIDE, &rng);
        touched += m.pixels != 1.0 || m.cut.height > 0 || m.cut.top > 0 || m.cut.left > 0;
        cut += m.pixels == 1.0 && (m.cut.top > 0 || m.cut.left > 0 || m.cut.height > 0);
    }
    assert_share(touched, DRAWS, 0.3);
    assert_share(cut, touched, 0.8);

    Augment off = recipe;
    off.mixup = off.cutmix = 0;
    assert_false(batch_mix_wanted(&off));
    Rng rng = rng_stream(5, RNG_MIX, 0, 0);
    assert_true(batch_mix_draw(&off, SIDE, &rng).target == 1.0);
    off = recipe;
    off.mixup_prob = 0;
    assert_false(batch_mix_wanted(&off));
    Augment only = recipe;
    only.cutmix = 0;
    for (uint64_t i = 0; i < 200; i++) {
        rng = rng_stream(6, RNG_MIX, 0, i);
        assert_true(batch_mix_draw(&only, SIDE, &rng).cut.height == 0);
    }
    only = recipe;
    only.mixup = 0;
    for (uint64_t i = 0; i < 200; i++) {
        rng = rng_stream(6, RNG_MIX, 0, i);
        assert_true(batch_mix_draw(&only, SIDE, &rng).pixels == 1.0);
    }
}

/* ---- samples ---- */

static void samples_follow_the_recipe(void **state) {
    (void)state;
    int64_t flips = 0, boxes = 0, at_top = 0, at_bottom = 0;
    double share = 0, aspect = 0;
    for (uint64_t i = 0; i < DRAWS; i++) {
        Rng rng = rng_stream(3, RNG_PREPARE, 1, i);
        const SampleMix m = sample_mix_draw(&recipe, SIDE, &rng);
        const MixBox *e = &m.erased;
        flips += m.flip;
        if (e->height == 0) continue;
        boxes++;
        assert_true(e->height < SIDE && e->width < SIDE && e->width > 0);
        assert_true(e->top >= 0 && e->left >= 0);
        assert_true(e->top + e->height <= SIDE && e->left + e->width <= SIDE);
        const double area = (double)(e->height * e->width) / (SIDE * SIDE);
        const double ratio = (double)e->height / (double)e->width;
        assert_true(area > 0.019 && area < 0.338);
        assert_true(ratio > 0.28 && ratio < 1 / 0.28);
        share += area;
        aspect += log(ratio);
        at_top += e->top == 0;
        at_bottom += e->top + e->height == SIDE;
    }
    assert_share(flips, DRAWS, 0.5);
    assert_share(boxes, DRAWS, 0.25); /* a box fits in every one of its tries but very few */
    /* U(0.02, 1/3); the widest of the large boxes do not fit, which moves the mean by less than
     * the tolerance of a tenth of the deviation. */
    assert_true(fabs(share / (double)boxes - (0.02 + 1.0 / 3) / 2) < 0.009);
    assert_true(fabs(aspect / (double)boxes) < 5 * 0.7 / sqrt((double)boxes));
    assert_true(at_top > 0 && at_bottom > 0);
}

static void samples_of_nothing_are_left_alone(void **state) {
    (void)state;
    const Augment off = {0};
    for (uint64_t i = 0; i < 100; i++) {
        Rng rng = rng_stream(3, RNG_PREPARE, 1, i);
        const SampleMix m = sample_mix_draw(&off, SIDE, &rng);
        assert_false(m.flip);
        assert_true(m.erased.height == 0);
    }
    Augment always = {.flip = 1, .reprob = 1};
    for (int64_t size = 1; size < 40; size++) /* tiny pictures: no box, or one that fits */
        for (uint64_t i = 0; i < 50; i++) {
            Rng rng = rng_stream(3, RNG_PREPARE, (uint64_t)size, i);
            const SampleMix m = sample_mix_draw(&always, size, &rng);
            assert_true(m.flip);
            assert_true(m.erased.top + m.erased.height <= size);
            assert_true(m.erased.left + m.erased.width <= size);
        }
}

/* ---- targets and rows ---- */

static void targets_sum_to_one(void **state) {
    (void)state;
    enum { N = 7, CLASSES = 10 };
    const int64_t labels[N] = {0, 1, 2, 3, 4, 1, 9};
    float rows[N * CLASSES];
    for (double share = 0; share <= 1; share += 0.125) {
        mix_targets(rows, labels, N, CLASSES, 0.1, share);
        for (int i = 0; i < N; i++) {
            double sum = 0;
            for (int c = 0; c < CLASSES; c++) {
                double e = 0.01;
                e += labels[i] == c ? 0.9 * share : 0;
                e += labels[N - 1 - i] == c ? 0.9 * (1 - share) : 0;
                assert_float_equal(rows[i * CLASSES + c], e, 1e-6);
                sum += (double)rows[i * CLASSES + c];
            }
            assert_true(fabs(sum - 1) < 1e-6);
        }
    }
    /* vittt.md 7.3: on = 0.9 + 1e-4, off = 1e-4 for 1000 classes */
    static float wide[2 * 1000];
    const int64_t pair[2] = {17, 999};
    mix_targets(wide, pair, 2, 1000, 0.1, 1.0);
    assert_true(wide[17] == (float)(0.9 + 1e-4) && wide[18] == 1e-4f);
    assert_true(wide[999] == 1e-4f && wide[1999] == (float)(0.9 + 1e-4));
    mix_targets(wide, pair, 2, 1000, 0.0, 1.0);
    assert_true(wide[17] == 1.0f && wide[999] == 0.0f);
}

static void rows_are_the_kernels(void **state) {
    (void)state;
    const BatchMix m = {.pixels = 0.25, .target = 0.5, .cut = {3, 5, 7, 9}};
    float mix[MIX_NUMBERS];
    batch_mix_write(&m, mix);
    const float expected[MIX_NUMBERS] = {0.25f, 3, 5, 7, 9};
    assert_memory_equal(mix, expected, sizeof mix);
    const SampleMix s = {true, {1, 2, 3, 4}, {0xfffffffeu, 5}};
    int32_t row[MIX_NUMBERS];
    sample_mix_write(&s, row);
    const int32_t numbers[MIX_NUMBERS] = {1, 1, 2, 3, 4, -2, 5};
    assert_memory_equal(row, numbers, sizeof row);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(boxes_are_exact),
        cmocka_unit_test(batches_follow_the_recipe),
        cmocka_unit_test(cutmix_covers_its_area),
        cmocka_unit_test(switches_are_obeyed),
        cmocka_unit_test(samples_follow_the_recipe),
        cmocka_unit_test(samples_of_nothing_are_left_alone),
        cmocka_unit_test(targets_sum_to_one),
        cmocka_unit_test(rows_are_the_kernels),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
