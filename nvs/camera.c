#include "nvs/camera.h"

#include <math.h>
#include <string.h>

#include "nvs/vector3.h"

#define ORTHONORMAL                                                                                \
    1e-3 /* files hold about seven digits, and matrices that were averaged fewer                   \
          */

/* ---- checks ------------------------------------------------------------------------------- */

static Status check_rotation(const double *pose) {
    double r[3][3], z[3], worst = 0;
    for (int j = 0; j < 3; j++) column3(pose, j, r[j]);
    for (int i = 0; i < 3; i++)
        for (int j = 0; j < 3; j++) worst = fmax(worst, fabs(dot3(r[i], r[j]) - (i == j)));
    if (worst > ORTHONORMAL)
        return status_set(STATUS_DATA,
                          "rotation is not orthonormal: R'R differs from 1 by %.3g, at most %g",
                          worst, ORTHONORMAL);
    cross3(r[0], r[1], z);
    if (dot3(z, r[2]) < 0)
        return status_set(STATUS_DATA, "rotation mirrors (determinant -1, expected 1)");
    return STATUS_OK;
}

Status camera_check(const Camera *c) {
    for (int i = 0; i < 16; i++) {
        if (!isfinite(c->c2w[i]))
            return status_set(STATUS_DATA, "pose entry [%d][%d] is not finite", i / 4, i % 4);
    }
    if (!isfinite(c->fx) || !isfinite(c->fy) || !isfinite(c->cx) || !isfinite(c->cy))
        return status_set(STATUS_DATA, "an intrinsic is not finite");
    if (c->fx <= 0 || c->fy <= 0)
        return status_set(STATUS_DATA, "focal lengths are %g and %g pixels, expected above 0",
                          c->fx, c->fy);
    const double *last = c->c2w + 12;
    if (last[0] != 0 || last[1] != 0 || last[2] != 0 || last[3] != 1)
        return status_set(STATUS_DATA, "last row of the pose is %g %g %g %g, expected 0 0 0 1",
                          last[0], last[1], last[2], last[3]);
    return check_rotation(c->c2w);
}

/* ---- poses -------------------------------------------------------------------------------- */

void pose_invert(const double in[16], double out[16]) {
    for (int i = 0; i < 3; i++) {
        out[4 * i + 3] = 0;
        for (int j = 0; j < 3; j++) {
            out[4 * i + j] = in[4 * j + i];
            out[4 * i + 3] -= in[4 * j + i] * in[4 * j + 3];
        }
    }
    for (int j = 0; j < 4; j++) out[12 + j] = j == 3;
}

void pose_multiply(const double a[16], const double b[16], double out[16]) {
    double product[16];
    for (int i = 0; i < 4; i++) {
        for (int j = 0; j < 4; j++) {
            double sum = 0;
            for (int k = 0; k < 4; k++) sum += a[4 * i + k] * b[4 * k + j];
            product[4 * i + j] = sum;
        }
    }
    memcpy(out, product, sizeof product);
}

void camera_ray(const Camera *c, double row, double column, double o[3], double d[3]) {
    const double r[3] = {(column + 0.5 - c->cx) / c->fx, (row + 0.5 - c->cy) / c->fy, 1};
    const double length = sqrt(dot3(r, r));
    for (int i = 0; i < 3; i++) {
        d[i] = dot3(c->c2w + 4 * i, r) / length;
        o[i] = c->c2w[4 * i + 3];
    }
}

/* ---- the common frame --------------------------------------------------------------------- */

PoseFrame pose_frame_identity(void) {
    PoseFrame f = {{0}, 1};
    for (int i = 0; i < 4; i++) f.to_frame[5 * i] = 1;
    return f;
}

static void mean_column(const Camera *cameras, int64_t count, int j, double out[3]) {
    for (int i = 0; i < 3; i++) {
        double sum = 0;
        for (int64_t v = 0; v < count; v++) sum += cameras[v].c2w[4 * i + j];
        out[i] = sum / (double)count;
    }
}

/* [x y z | c] of 7.2. */
static Status mean_pose(const Camera *cameras, int64_t count, double pose[16]) {
    double axes[4][3], down[3];
    mean_column(cameras, count, 1, down);
    mean_column(cameras, count, 2, axes[2]);
    mean_column(cameras, count, 3, axes[3]);
    if (!unit3(axes[2]))
        return status_set(STATUS_DATA, "the viewing directions of the %lld cameras cancel out",
                          (long long)count);
    cross3(down, axes[2], axes[0]);
    if (!unit3(axes[0]))
        return status_set(STATUS_DATA,
                          "the mean vertical of the %lld cameras vanishes or lies along the mean "
                          "viewing direction",
                          (long long)count);
    cross3(axes[2], axes[0], axes[1]);
    for (int i = 0; i < 3; i++)
        for (int j = 0; j < 4; j++) pose[4 * i + j] = axes[j][i];
    for (int j = 0; j < 4; j++) pose[12 + j] = j == 3;
    return STATUS_OK;
}

Status pose_frame_mean(const Camera *cameras, int64_t count, double margin, PoseFrame *out) {
    if (count < 1) return status_set(STATUS_DATA, "no camera to take the mean pose of");
    if (!(margin > 0))
        return status_set(STATUS_USAGE, "pose margin is %g, expected above 0", margin);
    double pose[16], moved[16], largest = 0;
    TRY(mean_pose(cameras, count, pose));
    PoseFrame f = {{0}, 1};
    pose_invert(pose, f.to_frame);
    for (int64_t v = 0; v < count; v++) {
        pose_multiply(f.to_frame, cameras[v].c2w, moved);
        for (int i = 0; i < 3; i++) largest = fmax(largest, fabs(moved[4 * i + 3]));
    }
    /* One position for all, up to the rounding of the mean: there is no scale to take. */
    double reach = 0;
    for (int i = 0; i < 3; i++) reach = fmax(reach, fabs(pose[4 * i + 3]));
    if (largest > 1e-12 * reach) f.scale = margin * largest;
    *out = f;
    return STATUS_OK;
}

void pose_frame_apply(const PoseFrame *f, Camera *cameras, int64_t count) {
    for (int64_t v = 0; v < count; v++) {
        double *pose = cameras[v].c2w;
        pose_multiply(f->to_frame, pose, pose);
        for (int i = 0; i < 3; i++) pose[4 * i + 3] /= f->scale;
    }
}

Status poses_normalise(Camera *cameras, int64_t inputs, int64_t count, PoseRule rule, double margin,
                       PoseFrame *frame) {
    PoseFrame f = pose_frame_identity();
    if (rule != POSES_NONE)
        TRY(pose_frame_mean(cameras, rule == POSES_ALL ? count : inputs, margin, &f));
    pose_frame_apply(&f, cameras, count);
    if (frame) *frame = f;
    return STATUS_OK;
}
