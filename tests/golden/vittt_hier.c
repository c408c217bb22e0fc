/* hier.*: logits of a whole hierarchical model, by the statistics that it has seen. */
#include "kind_vittt.h"

#include <stdio.h>
#include <string.h>

#include "core/memory.h"
#include "vision/vittt.h"

typedef struct HierRun {
    Golden *g;
    Tape *t;
    Params params;
    Vittt *model;
    GoldenArray image; /* [B,H,W,3] */
} HierRun;

/* Sizes of stage `stage`, as stages of a configuration write them. */
static Status stage_text(Golden *g, int stage, char *text, size_t size) {
    const SafeEntry *norm, *w1;
    char name[80];
    int blocks = 0;
    do snprintf(name, sizeof name, "hier.p.layers.%d.blocks.%d.norm1.weight", stage, blocks++);
    while (golden_has(g, name));
    snprintf(name, sizeof name, "hier.p.layers.%d.blocks.0.norm1.weight", stage);
    TRY(golden_entry(g, &norm, name));
    snprintf(name, sizeof name, "hier.p.layers.%d.blocks.0.attn.w1", stage);
    TRY(golden_entry(g, &w1, name));
    if (norm->rank != 1 || w1->rank != 4)
        return status_set(STATUS_DATA, "%s or the norm before it has another rank", name);
    const size_t used = strlen(text);
    snprintf(text + used, size - used, "%s%lldx%dx%lld", used ? "," : "", (long long)norm->shape[0],
             blocks - 1, (long long)w1->shape[1]);
    return STATUS_OK;
}

static Status prepare(HierRun *r) {
    Golden *g = r->g;
    const SafeEntry *head, *wide;
    VitttConfig c = {.preset = "custom", .mixer = "base", .form = VITTT_FUSED, .rope = true};
    TRY(golden_read(g, &r->image, "hier.img"));
    TRY(golden_channels_last(&r->image));
    for (int stage = 0; stage < HIER_STAGES; stage++)
        TRY(stage_text(g, stage, c.stages, sizeof c.stages));
    TRY(golden_entry(g, &head, "hier.p.head.weight"));
    TRY(golden_entry(g, &wide, "hier.p.layers.0.blocks.0.mlp.fc2.weight"));
    c.classes = head->shape[0];
    c.mlp_ratio = wide->shape[1] / wide->shape[0];
    c.image_size = r->image.shape[1];
    TRY(vittt_config_resolve(&c, NULL));
    TRY(vittt_new(&c, &r->params, &r->model));
    TRY(params_build(&r->params, g->act, false));
    TRY(golden_fill_params(g, &r->params, "hier.p."));
    TRY(tape_new(g->device, &r->t));
    tape_set_act(r->t, g->act);
    return STATUS_OK;
}

/* Counters of batches, which no number depends on. */
static Status pass_counters(Golden *g) {
    static const char suffix[] = ".num_batches_tracked";
    for (int64_t i = 0; i < safetensors_count(g->file); i++) {
        const SafeEntry *e = safetensors_at(g->file, i);
        const size_t length = strlen(e->name), tail = sizeof suffix - 1;
        if (length > tail && strcmp(e->name + length - tail, suffix) == 0)
            TRY(golden_entry(g, &e, e->name));
    }
    return STATUS_OK;
}

static Status run_form(HierRun *r, VitttForm form) {
    Golden *g = r->g;
    Tensor image;
    for (int64_t i = 0; i < r->model->config.depth; i++) r->model->blocks[i].mixer.form = form;
    tape_reset(r->t, false);
    TRY(golden_push(r->t, &r->image, g->act, &image));
    Var *logits = vittt_forward(r->model, r->t, tape_input(r->t, image, "image"), false);
    TRY(tape_status(r->t));
    return golden_compare(g, "hier.logits", vittt_form_names[form], logits->value, 0);
}

Status golden_run_vittt_hier(Golden *g) {
    HierRun r = {.g = g};
    params_init(&r.params, g->device);
    Status s = prepare(&r);
    if (s == STATUS_OK) s = pass_counters(g);
    for (int form = VITTT_FUSED; form <= VITTT_PAIRS && s == STATUS_OK; form++)
        s = run_form(&r, (VitttForm)form);
    if (r.t) tape_free(r.t);
    vittt_free(r.model);
    params_free(&r.params);
    mem_free(r.image.values);
    return s;
}
