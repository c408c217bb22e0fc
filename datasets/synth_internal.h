/* Parts of procedural scenes. World: metres, x right, y down, z forward; the floor is y = 0.
 * Private to datasets/. */
#ifndef TTV_DATASETS_SYNTH_INTERNAL_H
#define TTV_DATASETS_SYNTH_INTERNAL_H

#include <math.h>

#include "core/rng.h"
#include "datasets/synth.h"

typedef struct Vec {
    double x, y, z;
} Vec;

static inline Vec vec(double x, double y, double z) {
    return (Vec){x, y, z};
}
static inline Vec vec_add(Vec a, Vec b) {
    return (Vec){a.x + b.x, a.y + b.y, a.z + b.z};
}
static inline Vec vec_sub(Vec a, Vec b) {
    return (Vec){a.x - b.x, a.y - b.y, a.z - b.z};
}
static inline Vec vec_scale(Vec a, double k) {
    return (Vec){a.x * k, a.y * k, a.z * k};
}
static inline double vec_dot(Vec a, Vec b) {
    return a.x * b.x + a.y * b.y + a.z * b.z;
}
static inline Vec vec_cross(Vec a, Vec b) {
    return (Vec){a.y * b.z - a.z * b.y, a.z * b.x - a.x * b.z, a.x * b.y - a.y * b.x};
}
static inline double vec_length(Vec a) {
    return sqrt(vec_dot(a, a));
}
static inline Vec vec_unit(Vec a) {
    return vec_scale(a, 1 / vec_length(a));
}
static inline Vec vec_mix(Vec a, Vec b, double t) {
    return vec_add(vec_scale(a, 1 - t), vec_scale(b, t));
}

/* ---- synth_texture.c ---- */

typedef enum Pattern {
    PATTERN_NOISE,
    PATTERN_CHECKER,
    PATTERN_BRICK,
    PATTERN_STRIPES,
    PATTERN_WOOD,
    PATTERN_TILES,
    PATTERN_DOTS,
    PATTERN_PAINTING,
    PATTERN_COUNT
} Pattern;

typedef struct Material {
    Pattern pattern;
    Vec a, b;    /* linear colours */
    double size; /* of the pattern's cell, metres */
    double shine;
    bool glows;
    uint32_t salt; /* of its noise */
} Material;

/* Smooth value noise in [0,1]; four octaves of it. */
double synth_noise(Vec p, uint32_t salt);
double synth_fractal(Vec p, uint32_t salt);
/* Colour at a point of the surface in the object's own axes, with the normal there. */
Vec synth_color(const Material *m, Vec p, Vec normal);
Material synth_material(Rng *rng, Pattern pattern);
Material synth_any_material(Rng *rng);

/* ---- scenes ---- */

typedef enum SolidKind { SOLID_BOX, SOLID_BALL, SOLID_CYLINDER } SolidKind;

/* Box: half sizes; ball: half.x is the radius; cylinder: radius half.x, upright, half height
 * half.y. */
typedef struct Solid {
    SolidKind kind;
    int material;
    Vec center, half;
    double cosine, sine; /* turn about the vertical */
} Solid;

enum { MAX_SOLIDS = 448, MAX_MATERIALS = 240, PATH_POINTS = 4 };

/* A ball around every solid, a coordinate an array: most solids are ruled out many at a time. In
 * floats with some slack, so that it never decides what is seen. Unused places have radius < 0. */
typedef struct Balls {
    float x[MAX_SOLIDS], y[MAX_SOLIDS], z[MAX_SOLIDS], radius[MAX_SOLIDS];
} Balls;

struct SynthScene {
    uint64_t seed;
    int64_t number;
    Vec room_low, room_high;
    Material walls[6]; /* -x +x -y (ceiling) +y (floor) -z +z */
    Solid solids[MAX_SOLIDS];
    Balls balls;
    Material materials[MAX_MATERIALS];
    int solid_count, material_count;
    Vec light[2], light_color[2], ambient;
    Vec eye[PATH_POINTS], look[PATH_POINTS]; /* control points of the path */
    double roll, focal;                      /* focal length over picture height */
    double center_x, center_y;
};

/* synth_furnish.c: fills room, solids and lights. */
void synth_furnish(SynthScene *s, Rng *rng);
/* synth_path.c: chooses a path that keeps clear of everything. */
void synth_choose_path(SynthScene *s, Rng *rng);

/* synth_trace.c */
typedef struct Hit {
    double t;
    Vec normal, local, local_normal;
    const Material *material;
} Hit;
/* The room is closed: there always is one. */
Hit synth_hit(const SynthScene *s, Vec from, Vec along);
/* Distance to the nearest solid or wall, roughly (boxes by their turned bounds). */
double synth_clearance(const SynthScene *s, Vec p);

#endif
