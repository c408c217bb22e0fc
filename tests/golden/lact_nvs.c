/* models/lact_nvs_*: a whole model: tokens of posed views, normalised poses, rendered views, loss,
 * PSNR, every gradient and the fast weights; jointly, and by reconstruct and render. */
#include <math.h>
#include <stdio.h>

#include "core/memory.h"
#include "kind_lact.h"
#include "nvs/lact_nvs.h"

typedef struct NvsRun {
    Golden *g;
    Tape *t;
    Params params;
    LactNvs *model;
    LactState *state;
    int64_t batch, inputs, targets;
    Camera *cameras; /* [batch][inputs + targets] */
    float *tokens;   /* [batch][inputs + targets][l, 12 p^2] */
    float *colours;  /* of the target views, [batch][targets][l, 3 p^2] */
    float *image;    /* [height, width, 3] */
} NvsRun;

static bool recognise(const SafeFile *f) {
    return safetensors_meta(f, "attention_head_width") && safetensors_find(f, "rgb");
}

static int64_t pixels_of(const NvsRun *r) {
    return r->model->config.height * r->model->config.view_width;
}

static Tensor image_tensor(const NvsRun *r) {
    return tensor_3d(r->image, DTYPE_F32, r->model->config.height, r->model->config.view_width, 3);
}

/* ---- views ---------------------------------------------------------------------------------- */

typedef struct Views {
    GoldenArray image, intrinsics, pose;
    int64_t count; /* a sample */
} Views;

static void views_free(Views *v) {
    mem_free(v->image.values);
    mem_free(v->intrinsics.values);
    mem_free(v->pose.values);
}

static Status views_read(NvsRun *r, const char *group, int64_t count, Views *v) {
    *v = (Views){.count = count};
    TRY(golden_read(r->g, &v->image, "%s.image", group));
    TRY(golden_read(r->g, &v->intrinsics, "%s.fxfycxcy", group));
    TRY(golden_read(r->g, &v->pose, "%s.c2w", group));
    const int64_t all = r->batch * count;
    if (v->image.count != all * 3 * pixels_of(r) || v->intrinsics.count != all * 4 ||
        v->pose.count != all * 16)
        return status_set(STATUS_DATA, "%s.image, fxfycxcy and c2w are not of %lld views", group,
                          (long long)all);
    return STATUS_OK;
}

static Camera camera_of(const Views *v, int64_t i) {
    const double *f = v->intrinsics.values + 4 * i;
    Camera c = {.fx = f[0], .fy = f[1], .cx = f[2], .cy = f[3]};
    for (int k = 0; k < 16; k++) c.c2w[k] = v->pose.values[16 * i + k];
    return c;
}

/* The [3,h,w] image i of the file into r->image [h,w,3]. */
static void load_image(NvsRun *r, const Views *v, int64_t i) {
    const int64_t n = pixels_of(r);
    const double *from = v->image.values + i * 3 * n;
    for (int64_t p = 0; p < n; p++)
        for (int c = 0; c < 3; c++) r->image[3 * p + c] = (float)from[c * n + p];
}

/* View `at` of its sample: camera, tokens, and colours of a target. */
static Status place_view(NvsRun *r, const Views *v, int64_t sample, int64_t view, bool target) {
    const LactNvsConfig *c = &r->model->config;
    const int64_t views = r->inputs + r->targets, l = lact_nvs_view_tokens(r->model);
    const int64_t from = sample * v->count + view;
    const int64_t at = sample * views + view + (target ? r->inputs : 0);
    r->cameras[at] = camera_of(v, from);
    TRY(status_context(camera_check(&r->cameras[at]), "view %lld", (long long)at));
    load_image(r, v, from);
    if (target)
        TRY(image_to_patches(image_tensor(r), c->patch, r->colours + 3 * pixels_of(r) * from));
    return view_tokens(&r->cameras[at], c->height, c->view_width, c->patch,
                       target ? tensor_none() : image_tensor(r),
                       r->tokens + at * l * lact_nvs_token_size(r->model));
}

static Status place_views(NvsRun *r, const char *group, int64_t count, bool target) {
    Views v;
    Status s = views_read(r, group, count, &v);
    for (int64_t i = 0; i < r->batch * count && s == STATUS_OK; i++)
        s = place_view(r, &v, i / count, i % count, target);
    views_free(&v);
    return s;
}

/* ---- comparing ------------------------------------------------------------------------------ */

static Status push(NvsRun *r, const float *values, int rank, const int64_t *shape, Tensor *out) {
    TRY(tape_take(r->t, DTYPE_F32, rank, shape, out));
    TRY(device_push(r->g->device, *out, values));
    return device_sync(r->g->device);
}

/* Tokens of views [first, first + count) of every sample. */
static Status push_tokens(NvsRun *r, int64_t first, int64_t count, Tensor *out) {
    const int64_t l = lact_nvs_view_tokens(r->model), size = lact_nvs_token_size(r->model);
    TRY(tape_take(r->t, DTYPE_F32, 3, (int64_t[]){r->batch, count * l, size}, out));
    for (int64_t b = 0; b < r->batch; b++) {
        Tensor row =
            tensor_2d((float *)out->data + b * count * l * size, DTYPE_F32, count * l, size);
        TRY(device_push(r->g->device, row,
                        r->tokens + (b * (r->inputs + r->targets) + first) * l * size));
    }
    return device_sync(r->g->device);
}

/* pose.normalised_<margin>: the views of sample 0, inputs first. */
static Status compare_poses(NvsRun *r, const char *name, double margin) {
    enum { MOST = 32 };
    const int64_t views = r->inputs + r->targets;
    Camera moved[MOST];
    float poses[MOST * 16];
    Tensor on_device;
    if (views > MOST) return status_set(STATUS_DATA, "more than %d views", MOST);
    for (int64_t i = 0; i < views; i++) moved[i] = r->cameras[i];
    TRY(poses_normalise(moved, r->inputs, views, POSES_ALL, margin, NULL));
    for (int64_t i = 0; i < views * 16; i++) poses[i] = (float)moved[i / 16].c2w[i % 16];
    TRY(push(r, poses, 3, (int64_t[]){views, 4, 4}, &on_device));
    return golden_compare(r->g, name, "poses", on_device, 0);
}

static Status compare_inputs(NvsRun *r) {
    Tensor tokens;
    tape_reset(r->t, false);
    golden_set_limits(r->g, 1e-6, 1e-6, 1e-6); /* made in doubles on the host */
    TRY(push_tokens(r, 0, r->inputs, &tokens));
    TRY(golden_compare(r->g, "tokens.in", "tokens", tokens, 0));
    TRY(compare_poses(r, "pose.normalised_1.0", 1.0));
    return compare_poses(r, "pose.normalised_1.35", 1.35);
}

static double psnr_of(const float *a, const float *b, int64_t n) {
    double sum = 0;
    for (int64_t i = 0; i < n; i++) sum += ((double)a[i] - b[i]) * ((double)a[i] - b[i]);
    return -10 * log10(sum / (double)n);
}

/* rgb [B,targets,3,h,w] and psnr [B,targets] from rendered patches on the host. */
static Status compare_views(NvsRun *r, const char *form, const float *patches) {
    const LactNvsConfig *c = &r->model->config;
    const int64_t n = pixels_of(r), count = r->batch * r->targets;
    float *planes, *psnr;
    Tensor rgb, decibels;
    TRY(mem_alloc((void **)&planes, count * (3 * n + 1), sizeof *planes, "rendered views"));
    psnr = planes + count * 3 * n;
    Status s = STATUS_OK;
    for (int64_t i = 0; i < count && s == STATUS_OK; i++) {
        s = image_from_patches(patches + i * 3 * n, c->height, c->view_width, c->patch, r->image);
        for (int64_t p = 0; p < 3 * n; p++) planes[(3 * i + p % 3) * n + p / 3] = r->image[p];
        psnr[i] = (float)psnr_of(patches + i * 3 * n, r->colours + i * 3 * n, 3 * n);
    }
    if (s == STATUS_OK) s = push(r, planes, 1, (int64_t[]){count * 3 * n}, &rgb);
    if (s == STATUS_OK) s = push(r, psnr, 1, &count, &decibels);
    mem_free(planes);
    TRY(s);
    lact_output_limits(r->g);
    TRY(golden_compare(r->g, "rgb", form, rgb, 0));
    return golden_compare(r->g, "psnr", form, decibels, 0);
}

static Status compare_rendered(NvsRun *r, const char *form, Tensor patches) {
    float *host;
    TRY(mem_alloc((void **)&host, tensor_count(patches), sizeof *host, "rendered views"));
    Status s = device_pull(r->g->device, host, patches);
    if (s == STATUS_OK) s = compare_views(r, form, host);
    mem_free(host);
    return s;
}

static Status compare_state(NvsRun *r, const char *form) {
    lact_state_limits(r->g);
    for (int64_t i = 0; i < 3 * r->model->config.layers; i++) {
        char name[64];
        snprintf(name, sizeof name, "state.%lld.w%d", (long long)(i / 3), (int)(i % 3));
        TRY(golden_compare(r->g, name, form, lact_state_tensor(r->state, i / 3, (int)(i % 3)), 0));
    }
    return STATUS_OK;
}

/* ---- passes --------------------------------------------------------------------------------- */

static Status run_joint(NvsRun *r, bool recompute) {
    Golden *g = r->g;
    Tape *t = r->t;
    const char *form = recompute ? "recompute" : "joint";
    double floor;
    Tensor tokens, colours;
    TRY(golden_gradient_floor(g, "g.", &floor));
    r->model->config.recompute = recompute;
    params_begin_step(&r->params);
    tape_reset(t, true);
    TRY(push_tokens(r, 0, r->inputs + r->targets, &tokens));
    Var *rgb = lact_nvs_forward(r->model, t, tape_input(t, tokens, "tokens"), r->inputs,
                                recompute ? NULL : r->state);
    TRY(tape_status(t));
    TRY(push(r, r->colours, rgb->value.rank, rgb->value.shape, &colours));
    Var *loss = op_mse(t, rgb, colours);
    TRY(tape_status(t));
    TRY(compare_rendered(r, form, rgb->value));
    TRY(golden_compare(g, "loss", form, loss->value, 0));
    if (!recompute) TRY(compare_state(r, form));
    TRY(tape_backward(t, loss, 1));
    TRY(params_finish_grads(&r->params));
    return golden_check_lact_gradients(g, &r->params, "g.", form, floor);
}

static Status run_parts(NvsRun *r) {
    Tape *t = r->t;
    Tensor tokens;
    tape_reset(t, false);
    TRY(push_tokens(r, 0, r->inputs, &tokens));
    TRY(lact_reconstruct(r->model, t, tape_input(t, tokens, "inputs"), r->state));
    TRY(compare_state(r, "alone"));
    tape_reset(t, false);
    TRY(push_tokens(r, r->inputs, r->targets, &tokens));
    Var *rgb = lact_render(r->model, t, tape_input(t, tokens, "targets"), r->state);
    TRY(tape_status(t));
    return compare_rendered(r, "rendered", rgb->value);
}

static Status configure(NvsRun *r, LactNvsConfig *c) {
    const struct {
        const char *key;
        int64_t *to;
    } numbers[] = {{"width", &c->width},
                   {"fast_weight_heads", &c->fast_heads},
                   {"inter_multi", &c->inter_multi},
                   {"layers", &c->layers},
                   {"patch", &c->patch},
                   {"attention_head_width", &c->head_width},
                   {"image_height", &c->height},
                   {"image_width", &c->view_width},
                   {"batch", &r->batch},
                   {"input_views", &r->inputs},
                   {"target_views", &r->targets}};
    *c = (LactNvsConfig){.preset = "custom", .variant = "base", .pose_margin = 1};
    for (size_t i = 0; i < sizeof numbers / sizeof numbers[0]; i++)
        TRY(golden_meta_int(r->g, numbers[i].key, numbers[i].to));
    if (r->batch < 1 || r->inputs < 1 || r->targets < 1) return status_set(STATUS_DATA, "no views");
    return lact_nvs_config_resolve(c, NULL);
}

static Status prepare(NvsRun *r) {
    Golden *g = r->g;
    LactNvsConfig c;
    TRY(configure(r, &c));
    TRY(lact_nvs_new(&c, &r->params, &r->model));
    TRY(params_build(&r->params, g->act, true));
    TRY(golden_fill_params(g, &r->params, "p."));
    TRY(lact_nvs_state_new(r->model, g->device, r->batch, &r->state));
    TRY(tape_new(g->device, &r->t));
    tape_set_act(r->t, g->act);
    const int64_t views = r->batch * (r->inputs + r->targets), n = pixels_of(r);
    TRY(mem_alloc((void **)&r->cameras, views, sizeof *r->cameras, "cameras"));
    TRY(mem_alloc((void **)&r->tokens, views * VIEW_CHANNELS * n, sizeof *r->tokens, "tokens"));
    TRY(mem_alloc((void **)&r->colours, r->batch * r->targets * 3 * n, sizeof *r->colours,
                  "target views"));
    TRY(mem_alloc((void **)&r->image, 3 * n, sizeof *r->image, "a view"));
    TRY(place_views(r, "in", r->inputs, false));
    return place_views(r, "tgt", r->targets, true);
}

static Status run(Golden *g) {
    NvsRun r = {.g = g};
    params_init(&r.params, g->device);
    Status s = prepare(&r);
    if (s == STATUS_OK) s = compare_inputs(&r);
    if (s == STATUS_OK) s = run_joint(&r, false);
    if (s == STATUS_OK) s = run_joint(&r, true);
    if (s == STATUS_OK) s = run_parts(&r);
    if (r.t) tape_free(r.t);
    lact_state_free(r.state);
    lact_nvs_free(r.model);
    params_free(&r.params);
    mem_free(r.cameras);
    mem_free(r.tokens);
    mem_free(r.colours);
    mem_free(r.image);
    return s;
}

const GoldenKind golden_kind_lact_nvs = {"models/lact_nvs", recognise, run};
