/* Cameras between cameras. */
#ifndef TTV_NVS_CAMERA_PATH_H
#define TTV_NVS_CAMERA_PATH_H

#include "nvs/camera.h"

/* u in 0..1 of the way from a to b: rotations turn at a constant rate about one axis, the shorter
 * way (slerp); positions and intrinsics go straight. u = 0 and u = 1 give a and b to rounding. */
void camera_between(const Camera *a, const Camera *b, double u, Camera *out);

#endif
