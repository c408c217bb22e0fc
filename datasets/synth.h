/* Procedural scenes: furnished rooms and still lifes, ray-cast with exact cameras on smooth paths.
 *
 * Training material without anybody's rights on it. A scene depends on (seed, number) only; every
 * surface carries a texture with structure at several scales, so that views can be matched.
 */
#ifndef TTV_DATASETS_SYNTH_H
#define TTV_DATASETS_SYNTH_H

#include "datasets/image.h"
#include "datasets/scene.h"

typedef struct SynthScene SynthScene;

Status synth_scene_new(uint64_t seed, int64_t number, SynthScene **out);
void synth_scene_free(SynthScene *s);

/* Sixteen hex digits, the same for the same seed and number. */
void synth_scene_name(uint64_t seed, int64_t number, char name[17]);

/* Camera `frame` of `frames` along the scene's path for pictures of the given aspect (width /
 * height); intrinsics normalised, time in microseconds of a 29.97 fps video. */
SceneFrame synth_camera(const SynthScene *s, int64_t frame, int64_t frames, double aspect);

/* Renders into pixels[height, width, 3], sRGB; samples x samples rays a pixel. */
void synth_render(const SynthScene *s, const SceneFrame *camera, int64_t width, int64_t height,
                  int samples, uint8_t *pixels);

/* Distance along the camera's z axis of the surface seen at a point (pixels) of a width x height
 * view. */
double synth_depth(const SynthScene *s, const SceneFrame *camera, int64_t width, int64_t height,
                   double x, double y);

#endif
