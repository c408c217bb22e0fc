/* Do the cameras of a scene fit its pictures? Corners of one frame are searched along their
 * epipolar lines in another, once with the matrices as world-to-camera, once as camera-to-world:
 * what fits better tells which they are. */
#ifndef TTV_TOOLS_SCENE_POSE_H
#define TTV_TOOLS_SCENE_POSE_H

#include "datasets/view.h"

enum { POSE_MAX_CORNERS = 120 };

/* A frame at a small size, in colour and grey. */
typedef struct PoseFrame {
    Image image; /* owned */
    float *grey;
    SceneFrame frame;
    ViewCamera camera;
} PoseFrame;
/* longest: of the sides, pixels. */
Status pose_frame_load(const SceneSet *set, int64_t scene, int64_t frame, int64_t longest,
                       PoseFrame *out);
void pose_frame_free(PoseFrame *f);

typedef struct PoseCorner {
    int64_t x, y;
} PoseCorner;
/* Corners spread over the picture, the strongest of each cell; their number. */
int pose_corners(const PoseFrame *f, int columns, int rows, PoseCorner *out);

/* The epipolar line of a pixel of `a` in `b`, as the pixel's places for inverse depths from 0 on.
 */
typedef struct PoseLine {
    double at_infinity[3], step[3]; /* homogeneous pixels: at_infinity + k * step */
} PoseLine;
/* inverted: both matrices are taken as camera-to-world. The step is one that moves the place by
 * about a pixel. */
PoseLine pose_line(const PoseFrame *a, const PoseFrame *b, double x, double y, bool inverted);
/* Place k of the line; false when it is behind the camera. */
bool pose_line_at(const PoseLine *l, double k, double *x, double *y);
/* Best correlation (-1..1) of the corner's surroundings along the first `reach` pixels of the line,
 * and where. */
double pose_match(const PoseFrame *a, PoseCorner corner, const PoseFrame *b, const PoseLine *l,
                  int reach, double best[2]);

typedef enum PoseVerdict {
    POSE_UNKNOWN, /* too few corners, no motion, or no clear answer */
    POSE_FITS,
    POSE_INVERTED, /* camera-to-world where world-to-camera is expected */
} PoseVerdict;
typedef struct PoseCheck {
    PoseVerdict verdict;
    double fit, inverted_fit; /* median correlation under each reading */
    int corners;
} PoseCheck;
/* Looks at a few pairs of frames of the scene. */
Status pose_check(const SceneSet *set, int64_t scene, PoseCheck *out);

/* Two frames side by side: marked corners left, their epipolar lines and best places right. */
Status pose_picture(const SceneSet *set, int64_t scene, const int64_t frames[2], const char *path);
/* A pair of frames with pictures, some motion apart; false when the scene has none. */
bool pose_choose_pair(const Scene *s, int64_t frames[2]);

#endif
