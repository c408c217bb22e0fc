/* Rendering a scene: reconstructed once from its input views, then seen from many cameras. */
#ifndef TTV_TOOLS_NVS_RENDER_H
#define TTV_TOOLS_NVS_RENDER_H

#include "tools/nvs_model.h"

typedef struct NvsRender {
    NvsModel model;
    SceneSet *set;
    int64_t scene;
    ViewOptions view;
    ViewScratch scratch;
    int64_t inputs, count; /* input views, views to render */
    int64_t input_frames[VIEW_MAX];
    int64_t *frames;   /* [count] of the scene, whose cameras are rendered; NULL: a path */
    uint8_t *pixels;   /* [inputs, height, width, 3] */
    uint8_t *rendered; /* [count, height, width, 3] */
    Camera *cameras;   /* [inputs + count] */
} NvsRender;

/* Loads input views and cameras, reconstructs, renders all: needs model, set, scene, inputs,
 * input_frames, count and frames. */
Status nvs_render_run(NvsRender *r);
void nvs_render_free(NvsRender *r);

#endif
