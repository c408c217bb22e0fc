/* Resampling and transforms: Pillow's bytes, windows, augmentation, colour. */
#include "data_support.h"

#include <math.h>

#include "core/safetensors.h"
#include "datasets/color.h"
#include "datasets/transform.h"

static const char *const filter_names[] = {"bilinear", "bicubic", "lanczos"};
static const char *const mode_names[] = {"center", "squash", "border"};

static int index_of(const char *name, const char *const *names, int count) {
    for (int i = 0; i < count; i++) {
        if (strcmp(name, names[i]) == 0) return i;
    }
    fail_msg("unknown name %s", name);
    return -1;
}

static Preprocess preprocess_default(int64_t s) {
    return (Preprocess){
        s, 0.875, CROP_CENTER, FILTER_BICUBIC, {0.485, 0.456, 0.406}, {0.229, 0.224, 0.225}};
}

/* "<filter>.HxW" or "<filter>.topA_leftB_hC_wD.toHxW" behind the name of the source. */
static void check_golden(const Image *src, const char *text, const SafeEntry *e,
                         ResizeScratch *scratch) {
    char filter[16];
    long top = 0, left = 0, h = src->height, w = src->width, out_h, out_w;
    assert_int_equal(sscanf(text, "%15[a-z].", filter), 1);
    const char *rest = strchr(text, '.') + 1;
    if (sscanf(rest, "top%ld_left%ld_h%ld_w%ld.to%ldx%ld", &top, &left, &h, &w, &out_h, &out_w) !=
        6) {
        top = left = 0;
        assert_int_equal(sscanf(rest, "%ldx%ld", &out_h, &out_w), 2);
    }
    assert_int_equal(e->shape[0], out_h);
    assert_int_equal(e->shape[1], out_w);
    uint8_t *out = malloc((size_t)(out_h * out_w * 3));
    Filter f = (Filter)index_of(filter, filter_names, 3);
    assert_ok(resize_box(src, left, top, w, h, f, out, out_w, out_h, scratch));
    if (memcmp(out, e->data, e->bytes) != 0) fail_msg("%s differs", e->name);
    free(out);
}

static void golden_bytes(void **state) {
    (void)state;
    const char *path = TTV_SOURCE_DIR "/tests/data/golden/image.safetensors";
    if (access(path, R_OK) != 0) path = shared_file("golden/images/image.safetensors");
    if (path == NULL) skip();
    SafeFile *file;
    ResizeScratch scratch = {0};
    int checked = 0;
    assert_ok(safetensors_open(path, &file));
    for (int64_t i = 0; i < safetensors_count(file); i++) {
        const SafeEntry *e = safetensors_at(file, i);
        const char *dot = strstr(e->name, ".b");
        if (dot == NULL) dot = strstr(e->name, ".lanczos");
        if (dot == NULL || strncmp(e->name, "score", 5) == 0) continue;
        char name[64];
        snprintf(name, sizeof name, "%.*s.src", (int)(dot - e->name), e->name);
        const SafeEntry *src = safetensors_find(file, name);
        assert_non_null(src);
        Image image = {(uint8_t *)(uintptr_t)src->data, src->shape[1], src->shape[0]};
        check_golden(&image, dot + 1, e, &scratch);
        checked++;
    }
    assert_int_equal(checked, 24);
    resize_scratch_free(&scratch);
    safetensors_close(file);
}

/* preprocess.tsv: whole transforms of odd sizes, made with Pillow. */
static void preprocess_matches_pillow(void **state) {
    (void)state;
    FILE *f = fopen(CORPUS "/preprocess.tsv", "r");
    char line[256], *v[8], got[16];
    ResizeScratch scratch = {0};
    assert_non_null(f);
    while (fgets(line, sizeof line, f) != NULL) {
        assert_int_equal(split_tabs(line, v, 8), 7);
        Image image = pattern_image(atoll(v[0]), atoll(v[1]));
        Preprocess p = preprocess_default(atoll(v[2]));
        p.crop_pct = atof(v[3]);
        p.crop_mode = index_of(v[4], mode_names, 3);
        p.filter = index_of(v[5], filter_names, 3);
        uint8_t *out = malloc((size_t)(p.image_size * p.image_size * 3));
        assert_ok(preprocess_apply(&p, &image, out, &scratch));
        snprintf(got, sizeof got, "%08x", pixels_crc(out, p.image_size, p.image_size));
        if (strcmp(got, v[6]) != 0) {
            fail_msg("%sx%s to %s, %s, %s, %s: differs", v[0], v[1], v[2], v[3], v[4], v[5]);
        }
        free(out);
        image_free(&image);
    }
    fclose(f);
    resize_scratch_free(&scratch);
}

static void windows_equal_cut_results(void **state) {
    (void)state;
    ResizeScratch scratch = {0};
    Image image = pattern_image(61, 43);
    uint8_t whole[50 * 70 * 3], part[50 * 70 * 3];
    for (int filter = 0; filter < 3; filter++) {
        for (int k = 0; k < 40; k++) {
            ImageRegion box = {k % 7, k % 5, 61 - k % 7 - k % 3, 43 - k % 5 - k % 4};
            int64_t w = k % 4 == 0 ? box.width : 1 + k * 7 % 70,
                    h = k % 6 == 0 ? box.height : 1 + k * 3 % 50;
            assert_ok(resize_box(&image, box.left, box.top, box.width, box.height, (Filter)filter,
                                 whole, w, h, &scratch));
            ImageRegion r = {w / 3, h / 4, w - w / 3 - w / 5, h - h / 4 - h / 5};
            assert_ok(resize_window(&image, box, (Filter)filter, w, h, r, part, &scratch));
            for (int64_t y = 0; y < r.height; y++) {
                assert_memory_equal(part + y * r.width * 3, whole + ((r.top + y) * w + r.left) * 3,
                                    (size_t)r.width * 3);
            }
        }
    }
    ImageRegion box = {0, 0, 62, 43}, all = {0, 0, 8, 8};
    assert_int_equal(resize_window(&image, box, FILTER_BICUBIC, 8, 8, all, part, &scratch),
                     STATUS_INTERNAL);
    image_free(&image);
    resize_scratch_free(&scratch);
}

/* A window of a gigantic result costs what the window costs. */
static void extreme_aspect_is_cheap(void **state) {
    (void)state;
    Preprocess p = preprocess_default(224);
    ResizeScratch scratch = {0};
    uint8_t *out = malloc(224 * 224 * 3);
    Image image = pattern_image(1, 200000);
    assert_ok(preprocess_apply(&p, &image, out, &scratch));
    image_free(&image);
    image = pattern_image(200000, 1);
    assert_ok(preprocess_apply(&p, &image, out, &scratch));
    image_free(&image);
    resize_scratch_free(&scratch);
    free(out);
}

static void color_matches_pillow(void **state) {
    (void)state;
    FILE *f = fopen(CORPUS "/color.tsv", "r");
    char line[256], *v[4], got[16];
    assert_non_null(f);
    while (fgets(line, sizeof line, f) != NULL) {
        assert_int_equal(split_tabs(line, v, 4), 3);
        Image image = pattern_image(37, 29);
        float factor = (float)atof(v[1]);
        if (v[0][0] == 'b') color_brightness(image.pixels, 37 * 29, factor);
        if (v[0][0] == 'c') color_contrast(image.pixels, 37 * 29, factor);
        if (v[0][0] == 's') color_saturation(image.pixels, 37 * 29, factor);
        snprintf(got, sizeof got, "%08x", pixels_crc(image.pixels, 37, 29));
        if (strcmp(got, v[2]) != 0) fail_msg("%s %s differs", v[0], v[1]);
        image_free(&image);
    }
    fclose(f);
}

static void regions_are_fair(void **state) {
    (void)state;
    Augment a = {.random_resized_crop = true,
                 .scale_min = 0.08,
                 .scale_max = 1,
                 .ratio_min = 0.75,
                 .ratio_max = 4.0 / 3};
    double area = 0;
    int n = 4000;
    for (int i = 0; i < n; i++) {
        Rng rng = rng_stream(5, RNG_AUGMENT, 1, (uint64_t)i);
        ImageRegion r = augment_region(&a, 500, 375, &rng);
        assert_true(r.left >= 0 && r.top >= 0 && r.left + r.width <= 500 &&
                    r.top + r.height <= 375);
        double ratio = (double)r.width / (double)r.height;
        assert_true(ratio > 0.74 && ratio < 1.35);
        area += (double)(r.width * r.height) / (500.0 * 375.0);
    }
    /* Large shares are drawn again when the aspect does not fit, so the mean lies below 0.54. */
    assert_true(area / n > 0.40 && area / n < 0.56);
    Rng rng = rng_stream(5, RNG_AUGMENT, 1, 0);
    ImageRegion r = augment_region(&a, 1000, 3, &rng); /* no crop of this aspect has the area */
    assert_true(r.height == 3 && r.width <= 4);
    r = augment_region(&a, 1, 1, &rng);
    assert_true(r.width == 1 && r.height == 1);
}

/* Shift and flip on a picture whose pixels tell where they come from. */
static void shift_moves_pixels(void **state) {
    (void)state;
    Augment a = {.random_resized_crop = false, .shift = 3};
    Preprocess p = preprocess_default(16);
    ResizeScratch scratch = {0};
    uint8_t out[16 * 16 * 3], source[16 * 16 * 3];
    int seen[7][7] = {{0}};
    p.crop_pct = 1;
    for (int i = 0; i < 256; i++)
        source[3 * i] = source[3 * i + 1] = source[3 * i + 2] = (uint8_t)(i | 1);
    Image image = {source, 16, 16};
    for (int n = 0; n < 2000; n++) {
        Rng rng = rng_stream(9, RNG_AUGMENT, 0, (uint64_t)n);
        assert_ok(augment_apply(&a, &p, &image, &rng, out, &scratch));
        int matches = 0;
        for (int dy = -3; dy <= 3; dy++) {
            for (int dx = -3; dx <= 3; dx++) {
                int same = 1;
                for (int y = 0; y < 16 && same; y++) {
                    for (int x = 0; x < 16 && same; x++) {
                        int sx = x - dx, sy = y - dy, in = sx >= 0 && sx < 16 && sy >= 0 && sy < 16;
                        same = out[(y * 16 + x) * 3 + 1] == (in ? ((sy * 16 + sx) | 1) : 0);
                    }
                }
                matches += same;
                seen[dy + 3][dx + 3] += same;
            }
        }
        assert_true(matches >= 1);
    }
    for (int i = 0; i < 49; i++) assert_true(seen[i / 7][i % 7] > 10);
    resize_scratch_free(&scratch);
}

static void flip_mirrors(void **state) {
    (void)state;
    Augment a = {.random_resized_crop = false, .flip = 1};
    Preprocess p = preprocess_default(9);
    ResizeScratch scratch = {0};
    Image image = pattern_image(9, 9);
    uint8_t out[9 * 9 * 3];
    Rng rng = rng_stream(1, RNG_AUGMENT, 0, 0);
    p.crop_pct = 1;
    assert_ok(augment_apply(&a, &p, &image, &rng, out, &scratch));
    for (int i = 0; i < 81; i++) {
        assert_memory_equal(out + 3 * i, image.pixels + 3 * (i / 9 * 9 + 8 - i % 9), 3);
    }
    image_free(&image);
    resize_scratch_free(&scratch);
}

static void text_tells_the_transform(void **state) {
    (void)state;
    Preprocess p = preprocess_default(224);
    char text[256];
    preprocess_text(&p, text, sizeof text);
    assert_non_null(strstr(text, "short side to 256 (bicubic"));
    assert_non_null(strstr(text, "centre crop 224"));
    Augment a = {.scale_min = 0.5, .scale_max = 0.2, .ratio_min = 1, .ratio_max = 1};
    assert_int_equal(augment_check(&a), STATUS_USAGE);
}

static void option_defaults_are_the_recipe(void **state) {
    (void)state;
    Preprocess p = {0};
    Augment a = {0};
    Section sections[] = {{"preprocess", preprocess_options, &p}, {"augment", augment_options, &a}};
    Config *config;
    assert_ok(config_new(sections, 2, &config));
    assert_true(p.crop_pct == 0.875 && p.filter == FILTER_BICUBIC && p.crop_mode == CROP_CENTER);
    assert_true(p.mean[0] == 0.485 && p.std[2] == 0.225);
    assert_true(a.random_resized_crop && a.scale_min == 0.08 && a.flip == 0.5 && a.jitter == 0);
    assert_true(fabs(a.ratio_max - 4.0 / 3) < 1e-12);
    config_free(config);
}

static void allocation_failures_are_clean(void **state) {
    (void)state;
    Preprocess p = preprocess_default(32);
    Image image = pattern_image(50, 40);
    uint8_t out[32 * 32 * 3];
    int64_t live = mem_live();
    for (int64_t n = 1; n < 10; n++) {
        ResizeScratch scratch = {0};
        mem_fail_at(n);
        Status s = preprocess_apply(&p, &image, out, &scratch);
        int pending = mem_fail_pending();
        mem_fail_at(0);
        assert_int_equal(s, pending ? STATUS_OK : STATUS_MEMORY);
        resize_scratch_free(&scratch);
        assert_int_equal(mem_live(), live);
    }
    image_free(&image);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(golden_bytes),
        cmocka_unit_test(preprocess_matches_pillow),
        cmocka_unit_test(windows_equal_cut_results),
        cmocka_unit_test(extreme_aspect_is_cheap),
        cmocka_unit_test(color_matches_pillow),
        cmocka_unit_test(regions_are_fair),
        cmocka_unit_test(shift_moves_pixels),
        cmocka_unit_test(flip_mirrors),
        cmocka_unit_test(text_tells_the_transform),
        cmocka_unit_test(option_defaults_are_the_recipe),
        cmocka_unit_test(allocation_failures_are_clean),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
