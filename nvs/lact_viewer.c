#include "nvs/lact_viewer.h"

#include <stdio.h>

#include "core/log.h"
#include "core/memory.h"
#include "nn/ops.h"

#define CAMERA_NUMBERS 16

/* A pass over data that lies on the device. */
typedef struct Pass {
    Tensor cameras, rgb; /* rgb: none where no view has colours */
    Tensor result;       /* of rendering, in the tape's memory: the same in every call */
    Status (*kernels)(LactViewer *v);
    DeviceGraph *graph;
    bool ran;
} Pass;

struct LactViewer {
    LactNvs *model;
    Tape *tape;
    LactState *state;
    int64_t inputs;
    Pass reconstruct, render;
    float *numbers; /* host: cameras of a call */
    bool refused;   /* a pass could not be recorded */
    bool recorded;  /* the last one was a graph */
};

/* ---- passes: kernels alone --------------------------------------------------------------- */

static Var *begin(LactViewer *v, const Pass *p) {
    const LactNvsConfig *c = &v->model->config;
    tape_reset(v->tape, false);
    return op_view_tokens(v->tape, p->cameras, p->rgb, c->height, c->view_width, c->patch);
}

/* With the form of the state that rendering reads: a graph of rendering must not make it anew. */
static Status reconstruct_kernels(LactViewer *v) {
    TRY(lact_reconstruct(v->model, v->tape, begin(v, &v->reconstruct), v->state));
    lact_state_fast(v->state, v->tape, 0);
    return tape_status(v->tape);
}

static Status render_kernels(LactViewer *v) {
    Var *y = lact_render(v->model, v->tape, begin(v, &v->render), v->state);
    TRY(tape_status(v->tape));
    v->render.result = y->value;
    return STATUS_OK;
}

static Status record(LactViewer *v, Pass *p) {
    Device *d = tape_device(v->tape);
    char message[1024];
    TRY(device_graph_begin(d));
    const Status s = p->kernels(v);
    snprintf(message, sizeof message, "%s", status_message());
    const Status end = device_graph_end(d, &p->graph);
    return s == STATUS_OK ? end : status_set(s, "%s", message);
}

static Status run(LactViewer *v, Pass *p) {
    Device *d = tape_device(v->tape);
    v->recorded = false;
    if (p->ran && !p->graph && !v->refused && device_can_capture(d) && record(v, p) != STATUS_OK) {
        log_warn("views are made call by call, a pass could not be recorded: %s", status_message());
        v->refused = true;
    }
    if (p->graph) {
        v->recorded = true;
        return device_graph_launch(d, p->graph);
    }
    TRY(p->kernels(v));
    p->ran = true;
    return STATUS_OK;
}

/* ---- set-up ------------------------------------------------------------------------------ */

static Status pass_open(LactViewer *v, Pass *p, int64_t views, bool colours,
                        Status (*kernels)(LactViewer *)) {
    const LactNvsConfig *c = &v->model->config;
    Arena *arena = &tape_device(v->tape)->state;
    p->kernels = kernels;
    TRY(arena_tensor(arena, DTYPE_F32, 3, (int64_t[]){1, views, CAMERA_NUMBERS}, &p->cameras));
    if (!colours) return STATUS_OK;
    return arena_tensor(arena, DTYPE_U8, 4, (int64_t[]){1, views, c->height * c->view_width, 3},
                        &p->rgb);
}

static void pass_close(LactViewer *v, Pass *p) {
    Device *d = tape_device(v->tape);
    if (p->graph) device_graph_free(d, p->graph);
    if (p->rgb.data) arena_give(&d->state, p->rgb.data, tensor_bytes(p->rgb));
    if (p->cameras.data) arena_give(&d->state, p->cameras.data, tensor_bytes(p->cameras));
}

static Status check(const LactNvs *m, const LactState *state, int64_t inputs) {
    TRY(lact_nvs_state_check(m, state));
    if (state->batch != 1)
        return status_set(STATUS_DATA, "a viewer has one scene, the state holds %lld",
                          (long long)state->batch);
    if (inputs < 1)
        return status_set(STATUS_USAGE, "a viewer of %lld input views", (long long)inputs);
    return STATUS_OK;
}

static Status open_passes(LactViewer *v) {
    void *numbers;
    TRY(mem_alloc(&numbers, v->inputs * CAMERA_NUMBERS, sizeof(float), "cameras"));
    v->numbers = numbers;
    TRY(pass_open(v, &v->reconstruct, v->inputs, true, reconstruct_kernels));
    return pass_open(v, &v->render, 1, false, render_kernels);
}

Status lact_viewer_new(LactNvs *m, Tape *t, LactState *state, int64_t inputs, LactViewer **out) {
    LactViewer *v;
    TRY(check(m, state, inputs));
    TRY(mem_alloc((void **)&v, 1, sizeof *v, "a viewer"));
    *v = (LactViewer){.model = m, .tape = t, .state = state, .inputs = inputs};
    const Status s = open_passes(v);
    if (s != STATUS_OK) {
        lact_viewer_free(v);
        return s;
    }
    *out = v;
    return STATUS_OK;
}

void lact_viewer_free(LactViewer *v) {
    if (!v) return;
    pass_close(v, &v->render);
    pass_close(v, &v->reconstruct);
    mem_free(v->numbers);
    mem_free(v);
}

/* ---- calls ------------------------------------------------------------------------------- */

static Status push_cameras(LactViewer *v, const Pass *p, const Camera *cameras) {
    float *to = v->numbers;
    for (int64_t i = 0; i < p->cameras.shape[1]; i++) {
        const Camera *c = &cameras[i];
        for (int j = 0; j < 12; j++) *to++ = (float)c->c2w[j];
        const double rest[] = {c->fx, c->fy, c->cx, c->cy};
        for (int j = 0; j < 4; j++) *to++ = (float)rest[j];
    }
    return device_push(tape_device(v->tape), p->cameras, v->numbers);
}

Status lact_viewer_reconstruct(LactViewer *v, const Camera *cameras, const uint8_t *pixels) {
    TRY(push_cameras(v, &v->reconstruct, cameras));
    TRY(device_push(tape_device(v->tape), v->reconstruct.rgb, pixels));
    return run(v, &v->reconstruct);
}

Status lact_viewer_render(LactViewer *v, const Camera *camera, float *patches) {
    TRY(push_cameras(v, &v->render, camera));
    TRY(run(v, &v->render));
    return device_pull(tape_device(v->tape), patches, v->render.result);
}

bool lact_viewer_recorded(const LactViewer *v) {
    return v->recorded;
}
