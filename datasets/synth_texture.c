/* Textures: two colours mixed by a pattern, and noise over it. */
#include "datasets/synth_internal.h"

static uint32_t hash3(int32_t x, int32_t y, int32_t z, uint32_t salt) {
    uint32_t h =
        salt ^ (uint32_t)x * 0x8DA6B343u ^ (uint32_t)y * 0xD8163841u ^ (uint32_t)z * 0xCB1AB31Fu;
    h = (h ^ (h >> 16)) * 0x7FEB352Du;
    h = (h ^ (h >> 15)) * 0x846CA68Bu;
    return h ^ (h >> 16);
}

static double lattice(int32_t x, int32_t y, int32_t z, uint32_t salt) {
    return hash3(x, y, z, salt) * (1.0 / 4294967295.0);
}

static double smooth(double t) {
    return t * t * (3 - 2 * t);
}

static double mix(double a, double b, double t) {
    return a + (b - a) * t;
}

double synth_noise(Vec p, uint32_t salt) {
    double fx = floor(p.x), fy = floor(p.y), fz = floor(p.z), plane[2];
    int32_t x = (int32_t)fx, y = (int32_t)fy, z = (int32_t)fz;
    double u = smooth(p.x - fx), v = smooth(p.y - fy), w = smooth(p.z - fz);
    for (int k = 0; k < 2; k++) {
        double low = mix(lattice(x, y, z + k, salt), lattice(x + 1, y, z + k, salt), u);
        double high = mix(lattice(x, y + 1, z + k, salt), lattice(x + 1, y + 1, z + k, salt), u);
        plane[k] = mix(low, high, v);
    }
    return mix(plane[0], plane[1], w);
}

double synth_fractal(Vec p, uint32_t salt) {
    double sum = 0, weight = 0.5;
    for (uint32_t octave = 0; octave < 4; octave++) {
        sum += weight * synth_noise(p, salt + octave);
        weight *= 0.5;
        p = vec_scale(p, 2.03); /* not 2: the lattices must not fall together */
    }
    return sum / 0.9375;
}

/* Coordinates in the face that the normal belongs to. */
static void face_of(Vec p, Vec n, double *u, double *v) {
    double x = fabs(n.x), y = fabs(n.y), z = fabs(n.z);
    if (y >= x && y >= z) {
        *u = p.x;
        *v = p.z;
    } else {
        *u = x > z ? p.z : p.x;
        *v = p.y;
    }
}

static double fraction(double x) {
    return x - floor(x);
}

/* 1 in the joint between cells of 1 x 1. */
static double joint(double u, double v, double width) {
    double du = fabs(fraction(u) - 0.5), dv = fabs(fraction(v) - 0.5);
    return du > 0.5 - width || dv > 0.5 - width ? 1 : 0;
}

static double brick(double u, double v, uint32_t salt, double *shade) {
    double row = floor(v);
    u = 0.5 * u + 0.5 * fraction(0.5 * row);
    *shade = 0.75 + 0.5 * lattice((int32_t)floor(u), (int32_t)row, 7, salt);
    return joint(u, v, 0.06);
}

/* A picture of soft blobs and bars in some colours of its own. */
static Vec painting(const Material *m, double u, double v) {
    Vec p = vec(u / m->size, v / m->size, 0.37 * (double)(m->salt & 15));
    double warp = synth_fractal(p, m->salt + 9);
    double t = fraction(3 * warp + 0.5 * p.y);
    Vec c = vec_mix(m->a, m->b, smooth(t));
    double other = synth_noise(vec_scale(p, 1.7), m->salt + 31);
    if (other > 0.6) c = vec(m->b.z, m->a.x, m->b.y);
    if (other < 0.25) c = vec(m->a.y, m->b.z, m->a.x);
    return c;
}

static Vec grain(const Material *m, double u, double v, Vec p) {
    double bend = synth_fractal(vec(0.8 * p.x, 0.8 * p.y, 0.8 * p.z), m->salt);
    double plank = floor(v / m->size);
    double along = u + 3.1 * lattice((int32_t)plank, 0, 0, m->salt);
    double rings = fraction(6 * bend + 9 * synth_noise(vec(0.7 * along, 5 * v, plank), m->salt));
    double shade = 0.8 + 0.4 * lattice((int32_t)plank, (int32_t)floor(along / 1.3), 3, m->salt);
    Vec c = vec_scale(vec_mix(m->a, m->b, 0.6 * smooth(rings)), shade);
    bool gap = fraction(v / m->size) < 0.03 || fraction(along / 1.3) < 0.006;
    return gap ? vec_scale(c, 0.35) : c;
}

static Vec base_color(const Material *m, Vec p, double u, double v) {
    double s = m->size, shade;
    switch (m->pattern) {
    case PATTERN_CHECKER:
        return ((int64_t)floor(u / s) + (int64_t)floor(v / s)) & 1 ? m->a : m->b;
    case PATTERN_BRICK: {
        double mortar = brick(u / s, 2 * v / s, m->salt, &shade);
        return mortar > 0 ? m->b : vec_scale(m->a, shade);
    }
    case PATTERN_STRIPES: {
        double t = fraction(u / s);
        return t < 0.5 ? m->a : t < 0.6 ? vec_mix(m->a, m->b, 0.5) : m->b;
    }
    case PATTERN_WOOD:
        return grain(m, u, v, p);
    case PATTERN_TILES:
        shade = 0.85 + 0.3 * lattice((int32_t)floor(u / s), (int32_t)floor(v / s), 1, m->salt);
        return joint(u / s, v / s, 0.025) > 0 ? m->b : vec_scale(m->a, shade);
    case PATTERN_DOTS: {
        double du = fraction(u / s) - 0.5, dv = fraction(v / s) - 0.5;
        return du * du + dv * dv < 0.09 ? m->b : m->a;
    }
    case PATTERN_PAINTING:
        return painting(m, u, v);
    default:
        return vec_mix(m->a, m->b, synth_fractal(vec_scale(p, 1 / s), m->salt));
    }
}

Vec synth_color(const Material *m, Vec p, Vec normal) {
    double u, v;
    face_of(p, normal, &u, &v);
    Vec c = base_color(m, p, u, v);
    if (m->glows) return c;
    /* dirt at two scales: no surface is uniform */
    double coarse = synth_fractal(vec_scale(p, 1.3), m->salt + 77);
    double fine = synth_noise(vec_scale(p, 23), m->salt + 78);
    return vec_scale(c, 0.72 + 0.4 * coarse + 0.16 * fine);
}

/* ---- choosing ---- */

static double channel(double hue, double saturation, double value, double offset) {
    double k = fraction(hue + offset) * 6, d = fabs(k - 3) - 1;
    double pure = d < 0 ? 0 : d > 1 ? 1 : d;
    return value * (1 - saturation + saturation * pure);
}

static Vec random_color(Rng *rng, double saturation, double low, double high) {
    double hue = rng_uniform(rng), s = saturation * rng_uniform(rng);
    double v = rng_range(rng, low, high);
    return vec(channel(hue, s, v, 0), channel(hue, s, v, 2.0 / 3), channel(hue, s, v, 1.0 / 3));
}

static Vec wood_color(Rng *rng) {
    double v = rng_range(rng, 0.12, 0.5);
    return vec(v, v * rng_range(rng, 0.55, 0.75), v * rng_range(rng, 0.25, 0.45));
}

Material synth_material(Rng *rng, Pattern pattern) {
    Material m = {.pattern = pattern, .salt = rng_u32(rng)};
    m.a = random_color(rng, 0.8, 0.15, 0.75);
    m.b = random_color(rng, 0.8, 0.08, 0.8);
    m.size = rng_range(rng, 0.12, 0.4);
    m.shine = rng_uniform(rng) < 0.3 ? rng_range(rng, 0.05, 0.25) : 0;
    if (pattern == PATTERN_BRICK) {
        m.a = vec(rng_range(rng, 0.25, 0.5), rng_range(rng, 0.1, 0.22), rng_range(rng, 0.06, 0.16));
        m.b = vec(0.45, 0.43, 0.4);
        m.size = rng_range(rng, 0.16, 0.3);
    }
    if (pattern == PATTERN_WOOD) {
        m.a = wood_color(rng);
        m.b = vec_scale(m.a, rng_range(rng, 0.4, 0.7));
    }
    if (pattern == PATTERN_TILES) m.b = vec_scale(m.a, rng_range(rng, 0.3, 0.6));
    return m;
}

Material synth_any_material(Rng *rng) {
    return synth_material(rng, (Pattern)rng_below(rng, PATTERN_COUNT));
}
