/* A LaCT layer with random parameters; shared by the test_lact*.c files. */
#ifndef TTV_TESTS_UNIT_LACT_FIXTURE_H
#define TTV_TESTS_UNIT_LACT_FIXTURE_H

#include "core/memory.h"
#include "ttt/lact.h"
#include "vittt_fixture.h"

typedef struct Layer {
    Device *device;
    Tape *tape;
    Params params;
    LactLayer lact;
    int64_t batch, tokens, writing, width;
    float *x, *dy;
} Layer;

/* Batch, tokens, writing and width stand in l already. */
static inline void layer_open_on(Layer *l, const char *device, int64_t heads, int64_t inter_multi,
                                 const char *variant, DType act) {
    LactVariant v;
    check_ok(device_open(device, &l->device));
    params_init(&l->params, l->device);
    check_ok(lact_variant_by_name(variant, &v));
    check_ok(lact_register(&l->lact, &l->params, "f.", l->width, heads, inter_multi, v, 0.3f));
    check_ok(params_build(&l->params, act, true));
    params_fill_normal(&l->params, 0.4);
    check_ok(tape_new(l->device, &l->tape));
    tape_set_act(l->tape, act);
    const int64_t n = l->batch * l->tokens * l->width;
    l->x = malloc(sizeof(float) * (size_t)n);
    l->dy = malloc(sizeof(float) * (size_t)n);
    fill_normal(l->x, n, 100, 1);
    fill_normal(l->dy, n, 101, 1);
}

static inline void layer_open(Layer *l, int64_t heads, int64_t inter_multi, const char *variant,
                              DType act) {
    *l = (Layer){.batch = 2, .tokens = 9, .writing = 6, .width = 8};
    layer_open_on(l, "cpu", heads, inter_multi, variant, act);
}

static inline void layer_close(Layer *l) {
    free(l->x);
    free(l->dy);
    tape_free(l->tape);
    params_free(&l->params);
    device_close(l->device);
}

static inline int64_t layer_count(const Layer *l) {
    return l->batch * l->tokens * l->width;
}

static inline Var *layer_input(Layer *l, const float *x, int64_t tokens) {
    const int64_t shape[] = {l->batch, tokens, l->width};
    return tape_input_grad(l->tape, push_floats(l->tape, x, tape_act(l->tape), 3, shape), "x");
}

enum { LAYER_PARTS = 10 }; /* gradients of eight parameters and of x, and y */

/* sum(y dy) with y = layer + x; everything in doubles, the caller's to free. */
static inline void layer_results(Layer *l, double *out[LAYER_PARTS]) {
    Tape *t = l->tape;
    params_begin_step(&l->params);
    tape_reset(t, true);
    Var *x = layer_input(l, l->x, l->tokens);
    const int64_t shape[] = {l->batch, l->tokens, l->width};
    Tensor dy = push_floats(t, l->dy, DTYPE_F32, 3, shape);
    Var *y = lact_forward(&l->lact, t, x, l->writing, x, NULL);
    Var *loss = sum_of_products(t, y, dy);
    check_ok(tape_status(t));
    out[9] = pull_doubles(l->device, y->value);
    check_ok(tape_backward(t, loss, 1));
    check_ok(params_finish_grads(&l->params));
    for (int k = 0; k < 8; k++) out[k] = pull_doubles(l->device, l->params.items[k]->var.grad);
    out[8] = pull_doubles(l->device, x->grad);
}

/* y without recording. */
static inline double *layer_infer(Layer *l, const float *x) {
    tape_reset(l->tape, false);
    Var *y = lact_forward(&l->lact, l->tape, layer_input(l, x, l->tokens), l->writing, NULL, NULL);
    check_ok(tape_status(l->tape));
    return pull_doubles(l->device, y->value);
}

/* sum(y dy) in doubles. */
static inline double layer_loss(Layer *l) {
    double *y = layer_infer(l, l->x), sum = 0;
    for (int64_t i = 0; i < layer_count(l); i++) sum += y[i] * (double)l->dy[i];
    free(y);
    return sum;
}

static inline void layer_backward(Layer *l, Var **input) {
    Tape *t = l->tape;
    params_begin_step(&l->params);
    tape_reset(t, true);
    *input = layer_input(l, l->x, l->tokens);
    const int64_t shape[] = {l->batch, l->tokens, l->width};
    Tensor dy = push_floats(t, l->dy, DTYPE_F32, 3, shape);
    Var *y = lact_forward(&l->lact, t, *input, l->writing, NULL, NULL);
    check_ok(tape_backward(t, sum_of_products(t, y, dy), 1));
    check_ok(params_finish_grads(&l->params));
}

#endif
