/* Reconstructing a scene and rendering it, one call each, as a program that shows views does it.
 *
 * Cameras and 8-bit colours go to the device, which makes the tokens. Where the device can record,
 * a pass is a graph from its second call on; the first one runs call by call, because memory and
 * plans of products come to be in it. The results are those of lact_reconstruct and lact_render on
 * op_view_tokens.
 *
 * Threads: one at a time, like its Device. While a viewer lives, no other pass may run on the tape
 * or in the step arena of its device whose memory is reserved anew (nn/plan.h); ordinary passes
 * may.
 */
#ifndef TTV_NVS_LACT_VIEWER_H
#define TTV_NVS_LACT_VIEWER_H

#include "nvs/lact_nvs.h"

typedef struct LactViewer LactViewer;

/* For scenes of `inputs` views. The model, the tape (its activations and its device are the
 * passes') and the state, of one scene, are the caller's and must outlive the viewer. Memory comes
 * from the state arena. STATUS_DATA when the state is of another model or of several scenes,
 * STATUS_USAGE when inputs < 1. */
Status lact_viewer_new(LactNvs *m, Tape *t, LactState *state, int64_t inputs, LactViewer **out);
void lact_viewer_free(LactViewer *v);

/* Writes the state: `inputs` cameras in the model's frame (nvs/camera.h), 8-bit pixels
 * [inputs, height, width, 3] on the host. */
Status lact_viewer_reconstruct(LactViewer *v, const Camera *cameras, const uint8_t *pixels);
/* Patches [l, 3 p^2] in 0..1 of the view that a camera has, on the host (image_from_patches). */
Status lact_viewer_render(LactViewer *v, const Camera *camera, float *patches);

/* Whether the pass of the last call was a graph. */
bool lact_viewer_recorded(const LactViewer *v);

#endif
