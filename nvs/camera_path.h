/* Cameras between and around cameras. */
#ifndef TTV_NVS_CAMERA_PATH_H
#define TTV_NVS_CAMERA_PATH_H

#include <stdbool.h>

#include "nvs/camera.h"

/* u in 0..1 of the way from a to b: rotations turn at a constant rate about one axis, the shorter
 * way (slerp); positions and intrinsics go straight. u = 0 and u = 1 give a and b to rounding. */
void camera_between(const Camera *a, const Camera *b, double u, Camera *out);

typedef enum PathKind {
    PATH_BETWEEN, /* through the input cameras, camera_between() from each to the next */
    PATH_SPIRAL,  /* rounds about the mean camera, always facing the focus */
    PATH_ORBIT,   /* about the focus: there and back, or a full turn (a turntable) */
} PathKind;

typedef struct PathOptions {
    PathKind kind;
    double size;    /* factor on the extents that are taken from the input cameras */
    double turn;    /* orbit: degrees from end to end; 360: around; 0: as the inputs stand apart */
    int64_t rounds; /* of a spiral, while it goes forth and back once */
    bool loop;      /* between: on to the first camera again */
} PathOptions;
PathOptions path_options_default(void); /* between, size 1, turn 0, two rounds */

/* `views` cameras with the mean intrinsics of the `count` >= 2 inputs (between: those of the way).
 *
 * The focus is the point nearest to all viewing axes; where they run parallel or apart it lies 8
 * spreads ahead (spread: the largest distance of an input from their mean position); that of a
 * spiral at least 2 spreads times `size`. A spiral is p = (rx cos a, ry sin a, rz sin(a / rounds))
 * in the frame of the mean camera, r being the inputs' largest deviations, rx and ry at least a
 * quarter of the spread. An orbit keeps the inputs' mean distance and elevation about the focus and
 * sways by their deviations. Both are closed: the view behind the last would be the first.
 *
 * STATUS_DATA when the inputs stand at one place (spiral and orbit then have no size), or their
 * directions cancel; STATUS_USAGE for options out of range. */
Status camera_path(const PathOptions *o, const Camera *inputs, int64_t count, int64_t views,
                   Camera *out);

#endif
