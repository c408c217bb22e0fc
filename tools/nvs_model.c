#include "tools/nvs_model.h"

#include <math.h>
#include <string.h>

#include "core/memory.h"
#include "nn/ops.h"
#include "tools/cli.h"
#include "tools/model_meta.h"
#include "tools/sections.h"

/* Parameters without values. */
static Status build(NvsModel *m, bool training) {
    int act;
    TRY(cli_device(&m->device, &act));
    m->act = (DType)act;
    params_init(&m->params, m->device);
    TRY(lact_nvs_new(&m->config, &m->params, &m->nvs));
    TRY(params_build(&m->params, m->act, training));
    TRY(tape_new(m->device, &m->tape));
    tape_set_act(m->tape, m->act);
    return STATUS_OK;
}

static Status create(NvsModel *m, const Config *user, uint64_t seed) {
    m->config = nvs_settings.model;
    TRY(lact_nvs_config_resolve(&m->config, user));
    TRY(build(m, true));
    return params_initialise(&m->params, seed);
}

Status nvs_model_create(NvsModel *m, const Config *user, uint64_t seed) {
    *m = (NvsModel){0};
    Status s = create(m, user, seed);
    if (s != STATUS_OK) nvs_model_close(m);
    return s;
}

/* ---- from a file ---- */

static Status apply_user(Config *own, const Config *user) {
    char value[CONFIG_TEXT], assignment[CONFIG_TEXT + 64];
    for (const Option *o = lact_nvs_options; o->key; o++) {
        if (!config_is_set(user, "nvs_model", o->key)) continue;
        option_plain_text(o, &nvs_settings.model, value, sizeof value);
        snprintf(assignment, sizeof assignment, "nvs_model.%s=%s", o->key, value);
        TRY(config_set(own, assignment, "options"));
    }
    return STATUS_OK;
}

/* The user's keys beside those that the weights were trained with. */
static Status compare(const LactNvsConfig *now, const LactNvsConfig *then, const char *path) {
    if (strcmp(now->variant, then->variant) != 0)
        return status_set(STATUS_DATA, "%s was trained with variant %s, it cannot run as %s", path,
                          then->variant, now->variant);
    if (now->height != then->height || now->view_width != then->view_width)
        note("%s was trained on views of %lldx%lld pixels, it runs on %lldx%lld: expect worse ones",
             path, (long long)then->view_width, (long long)then->height, (long long)now->view_width,
             (long long)now->height);
    return STATUS_OK;
}

static Status describe_with(NvsModel *m, Config *own, const SafeFile *file, const char *path,
                            const Config *user) {
    const char *kind = safetensors_meta(file, "ttv.model");
    const char *text = safetensors_meta(file, "ttv.config");
    if (kind ? strcmp(kind, "lact_nvs") != 0 : text != NULL)
        return status_set(STATUS_DATA,
                          "%s holds no LaCT-NVS model (ttv.model is %s); classifiers are "
                          "for 'ttv eval' and 'ttv classify'",
                          path, kind ? kind : "not there");
    if (text) {
        TRY(config_read_text(own, text, strlen(text), path, true));
    } else {
        TRY(status_context(lact_nvs_config_from_weights(&m->config, file), "%s", path));
    }
    const LactNvsConfig then = m->config;
    TRY(apply_user(own, user));
    if (text) TRY(compare(&m->config, &then, path));
    return lact_nvs_config_check(&m->config);
}

static Status describe(NvsModel *m, const SafeFile *file, const char *path, const Config *user) {
    Section section = {"nvs_model", lact_nvs_options, &m->config};
    Config *own;
    TRY(config_new(&section, 1, &own));
    Status s = describe_with(m, own, file, path, user);
    config_free(own);
    return s;
}

static Status open_file(const char *path, SafeFile **file) {
    TRY(safetensors_open(path, file));
    while (safetensors_strip(*file, "module.") || safetensors_strip(*file, "_orig_mod.")) continue;
    return STATUS_OK;
}

static Status open_weights(NvsModel *m, const char *path, const Config *user) {
    SafeFile *file;
    TRY(open_file(path, &file));
    Status s = describe(m, file, path, user);
    if (s == STATUS_OK) s = build(m, false);
    if (s == STATUS_OK) s = params_load(&m->params, file, "");
    safetensors_close(file);
    return s;
}

Status nvs_model_open(NvsModel *m, const char *checkpoint, WeightsChoice choice,
                      const Config *user) {
    char *path;
    *m = (NvsModel){0};
    TRY(weights_resolve(checkpoint, choice, &path));
    Status s = open_weights(m, path, user);
    mem_free(path);
    if (s != STATUS_OK) nvs_model_close(m);
    return s;
}

Status nvs_checkpoint(const char *checkpoint, WeightsChoice choice, bool *out) {
    char *path = NULL;
    SafeFile *file = NULL;
    *out = false;
    Status s = weights_resolve(checkpoint, choice, &path);
    if (s == STATUS_OK) s = safetensors_open(path, &file);
    if (s == STATUS_OK) {
        const char *kind = safetensors_meta(file, "ttv.model");
        *out = kind && strcmp(kind, "lact_nvs") == 0;
        safetensors_close(file);
    }
    mem_free(path);
    return s == STATUS_MEMORY ? s : STATUS_OK;
}

/* Weights may start another variant, or other views: it is for the user to know. */
static Status tell_origin(const NvsModel *m, const SafeFile *file, const char *path) {
    LactNvsConfig then;
    Config *config;
    if (!safetensors_meta(file, "ttv.config")) return STATUS_OK;
    TRY(model_meta_config(file, (Section){"nvs_model", lact_nvs_options, &then}, &config));
    config_free(config);
    if (strcmp(m->config.variant, then.variant) != 0)
        note("%s was trained with variant %s, it goes on as %s", path, then.variant,
             m->config.variant);
    if (m->config.height != then.height || m->config.view_width != then.view_width)
        note("%s was trained on views of %lldx%lld pixels", path, (long long)then.view_width,
             (long long)then.height);
    return STATUS_OK;
}

Status nvs_model_load(NvsModel *m, const char *checkpoint) {
    char *path;
    SafeFile *file = NULL;
    TRY(weights_resolve(checkpoint, WEIGHTS_AUTO, &path));
    Status s = open_file(path, &file);
    if (s == STATUS_OK) s = params_load(&m->params, file, "");
    if (s == STATUS_OK) s = tell_origin(m, file, path);
    if (file) safetensors_close(file);
    mem_free(path);
    return s;
}

void nvs_model_close(NvsModel *m) {
    if (m->tape) tape_free(m->tape);
    if (m->nvs) lact_nvs_free(m->nvs);
    if (m->params.device) params_free(&m->params);
    if (m->device) device_close(m->device);
    *m = (NvsModel){0};
}

/* A Config of a copy: creating one sets the defaults first. */
Status nvs_model_config_text(const NvsModel *m, char **text) {
    LactNvsConfig copy;
    Section section = {"nvs_model", lact_nvs_options, &copy};
    Config *config;
    TRY(config_new(&section, 1, &config));
    copy = m->config;
    Status s = config_write(config, false, text);
    config_free(config);
    return s;
}

/* ---- views as tokens ---- */

Camera nvs_camera(const ViewCamera *v) {
    Camera c = {.fx = v->intrinsics[0],
                .fy = v->intrinsics[1],
                .cx = v->intrinsics[2],
                .cy = v->intrinsics[3]};
    for (int i = 0; i < 16; i++) c.c2w[i] = v->c2w[i];
    return c;
}

/* view_tokens() and image_to_patches() only read it. */
static Tensor picture_at(const NvsModel *m, const uint8_t *pixels, int64_t view) {
    const int64_t h = m->config.height, w = m->config.view_width;
    union {
        const uint8_t *read;
        void *data;
    } at = {pixels + view * h * w * 3};
    return tensor_3d(at.data, DTYPE_U8, h, w, 3);
}

Status nvs_sample_cameras(const NvsModel *m, const ViewCamera *cameras, int64_t inputs,
                          int64_t views, float *numbers) {
    const LactNvsConfig *c = &m->config;
    Camera poses[VIEW_MAX];
    for (int64_t v = 0; v < views; v++) poses[v] = nvs_camera(&cameras[v]);
    TRY(poses_normalise(poses, inputs, views, (PoseRule)c->poses, c->pose_margin, NULL));
    for (int64_t v = 0; v < views; v++) {
        float *to = numbers + v * NVS_CAMERA;
        for (int i = 0; i < 12; i++) to[i] = (float)poses[v].c2w[i];
        to[12] = (float)poses[v].fx;
        to[13] = (float)poses[v].fy;
        to[14] = (float)poses[v].cx;
        to[15] = (float)poses[v].cy;
    }
    return STATUS_OK;
}

Status nvs_sample_patches(const NvsModel *m, const uint8_t *pixels, int64_t views, float *patches) {
    const int64_t size = m->config.height * m->config.view_width * 3;
    for (int64_t v = 0; v < views; v++)
        TRY(image_to_patches(picture_at(m, pixels, v), m->config.patch, patches + v * size));
    return STATUS_OK;
}

/* ---- rendering ---- */

static Status forward(NvsModel *m, const uint8_t *pixels, const float *numbers, int64_t inputs,
                      int64_t views, float *patches) {
    const LactNvsConfig *c = &m->config;
    Tensor cameras, rgb;
    tape_reset(m->tape, false);
    TRY(tape_take(m->tape, DTYPE_F32, 3, (int64_t[]){1, views, NVS_CAMERA}, &cameras));
    TRY(tape_take(m->tape, DTYPE_U8, 4, (int64_t[]){1, inputs, c->height * c->view_width, 3},
                  &rgb));
    TRY(device_push(m->device, cameras, numbers));
    TRY(device_push(m->device, rgb, pixels));
    Var *x = op_view_tokens(m->tape, cameras, rgb, c->height, c->view_width, c->patch);
    Var *y = lact_nvs_forward(m->nvs, m->tape, x, inputs, NULL);
    TRY(tape_status(m->tape));
    return device_pull(m->device, patches, y->value);
}

static Status to_pixels(const NvsModel *m, const float *patches, float *rgb, uint8_t *out) {
    const LactNvsConfig *c = &m->config;
    TRY(image_from_patches(patches, c->height, c->view_width, c->patch, rgb));
    for (int64_t i = 0; i < c->height * c->view_width * 3; i++)
        if (!isfinite(rgb[i]))
            return status_set(STATUS_NUMERIC,
                              "colours of a rendered view are not finite: the weights are damaged, "
                              "or --precision is too narrow for them");
    for (int64_t i = 0; i < c->height * c->view_width * 3; i++) {
        const float x = rgb[i] > 0 ? (rgb[i] < 1 ? rgb[i] : 1.0f) : 0.0f;
        out[i] = (uint8_t)lrintf(255.0f * x);
    }
    return STATUS_OK;
}

Status nvs_render_sample(NvsModel *m, const uint8_t *pixels, const ViewCamera *cameras,
                         int64_t inputs, int64_t views, uint8_t *rendered) {
    const int64_t picture = m->config.height * m->config.view_width * 3;
    float numbers[VIEW_MAX * NVS_CAMERA];
    void *block;
    TRY(mem_alloc(&block, (views - inputs + 1) * picture, sizeof(float), "views"));
    float *patches = block, *rgb = patches + (views - inputs) * picture;
    Status s = nvs_sample_cameras(m, cameras, inputs, views, numbers);
    if (s == STATUS_OK) s = forward(m, pixels, numbers, inputs, views, patches);
    for (int64_t v = 0; s == STATUS_OK && v < views - inputs; v++)
        s = to_pixels(m, patches + v * picture, rgb, rendered + v * picture);
    mem_free(block);
    return s;
}

Status nvs_render_camera(const NvsModel *m, LactViewer *viewer, const Camera *camera,
                         uint8_t *rendered) {
    const int64_t picture = m->config.height * m->config.view_width * 3;
    void *block;
    TRY(mem_alloc(&block, 2 * picture, sizeof(float), "a view"));
    float *patches = block, *rgb = patches + picture;
    Status s = lact_viewer_render(viewer, camera, patches);
    if (s == STATUS_OK) s = to_pixels(m, patches, rgb, rendered);
    mem_free(block);
    return s;
}
