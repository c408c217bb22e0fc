/* PSNR, SSIM and MSE: hand-made cases, the contract's refusals, 35 pairs with known values. */
#include "data_support.h"

#include <math.h>

#include "datasets/score.h"
#include "datasets/tar.h"

static const ScoreOptions plain = {.ssim = true};

/* Grey 16- or 8-bit picture over caller's samples. */
static Picture grey(const uint16_t *samples, int64_t w, int64_t h, int bits) {
    return (Picture){
        .name = "grey", .words = samples, .width = w, .height = h, .colors = 1, .bits = bits};
}

static Score score_of(Picture a, Picture b, ScoreOptions o) {
    Score s;
    assert_ok(score_pictures(&a, &b, &o, &s));
    return s;
}

static void near(double got, double want, double tolerance) {
    if (!(fabs(got - want) <= tolerance)) fail_msg("%.12g instead of %.12g", got, want);
}

static void small_pictures_score(void **state) {
    (void)state;
    const uint16_t zero[4] = {0}, one[4] = {1, 0, 0, 0}, full8[4] = {255, 255, 255, 255};
    const uint16_t full16[4] = {65535, 65535, 65535, 65535};
    /* 1x1, 1xN, Nx1 */
    near(score_of(grey(zero, 1, 1, 8), grey(full8, 1, 1, 8), plain).psnr, 0, 1e-12);
    near(score_of(grey(zero, 4, 1, 8), grey(one, 4, 1, 8), plain).psnr, 10 * log10(255.0 * 255 * 4),
         1e-9);
    near(score_of(grey(zero, 1, 4, 8), grey(one, 1, 4, 8), plain).mse, 0.25, 0);
    /* 16 bits at 65535 */
    near(score_of(grey(zero, 2, 2, 16), grey(full16, 2, 2, 16), plain).psnr, 0, 1e-12);
    near(score_of(grey(zero, 2, 2, 16), grey(one, 2, 2, 16), plain).psnr,
         10 * log10(65535.0 * 65535 * 4), 1e-9);
    /* identical */
    Score s = score_of(grey(one, 2, 2, 8), grey(one, 2, 2, 8), plain);
    assert_true(s.identical && isinf(s.psnr) && s.psnr > 0 && s.mse == 0);
    assert_true(isnan(s.ssim)); /* no window of 11x11 fits */
}

static void the_range_is_explicit(void **state) {
    (void)state;
    const uint16_t a[4] = {0}, b[4] = {2, 2, 2, 2};
    Score whole = score_of(grey(a, 2, 2, 8), grey(b, 2, 2, 8), plain);
    Score unit = score_of(grey(a, 2, 2, 8), grey(b, 2, 2, 8), (ScoreOptions){.range = 1});
    Score given = score_of(grey(a, 2, 2, 16), grey(b, 2, 2, 16), (ScoreOptions){.range = 1023});
    assert_true(whole.range == 255 && unit.range == 1 && given.range == 1023);
    near(unit.psnr, whole.psnr, 1e-12);
    near(unit.mse, 4 / (255.0 * 255), 1e-15);
    near(given.psnr, 10 * log10(1023.0 * 1023 / 4), 1e-12);
}

static void borders_are_cut(void **state) {
    (void)state;
    const uint16_t a[9] = {9, 9, 9, 9, 5, 9, 9, 9, 9}, b[9] = {0, 0, 0, 0, 5, 0, 0, 0, 0};
    Score s = score_of(grey(a, 3, 3, 8), grey(b, 3, 3, 8), (ScoreOptions){.border = 1});
    assert_true(s.identical && s.samples == 1 && s.width == 1);
    Picture p = grey(a, 3, 3, 8), q = grey(b, 3, 3, 8);
    ScoreOptions o = {.border = 2};
    assert_int_equal(score_pictures(&p, &q, &o, &s), STATUS_DATA);
    assert_message("border of 2 pixels");
    Picture wide = grey(a, 4, 2, 8), other = grey(b, 4, 2, 8);
    o.border = 1; /* nothing of two rows */
    assert_int_equal(score_pictures(&wide, &other, &o, &s), STATUS_DATA);
}

static void refuse(Picture a, Picture b, const char *message) {
    Score s;
    assert_int_equal(score_pictures(&a, &b, &plain, &s), STATUS_DATA);
    assert_message(message);
    Image map;
    assert_int_equal(score_error_map(&a, &b, &plain, 0.25, &map), STATUS_DATA);
    assert_null(map.pixels);
}

static void unlike_pictures_are_refused(void **state) {
    (void)state;
    const uint16_t v[64] = {0};
    Picture a = grey(v, 2, 2, 8), rgb = a, deep = a, alpha = a;
    rgb.colors = 3;
    deep.bits = 16;
    alpha.alpha = true;
    refuse(a, grey(v, 2, 3, 8), "2 x 3 pixels, but grey has 2 x 2");
    refuse(a, grey(v, 3, 2, 8), "3 x 2 pixels");
    refuse(a, rgb, "is RGB, but grey is grey");
    refuse(a, deep, "has 16 bits, but grey has 8");
    refuse(a, alpha, "alpha channel");
    refuse(alpha, a, "alpha channel");
}

static void alpha_by_policy(void **state) {
    (void)state;
    const uint16_t v[2] = {200, 51}, flat[1] = {200}, black[1] = {40}, white[1] = {244};
    Picture p = grey(v, 1, 1, 8);
    p.alpha = true;
    ScoreOptions o = {.alpha = SCORE_ALPHA_IGNORE};
    assert_true(score_of(p, grey(flat, 1, 1, 8), o).identical);
    o.alpha = SCORE_ALPHA_COMPOSITE; /* 200 * 0.2 */
    assert_true(score_of(p, grey(black, 1, 1, 8), o).identical);
    o.alpha = SCORE_ALPHA_COMPOSITE_WHITE; /* + 255 * 0.8 */
    assert_true(score_of(p, grey(white, 1, 1, 8), o).identical);
}

static void ssim_of_simple_pictures(void **state) {
    (void)state;
    enum { SIDE = 13 };
    uint16_t a[SIDE * SIDE], b[SIDE * SIDE];
    for (int i = 0; i < SIDE * SIDE; i++) {
        a[i] = 100;
        b[i] = 110;
    }
    Score same = score_of(grey(a, SIDE, SIDE, 8), grey(a, SIDE, SIDE, 8), plain);
    near(same.ssim, 1, 1e-12);
    /* Flat pictures: only the luminance term differs from 1. */
    double c1 = 0.01 * 255 * 0.01 * 255;
    Score flat = score_of(grey(a, SIDE, SIDE, 8), grey(b, SIDE, SIDE, 8), plain);
    near(flat.ssim, (2 * 100.0 * 110 + c1) / (100.0 * 100 + 110.0 * 110 + c1), 1e-9);
    ScoreOptions o = {.ssim = true, .border = 2}; /* 9x9 is left */
    assert_true(isnan(score_of(grey(a, SIDE, SIDE, 8), grey(b, SIDE, SIDE, 8), o).ssim));
}

static void alarms(void **state) {
    (void)state;
    assert_non_null(strstr(score_alarm(0, 8), "black"));
    assert_non_null(strstr(score_alarm(1, 8), "0..1"));
    assert_non_null(strstr(score_alarm(255, 16), "16 bits"));
    assert_null(score_alarm(2, 8));
    assert_null(score_alarm(256, 16));
}

static void summaries(void **state) {
    (void)state;
    Score s[4] = {
        {.psnr = 30, .mse = 1, .squared_error = 4e-3, .samples = 4, .ssim = 0.5},
        {.psnr = 20, .mse = 3, .squared_error = 12e-2, .samples = 12, .ssim = NAN},
        {.psnr = INFINITY, .samples = 4, .identical = true, .ssim = 1},
        {.psnr = 40, .mse = 2, .squared_error = 4e-4, .samples = 4, .ssim = 0.75},
    };
    ScoreSummary u;
    assert_ok(score_summarise(s, 4, &u));
    assert_true(u.n == 4 && u.n_infinite == 1 && u.n_ssim == 3);
    near(u.psnr_mean, 30, 1e-12);
    near(u.psnr_min, 20, 0);
    near(u.psnr_median, 35, 1e-12);
    near(u.psnr_pooled, 10 * log10(24 / 124.4e-3), 1e-9);
    near(u.mse_mean, 1.5, 1e-12);
    near(u.mse_pooled, 2, 1e-12);
    near(u.ssim_mean, 0.75, 1e-12);
    near(u.ssim_min, 0.5, 0);
    assert_ok(score_summarise(s + 2, 1, &u));
    assert_true(isinf(u.psnr_mean) && isinf(u.psnr_pooled) && isinf(u.psnr_median));
    assert_ok(score_summarise(s + 1, 3, &u));
    near(u.psnr_median, 40, 0);
    assert_ok(score_summarise(s, 0, &u));
    assert_true(u.n == 0 && isnan(u.psnr_mean) && isnan(u.ssim_mean));
}

static void groups_count_alike(void **state) {
    (void)state;
    const Score s[6] = {
        {.psnr = 30, .samples = 1, .ssim = 0.5, .lpips = 0.1},
        {.psnr = 20, .samples = 1, .ssim = NAN, .lpips = 0.3},
        {.psnr = 10, .samples = 1, .ssim = NAN, .lpips = NAN},
        {.psnr = INFINITY, .samples = 1, .identical = true, .ssim = 1, .lpips = 0},
        {.psnr = INFINITY, .samples = 1, .identical = true, .ssim = 1, .lpips = 0},
        {.psnr = 40, .samples = 1, .ssim = 0.75, .lpips = NAN},
    };
    const int64_t group[6] = {4, 4, 7, 8, 9, 9};
    ScoreSummary u;
    assert_ok(score_summarise_groups(s, group, 6, &u));
    assert_true(u.groups == 4 && u.n == 6 && u.n_infinite == 2 && u.n_lpips == 4);
    near(u.psnr_groups, (25 + 10 + 40) / 3.0, 1e-12); /* group 8 is identical */
    near(u.ssim_groups, (0.5 + 1 + 0.875) / 3, 1e-12);
    near(u.lpips_groups, (0.2 + 0 + 0) / 3, 1e-12);
    near(u.psnr_mean, 25, 1e-12);
    near(u.lpips_mean, 0.1, 1e-12);
    near(u.lpips_max, 0.3, 0);
    assert_ok(score_summarise_groups(s + 3, group + 3, 1, &u));
    assert_true(u.groups == 1 && isinf(u.psnr_groups));
    assert_ok(score_summarise_groups(s, group, 0, &u));
    assert_true(u.groups == 0 && isnan(u.psnr_groups) && isnan(u.lpips_groups));
}

/* White is 235, black 16; the weights of the colours sum to 219. */
static void luma_is_studio_swing(void **state) {
    (void)state;
    const uint8_t black[3] = {0, 0, 0}, white[3] = {255, 255, 255}, green[3] = {0, 255, 0};
    const uint16_t deep_black[3] = {0, 0, 0}, deep_white[3] = {65535, 65535, 65535};
    const ScoreOptions y = {.luma = true};
    const Picture k = {
        .name = "k", .bytes = black, .width = 1, .height = 1, .colors = 3, .bits = 8};
    Picture w = k, g = k, dk = k, dw = k;
    w.bytes = white, g.bytes = green;
    dk.bytes = dw.bytes = NULL, dk.words = deep_black, dw.words = deep_white;
    dk.bits = dw.bits = 16;
    Score s = score_of(k, w, y);
    near(s.mse, 219.0 * 219, 1e-9);
    near(s.psnr, 20 * log10(255 / 219.0), 1e-12);
    assert_true(s.samples == 1 && s.colors == 1 && s.largest_b == 255);
    near(score_of(k, g, y).mse, 128.553 * 128.553, 1e-9);
    near(score_of(dk, dw, y).psnr, s.psnr, 1e-12);
    const uint16_t a[2] = {3, 9}, b[2] = {5, 9}; /* grey has no colours to weigh */
    near(score_of(grey(a, 2, 1, 8), grey(b, 2, 1, 8), y).mse, 2, 0);
    /* SSIM of luma is that of the luma as a grey picture, its offset of 16 included */
    uint8_t rgb[2][12 * 12 * 3];
    uint16_t luma[2][12 * 12];
    for (int i = 0; i < 12 * 12; i++)
        for (int p = 0; p < 2; p++) {
            const int v = (i * 37 + p * i) % 51 * 5; /* 219 / 255 of it is 4.29..: not rounded */
            memset(rgb[p] + 3 * i, v, 3);
            luma[p][i] = (uint16_t)lrint(257 * (16 + 219.0 * v / 255));
        }
    Picture c = {.name = "c", .bytes = rgb[0], .width = 12, .height = 12, .colors = 3, .bits = 8};
    Picture d = c;
    d.bytes = rgb[1];
    const ScoreOptions y_ssim = {.luma = true, .ssim = true};
    near(score_of(c, d, y_ssim).ssim,
         score_of(grey(luma[0], 12, 12, 16), grey(luma[1], 12, 12, 16), plain).ssim, 1e-5);
}

static void values_are_shares_of_the_range(void **state) {
    (void)state;
    const uint8_t rgba[2 * 4] = {255, 0, 51, 255, 255, 255, 255, 0};
    const uint16_t deep[4] = {0, 65535, 13107, 26214};
    const Picture p = {
        .name = "p", .bytes = rgba, .width = 2, .height = 1, .colors = 3, .alpha = true, .bits = 8};
    const ScoreOptions over_black = {.alpha = SCORE_ALPHA_COMPOSITE};
    const Picture g = grey(deep, 2, 2, 16);
    const float want[6] = {1, 0, 0.2f, 0, 0, 0}, row[4] = {0, 1, 0.2f, 0.4f};
    float got[12];
    score_values(&p, &over_black, got);
    for (int i = 0; i < 6; i++) near((double)got[i], (double)want[i], 1e-7);
    score_values(&g, &plain, got);
    for (int i = 0; i < 12; i++) near((double)got[i], (double)row[i / 3], 1e-7);
}

static void error_maps_have_a_fixed_scale(void **state) {
    (void)state;
    const uint16_t a[4] = {0, 0, 0, 0}, b[4] = {0, 17, 34, 255};
    Picture p = grey(a, 4, 1, 8), q = grey(b, 4, 1, 8);
    Image map;
    assert_ok(score_error_map(&p, &q, &plain, 0.2, &map)); /* full: 51 */
    const uint8_t want[12] = {0, 0, 0, 255, 0, 0, 255, 255, 0, 255, 255, 255};
    assert_memory_equal(map.pixels, want, sizeof want);
    image_free(&map);
}

/* ---- decoding with all bits ---- */

static DeepImage deep_of(const char *name) {
    char path[4096];
    DeepImage d;
    ImageOptions o = image_options_default();
    snprintf(path, sizeof path, CORPUS "/%s", name);
    assert_ok(image_read_deep(path, &o, &d));
    return d;
}

/* Rounded to 8 bits and made RGB, it is what image_decode gives. */
static void check_deep(const char *name, int colors, bool alpha, int bits) {
    char path[4096];
    Image flat;
    ImageOptions o = image_options_default();
    DeepImage d = deep_of(name);
    snprintf(path, sizeof path, CORPUS "/%s", name);
    assert_ok(image_read(path, &o, &flat, NULL));
    if (d.colors != colors || d.alpha != alpha || d.bits != bits)
        fail_msg("%s: %d colours, alpha %d, %d bits", name, d.colors, d.alpha, d.bits);
    assert_true(d.width == flat.width && d.height == flat.height);
    for (int64_t i = 0; i < d.width * d.height * 3; i++) {
        int c = colors == 1 ? 0 : (int)(i % 3);
        int value = d.samples[i / 3 * (colors + alpha) + c];
        if (bits == 16) value = (value * 255 + 32895) >> 16; /* libpng's png_set_scale_16 */
        if (value != flat.pixels[i]) fail_msg("%s: sample %lld", name, (long long)i);
    }
    image_free(&flat);
    deep_image_free(&d);
}

static void deep_decoding_keeps_everything(void **state) {
    (void)state;
    int64_t live = mem_live();
    check_deep("rgb.png", 3, false, 8);
    check_deep("rgb_interlaced.png", 3, false, 8);
    check_deep("rgba.png", 3, true, 8);
    check_deep("rgb_16.png", 3, false, 16);
    check_deep("rgba_16.png", 3, true, 16);
    check_deep("grey_16.png", 1, false, 16);
    check_deep("grey_8.png", 1, false, 8);
    check_deep("grey_2.png", 1, false, 8);
    check_deep("grey_alpha.png", 1, true, 8);
    check_deep("grey_8_trns.png", 1, true, 8);
    check_deep("palette_4.png", 3, false, 8);
    check_deep("palette_8_trns.png", 3, true, 8);
    check_deep("interlaced_1x5.png", 3, false, 8);
    check_deep("grey.jpg", 1, false, 8);
    check_deep("rgb_420.jpg", 3, false, 8);
    check_deep("exif_6.jpg", 3, false, 8);
    check_deep("cmyk_adobe.jpg", 3, false, 8);
    assert_int_equal(mem_live(), live);
}

static void deep_decoding_refuses(void **state) {
    (void)state;
    static const char *const bad[] = {"cut_in_data.png", "bad_idat_crc.png", "bomb_size.png",
                                      "text.jpg",        "no_palette.png",   "truncated_50.jpg"};
    int64_t live = mem_live();
    for (size_t i = 0; i < sizeof bad / sizeof bad[0]; i++) {
        char path[4096];
        DeepImage d;
        ImageOptions o = image_options_default();
        snprintf(path, sizeof path, CORPUS "/%s", bad[i]);
        assert_int_equal(image_read_deep(path, &o, &d), STATUS_DATA);
        assert_message(bad[i]);
        assert_null(d.samples);
        o.strict = false;
        o.max_pixels = 1;
        assert_int_equal(image_read_deep(path, &o, &d), STATUS_DATA);
    }
    assert_int_equal(mem_live(), live);
}

static void every_allocation_may_fail(void **state) {
    (void)state;
    int64_t live = mem_live();
    for (int round = 0; round < 2; round++) {
        const char *path = round == 0 ? CORPUS "/rgba_16.png" : CORPUS "/rgb_420.jpg";
        ImageOptions o = image_options_default();
        ScoreOptions with = {.ssim = true, .alpha = SCORE_ALPHA_COMPOSITE};
        for (int64_t n = 1; n < 100; n++) {
            DeepImage d;
            Score score;
            ScoreSummary summary;
            mem_fail_at(n);
            Status s = image_read_deep(path, &o, &d);
            if (s == STATUS_OK) {
                Picture p = picture_of_deep(&d, path);
                s = score_pictures(&p, &p, &with, &score);
                if (s == STATUS_OK) s = score_summarise(&score, 1, &summary);
                deep_image_free(&d);
            }
            bool fired = !mem_fail_pending();
            mem_fail_at(0);
            assert_int_equal(s, fired ? STATUS_MEMORY : STATUS_OK);
            assert_int_equal(mem_live(), live);
            if (!fired) break;
            assert_true(n < 99);
        }
    }
}

/* ---- known values ---- */

static DeepImage member(const Tar *t, const char *name) {
    DeepImage d = {0};
    ImageOptions o = image_options_default();
    for (int64_t i = 0; i < tar_count(t); i++) {
        const TarMember *m = tar_at(t, i);
        size_t n = strlen(m->name), want = strlen(name);
        if (n < want || strcmp(m->name + n - want, name) != 0) continue;
        assert_ok(image_decode_deep(m->data, m->size, name, &o, &d));
        return d;
    }
    fail_msg("no %s in the archive", name);
    return d;
}

/* Columns: reference distorted shape sse n psnr mse ssim_gauss ... */
static void check_known(const Tar *t, char **v) {
    DeepImage a = member(t, v[0]), b = member(t, v[1]);
    Picture pa = picture_of_deep(&a, v[0]), pb = picture_of_deep(&b, v[1]);
    ScoreOptions o = {.ssim = true, .population_covariance = true};
    Score s;
    Status status = score_pictures(&pa, &pb, &o, &s);
    if (strcmp(v[5], "SIZE_MISMATCH") == 0) {
        assert_int_equal(status, STATUS_DATA);
        assert_message("pixels, but");
    } else {
        assert_ok(status);
        bool jpeg = strstr(v[1], ".jpg") != NULL;
        double sse = atof(v[3]), n = atof(v[4]);
        assert_int_equal(s.samples, atoll(v[4]));
        if (sse == 0) assert_true(s.identical && isinf(s.psnr));
        if (sse > 0 && !jpeg) near(s.psnr, 10 * log10(255.0 * 255 * n / sse), 1e-9);
        if (sse > 0 && jpeg) near(s.psnr, atof(v[5]), 0.05);
        if (!jpeg) near(s.mse, sse / n, 1e-9);
        near(s.ssim, atof(v[7]), jpeg ? 1e-3 : 1e-6);
    }
    deep_image_free(&a);
    deep_image_free(&b);
}

static void pairs_have_their_known_values(void **state) {
    (void)state;
    const char *archive = shared_file("data/psnr-pairs/psnr-pairs.tar");
    if (!archive) skip();
    Tar *t;
    assert_ok(tar_open(archive, &t));
    FILE *f = fopen(TTV_SHARED_DIR "/data/psnr-pairs/pairs.tsv", "r");
    assert_non_null(f);
    char line[1024], *v[11];
    int count = 0;
    assert_non_null(fgets(line, sizeof line, f)); /* headings */
    while (fgets(line, sizeof line, f)) {
        assert_int_equal(split_tabs(line, v, 11), 11);
        check_known(t, v);
        count++;
    }
    fclose(f);
    tar_close(t);
    assert_int_equal(count, 35);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(small_pictures_score),
        cmocka_unit_test(the_range_is_explicit),
        cmocka_unit_test(borders_are_cut),
        cmocka_unit_test(unlike_pictures_are_refused),
        cmocka_unit_test(alpha_by_policy),
        cmocka_unit_test(ssim_of_simple_pictures),
        cmocka_unit_test(alarms),
        cmocka_unit_test(summaries),
        cmocka_unit_test(groups_count_alike),
        cmocka_unit_test(luma_is_studio_swing),
        cmocka_unit_test(values_are_shares_of_the_range),
        cmocka_unit_test(error_maps_have_a_fixed_scale),
        cmocka_unit_test(deep_decoding_keeps_everything),
        cmocka_unit_test(deep_decoding_refuses),
        cmocka_unit_test(every_allocation_may_fail),
        cmocka_unit_test(pairs_have_their_known_values),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
