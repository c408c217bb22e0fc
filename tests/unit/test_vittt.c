/* The plain ViTTT model: published names, counts and start values; forward passes. */
#include <stdarg.h>
#include <stddef.h>
#include <setjmp.h>
#include <stdint.h>
#include <cmocka.h>

#include <stdio.h>

#include "vittt_model_fixture.h"

static VitttConfig preset(const char *name) {
    VitttConfig c = {.image_size = 224, .classes = 1000, .mixer = "base"};
    snprintf(c.preset, sizeof c.preset, "%s", name);
    check_ok(vittt_config_resolve(&c, NULL));
    return c;
}

/* ---- published facts ------------------------------------------------------------------------ */

/* vittt.md 1: exact parameter counts, and multiply-adds as printed there. */
static void published_counts(void **state) {
    (void)state;
    const struct {
        const char *name;
        int64_t parameters;
        double giga_macs, drop_path;
    } facts[] = {{"vittt_tiny", 6149416, 1.219, 0.0},
                 {"vittt_small", 23799400, 4.807, 0.1},
                 {"vittt_base", 90055912, 17.937, 0.4}};
    Device *d;
    check_ok(device_open("cpu", &d));
    for (int i = 0; i < 3; i++) {
        VitttConfig c = preset(facts[i].name);
        Params p;
        Vittt *m;
        params_init(&p, d);
        check_ok(vittt_new(&c, &p, &m));
        assert_int_equal(p.total, facts[i].parameters);
        assert_int_equal(p.count, 210);
        assert_true(fabs((double)vittt_macs(&c) * 1e-9 - facts[i].giga_macs) < 0.0005);
        assert_true(fabs(c.drop_path - facts[i].drop_path) < 1e-12);
        assert_true(fabs(m->blocks[11].drop_path - facts[i].drop_path) < 1e-7);
        assert_true(m->blocks[0].drop_path == 0);
        vittt_free(m);
        params_free(&p);
    }
    device_close(d);
}

static int entry;

static void expect(const Params *p, const char *prefix, const char *name, int rank,
                   const int64_t *shape) {
    char full[128];
    snprintf(full, sizeof full, "%s%s", prefix, name);
    assert_true(entry < p->count);
    const Param *item = p->items[entry++];
    assert_string_equal(item->name, full);
    assert_int_equal(item->master.rank, rank);
    for (int i = 0; i < rank; i++) assert_int_equal(item->master.shape[i], shape[i]);
    /* vittt.md 7: only 1-D parameters and biases escape weight decay */
    assert_int_equal((item->flags & PARAM_DECAY) != 0, rank > 1);
}
#define EXPECT(prefix, name, ...)                                                                  \
    expect(&p, prefix, name, (int)(sizeof((int64_t[]){__VA_ARGS__}) / sizeof(int64_t)),            \
           (int64_t[]){__VA_ARGS__})

/* The list of vittt.md 5, entry by entry. */
static void published_names(void **state) {
    (void)state;
    Device *d;
    check_ok(device_open("cpu", &d));
    Params p;
    Vittt *m;
    VitttConfig c = preset("vittt_tiny");
    params_init(&p, d);
    check_ok(vittt_new(&c, &p, &m));
    entry = 0;
    EXPECT("", "patch_embed.proj.weight", 192, 3, 16, 16);
    EXPECT("", "patch_embed.proj.bias", 192);
    for (int i = 0; i < 12; i++) {
        char b[32];
        snprintf(b, sizeof b, "blocks.%d.", i);
        EXPECT(b, "cpe.weight", 192, 1, 3, 3);
        EXPECT(b, "cpe.bias", 192);
        EXPECT(b, "norm1.weight", 192);
        EXPECT(b, "norm1.bias", 192);
        EXPECT(b, "attn.w1", 1, 6, 32, 32);
        EXPECT(b, "attn.w2", 1, 6, 32, 32);
        EXPECT(b, "attn.w3", 32, 1, 3, 3);
        EXPECT(b, "attn.qkv.weight", 672, 192);
        EXPECT(b, "attn.qkv.bias", 672);
        EXPECT(b, "attn.proj.weight", 192, 224);
        EXPECT(b, "attn.proj.bias", 192);
        EXPECT(b, "norm2.weight", 192);
        EXPECT(b, "norm2.bias", 192);
        EXPECT(b, "mlp.fc1.weight", 768, 192);
        EXPECT(b, "mlp.fc1.bias", 768);
        EXPECT(b, "mlp.fc2.weight", 192, 768);
        EXPECT(b, "mlp.fc2.bias", 192);
    }
    EXPECT("", "norm.weight", 192);
    EXPECT("", "norm.bias", 192);
    EXPECT("", "head.weight", 1000, 192);
    EXPECT("", "head.bias", 1000);
    assert_int_equal(entry, p.count);
    vittt_free(m);
    params_free(&p);
    device_close(d);
}

/* A stem takes the place of the patch embedding alone: its names, and its count by the formula. */
static void stem_names(void **state) {
    (void)state;
    Device *d;
    check_ok(device_open("cpu", &d));
    Params p;
    Vittt *m;
    VitttConfig c = tiny(1, 0);
    c.stem_depth = 2;
    c.stem_width = 10;
    params_init(&p, d);
    check_ok(vittt_new(&c, &p, &m));
    entry = 0;
    EXPECT("", "stem.proj.weight", 10, 3, 2, 2);
    EXPECT("", "stem.proj.bias", 10);
    for (int i = 0; i < 2; i++) {
        char b[32];
        snprintf(b, sizeof b, "stem.blocks.%d.", i);
        EXPECT(b, "conv.weight", 10, 1, 3, 3);
        EXPECT(b, "conv.bias", 10);
        EXPECT(b, "norm.weight", 10);
        EXPECT(b, "norm.bias", 10);
        EXPECT(b, "mlp.fc1.weight", 40, 10);
        EXPECT(b, "mlp.fc1.bias", 40);
        EXPECT(b, "mlp.fc2.weight", 10, 40);
        EXPECT(b, "mlp.fc2.bias", 10);
    }
    EXPECT("", "stem.norm.weight", 10);
    EXPECT("", "stem.norm.bias", 10);
    EXPECT("stem.merge.", "upper.weight", 24, 20);
    EXPECT("stem.merge.", "upper.bias", 24);
    EXPECT("stem.merge.", "lower.weight", 24, 20);
    EXPECT("blocks.0.", "cpe.weight", 24, 1, 3, 3);
    VitttConfig plain = tiny(1, 0);
    const int64_t n = 16, embedding = 3 * 4 * 4 * n * 24;
    const int64_t stem = 4 * n * (3 * 2 * 2 * 10 + 2 * (9 * 10 + 2 * 10 * 40)) + n * 40 * 24;
    assert_int_equal(vittt_macs(&c) - vittt_macs(&plain), stem - embedding);
    assert_int_equal(vittt_input_patch(&c), 2);
    assert_int_equal(vittt_input_patch(&plain), 4);
    vittt_free(m);
    params_free(&p);
    device_close(d);
}

/* ---- start values (vittt.md 6) ----------------------------------------------------------------
 */

typedef struct Statistics {
    double mean, deviation, largest;
    int64_t count;
} Statistics;

static Statistics statistics_of(Model *m, const char *name) {
    Param *p = params_find(&m->params, name);
    assert_non_null(p);
    Statistics s = {.count = tensor_count(p->master)};
    double *x = pull_doubles(m->device, p->master);
    for (int64_t i = 0; i < s.count; i++) s.mean += x[i] / (double)s.count;
    for (int64_t i = 0; i < s.count; i++) {
        s.deviation += (x[i] - s.mean) * (x[i] - s.mean) / (double)s.count;
        s.largest = fmax(s.largest, fabs(x[i]));
    }
    s.deviation = sqrt(s.deviation);
    free(x);
    return s;
}

static void expect_normal(Model *m, const char *name) {
    Statistics s = statistics_of(m, name);
    const double noise = 1 / sqrt((double)s.count);
    assert_true(fabs(s.mean) < 5 * 0.02 * noise);
    assert_true(fabs(s.deviation / 0.02 - 1) < 5 * noise);
    assert_true(s.largest > 3 * 0.02); /* not cut at two deviations */
}

static void expect_uniform(Model *m, const char *name, double bound) {
    Statistics s = statistics_of(m, name);
    const double noise = 1 / sqrt((double)s.count);
    assert_true(s.largest <= bound && s.largest > bound * (1 - 10 / (double)s.count));
    assert_true(fabs(s.mean) < 5 * bound / sqrt(3) * noise);
    assert_true(fabs(s.deviation / (bound / sqrt(3)) - 1) < 5 * noise);
}

static void expect_constant(Model *m, const char *name, double value) {
    Statistics s = statistics_of(m, name);
    assert_true(fabs(s.mean - value) < 1e-12 && s.deviation < 1e-12 && s.largest == value);
}

static void start_values(void **state) {
    (void)state;
    VitttConfig c = preset("vittt_tiny");
    c.depth = 2;
    Model m;
    model_open(&m, c, DTYPE_F32, false);
    const char *const normal[] = {"blocks.1.attn.w1",          "blocks.1.attn.w2",
                                  "blocks.1.attn.w3",          "blocks.0.attn.qkv.weight",
                                  "blocks.0.attn.proj.weight", "blocks.1.mlp.fc1.weight",
                                  "blocks.0.mlp.fc2.weight",   "head.weight"};
    for (size_t i = 0; i < sizeof normal / sizeof normal[0]; i++) expect_normal(&m, normal[i]);
    const char *const zero[] = {"blocks.0.attn.qkv.bias",
                                "blocks.0.attn.proj.bias",
                                "blocks.1.mlp.fc1.bias",
                                "blocks.1.mlp.fc2.bias",
                                "head.bias",
                                "norm.bias",
                                "blocks.0.norm1.bias"};
    for (size_t i = 0; i < sizeof zero / sizeof zero[0]; i++) expect_constant(&m, zero[i], 0);
    expect_constant(&m, "norm.weight", 1);
    expect_constant(&m, "blocks.1.norm2.weight", 1);
    expect_uniform(&m, "patch_embed.proj.weight", 1 / sqrt(768));
    expect_uniform(&m, "patch_embed.proj.bias", 1 / sqrt(768));
    expect_uniform(&m, "blocks.1.cpe.weight", 1.0 / 3);
    expect_uniform(&m, "blocks.1.cpe.bias", 1.0 / 3);
    model_close(&m);
}

/* ---- forward ----------------------------------------------------------------------------------
 */

static void expect_maps(int64_t stem) {
    const int64_t shapes[][2] = {{16, 16}, {24, 12}, {4, 4}, {8, 28}};
    VitttConfig c = tiny(3, 0);
    c.stem_depth = stem;
    c.stem_width = 6;
    Model m;
    model_open(&m, c, DTYPE_F32, true);
    for (int i = 0; i < 4; i++) {
        const int64_t h = shapes[i][0], w = shapes[i][1], each = h * w * 3;
        float *image = malloc((size_t)(2 * each) * sizeof *image);
        fill_normal(image, 2 * each, 5, 1);
        double *recorded = logits_of(&m, image, 2, h, w, true, false);
        double *plain = logits_of(&m, image, 2, h, w, false, false);
        assert_true(relative(recorded, plain, 16, 0) < 1e-6); /* GELU is fused only in one */
        double *second = logits_of(&m, image + each, 1, h, w, false, false);
        assert_true(relative(second, plain + 8, 8, 0) < 1e-5); /* samples do not mix */
        assert_true(relative(plain, plain + 8, 8, 0) > 1e-4);
        free(recorded);
        free(plain);
        free(second);
        free(image);
    }
    model_close(&m);
}

/* The 2 x 2 merging of a stem against its definition: weights that pick one channel of one of the
 * four places tell which place a token reads. */
static void stem_merges_the_right_places(void **state) {
    (void)state;
    enum { H = 2, W = 3, S = 2, OUT = 8, PLACES = 4 * H * W };
    Device *d;
    Tape *t;
    Params p;
    Stem stem;
    check_ok(device_open("cpu", &d));
    check_ok(tape_new(d, &t));
    params_init(&p, d);
    check_ok(stem_register(&stem, &p, 1, S, OUT, 2));
    check_ok(params_build(&p, DTYPE_F32, false));
    check_ok(params_initialise(&p, 1));
    float patches[2 * PLACES * 3], zero[4 * S * S] = {0}, unit[OUT * 2 * S];
    fill_normal(patches, 2 * PLACES * 3, 6, 1);
    /* the block adds nothing: taps, their bias and fc2 are 0; fc2's bias starts at 0 */
    check_ok(device_push(d, params_find(&p, "stem.blocks.0.conv.bias")->master, zero));
    check_ok(device_push(d, params_find(&p, "stem.blocks.0.mlp.fc2.weight")->master, zero));
    float taps[9 * S] = {0};
    check_ok(device_push(d, params_find(&p, "stem.blocks.0.conv.weight")->master, taps));
    check_ok(device_push(d, params_find(&p, "stem.merge.upper.bias")->master, taps));
    for (int half = 0; half < 2; half++) { /* outputs 0-3: the upper pair; 4-7: the lower one */
        for (int o = 0; o < OUT; o++)
            for (int i = 0; i < 2 * S; i++) unit[o * 2 * S + i] = o == 4 * half + i;
        const char *const names[] = {"stem.merge.upper.weight", "stem.merge.lower.weight"};
        check_ok(device_push(d, params_find(&p, names[half])->master, unit));
        check_ok(device_sync(d));
    }
    tape_reset(t, true);
    Var *x =
        tape_input(t, push_floats(t, patches, DTYPE_F32, 3, (int64_t[]){2, PLACES, 3}), "patches");
    Var *y = stem_forward(&stem, t, x, H, W);
    check_ok(tape_status(t));
    double *got = pull_doubles(d, y->value);
    double *w = pull_doubles(d, stem.proj_w->value), *b = pull_doubles(d, stem.proj_b->value);
    for (int i = 0; i < 2 * H * W * OUT; i++) {
        const int token = i / OUT, o = i % OUT, dy = o / 4, dx = o / 2 % 2, c = o % 2;
        const int row = token / W % H, column = token % W, sample = token / (H * W);
        const float *pixel =
            patches + 3 * (sample * PLACES + (2 * row + dy) * 2 * W + 2 * column + dx);
        double z[S];
        for (int k = 0; k < S; k++)
            z[k] = b[k] + w[3 * k] * pixel[0] + w[3 * k + 1] * pixel[1] + w[3 * k + 2] * pixel[2];
        const double half = (z[0] - z[1]) / 2; /* the norm of two channels */
        const double want = (c ? -half : half) / sqrt(half * half + 1e-6);
        assert_true(fabs(got[i] - want) < 1e-4);
    }
    free(got);
    free(w);
    free(b);
    params_free(&p);
    tape_free(t);
    device_close(d);
}

static void any_map_and_both_modes(void **state) {
    (void)state;
    expect_maps(0);
    expect_maps(2);
}

/* Without recording the arena holds one block's worth, whatever the depth. */
static void inference_memory_is_flat(void **state) {
    (void)state;
    for (int form = VITTT_FUSED; form <= VITTT_COMPOSED; form++) {
        size_t peaks[2];
        for (int i = 0; i < 2; i++) {
            VitttConfig c = tiny(i ? 8 : 2, 0);
            c.form = form;
            Model m;
            model_open(&m, c, DTYPE_F32, false);
            float image[2 * 16 * 16 * 3];
            fill_normal(image, 2 * 16 * 16 * 3, 5, 1);
            free(logits_of(&m, image, 2, 16, 16, false, false));
            peaks[i] = m.device->step.peak;
            model_close(&m);
        }
        assert_int_equal(peaks[0], peaks[1]);
    }
}

static void bf16_is_close(void **state) {
    (void)state;
    Model exact, rounded;
    model_open(&exact, tiny(3, 0), DTYPE_F32, false);
    model_open(&rounded, tiny(3, 0), DTYPE_BF16, false);
    float image[4 * 16 * 16 * 3];
    fill_normal(image, 4 * 16 * 16 * 3, 5, 1);
    double *want = logits_of(&exact, image, 4, 16, 16, false, false);
    double *got = logits_of(&rounded, image, 4, 16, 16, false, false);
    const double error = relative(got, want, 32, 0);
    if (!(error < 0.03)) print_error("bf16 logits differ by %g\n", error);
    assert_true(error < 0.03 && error > 1e-6);
    free(want);
    free(got);
    model_close(&exact);
    model_close(&rounded);
}

static void wrong_images_are_refused(void **state) {
    (void)state;
    Model m;
    model_open(&m, tiny(2, 0.5), DTYPE_F32, false);
    float image[2 * 16 * 18 * 3] = {0};
    const int64_t shapes[][4] = {{1, 16, 18, 3}, {1, 18, 16, 3}, {1, 2, 16, 3}, {1, 16, 16, 1}};
    for (int i = 0; i < 4; i++) {
        tape_reset(m.tape, false);
        Var *x = tape_input(m.tape, push_floats(m.tape, image, DTYPE_F32, 4, shapes[i]), "image");
        vittt_forward(m.vittt, m.tape, x, false);
        assert_int_equal(tape_status(m.tape), STATUS_DATA);
        assert_non_null(strstr(status_message(), "multiples of the patch 4"));
    }
    /* training without a draw */
    tape_reset(m.tape, false);
    Var *x = tape_input(m.tape, push_floats(m.tape, image, DTYPE_F32, 4, (int64_t[]){1, 16, 16, 3}),
                        "image");
    vittt_forward(m.vittt, m.tape, x, true);
    assert_int_equal(tape_status(m.tape), STATUS_INTERNAL);
    model_close(&m);
}

int main(void) {
    /* Thousands of tiny products: on a busy machine a second thread is only waited for. */
    device_set_threads(1);
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(published_counts),
        cmocka_unit_test(published_names),
        cmocka_unit_test(stem_names),
        cmocka_unit_test(stem_merges_the_right_places),
        cmocka_unit_test(start_values),
        cmocka_unit_test(any_map_and_both_modes),
        cmocka_unit_test(inference_memory_is_flat),
        cmocka_unit_test(bf16_is_close),
        cmocka_unit_test(wrong_images_are_refused),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
