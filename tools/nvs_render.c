#include "tools/nvs_render.h"

#include <string.h>

#include "core/memory.h"
#include "tools/cli.h"
#include "tools/ranks.h"

static int64_t picture_size(const NvsRender *r) {
    return r->view.width * r->view.height * 3;
}

static Status take_memory(NvsRender *r) {
    void *block;
    r->view = view_options_default(r->model.config.view_width, r->model.config.height);
    if (!r->loaded) {
        TRY(mem_alloc(&block, r->inputs * picture_size(r), 1, "input views"));
        r->pixels = block;
    }
    /* Rank 0 has a place for all, even where the last rank has fewer. */
    r->share = (r->count + ranks_count() - 1) / ranks_count();
    const int64_t views = output_is_mine() ? r->share * ranks_count() : r->share;
    TRY(mem_alloc(&block, views * picture_size(r), 1, "rendered views"));
    r->rendered = block;
    TRY(mem_alloc(&block, r->count, sizeof(Camera), "cameras"));
    r->cameras = block;
    return STATUS_OK;
}

static Status load_inputs(NvsRender *r) {
    int64_t source[2];
    ViewSample sample = {.scene = r->scene, .inputs = (int)r->inputs};
    for (int64_t i = 0; i < r->inputs; i++) {
        ViewCamera v;
        sample.frames[i] = r->input_frames[i];
        TRY(view_load(r->set, r->scene, sample.frames[i], &r->view, &r->scratch,
                      r->pixels + i * picture_size(r), &v, source));
        if (i == 0) r->source[0] = source[0], r->source[1] = source[1];
        TRY(view_same_size(r->set, &sample, (int)i, r->source, source));
        r->input_cameras[i] = nvs_camera(&v);
    }
    return STATUS_OK;
}

/* The cameras to render, in the world of the camera file. */
static Status place_cameras(NvsRender *r) {
    if (!r->frames && !r->listed)
        return camera_path(&r->path, r->input_cameras, r->inputs, r->count, r->cameras);
    for (int64_t i = 0; i < r->count; i++) {
        const SceneFrame *f =
            r->frames ? &scene_set_at(r->set, r->scene)->frames[r->frames[i]] : &r->listed[i];
        /* A size that is not 1 x 1 is that of the picture itself. */
        const bool own = f->width > 1 && f->height > 1;
        const ViewCamera v =
            view_camera(f, &r->view, own && r->listed ? (int64_t)f->width : r->source[0],
                        own && r->listed ? (int64_t)f->height : r->source[1]);
        r->cameras[i] = nvs_camera(&v);
    }
    return STATUS_OK;
}

/* Both into the model's frame; `inputs` receives the input cameras there. */
static Status normalise(NvsRender *r, Camera *all) {
    const LactNvsConfig *c = &r->model.config;
    for (int64_t i = 0; i < r->inputs; i++) all[i] = r->input_cameras[i];
    for (int64_t i = 0; i < r->count; i++) all[r->inputs + i] = r->cameras[i];
    TRY(poses_normalise(all, r->inputs, r->inputs + r->count, (PoseRule)c->poses, c->pose_margin,
                        &r->saved.frame));
    for (int64_t i = 0; i < r->count; i++) r->cameras[i] = all[r->inputs + i];
    return STATUS_OK;
}

/* A scene without values yet, in the frame of this call; `all` receives the cameras there. */
static Status begin_scene(NvsRender *r, Camera *all) {
    const LactNvsConfig *c = &r->model.config;
    TRY(normalise(r, all));
    r->saved.height = c->height;
    r->saved.width = c->view_width;
    r->saved.patch = c->patch;
    snprintf(r->saved.variant, sizeof r->saved.variant, "%s", c->variant);
    return lact_nvs_state_new(r->model.nvs, r->model.device, 1, &r->saved.fast);
}

/* Input views write the fast weights, unless they come from a file; every camera only reads them.
 * Each rank reconstructs, and renders `share` views in a row. */
static Status render(NvsRender *r, const Camera *inputs, LactViewer *viewer) {
    const int64_t first = ranks_rank() * r->share, end = first + r->share;
    if (!r->loaded) TRY(lact_viewer_reconstruct(viewer, inputs, r->pixels));
    for (int64_t i = first; i < end && i < r->count; i++) {
        TRY(nvs_render_camera(&r->model, viewer, r->cameras + i,
                              r->rendered + (i - first) * picture_size(r)));
        if (output_is_mine())
            progress_line(10, "%lld of %lld views%s", (long long)(i + 1), (long long)r->share,
                          ranks_count() > 1 ? " on each rank" : "");
    }
    return STATUS_OK;
}

/* Every rank's views to rank 0, one of each at a time. */
static Status collect(NvsRender *r) {
    const size_t size = (size_t)picture_size(r);
    void *block = NULL;
    if (ranks_count() < 2) return STATUS_OK;
    Status s =
        output_is_mine() ? mem_alloc(&block, ranks_count(), size, "views of the ranks") : STATUS_OK;
    s = peers_agree(ranks_peers(), s);
    uint8_t *all = block;
    for (int64_t i = 0; i < r->share && s == STATUS_OK; i++) {
        s = peers_collect(ranks_peers(), r->rendered + (size_t)i * size, all, size);
        for (int rank = 1; output_is_mine() && rank < ranks_count(); rank++)
            memcpy(r->rendered + (size_t)(rank * r->share + i) * size, all + (size_t)rank * size,
                   size);
    }
    mem_free(block);
    return s;
}

static Status run(NvsRender *r, Camera *all) {
    NvsModel *m = &r->model;
    LactViewer *viewer;
    TRY(place_cameras(r));
    if (r->loaded)
        pose_frame_apply(&r->saved.frame, r->cameras, r->count);
    else
        TRY(begin_scene(r, all));
    TRY(lact_viewer_new(m->nvs, m->tape, r->saved.fast, r->inputs, &viewer));
    Status s = render(r, all, viewer);
    progress_end();
    lact_viewer_free(viewer);
    return s;
}

static Status render_own(NvsRender *r) {
    void *block;
    TRY(take_memory(r));
    if (!r->loaded) TRY(load_inputs(r));
    TRY(mem_alloc(&block, r->inputs + r->count, sizeof(Camera), "cameras"));
    const Status s = run(r, block);
    mem_free(block);
    return s;
}

Status nvs_render_run(NvsRender *r) {
    TRY(peers_agree(ranks_peers(), render_own(r)));
    return collect(r);
}

void nvs_render_free(NvsRender *r) {
    if (r->set) scene_set_close(r->set);
    if (r->saved.fast) lact_scene_free(&r->saved);
    nvs_model_close(&r->model);
    view_scratch_free(&r->scratch);
    mem_free(r->frames);
    mem_free(r->listed);
    mem_free(r->pixels);
    mem_free(r->rendered);
    mem_free(r->cameras);
    *r = (NvsRender){0};
}
