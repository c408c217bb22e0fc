/* A LaCT-NVS model ready to run, and how views become its tokens.
 *
 * Weights files that `ttv nvs train` writes hold ttv.model = lact_nvs and ttv.config, the INI text
 * of [nvs_model] with all values resolved.
 */
#ifndef TTV_TOOLS_NVS_MODEL_H
#define TTV_TOOLS_NVS_MODEL_H

#include "datasets/view.h"
#include "tools/model_io.h"
#include "nvs/lact_viewer.h"
#include "tools/nvs_sections.h"

typedef struct NvsModel {
    Device *device;
    DType act; /* of activations: F32 or BF16 (--precision) */
    LactNvsConfig config;
    Params params;
    LactNvs *nvs;
    Tape *tape; /* of passes without recording */
} NvsModel;

/* Random weights from `seed`, sizes of nvs_settings.model as `user` set them; with gradients. On
 * failure *m is empty. */
Status nvs_model_create(NvsModel *m, const Config *user, uint64_t seed);
/* Loads a weights file or run folder for inference. Sizes come from ttv.config, in a foreign file
 * (official ones, "module." and "_orig_mod." before their names or not) from the shapes; keys of
 * [nvs_model] that the user set win, except that another variant is STATUS_DATA and another size of
 * views is told. */
Status nvs_model_open(NvsModel *m, const char *checkpoint, WeightsChoice choice,
                      const Config *user);
/* Whether a checkpoint's metadata call it one of these; false also when it cannot be read, which
 * opening tells. Only STATUS_MEMORY is an error. */
Status nvs_checkpoint(const char *checkpoint, WeightsChoice choice, bool *out);
/* The weights of such a file into a model that was created; another variant or size of views is
 * told. */
Status nvs_model_load(NvsModel *m, const char *checkpoint);
void nvs_model_close(NvsModel *m);

/* ttv.config of a weights file (mem_free). */
Status nvs_model_config_text(const NvsModel *m, char **text);

enum { NVS_CAMERA = 16 }; /* numbers of a camera, as op_view_tokens takes them */

/* Cameras of one sample, the first `inputs` of its views being input views: poses normalised by the
 * model's rule; numbers [views, NVS_CAMERA]. */
Status nvs_sample_cameras(const NvsModel *m, const ViewCamera *cameras, int64_t inputs,
                          int64_t views, float *numbers);
/* The colours of `views` views: patches [views * l, 3 p^2] in 0..1. */
Status nvs_sample_patches(const NvsModel *m, const uint8_t *pixels, int64_t views, float *patches);

/* Renders the target views of one sample: 8-bit pixels [views - inputs, height, width, 3], rounded.
 */
Status nvs_render_sample(NvsModel *m, const uint8_t *pixels, const ViewCamera *cameras,
                         int64_t inputs, int64_t views, uint8_t *rendered);

Camera nvs_camera(const ViewCamera *v);
/* One view of a scene that a viewer has reconstructed: 8-bit pixels [height, width, 3], rounded;
 * the camera in the model's frame. */
Status nvs_render_camera(const NvsModel *m, LactViewer *viewer, const Camera *camera,
                         uint8_t *rendered);

#endif
