/* Parts behind `ttv ttt probe`: intervals by resampling, rank correlations, plots. */
#include <stdarg.h>
#include <stddef.h>
#include <setjmp.h>
#include <stdint.h>
#include <cmocka.h>

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

#include "core/rng.h"
#include "datasets/image.h"
#include "tools/bootstrap.h"
#include "tools/plot.h"
#include "tools/probe.h"

enum { MANY = 400 };
static const Bootstrap usual = {.resamples = 1000, .seed = 1, .level = 0.95};

static void normals(double *x, int n, uint64_t seed) {
    Rng r = rng_stream(seed, RNG_TEST, 0, 0);
    for (int i = 0; i < n; i++) x[i] = rng_normal(&r);
}

static double width(Interval x) {
    return x.high - x.low;
}

/* 2 * 1.96 standard errors, in theory. */
static void interval_of_a_mean(void **state) {
    (void)state;
    double x[MANY], sum = 0, square = 0;
    Interval mean, none;
    normals(x, MANY, 5);
    for (int i = 0; i < MANY; i++) sum += x[i], square += x[i] * x[i];
    assert_int_equal(bootstrap_mean(&usual, x, NULL, MANY, &mean, &none), STATUS_OK);
    const double m = sum / MANY, error = sqrt((square / MANY - m * m) / MANY);
    assert_true(fabs(mean.value - m) < 1e-12);
    assert_true(mean.low < m && m < mean.high);
    assert_true(fabs(width(mean) / (2 * 1.96 * error) - 1) < 0.12);
    assert_true(isnan(none.value) && isnan(none.low) && isnan(none.high));
}

static void differences_are_paired(void **state) {
    (void)state;
    double base[MANY], x[MANY], noise[MANY];
    Interval mean, paired, own;
    normals(base, MANY, 6);
    normals(noise, MANY, 7);
    for (int i = 0; i < MANY; i++) x[i] = base[i] + 0.5 + 0.05 * noise[i];
    assert_int_equal(bootstrap_mean(&usual, x, base, MANY, &mean, &paired), STATUS_OK);
    assert_true(fabs(paired.value - 0.5) < 0.02);
    assert_true(width(paired) < width(mean) / 10);
    assert_int_equal(bootstrap_mean(&usual, base, base, MANY, &mean, &own), STATUS_OK);
    assert_true(own.value == 0 && own.low == 0 && own.high == 0);
}

static void seeds_name_the_draws(void **state) {
    (void)state;
    double x[MANY];
    Interval a, b, c, none;
    Bootstrap other = usual;
    normals(x, MANY, 8);
    other.seed = 2;
    assert_int_equal(bootstrap_mean(&usual, x, NULL, MANY, &a, &none), STATUS_OK);
    assert_int_equal(bootstrap_mean(&usual, x, NULL, MANY, &b, &none), STATUS_OK);
    assert_int_equal(bootstrap_mean(&other, x, NULL, MANY, &c, &none), STATUS_OK);
    assert_true(a.low == b.low && a.high == b.high);
    assert_true(a.low != c.low);
}

/* Samples of a group that are all alike tell no more than one. */
static void groups_are_drawn_whole(void **state) {
    (void)state;
    enum { EACH = 8, GROUPS = MANY / EACH };
    double centres[GROUPS], x[MANY];
    int64_t group[MANY];
    Interval single, grouped, none;
    Bootstrap by_group = usual;
    normals(centres, GROUPS, 9);
    for (int i = 0; i < MANY; i++) {
        group[i] = i / EACH;
        x[i] = centres[i / EACH];
    }
    by_group.group = group;
    assert_int_equal(bootstrap_mean(&usual, x, NULL, MANY, &single, &none), STATUS_OK);
    assert_int_equal(bootstrap_mean(&by_group, x, NULL, MANY, &grouped, &none), STATUS_OK);
    assert_true(fabs(single.value - grouped.value) < 1e-12);
    assert_true(fabs(width(grouped) / width(single) / sqrt(EACH) - 1) < 0.25);
}

static void too_few_have_no_interval(void **state) {
    (void)state;
    const double one[] = {3}, two[] = {1, 2}, gaps[] = {INFINITY, 4, NAN};
    const int64_t same[] = {0, 0};
    Interval mean, none;
    Bootstrap by_group = usual;
    by_group.group = same;
    assert_int_equal(bootstrap_mean(&usual, one, NULL, 1, &mean, &none), STATUS_OK);
    assert_true(mean.value == 3 && isnan(mean.low) && isnan(mean.high));
    assert_int_equal(bootstrap_mean(&by_group, two, NULL, 2, &mean, &none), STATUS_OK);
    assert_true(mean.value == 1.5 && isnan(mean.low));
    assert_int_equal(bootstrap_mean(&usual, two, NULL, 2, &mean, &none), STATUS_OK);
    assert_true(mean.low == 1 && mean.high == 2);
    assert_int_equal(bootstrap_mean(&usual, gaps, NULL, 3, &mean, &none), STATUS_OK);
    assert_true(mean.value == 4 && isnan(mean.low)); /* what is not finite does not count */
    assert_int_equal(bootstrap_mean(&usual, one, NULL, 0, &mean, &none), STATUS_OK);
    assert_true(isnan(mean.value));
}

static void quantiles(void **state) {
    (void)state;
    const double x[] = {0, 10, 20, 30};
    assert_true(quantile_of_sorted(x, 4, 0) == 0 && quantile_of_sorted(x, 4, 1) == 30);
    assert_true(fabs(quantile_of_sorted(x, 4, 0.5) - 15) < 1e-12);
    assert_true(fabs(quantile_of_sorted(x, 4, 0.1) - 3) < 1e-12);
    assert_true(quantile_of_sorted(x, 1, 0.3) == 0);
}

/* ---- trends ---- */

static void trend_of_a_sweep(void **state) {
    (void)state;
    static ProbeTable t;
    const double steps[] = {1, 1, 2, 4}, psnr[] = {20, 20, 19.9, 19}, loss[] = {-1, -1, -2, -3};
    t.count = 4;
    for (int i = 0; i < 4; i++) {
        t.rows[i].value = steps[i];
        t.rows[i].metric[0].value = psnr[i];
        t.rows[i].inner.loss[1] = loss[i];
    }
    const ProbeTrend trend = probe_trend(&t);
    assert_true(trend.metric == -1 && trend.inner == -1 && trend.paradox);
    assert_true(trend.drop_at == 4);
    t.rows[3].metric[0].value = 19.95; /* within one percent */
    assert_true(isnan(probe_trend(&t).drop_at));
    assert_true(isnan(rank_correlation(steps, steps, 1)));
}

/* ---- plots ---- */

/* Coloured pixels of a plot: neither paper nor grid, axes or text, which are grey. */
static int64_t drawn(const char *path) {
    const ImageOptions o = {.max_pixels = 1 << 24};
    Image image = {0};
    ImageInfo info;
    int64_t count = 0;
    assert_int_equal(image_read(path, &o, &image, &info), STATUS_OK);
    for (int64_t i = 0; i < image.width * image.height; i++)
        count += abs(image.pixels[3 * i] - image.pixels[3 * i + 2]) > 30;
    image_free(&image);
    return count;
}

static void whiskers_are_drawn(void **state) {
    (void)state;
    char path[] = "/tmp/ttv-plot-XXXXXX";
    const double x[] = {1, 2, 3}, y[] = {5, 6, 7}, low[] = {4, 5, NAN}, high[] = {6, 8, NAN};
    const int file = mkstemp(path);
    assert_true(file >= 0);
    close(file);
    PlotSeries s = {"a", x, y, 3, NULL, NULL};
    assert_int_equal(plot_write(path, "t", "x", &s, 1, true), STATUS_OK);
    const int64_t plain = drawn(path);
    s.low = low;
    s.high = high;
    assert_int_equal(plot_write(path, "t", "x", &s, 1, true), STATUS_OK);
    assert_true(drawn(path) > plain + 50);
    PlotRow rows[] = {{"first", 1, NAN, NAN}, {"second", 2, NAN, NAN}};
    assert_int_equal(plot_rows(path, "t", rows, 2), STATUS_OK);
    const int64_t bare = drawn(path);
    rows[1].low = 1.5;
    rows[1].high = 2.0;
    assert_int_equal(plot_rows(path, "t", rows, 2), STATUS_OK);
    assert_true(drawn(path) > bare + 50);
    assert_int_equal(plot_rows(path, "t", rows, 0), STATUS_OK);
    unlink(path);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(interval_of_a_mean),       cmocka_unit_test(differences_are_paired),
        cmocka_unit_test(seeds_name_the_draws),     cmocka_unit_test(groups_are_drawn_whole),
        cmocka_unit_test(too_few_have_no_interval), cmocka_unit_test(quantiles),
        cmocka_unit_test(trend_of_a_sweep),         cmocka_unit_test(whiskers_are_drawn),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
