/* Classification passes of `ttv bench step`. */
#include "tools/bench_passes.h"

#include "core/memory.h"
#include "core/rng.h"
#include "tools/cli.h"
#include "tools/predict.h"

typedef struct ClassifyPass {
    Model model;
    Predictor predictor;
    uint8_t *pixels;
    float *logits;
    float mean[3], std[3];
    int64_t batch;
} ClassifyPass;

static Status run_classify(void *user) {
    ClassifyPass *c = user;
    return predict(&c->predictor, c->pixels, c->batch, c->logits);
}

/* The kernels of predict(), on the pixels that it left on the device. */
static Status run_forward(void *user) {
    ClassifyPass *c = user;
    Tape *t = c->predictor.tape;
    const int64_t side = c->model.preprocess.image_size;
    Tensor input = tensor_4d(c->predictor.pixels.data, DTYPE_U8, c->batch, side, side, 3);
    tape_reset(t, false);
    const int64_t grid = side / c->model.config.patch;
    Var *patches =
        op_image_normalise(t, input, c->mean, c->std, vittt_input_patch(&c->model.config));
    vittt_forward_patches(c->model.vittt, t, patches, grid, grid, false);
    return tape_status(t);
}

static void draw_pixels(uint8_t *pixels, int64_t count) {
    Rng rng = rng_stream(1, RNG_TEST, 0, 0);
    for (int64_t i = 0; i < count; i++) pixels[i] = (uint8_t)(rng_u32(&rng) >> 24);
}

static Status open_pass(ClassifyPass *c, int64_t batch) {
    const Model *m = &c->model;
    int64_t side = m->config.image_size, image = side * side * 3;
    for (int i = 0; i < 3; i++) {
        c->mean[i] = (float)m->preprocess.mean[i];
        c->std[i] = (float)m->preprocess.std[i];
    }
    TRY(predictor_open(&c->predictor, m, batch));
    TRY(mem_alloc((void **)&c->pixels, batch * image, 1, "bench images"));
    TRY(mem_alloc((void **)&c->logits, batch * m->config.classes, sizeof(float), "bench logits"));
    draw_pixels(c->pixels, batch * image);
    return STATUS_OK;
}

static Status measure(Bench *b, ClassifyPass *c, int64_t batch, const char *classify,
                      const char *forward, PassResults *out) {
    Device *d = c->model.device;
    double macs = (double)batch * (double)vittt_macs(&c->model.config);
    progress_line(10, "step: classify, batch %lld", (long long)batch);
    c->batch = batch;
    PassResult *r = pass_add(out, classify, batch, macs);
    TRY(bench_time(d, run_classify, c, b->options->seconds, &r->seconds));
    TRY(profile_run(d, run_classify, c, &r->profile));
    r->profiled = true;
    if (!device_can_capture(d)) return STATUS_OK;
    r = pass_add(out, forward, batch, macs);
    return bench_time_recorded(d, run_forward, c, 1, b->options->seconds, &r->seconds);
}

Status bench_classify(Bench *b, PassResults *out) {
    ClassifyPass c = {0};
    int64_t batch = b->options->batch;
    TRY(model_create(&c.model, b->config, 0, false, 1));
    Status s = open_pass(&c, batch);
    /* With --batch-size 1 both are the same. */
    if (s == STATUS_OK && batch > 1) s = measure(b, &c, 1, "classify_one", "forward_one", out);
    if (s == STATUS_OK) s = measure(b, &c, batch, "classify", "forward", out);
    pass_memory(c.model.device, &out->classify);
    mem_free(c.logits);
    mem_free(c.pixels);
    predictor_close(&c.predictor);
    model_close(&c.model);
    return s;
}
