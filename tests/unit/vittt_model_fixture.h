/* A small plain ViTTT on the CPU; shared by test_vittt.c and test_vittt_train.c. */
#ifndef TTV_TESTS_UNIT_VITTT_MODEL_FIXTURE_H
#define TTV_TESTS_UNIT_VITTT_MODEL_FIXTURE_H

#include "vision/vittt.h"
#include "vittt_fixture.h"

static inline VitttConfig tiny(int64_t depth, double drop_path) {
    return (VitttConfig){.preset = "custom",
                         .image_size = 16,
                         .patch = 4,
                         .width = 24,
                         .depth = depth,
                         .heads = 3,
                         .mlp_ratio = 2,
                         .classes = 8,
                         .drop_path = drop_path,
                         .mixer = "base"};
}

typedef struct Model {
    Device *device;
    Tape *tape;
    Params params;
    Vittt *vittt;
} Model;

static inline void model_open(Model *m, VitttConfig c, DType act, bool training) {
    check_ok(device_open("cpu", &m->device));
    params_init(&m->params, m->device);
    check_ok(vittt_new(&c, &m->params, &m->vittt));
    check_ok(params_build(&m->params, act, training));
    check_ok(params_initialise(&m->params, 1));
    check_ok(tape_new(m->device, &m->tape));
    tape_set_act(m->tape, act);
}

static inline void model_close(Model *m) {
    tape_free(m->tape);
    vittt_free(m->vittt);
    params_free(&m->params);
    device_close(m->device);
}

/* Logits [batch,classes] of the given image. */
static inline double *logits_of(Model *m, const float *image, int64_t batch, int64_t h, int64_t w,
                                bool record, bool training) {
    Tape *t = m->tape;
    tape_reset(t, record);
    Var *x =
        tape_input(t, push_floats(t, image, tape_act(t), 4, (int64_t[]){batch, h, w, 3}), "image");
    Var *y = vittt_forward(m->vittt, t, x, training);
    check_ok(tape_status(t));
    assert_int_equal(y->value.dtype, DTYPE_F32);
    assert_int_equal(tensor_count(y->value), batch * m->vittt->config.classes);
    return pull_doubles(m->device, y->value);
}

#endif
