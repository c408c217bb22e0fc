/* Views: cameras and pixels follow resize and crop, off-centre and not square too. */
#include "data_support.h"

#include <math.h>

#include "datasets/view.h"

#define CAMERA(time) time " 0.5 0.9 0.5 0.5 0 0 1 0 0 0 0 1 0 0 0 0 1 0\n"
#define HEX          "00112233445566aa"

static void intrinsics_follow_the_crop(void **state) {
    (void)state;
    SceneFrame f = {.fx = 0.5,
                    .fy = 0.9,
                    .cx = 0.4,
                    .cy = 0.55,
                    .width = 1,
                    .height = 1,
                    .w2c = {0, -1, 0, 2, 1, 0, 0, 3, 0, 0, 1, 4}};
    ViewOptions o = view_options_default(128, 128);
    ViewGeometry g = view_geometry(&o, 640, 360);
    assert_int_equal(g.full_width, 228); /* 227.56 rounded; left (228 - 128) / 2 */
    assert_int_equal(g.full_height, 128);
    assert_int_equal(g.left, 50);
    assert_int_equal(g.top, 0);
    ViewCamera c = view_camera(&f, &o, 640, 360);
    assert_true(fabs(c.intrinsics[0] - 0.5 * 228) < 1e-12);
    assert_true(fabs(c.intrinsics[1] - 0.9 * 128) < 1e-12);
    assert_true(fabs(c.intrinsics[2] - (0.4 * 228 - 50)) < 1e-12);
    assert_true(fabs(c.intrinsics[3] - 0.55 * 128) < 1e-12);
    const double c2w[16] = {0, 1, 0, -3, -1, 0, 0, 2, 0, 0, 1, -4, 0, 0, 0, 1};
    for (int i = 0; i < 16; i++) assert_true(c.c2w[i] == c2w[i]);
    /* portrait, off-centre, not square; the same camera in pixels of 60 x 100 */
    o = view_options_default(48, 32);
    o.crop_x = 0;
    o.crop_y = 1;
    SceneFrame p = f;
    p.fx *= 60, p.cx *= 60, p.fy *= 100, p.cy *= 100, p.width = 60, p.height = 100;
    ViewCamera a = view_camera(&f, &o, 120, 200), b = view_camera(&p, &o, 120, 200);
    for (int i = 0; i < 4; i++) assert_true(fabs(a.intrinsics[i] - b.intrinsics[i]) < 1e-12);
    assert_true(fabs(a.intrinsics[3] - (0.55 * 80 - 48)) < 1e-12);
    p.fx = 60, p.width = p.height = 0; /* pixels of the picture itself */
    assert_true(fabs(view_camera(&p, &o, 120, 200).intrinsics[0] - 24) < 1e-12);
}

/* A dot stays on the camera's ray through resize and off-centre crop. */
static void pixels_follow_the_crop(void **state) {
    (void)state;
    char root[256], path[600];
    make_temp(root);
    put_text(root, "train/" HEX ".txt", "u\n" CAMERA("0") CAMERA("20000"));
    Image image = pattern_image(160, 90);
    memset(image.pixels, 0, 160 * 90 * 3);
    for (int64_t y = 28; y < 36; y++) /* centre 44, 32 */
        memset(image.pixels + (y * 160 + 40) * 3, 255, 8 * 3);
    snprintf(path, sizeof path, "%s/train/" HEX, root);
    assert_ok(file_make_folder(path));
    for (int i = 0; i < 2; i++) {
        snprintf(path, sizeof path, "%s/train/" HEX "/%d.png", root, i * 20000);
        assert_ok(image_write_png(path, &image));
    }
    image_free(&image);
    SceneSet *set;
    assert_ok(scene_set_open(root, NULL, &set));
    ViewOptions o = view_options_default(40, 30);
    o.crop_x = 0.25;
    ViewScratch scratch = {0};
    ViewSample sample = {.inputs = 1, .targets = 1, .frames = {0, 1}};
    ViewCamera c[2];
    uint8_t pixels[2 * 40 * 30 * 3];
    assert_ok(view_load_sample(set, &sample, &o, &scratch, pixels, c));
    double sum = 0, x = 0, y = 0;
    for (int i = 0; i < 40 * 30; i++) {
        sum += pixels[3 * i];
        x += pixels[3 * i] * (i % 40 + 0.5);
        y += pixels[3 * i] * (i / 40 + 0.5);
    }
    /* its ray in the picture: ((44/160 - cx) / fx, (32/90 - cy) / fy) */
    double want_x = (44.0 / 160 - 0.5) / 0.5, want_y = (32.0 / 90 - 0.5) / 0.9;
    assert_true(fabs((x / sum - c[0].intrinsics[2]) / c[0].intrinsics[0] - want_x) < 2e-3);
    assert_true(fabs((y / sum - c[0].intrinsics[3]) / c[0].intrinsics[1] - want_y) < 2e-3);
    assert_memory_equal(pixels, pixels + 40 * 30 * 3, 40 * 30 * 3);
    view_scratch_free(&scratch);
    scene_set_close(set);
    remove_tree(root);
}

static void the_motorcycle_pair(void **state) {
    (void)state;
    SceneSet *set;
    int64_t live = mem_live(), source[2];
    assert_ok(scene_set_open(TTV_SOURCE_DIR "/data/motorcycle.tar", "test", &set));
    const Scene *s = scene_set_at(set, 0);
    assert_true(scene_usable(s) && s->missing == 0 && s->extra == 0);
    ViewOptions o = view_options_default(128, 128);
    ViewScratch scratch = {0};
    ViewCamera c;
    uint8_t *pixels = malloc(128 * 128 * 3);
    assert_ok(view_load(set, 0, 1, &o, &scratch, pixels, &c, source));
    assert_int_equal(source[0], 741);
    assert_int_equal(source[1], 500);
    assert_true(fabs(c.c2w[3] - 0.193001) < 1e-12);
    /* 994.978 px at 741 x 500, now 190 x 128 with 31 columns cut */
    assert_true(fabs(c.intrinsics[0] - 994.978 * 190 / 741) < 1e-4);
    assert_true(fabs(c.intrinsics[1] - 994.978 * 128 / 500) < 1e-4);
    assert_true(fabs(c.intrinsics[2] - (342.779 * 190 / 741 - 31)) < 1e-4);
    free(pixels);
    view_scratch_free(&scratch);
    scene_set_close(set);
    assert_int_equal(mem_live(), live);
}

/* What the camera sees of a point, the mirrored one sees of its image, at the mirrored place. */
static void a_mirrored_view_is_a_view(void **state) {
    (void)state;
    uint8_t pixels[2 * 3 * 3] = {1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15, 16, 17, 18};
    const double w2c[12] = {0.36, 0.48, -0.8, 1, -0.8, 0.6, 0, 2, 0.48, 0.64, 0.6, 7};
    ViewCamera a = {.intrinsics = {80, 90, 60.5, 40}}, b;
    view_camera_pose(&a, w2c);
    b = a;
    view_mirror(pixels, &b, 3, 2);
    const uint8_t turned[] = {7, 8, 9, 4, 5, 6, 1, 2, 3, 16, 17, 18, 13, 14, 15, 10, 11, 12};
    assert_memory_equal(pixels, turned, sizeof turned);
    const double point[3] = {0.7, -0.4, 1.1};
    double at[2][3] = {{0}};
    for (int k = 0; k < 3; k++) {
        const double *m = a.w2c + 4 * k, *n = b.w2c + 4 * k;
        at[0][k] = m[0] * point[0] + m[1] * point[1] + m[2] * point[2] + m[3];
        at[1][k] = -n[0] * point[0] + n[1] * point[1] + n[2] * point[2] + n[3];
    }
    const double x = a.intrinsics[0] * at[0][0] / at[0][2] + a.intrinsics[2];
    const double y = b.intrinsics[0] * at[1][0] / at[1][2] + b.intrinsics[2];
    assert_true(fabs(x + y - 3) < 1e-9);
    assert_true(fabs(at[0][1] - at[1][1]) < 1e-12 && fabs(at[0][2] - at[1][2]) < 1e-12);
    ViewCamera c = {0}; /* both matrices still belong together */
    view_camera_pose(&c, b.w2c);
    for (int i = 0; i < 16; i++) assert_true(fabs(c.c2w[i] - b.c2w[i]) < 1e-12);
    view_mirror(pixels, &b, 3, 2);
    for (int i = 0; i < 16; i++) assert_true(a.c2w[i] == b.c2w[i]);
    assert_int_equal(pixels[0], 1);
}

static void a_tint_is_one_table(void **state) {
    (void)state;
    uint8_t pixels[] = {0, 100, 200, 255, 255, 255};
    const float same[4] = {1, 1, 1, 1}, tint[4] = {2, 1, 0.5f, 4};
    view_tint(pixels, 2, same);
    const uint8_t before[] = {0, 100, 200, 255, 255, 255};
    assert_memory_equal(pixels, before, sizeof before);
    view_tint(pixels, 2, tint); /* 255 (200/255)^2 4 is cut off */
    const uint8_t after[] = {0, 20, 255, 255, 128, 255};
    assert_memory_equal(pixels, after, sizeof after);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(intrinsics_follow_the_crop), cmocka_unit_test(pixels_follow_the_crop),
        cmocka_unit_test(the_motorcycle_pair),        cmocka_unit_test(a_mirrored_view_is_a_view),
        cmocka_unit_test(a_tint_is_one_table),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
