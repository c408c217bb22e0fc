/* `ttv bench step`: whole passes of a ViTTT with random weights: classify with batch 1 and with
 * --batch-size, and the training step (forward, backward, clipping, AdamW), with the memory that it
 * plans.
 */
#include "tools/bench_profile.h"

#include "core/memory.h"
#include "core/rng.h"
#include "nn/optim.h"
#include "tools/cli.h"
#include "tools/predict.h"

/* What one measurement says. */
typedef struct PassResult {
    const char *what;
    int64_t batch;
    double seconds, macs; /* multiply-adds of the pass */
    Profile profile;
} PassResult;

static void report_pass(const Bench *b, const PassResult *r) {
    double per_second = (double)r->batch / r->seconds;
    double flops = 2.0 * r->macs / r->seconds;
    if (b->json) {
        json_key(b->json, r->what);
        json_begin_object(b->json);
        json_pair_int(b->json, "batch", r->batch);
        bench_number(b->json, "ms", 1e3 * r->seconds);
        bench_number(b->json, "images_per_s", per_second);
        bench_number(b->json, "gflops", 1e-9 * flops);
        bench_number(b->json, "ceiling_share", flops / b->peak_flops);
        profile_report(b, "profile", &r->profile);
        json_end_object(b->json);
    } else {
        out_printf("%-18s batch %-4lld %9.2f ms %9.1f img/s %9.0f GFLOP/s %5.0f %% of the product "
                   "ceiling\n",
                   r->what, (long long)r->batch, 1e3 * r->seconds, per_second, 1e-9 * flops,
                   100.0 * flops / b->peak_flops);
        profile_report(b, "profile", &r->profile);
    }
}

/* ---- classify ---- */

typedef struct ClassifyPass {
    Predictor predictor;
    uint8_t *pixels;
    float *logits;
    int64_t batch;
} ClassifyPass;

static Status run_classify(void *user) {
    ClassifyPass *c = user;
    return predict(&c->predictor, c->pixels, c->batch, c->logits);
}

static void draw_pixels(uint8_t *pixels, int64_t count) {
    Rng rng = rng_stream(1, RNG_TEST, 0, 0);
    for (int64_t i = 0; i < count; i++) pixels[i] = (uint8_t)(rng_u32(&rng) >> 24);
}

static Status measure_classify(Bench *b, ClassifyPass *c, const Model *m, const char *what,
                               int64_t batch, PassResult *out) {
    progress_line(10, "step: classify, batch %lld", (long long)batch);
    c->batch = batch;
    *out = (PassResult){.what = what, .batch = batch};
    out->macs = (double)batch * (double)vittt_macs(&m->config);
    TRY(bench_time(m->device, run_classify, c, b->options->seconds, &out->seconds));
    return profile_run(m->device, run_classify, c, &out->profile);
}

/* results[2] */
static Status bench_classify(Bench *b, PassResult *results) {
    Model m;
    TRY(model_create(&m, b->config, 0, false, 1));
    ClassifyPass c = {0};
    int64_t batch = b->options->batch, side = m.config.image_size;
    int64_t image = side * side * 3;
    Status s = predictor_open(&c.predictor, &m, batch);
    if (s == STATUS_OK) s = mem_alloc((void **)&c.pixels, batch * image, 1, "bench images");
    if (s == STATUS_OK)
        s = mem_alloc((void **)&c.logits, batch * m.config.classes, sizeof(float), "bench logits");
    if (s == STATUS_OK) {
        draw_pixels(c.pixels, batch * image);
        s = measure_classify(b, &c, &m, "classify_one", 1, &results[0]);
    }
    if (s == STATUS_OK) s = measure_classify(b, &c, &m, "classify", batch, &results[1]);
    mem_free(c.logits);
    mem_free(c.pixels);
    predictor_close(&c.predictor);
    model_close(&m);
    return s;
}

/* ---- training step ---- */

typedef struct TrainPass {
    Model model;
    Tape *tape;
    AdamW optim;
    Tensor pixels, targets;
    float mean[3], std[3];
    int64_t batch, step;
} TrainPass;

/* What nn/train.c does in one optimiser step, without data, logging and files. */
static Status run_train(void *user) {
    TrainPass *p = user;
    Model *m = &p->model;
    tape_reset(p->tape, true);
    params_begin_step(&m->params);
    TRY(vittt_draw_drop_path(m->vittt, m->device, 1, p->step++, 0, p->batch));
    Var *image = op_image_normalise(p->tape, p->pixels, p->mean, p->std);
    Var *logits = vittt_forward(m->vittt, p->tape, image, true);
    Var *loss = op_cross_entropy(p->tape, logits, p->targets);
    TRY(tape_status(p->tape));
    TRY(tape_backward(p->tape, loss, 1.0f));
    TRY(params_finish_grads(&m->params));
    return adamw_step(&p->optim, 1e-4);
}

static Status take_batch(TrainPass *p) {
    Device *d = p->model.device;
    int64_t side = p->model.config.image_size, classes = p->model.config.classes;
    int64_t image[4] = {p->batch, side, side, 3}, target[2] = {p->batch, classes};
    TRY(arena_tensor(&d->state, DTYPE_U8, 4, image, &p->pixels));
    TRY(arena_tensor(&d->state, DTYPE_F32, 2, target, &p->targets));
    TRY(bench_fill(d, p->pixels, 1));
    TRY(bench_fill(d, p->targets, 2));
    for (int c = 0; c < 3; c++) {
        p->mean[c] = (float)p->model.preprocess.mean[c];
        p->std[c] = (float)p->model.preprocess.std[c];
    }
    return STATUS_OK;
}

static Status train_pass_open(TrainPass *p) {
    AdamWOptions recipe = {0.9f, 0.999f, 1e-8f, 0.05f, 5.0f};
    TRY(tape_new(p->model.device, &p->tape));
    tape_set_act(p->tape, p->model.act);
    TRY(adamw_init(&p->optim, &p->model.params, recipe));
    return take_batch(p);
}

static int64_t device_growths(const Device *d) {
    return d->weights.growths + d->state.growths + d->step.growths + d->scratch.growths;
}

/* Memory of the training step, and whether it is planned: nothing is allocated after step 1. */
static void report_memory(const Bench *b, const Device *d, int64_t late_growths) {
    const Arena *arenas[4] = {&d->weights, &d->state, &d->step, &d->scratch};
    if (b->json) {
        json_key(b->json, "memory");
        json_begin_object(b->json);
        for (int i = 0; i < 4; i++)
            json_pair_int(b->json, arenas[i]->name, (int64_t)arenas[i]->peak);
        json_pair_int(b->json, "allocations_after_step_1", late_growths);
        json_end_object(b->json);
        return;
    }
    out_printf("memory of training ");
    for (int i = 0; i < 4; i++)
        out_printf("%s %s %.1f MB", i ? "," : "", arenas[i]->name, 1e-6 * (double)arenas[i]->peak);
    out_printf("; allocations after step 1: %lld\n", (long long)late_growths);
}

static Status measure_train(Bench *b, TrainPass *p, PassResult *out, int64_t *late_growths) {
    progress_line(10, "step: training, batch %lld", (long long)p->batch);
    TRY(train_pass_open(p));
    TRY(run_train(p));
    int64_t before = device_growths(p->model.device);
    *out = (PassResult){.what = "train", .batch = p->batch};
    out->macs = 3.0 * (double)p->batch * (double)vittt_macs(&p->model.config);
    TRY(bench_time(p->model.device, run_train, p, b->options->seconds, &out->seconds));
    TRY(profile_run(p->model.device, run_train, p, &out->profile));
    *late_growths = device_growths(p->model.device) - before;
    return STATUS_OK;
}

static void report_head(const Bench *b, const Model *m) {
    if (b->json) {
        json_pair_string(b->json, "model", m->name);
        json_pair_int(b->json, "parameters", m->params.total);
        json_pair_int(b->json, "image_size", m->config.image_size);
        json_pair_int(b->json, "macs", vittt_macs(&m->config));
    } else {
        out_printf("%s at %lld px, %lld parameters, %.3f G multiply-adds an image, %s\n", m->name,
                   (long long)m->config.image_size, (long long)m->params.total,
                   1e-9 * (double)vittt_macs(&m->config), dtype_name(m->act));
    }
}

static void report_step(const Bench *b, const TrainPass *p, const PassResult *results,
                        int64_t late_growths) {
    if (b->json) {
        json_key(b->json, "step");
        json_begin_object(b->json);
    }
    report_head(b, &p->model);
    int first = b->options->batch == 1 ? 1 : 0; /* the same measurement twice */
    for (int i = first; i < 3; i++) report_pass(b, &results[i]);
    report_memory(b, p->model.device, late_growths);
    if (b->json) json_end_object(b->json);
}

Status bench_step(Bench *b) {
    PassResult results[3];
    int64_t late_growths = 0;
    TRY(status_context(bench_classify(b, results), "classify pass"));

    TrainPass p = {.batch = b->options->batch};
    TRY(model_create(&p.model, b->config, 0, true, 1));
    Status s = status_context(measure_train(b, &p, &results[2], &late_growths), "training pass");
    /* Last, on the other device: the ceilings must not count in the memory of the step. */
    if (s == STATUS_OK) s = bench_ceilings(b);
    if (s == STATUS_OK) report_step(b, &p, results, late_growths);
    tape_free(p.tape);
    model_close(&p.model);
    return s;
}
