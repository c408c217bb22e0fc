/* The LaCT layers of a novel-view model: views of noise or of posed scenes go through the joint
 * pass of training. In the last layer input tokens only write and target tokens only read. */
#include "core/memory.h"
#include "core/rng.h"
#include "tools/cli.h"
#include "tools/nvs_model.h"
#include "tools/verify.h"

enum { INPUTS = 2, VIEWS = 4, WINDOW = 30 };

typedef struct NvsCheck {
    NvsModel model;
    FastLayer *layers;
    SceneSet *set;
    ViewScratch scratch;
    uint8_t *pixels, *rendered; /* [VIEWS, height, width, 3] */
    VerifyReport *report;
} NvsCheck;

Status nvs_layers(const NvsModel *m, FastLayer **out) {
    TRY(mem_alloc((void **)out, m->config.layers, sizeof **out, "layers to look at"));
    for (int64_t i = 0; i < m->config.layers; i++)
        (*out)[i] = fast_layer_lact(&m->nvs->blocks[i].ttt);
    return STATUS_OK;
}

static Status set_up(NvsCheck *c, VerifyReport *out) {
    const LactNvsConfig *m = &c->model.config;
    const int64_t size = VIEWS * m->height * m->view_width * 3;
    VerifyRow named[LAYER_ROWS];
    TRY(nvs_layers(&c->model, &c->layers));
    TRY(mem_alloc((void **)&out->owned, m->layers, sizeof *out->owned, "rows"));
    TRY(mem_alloc((void **)&c->pixels, size, 1, "pictures"));
    TRY(mem_alloc((void **)&c->rendered, size, 1, "pictures"));
    for (int64_t i = 0; i < m->layers; i++) {
        fast_layer_rows(&c->layers[i], i, named);
        out->owned[i] = named[0];
        fast_layer_trace(&c->layers[i], true);
    }
    out->rows = out->owned;
    out->count = m->layers;
    out->limits = verify_limits(c->model.act, fast_layer_has_muon(&c->layers[0]));
    return STATUS_OK;
}

/* One sample whose pixels are in place. */
static Status check_sample(NvsCheck *c, const ViewCamera cameras[VIEWS]) {
    TRY(nvs_render_sample(&c->model, c->pixels, cameras, INPUTS, VIEWS, c->rendered));
    for (int64_t i = 0; i < c->report->count; i++) {
        TRY(fast_layer_verify(c->model.device, &c->layers[i], &c->report->owned[i]));
        progress_line(5, "sample %lld, layer %lld of %lld", (long long)c->report->used + 1,
                      (long long)i + 1, (long long)c->report->count);
    }
    c->report->used++;
    return STATUS_OK;
}

/* ---- noise ---- */

/* Cameras side by side that look the same way. */
static Status check_noise(NvsCheck *c, uint64_t seed) {
    const LactNvsConfig *m = &c->model.config;
    const double w = (double)m->view_width, h = (double)m->height;
    ViewCamera cameras[VIEWS];
    Rng r = rng_stream(seed, 0, (uint64_t)c->report->used, 0);
    for (int64_t i = 0; i < INPUTS * m->height * m->view_width * 3; i++)
        c->pixels[i] = (uint8_t)rng_below(&r, 256);
    for (int i = 0; i < VIEWS; i++) {
        const double w2c[12] = {1, 0, 0, -0.2 * i, 0, 1, 0, 0, 0, 0, 1, 0};
        cameras[i] = (ViewCamera){.intrinsics = {w, w, w / 2, h / 2}};
        view_camera_pose(&cameras[i], w2c);
    }
    return check_sample(c, cameras);
}

/* ---- scenes ---- */

/* The first picture and one at most WINDOW later are inputs, two between them targets; in a pair
 * the targets are the inputs. */
static ViewSample choose_views(const Scene *s, int64_t scene) {
    int64_t list[WINDOW + 1], count = 0;
    for (int64_t i = 0; i < s->count && count <= WINDOW; i++)
        if (s->frames[i].image >= 0) list[count++] = i;
    const int64_t last = count - 1;
    return (ViewSample){.scene = scene,
                        .inputs = INPUTS,
                        .targets = VIEWS - INPUTS,
                        .frames = {list[0], list[last], list[last / 3], list[(2 * last + 2) / 3]}};
}

static Status check_scene(NvsCheck *c, int64_t scene) {
    const LactNvsConfig *m = &c->model.config;
    const ViewOptions view = view_options_default(m->view_width, m->height);
    const Scene *s = scene_set_at(c->set, scene);
    ViewCamera cameras[VIEWS];
    char reason[512];
    if (!scene_usable(s))
        return status_set(STATUS_DATA, "scene %s is not usable: %s", s->name,
                          scene_reason(s, reason, sizeof reason));
    const ViewSample sample = choose_views(s, scene);
    TRY(view_load_sample(c->set, &sample, &view, &c->scratch, c->pixels, cameras));
    return check_sample(c, cameras);
}

static Status check_scenes(NvsCheck *c, const char *roots, int64_t most) {
    TRY(scene_set_open(roots, "", &c->set));
    for (int64_t i = 0; i < scene_set_count(c->set); i++) {
        if (most > 0 && c->report->used == most) break;
        const Status s = check_scene(c, i);
        if (s != STATUS_DATA && s != STATUS_IO) {
            TRY(s);
            continue;
        }
        complain("%s", status_message());
        c->report->failed++;
    }
    return c->report->used > 0 ? STATUS_OK
                               : status_set(STATUS_DATA, "%s: no scene is usable", roots);
}

/* ---- both ---- */

Status verify_nvs(const char *checkpoint, WeightsChoice choice, const Config *user,
                  const VerifyNvs *what, VerifyReport *out) {
    NvsCheck c = {.report = out};
    *out = (VerifyReport){.path = checkpoint};
    TRY(nvs_model_open(&c.model, checkpoint, choice, user));
    Status s = set_up(&c, out);
    if (s == STATUS_OK && what->scenes) s = check_scenes(&c, what->scenes, what->samples);
    while (s == STATUS_OK && !what->scenes && out->used < what->samples)
        s = check_noise(&c, what->seed);
    progress_end();
    if (c.set) scene_set_close(c.set);
    view_scratch_free(&c.scratch);
    mem_free(c.layers);
    mem_free(c.pixels);
    mem_free(c.rendered);
    nvs_model_close(&c.model);
    return s;
}
