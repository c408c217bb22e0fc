/* models/lact_layer_*: one LaCT layer in every variant of lact_nvs.md 9: y, dx, every gradient of
 * sum(y * dy) and the written fast weights; ns.*: Newton-Schulz with its backward. */
#include <stdio.h>
#include <string.h>

#include "core/memory.h"
#include "kind_lact.h"
#include "ttt/lact_state.h"
#include "ttt/newton_schulz.h"

typedef struct LayerRun {
    Golden *g;
    Tape *t;
    Params params;
    LactLayer layer;
    LactState *state;
    GoldenArray x, dy;
    int64_t writing;
    double floor; /* of gradients */
} LayerRun;

static bool recognise(const SafeFile *f) {
    return safetensors_meta(f, "writing_tokens") && safetensors_find(f, "base.y");
}

/* <variant>.state.w0, w1, w2. */
static Status compare_state(LayerRun *r, const char *variant, const char *form, LactFast fast) {
    TRY(lact_state_store(r->state, 0, fast));
    lact_state_limits(r->g);
    for (int j = 0; j < 3; j++) {
        char name[128];
        snprintf(name, sizeof name, "%s.state.w%d", variant, j);
        TRY(golden_compare(r->g, name, form, lact_state_tensor(r->state, 0, j), 0));
    }
    return STATUS_OK;
}

static Status run_form(LayerRun *r, const char *variant, bool composed) {
    const char *form = composed ? "composed" : "fused";
    Golden *g = r->g;
    Tape *t = r->t;
    char name[128];
    LactFast fast;
    TRY(lact_variant_by_name(variant, &r->layer.variant));
    r->layer.composed = composed;
    params_begin_step(&r->params);
    tape_reset(t, true);
    Tensor x, dy;
    TRY(golden_push(t, &r->x, g->act, &x));
    TRY(golden_push(t, &r->dy, DTYPE_F32, &dy));
    Var *input = tape_input_grad(t, x, "x");
    Var *y = lact_forward(&r->layer, t, input, r->writing, NULL, &fast);
    Var *loss = golden_weighted_sum(t, y, dy);
    TRY(tape_status(t));
    lact_output_limits(g);
    snprintf(name, sizeof name, "%s.y", variant);
    TRY(golden_compare(g, name, form, y->value, 0));
    TRY(compare_state(r, variant, form, fast));
    TRY(tape_backward(t, loss, 1));
    TRY(params_finish_grads(&r->params));
    lact_gradient_limits(g);
    snprintf(name, sizeof name, "%s.dx", variant);
    TRY(golden_compare(g, name, form, input->grad, r->floor));
    snprintf(name, sizeof name, "%s.g.", variant);
    return golden_check_lact_gradients(g, &r->params, name, form, r->floor);
}

/* The linear variants have one form. */
static Status run_variant(LayerRun *r, const char *variant) {
    LactVariant v;
    TRY(lact_variant_by_name(variant, &v));
    TRY(run_form(r, variant, true));
    return v.linear ? STATUS_OK : run_form(r, variant, false);
}

static Status run_newton_schulz(LayerRun *r) {
    Golden *g = r->g;
    Tape *t = r->t;
    GoldenArray a = {0}, b = {0};
    Tensor input, cotangent;
    Var *in = NULL, *x = NULL;
    tape_reset(t, true);
    Status s = golden_read(g, &a, "ns.G");
    if (s == STATUS_OK) s = golden_push(t, &a, DTYPE_F32, &input);
    if (s == STATUS_OK) s = golden_read(g, &b, "ns.dX");
    if (s == STATUS_OK) s = golden_push(t, &b, DTYPE_F32, &cotangent);
    mem_free(a.values);
    mem_free(b.values);
    TRY(s);
    in = tape_input_grad(t, input, "G");
    x = newton_schulz(t, in, NEWTON_SCHULZ_STEPS);
    Var *loss = golden_weighted_sum(t, x, cotangent);
    TRY(tape_status(t));
    lact_output_limits(g);
    TRY(golden_compare(g, "ns.X", "composed", x->value, 0));
    TRY(tape_backward(t, loss, 1));
    lact_gradient_limits(g);
    return golden_compare(g, "ns.dG", "composed", in->grad, 0);
}

static Status prepare(LayerRun *r) {
    Golden *g = r->g;
    int64_t width, heads, inter_multi;
    TRY(golden_meta_int(g, "width", &width));
    TRY(golden_meta_int(g, "fast_weight_heads", &heads));
    TRY(golden_meta_int(g, "inter_multi", &inter_multi));
    TRY(golden_meta_int(g, "writing_tokens", &r->writing));
    TRY(golden_read(g, &r->x, "x"));
    TRY(golden_read(g, &r->dy, "dy"));
    if (r->x.rank != 3 || r->dy.count != r->x.count)
        return status_set(STATUS_DATA, "x and dy are not both [B,m,d]");
    /* All variants with the same tensors, query rows included. */
    TRY(lact_register(&r->layer, &r->params, "", width, heads, inter_multi, (LactVariant){0}, 0));
    TRY(params_build(&r->params, g->act, true));
    TRY(golden_fill_params(g, &r->params, "p."));
    TRY(lact_state_new(g->device, 1, r->x.shape[0], heads, width / heads,
                       width / heads * inter_multi, &r->state));
    TRY(tape_new(g->device, &r->t));
    tape_set_act(r->t, g->act);
    return STATUS_OK;
}

/* The floor is the file's, not each variant's: the gradient of lr_fc.bias nearly cancels
 * (lact_nvs.md 4.1). */
static Status find_floor(LayerRun *r) {
    for (int i = 0; lact_variant_name(i); i++) {
        char prefix[64];
        double floor;
        snprintf(prefix, sizeof prefix, "%s.g.", lact_variant_name(i));
        TRY(golden_gradient_floor(r->g, prefix, &floor));
        if (floor > r->floor) r->floor = floor;
    }
    return STATUS_OK;
}

static Status run_all(LayerRun *r) {
    TRY(find_floor(r));
    for (int i = 0; lact_variant_name(i); i++) {
        char prefix[64];
        snprintf(prefix, sizeof prefix, "%s.", lact_variant_name(i));
        if (golden_has(r->g, prefix)) TRY(run_variant(r, lact_variant_name(i)));
    }
    return golden_has(r->g, "ns.") ? run_newton_schulz(r) : STATUS_OK;
}

static Status run(Golden *g) {
    LayerRun r = {.g = g};
    params_init(&r.params, g->device);
    Status s = prepare(&r);
    if (s == STATUS_OK) s = run_all(&r);
    if (r.t) tape_free(r.t);
    lact_state_free(r.state);
    params_free(&r.params);
    mem_free(r.x.values);
    mem_free(r.dy.values);
    return s;
}

const GoldenKind golden_kind_lact_layer = {"models/lact_layer", recognise, run};
