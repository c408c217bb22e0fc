/* Views: pictures of a scene cut to the model's size, with their cameras.
 *
 * A picture is resized to cover width x height (Lanczos) and cropped; intrinsics follow both, so a
 * pixel's ray stays what it was. (lact_nvs.md 7.1 scales the intrinsics by the factor before the
 * resized size is rounded; here it is the factor that the pixels really got.)
 */
#ifndef TTV_DATASETS_VIEW_H
#define TTV_DATASETS_VIEW_H

#include "datasets/image.h"
#include "datasets/resize.h"
#include "datasets/scene.h"

enum { VIEW_MAX = 64 }; /* views of one sample */

typedef struct ViewCamera {
    double c2w[16], w2c[16]; /* 4x4, row by row */
    double intrinsics[4];    /* fx fy cx cy in pixels of the view; pixel centres at +0.5 */
} ViewCamera;

typedef struct ViewOptions {
    int64_t width, height;
    double crop_x, crop_y; /* place of the crop: 0 left/top, 0.5 centre, 1 right/bottom */
    ImageOptions image;
} ViewOptions;
/* Centre crop. */
ViewOptions view_options_default(int64_t width, int64_t height);

/* How a width x height picture becomes a view. */
typedef struct ViewGeometry {
    int64_t full_width, full_height; /* after the resize */
    int64_t left, top;               /* of the crop in it */
} ViewGeometry;
ViewGeometry view_geometry(const ViewOptions *o, int64_t width, int64_t height);

/* Camera of a frame whose picture has width x height pixels. */
ViewCamera view_camera(const SceneFrame *f, const ViewOptions *o, int64_t width, int64_t height);
/* Both matrices out of a 3x4 world-to-camera matrix. */
void view_camera_pose(ViewCamera *c, const double w2c[12]);

/* Pictures [height, width, 3] and camera as seen in a mirror: the scene becomes another possible
 * one.
 */
void view_mirror(uint8_t *pixels, ViewCamera *camera, int64_t width, int64_t height);

/* Other light, the same for every picture of a sample: value = gain (value / 255)^gamma 255, cut
 * off at 255. */
void view_tint(uint8_t *pixels, int64_t count, const float tint[4]);

/* Work memory of view_load; zero-initialise, free at the end. One per thread. */
typedef struct ViewScratch {
    ImageScratch image;
    ResizeScratch resize;
} ViewScratch;
void view_scratch_free(ViewScratch *s);

/* One frame into pixels[height, width, 3]. *source (may be NULL): size of the stored picture. */
Status view_load(const SceneSet *set, int64_t scene, int64_t frame, const ViewOptions *o,
                 ViewScratch *scratch, uint8_t *pixels, ViewCamera *camera, int64_t source[2]);

/* What to load: a scene and some of its frames, inputs before targets. */
typedef struct ViewSample {
    int64_t scene;
    int inputs, targets;
    int64_t frames[VIEW_MAX];
    /* How training varies it, all its views alike; only the view loader does so. */
    bool mirror;   /* view_mirror() */
    int8_t crop;   /* in -2..2: crop_x = crop_y = 0.5 + crop / 4; 0: as the options say */
    float tint[4]; /* view_tint(): gamma, gains of red, green, blue; gamma 0: none */
} ViewSample;
enum { VIEW_CROPS = 5 };

/* Whether view v of the sample is as large as the first: pictures of differing sizes are
 * STATUS_DATA, since their cameras cannot come from one video. */
Status view_same_size(const SceneSet *set, const ViewSample *sample, int v, const int64_t first[2],
                      const int64_t size[2]);

/* All frames of a sample, pixels[inputs + targets, height, width, 3]. */
Status view_load_sample(const SceneSet *set, const ViewSample *sample, const ViewOptions *o,
                        ViewScratch *scratch, uint8_t *pixels, ViewCamera *cameras);

#endif
