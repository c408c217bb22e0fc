/* Rendering a scene: reconstructed once from its input views, then seen from many cameras. */
#ifndef TTV_TOOLS_NVS_RENDER_H
#define TTV_TOOLS_NVS_RENDER_H

#include "nvs/camera_path.h"
#include "nvs/lact_scene.h"
#include "tools/nvs_model.h"

/* Input views must be within VIEW_MAX. Cameras to render are, in this order of preference, those of
 * `frames`, those of `listed`, or a path through or around the inputs. */
typedef struct NvsRender {
    NvsModel model;
    SceneSet *set; /* NULL: a saved scene without its pictures */
    int64_t scene;
    ViewOptions view;
    ViewScratch scratch;
    int64_t inputs, count; /* input views, views to render */
    int64_t input_frames[VIEW_MAX];
    Camera input_cameras[VIEW_MAX]; /* in the world of the camera file, pixels of a view */
    int64_t source[2];  /* size of the scene's pictures: what normalised intrinsics refer to */
    int64_t *frames;    /* [count] of the scene, or NULL */
    SceneFrame *listed; /* [count] cameras from a file, or NULL */
    PathOptions path;
    LactScene saved;   /* the scene's fast weights and frame, once reconstructed or loaded */
    bool loaded;       /* `saved` comes from a file: no input pictures */
    char name[256];    /* of the scene */
    uint8_t *pixels;   /* [inputs, height, width, 3]; NULL when loaded */
    int64_t share;     /* views of a rank */
    uint8_t *rendered; /* [count, height, width, 3]; of ranks but 0: [share, ...], their own */
    Camera *cameras;   /* [count], in the model's frame */
} NvsRender;

/* Loads input views and cameras, or takes them from the saved scene; reconstructs, renders all, on
 * all ranks, to rank 0. */
Status nvs_render_run(NvsRender *r);
void nvs_render_free(NvsRender *r);

/* ---- nvs_scene_file.c ---- */

/* Writes r->saved with what rendering it again needs: input cameras, the pictures' size, names, and
 * a checksum of the weights, since other ones cannot read it. */
Status nvs_scene_save(const NvsRender *r, const char *path);
/* Fills saved, inputs, input_frames, input_cameras, source, name; needs the model. STATUS_DATA when
 * the file is no scene, of another model, or of other weights. */
Status nvs_scene_load(NvsRender *r, const char *path);

#endif
