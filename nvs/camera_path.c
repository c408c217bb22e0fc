#include "nvs/camera_path_internal.h"

#include <math.h>

/* Unit quaternion (w, x, y, z) of the rotation in a pose. The largest of the four is taken from the
 * diagonal, so that nothing is divided by a small number. */
static void quaternion_of(const double m[16], double q[4]) {
    const double d[3] = {m[0], m[5], m[10]};
    int i = 0;
    for (int k = 1; k < 3; k++)
        if (d[k] > d[i]) i = k;
    if (d[0] + d[1] + d[2] > d[i]) {
        const double w2 = sqrt(1 + d[0] + d[1] + d[2]);
        q[0] = w2 / 2;
        q[1] = (m[9] - m[6]) / (2 * w2);
        q[2] = (m[2] - m[8]) / (2 * w2);
        q[3] = (m[4] - m[1]) / (2 * w2);
        return;
    }
    const int j = (i + 1) % 3, k = (i + 2) % 3;
    const double x2 = sqrt(1 + d[i] - d[j] - d[k]);
    q[0] = (m[4 * k + j] - m[4 * j + k]) / (2 * x2);
    q[1 + i] = x2 / 2;
    q[1 + j] = (m[4 * j + i] + m[4 * i + j]) / (2 * x2);
    q[1 + k] = (m[4 * k + i] + m[4 * i + k]) / (2 * x2);
}

static void rotation_of(const double q[4], double m[16]) {
    const double w = q[0], x = q[1], y = q[2], z = q[3];
    m[0] = 1 - 2 * (y * y + z * z), m[1] = 2 * (x * y - w * z), m[2] = 2 * (x * z + w * y);
    m[4] = 2 * (x * y + w * z), m[5] = 1 - 2 * (x * x + z * z), m[6] = 2 * (y * z - w * x);
    m[8] = 2 * (x * z - w * y), m[9] = 2 * (y * z + w * x), m[10] = 1 - 2 * (x * x + y * y);
}

/* q and -q are the same rotation: the nearer one is the shorter way. */
static void slerp(const double a[4], const double b[4], double u, double out[4]) {
    double dot = 0, norm = 0;
    for (int i = 0; i < 4; i++) dot += a[i] * b[i];
    const double sign = dot < 0 ? -1 : 1;
    const double angle = acos(fmin(fabs(dot), 1.0)), s = sin(angle);
    const double p = s > 1e-6 ? sin((1 - u) * angle) / s : 1 - u;
    const double q = s > 1e-6 ? sin(u * angle) / s : u;
    for (int i = 0; i < 4; i++) {
        out[i] = p * a[i] + sign * q * b[i];
        norm += out[i] * out[i];
    }
    for (int i = 0; i < 4; i++) out[i] /= sqrt(norm);
}

void camera_between(const Camera *a, const Camera *b, double u, Camera *out) {
    double from[4], to[4], q[4];
    Camera c = *a;
    quaternion_of(a->c2w, from);
    quaternion_of(b->c2w, to);
    slerp(from, to, u, q);
    rotation_of(q, c.c2w);
    for (int k = 3; k < 12; k += 4) c.c2w[k] = (1 - u) * a->c2w[k] + u * b->c2w[k];
    c.fx = (1 - u) * a->fx + u * b->fx;
    c.fy = (1 - u) * a->fy + u * b->fy;
    c.cx = (1 - u) * a->cx + u * b->cx;
    c.cy = (1 - u) * a->cy + u * b->cy;
    *out = c;
}

PathOptions path_options_default(void) {
    return (PathOptions){.kind = PATH_BETWEEN, .size = 1, .rounds = 2};
}

/* Evenly in the number of the input: as many views between one pair as between the next. */
static void path_between(const PathOptions *o, const Camera *inputs, int64_t count, int64_t views,
                         Camera *out) {
    const int64_t ways = o->loop ? count : count - 1, steps = o->loop ? views : views - 1;
    for (int64_t v = 0; v < views; v++) {
        const double at = steps > 0 ? (double)v * (double)ways / (double)steps : 0;
        int64_t k = (int64_t)at;
        if (k > ways - 1) k = ways - 1;
        camera_between(&inputs[k], &inputs[(k + 1) % count], at - (double)k, out + v);
    }
}

Status camera_path(const PathOptions *o, const Camera *inputs, int64_t count, int64_t views,
                   Camera *out) {
    if (count < 2 || views < 1)
        return status_set(STATUS_USAGE,
                          "a path needs two input cameras and a view, not %lld and "
                          "%lld",
                          (long long)count, (long long)views);
    if (!(o->size > 0) || !(o->turn >= 0 && o->turn <= 360) || o->rounds < 1)
        return status_set(STATUS_USAGE, "size %g, turn %g degrees, %lld rounds: out of range",
                          o->size, o->turn, (long long)o->rounds);
    if (o->kind == PATH_SPIRAL) return path_spiral(o, inputs, count, views, out);
    if (o->kind == PATH_ORBIT) return path_orbit(o, inputs, count, views, out);
    path_between(o, inputs, count, views, out);
    return STATUS_OK;
}
