#include "tools/nvs_render.h"

#include "core/memory.h"
#include "nvs/camera_path.h"
#include "tools/cli.h"

static int64_t picture_size(const NvsRender *r) {
    return r->view.width * r->view.height * 3;
}

static Status take_memory(NvsRender *r) {
    void *block;
    r->view = view_options_default(r->model.config.view_width, r->model.config.height);
    TRY(mem_alloc(&block, r->inputs * picture_size(r), 1, "input views"));
    r->pixels = block;
    TRY(mem_alloc(&block, r->count * picture_size(r), 1, "rendered views"));
    r->rendered = block;
    TRY(mem_alloc(&block, r->inputs + r->count, sizeof(Camera), "cameras"));
    r->cameras = block;
    return STATUS_OK;
}

/* Cameras of the views to render: those of frames, or evenly along the input views. */
static void place_cameras(NvsRender *r, const int64_t source[2]) {
    const Scene *scene = scene_set_at(r->set, r->scene);
    for (int64_t i = 0; i < r->count; i++) {
        Camera *c = r->cameras + r->inputs + i;
        if (r->frames) {
            const ViewCamera v =
                view_camera(&scene->frames[r->frames[i]], &r->view, source[0], source[1]);
            *c = nvs_camera(&v);
            continue;
        }
        const double at =
            r->count > 1 ? (double)i * (double)(r->inputs - 1) / (double)(r->count - 1) : 0;
        int64_t k = (int64_t)at;
        if (k > r->inputs - 2) k = r->inputs - 2;
        camera_between(&r->cameras[k], &r->cameras[k + 1], at - (double)k, c);
    }
}

static Status load(NvsRender *r) {
    int64_t first[2] = {0}, source[2];
    ViewSample sample = {.scene = r->scene, .inputs = (int)r->inputs};
    for (int64_t i = 0; i < r->inputs; i++) {
        ViewCamera v;
        sample.frames[i] = r->input_frames[i];
        TRY(view_load(r->set, r->scene, sample.frames[i], &r->view, &r->scratch,
                      r->pixels + i * picture_size(r), &v, source));
        if (i == 0) first[0] = source[0], first[1] = source[1];
        TRY(view_same_size(r->set, &sample, (int)i, first, source));
        r->cameras[i] = nvs_camera(&v);
    }
    place_cameras(r, first);
    const LactNvsConfig *c = &r->model.config;
    return poses_normalise(r->cameras, r->inputs, r->inputs + r->count, (PoseRule)c->poses,
                           c->pose_margin, NULL);
}

/* Input views write the fast weights; every camera then only reads them. */
static Status render(NvsRender *r, LactViewer *viewer) {
    TRY(lact_viewer_reconstruct(viewer, r->cameras, r->pixels));
    for (int64_t i = 0; i < r->count; i++) {
        TRY(nvs_render_camera(&r->model, viewer, r->cameras + r->inputs + i,
                              r->rendered + i * picture_size(r)));
        progress_line(10, "%lld of %lld views", (long long)(i + 1), (long long)r->count);
    }
    return STATUS_OK;
}

Status nvs_render_run(NvsRender *r) {
    NvsModel *m = &r->model;
    LactState *state;
    LactViewer *viewer = NULL;
    TRY(take_memory(r));
    TRY(load(r));
    TRY(lact_nvs_state_new(m->nvs, m->device, 1, &state));
    Status s = lact_viewer_new(m->nvs, m->tape, state, r->inputs, &viewer);
    if (s == STATUS_OK) s = render(r, viewer);
    progress_end();
    lact_viewer_free(viewer);
    lact_state_free(state);
    return s;
}

void nvs_render_free(NvsRender *r) {
    if (r->set) scene_set_close(r->set);
    nvs_model_close(&r->model);
    view_scratch_free(&r->scratch);
    mem_free(r->frames);
    mem_free(r->pixels);
    mem_free(r->rendered);
    mem_free(r->cameras);
    *r = (NvsRender){0};
}
