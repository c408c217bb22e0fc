/* The LaCT layers of a novel-view model: noise seen by cameras side by side goes through the joint
 * pass of training. In the last layer input tokens only write and target tokens only read. */
#include "core/memory.h"
#include "core/rng.h"
#include "tools/cli.h"
#include "tools/nvs_model.h"
#include "tools/verify.h"

enum { INPUTS = 2, VIEWS = 4 };

typedef struct NvsCheck {
    NvsModel model;
    FastLayer *layers;
    Tensor cameras, rgb;
    uint8_t *pixels;
    int64_t pixels_size;
} NvsCheck;

Status nvs_layers(const NvsModel *m, FastLayer **out) {
    TRY(mem_alloc((void **)out, m->config.layers, sizeof **out, "layers to look at"));
    for (int64_t i = 0; i < m->config.layers; i++)
        (*out)[i] = fast_layer_lact(&m->nvs->blocks[i].ttt);
    return STATUS_OK;
}

static Status set_up(NvsCheck *c, VerifyRow **rows) {
    const LactNvsConfig *m = &c->model.config;
    Device *d = c->model.device;
    const float w = (float)m->view_width, h = (float)m->height;
    const float usual[16] = {1, 0, 0, 0, 0, 1, 0, 0, 0, 0, 1, 0, w, w, 0.5f * w, 0.5f * h};
    float cameras[VIEWS * 16];
    for (int i = 0; i < VIEWS * 16; i++)
        cameras[i] = usual[i % 16] + (i % 16 == 3 ? 0.2f * (float)(i / 16) : 0);
    c->pixels_size = INPUTS * m->height * m->view_width * 3;
    VerifyRow named[LAYER_ROWS];
    TRY(nvs_layers(&c->model, &c->layers));
    TRY(mem_alloc((void **)rows, m->layers, sizeof **rows, "rows"));
    TRY(mem_alloc((void **)&c->pixels, c->pixels_size, 1, "pictures"));
    TRY(arena_tensor(&d->state, DTYPE_F32, 3, (int64_t[]){1, VIEWS, 16}, &c->cameras));
    TRY(arena_tensor(&d->state, DTYPE_U8, 4, (int64_t[]){1, INPUTS, m->height * m->view_width, 3},
                     &c->rgb));
    for (int64_t i = 0; i < m->layers; i++) {
        fast_layer_rows(&c->layers[i], i, named);
        (*rows)[i] = named[0];
        fast_layer_trace(&c->layers[i], true);
    }
    return device_push(d, c->cameras, cameras);
}

static Status check_sample(NvsCheck *c, int64_t sample, uint64_t seed, VerifyRow *rows) {
    const LactNvsConfig *m = &c->model.config;
    Rng r = rng_stream(seed, 0, (uint64_t)sample, 0);
    for (int64_t i = 0; i < c->pixels_size; i++) c->pixels[i] = (uint8_t)rng_below(&r, 256);
    TRY(device_push(c->model.device, c->rgb, c->pixels));
    tape_reset(c->model.tape, false);
    Var *x = op_view_tokens(c->model.tape, c->cameras, c->rgb, m->height, m->view_width, m->patch);
    lact_nvs_forward(c->model.nvs, c->model.tape, x, INPUTS, NULL);
    TRY(tape_status(c->model.tape));
    for (int64_t i = 0; i < m->layers; i++) {
        TRY(fast_layer_verify(c->model.device, &c->layers[i], &rows[i]));
        progress_line(5, "sample %lld, layer %lld of %lld", (long long)sample + 1, (long long)i + 1,
                      (long long)m->layers);
    }
    return STATUS_OK;
}

Status verify_nvs(const char *checkpoint, WeightsChoice choice, const Config *user, int64_t samples,
                  uint64_t seed, VerifyReport *out) {
    NvsCheck c = {0};
    *out = (VerifyReport){.path = checkpoint};
    TRY(nvs_model_open(&c.model, checkpoint, choice, user));
    Status s = set_up(&c, &out->owned);
    for (; out->used < samples && s == STATUS_OK; out->used++)
        s = check_sample(&c, out->used, seed, out->owned);
    progress_end();
    LactVariant v = {0};
    if (s == STATUS_OK) s = lact_variant_by_name(c.model.config.variant, &v);
    out->rows = out->owned;
    if (s == STATUS_OK) out->count = c.model.config.layers;
    out->limits = verify_limits(c.model.act, !v.no_muon);
    mem_free(c.layers);
    mem_free(c.pixels);
    nvs_model_close(&c.model);
    return s;
}
