/* `ttv bench nvs`: a LaCT-NVS with random weights: the training step, reconstruction of a scene,
 * and rendering of a view (lact_nvs.md 3.5). Where the device can record, train, train_fed,
 * reconstruct and render are graphs, and the passes named "eager" the same call by call.
 */
#include "tools/bench_passes.h"

#include "core/memory.h"
#include "nn/optim.h"
#include "nn/plan.h"
#include "tools/cli.h"
#include "tools/nvs_model.h"

typedef struct NvsPass {
    NvsModel model;
    AdamW optim;
    Tape *training; /* records; the model's own tape does not */
    /* Of a training batch: cameras F32 [B,V,16], colours of the input views, what the others show;
     * loss: a copy that outlives the step. Of one scene: its first cameras and colours. */
    Tensor cameras, rgb, patches, loss;
    void *host_cameras, *host_rgb, *host_patches;
    LactState *state;
    int64_t batch, inputs, targets;
    DeviceGraph *graph;
} NvsPass;

static const double RATE = 1e-4;

/* ---- multiply-adds (lact_nvs.md 4.5) ----------------------------------------------------- */

static double newton_schulz_macs(double e, double h) {
    const double r = e < h ? e : h, c = e < h ? h : e;
    return 5 * (2 * r * r * c + r * r * r);
}

/* Of one head whose steps are orthogonalised: whole, or in the span of n tokens, with what makes
 * and uses the basis. */
static double steps_macs(double n, double e, double h, bool span) {
    if (!span) return 3 * newton_schulz_macs(e, h);
    return 3 * newton_schulz_macs(n, h) + 3 * n * n * h + 2 * (2 * n * n * e + 2.5 * n * n * n);
}

/* Of one sample: `all` tokens attend, `writing` of them write, `reading` of them read and pass the
 * rest of the block. */
static double block_macs(const LactNvsConfig *c, double view, double all, double writing,
                         double reading, bool span) {
    const double d = (double)c->width, heads = (double)c->fast_heads, e = d / heads;
    const double h = e * (double)c->inter_multi;
    const double attention = all * (4 * d * d + 2 * view * d);
    const double projections = (writing + reading) * 2 * d * d;
    const double fast = heads * (writing * 6 * e * h + reading * 3 * e * h);
    const double muon = writing > 0 ? heads * steps_macs(writing, e, h, span) : 0;
    return attention + projections + fast + muon + reading * 8 * d * d;
}

/* The forward pass of one scene of `batch`; dead work of the last block left out. */
static double forward_macs(const NvsPass *p, int64_t batch, int64_t inputs, int64_t targets) {
    const LactNvsConfig *c = &p->model.config;
    const double view = (double)lact_nvs_view_tokens(p->model.nvs), d = (double)c->width;
    const double in = view * (double)inputs, out = view * (double)targets;
    const double pixels = (double)(c->patch * c->patch);
    const bool span =
        lact_writes_in_span(&p->model.nvs->blocks[0].ttt, p->model.act, batch, (int64_t)in);
    const double block = block_macs(c, view, in + out, in, in + out, span);
    return (in + out) * VIEW_CHANNELS * pixels * d + (double)(c->layers - 1) * block +
           block_macs(c, view, in + out, in, out, span) + out * d * 3 * pixels;
}

/* Of rendering: every block reads, none writes. */
static double render_macs(const NvsPass *p) {
    const LactNvsConfig *c = &p->model.config;
    const double view = (double)lact_nvs_view_tokens(p->model.nvs);
    const double values = (double)((VIEW_CHANNELS + 3) * c->patch * c->patch * c->width);
    return (double)c->layers * block_macs(c, view, view, 0, view, false) + view * values;
}

/* Tokens of the first `views` views, `inputs` of them with colours; as many views a scene as the
 * batch has, or one scene. */
static Var *tokens_of(const NvsPass *p, Tape *t, int64_t batch, int64_t views, int64_t inputs) {
    const LactNvsConfig *c = &p->model.config;
    const Tensor cameras = tensor_3d(p->cameras.data, DTYPE_F32, batch, views, 16);
    const Tensor rgb =
        inputs ? tensor_4d(p->rgb.data, DTYPE_U8, batch, inputs, c->height * c->view_width, 3)
               : tensor_none();
    return op_view_tokens(t, cameras, rgb, c->height, c->view_width, c->patch);
}

/* ---- passes: kernels alone --------------------------------------------------------------- */

static Var *loss_of(void *user, Tape *t, int64_t batch) {
    NvsPass *p = user;
    const int64_t *o = p->patches.shape;
    Var *x = tokens_of(p, t, batch, p->inputs + p->targets, p->inputs);
    Var *rgb = lact_nvs_forward(p->model.nvs, t, x, p->inputs, NULL);
    return op_mse(t, rgb, tensor_3d(p->patches.data, DTYPE_F32, batch, o[1], o[2]));
}

static Status run_kernels(void *user) {
    NvsPass *p = user;
    Device *d = p->model.device;
    tape_reset(p->training, true);
    params_begin_step(&p->model.params);
    Var *loss = loss_of(p, p->training, p->batch);
    TRY(tape_status(p->training));
    TRY(tape_backward(p->training, loss, 1.0f));
    TRY(d->k->copy(d, grad_set(p->loss), loss->value, 1.0f));
    TRY(params_finish_grads(&p->model.params));
    return adamw_apply(&p->optim);
}

static Status run_eager(void *user) {
    NvsPass *p = user;
    TRY(adamw_set_lr(&p->optim, RATE));
    return run_kernels(p);
}

static Status run_graph(void *user) {
    NvsPass *p = user;
    return device_graph_launch(p->model.device, p->graph);
}

static Status stage_batch(NvsPass *p) {
    TRY(device_stage(p->model.device, p->cameras, p->host_cameras));
    TRY(device_stage(p->model.device, p->rgb, p->host_rgb));
    return device_stage(p->model.device, p->patches, p->host_patches);
}

static Status run_fed(void *user) {
    NvsPass *p = user;
    float loss, norm, clip;
    TRY(device_commit(p->model.device));
    TRY(adamw_set_lr(&p->optim, RATE));
    TRY(run_graph(p));
    TRY(stage_batch(p));
    TRY(device_pull(p->model.device, &loss, p->loss));
    return adamw_report(&p->optim, &norm, &clip);
}

static Status run_reconstruct(void *user) {
    NvsPass *p = user;
    tape_reset(p->model.tape, false);
    Var *x = tokens_of(p, p->model.tape, 1, p->inputs, p->inputs);
    return lact_reconstruct(p->model.nvs, p->model.tape, x, p->state);
}

static Status run_render(void *user) {
    NvsPass *p = user;
    tape_reset(p->model.tape, false);
    lact_render(p->model.nvs, p->model.tape, tokens_of(p, p->model.tape, 1, 1, 0), p->state);
    return tape_status(p->model.tape);
}

/* ---- set-up ------------------------------------------------------------------------------ */

/* Cameras side by side that look ahead. */
static Status make_cameras(NvsPass *p, int64_t count) {
    const LactNvsConfig *c = &p->model.config;
    const float w = (float)c->view_width, h = (float)c->height;
    const float usual[16] = {1, 0, 0, 0, 0, 1, 0, 0, 0, 0, 1, 0, w, w, 0.5f * w, 0.5f * h};
    TRY(mem_alloc(&p->host_cameras, 16 * count, sizeof(float), "bench cameras"));
    float *to = p->host_cameras;
    for (int64_t i = 0; i < 16 * count; i++)
        to[i] = usual[i % 16] + (i % 16 == 3 ? 0.01f * (float)(i / 16 % 8) : 0);
    return device_push(p->model.device, p->cameras, to);
}

static Status open_training(NvsPass *p) {
    const AdamWOptions recipe = {0.9f, 0.95f, 1e-8f, 0.05f, 1.0f, 0};
    const LactNvsConfig *c = &p->model.config;
    const int64_t views = p->inputs + p->targets, pixels = c->height * c->view_width, one = 1;
    const int64_t target[] = {p->batch, p->targets * lact_nvs_view_tokens(p->model.nvs),
                              3 * c->patch * c->patch};
    Device *d = p->model.device;
    StepPlan plan;
    TRY(tape_new(d, &p->training));
    tape_set_act(p->training, p->model.act);
    TRY(adamw_init(&p->optim, &p->model.params, recipe));
    TRY(arena_tensor(&d->state, DTYPE_F32, 3, (int64_t[]){p->batch, views, 16}, &p->cameras));
    TRY(arena_tensor(&d->state, DTYPE_U8, 4, (int64_t[]){p->batch, p->inputs, pixels, 3}, &p->rgb));
    TRY(arena_tensor(&d->state, DTYPE_F32, 3, target, &p->patches));
    TRY(make_cameras(p, p->batch * views));
    TRY(bench_fill(d, p->rgb, 1));
    TRY(bench_fill(d, p->patches, 2));
    TRY(arena_tensor(&d->state, DTYPE_F32, 1, &one, &p->loss));
    return plan_reserve(&(PlanTask){&p->model.params, p->model.act, p, loss_of}, p->batch, &plan);
}

static Status pull_batch(NvsPass *p) {
    TRY(bench_pull(p->model.device, p->rgb, &p->host_rgb, "bench pictures"));
    return bench_pull(p->model.device, p->patches, &p->host_patches, "bench colours");
}

static void close_pass(NvsPass *p) {
    if (p->graph) device_graph_free(p->model.device, p->graph);
    mem_free(p->host_cameras);
    mem_free(p->host_rgb);
    mem_free(p->host_patches);
    lact_state_free(p->state);
    if (p->training) tape_free(p->training);
    nvs_model_close(&p->model);
}

/* ---- measuring --------------------------------------------------------------------------- */

static PassResult *add(PassResults *out, const char *what, const char *unit, int64_t batch,
                       double macs) {
    PassResult *r = pass_add(out, what, batch, macs);
    r->unit = unit;
    return r;
}

static Status measure_graph(Bench *b, NvsPass *p, PassResults *out, double macs) {
    Device *d = p->model.device;
    double *seconds = &add(out, "train", "scenes", p->batch, macs)->seconds;
    TRY(bench_record(d, run_kernels, p, 1, &p->graph));
    TRY(bench_time(d, run_graph, p, b->options->seconds, seconds));
    TRY(pull_batch(p));
    TRY(stage_batch(p));
    seconds = &add(out, "train_fed", "scenes", p->batch, macs)->seconds;
    return bench_time(d, run_fed, p, b->options->seconds, seconds);
}

static Status measure_training(Bench *b, NvsPass *p, PassResults *out) {
    Device *d = p->model.device;
    const bool recorded = device_can_capture(d);
    const double macs = 3 * (double)p->batch * forward_macs(p, p->batch, p->inputs, p->targets);
    progress_line(10, "nvs: training, batch %lld", (long long)p->batch);
    TRY(open_training(p));
    TRY(run_eager(p));
    const int64_t before = pass_growths(d);
    PassResult *r = add(out, recorded ? "train_eager" : "train", "scenes", p->batch, macs);
    TRY(bench_time(d, run_eager, p, b->options->seconds, &r->seconds));
    TRY(profile_run(d, run_eager, p, &r->profile));
    r->profiled = true;
    pass_memory(d, &out->train);
    out->train.late_growths = pass_growths(d) - before;
    return recorded ? measure_graph(b, p, out, macs) : STATUS_OK;
}

/* One pass of a scene, call by call and recorded. */
static Status measure_pass(Bench *b, NvsPass *p, BenchCall f, const char *eager,
                           const char *recorded, const char *unit, double macs, PassResults *out) {
    Device *d = p->model.device;
    progress_line(10, "nvs: %s", recorded);
    PassResult *r = add(out, device_can_capture(d) ? eager : recorded, unit, 1, macs);
    TRY(f(p));
    TRY(bench_time(d, f, p, b->options->seconds, &r->seconds));
    TRY(profile_run(d, f, p, &r->profile));
    r->profiled = true;
    if (!device_can_capture(d)) return STATUS_OK;
    r = add(out, recorded, unit, 1, macs);
    return bench_time_recorded(d, f, p, 1, b->options->seconds, &r->seconds);
}

static Status measure_scene(Bench *b, NvsPass *p, PassResults *out) {
    TRY(lact_nvs_state_new(p->model.nvs, p->model.device, 1, &p->state));
    TRY(measure_pass(b, p, run_reconstruct, "reconstruct_eager", "reconstruct", "scenes",
                     forward_macs(p, 1, p->inputs, 0), out));
    return measure_pass(b, p, run_render, "render_eager", "render", "views", render_macs(p), out);
}

static void report(const Bench *b, const NvsModel *m, const PassResults *r) {
    const LactNvsConfig *c = &m->config;
    if (b->json) {
        json_key(b->json, "nvs");
        json_begin_object(b->json);
        json_pair_string(b->json, "model", c->preset);
        json_pair_int(b->json, "parameters", r->parameters);
        json_pair_int(b->json, "layers", c->layers);
        json_pair_int(b->json, "width", c->width);
        json_pair_int(b->json, "inter_multi", c->inter_multi);
        json_pair_int(b->json, "inputs", b->options->inputs);
        json_pair_int(b->json, "targets", b->options->targets);
    } else {
        out_printf("%s: %lld layers of width %lld, inter_multi %lld, %lld parameters; %lld + %lld "
                   "views of %lldx%lld, %s\n",
                   c->preset, (long long)c->layers, (long long)c->width, (long long)c->inter_multi,
                   (long long)r->parameters, (long long)b->options->inputs,
                   (long long)b->options->targets, (long long)c->view_width, (long long)c->height,
                   dtype_name(b->act));
    }
    bench_report_ceilings(b);
    for (int i = 0; i < r->count; i++) pass_report(b, &r->pass[i]);
    pass_report_memory(b, "memory", &r->train, true);
    if (b->json) json_end_object(b->json);
}

Status bench_nvs(Bench *b) {
    const BenchOptions *o = b->options;
    NvsPass p = {.batch = o->batch, .inputs = o->inputs, .targets = o->targets};
    PassResults r = {.count = 0};
    TRY(nvs_model_create(&p.model, b->config, 1));
    r.parameters = p.model.params.total;
    Status s = status_context(measure_training(b, &p, &r), "training pass");
    if (s == STATUS_OK) s = measure_scene(b, &p, &r);
    /* Last, on the other device: the ceilings must not count in the memory of the step. */
    if (s == STATUS_OK) s = bench_ceilings(b);
    if (s == STATUS_OK) report(b, &p.model, &r);
    close_pass(&p);
    return s;
}
