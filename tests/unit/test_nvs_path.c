/* Spirals and orbits: valid cameras that face what the inputs see, sizes from the inputs. */
#include <stdarg.h>
#include <stddef.h>
#include <setjmp.h>
#include <stdint.h>
#include <cmocka.h>

#include <math.h>
#include <stdio.h>
#include <string.h>

#include "nvs/camera_path.h"

#define TAU 6.283185307179586

enum { VIEWS = 24, MOST = 40 };

static void check_ok(Status s) {
    if (s != STATUS_OK) fail_msg("%s", status_message());
}

static void near_to(double a, double b, double limit, const char *what) {
    if (!(fabs(a - b) <= limit)) fail_msg("%s: %.12g instead of %.12g", what, a, b);
}

/* A camera at `at` facing `to`, down near +y. */
static Camera facing(double x, double y, double z, const double to[3]) {
    Camera c = {.fx = 100, .fy = 101, .cx = 32, .cy = 24};
    const double at[3] = {x, y, z};
    double axis[3][3], n = 0;
    for (int i = 0; i < 3; i++) axis[2][i] = to[i] - at[i], n += axis[2][i] * axis[2][i];
    for (int i = 0; i < 3; i++) axis[2][i] /= sqrt(n);
    const double r = hypot(axis[2][2], axis[2][0]); /* x = (0, 1, 0) x z */
    axis[0][0] = axis[2][2] / r, axis[0][1] = 0, axis[0][2] = -axis[2][0] / r;
    for (int i = 0; i < 3; i++) {
        const int j = (i + 1) % 3, k = (i + 2) % 3;
        axis[1][i] = axis[2][j] * axis[0][k] - axis[2][k] * axis[0][j];
    }
    for (int i = 0; i < 3; i++) {
        for (int j = 0; j < 3; j++) c.c2w[4 * i + j] = axis[j][i];
        c.c2w[4 * i + 3] = at[i];
    }
    c.c2w[15] = 1;
    return c;
}

/* Distance of the point from the camera, and from its axis. */
static double distance_to(const Camera *c, const double point[3], double *off_axis) {
    double along = 0, square = 0;
    for (int i = 0; i < 3; i++) {
        const double d = point[i] - c->c2w[4 * i + 3];
        along += d * c->c2w[4 * i + 2];
        square += d * d;
    }
    *off_axis = sqrt(fmax(0, square - along * along));
    if (along < 0) *off_axis = 1e9;
    return sqrt(square);
}

static void all_face(const Camera *c, int64_t n, const double point[3], double limit) {
    for (int64_t i = 0; i < n; i++) {
        double off;
        check_ok(camera_check(&c[i]));
        distance_to(&c[i], point, &off);
        near_to(off, 0, limit, "distance of the focus from the axis");
    }
}

static double step(const Camera *a, const Camera *b) {
    double sum = 0;
    for (int i = 0; i < 3; i++) sum += pow(a->c2w[4 * i + 3] - b->c2w[4 * i + 3], 2);
    return sqrt(sum);
}

/* The published demo of objects: radius 2.35 + 0.65 sin, elevation 30 + 15 sin degrees. */
static void a_full_turn_is_the_published_turntable(void **state) {
    (void)state;
    const double origin[3] = {0, 0, 0};
    const double radius[4] = {3.0, 1.7, 2.35, 2.35}, elevation[4] = {45, 15, 30, 30};
    Camera in[4], out[VIEWS];
    for (int i = 0; i < 4; i++) {
        const double e = elevation[i] / 360 * TAU, a = TAU * i / 4; /* y is down */
        in[i] = facing(radius[i] * cos(e) * cos(a), -radius[i] * sin(e),
                       radius[i] * cos(e) * sin(a), origin);
    }
    PathOptions o = path_options_default();
    o.kind = PATH_ORBIT, o.turn = 360;
    check_ok(camera_path(&o, in, 4, VIEWS, out));
    all_face(out, VIEWS, origin, 5e-3); /* the focus is drawn to the mean by 1e-4 */
    double turned = 0;
    for (int v = 0; v < VIEWS; v++) {
        double off, sway = sin(TAU * v / VIEWS);
        near_to(distance_to(&out[v], origin, &off), 2.35 + 0.65 * sway, 5e-3, "radius");
        near_to(asin(-out[v].c2w[7] / distance_to(&out[v], origin, &off)) / TAU * 360,
                30 + 15 * sway, 0.5, "elevation");
        const Camera *next = &out[(v + 1) % VIEWS];
        double change = atan2(next->c2w[11], next->c2w[3]) - atan2(out[v].c2w[11], out[v].c2w[3]);
        turned += remainder(change, TAU);
        near_to(fabs(remainder(change, TAU)), TAU / VIEWS, 1e-2, "step of the azimuth");
    }
    near_to(fabs(turned), TAU, 1e-9, "whole turn");
    near_to(out[0].fx, 100, 1e-12, "fx");
}

/* Two cameras beside each other that look at one point: the swing ends where they stand. */
static void a_swing_goes_as_far_as_the_inputs(void **state) {
    (void)state;
    const double focus[3] = {0.5, 0.25, 4};
    const Camera in[2] = {facing(-0.5, 0.25, 0, focus), facing(1.5, 0.25, 0, focus)};
    Camera out[VIEWS];
    PathOptions o = path_options_default();
    o.kind = PATH_ORBIT;
    check_ok(camera_path(&o, in, 2, VIEWS, out));
    all_face(out, VIEWS, focus, 5e-3);
    double low = 1e9, high = -1e9;
    for (int v = 0; v < VIEWS; v++) {
        low = fmin(low, out[v].c2w[3]);
        high = fmax(high, out[v].c2w[3]);
        near_to(out[v].c2w[7], 0.25, 1e-6, "height");
    }
    near_to(low, -0.5, 5e-3, "left end");
    near_to(high, 1.5, 5e-3, "right end");
    near_to(step(&out[0], &out[VIEWS / 2]), 0, 1e-9, "the middle, twice");
    o.turn = 90;
    check_ok(camera_path(&o, in, 2, VIEWS, out));
    near_to(out[VIEWS / 4].c2w[3] - 0.5, out[VIEWS / 4].c2w[11] - 4 < 0 ? sqrt(17) * sqrt(0.5) : 0,
            2e-2, "45 degrees aside");
}

static void a_spiral_has_the_size_of_the_inputs(void **state) {
    (void)state;
    const double focus[3] = {0, 0, 10};
    const Camera in[4] = {facing(1, 0, 0, focus), facing(-1, 0, 0, focus), facing(0, 0.5, 0, focus),
                          facing(0, -0.5, 0, focus)};
    Camera out[MOST];
    PathOptions o = path_options_default();
    o.kind = PATH_SPIRAL;
    for (o.size = 0.5; o.size < 3; o.size *= 2) {
        check_ok(camera_path(&o, in, 4, MOST, out));
        all_face(out, MOST, focus, 2e-2);
        for (int v = 0; v < MOST; v++) {
            const double a = TAU * 2 * v / MOST;
            near_to(out[v].c2w[3], o.size * cos(a), 1e-6, "x");
            near_to(out[v].c2w[7], o.size * 0.5 * sin(a), 1e-6, "y");
            near_to(out[v].c2w[11], 0, 1e-6, "z");
        }
    }
}

/* A drive straight ahead: the rounds are a quarter of the way wide, and go forth and back. */
static void parallel_axes_have_a_far_focus(void **state) {
    (void)state;
    const double ahead[3] = {0, 0, 1e6};
    const Camera in[2] = {facing(0, 0, -1, ahead), facing(0, 0, 1, ahead)};
    const double focus[3] = {0, 0, 8};
    Camera out[MOST];
    PathOptions o = path_options_default();
    double most[3] = {0};
    o.kind = PATH_SPIRAL;
    check_ok(camera_path(&o, in, 2, MOST, out));
    all_face(out, MOST, focus, 1e-3);
    for (int v = 0; v < MOST; v++)
        for (int i = 0; i < 3; i++) most[i] = fmax(most[i], fabs(out[v].c2w[4 * i + 3]));
    near_to(most[0], 0.25, 1e-6, "width");
    near_to(most[1], 0.25, 1e-6, "height");
    near_to(most[2], 1, 1e-6, "depth");
    o.kind = PATH_ORBIT;
    check_ok(camera_path(&o, in, 2, MOST, out));
    all_face(out, MOST, focus, 1e-3);
    /* apart: what lies behind is no focus */
    const double left[3] = {-5, 0, 5}, right[3] = {5, 0, 5};
    const Camera apart[2] = {facing(-1, 0, 0, left), facing(1, 0, 0, right)};
    o.kind = PATH_SPIRAL;
    check_ok(camera_path(&o, apart, 2, MOST, out));
    all_face(out, MOST, focus, 1e-3);
}

/* Turned, moved and scaled worlds give the same paths, turned, moved and scaled. */
static void the_world_does_not_matter(void **state) {
    (void)state;
    const double focus[3] = {0.2, -0.1, 5}, target[3] = {3, 4, -7};
    const Camera in[3] = {facing(-0.6, 0.1, 0, focus), facing(0.7, -0.2, 0.3, focus),
                          facing(0.1, 0.4, -0.2, focus)};
    const Camera world = facing(-2, 1, 3, target);
    const double scale = 3.5;
    for (int kind = PATH_BETWEEN; kind <= PATH_ORBIT; kind++) {
        Camera moved[3], a[VIEWS], b[VIEWS];
        PathOptions o = path_options_default();
        o.kind = (PathKind)kind;
        for (int i = 0; i < 3; i++) {
            moved[i] = in[i];
            for (int k = 3; k < 12; k += 4) moved[i].c2w[k] *= scale;
            pose_multiply(world.c2w, moved[i].c2w, moved[i].c2w);
        }
        check_ok(camera_path(&o, in, 3, VIEWS, a));
        check_ok(camera_path(&o, moved, 3, VIEWS, b));
        for (int v = 0; v < VIEWS; v++) {
            for (int k = 3; k < 12; k += 4) a[v].c2w[k] *= scale;
            pose_multiply(world.c2w, a[v].c2w, a[v].c2w);
            for (int k = 0; k < 16; k++) near_to(b[v].c2w[k], a[v].c2w[k], 1e-6, "pose");
        }
    }
}

static void loops_close_evenly(void **state) {
    (void)state;
    const double focus[3] = {0, 0, 5};
    const Camera in[3] = {facing(-1, 0, 0, focus), facing(1, 0, 0, focus), facing(0, 1, 0, focus)};
    Camera out[VIEWS];
    PathOptions o = path_options_default();
    check_ok(camera_path(&o, in, 3, VIEWS + 0, out));
    near_to(step(&out[0], &in[0]), 0, 1e-9, "first");
    near_to(step(&out[VIEWS - 1], &in[2]), 0, 1e-9, "last");
    o.loop = true;
    check_ok(camera_path(&o, in, 3, VIEWS, out));
    for (int i = 0; i < 3; i++)
        near_to(step(&out[i * VIEWS / 3], &in[i]), 0, 1e-9, "through an input");
    near_to(step(&out[VIEWS - 1], &in[0]), step(&in[2], &in[0]) * 3 / VIEWS, 1e-9, "last step");
    check_ok(camera_path(&o, in, 3, 1, out));
    near_to(step(&out[0], &in[0]), 0, 1e-9, "a single view");
}

static void what_has_no_size_is_refused(void **state) {
    (void)state;
    const double a[3] = {0, 0, 5}, b[3] = {0, 0, -5};
    const Camera same[2] = {facing(1, 2, 3, a), facing(1, 2, 3, a)};
    const Camera against[2] = {facing(0, 0, 1, a), facing(0, 0, -1, b)};
    Camera out[VIEWS];
    PathOptions o = path_options_default();
    for (int kind = PATH_SPIRAL; kind <= PATH_ORBIT; kind++) {
        o.kind = (PathKind)kind;
        assert_int_equal(camera_path(&o, same, 2, VIEWS, out), STATUS_DATA);
        assert_non_null(strstr(status_message(), "stand at one place"));
    }
    o.kind = PATH_SPIRAL;
    assert_int_equal(camera_path(&o, against, 2, VIEWS, out), STATUS_DATA);
    o = path_options_default();
    check_ok(camera_path(&o, same, 2, VIEWS, out));
    assert_int_equal(camera_path(&o, same, 1, VIEWS, out), STATUS_USAGE);
    o.size = 0;
    assert_int_equal(camera_path(&o, same, 2, VIEWS, out), STATUS_USAGE);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_full_turn_is_the_published_turntable),
        cmocka_unit_test(a_swing_goes_as_far_as_the_inputs),
        cmocka_unit_test(a_spiral_has_the_size_of_the_inputs),
        cmocka_unit_test(parallel_axes_have_a_far_focus),
        cmocka_unit_test(the_world_does_not_matter),
        cmocka_unit_test(loops_close_evenly),
        cmocka_unit_test(what_has_no_size_is_refused),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
