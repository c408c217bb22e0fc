/* A small LaCT-NVS model with random tokens; shared by the test_lact_nvs*.c files. */
#ifndef TTV_TESTS_UNIT_LACT_NVS_FIXTURE_H
#define TTV_TESTS_UNIT_LACT_NVS_FIXTURE_H

#include <stdio.h>

#include "core/memory.h"
#include "nn/optim.h"
#include "nvs/lact_nvs.h"
#include "vittt_fixture.h"

/* Views of 12 x 8 pixels, 6 tokens each. */
static inline LactNvsConfig tiny(int64_t layers, const char *variant) {
    LactNvsConfig c = {.preset = "custom",
                       .height = 8,
                       .view_width = 12,
                       .patch = 4,
                       .width = 16,
                       .layers = layers,
                       .head_width = 8,
                       .fast_heads = 2,
                       .inter_multi = 1,
                       .pose_margin = 1};
    snprintf(c.variant, sizeof c.variant, "%s", variant);
    return c;
}

typedef struct Model {
    Device *device;
    Tape *tape;
    Params params;
    LactNvs *nvs;
    float *tokens; /* [batch, views, l, 12 p^2] */
    int64_t batch, views, inputs;
} Model;

static inline int64_t view_size(const Model *m) {
    return lact_nvs_view_tokens(m->nvs) * lact_nvs_token_size(m->nvs);
}

/* Batch, views and inputs stand in m already. */
static inline void model_open_of(Model *m, LactNvsConfig c, DType act) {
    check_ok(device_open("cpu", &m->device));
    params_init(&m->params, m->device);
    check_ok(lact_nvs_new(&c, &m->params, &m->nvs));
    check_ok(params_build(&m->params, act, true));
    check_ok(params_initialise(&m->params, 1));
    check_ok(tape_new(m->device, &m->tape));
    tape_set_act(m->tape, act);
    const int64_t n = m->batch * m->views * view_size(m);
    m->tokens = malloc(sizeof(float) * (size_t)n);
    fill_normal(m->tokens, n, 9, 0.6);
}

static inline void model_open(Model *m, LactNvsConfig c, DType act) {
    *m = (Model){.batch = 2, .views = 5, .inputs = 3};
    model_open_of(m, c, act);
}

static inline void model_close(Model *m) {
    free(m->tokens);
    tape_free(m->tape);
    lact_nvs_free(m->nvs);
    params_free(&m->params);
    device_close(m->device);
}

/* Views [first, first + count) of every sample. */
static inline Var *view_input(Model *m, int64_t first, int64_t count) {
    const int64_t size = view_size(m), each = count * size;
    float *x = malloc(sizeof *x * (size_t)(m->batch * each));
    for (int64_t b = 0; b < m->batch; b++)
        memcpy(x + b * each, m->tokens + (b * m->views + first) * size, sizeof *x * (size_t)each);
    const int64_t shape[] = {m->batch, count * lact_nvs_view_tokens(m->nvs),
                             lact_nvs_token_size(m->nvs)};
    Var *v = tape_input(m->tape, push_floats(m->tape, x, DTYPE_F32, 3, shape), "tokens");
    free(x);
    return v;
}

/* Loss of a model of m's batch and views on one batch of random colours before each of `steps`
 * steps; the last one returns. */
static inline double model_overfit(Model m, LactNvsConfig c, DType act, int steps) {
    AdamW optim;
    double loss = 0;
    model_open_of(&m, c, act);
    check_ok(adamw_init(&optim, &m.params, (AdamWOptions){0.9f, 0.95f, 1e-8f, 0.05f, 1.0f, 4.0f}));
    const int64_t targets = (m.views - m.inputs) * lact_nvs_view_tokens(m.nvs);
    const int64_t shape[] = {m.batch, targets, 3 * c.patch * c.patch};
    const int64_t n = shape[0] * shape[1] * shape[2];
    float *want = malloc(sizeof *want * (size_t)n);
    Rng r = rng_stream(7, RNG_TEST, 55, 0);
    for (int64_t i = 0; i < n; i++) want[i] = (float)rng_range(&r, 0.1, 0.9);
    for (int s = 0; s < steps; s++) {
        params_begin_step(&m.params);
        tape_reset(m.tape, true);
        Tensor target = push_floats(m.tape, want, DTYPE_F32, 3, shape);
        Var *rgb = lact_nvs_forward(m.nvs, m.tape, view_input(&m, 0, m.views), m.inputs, NULL);
        Var *error = op_mse(m.tape, rgb, target);
        check_ok(tape_status(m.tape));
        double *value = pull_doubles(m.device, error->value);
        loss = value[0];
        free(value);
        check_ok(tape_backward(m.tape, error, 1));
        check_ok(params_finish_grads(&m.params));
        check_ok(adamw_step(&optim, 1e-2));
    }
    free(want);
    model_close(&m);
    return loss;
}

#endif
