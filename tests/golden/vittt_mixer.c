/* ttt.*: y, dx and every parameter gradient of sum(y * dy), for each variant that the file holds.
 */
#include "kind_vittt.h"

#include <stdio.h>

#include "core/memory.h"
#include "ttt/vittt_mixer.h"

typedef struct MixerRun {
    Golden *g;
    Tape *t;
    Params params;
    VitttMixer mixer;
    VitttTrace trace;
    GoldenArray x, dy, rope;
    int64_t height, width;
} MixerRun;

/* The inner gradients and fast weights, which only the base variant's vectors hold. */
static Status compare_trace(MixerRun *r, const char *variant) {
    const struct {
        const char *name;
        Var *value;
    } parts[] = {{"glu.g1", r->trace.g1}, {"glu.g2", r->trace.g2},   {"glu.u1", r->trace.u1},
                 {"glu.u2", r->trace.u2}, {"dwc.g", r->trace.dwc_g}, {"dwc.u", r->trace.dwc_u}};
    for (size_t i = 0; i < sizeof parts / sizeof parts[0]; i++) {
        char name[128];
        snprintf(name, sizeof name, "ttt.%s.%s", variant, parts[i].name);
        if (golden_has(r->g, name))
            TRY(golden_compare(r->g, name, "composed", parts[i].value->value, 0));
    }
    return STATUS_OK;
}

/* label: of the tensors; that of the variant, or base_rope. */
static Status run_variant(MixerRun *r, const char *label, const char *variant, VitttForm form) {
    Golden *g = r->g;
    Tape *t = r->t;
    char name[128];
    double floor;
    snprintf(name, sizeof name, "ttt.%s.g.", label);
    TRY(golden_gradient_floor(g, name, &floor));
    TRY(vittt_variant_by_name(variant, &r->mixer.variant));
    r->mixer.form = form;
    r->mixer.trace = form == VITTT_COMPOSED ? &r->trace : NULL;
    params_begin_step(&r->params);
    tape_reset(t, true);
    Tensor x, dy;
    TRY(golden_push(t, &r->x, g->act, &x));
    TRY(golden_push(t, &r->dy, DTYPE_F32, &dy));
    r->mixer.rope = NULL;
    if (label != variant) {
        Tensor rope;
        TRY(golden_push(t, &r->rope, DTYPE_F32, &rope));
        r->mixer.rope = tape_input(t, rope, "rope");
    }
    Var *input = tape_input_grad(t, x, "x");
    Var *y = vittt_mixer_forward(&r->mixer, t, input, r->height, r->width);
    Var *loss = golden_weighted_sum(t, y, dy);
    TRY(tape_status(t));
    snprintf(name, sizeof name, "ttt.%s.y", label);
    TRY(golden_compare(g, name, vittt_form_names[form], y->value, 0));
    if (form == VITTT_COMPOSED) TRY(compare_trace(r, label));
    TRY(tape_backward(t, loss, 1));
    TRY(params_finish_grads(&r->params));
    snprintf(name, sizeof name, "ttt.%s.dx", label);
    TRY(golden_compare(g, name, vittt_form_names[form], input->grad, floor));
    snprintf(name, sizeof name, "ttt.%s.g.", label);
    return golden_check_gradients(g, &r->params, name, vittt_form_names[form], floor);
}

static Status run_variants(MixerRun *r) {
    for (int i = 0; vittt_variant_name(i); i++) {
        const char *variant = vittt_variant_name(i);
        char prefix[128];
        snprintf(prefix, sizeof prefix, "ttt.%s.", variant);
        if (!golden_has(r->g, prefix)) continue;
        /* Only the base has a fused node. */
        for (int form = i == 0 ? VITTT_FUSED : VITTT_COMPOSED; form <= VITTT_PAIRS; form++)
            TRY(run_variant(r, variant, variant, (VitttForm)form));
    }
    if (!golden_has(r->g, "ttt.base_rope.")) return STATUS_OK;
    TRY(golden_read(r->g, &r->rope, "ttt.rope"));
    for (int form = VITTT_FUSED; form <= VITTT_PAIRS; form++)
        TRY(run_variant(r, "base_rope", vittt_variant_name(0), (VitttForm)form));
    return STATUS_OK;
}

static Status prepare(MixerRun *r) {
    Golden *g = r->g;
    int64_t heads;
    TRY(golden_meta_int(g, "ttt_heads", &heads));
    TRY(golden_meta_int(g, "ttt_h", &r->height));
    TRY(golden_meta_int(g, "ttt_w", &r->width));
    TRY(golden_read(g, &r->x, "ttt.x"));
    TRY(golden_read(g, &r->dy, "ttt.dy"));
    if (r->x.rank != 3 || r->dy.count != r->x.count)
        return status_set(STATUS_DATA, "ttt.x and ttt.dy are not both [B,N,C]");
    TRY(vittt_mixer_register(&r->mixer, &r->params, "", r->x.shape[2], heads));
    TRY(params_build(&r->params, g->act, true));
    TRY(golden_fill_params(g, &r->params, "ttt.p."));
    TRY(tape_new(g->device, &r->t));
    tape_set_act(r->t, g->act);
    return STATUS_OK;
}

Status golden_run_vittt_mixer(Golden *g) {
    MixerRun r = {.g = g};
    params_init(&r.params, g->device);
    Status s = prepare(&r);
    if (s == STATUS_OK) s = run_variants(&r);
    if (r.t) tape_free(r.t);
    params_free(&r.params);
    mem_free(r.x.values);
    mem_free(r.dy.values);
    mem_free(r.rope.values);
    return s;
}
