/* iso.*: logits, loss and every gradient of a whole plain model. */
#include "kind_vittt.h"

#include <stdio.h>

#include "core/memory.h"
#include "vision/vittt.h"

typedef struct ModelRun {
    Golden *g;
    Tape *t;
    Params params;
    Vittt *model;
    GoldenArray image, target; /* image [B,H,W,3] */
} ModelRun;

static Status rows_of(Golden *g, const char *name, int64_t *rows) {
    const SafeEntry *e = NULL;
    TRY(golden_entry(g, &e, name));
    if (e->rank < 1) return status_set(STATUS_DATA, "tensor '%s' has rank 0", name);
    *rows = e->shape[0];
    return STATUS_OK;
}

static Status configure(ModelRun *r, VitttConfig *c) {
    Golden *g = r->g;
    int64_t hidden = 0;
    *c = (VitttConfig){.preset = "custom", .mixer = "base", .form = VITTT_FUSED};
    TRY(golden_meta_int(g, "iso_heads", &c->heads));
    TRY(golden_meta_int(g, "iso_depth", &c->depth));
    TRY(golden_meta_int(g, "iso_patch", &c->patch));
    TRY(rows_of(g, "iso.p.norm.weight", &c->width));
    TRY(rows_of(g, "iso.p.head.weight", &c->classes));
    TRY(rows_of(g, "iso.p.blocks.0.mlp.fc1.weight", &hidden));
    if (c->width < 1 || hidden % c->width != 0)
        return status_set(STATUS_DATA, "iso.p.blocks.0.mlp.fc1.weight has %lld rows for width %lld",
                          (long long)hidden, (long long)c->width);
    c->mlp_ratio = hidden / c->width;
    c->image_size = r->image.shape[1];
    return vittt_config_resolve(c, NULL);
}

static Status prepare(ModelRun *r) {
    Golden *g = r->g;
    VitttConfig config;
    TRY(golden_read(g, &r->image, "iso.img"));
    TRY(golden_channels_last(&r->image));
    TRY(golden_read(g, &r->target, "iso.target"));
    TRY(configure(r, &config));
    TRY(vittt_new(&config, &r->params, &r->model));
    TRY(params_build(&r->params, g->act, true));
    TRY(golden_fill_params(g, &r->params, "iso.p."));
    TRY(tape_new(g->device, &r->t));
    tape_set_act(r->t, g->act);
    return STATUS_OK;
}

static Status run_form(ModelRun *r, VitttForm form, double floor) {
    Golden *g = r->g;
    Tape *t = r->t;
    for (int64_t i = 0; i < r->model->config.depth; i++) r->model->blocks[i].mixer.form = form;
    params_begin_step(&r->params);
    tape_reset(t, true);
    Tensor image, target;
    TRY(golden_push(t, &r->image, g->act, &image));
    TRY(golden_push(t, &r->target, DTYPE_F32, &target));
    Var *logits = vittt_forward(r->model, t, tape_input(t, image, "image"), true);
    Var *loss = op_cross_entropy(t, logits, target);
    TRY(tape_status(t));
    TRY(golden_compare(g, "iso.logits", vittt_form_names[form], logits->value, 0));
    TRY(golden_compare(g, "iso.loss", vittt_form_names[form], loss->value, 0));
    TRY(tape_backward(t, loss, 1));
    TRY(params_finish_grads(&r->params));
    return golden_check_gradients(g, &r->params, "iso.g.", vittt_form_names[form], floor);
}

Status golden_run_vittt_model(Golden *g) {
    ModelRun r = {.g = g};
    double floor;
    params_init(&r.params, g->device);
    Status s = prepare(&r);
    if (s == STATUS_OK) s = golden_gradient_floor(g, "iso.g.", &floor);
    for (int form = VITTT_FUSED; form <= VITTT_PAIRS && s == STATUS_OK; form++)
        s = run_form(&r, (VitttForm)form, floor);
    if (r.t) tape_free(r.t);
    vittt_free(r.model);
    params_free(&r.params);
    mem_free(r.image.values);
    mem_free(r.target.values);
    return s;
}
