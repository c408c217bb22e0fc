/* A reconstructed scene as one value and one file: its fast weights and what rendering a camera
 * needs besides, namely the frame in which the input views stood and the size of a view.
 */
#ifndef TTV_NVS_LACT_SCENE_H
#define TTV_NVS_LACT_SCENE_H

#include "nvs/lact_nvs.h"

typedef struct LactScene {
    LactState *fast;       /* owned; of one scene or more, which share the frame */
    PoseFrame frame;       /* apply it to every camera before its tokens are made */
    int64_t height, width; /* of a view, pixels */
    int64_t patch;
    char variant[CONFIG_TEXT]; /* of the model that wrote it (ttt/lact.h) */
} LactScene;

/* The caller's metadata goes with it (checkpoint, scene, frames). */
Status lact_scene_save(const LactScene *s, const char *path, const SafeMeta *meta,
                       int64_t meta_count);
/* STATUS_DATA names the metadata key or tensor that is missing or wrong. lact_scene_free()
 * afterwards.
 */
Status lact_scene_load(Device *d, const char *path, LactScene *out);
void lact_scene_free(LactScene *s);

/* Whether `m` can render the scene: sizes of views, patch, variant, fast weights. */
Status lact_scene_check(const LactScene *s, const LactNvs *m);

#endif
