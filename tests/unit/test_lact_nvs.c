/* The LaCT-NVS model: published counts, names and start values; joint pass against reconstruct and
 * render; identities of lact_nvs.md 3.5; learning; running out of memory. */
#include <stdarg.h>
#include <stddef.h>
#include <setjmp.h>
#include <stdint.h>
#include <cmocka.h>

#include <stdio.h>
#include <unistd.h>

#include "core/memory.h"
#include "nn/optim.h"
#include "nvs/lact_nvs.h"
#include "vittt_fixture.h"

static LactNvsConfig preset(const char *name) {
    LactNvsConfig c = {.height = 128, .view_width = 128, .variant = "base", .pose_margin = 1.35};
    snprintf(c.preset, sizeof c.preset, "%s", name);
    check_ok(lact_nvs_config_resolve(&c, NULL));
    return c;
}

/* Views of 12 x 8 pixels, 6 tokens each. */
static LactNvsConfig tiny(int64_t layers, const char *variant) {
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

static int64_t view_size(const Model *m) {
    return lact_nvs_view_tokens(m->nvs) * lact_nvs_token_size(m->nvs);
}

static void model_open(Model *m, LactNvsConfig c, DType act) {
    *m = (Model){.batch = 2, .views = 5, .inputs = 3};
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

static void model_close(Model *m) {
    free(m->tokens);
    tape_free(m->tape);
    lact_nvs_free(m->nvs);
    params_free(&m->params);
    device_close(m->device);
}

/* Views [first, first + count) of every sample. */
static Var *view_input(Model *m, int64_t first, int64_t count) {
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

static double *joint(Model *m, LactState *state, int64_t *count) {
    tape_reset(m->tape, false);
    Var *rgb = lact_nvs_forward(m->nvs, m->tape, view_input(m, 0, m->views), m->inputs, state);
    check_ok(tape_status(m->tape));
    *count = tensor_count(rgb->value);
    return pull_doubles(m->device, rgb->value);
}

/* ---- published facts ------------------------------------------------------------------------ */

/* The table of lact_nvs.md 1. */
static void published_counts(void **state) {
    (void)state;
    const struct {
        const char *name;
        int64_t layers, parameters, fast;
    } facts[] = {{"l12_d768_ttt1x", 12, 135284772, 21233664},
                 {"l24_d768_ttt2x", 24, 312298056, 84934656},
                 {"l24_d768_ttt4x", 24, 397232712, 169869312},
                 {"l14_d768_ttt2x", 14, 182481706, 49545216}};
    Device *d;
    check_ok(device_open("cpu", &d));
    for (int i = 0; i < 4; i++) {
        LactNvsConfig c = preset(facts[i].name);
        Params p;
        LactNvs *m;
        params_init(&p, d);
        check_ok(lact_nvs_new(&c, &p, &m));
        assert_int_equal(p.total, facts[i].parameters);
        assert_int_equal(p.count, 17 * facts[i].layers + 4);
        int64_t fast = 0;
        for (int64_t b = 0; b < c.layers; b++)
            for (int j = 0; j < 3; j++) fast += tensor_count(m->blocks[b].ttt.w[j]->value);
        assert_int_equal(fast, facts[i].fast);
        lact_nvs_free(m);
        params_free(&p);
    }
    device_close(d);
}

/* The keys of section 6 for block 1, with shapes; axes >= 2 decay. */
static void published_names(void **state) {
    (void)state;
    const struct {
        const char *name;
        int rank;
        int64_t shape[3];
    } keys[] = {{"input_linear.weight", 2, {16, 192}},
                {"input_layernorm.weight", 1, {16}},
                {"blocks.1.module_list.0.ln.weight", 1, {16}},
                {"blocks.1.module_list.0.f.to_qkv.weight", 2, {48, 16}},
                {"blocks.1.module_list.0.f.c_proj.weight", 2, {16, 16}},
                {"blocks.1.module_list.0.f.q_norm.weight", 1, {8}},
                {"blocks.1.module_list.0.f.k_norm.weight", 1, {8}},
                {"blocks.1.module_list.1.ln.weight", 1, {16}},
                {"blocks.1.module_list.1.f.w0", 3, {2, 8, 8}},
                {"blocks.1.module_list.1.f.w1", 3, {2, 8, 8}},
                {"blocks.1.module_list.1.f.w2", 3, {2, 8, 8}},
                {"blocks.1.module_list.1.f.to_qkv.weight", 2, {48, 16}},
                {"blocks.1.module_list.1.f.c_proj.weight", 2, {16, 16}},
                {"blocks.1.module_list.1.f.lr_fc.weight", 2, {6, 16}},
                {"blocks.1.module_list.1.f.lr_fc.bias", 1, {6}},
                {"blocks.1.module_list.1.f.o_norm.weight", 1, {8}},
                {"blocks.1.module_list.2.ln.weight", 1, {16}},
                {"blocks.1.module_list.2.f.c_fc.weight", 2, {64, 16}},
                {"blocks.1.module_list.2.f.c_proj.weight", 2, {16, 64}},
                {"image_token_decoder.0.weight", 1, {16}},
                {"image_token_decoder.1.weight", 2, {48, 16}}};
    Model m;
    model_open(&m, tiny(2, "base"), DTYPE_F32);
    assert_int_equal(m.params.count, 38);
    for (size_t i = 0; i < sizeof keys / sizeof keys[0]; i++) {
        const Param *p = params_find(&m.params, keys[i].name);
        if (!p) print_error("%s is missing\n", keys[i].name);
        assert_non_null(p);
        assert_int_equal(p->master.rank, keys[i].rank);
        for (int k = 0; k < keys[i].rank; k++)
            assert_int_equal(p->master.shape[k], keys[i].shape[k]);
        assert_int_equal((p->flags & PARAM_DECAY) != 0, keys[i].rank > 1);
    }
    model_close(&m);
}

static void expect_deviation(Model *m, const char *name, double want) {
    const Param *p = params_find(&m->params, name);
    const int64_t n = tensor_count(p->master);
    double *x = pull_doubles(m->device, p->master);
    const double got = norm_of(x, n) / sqrt((double)n);
    if (fabs(got / want - 1) > 4 / sqrt((double)n))
        print_error("%s: %g, not %g\n", name, got, want);
    assert_true(fabs(got / want - 1) <= 4 / sqrt((double)n));
    free(x);
}

static void start_values(void **state) {
    (void)state;
    LactNvsConfig c = tiny(3, "base");
    c.inter_multi = 2;
    c.width = 64;
    Model m;
    model_open(&m, c, DTYPE_F32);
    expect_deviation(&m, "input_linear.weight", 0.02);
    expect_deviation(&m, "blocks.2.module_list.0.f.to_qkv.weight", 0.02);
    expect_deviation(&m, "blocks.0.module_list.0.f.c_proj.weight", 0.02 / 3);
    expect_deviation(&m, "blocks.0.module_list.1.f.c_proj.weight", 0.02 / 3);
    expect_deviation(&m, "blocks.0.module_list.2.f.c_proj.weight", 0.02 / 3);
    expect_deviation(&m, "blocks.0.module_list.1.f.w0", sqrt(2.0 / 32));
    expect_deviation(&m, "blocks.0.module_list.1.f.w1", sqrt(2.0 / 64));
    expect_deviation(&m, "blocks.0.module_list.1.f.w2", sqrt(2.0 / 32));
    expect_deviation(&m, "blocks.0.module_list.1.f.lr_fc.weight", 0.02);
    expect_deviation(&m, "image_token_decoder.1.weight", 0.02);
    const double *bias = pull_doubles(
        m.device, params_find(&m.params, "blocks.0.module_list.1.f.lr_fc.bias")->master);
    for (int i = 0; i < 6; i++) assert_true(bias[i] == 0);
    free((void *)bias);
    model_close(&m);
}

static void check_fails(Status s, const char *part) {
    if (s == STATUS_OK || !strstr(status_message(), part))
        print_error("got %s: %s\n", status_name(s), status_message());
    assert_int_equal(s, STATUS_USAGE);
    assert_non_null(strstr(status_message(), part));
}

static void wrong_sizes_are_refused(void **state) {
    (void)state;
    LactNvsConfig c = tiny(2, "base");
    c.view_width = 13;
    check_fails(lact_nvs_config_check(&c), "view_width 13 is not a multiple of patch 4");
    c = tiny(2, "base");
    c.fast_heads = 3;
    check_fails(lact_nvs_config_check(&c), "width 16 is not a multiple of fast_heads 3");
    c = tiny(0, "base");
    check_fails(lact_nvs_config_check(&c), "layers is 0");
    c = tiny(2, "V7");
    check_fails(lact_nvs_config_check(&c), "[nvs_model]: unknown LaCT variant 'V7'; did you mean");
    c = tiny(2, "V3");
    c.inter_multi = 2;
    check_fails(lact_nvs_config_check(&c), "variant V3 needs inter_multi 1, not 2");
    c = tiny(2, "base");
    c.pose_margin = 0;
    check_fails(lact_nvs_config_check(&c), "pose_margin is 0");
    snprintf(c.preset, sizeof c.preset, "l12_d768_ttt2x");
    check_fails(lact_nvs_config_resolve(&c, NULL), "did you mean");
}

/* A preset fills what nobody set. */
static void options_and_presets(void **state) {
    (void)state;
    LactNvsConfig c;
    Config *config;
    const Section section = {"nvs_model", lact_nvs_options, &c};
    check_ok(config_new(&section, 1, &config));
    check_ok(config_set(config, "nvs_model.preset=l24_d768_ttt2x", "--set"));
    check_ok(config_set(config, "nvs_model.layers=6", "--set"));
    check_ok(config_set(config, "nvs_model.poses=inputs", "--set"));
    check_ok(lact_nvs_config_resolve(&c, config));
    assert_true(c.layers == 6 && c.inter_multi == 2 && c.width == 768 && c.height == 128);
    assert_true(c.poses == POSES_INPUTS && fabs(c.pose_margin - 1.35) < 1e-12);
    config_free(config);
}

static void sizes_from_weights(void **state) {
    (void)state;
    char path[] = "/tmp/ttv-nvs-XXXXXX.safetensors";
    close(mkstemps(path, 12));
    const char *const variants[] = {"base", "query_is_key"};
    for (int i = 0; i < 2; i++) {
        const LactNvsConfig want = tiny(3, variants[i]);
        LactNvsConfig c = {.height = 8, .view_width = 12, .variant = "base", .pose_margin = 1};
        SafeFile *f;
        Model m;
        model_open(&m, want, DTYPE_F32);
        check_ok(params_save(&m.params, path, NULL, 0));
        check_ok(safetensors_open(path, &f));
        check_ok(lact_nvs_config_from_weights(&c, f));
        assert_true(c.patch == want.patch && c.width == want.width && c.layers == want.layers);
        assert_true(c.head_width == want.head_width && c.fast_heads == want.fast_heads);
        assert_true(c.inter_multi == want.inter_multi && c.height == want.height);
        assert_string_equal(c.variant, variants[i]);
        check_ok(lact_nvs_config_check(&c));
        check_ok(params_load(&m.params, f, ""));
        safetensors_close(f);
        model_close(&m);
    }
    float zero[24] = {0};
    const SafeItem items[] = {
        {"image_token_decoder.1.weight", tensor_2d(zero, DTYPE_F32, 4, 2)},
        {"blocks.0.module_list.1.f.w0", tensor_3d(zero, DTYPE_F32, 1, 2, 3)},
        {"blocks.0.module_list.0.f.q_norm.weight", tensor_1d(zero, DTYPE_F32, 2)},
        {"blocks.0.module_list.1.f.to_qkv.weight", tensor_2d(zero, DTYPE_F32, 6, 2)}};
    const char *const messages[] = {"'blocks.0.module_list.1.f.w0' is missing",
                                    "q_norm.weight' is missing", "to_qkv.weight' is missing",
                                    "has 4 rows, which is not 3 p^2"};
    for (int n = 1; n <= 4; n++) {
        LactNvsConfig c = tiny(1, "base");
        SafeFile *f;
        check_ok(safetensors_write(path, items, n, NULL, 0));
        check_ok(safetensors_open(path, &f));
        assert_int_equal(lact_nvs_config_from_weights(&c, f), STATUS_DATA);
        assert_non_null(strstr(status_message(), messages[n - 1]));
        safetensors_close(f);
    }
    unlink(path);
}

/* ---- the passes ----------------------------------------------------------------------------- */

static void joint_is_reconstruct_and_render(void **state) {
    (void)state;
    const char *const variants[] = {"base", "V1", "V6", "query_is_key"};
    for (int i = 0; i < 4; i++) {
        for (int layers = 1; layers <= 3; layers += 2) {
            Model m;
            LactState *together, *alone;
            int64_t n;
            model_open(&m, tiny(layers, variants[i]), DTYPE_F32);
            check_ok(lact_nvs_state_new(m.nvs, m.device, m.batch, &together));
            check_ok(lact_nvs_state_new(m.nvs, m.device, m.batch, &alone));
            double *whole = joint(&m, together, &n);
            assert_int_equal(n, m.batch * 2 * 8 * 12 * 3);
            tape_reset(m.tape, false);
            check_ok(lact_reconstruct(m.nvs, m.tape, view_input(&m, 0, m.inputs), alone));
            for (int64_t k = 0; k < 3 * layers; k++) {
                Tensor a = lact_state_tensor(together, k / 3, (int)(k % 3));
                Tensor b = lact_state_tensor(alone, k / 3, (int)(k % 3));
                double *x = pull_doubles(m.device, a), *y = pull_doubles(m.device, b);
                assert_true(relative(y, x, tensor_count(a), 0) < 2e-6);
                free(x);
                free(y);
            }
            tape_reset(m.tape, false);
            Var *rgb = lact_render(m.nvs, m.tape, view_input(&m, m.inputs, 2), alone);
            check_ok(tape_status(m.tape));
            double *parts = pull_doubles(m.device, rgb->value);
            assert_true(relative(parts, whole, n, 0) < 2e-6);
            free(parts);
            free(whole);
            lact_state_free(together);
            lact_state_free(alone);
            model_close(&m);
        }
    }
}

/* Target views do not see each other; the order of input views does not matter. */
static void views_are_sets(void **state) {
    (void)state;
    Model m;
    int64_t n;
    model_open(&m, tiny(2, "base"), DTYPE_F32);
    const int64_t size = view_size(&m), view = 8 * 12 * 3;
    double *before = joint(&m, NULL, &n);
    for (int64_t k = 0; k < size; k++) m.tokens[4 * size + k] += 1; /* last target of sample 0 */
    double *after = joint(&m, NULL, &n);
    assert_true(relative(after, before, view, 0) < 1e-6);
    assert_true(relative(after + view, before + view, view, 0) > 1e-4);
    free(after);
    for (int64_t k = 0; k < size; k++) {
        m.tokens[4 * size + k] -= 1;
        const float first = m.tokens[k];
        m.tokens[k] = m.tokens[2 * size + k];
        m.tokens[2 * size + k] = first;
    }
    after = joint(&m, NULL, &n);
    assert_true(relative(after, before, n, 0) < 1e-5);
    free(after);
    free(before);
    model_close(&m);
}

static void wrong_tokens_are_refused(void **state) {
    (void)state;
    Model m;
    LactState *other;
    model_open(&m, tiny(2, "base"), DTYPE_F32);
    tape_reset(m.tape, false);
    lact_nvs_forward(m.nvs, m.tape, view_input(&m, 0, 3), 3, NULL); /* no target */
    assert_int_equal(tape_status(m.tape), STATUS_DATA);
    assert_non_null(strstr(status_message(), "at least 4 views"));
    tape_reset(m.tape, false);
    lact_nvs_forward(m.nvs, m.tape, view_input(&m, 0, 3), 0, NULL);
    assert_non_null(strstr(status_message(), "no input view"));
    check_ok(lact_state_new(m.device, 3, 2, 2, 8, 8, &other));
    tape_reset(m.tape, false);
    assert_int_equal(lact_reconstruct(m.nvs, m.tape, view_input(&m, 0, 3), other), STATUS_DATA);
    assert_non_null(
        strstr(status_message(), "of 3 layers, 2 heads, 8 x 8; the model has 2 layers"));
    lact_state_free(other);
    check_ok(lact_nvs_state_new(m.nvs, m.device, 1, &other));
    tape_reset(m.tape, false);
    lact_render(m.nvs, m.tape, view_input(&m, 3, 2), other);
    assert_int_equal(tape_status(m.tape), STATUS_DATA);
    assert_non_null(strstr(status_message(), "views of 2 scenes, the state holds 1"));
    lact_state_free(other);
    model_close(&m);
}

static void inference_gives_memory_back(void **state) {
    (void)state;
    int64_t n;
    size_t used[2];
    for (int i = 0; i < 2; i++) {
        Model m;
        model_open(&m, tiny(i ? 6 : 2, "base"), DTYPE_F32);
        free(joint(&m, NULL, &n));
        used[i] = m.device->step.used;
        model_close(&m);
    }
    assert_int_equal(used[0], used[1]); /* tokens and result, whatever the depth */
}

/* ---- training ------------------------------------------------------------------------------- */

/* Loss on one batch of random colours before each of `steps` steps; the last one returns. */
static double overfit(LactNvsConfig c, DType act, int steps) {
    Model m;
    AdamW optim;
    double loss = 0;
    model_open(&m, c, act);
    check_ok(adamw_init(&optim, &m.params, (AdamWOptions){0.9f, 0.95f, 1e-8f, 0.05f, 1.0f}));
    const int64_t shape[] = {m.batch, 2 * lact_nvs_view_tokens(m.nvs), 48};
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

/* Colours between 0.1 and 0.9 have the variance 0.053. */
static void one_batch_is_learnt(void **state) {
    (void)state;
    const double f32 = overfit(tiny(2, "base"), DTYPE_F32, 120);
    const double bf16 = overfit(tiny(2, "base"), DTYPE_BF16, 120);
    if (!(f32 < 0.01 && bf16 < 0.01)) print_error("loss %g, bf16 %g\n", f32, bf16);
    assert_true(f32 < 0.01 && bf16 < 0.01);
}

static void every_variant_learns(void **state) {
    (void)state;
    for (int i = 1; lact_variant_name(i); i++) {
        const double loss = overfit(tiny(1, lact_variant_name(i)), DTYPE_F32, 60);
        if (!(loss < 0.04)) print_error("%s: loss %g\n", lact_variant_name(i), loss);
        assert_true(loss < 0.04);
    }
}

static void recomputing_changes_no_bit(void **state) {
    (void)state;
    LactNvsConfig c = tiny(2, "base");
    const double kept = overfit(c, DTYPE_F32, 5);
    c.recompute = true;
    assert_true(overfit(c, DTYPE_F32, 5) == kept);
}

/* ---- out of memory -------------------------------------------------------------------------- */

static void every_allocation_may_fail(void **state) {
    (void)state;
    Device *d;
    check_ok(device_open("cpu", &d));
    const LactNvsConfig c = tiny(2, "base");
    const int64_t alive = mem_live();
    int64_t failures = 0;
    for (bool failed = true; failed; failures += failed) {
        Params p;
        LactNvs *m = NULL;
        params_init(&p, d);
        mem_fail_at(failures + 1);
        Status s = lact_nvs_new(&c, &p, &m);
        failed = !mem_fail_pending();
        mem_fail_at(0);
        assert_int_equal(s, failed ? STATUS_MEMORY : STATUS_OK);
        if (s == STATUS_OK) lact_nvs_free(m);
        params_free(&p);
        assert_int_equal(mem_live(), alive);
    }
    assert_true(failures > 76); /* 38 parameters with their names */
    device_close(d);
}

static void a_pass_may_run_out_of_memory(void **state) {
    (void)state;
    for (int recompute = 0; recompute < 2; recompute++) {
        int refused = 0;
        for (int64_t n = 1;; n++) {
            Model m;
            LactState *fast;
            LactNvsConfig c = tiny(2, "base");
            c.recompute = recompute;
            model_open(&m, c, DTYPE_F32);
            check_ok(lact_nvs_state_new(m.nvs, m.device, m.batch, &fast));
            tape_reset(m.tape, true);
            Var *x = view_input(&m, 0, m.views);
            mem_fail_at(n);
            lact_nvs_forward(m.nvs, m.tape, x, m.inputs, recompute ? NULL : fast);
            const Status s = tape_status(m.tape);
            const bool failed = !mem_fail_pending();
            mem_fail_at(0);
            assert_true(s == STATUS_OK || (failed && s == STATUS_MEMORY));
            refused += s == STATUS_MEMORY;
            lact_state_free(fast);
            model_close(&m);
            if (!failed) break;
        }
        assert_true(refused > 2);
    }
}

int main(void) {
    device_set_threads(1); /* tiny products: a second thread is only waited for */
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(published_counts),
        cmocka_unit_test(published_names),
        cmocka_unit_test(start_values),
        cmocka_unit_test(wrong_sizes_are_refused),
        cmocka_unit_test(options_and_presets),
        cmocka_unit_test(sizes_from_weights),
        cmocka_unit_test(joint_is_reconstruct_and_render),
        cmocka_unit_test(views_are_sets),
        cmocka_unit_test(wrong_tokens_are_refused),
        cmocka_unit_test(inference_gives_memory_back),
        cmocka_unit_test(one_batch_is_learnt),
        cmocka_unit_test(every_variant_learns),
        cmocka_unit_test(recomputing_changes_no_bit),
        cmocka_unit_test(every_allocation_may_fail),
        cmocka_unit_test(a_pass_may_run_out_of_memory),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
