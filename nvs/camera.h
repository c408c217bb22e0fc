/* Cameras and poses (lact_nvs.md 2, 7.2).
 *
 * Axes are OpenCV's: x right, y down, z forward. A pose is a 4x4 matrix, row-major; c2w takes
 * camera coordinates to the world's, w2c back. Intrinsics are in pixels of the image that is
 * rendered or shown, pixel centres at +0.5. Everything here is double precision on the host.
 */
#ifndef TTV_NVS_CAMERA_H
#define TTV_NVS_CAMERA_H

#include <stdint.h>

#include "core/status.h"

typedef struct Camera {
    double c2w[16];
    double fx, fy, cx, cy;
} Camera;

/* STATUS_DATA, naming the fault: a value that is not finite, a focal length <= 0, a rotation that
 * is not orthonormal (beyond 1e-3) or mirrors, a last row other than 0 0 0 1. */
Status camera_check(const Camera *c);

/* The inverse of a rigid pose: w2c of c2w and the other way round. out may not be in. */
void pose_invert(const double in[16], double out[16]);
void pose_multiply(const double a[16], const double b[16], double out[16]); /* out = a b */

/* Origin o and unit direction d, in the world, of the ray through pixel (row, column). */
void camera_ray(const Camera *c, double row, double column, double o[3], double d[3]);

/* A similarity: c2w becomes to_frame c2w, then its translation is divided by `scale`. */
typedef struct PoseFrame {
    double to_frame[16];
    double scale; /* > 0 */
} PoseFrame;

PoseFrame pose_frame_identity(void);
/* The mean pose of the cameras becomes the origin, and the largest |component| of a position
 * 1/margin (1 in LaCT's scenes, 1.35 for RealEstate10K). Positions that all coincide keep their
 * scale. STATUS_DATA when the viewing or the vertical directions cancel. */
Status pose_frame_mean(const Camera *cameras, int64_t count, double margin, PoseFrame *out);
void pose_frame_apply(const PoseFrame *f, Camera *cameras, int64_t count);

/* Which views fix the frame. Benchmarks take all of them, targets included; an application that
 * renders views it did not know when it reconstructed has the inputs only. */
typedef enum PoseRule { POSES_ALL, POSES_INPUTS, POSES_NONE } PoseRule;

/* Normalises cameras in place, the first `inputs` of them being input views; *frame (may be NULL)
 * is what was applied, for cameras that come later. */
Status poses_normalise(Camera *cameras, int64_t inputs, int64_t count, PoseRule rule, double margin,
                       PoseFrame *frame);

#endif
