/* The hierarchical ViTTT: sizes, the gradient of the whole, statistics of its batch norms. */
#include <stdarg.h>
#include <stddef.h>
#include <setjmp.h>
#include <stdint.h>
#include <cmocka.h>

#include "core/memory.h"
#include "nn/optim.h"
#include "vittt_model_fixture.h"

enum { SIDE = 32, PIXELS = SIDE * SIDE * 3, BATCH = 6, CLASSES = 5 };

static VitttConfig small(void) {
    VitttConfig c = {.preset = "custom",
                     .image_size = SIDE,
                     .mlp_ratio = 2,
                     .classes = CLASSES,
                     .mixer = "base",
                     .stages = "8x1x2,8x1x2,16x2x4,16x1x2",
                     .rope = true};
    check_ok(vittt_config_resolve(&c, NULL));
    return c;
}

static Param *param(Model *m, const char *name) {
    Param *p = params_find(&m->params, name);
    if (!p) print_error("no parameter %s\n", name);
    assert_non_null(p);
    return p;
}

/* ---- sizes ------------------------------------------------------------------------------------
 */

static void published_sizes(void **state) {
    (void)state;
    const struct {
        const char *name;
        int64_t parameters, tensors; /* without the counters of nine batch norms */
        double gmacs;
    } cases[] = {{"vittt_h_tiny", 28703560, 410 - 9, 4.903},
                 {"vittt_h_small", 54362056, 750 - 9, 8.732},
                 {"vittt_h_base", 94369304, 750 - 9, 16.682}};
    for (int i = 0; i < 3; i++) {
        VitttConfig c = {.image_size = 224, .classes = 1000, .mixer = "base"};
        Params p;
        Vittt *m = NULL;
        snprintf(c.preset, sizeof c.preset, "%s", cases[i].name);
        check_ok(vittt_config_resolve(&c, NULL));
        params_init(&p, NULL);
        check_ok(vittt_new(&c, &p, &m));
        assert_int_equal(p.total, cases[i].parameters);
        assert_int_equal(p.count, cases[i].tensors);
        assert_true(fabs((double)vittt_macs(&c) / 1e9 - cases[i].gmacs) < 1e-3);
        vittt_free(m);
        params_free(&p);
    }
}

/* ---- gradient ---------------------------------------------------------------------------------
 */

typedef struct Problem {
    Model m;
    float *image, targets[BATCH * CLASSES];
} Problem;

static void problem_open(Problem *p, VitttConfig c, DType act) {
    memset(p, 0, sizeof *p);
    model_open(&p->m, c, act, true);
    p->image = malloc(BATCH * PIXELS * sizeof *p->image);
    fill_normal(p->image, BATCH * PIXELS, 5, 1);
    for (int i = 0; i < BATCH; i++) p->targets[i * CLASSES + i * 2 % CLASSES] = 1;
    /* Weights of a size that lets every part of the network have its say. */
    for (int64_t i = 0; i < p->m.params.count; i++) {
        const Param *item = p->m.params.items[i];
        if (item->init.kind != INIT_NORMAL) continue;
        const int64_t n = tensor_count(item->master);
        float *values = malloc((size_t)n * sizeof *values);
        fill_normal(values, n, 200 + (uint64_t)i, 0.2);
        check_ok(device_push(p->m.device, item->master, values));
        free(values);
    }
    check_ok(params_refresh(&p->m.params));
}

static void problem_close(Problem *p) {
    free(p->image);
    model_close(&p->m);
}

static Var *loss_of(Problem *p, bool record) {
    Tape *t = p->m.tape;
    tape_reset(t, record);
    Tensor image = push_floats(t, p->image, tape_act(t), 4, (int64_t[]){BATCH, SIDE, SIDE, 3});
    Tensor targets = push_floats(t, p->targets, DTYPE_F32, 2, (int64_t[]){BATCH, CLASSES});
    Var *logits = vittt_forward(p->m.vittt, t, tape_input(t, image, "image"), true);
    Var *loss = op_cross_entropy(t, logits, targets);
    check_ok(tape_status(t));
    return loss;
}

static double number(Device *d, Tensor t) {
    float x;
    check_ok(device_pull(d, &x, t));
    return x;
}

static void backward(Problem *p) {
    params_begin_step(&p->m.params);
    Var *loss = loss_of(p, true);
    check_ok(tape_backward(p->m.tape, loss, 1));
    check_ok(params_finish_grads(&p->m.params));
}

/* Loss when a parameter moves by `step` along a direction. */
static double moved(Problem *p, Param *item, const float *base, const float *direction,
                    double step) {
    const int64_t n = tensor_count(item->master);
    float *x = malloc((size_t)n * sizeof *x);
    for (int64_t i = 0; i < n; i++) x[i] = base[i] + (float)step * direction[i];
    check_ok(device_push(p->m.device, item->master, x));
    const double loss = number(p->m.device, loss_of(p, false)->value);
    check_ok(device_push(p->m.device, item->master, base));
    free(x);
    return loss;
}

/* Every parameter's gradient against differences along the gradient itself, where the loss moves
 * most. Relu has kinks, of which the few channels here meet many: differences come to the gradient
 * as the step shrinks, and at this one are within some percent (each op has a check of its own). */
static void gradient_of_the_whole(void **state) {
    (void)state;
    Problem p;
    problem_open(&p, small(), DTYPE_F32);
    backward(&p);
    double largest = 0;
    for (int64_t i = 0; i < p.m.params.count; i++) {
        Param *item = p.m.params.items[i];
        if (item->flags & PARAM_BUFFER) continue;
        double *g = pull_doubles(p.m.device, item->var.grad);
        largest = fmax(largest, norm_of(g, tensor_count(item->master)));
        free(g);
    }
    int checked = 0;
    for (int64_t i = 0; i < p.m.params.count; i++) {
        Param *item = p.m.params.items[i];
        const int64_t n = tensor_count(item->master);
        if (item->flags & PARAM_BUFFER) {
            assert_false(item->var.wants_grad);
            continue;
        }
        float *base = malloc((size_t)n * sizeof *base), *way = malloc((size_t)n * sizeof *way);
        backward(&p);
        double *g = pull_doubles(p.m.device, item->var.grad);
        check_ok(device_pull(p.m.device, base, item->master));
        const double norm = norm_of(g, n);
        if (norm > 3e-3 * largest) {
            for (int64_t j = 0; j < n; j++) way[j] = (float)(g[j] / norm);
            const double step = 2e-4, slope = (moved(&p, item, base, way, step) -
                                               moved(&p, item, base, way, -step)) /
                                              (2 * step);
            if (!(fabs(slope - norm) < 0.08 * norm + 1e-3 * largest))
                print_error("%s: gradient %g, differences %g\n", item->name, norm, slope);
            assert_true(fabs(slope - norm) < 0.08 * norm + 1e-3 * largest);
            checked++;
        }
        free(g);
        free(base);
        free(way);
    }
    print_message("%d of %lld gradients are large enough to be measured\n", checked,
                  (long long)p.m.params.count);
    assert_true(checked > 40);
    problem_close(&p);
}

/* The tape that computes blocks again gives the same bits, and moves no statistics twice. */
static void recomputed_is_equal(void **state) {
    (void)state;
    Problem plain, again;
    VitttConfig c = small();
    problem_open(&plain, c, DTYPE_F32);
    c.recompute = true;
    problem_open(&again, c, DTYPE_F32);
    backward(&plain);
    backward(&again);
    double *a = pull_doubles(plain.m.device, plain.m.params.grad);
    double *b = pull_doubles(again.m.device, again.m.params.grad);
    assert_memory_equal(a, b, (size_t)plain.m.params.flat * sizeof *a);
    free(a);
    free(b);
    a = pull_doubles(plain.m.device, plain.m.params.master);
    b = pull_doubles(again.m.device, again.m.params.master);
    assert_memory_equal(a, b, (size_t)plain.m.params.flat * sizeof *a);
    free(a);
    free(b);
    problem_close(&plain);
    problem_close(&again);
}

static void bf16_is_close(void **state) {
    (void)state;
    Problem wide, narrow;
    problem_open(&wide, small(), DTYPE_F32);
    problem_open(&narrow, small(), DTYPE_BF16);
    const double a = number(wide.m.device, loss_of(&wide, true)->value);
    const double b = number(narrow.m.device, loss_of(&narrow, true)->value);
    assert_true(isfinite(b) && fabs(a - b) < 0.05 * fabs(a));
    problem_close(&wide);
    problem_close(&narrow);
}

/* ---- statistics -------------------------------------------------------------------------------
 */

static double *eval_logits(Problem *p, int64_t batch) {
    return logits_of(&p->m, p->image, batch, SIDE, SIDE, false, false);
}

static void statistics_are_kept(void **state) {
    (void)state;
    Problem p;
    problem_open(&p, small(), DTYPE_F32);
    Param *mean = param(&p.m, "patch_embed.conv.0.norm.running_mean");
    Param *var = param(&p.m, "norm.running_var");
    double *before = pull_doubles(p.m.device, mean->master);
    for (int i = 0; i < 4; i++) assert_true(before[i] == 0);
    /* evaluation: samples do not mix, statistics stay */
    double *six = eval_logits(&p, BATCH), *one = eval_logits(&p, 1);
    assert_true(relative(one, six, CLASSES, 0) < 1e-5);
    double *still = pull_doubles(p.m.device, mean->master);
    assert_memory_equal(before, still, 4 * sizeof *before);
    free(one);
    /* training: they move by a tenth, and evaluation then follows */
    loss_of(&p, true);
    double *first = pull_doubles(p.m.device, mean->master);
    loss_of(&p, true);
    double *second = pull_doubles(p.m.device, mean->master);
    for (int i = 0; i < 4; i++) {
        assert_true(first[i] != 0);
        assert_true(fabs(second[i] - 1.9 * first[i]) < 1e-5 * fabs(first[i]));
    }
    double *later = eval_logits(&p, BATCH), *spread = pull_doubles(p.m.device, var->master);
    assert_true(relative(later, six, BATCH * CLASSES, 0) > 1e-3);
    assert_true(spread[0] != 1);
    /* what is not finite is not learnt */
    p.image[7] = NAN;
    loss_of(&p, true);
    double *healthy = pull_doubles(p.m.device, mean->master);
    for (int i = 0; i < 4; i++) assert_true(isfinite(healthy[i]) && healthy[i] == second[i]);
    double *lists[] = {before, six, still, first, second, later, spread, healthy};
    for (int i = 0; i < 8; i++) free(lists[i]);
    problem_close(&p);
}

/* AdamW leaves buffers alone; the average follows them, and what never changes stays exact. */
static void averages_cover_statistics(void **state) {
    (void)state;
    Problem p;
    problem_open(&p, small(), DTYPE_F32);
    AdamW o;
    Ema ema;
    check_ok(adamw_init(&o, &p.m.params, (AdamWOptions){0.9f, 0.999f, 1e-8f, 0.05f, 5.0f, 0}));
    check_ok(ema_init(&ema, &p.m.params, 0.75f));
    o.ema = &ema;
    const Param *mean = param(&p.m, "norm.running_mean");
    const Param *table = param(&p.m, "layers.1.blocks.0.rope.rotations");
    double *turn = pull_doubles(p.m.device, table->master);
    double first = 0, last = 0;
    for (int i = 0; i < 30; i++) {
        backward(&p);
        double *seen = pull_doubles(p.m.device, mean->master);
        check_ok(adamw_step(&o, 3e-3));
        double *kept = pull_doubles(p.m.device, mean->master);
        assert_memory_equal(seen, kept, 16 * sizeof *seen);
        free(seen);
        free(kept);
        last = number(p.m.device, loss_of(&p, true)->value);
        if (i == 0) first = last;
    }
    assert_true(last < 0.5 * first);
    double *now = pull_doubles(p.m.device, mean->master);
    check_ok(ema_swap(&ema));
    double *average = pull_doubles(p.m.device, mean->master);
    double *same = pull_doubles(p.m.device, table->master);
    assert_true(average[0] != 0 && relative(average, now, 16, 0) < 0.9);
    assert_memory_equal(turn, same, (size_t)tensor_count(table->master) * sizeof *turn);
    double *lists[] = {turn, now, average, same};
    for (int i = 0; i < 4; i++) free(lists[i]);
    problem_close(&p);
}

/* ---- files and mistakes -----------------------------------------------------------------------
 */

/* A published file counts batches beside the statistics; nothing else may be too much. */
static void published_files_load(void **state) {
    (void)state;
    Model m, other;
    char path[256];
    SafeItem items[512];
    SafeFile *file;
    int64_t batches = 12345;
    model_open(&m, small(), DTYPE_F32, false);
    const int64_t count = m.params.count;
    assert_true(count < 510);
    for (int64_t i = 0; i < count; i++) {
        items[i] = (SafeItem){m.params.items[i]->name, m.params.items[i]->master};
    }
    items[count] = (SafeItem){"patch_embed.conv.0.norm.num_batches_tracked",
                              {.data = &batches, .dtype = DTYPE_I64, .rank = 0}};
    temporary_weights(path);
    check_ok(safetensors_write(path, items, count + 1, NULL, 0));
    model_open(&other, small(), DTYPE_F32, false);
    check_ok(safetensors_open(path, &file));
    assert_int_equal(params_load(&other.params, file, NULL), STATUS_DATA);
    check_ok(params_load(&other.params, file, vittt_unused_tensors(&other.vittt->config)));
    double *a = pull_doubles(m.device, m.params.master);
    double *b = pull_doubles(other.device, other.params.master);
    assert_memory_equal(a, b, (size_t)m.params.flat * sizeof *a);
    free(a);
    free(b);
    safetensors_close(file);
    unlink(path);
    model_close(&m);
    model_close(&other);
}

static void refused(const char *change, const char *part) {
    VitttConfig c = small();
    if (strcmp(change, "size") == 0) c.image_size = 48;
    if (strcmp(change, "mixer") == 0) snprintf(c.mixer, sizeof c.mixer, "lact");
    if (strcmp(change, "width") == 0) c.width = 24;
    if (strcmp(change, "stem") == 0) c.stem_depth = 1, c.stem_width = 8;
    if (strchr(change, ',')) {
        snprintf(c.stages, sizeof c.stages, "%s", change);
        assert_int_equal(vittt_config_resolve(&c, NULL), STATUS_USAGE);
    } else {
        assert_int_equal(vittt_config_check(&c), STATUS_USAGE);
    }
    if (!strstr(status_message(), part)) print_error("message: %s\n", status_message());
    assert_non_null(strstr(status_message(), part));
}

static void mistakes(void **state) {
    (void)state;
    refused("size", "48 is not a multiple of patch 32; nearest: 32");
    refused("mixer", "'lact' is not for hierarchical models");
    refused("width", "do not belong to stages");
    refused("stem", "a stem of its own");
    refused("8x1x2,8x1x2,16x1", "stage 3 is not WIDTHxBLOCKSxHEADS");
    refused("8x1x2,8x1x2,16x1x2", "stage 3 is not");
    refused("8x1x2,8x0x2,16x1x2,16x1x2", "stage 2 is not");
    refused("8x1x2,8x1x2,16x1x2,16x1x2,16x1x2", "more than four stages");
    refused("8x1x2,8x1x2,16x1x2,16x1x2.5", "'.5' behind stage 4, expected nothing");
    refused("8x1x3,8x1x2,16x1x2,16x1x2", "width 8 of stage 1 is not a multiple of its 3 heads");
    refused("8x1x2,8x1x2,18x1x2,16x1x2", "width 18 of stage 3");
}

/* Rotary positions are a table for one size. */
static void other_sizes_are_refused(void **state) {
    (void)state;
    Problem p;
    problem_open(&p, small(), DTYPE_F32);
    Tape *t = p.m.tape;
    float *large = calloc(64 * 64 * 3, sizeof *large);
    tape_reset(t, false);
    Tensor image = push_floats(t, large, DTYPE_F32, 4, (int64_t[]){1, 64, 64, 3});
    vittt_forward(p.m.vittt, t, tape_input(t, image, "image"), false);
    assert_int_equal(tape_status(t), STATUS_DATA);
    assert_non_null(strstr(status_message(), "rotary positions are for 32 x 32"));
    problem_close(&p);
    VitttConfig c = small();
    c.rope = false;
    Model m;
    model_open(&m, c, DTYPE_F32, false);
    double *y = logits_of(&m, large, 1, 64, 64, false, false);
    assert_true(isfinite(y[0]));
    free(y);
    free(large);
    model_close(&m);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(published_sizes),         cmocka_unit_test(gradient_of_the_whole),
        cmocka_unit_test(recomputed_is_equal),     cmocka_unit_test(bf16_is_close),
        cmocka_unit_test(statistics_are_kept),     cmocka_unit_test(averages_cover_statistics),
        cmocka_unit_test(published_files_load),    cmocka_unit_test(mistakes),
        cmocka_unit_test(other_sizes_are_refused),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
