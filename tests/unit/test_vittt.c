/* The plain ViTTT model: published names, counts and start values; stochastic depth; learning. */
#include <stdarg.h>
#include <stddef.h>
#include <setjmp.h>
#include <stdint.h>
#include <cmocka.h>

#include <stdio.h>

#include "core/memory.h"
#include "nn/optim.h"
#include "vision/vittt.h"
#include "vittt_fixture.h"

static VitttConfig preset(const char *name) {
    VitttConfig c = {.image_size = 224, .classes = 1000, .mixer = "base"};
    snprintf(c.preset, sizeof c.preset, "%s", name);
    check_ok(vittt_config_resolve(&c, NULL));
    return c;
}

static VitttConfig tiny(int64_t depth, double drop_path) {
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

static void model_open(Model *m, VitttConfig c, DType act, bool training) {
    check_ok(device_open("cpu", &m->device));
    params_init(&m->params, m->device);
    check_ok(vittt_new(&c, &m->params, &m->vittt));
    check_ok(params_build(&m->params, act, training));
    check_ok(params_initialise(&m->params, 1));
    check_ok(tape_new(m->device, &m->tape));
    tape_set_act(m->tape, act);
}

static void model_close(Model *m) {
    tape_free(m->tape);
    vittt_free(m->vittt);
    params_free(&m->params);
    device_close(m->device);
}

/* Logits [batch,classes] of the given image. */
static double *logits_of(Model *m, const float *image, int64_t batch, int64_t h, int64_t w,
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

/* ---- stochastic depth ---------------------------------------------------------------------------
 */

static void drop_path_scales(void **state) {
    (void)state;
    enum { DEPTH = 5, BATCH = 400 };
    Model m;
    model_open(&m, tiny(DEPTH, 0.4), DTYPE_F32, false);
    check_ok(vittt_draw_drop_path(m.vittt, m.device, 3, 7, 1, BATCH));
    double *scale = pull_doubles(m.device, m.vittt->drop_scale);
    for (int branch = 0; branch < 2 * DEPTH; branch++) {
        const double rate = (float)(0.4 * (branch / 2) / (DEPTH - 1));
        int64_t kept = 0;
        for (int i = 0; i < BATCH; i++) {
            const double s = scale[branch * BATCH + i];
            assert_true(s == 0 || fabs(s - 1 / (1 - rate)) < 1e-6);
            kept += s != 0;
        }
        assert_true(fabs((double)kept / BATCH - (1 - rate)) <
                    5 * sqrt(rate * (1 - rate) / BATCH) + 1e-9);
    }
    /* two draws per block, not one; another step draws anew; the same step the same */
    assert_memory_not_equal(scale + 8 * BATCH, scale + 9 * BATCH, BATCH * sizeof *scale);
    check_ok(vittt_draw_drop_path(m.vittt, m.device, 3, 8, 1, BATCH));
    double *other = pull_doubles(m.device, m.vittt->drop_scale);
    assert_memory_not_equal(scale, other, 2 * DEPTH * BATCH * sizeof *scale);
    free(other);
    /* a sample's draw does not depend on how many there are */
    check_ok(vittt_draw_drop_path(m.vittt, m.device, 3, 7, 1, BATCH + 13));
    double *larger = pull_doubles(m.device, m.vittt->drop_scale);
    for (int branch = 0; branch < 2 * DEPTH; branch++)
        assert_memory_equal(larger + branch * (BATCH + 13), scale + branch * BATCH,
                            BATCH * sizeof *scale);
    free(larger);
    free(scale);
    model_close(&m);
}

/* A sample whose branches are all dropped but block 0's goes through block 0 and position encodings
 * only: the scale reaches the right branch of the right sample. */
static void drop_path_acts_per_sample(void **state) {
    (void)state;
    Model m;
    model_open(&m, tiny(3, 0.6), DTYPE_F32, false);
    float image[8 * 16 * 16 * 3];
    fill_normal(image, 16 * 16 * 3, 5, 1);
    for (int i = 1; i < 8; i++)
        memcpy(image + i * 768, image, 768 * sizeof *image); /* eight times the same picture */
    check_ok(vittt_draw_drop_path(m.vittt, m.device, 11, 0, 0, 8));
    double *scale = pull_doubles(m.device, m.vittt->drop_scale);
    double *y = logits_of(&m, image, 8, 16, 16, false, true);
    int equal = 0, different = 0;
    for (int a = 0; a < 8; a++) {
        for (int b = 0; b < a; b++) {
            bool same = true;
            for (int branch = 0; branch < 6; branch++)
                same = same && scale[branch * 8 + a] == scale[branch * 8 + b];
            const double distance = relative(y + a * 8, y + b * 8, 8, 0);
            assert_true(same ? distance < 1e-5 : distance > 1e-5);
            equal += same;
            different += !same;
        }
    }
    assert_true(equal > 0 && different > 0);
    double *eval = logits_of(&m, image, 8, 16, 16, false, false);
    assert_true(relative(eval, eval + 8, 8, 0) < 1e-5); /* evaluation drops nothing */
    free(eval);
    free(y);
    free(scale);
    model_close(&m);
}

/* ---- learning
 * ------------------------------------------------------------------------------------ */

static double train_step(Model *m, AdamW *o, const float *image, const float *targets, double lr) {
    Tape *t = m->tape;
    params_begin_step(&m->params);
    tape_reset(t, true);
    Var *x =
        tape_input(t, push_floats(t, image, tape_act(t), 4, (int64_t[]){8, 16, 16, 3}), "image");
    Tensor wanted = push_floats(t, targets, DTYPE_F32, 2, (int64_t[]){8, 8});
    Var *loss = op_cross_entropy(t, vittt_forward(m->vittt, t, x, true), wanted);
    check_ok(tape_status(t));
    double *value = pull_doubles(m->device, loss->value);
    const double result = value[0];
    free(value);
    check_ok(tape_backward(t, loss, 1));
    check_ok(params_finish_grads(&m->params));
    check_ok(adamw_step(o, lr));
    return result;
}

static double overfit(DType act, const char *mixer, int steps, int64_t stem) {
    Model m;
    VitttConfig c = tiny(2, 0);
    c.stem_depth = stem;
    c.stem_width = 16;
    snprintf(c.mixer, sizeof c.mixer, "%s", mixer);
    model_open(&m, c, act, true);
    AdamW o;
    check_ok(adamw_init(&o, &m.params, (AdamWOptions){0.9f, 0.999f, 1e-8f, 0.05f, 5.0f, 0}));
    float image[8 * 16 * 16 * 3], targets[64] = {0};
    fill_normal(image, 8 * 16 * 16 * 3, 5, 1);
    for (int i = 0; i < 8; i++) targets[i * 8 + (i * 3) % 8] = 1;
    double loss = train_step(&m, &o, image, targets, 3e-3);
    assert_true(fabs(loss - log(8)) < 0.2); /* knows nothing at the start */
    int64_t growths = 0;
    for (int i = 0; i < steps; i++) {
        loss = train_step(&m, &o, image, targets, 3e-3);
        if (i == 0) growths = tape_growths(m.tape);
    }
    assert_int_equal(tape_growths(m.tape), growths); /* step 2 and later take no memory */
    model_close(&m);
    return loss;
}

static void one_batch_is_learnt(void **state) {
    (void)state;
    const double f32 = overfit(DTYPE_F32, "base", 200, 0);
    const double bf16 = overfit(DTYPE_BF16, "base", 200, 0);
    if (!(f32 < 0.02 && bf16 < 0.03)) print_error("loss %g, bf16 %g\n", f32, bf16);
    assert_true(f32 < 0.02 && bf16 < 0.03);
    const double stem = overfit(DTYPE_BF16, "base", 200, 2);
    if (!(stem < 0.03)) print_error("with a stem: loss %g\n", stem);
    assert_true(stem < 0.03);
}

static void every_variant_learns(void **state) {
    (void)state;
    for (int i = 1; vittt_variant_name(i); i++) {
        const double loss = overfit(DTYPE_F32, vittt_variant_name(i), 60, 0);
        if (!(loss < 0.5)) print_error("%s: loss %g\n", vittt_variant_name(i), loss);
        assert_true(loss < 0.5);
    }
}

/* ---- out of memory
 * ------------------------------------------------------------------------------- */

static void every_allocation_may_fail(void **state) {
    (void)state;
    Device *d;
    check_ok(device_open("cpu", &d));
    const VitttConfig c = tiny(2, 0.1);
    const int64_t alive = mem_live();
    int64_t failures = 0;
    for (bool failed = true; failed; failures += failed) {
        Params p;
        Vittt *m = NULL;
        params_init(&p, d);
        mem_fail_at(failures + 1);
        Status s = vittt_new(&c, &p, &m);
        failed = !mem_fail_pending();
        mem_fail_at(0);
        assert_int_equal(s, failed ? STATUS_MEMORY : STATUS_OK);
        if (s == STATUS_OK) vittt_free(m);
        params_free(&p);
        assert_int_equal(mem_live(), alive);
    }
    assert_true(failures > 76); /* 38 parameters with their names */
    device_close(d);
}

static void a_pass_may_run_out_of_memory(void **state) {
    (void)state;
    float image[16 * 16 * 3];
    fill_normal(image, 16 * 16 * 3, 5, 1);
    for (int form = VITTT_FUSED; form <= VITTT_PAIRS; form++) {
        int refused = 0;
        for (int64_t n = 1;; n++) {
            Model m;
            VitttConfig c = tiny(2, 0.1);
            c.form = form;
            model_open(&m, c, DTYPE_F32, true);
            tape_reset(m.tape, true);
            Tensor x = push_floats(m.tape, image, DTYPE_F32, 4, (int64_t[]){1, 16, 16, 3});
            mem_fail_at(n);
            Status s = vittt_draw_drop_path(m.vittt, m.device, 1, 0, 0, 1);
            if (s == STATUS_OK) {
                vittt_forward(m.vittt, m.tape, tape_input(m.tape, x, "image"), true);
                s = tape_status(m.tape);
            }
            const bool failed = !mem_fail_pending();
            mem_fail_at(0);
            /* OK also where the arena can do without, as in keeping a free list */
            assert_true(s == STATUS_OK || (failed && s == STATUS_MEMORY));
            refused += s == STATUS_MEMORY;
            model_close(&m);
            if (!failed) break;
        }
        assert_true(refused > 2);
    }
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
        cmocka_unit_test(drop_path_scales),
        cmocka_unit_test(drop_path_acts_per_sample),
        cmocka_unit_test(one_batch_is_learnt),
        cmocka_unit_test(every_variant_learns),
        cmocka_unit_test(every_allocation_may_fail),
        cmocka_unit_test(a_pass_may_run_out_of_memory),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
