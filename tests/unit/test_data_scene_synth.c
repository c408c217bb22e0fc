/* Procedural scenes: deterministic, and the cameras tell the truth about the pictures. */
#include "data_support.h"

#include <math.h>

#include "datasets/synth.h"
#include "datasets/view.h"

static void deterministic(void **state) {
    (void)state;
    uint8_t a[32 * 24 * 3], b[32 * 24 * 3];
    char one[17], two[17];
    int64_t live = mem_live();
    for (int i = 0; i < 3; i++) {
        SynthScene *s, *t;
        assert_ok(synth_scene_new(5, i, &s));
        assert_ok(synth_scene_new(i == 2 ? 6 : 5, i, &t));
        SceneFrame f = synth_camera(s, 3, 10, 4.0 / 3), g = synth_camera(t, 3, 10, 4.0 / 3);
        synth_render(s, &f, 32, 24, 1, a);
        synth_render(t, &g, 32, 24, 1, b);
        assert_int_equal(memcmp(a, b, sizeof a) == 0, i < 2);
        synth_scene_free(s);
        synth_scene_free(t);
    }
    synth_scene_name(5, 1, one);
    synth_scene_name(5, 1, two);
    assert_string_equal(one, two);
    assert_int_equal(strlen(one), 16);
    synth_scene_name(5, 2, two);
    assert_string_not_equal(one, two);
    assert_int_equal(mem_live(), live);
}

/* Where a pixel of one view lies in another one; false when behind it or outside. */
static bool carry(const ViewCamera *a, double x, double y, double depth, const ViewCamera *b,
                  double out[3]) {
    const double *k = a->intrinsics, *n = b->intrinsics, *m = a->c2w, *w = b->w2c;
    double p[3] = {(x - k[2]) / k[0] * depth, (y - k[3]) / k[1] * depth, depth}, q[3], r[3];
    for (int i = 0; i < 3; i++)
        q[i] = m[4 * i] * p[0] + m[4 * i + 1] * p[1] + m[4 * i + 2] * p[2] + m[4 * i + 3];
    for (int i = 0; i < 3; i++)
        r[i] = w[4 * i] * q[0] + w[4 * i + 1] * q[1] + w[4 * i + 2] * q[2] + w[4 * i + 3];
    out[0] = n[0] * r[0] / r[2] + n[2];
    out[1] = n[1] * r[1] / r[2] + n[3];
    out[2] = r[2];
    return r[2] > 0.1 && out[0] > 1 && out[0] < 95 && out[1] > 1 && out[1] < 63;
}

/* Points of one frame, carried into another by depth and cameras, are seen there again: at the same
 * depth, with the same colour. */
static void cameras_are_exact(void **state) {
    (void)state;
    enum { W = 96, H = 64 };
    uint8_t *pixels = malloc(2 * W * H * 3);
    ViewOptions o = view_options_default(W, H);
    for (int i = 0; i < 6; i++) {
        SynthScene *s;
        int seen = 0, agree = 0;
        double difference = 0;
        assert_ok(synth_scene_new(11, i, &s));
        SceneFrame f[2] = {synth_camera(s, 4, 12, 1.5), synth_camera(s, 6, 12, 1.5)};
        ViewCamera c[2] = {view_camera(&f[0], &o, W, H), view_camera(&f[1], &o, W, H)};
        for (int k = 0; k < 2; k++) synth_render(s, &f[k], W, H, 1, pixels + k * W * H * 3);
        for (int y = 2; y < H; y += 4)
            for (int x = 2; x < W; x += 4) {
                double at[3], depth = synth_depth(s, &f[0], W, H, x + 0.5, y + 0.5);
                if (!carry(&c[0], x + 0.5, y + 0.5, depth, &c[1], at)) continue;
                seen++;
                if (fabs(synth_depth(s, &f[1], W, H, at[0], at[1]) - at[2]) > 1e-6 * at[2])
                    continue;
                agree++;
                const uint8_t *p = pixels + (y * W + x) * 3;
                const uint8_t *q = pixels + (W * H + (int)at[1] * W + (int)at[0]) * 3;
                for (int k = 0; k < 3; k++) difference += abs(p[k] - q[k]) / 3.0;
            }
        assert_true(seen > 150);              /* the views overlap */
        assert_true(agree > 0.8 * seen);      /* the rest is hidden */
        assert_true(difference / agree < 16); /* texture, half a pixel off */
        synth_scene_free(s);
    }
    free(pixels);
}

/* Pictures have contrast, and paths move without leaving the room. */
static void scenes_are_worth_seeing(void **state) {
    (void)state;
    uint8_t pixels[36 * 24 * 3];
    for (int i = 0; i < 30; i++) {
        SynthScene *s;
        double sum = 0, square = 0, n = sizeof pixels;
        assert_ok(synth_scene_new(2, i, &s));
        SceneFrame a = synth_camera(s, 0, 20, 1.5), b = synth_camera(s, 19, 20, 1.5);
        ViewCamera u, v;
        view_camera_pose(&u, a.w2c);
        view_camera_pose(&v, b.w2c);
        double moved = 0;
        for (int k = 0; k < 3; k++) moved += pow(u.c2w[4 * k + 3] - v.c2w[4 * k + 3], 2);
        assert_true(moved > 0.01 && moved < 9);
        assert_true(a.w2c[5] > 0.5); /* upright */
        synth_render(s, &b, 36, 24, 1, pixels);
        for (size_t k = 0; k < sizeof pixels; k++) {
            sum += pixels[k];
            square += (double)pixels[k] * pixels[k];
        }
        double mean = sum / n, spread = sqrt(square / n - mean * mean);
        if (mean < 25 || mean > 235 || spread < 12)
            fail_msg("scene %d: mean %.1f, spread %.1f", i, mean, spread);
        for (int k = 0; k < 10; k++)
            assert_true(synth_depth(s, &a, 36, 24, 3.6 * k, 2.4 * k) > 0.02);
        synth_scene_free(s);
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(deterministic),
        cmocka_unit_test(cameras_are_exact),
        cmocka_unit_test(scenes_are_worth_seeing),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
