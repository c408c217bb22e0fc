/* Cameras: a smooth path that keeps clear of things, and the scene as a whole. */
#include <stdio.h>
#include <string.h>

#include "core/memory.h"
#include "datasets/synth_internal.h"

#define CLEAR 0.38 /* metres between the camera and anything */
#define STEEP 0.6  /* sine of the steepest view up or down */

enum { TRIES = 400, CHECKS = 24 };

/* Uniform cubic B-spline over the control points with doubled ends: smooth, inside their hull. */
static Vec spline(const Vec p[PATH_POINTS], double t) {
    double at = t * (PATH_POINTS - 1);
    int segment = (int)fmin(floor(at), PATH_POINTS - 2);
    double u = at - segment, w[4];
    w[0] = (1 - u) * (1 - u) * (1 - u) / 6;
    w[1] = (3 * u * u * u - 6 * u * u + 4) / 6;
    w[2] = (-3 * u * u * u + 3 * u * u + 3 * u + 1) / 6;
    w[3] = u * u * u / 6;
    Vec sum = vec(0, 0, 0);
    for (int k = 0; k < 4; k++) {
        int i = segment + k - 1;
        i = i < 0 ? 0 : i > PATH_POINTS - 1 ? PATH_POINTS - 1 : i;
        sum = vec_add(sum, vec_scale(p[i], w[k]));
    }
    return sum;
}

/* A slow sweep: sideways, forwards, or around what is looked at. */
static void draw_path(SynthScene *s, Rng *rng) {
    double margin = 0.6, height = s->room_high.y - s->room_low.y;
    Vec start = vec(rng_range(rng, s->room_low.x + margin, s->room_high.x - margin),
                    -rng_range(rng, 0.45, 0.7) * height,
                    rng_range(rng, s->room_low.z + margin, s->room_high.z - margin));
    /* towards the far side of the room, so that there is something to see */
    Vec middle = vec(rng_range(rng, -0.6, 0.6) * s->room_high.x, -rng_range(rng, 0.2, 0.5) * height,
                     rng_range(rng, -0.6, 0.6) * s->room_high.z);
    Vec ahead = vec_unit(vec_sub(middle, start));
    Vec side = vec_unit(vec_cross(vec(0, 1, 0), ahead));
    double length = rng_range(rng, 0.7, 2.2), angle = rng_range(rng, -1.0, 1.0) * M_PI;
    Vec step =
        vec_add(vec_scale(ahead, 0.8 * cos(angle) * length), vec_scale(side, sin(angle) * length));
    double reach = fmax(vec_length(vec_sub(middle, start)), 1.5);
    for (int i = 0; i < PATH_POINTS; i++) {
        double t = (double)i / (PATH_POINTS - 1) - 0.5;
        Vec wobble = vec(rng_range(rng, -0.15, 0.15), rng_range(rng, -0.1, 0.1),
                         rng_range(rng, -0.15, 0.15));
        s->eye[i] = vec_add(vec_add(start, vec_scale(step, t)), wobble);
        double drift = 0.25 * reach;
        s->look[i] = vec_add(vec_add(start, vec_scale(ahead, reach)),
                             vec(rng_range(rng, -drift, drift), rng_range(rng, -0.5, 0.5) * drift,
                                 rng_range(rng, -drift, drift)));
    }
}

/* Distance kept along the path, cut at CLEAR, plus some of the view's depth: both must do. */
static double path_merit(const SynthScene *s) {
    double worst = CLEAR, view = 1e9;
    for (int i = 0; i <= CHECKS; i++) {
        double t = (double)i / CHECKS;
        Vec eye = spline(s->eye, t), ahead = vec_unit(vec_sub(spline(s->look, t), eye));
        worst = fmin(worst, synth_clearance(s, eye));
        if (worst <= 0) return worst;
        if (fabs(ahead.y) > STEEP) return 0;
        view = fmin(view, synth_hit(s, eye, ahead).t);
    }
    return worst < CLEAR ? worst : CLEAR + fmin(view, 1.3);
}

void synth_choose_path(SynthScene *s, Rng *rng) {
    double best = -1e9;
    Vec eye[PATH_POINTS], look[PATH_POINTS];
    for (int i = 0; i < TRIES && best < CLEAR + 1.3; i++) {
        draw_path(s, rng);
        double merit = path_merit(s);
        if (merit <= best) continue;
        best = merit;
        memcpy(eye, s->eye, sizeof eye);
        memcpy(look, s->look, sizeof look);
    }
    memcpy(s->eye, eye, sizeof eye);
    memcpy(s->look, look, sizeof look);
    s->roll = rng_range(rng, -0.03, 0.03);
    s->focal = 0.5 / tan(0.5 * rng_range(rng, 40, 62) * M_PI / 180);
    /* most cameras are centred, as videos are; some are not */
    bool shifted = rng_uniform(rng) < 0.2;
    s->center_x = 0.5 + (shifted ? rng_range(rng, -0.03, 0.03) : 0);
    s->center_y = 0.5 + (shifted ? rng_range(rng, -0.03, 0.03) : 0);
}

SceneFrame synth_camera(const SynthScene *s, int64_t frame, int64_t frames, double aspect) {
    double t = frames > 1 ? (double)frame / (double)(frames - 1) : 0;
    Vec eye = spline(s->eye, t), z = vec_unit(vec_sub(spline(s->look, t), eye));
    Vec down = vec(sin(s->roll), cos(s->roll), 0);
    Vec x = vec_unit(vec_cross(down, z)), y = vec_cross(z, x);
    SceneFrame f = {.time = frame * 33367, .line = frame + 2, .image = -1, .width = 1, .height = 1};
    f.fy = s->focal;
    f.fx = s->focal / aspect;
    f.cx = s->center_x;
    f.cy = s->center_y;
    const double m[12] = {x.x, x.y, x.z, -vec_dot(x, eye), y.x, y.y, y.z, -vec_dot(y, eye),
                          z.x, z.y, z.z, -vec_dot(z, eye)};
    memcpy(f.w2c, m, sizeof m);
    return f;
}

Status synth_scene_new(uint64_t seed, int64_t number, SynthScene **out) {
    void *block;
    *out = NULL;
    TRY(mem_alloc(&block, 1, sizeof(SynthScene), "procedural scene"));
    SynthScene *s = block;
    s->seed = seed;
    s->number = number;
    Rng rng = rng_stream(seed, RNG_SYNTH, 0, (uint64_t)number);
    synth_furnish(s, &rng);
    synth_choose_path(s, &rng);
    *out = s;
    return STATUS_OK;
}

void synth_scene_free(SynthScene *s) {
    mem_free(s);
}

void synth_scene_name(uint64_t seed, int64_t number, char name[17]) {
    Rng rng = rng_stream(seed, RNG_SYNTH, 1, (uint64_t)number);
    uint32_t high = rng_u32(&rng), low = rng_u32(&rng);
    snprintf(name, 17, "%08x%08x", high, low);
}
