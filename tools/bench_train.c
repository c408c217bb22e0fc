/* The training step of `ttv bench step`: what nn/train_step.c does, without data set, logging and
 * files.
 */
#include "tools/bench_passes.h"

#include <string.h>

#include "core/memory.h"
#include "datasets/mix.h"
#include "nn/optim.h"
#include "nn/plan.h"
#include "tools/cli.h"
#include "tools/model_io.h"

typedef struct TrainPass {
    Model model;
    Tape *tape;
    AdamW optim;
    Tensor pixels, targets, samples, mix, loss; /* loss: a copy that outlives the step */
    void *host_pixels, *host_targets;
    int32_t *host_samples;
    float mean[3], std[3];
    int64_t batch, step;
    DeviceGraph *graph;
} TrainPass;

static const double RATE = 1e-4;

static Var *loss_of(void *user, Tape *t, int64_t batch) {
    TrainPass *p = user;
    int64_t side = p->model.config.image_size, classes = p->model.config.classes;
    Tensor pixels = tensor_4d(p->pixels.data, DTYPE_U8, batch, side, side, 3);
    Tensor targets = tensor_2d(p->targets.data, DTYPE_F32, batch, classes);
    Tensor samples = tensor_2d(p->samples.data, DTYPE_I32, batch, MIX_NUMBERS);
    const int64_t patch = vittt_input_patch(&p->model.config), grid = side / p->model.config.patch;
    Var *patches = op_image_prepare(t, pixels, samples, p->mix, p->mean, p->std, patch);
    Var *logits = vittt_forward_patches(p->model.vittt, t, patches, grid, grid, true);
    return op_cross_entropy(t, logits, targets);
}

/* All kernels of a step; the learning rate and the drop-path scales are on the device already. */
static Status run_kernels(void *user) {
    TrainPass *p = user;
    Device *d = p->model.device;
    tape_reset(p->tape, true);
    params_begin_step(&p->model.params);
    Var *loss = loss_of(p, p->tape, p->batch);
    TRY(tape_status(p->tape));
    TRY(tape_backward(p->tape, loss, 1.0f));
    TRY(d->k->copy(d, grad_set(p->loss), loss->value, 1.0f));
    TRY(params_finish_grads(&p->model.params));
    return adamw_apply(&p->optim);
}

static Status run_eager(void *user) {
    TrainPass *p = user;
    TRY(vittt_draw_drop_path(p->model.vittt, p->model.device, 1, p->step++, 0, p->batch));
    TRY(adamw_set_lr(&p->optim, RATE));
    return run_kernels(p);
}

static Status run_graph(void *user) {
    TrainPass *p = user;
    return device_graph_launch(p->model.device, p->graph);
}

static Status stage_batch(TrainPass *p) {
    Device *d = p->model.device;
    TRY(device_stage(d, p->pixels, p->host_pixels));
    TRY(device_stage(d, p->targets, p->host_targets));
    TRY(device_stage(d, p->samples, p->host_samples));
    return vittt_stage_drop_path(p->model.vittt, d, 1, p->step++, 0, p->batch);
}

static Status run_fed(void *user) {
    TrainPass *p = user;
    float loss, norm, clip;
    TRY(device_commit(p->model.device));
    TRY(adamw_set_lr(&p->optim, RATE));
    TRY(run_graph(p));
    TRY(stage_batch(p));
    TRY(device_pull(p->model.device, &loss, p->loss));
    return adamw_report(&p->optim, &norm, &clip);
}

/* ---- set-up ---- */

/* Flips, erased boxes and mixup by the ImageNet recipe. */
static Status draw_mix(TrainPass *p) {
    const Augment a = {
        .flip = 0.5, .mixup = 0.8, .mixup_prob = 1, .mixup_switch_prob = 0.5, .reprob = 0.25};
    Device *d = p->model.device;
    const int64_t side = p->model.config.image_size;
    float mix[MIX_NUMBERS];
    Rng rng = rng_stream(1, RNG_TEST, 0, 0);
    const BatchMix batch = batch_mix_draw(&a, side, &rng);
    batch_mix_write(&batch, mix);
    TRY(mem_alloc((void **)&p->host_samples, p->batch * MIX_NUMBERS, sizeof(int32_t), "draws"));
    for (int64_t i = 0; i < p->batch; i++) {
        const SampleMix sample = sample_mix_draw(&a, side, &rng);
        sample_mix_write(&sample, p->host_samples + i * MIX_NUMBERS);
    }
    TRY(device_push(d, p->samples, p->host_samples));
    TRY(device_push(d, p->mix, mix));
    return device_sync(d);
}

static Status take_batch(TrainPass *p) {
    Device *d = p->model.device;
    int64_t side = p->model.config.image_size, classes = p->model.config.classes, one = 1;
    int64_t image[4] = {p->batch, side, side, 3}, target[2] = {p->batch, classes};
    int64_t sample[2] = {p->batch, MIX_NUMBERS}, numbers = MIX_NUMBERS;
    TRY(arena_tensor(&d->state, DTYPE_U8, 4, image, &p->pixels));
    TRY(arena_tensor(&d->state, DTYPE_F32, 2, target, &p->targets));
    TRY(arena_tensor(&d->state, DTYPE_I32, 2, sample, &p->samples));
    TRY(arena_tensor(&d->state, DTYPE_F32, 1, &numbers, &p->mix));
    TRY(arena_tensor(&d->state, DTYPE_F32, 1, &one, &p->loss));
    TRY(bench_fill(d, p->pixels, 1));
    TRY(bench_fill(d, p->targets, 2));
    for (int c = 0; c < 3; c++) {
        p->mean[c] = (float)p->model.preprocess.mean[c];
        p->std[c] = (float)p->model.preprocess.std[c];
    }
    return draw_mix(p);
}

static Status open_pass(TrainPass *p) {
    AdamWOptions recipe = {0.9f, 0.999f, 1e-8f, 0.05f, 5.0f, 0};
    StepPlan plan;
    TRY(tape_new(p->model.device, &p->tape));
    tape_set_act(p->tape, p->model.act);
    TRY(adamw_init(&p->optim, &p->model.params, recipe));
    TRY(take_batch(p));
    return plan_reserve(&(PlanTask){&p->model.params, p->model.act, p, loss_of}, p->batch, &plan);
}

static Status pull_batch(TrainPass *p) {
    TRY(bench_pull(p->model.device, p->pixels, &p->host_pixels, "bench images"));
    return bench_pull(p->model.device, p->targets, &p->host_targets, "bench targets");
}

static void close_pass(TrainPass *p) {
    if (p->graph) device_graph_free(p->model.device, p->graph);
    mem_free(p->host_pixels);
    mem_free(p->host_targets);
    mem_free(p->host_samples);
    tape_free(p->tape);
    model_close(&p->model);
}

/* ---- measuring ---- */

static PassResult *add_train(PassResults *out, const TrainPass *p, const char *what) {
    return pass_add(out, what, p->batch,
                    3.0 * (double)p->batch * (double)vittt_macs(&p->model.config));
}

static Status measure_graph(Bench *b, TrainPass *p, PassResults *out) {
    Device *d = p->model.device;
    double seconds = b->options->seconds;
    TRY(bench_record(d, run_kernels, p, 1, &p->graph));
    TRY(bench_time(d, run_graph, p, seconds, &add_train(out, p, "train")->seconds));
    TRY(pull_batch(p));
    TRY(stage_batch(p));
    return bench_time(d, run_fed, p, seconds, &add_train(out, p, "train_fed")->seconds);
}

static Status measure(Bench *b, TrainPass *p, PassResults *out) {
    Device *d = p->model.device;
    bool recorded = device_can_capture(d);
    progress_line(10, "step: training, batch %lld", (long long)p->batch);
    TRY(open_pass(p));
    TRY(run_eager(p));
    int64_t before = pass_growths(d);
    PassResult *r = add_train(out, p, recorded ? "train_eager" : "train");
    TRY(bench_time(d, run_eager, p, b->options->seconds, &r->seconds));
    TRY(profile_run(d, run_eager, p, &r->profile));
    r->profiled = true;
    pass_memory(d, &out->train);
    out->train.late_growths = pass_growths(d) - before;
    return recorded ? measure_graph(b, p, out) : STATUS_OK;
}

Status bench_train(Bench *b, PassResults *out) {
    TrainPass p = {.batch = b->options->batch};
    TRY(model_create(&p.model, b->config, 0, true, 1));
    out->parameters = p.model.params.total;
    Status s = measure(b, &p, out);
    close_pass(&p);
    return s;
}
