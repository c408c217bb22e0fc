/* Cameras, pose frames and the tokens of a view (lact_nvs.md 2, 7.2). */
#include <stdarg.h>
#include <stddef.h>
#include <setjmp.h>
#include <stdint.h>
#include <cmocka.h>

#include <math.h>
#include <stdbool.h>
#include <stdlib.h>
#include <string.h>

#include "core/rng.h"
#include "nvs/camera_path.h"
#include "nvs/patches.h"

static void check_ok(Status s) {
    if (s != STATUS_OK) print_error("%s: %s\n", status_name(s), status_message());
    assert_int_equal(s, STATUS_OK);
}

static void check_fails(Status s, Status expected, const char *part) {
    if (s != expected || !strstr(status_message(), part))
        print_error("got %s: %s\n", status_name(s), status_message());
    assert_int_equal(s, expected);
    assert_non_null(strstr(status_message(), part));
}

static bool near(double a, double b, double limit) {
    return fabs(a - b) <= limit;
}

/* A rotation about x, y, z by random angles up to `turn`, and a random position. */
static Camera random_camera(uint64_t stream, double turn, double reach) {
    Rng r = rng_stream(3, RNG_TEST, stream, 0);
    Camera c = {.fx = 90, .fy = 80, .cx = 31, .cy = 17};
    memcpy(c.c2w, pose_frame_identity().to_frame, sizeof c.c2w);
    for (int axis = 0; axis < 3; axis++) {
        const double angle = rng_range(&r, -turn, turn);
        const int a = (axis + 1) % 3, b = (axis + 2) % 3;
        double m[16];
        memcpy(m, pose_frame_identity().to_frame, sizeof m);
        m[5 * a] = m[5 * b] = cos(angle);
        m[4 * a + b] = -sin(angle);
        m[4 * b + a] = sin(angle);
        pose_multiply(c.c2w, m, c.c2w);
    }
    for (int i = 0; i < 3; i++) c.c2w[4 * i + 3] = rng_range(&r, -reach, reach);
    return c;
}

/* ---- poses ---------------------------------------------------------------------------------- */

static void inverse_is_inverse(void **state) {
    (void)state;
    for (uint64_t i = 0; i < 20; i++) {
        Camera c = random_camera(i, 3, 10);
        double w2c[16], product[16];
        pose_invert(c.c2w, w2c);
        pose_multiply(w2c, c.c2w, product);
        for (int k = 0; k < 16; k++)
            assert_true(near(product[k], pose_frame_identity().to_frame[k], 1e-12));
        check_ok(camera_check(&c));
    }
}

static void faults_are_named(void **state) {
    (void)state;
    const Camera good = random_camera(1, 1, 2);
    Camera c = good;
    c.c2w[6] = NAN;
    check_fails(camera_check(&c), STATUS_DATA, "pose entry [1][2] is not finite");
    c = good;
    c.cx = INFINITY;
    check_fails(camera_check(&c), STATUS_DATA, "intrinsic is not finite");
    c = good;
    c.fy = 0;
    check_fails(camera_check(&c), STATUS_DATA, "focal lengths are 90 and 0 pixels");
    c = good;
    c.c2w[0] += 0.01;
    check_fails(camera_check(&c), STATUS_DATA, "not orthonormal");
    c = good;
    for (int i = 0; i < 3; i++) c.c2w[4 * i] = -c.c2w[4 * i];
    check_fails(camera_check(&c), STATUS_DATA, "mirrors");
    c = good;
    c.c2w[14] = 1;
    check_fails(camera_check(&c), STATUS_DATA, "last row");
}

/* ---- rays ----------------------------------------------------------------------------------- */

/* A point on the ray projects back to the pixel's centre, wherever the principal point is. */
static void rays_project_back(void **state) {
    (void)state;
    for (uint64_t i = 0; i < 20; i++) {
        Camera c = random_camera(i, 2, 5);
        c.cx = -4.25;
        c.cy = 40;
        double o[3], d[3], w2c[16], p[3];
        camera_ray(&c, 7, 3, o, d);
        assert_true(near(d[0] * d[0] + d[1] * d[1] + d[2] * d[2], 1, 1e-12));
        pose_invert(c.c2w, w2c);
        for (int k = 0; k < 3; k++) {
            p[k] = w2c[4 * k + 3];
            for (int j = 0; j < 3; j++) p[k] += w2c[4 * k + j] * (o[j] + 2.5 * d[j]);
        }
        assert_true(p[2] > 0);
        assert_true(near(c.fx * p[0] / p[2] + c.cx, 3.5, 1e-9));
        assert_true(near(c.fy * p[1] / p[2] + c.cy, 7.5, 1e-9));
    }
}

/* An off-centre crop only moves the principal point: the same rays at shifted pixels. */
static void a_crop_keeps_its_rays(void **state) {
    (void)state;
    const Camera whole = random_camera(4, 1, 1);
    Camera crop = whole;
    crop.cx -= 5;
    crop.cy -= 2;
    for (int i = 0; i < 3; i++) {
        double o[3], d[3], o2[3], d2[3];
        camera_ray(&whole, 2 + i, 5 + 3 * i, o, d);
        camera_ray(&crop, i, 3 * i, o2, d2);
        for (int k = 0; k < 3; k++) assert_true(o[k] == o2[k] && near(d[k], d2[k], 1e-14));
    }
}

/* ---- tokens --------------------------------------------------------------------------------- */

enum { HEIGHT = 6, WIDTH = 10, PATCH = 2, LENGTH = HEIGHT * WIDTH / (PATCH * PATCH) };

/* The place of a pixel by the words of lact_nvs.md 2, for views that are not square. */
static int place(int row, int column, int channels) {
    const int token = row / PATCH * (WIDTH / PATCH) + column / PATCH;
    return token * PATCH * PATCH * channels + (row % PATCH * PATCH + column % PATCH) * channels;
}

static void tokens_hold_rays_and_colours(void **state) {
    (void)state;
    Camera c = random_camera(9, 1, 2);
    c.cx = 8.5; /* off the centre of 10 x 6 */
    c.cy = 1;
    uint8_t bytes[HEIGHT * WIDTH * 3];
    float colours[HEIGHT * WIDTH * 3];
    for (int i = 0; i < HEIGHT * WIDTH * 3; i++) {
        bytes[i] = (uint8_t)(i * 7);
        colours[i] = (float)bytes[i] / 255.0f;
    }
    float in[LENGTH * 48], same[LENGTH * 48], target[LENGTH * 48];
    check_ok(
        view_tokens(&c, HEIGHT, WIDTH, PATCH, tensor_3d(bytes, DTYPE_U8, HEIGHT, WIDTH, 3), in));
    check_ok(view_tokens(&c, HEIGHT, WIDTH, PATCH, tensor_3d(colours, DTYPE_F32, HEIGHT, WIDTH, 3),
                         same));
    check_ok(view_tokens(&c, HEIGHT, WIDTH, PATCH, tensor_none(), target));
    assert_memory_equal(in, same, sizeof in);
    for (int row = 0; row < HEIGHT; row++) {
        for (int column = 0; column < WIDTH; column++) {
            const float *a = in + place(row, column, 12), *b = target + place(row, column, 12);
            double o[3], d[3];
            camera_ray(&c, row, column, o, d);
            const double moment[3] = {o[1] * d[2] - o[2] * d[1], o[2] * d[0] - o[0] * d[2],
                                      o[0] * d[1] - o[1] * d[0]};
            for (int k = 0; k < 3; k++) {
                assert_true(a[k] == (float)o[k] && a[3 + k] == (float)d[k]);
                assert_true(near(a[6 + k], moment[k], 1e-6));
                const float colour = colours[3 * (row * WIDTH + column) + k];
                assert_true(near(a[9 + k], 2 * colour - 1, 1e-6));
                assert_true(b[9 + k] == 0);
            }
            assert_memory_equal(a, b, 9 * sizeof *a);
        }
    }
}

static void patches_turn_back(void **state) {
    (void)state;
    float image[HEIGHT * WIDTH * 3], patches[HEIGHT * WIDTH * 3], back[HEIGHT * WIDTH * 3];
    for (int i = 0; i < HEIGHT * WIDTH * 3; i++) image[i] = (float)i / 200.0f;
    check_ok(image_to_patches(tensor_3d(image, DTYPE_F32, HEIGHT, WIDTH, 3), PATCH, patches));
    assert_true(patches[place(3, 7, 3) + 2] == image[3 * (3 * WIDTH + 7) + 2]);
    check_ok(image_from_patches(patches, HEIGHT, WIDTH, PATCH, back));
    assert_memory_equal(image, back, sizeof image);
}

static void wrong_sizes_are_refused(void **state) {
    (void)state;
    const Camera c = random_camera(9, 1, 2);
    float image[HEIGHT * WIDTH * 3] = {0}, out[LENGTH * 48];
    Tensor rgb = tensor_3d(image, DTYPE_F32, HEIGHT, WIDTH, 3);
    check_fails(view_tokens(&c, HEIGHT, WIDTH, 4, tensor_none(), out), STATUS_DATA,
                "view is 10x6 pixels (width x height), expected multiples of the patch 4");
    check_fails(view_tokens(&c, WIDTH, HEIGHT, PATCH, rgb, out), STATUS_DATA,
                "image is [6, 10, 3] F32, expected [10, 6, 3]");
    check_fails(image_to_patches(tensor_2d(image, DTYPE_F32, 3, 3), PATCH, out), STATUS_DATA,
                "image is [3, 3] F32");
    check_fails(image_from_patches(image, 0, WIDTH, PATCH, out), STATUS_DATA, "10x0");
}

/* ---- the common frame ----------------------------------------------------------------------- */

enum { VIEWS = 5 };

static void random_views(Camera *c, double reach) {
    for (int i = 0; i < VIEWS; i++) c[i] = random_camera((uint64_t)(40 + i), 0.4, reach);
}

static double largest_position(const Camera *c, int count) {
    double largest = 0;
    for (int i = 0; i < count; i++)
        for (int k = 0; k < 3; k++) largest = fmax(largest, fabs(c[i].c2w[4 * k + 3]));
    return largest;
}

/* In its own frame the mean position is 0 and the mean axis z is +z. */
static void mean_pose_becomes_the_origin(void **state) {
    (void)state;
    Camera c[VIEWS];
    random_views(c, 7);
    check_ok(poses_normalise(c, 2, VIEWS, POSES_ALL, 1.35, NULL));
    for (int i = 0; i < 3; i++) {
        double position = 0, axis = 0;
        for (int v = 0; v < VIEWS; v++) {
            position += c[v].c2w[4 * i + 3];
            axis += c[v].c2w[4 * i + 2];
        }
        assert_true(near(position, 0, 1e-12));
        assert_true(i == 2 ? axis > 0 : near(axis, 0, 1e-12));
    }
    assert_true(near(largest_position(c, VIEWS), 1 / 1.35, 1e-12));
    for (int v = 0; v < VIEWS; v++) check_ok(camera_check(&c[v]));
}

static void inputs_alone_fix_the_frame(void **state) {
    (void)state;
    Camera all[VIEWS], inputs[VIEWS], later;
    random_views(all, 7);
    memcpy(inputs, all, sizeof all);
    later = all[4];
    PoseFrame f;
    check_ok(poses_normalise(all, 2, VIEWS, POSES_ALL, 1, NULL));
    check_ok(poses_normalise(inputs, 2, VIEWS, POSES_INPUTS, 1, &f));
    assert_true(near(largest_position(inputs, 2), 1, 1e-12));
    assert_true(fabs(all[0].c2w[3] - inputs[0].c2w[3]) > 1e-3);
    pose_frame_apply(&f, &later, 1); /* a camera that nobody knew then */
    assert_memory_equal(&later, &inputs[4], sizeof later);
    Camera same[VIEWS];
    random_views(same, 7);
    memcpy(all, same, sizeof all);
    check_ok(poses_normalise(same, 2, VIEWS, POSES_NONE, 1, &f));
    for (int v = 0; v < VIEWS; v++)
        for (int k = 0; k < 16; k++) assert_true(same[v].c2w[k] == all[v].c2w[k]);
}

/* Moving, turning and scaling the world changes nothing. */
static void the_world_does_not_matter(void **state) {
    (void)state;
    Camera a[VIEWS], b[VIEWS];
    random_views(a, 3);
    const Camera move = random_camera(77, 3, 50);
    for (int v = 0; v < VIEWS; v++) {
        b[v] = a[v];
        for (int k = 0; k < 3; k++) b[v].c2w[4 * k + 3] *= 4;
        pose_multiply(move.c2w, b[v].c2w, b[v].c2w);
    }
    check_ok(poses_normalise(a, 2, VIEWS, POSES_ALL, 1.35, NULL));
    check_ok(poses_normalise(b, 2, VIEWS, POSES_ALL, 1.35, NULL));
    for (int v = 0; v < VIEWS; v++)
        for (int k = 0; k < 16; k++) assert_true(near(a[v].c2w[k], b[v].c2w[k], 1e-9));
}

static void one_position_has_no_scale(void **state) {
    (void)state;
    Camera c[VIEWS];
    random_views(c, 7);
    for (int v = 1; v < VIEWS; v++)
        for (int k = 0; k < 3; k++) c[v].c2w[4 * k + 3] = c[0].c2w[4 * k + 3];
    PoseFrame f;
    check_ok(poses_normalise(c, 2, VIEWS, POSES_ALL, 1.35, &f));
    assert_true(f.scale == 1);
    assert_true(largest_position(c, VIEWS) < 1e-12);
    Camera one = random_camera(3, 1, 5);
    check_ok(poses_normalise(&one, 1, 1, POSES_INPUTS, 1, &f));
    assert_true(largest_position(&one, 1) < 1e-12);
}

static void cancelling_cameras_are_refused(void **state) {
    (void)state;
    Camera c[2] = {random_camera(5, 0, 1), random_camera(6, 0, 1)};
    PoseFrame f;
    c[1].c2w[0] = c[1].c2w[10] = -1; /* turned round about y */
    check_fails(pose_frame_mean(c, 2, 1, &f), STATUS_DATA, "viewing directions of the 2 cameras");
    c[1].c2w[10] = 1;
    c[1].c2w[5] = -1; /* upside down: the verticals cancel */
    check_fails(pose_frame_mean(c, 2, 1, &f), STATUS_DATA, "mean vertical");
    check_fails(pose_frame_mean(c, 0, 1, &f), STATUS_DATA, "no camera");
    check_fails(pose_frame_mean(c, 1, 0, &f), STATUS_USAGE, "margin is 0");
}

/* ---- between cameras ------------------------------------------------------------------------ */

/* Cosine of the angle between two rotations. */
static double turn_between(const Camera *a, const Camera *b) {
    double trace = 0;
    for (int i = 0; i < 3; i++)
        for (int k = 0; k < 3; k++) trace += a->c2w[4 * i + k] * b->c2w[4 * i + k];
    return (trace - 1) / 2;
}

static void the_way_is_even(void **state) {
    (void)state;
    for (uint64_t n = 0; n < 200; n++) {
        const Camera a = random_camera(2 * n, 3, 2), b = random_camera(2 * n + 1, 3, 2);
        Camera c[3];
        for (int i = 0; i < 3; i++) {
            camera_between(&a, &b, i / 2.0, &c[i]);
            check_ok(camera_check(&c[i]));
        }
        for (int i = 0; i < 16; i++) {
            assert_true(near(c[0].c2w[i], a.c2w[i], 1e-9));
            assert_true(near(c[2].c2w[i], b.c2w[i], 1e-9));
        }
        assert_true(near(turn_between(&a, &c[1]), turn_between(&c[1], &b), 1e-9));
        const double half = turn_between(&a, &c[1]); /* cos(2 x) = 2 cos(x)^2 - 1 */
        assert_true(half > -1e-9 && near(2 * half * half - 1, turn_between(&a, &b), 1e-9));
        assert_true(near(c[1].c2w[3], (a.c2w[3] + b.c2w[3]) / 2, 1e-12));
        assert_true(near(c[1].fx, (a.fx + b.fx) / 2, 1e-9));
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(inverse_is_inverse),
        cmocka_unit_test(faults_are_named),
        cmocka_unit_test(rays_project_back),
        cmocka_unit_test(a_crop_keeps_its_rays),
        cmocka_unit_test(tokens_hold_rays_and_colours),
        cmocka_unit_test(patches_turn_back),
        cmocka_unit_test(wrong_sizes_are_refused),
        cmocka_unit_test(mean_pose_becomes_the_origin),
        cmocka_unit_test(inputs_alone_fix_the_frame),
        cmocka_unit_test(the_world_does_not_matter),
        cmocka_unit_test(one_position_has_no_scale),
        cmocka_unit_test(cancelling_cameras_are_refused),
        cmocka_unit_test(the_way_is_even),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
