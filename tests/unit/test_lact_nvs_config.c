/* The LaCT-NVS model before it runs: published counts, names and start values, options and sizes.
 */
#include <stdarg.h>
#include <stddef.h>
#include <setjmp.h>
#include <stdint.h>
#include <cmocka.h>

#include <unistd.h>

#include "lact_nvs_fixture.h"

static LactNvsConfig preset(const char *name) {
    LactNvsConfig c = {.height = 128, .view_width = 128, .variant = "base", .pose_margin = 1.35};
    snprintf(c.preset, sizeof c.preset, "%s", name);
    check_ok(lact_nvs_config_resolve(&c, NULL));
    return c;
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
    char path[256];
    temporary_weights(path);
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

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(published_counts),    cmocka_unit_test(published_names),
        cmocka_unit_test(start_values),        cmocka_unit_test(wrong_sizes_are_refused),
        cmocka_unit_test(options_and_presets), cmocka_unit_test(sizes_from_weights),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
