/* Casting rays: nearest surface, light, colour. */
#include <string.h>

#include "datasets/synth_internal.h"

#define EPSILON  1e-6
#define FAR_AWAY 1e30

/* ---- solids, in their own axes ---- */

static Vec turn_in(const Solid *s, Vec v) {
    return vec(s->cosine * v.x - s->sine * v.z, v.y, s->sine * v.x + s->cosine * v.z);
}

static Vec turn_out(const Solid *s, Vec v) {
    return vec(s->cosine * v.x + s->sine * v.z, v.y, -s->sine * v.x + s->cosine * v.z);
}

/* Enters the slab |p + t d| <= half; false when the ray misses what is left of [near, far]. */
static bool clip_slab(double p, double d, double half, int axis, double *near, double *far,
                      int *entered) {
    if (fabs(d) < 1e-14) return fabs(p) <= half;
    double a = (-half - p) / d, b = (half - p) / d;
    if (a > b) {
        double swap = a;
        a = b;
        b = swap;
    }
    if (a > *near) {
        *near = a;
        *entered = axis;
    }
    if (b < *far) *far = b;
    return *near <= *far;
}

static bool hit_box(const Solid *s, Vec p, Vec d, double limit, double *t, Vec *normal) {
    double near = EPSILON, far = limit;
    int axis = -1;
    if (!clip_slab(p.x, d.x, s->half.x, 0, &near, &far, &axis) ||
        !clip_slab(p.y, d.y, s->half.y, 1, &near, &far, &axis) ||
        !clip_slab(p.z, d.z, s->half.z, 2, &near, &far, &axis) || axis < 0)
        return false;
    *t = near;
    *normal = vec(axis == 0 ? -copysign(1, d.x) : 0, axis == 1 ? -copysign(1, d.y) : 0,
                  axis == 2 ? -copysign(1, d.z) : 0);
    return true;
}

static bool hit_ball(const Solid *s, Vec p, Vec d, double limit, double *t, Vec *normal) {
    double b = vec_dot(p, d), c = vec_dot(p, p) - s->half.x * s->half.x, root = b * b - c;
    if (root < 0) return false;
    *t = -b - sqrt(root);
    if (*t < EPSILON || *t > limit) return false;
    *normal = vec_unit(vec_add(p, vec_scale(d, *t)));
    return true;
}

static bool hit_cylinder(const Solid *s, Vec p, Vec d, double limit, double *t, Vec *normal) {
    double a = d.x * d.x + d.z * d.z, b = p.x * d.x + p.z * d.z;
    double c = p.x * p.x + p.z * p.z - s->half.x * s->half.x, root = b * b - a * c;
    if (a < 1e-14 ? c > 0 : root < 0) return false;
    double near = EPSILON, far = limit;
    int axis = -1;
    if (!clip_slab(p.y, d.y, s->half.y, 1, &near, &far, &axis)) return false;
    if (a >= 1e-14) {
        double in = (-b - sqrt(root)) / a, out = (-b + sqrt(root)) / a;
        if (in > near) {
            near = in;
            axis = 0;
        }
        if (out < far) far = out;
    }
    if (near > far || axis < 0) return false;
    *t = near;
    *normal = axis == 1 ? vec(0, -copysign(1, d.y), 0)
                        : vec((p.x + near * d.x) / s->half.x, 0, (p.z + near * d.z) / s->half.x);
    return true;
}

static bool hit_solid(const Solid *s, Vec from, Vec along, double limit, double *t, Vec *normal) {
    Vec p = turn_in(s, vec_sub(from, s->center)), d = turn_in(s, along);
    if (s->kind == SOLID_BOX) return hit_box(s, p, d, limit, t, normal);
    if (s->kind == SOLID_BALL) return hit_ball(s, p, d, limit, t, normal);
    return hit_cylinder(s, p, d, limit, t, normal);
}

/* ---- the scene ---- */

/* Solids whose balls the ray meets before `limit`; their number. */
static int near_solids(const SynthScene *s, Vec from, Vec along, double limit,
                       int16_t list[MAX_SOLIDS]) {
    const float fx = (float)from.x, fy = (float)from.y, fz = (float)from.z, end = (float)limit;
    const float dx = (float)along.x, dy = (float)along.y, dz = (float)along.z;
    const Balls *o = &s->balls;
    int padded = (s->solid_count + 63) / 64 * 64, count = 0;
    uint8_t meets[MAX_SOLIDS];
    for (int i = 0; i < padded; i++) {
        float x = o->x[i] - fx, y = o->y[i] - fy, z = o->z[i] - fz, r = o->radius[i];
        float b = x * dx + y * dy + z * dz, c = x * x + y * y + z * z - r * r;
        bool within = c <= 0, ahead = b > 0, touched = b * b >= c, soon = b - r <= end;
        meets[i] = (uint8_t)((within | (ahead & touched & soon)) & (r > 0));
    }
    for (int i = 0; i < padded; i += 8) {
        uint64_t any;
        memcpy(&any, meets + i, sizeof any);
        if (any == 0) continue;
        for (int k = i; k < i + 8; k++)
            if (meets[k]) list[count++] = (int16_t)k;
    }
    return count;
}

/* The wall behind everything: the room is seen from within. */
static Hit hit_room(const SynthScene *s, Vec from, Vec along) {
    const double p[3] = {from.x, from.y, from.z}, d[3] = {along.x, along.y, along.z};
    const double low[3] = {s->room_low.x, s->room_low.y, s->room_low.z};
    const double high[3] = {s->room_high.x, s->room_high.y, s->room_high.z};
    Hit h = {.t = FAR_AWAY};
    int face = 0;
    for (int a = 0; a < 3; a++) {
        if (fabs(d[a]) < 1e-14) continue;
        double t = ((d[a] > 0 ? high[a] : low[a]) - p[a]) / d[a];
        if (t >= h.t) continue;
        h.t = t;
        face = 2 * a + (d[a] > 0);
    }
    double sign = face & 1 ? -1 : 1;
    h.normal = vec(face / 2 == 0 ? sign : 0, face / 2 == 1 ? sign : 0, face / 2 == 2 ? sign : 0);
    h.local_normal = h.normal;
    h.local = vec_add(from, vec_scale(along, h.t));
    h.material = &s->walls[face];
    return h;
}

Hit synth_hit(const SynthScene *s, Vec from, Vec along) {
    Hit h = hit_room(s, from, along);
    const Solid *nearest = NULL;
    int16_t list[MAX_SOLIDS];
    int count = near_solids(s, from, along, h.t, list);
    for (int i = 0; i < count; i++) {
        double t;
        Vec normal;
        if (!hit_solid(&s->solids[list[i]], from, along, h.t, &t, &normal)) continue;
        h.t = t;
        h.local_normal = normal;
        nearest = &s->solids[list[i]];
    }
    if (nearest == NULL) return h;
    h.normal = turn_out(nearest, h.local_normal);
    h.local = turn_in(nearest, vec_sub(vec_add(from, vec_scale(along, h.t)), nearest->center));
    h.material = &s->materials[nearest->material];
    return h;
}

static bool is_shadowed(const SynthScene *s, Vec from, Vec along, double distance) {
    double t;
    Vec normal;
    int16_t list[MAX_SOLIDS];
    int count = near_solids(s, from, along, distance, list);
    for (int i = 0; i < count; i++) {
        const Solid *o = &s->solids[list[i]];
        if (!s->materials[o->material].glows && hit_solid(o, from, along, distance, &t, &normal))
            return true;
    }
    return false;
}

double synth_clearance(const SynthScene *s, Vec p) {
    double best = fmin(fmin(p.x - s->room_low.x, s->room_high.x - p.x),
                       fmin(p.z - s->room_low.z, s->room_high.z - p.z));
    best = fmin(best, fmin(p.y - s->room_low.y, s->room_high.y - p.y));
    for (int i = 0; i < s->solid_count; i++) {
        const Solid *o = &s->solids[i];
        Vec q = turn_in(o, vec_sub(p, o->center));
        double half_y = o->kind == SOLID_BALL ? o->half.x : o->half.y;
        double half_z = o->kind == SOLID_BOX ? o->half.z : o->half.x;
        double x = fmax(fabs(q.x) - o->half.x, 0), y = fmax(fabs(q.y) - half_y, 0);
        double z = fmax(fabs(q.z) - half_z, 0);
        best = fmin(best, sqrt(x * x + y * y + z * z));
    }
    return best;
}

/* ---- colour ---- */

/* Light of one lamp: Lambert and a soft highlight. */
static Vec lamp(const SynthScene *s, int i, const Hit *h, Vec at, Vec along, Vec color) {
    Vec to = vec_sub(s->light[i], at);
    double distance = vec_length(to), facing = vec_dot(h->normal, to) / distance;
    if (facing <= 0) return vec(0, 0, 0);
    to = vec_scale(to, 1 / distance);
    if (is_shadowed(s, vec_add(at, vec_scale(h->normal, 1e-4)), to, distance)) return vec(0, 0, 0);
    double power = 1 / (0.6 + 0.16 * distance * distance), shine = 0;
    if (h->material->shine > 0) {
        Vec half = vec_unit(vec_sub(to, along));
        shine = h->material->shine * pow(fmax(vec_dot(half, h->normal), 0), 40);
    }
    Vec l = s->light_color[i];
    return vec(l.x * power * (facing * color.x + shine), l.y * power * (facing * color.y + shine),
               l.z * power * (facing * color.z + shine));
}

/* Corners get less of the light that comes from everywhere. */
static double openness(const SynthScene *s, Vec at, Vec normal) {
    Hit near = synth_hit(s, vec_add(at, vec_scale(normal, 1e-4)), normal);
    double t = fmin(near.t, 1.2) / 1.2;
    double corner = fmin(fmin(fmin(at.x - s->room_low.x, s->room_high.x - at.x),
                              fmin(at.z - s->room_low.z, s->room_high.z - at.z)) +
                             fabs(normal.x) + fabs(normal.z),
                         0.5);
    return 0.55 + 0.3 * t + 0.3 * corner;
}

static Vec shade(const SynthScene *s, Vec from, Vec along) {
    Hit h = synth_hit(s, from, along);
    Vec color = synth_color(h.material, h.local, h.local_normal);
    if (h.material->glows) return color;
    Vec at = vec_add(from, vec_scale(along, h.t));
    double open = openness(s, at, h.normal) * (0.85 - 0.15 * h.normal.y);
    Vec sum = vec(s->ambient.x * open * color.x, s->ambient.y * open * color.y,
                  s->ambient.z * open * color.z);
    for (int i = 0; i < 2; i++) sum = vec_add(sum, lamp(s, i, &h, at, along, color));
    return sum;
}

/* ---- pictures ---- */

/* Ray through a point of a picture of 1 x 1. */
static void camera_ray(const SceneFrame *c, double x, double y, Vec *from, Vec *along) {
    const double *m = c->w2c;
    Vec d = vec((x - c->cx) / c->fx, (y - c->cy) / c->fy, 1);
    *along =
        vec_unit(vec(m[0] * d.x + m[4] * d.y + m[8] * d.z, m[1] * d.x + m[5] * d.y + m[9] * d.z,
                     m[2] * d.x + m[6] * d.y + m[10] * d.z));
    *from = vec(-(m[0] * m[3] + m[4] * m[7] + m[8] * m[11]),
                -(m[1] * m[3] + m[5] * m[7] + m[9] * m[11]),
                -(m[2] * m[3] + m[6] * m[7] + m[10] * m[11]));
}

static uint8_t encode(double linear) {
    double v = linear <= 0 ? 0 : linear >= 1 ? 1 : linear;
    v = v <= 0.0031308 ? 12.92 * v : 1.055 * pow(v, 1 / 2.4) - 0.055;
    return (uint8_t)lrint(255 * v);
}

void synth_render(const SynthScene *s, const SceneFrame *camera, int64_t width, int64_t height,
                  int samples, uint8_t *pixels) {
    Vec from, along;
    double share = 1.0 / (samples * samples);
    for (int64_t y = 0; y < height; y++)
        for (int64_t x = 0; x < width; x++) {
            Vec sum = vec(0, 0, 0);
            for (int k = 0; k < samples * samples; k++) {
                double px = (double)x + (k % samples + 0.5) / samples;
                double py = (double)y + (k / samples + 0.5) / samples;
                camera_ray(camera, px / (double)width, py / (double)height, &from, &along);
                Vec c = shade(s, from, along);
                /* cut before the mean: a bright lamp must not bleed over its edge */
                sum = vec_add(sum, vec(fmin(c.x, 1), fmin(c.y, 1), fmin(c.z, 1)));
            }
            *pixels++ = encode(sum.x * share);
            *pixels++ = encode(sum.y * share);
            *pixels++ = encode(sum.z * share);
        }
}

double synth_depth(const SynthScene *s, const SceneFrame *camera, int64_t width, int64_t height,
                   double x, double y) {
    Vec from, along;
    camera_ray(camera, x / (double)width, y / (double)height, &from, &along);
    const double *m = camera->w2c;
    return synth_hit(s, from, along).t * vec_dot(vec(m[8], m[9], m[10]), along);
}
