/* Paths around what the input cameras look at: spirals and orbits. */
#include <math.h>

#include "nvs/camera_path_internal.h"
#include "nvs/vector3.h"

#define TAU            6.283185307179586
#define FOCUS_RIDGE    1e-4 /* axes that differ by less than about a degree do not say where */
#define LEVEL_RIDGE    1e-3 /* horizontals within about two degrees do not say what is level */
#define FAR_FOCUS      8.0  /* spreads */
#define MOST_ELEVATION 1.45 /* radians: beyond, the vertical says nothing */

/* ---- what the inputs have in common ------------------------------------------------------- */

typedef struct Gathering {
    const Camera *cameras;
    int64_t count;
    double centre[3], down[3], ahead[3]; /* means; the latter two unit, or zero where they cancel */
    double spread, focus[3];
    double fx, fy, cx, cy;
} Gathering;

static void take_means(Gathering *g) {
    for (int64_t v = 0; v < g->count; v++) {
        const Camera *c = g->cameras + v;
        for (int i = 0; i < 3; i++) {
            g->centre[i] += c->c2w[4 * i + 3] / (double)g->count;
            g->down[i] += c->c2w[4 * i + 1] / (double)g->count;
            g->ahead[i] += c->c2w[4 * i + 2] / (double)g->count;
        }
        g->fx += c->fx / (double)g->count, g->fy += c->fy / (double)g->count;
        g->cx += c->cx / (double)g->count, g->cy += c->cy / (double)g->count;
    }
    for (int64_t v = 0; v < g->count; v++) {
        double at[3];
        column3(g->cameras[v].c2w, 3, at);
        for (int i = 0; i < 3; i++) at[i] -= g->centre[i];
        g->spread = fmax(g->spread, sqrt(dot3(at, at)));
    }
    if (!unit3(g->ahead)) g->ahead[0] = g->ahead[1] = g->ahead[2] = 0;
    if (!unit3(g->down)) g->down[0] = g->down[1] = g->down[2] = 0;
}

/* x of the symmetric, positive definite 3x3 system m x = b, by Cramer's rule. */
static void solve(const double m[3][3], const double b[3], double x[3]) {
    double minor[3][3], determinant = 0;
    for (int i = 0; i < 3; i++)
        for (int j = 0; j < 3; j++) {
            const int a = (i + 1) % 3, c = (i + 2) % 3, d = (j + 1) % 3, e = (j + 2) % 3;
            minor[i][j] = m[a][d] * m[c][e] - m[a][e] * m[c][d];
        }
    for (int j = 0; j < 3; j++) determinant += m[0][j] * minor[0][j];
    for (int i = 0; i < 3; i++) {
        x[i] = 0;
        for (int j = 0; j < 3; j++) x[i] += minor[j][i] * b[j] / determinant;
    }
}

/* The point f that minimises sum |(1 - d d')(f - c)|^2 over all axes (c, d), drawn a little to
 * `guess`, which decides where the axes do not. */
static void meet_axes(const Gathering *g, const double guess[3], double out[3]) {
    double m[3][3] = {{0}}, b[3] = {0};
    for (int64_t v = 0; v < g->count; v++) {
        double c[3], d[3];
        column3(g->cameras[v].c2w, 3, c);
        column3(g->cameras[v].c2w, 2, d);
        for (int i = 0; i < 3; i++)
            for (int j = 0; j < 3; j++) {
                const double p = (i == j) - d[i] * d[j];
                m[i][j] += p;
                b[i] += p * (c[j] - guess[j]);
            }
    }
    for (int i = 0; i < 3; i++) m[i][i] += FOCUS_RIDGE * (double)g->count;
    solve(m, b, out);
    for (int i = 0; i < 3; i++) out[i] += guess[i];
}

static double mean_depth(const Gathering *g, const double point[3]) {
    double sum = 0;
    for (int64_t v = 0; v < g->count; v++) {
        double c[3], d[3];
        column3(g->cameras[v].c2w, 3, c);
        column3(g->cameras[v].c2w, 2, d);
        for (int i = 0; i < 3; i++) sum += (point[i] - c[i]) * d[i];
    }
    return sum / (double)g->count;
}

/* least: how near the focus may be, so that a spiral does not run into it. */
static void find_focus(Gathering *g, double least) {
    double guess[3];
    for (int i = 0; i < 3; i++) guess[i] = g->centre[i] + FAR_FOCUS * g->spread * g->ahead[i];
    meet_axes(g, guess, g->focus);
    double depth = mean_depth(g, g->focus);
    if (!(depth > 0)) {
        for (int i = 0; i < 3; i++) g->focus[i] = guess[i];
        depth = mean_depth(g, g->focus);
    }
    if (depth < least)
        for (int i = 0; i < 3; i++) g->focus[i] += (least - depth) * g->ahead[i];
}

static Status gather(const PathOptions *o, const Camera *inputs, int64_t count, Gathering *g) {
    *g = (Gathering){.cameras = inputs, .count = count};
    take_means(g);
    double reach = 0;
    for (int i = 0; i < 3; i++) reach = fmax(reach, fabs(g->centre[i]));
    if (!(g->spread > 1e-9 * reach))
        return status_set(STATUS_DATA,
                          "the %lld input cameras stand at one place: %s around what they see has "
                          "no size",
                          (long long)count, o->kind == PATH_SPIRAL ? "a spiral" : "an orbit");
    find_focus(g, o->kind == PATH_SPIRAL ? 2 * o->size * g->spread : 0);
    return STATUS_OK;
}

/* At `at`, facing the focus, its vertical in the plane of `down`. */
static Status face_focus(const Gathering *g, const double at[3], const double down[3],
                         Camera *out) {
    double axes[3][3];
    *out = (Camera){.fx = g->fx, .fy = g->fy, .cx = g->cx, .cy = g->cy};
    for (int i = 0; i < 3; i++) axes[2][i] = g->focus[i] - at[i];
    bool good = unit3(axes[2]);
    cross3(down, axes[2], axes[0]);
    good = good && unit3(axes[0]);
    if (!good)
        return status_set(STATUS_DATA, "the input cameras do not say which way is up for a path "
                                       "around what they see");
    cross3(axes[2], axes[0], axes[1]);
    for (int i = 0; i < 3; i++) {
        for (int j = 0; j < 3; j++) out->c2w[4 * i + j] = axes[j][i];
        out->c2w[4 * i + 3] = at[i];
    }
    out->c2w[15] = 1;
    return STATUS_OK;
}

/* ---- spiral ------------------------------------------------------------------------------- */

/* Largest deviation of the inputs from their mean position along each axis of the mean camera. */
static void extents(const Gathering *g, const double mean[16], double r[3]) {
    r[0] = r[1] = g->spread / 4;
    r[2] = 0;
    for (int64_t v = 0; v < g->count; v++)
        for (int j = 0; j < 3; j++) {
            double along = 0;
            for (int i = 0; i < 3; i++)
                along += mean[4 * i + j] * (g->cameras[v].c2w[4 * i + 3] - g->centre[i]);
            r[j] = fmax(r[j], fabs(along));
        }
}

Status path_spiral(const PathOptions *o, const Camera *inputs, int64_t count, int64_t views,
                   Camera *out) {
    Gathering g;
    PoseFrame frame;
    double mean[16], r[3], down[3];
    TRY(gather(o, inputs, count, &g));
    TRY(pose_frame_mean(inputs, count, 1, &frame));
    pose_invert(frame.to_frame, mean);
    extents(&g, mean, r);
    for (int i = 0; i < 3; i++) down[i] = mean[4 * i + 1];
    for (int64_t v = 0; v < views; v++) {
        const double a = TAU * (double)(o->rounds * v) / (double)views;
        const double p[3] = {r[0] * cos(a), r[1] * sin(a), r[2] * sin(a / (double)o->rounds)};
        double at[3];
        for (int i = 0; i < 3; i++) at[i] = g.centre[i] + o->size * dot3(mean + 4 * i, p);
        TRY(face_focus(&g, at, down, out + v));
    }
    return STATUS_OK;
}

/* ---- orbit -------------------------------------------------------------------------------- */

/* Middle and half of the range of a number that every input has. */
typedef struct Range {
    double low, high;
} Range;

static double middle(Range r) {
    return (r.low + r.high) / 2;
}

static double half(Range r) {
    return (r.high - r.low) / 2;
}

static void widen(Range *r, double x, bool first) {
    r->low = first ? x : fmin(r->low, x);
    r->high = first ? x : fmax(r->high, x);
}

/* The inputs in spherical coordinates about the focus: `up` is the pole, `zero` azimuth 0. */
typedef struct Sphere {
    double up[3], zero[3], side[3];
    Range distance, elevation, azimuth;
} Sphere;

/* Cameras are rarely rolled, so their x axes are level: of the verticals u, near the mean one, that
 * which minimises sum (u x_i)^2. The mean of the y axes alone leans where some look down more. */
static void level(Gathering *g) {
    double m[3][3] = {{0}}, down[3];
    for (int64_t v = 0; v < g->count; v++) {
        double x[3];
        column3(g->cameras[v].c2w, 0, x);
        for (int i = 0; i < 3; i++)
            for (int j = 0; j < 3; j++) m[i][j] += x[i] * x[j];
    }
    for (int i = 0; i < 3; i++) m[i][i] += LEVEL_RIDGE * (double)g->count;
    solve(m, g->down, down);
    if (!unit3(down)) return;
    for (int i = 0; i < 3; i++) g->down[i] = down[i];
}

/* Azimuth 0 is where the inputs are on average, or, when they stand all around, the first one. */
static bool place_zero(const Gathering *g, Sphere *s) {
    double first[3];
    column3(g->cameras->c2w, 3, first);
    for (int k = 0; k < 2; k++) {
        const double *from = k == 0 ? g->centre : first;
        double h[3];
        for (int i = 0; i < 3; i++) h[i] = from[i] - g->focus[i];
        const double rise = dot3(h, s->up);
        for (int i = 0; i < 3; i++) s->zero[i] = h[i] - rise * s->up[i];
        if (!(sqrt(dot3(s->zero, s->zero)) > 1e-3 * g->spread)) continue;
        if (!unit3(s->zero)) continue;
        cross3(s->up, s->zero, s->side);
        return true;
    }
    return false;
}

static bool measure(const Gathering *g, Sphere *s) {
    for (int i = 0; i < 3; i++) s->up[i] = -g->down[i];
    if (dot3(s->up, s->up) < 0.5 || !place_zero(g, s)) return false;
    for (int64_t v = 0; v < g->count; v++) {
        double h[3];
        column3(g->cameras[v].c2w, 3, h);
        for (int i = 0; i < 3; i++) h[i] -= g->focus[i];
        const double distance = sqrt(dot3(h, h));
        if (!(distance > 1e-6 * g->spread)) return false;
        widen(&s->distance, distance, v == 0);
        widen(&s->elevation, asin(fmax(-1, fmin(1, dot3(h, s->up) / distance))), v == 0);
        widen(&s->azimuth, atan2(dot3(h, s->side), dot3(h, s->zero)), v == 0);
    }
    return true;
}

/* Half the angle of the way there and back. Inputs that stand behind each other have no angle
 * between them: then what their spread is, seen from the focus. */
static double half_turn(const PathOptions *o, const Gathering *g, const Sphere *s) {
    if (o->turn > 0) return o->turn / 360 * TAU / 2;
    return o->size * fmax(half(s->azimuth), atan(g->spread / middle(s->distance)) / 2);
}

Status path_orbit(const PathOptions *o, const Camera *inputs, int64_t count, int64_t views,
                  Camera *out) {
    Gathering g;
    Sphere s = {.distance = {0, 0}};
    TRY(gather(o, inputs, count, &g));
    level(&g);
    if (!measure(&g, &s))
        return status_set(STATUS_DATA,
                          "the input cameras do not say what to go around: their vertical or their "
                          "place about the focus vanishes");
    const bool around = o->turn >= 360;
    const double reach = half_turn(o, &g, &s);
    for (int64_t v = 0; v < views; v++) {
        const double a = TAU * (double)v / (double)views;
        const double azimuth = around ? a : middle(s.azimuth) + reach * sin(a);
        const double distance = middle(s.distance) + half(s.distance) * sin(a);
        const double sway = o->size * half(s.elevation) * (around ? sin(a) : cos(a));
        const double elevation =
            fmax(-MOST_ELEVATION, fmin(MOST_ELEVATION, middle(s.elevation) + sway));
        double at[3];
        for (int i = 0; i < 3; i++)
            at[i] =
                g.focus[i] +
                distance * (sin(elevation) * s.up[i] +
                            cos(elevation) * (cos(azimuth) * s.zero[i] + sin(azimuth) * s.side[i]));
        TRY(face_focus(&g, at, g.down, out + v));
    }
    return STATUS_OK;
}
