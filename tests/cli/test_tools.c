/* The program's own parts below its commands: option tables, scores, metrics files, stored
 * configurations. */
#include <stdarg.h>
#include <stddef.h>
#include <setjmp.h>
#include <stdint.h>
#include <cmocka.h>

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "core/file.h"
#include "core/memory.h"
#include "kernels/backend.h"
#include "tools/cli.h"
#include "tools/predict.h"
#include "tools/run_metrics.h"
#include "tools/sections.h"
#include "tools/trainer.h"
#include "tools/worst.h"

/* ---- option tables ---- */

enum { MAX_FLAGS = 256 };

static int flags_of(const Section *list, int count, const char **flags) {
    int n = 0;
    for (int i = 0; i < count; i++)
        for (const Option *o = list[i].options; o->key; o++) {
            assert_non_null(o->help);
            assert_true(strlen(o->help) > 3);
            if (o->flag) flags[n++] = o->flag;
            assert_true(n < MAX_FLAGS);
        }
    return n;
}

/* A flag means one option of a command; sections have distinct names, hidden ones included. */
static void test_flags_are_unique(void **state) {
    (void)state;
    for (int c = 0; commands[c]; c++) {
        const char *flags[MAX_FLAGS];
        int count = 0, hidden = 0;
        const Section *list = commands[c]->sections(&count);
        int n = flags_of(list, count, flags);
        Section shared = {"common", common_options, &common};
        n += flags_of(&shared, 1, flags + n);
        for (int i = 0; i < n; i++)
            for (int j = i + 1; j < n; j++)
                if (strcmp(flags[i], flags[j]) == 0)
                    fail_msg("%s: --%s twice", commands[c]->name, flags[i]);
        const Section *more = commands[c]->hidden ? commands[c]->hidden(&hidden) : NULL;
        for (int i = 0; i < hidden; i++)
            for (int j = 0; j < count; j++) assert_string_not_equal(more[i].name, list[j].name);
        Config *config;
        assert_int_equal(cli_config(commands[c], &config, NULL), STATUS_OK);
        config_free(config);
    }
}

static void test_letters_name_flags(void **state) {
    (void)state;
    for (int c = 0; commands[c]; c++)
        for (const char *p = commands[c]->letters; p && *p;) {
            char flag[64] = "";
            size_t n = strcspn(p, " ");
            assert_true(n > 2 && n < sizeof flag && p[1] == '=');
            memcpy(flag, p + 2, n - 2);
            if (!cli_find_flag(commands[c], flag, NULL))
                fail_msg("%s: -%c names no flag: %s", commands[c]->name, p[0], flag);
            assert_int_equal(cli_letter_of(commands[c], flag), p[0]);
            p += n;
            p += strspn(p, " ");
        }
}

static void test_sections_by_name(void **state) {
    (void)state;
    Section list[4];
    assert_int_equal(sections_fill(list, 4, "model data  loader"), 3);
    assert_string_equal(list[2].name, "loader");
    assert_ptr_equal(list[2].values, &settings.loader);
    assert_null(section_of("nothing").name);
}

/* ---- stored configurations ---- */

static char changes[512];
static void on_change(const char *section, const char *key, const char *stored, const char *now) {
    size_t n = strlen(changes);
    snprintf(changes + n, sizeof changes - n, "%s.%s %s->%s;", section, key, stored, now);
}

static void test_overlay(void **state) {
    (void)state;
    static const char text[] =
        "[loader]\nbatch_size = 7\nworkers = 3\n[train]\nmax_steps = 9\nepochs = 4\n"
        "[run]\noutput = \" odd; path\\n\"\n[unknown]\nx = 1\n";
    Config *config;
    assert_int_equal(cli_config(&command_train, &config, NULL), STATUS_OK);
    assert_int_equal(config_set(config, "loader.workers=5", "--set"), STATUS_OK);
    changes[0] = 0;
    assert_int_equal(config_overlay(config, text, strlen(text), "stored.ini",
                                    "loader train run -train.max_steps", on_change),
                     STATUS_OK);
    assert_int_equal(settings.loader.batch_size, 7);
    assert_int_equal(settings.loader.workers, 5);
    assert_int_equal(settings.train.max_steps, 0);
    assert_int_equal(settings.train.epochs, 4);
    assert_string_equal(settings.run.output, " odd; path\n");
    assert_string_equal(changes, "loader.workers 3->5;");
    static const char bad[] = "[loader]\nbatch_size = many\n";
    assert_int_equal(config_overlay(config, bad, strlen(bad), "stored.ini", "loader", NULL),
                     STATUS_DATA);
    assert_non_null(strstr(status_message(), "stored.ini:2"));
    config_free(config);
}

/* ---- scores ---- */

static void test_top_k(void **state) {
    (void)state;
    const float scores[6] = {1, 3, NAN, 3, -INFINITY, 2};
    int64_t order[6];
    const int64_t expected[6] = {1, 3, 5, 0, 4, 2};
    for (int64_t k = 1; k <= 6; k++) {
        top_k(scores, 6, k, order);
        assert_memory_equal(order, expected, (size_t)k * sizeof *order);
    }
    for (int64_t i = 0; i < 6; i++) assert_int_equal(label_rank(scores, 6, expected[i]), i);
}

static void test_softmax_and_loss(void **state) {
    (void)state;
    const float logits[3] = {1000, 1001, 999};
    float probs[3];
    softmax_row(logits, 3, probs);
    double sum = exp(-1) + 1 + exp(-2);
    assert_true(fabs(probs[0] - exp(-1) / sum) < 1e-7);
    assert_true(fabs(probs[1] - 1 / sum) < 1e-7);
    assert_true(fabs(loss_row(logits, 3, 2) - (log(sum) + 2)) < 1e-12);
}

static void test_score_counts_valid_rows_only(void **state) {
    (void)state;
    const float logits[3][6] = {{9, 0, 0, 0, 0, 0}, {9, 0, 0, 0, 0, 0}, {5, 4, 3, 2, 1, 0}};
    const int64_t labels[3] = {0, 0, 5};
    const uint8_t valid[3] = {1, 0, 1};
    Score s = {0};
    score_add(&s, &logits[0][0], 3, 6, labels, valid);
    assert_int_equal(s.scored, 2);
    assert_int_equal(s.left_out, 1);
    assert_int_equal(s.top1, 1);
    assert_int_equal(s.top5, 1);
    score_add(&s, &logits[0][0], 1, 6, labels, NULL);
    assert_int_equal(s.scored, 3);
}

/* ---- test-time averaging ---- */

/* Two pictures of 3x3, channel c of pixel (y, x) of picture i is 100i + 10y + 3x + c: what the
 * views hold follows from where each pixel came from. */
static void test_tta_views(void **state) {
    (void)state;
    static const int8_t shift[9][2] = {{0, 0},   {-1, 0}, {1, 0},  {0, -1}, {0, 1},
                                       {-1, -1}, {1, -1}, {-1, 1}, {1, 1}};
    static const int from[5] = {1, 0, 1, 2, 1}; /* -1 to 3: mirrored, the edge not repeated */
    uint8_t pixels[2][3][3][3], view[2][3][3][3];
    assert_int_equal(tta_views(TTA_NONE), 1);
    assert_int_equal(tta_views(TTA_FLIP), 2);
    assert_int_equal(tta_views(TTA_SHIFT), 18);
    for (int i = 0; i < 54; i++)
        ((uint8_t *)pixels)[i] =
            (uint8_t)(100 * (i / 27) + 10 * (i / 9 % 3) + 3 * (i / 3 % 3) + i % 3);
    for (int v = 0; v < 18; v++) {
        tta_view(&view[0][0][0][0], &pixels[0][0][0][0], 2, 3, v);
        for (int i = 0; i < 54; i++) {
            const int y = i / 9 % 3, x = i / 3 % 3;
            const int row = from[y + shift[v / 2][1] + 1], column = from[x + shift[v / 2][0] + 1];
            const int source = v % 2 ? 2 - column : column;
            assert_int_equal(((uint8_t *)view)[i], pixels[i / 27][row][source][i % 3]);
        }
    }
    tta_view(&view[0][0][0][0], &pixels[0][0][0][0], 18, 1, 17); /* single pixels stay */
    assert_memory_equal(view, pixels, sizeof pixels);
}

/* ---- metrics files ---- */

static char folder[] = "/tmp/ttv-tools.XXXXXX";

static void write_in(const char *name, const char *text) {
    char path[128];
    snprintf(path, sizeof path, "%s/%s", folder, name);
    assert_int_equal(file_write_atomic(path, text, strlen(text)), STATUS_OK);
}

static void expect_in(const char *name, const char *expected) {
    char path[128], *text;
    size_t size;
    snprintf(path, sizeof path, "%s/%s", folder, name);
    assert_int_equal(file_read(path, 1 << 20, &text, &size), STATUS_OK);
    assert_string_equal(text, expected);
    mem_free(text);
    unlink(path);
}

static void test_metrics_trim(void **state) {
    (void)state;
    assert_non_null(mkdtemp(folder));
    RunFolder r = {.path = folder, .lock = -1};
    write_in("metrics.csv",
             "kind,step,epoch\ntrain,1,0\ntrain,2,0\nvalidate,2,0\ntrain,3,0\ntrain,4");
    write_in("metrics.jsonl",
             "{\"kind\":\"train\",\"step\":2}\nnonsense\n{\"kind\":\"train\",\"step\":3}\n{\"ki");
    assert_int_equal(metrics_trim(&r, 2), STATUS_OK);
    expect_in("metrics.csv", "kind,step,epoch\ntrain,1,0\ntrain,2,0\nvalidate,2,0\n");
    expect_in("metrics.jsonl", "{\"kind\":\"train\",\"step\":2}\n");
    assert_int_equal(metrics_trim(&r, 2), STATUS_OK); /* no files: nothing to do */
    rmdir(folder);
}

/* ---- the memory of a run ---- */

static size_t pretended; /* bytes free */
static Status few_bytes(Device *d, size_t *available, size_t *total) {
    (void)d;
    *available = *total = pretended;
    return STATUS_OK;
}

static void plan_open(Trainer *t, DeviceMemory *memory, bool recompute) {
    const char *const sizes[] = {"preset=custom", "image_size=32", "patch=4",    "width=48",
                                 "depth=3",       "heads=3",       "classes=10", "drop_path=0.1"};
    Section list[2] = {section_of("model"), section_of("preprocess")};
    assert_int_equal(config_new(list, 2, &t->config), STATUS_OK);
    for (size_t i = 0; i < sizeof sizes / sizeof *sizes; i++) {
        char text[64];
        snprintf(text, sizeof text, "model.%s", sizes[i]);
        assert_int_equal(config_set(t->config, text, "test"), STATUS_OK);
    }
    if (recompute) assert_int_equal(config_set(t->config, "model.recompute=true", "test"), 0);
    snprintf(common.device, sizeof common.device, "cpu");
    settings.loader.prefetch = 4;
    assert_int_equal(model_create(&t->model, t->config, 0, true, 1), STATUS_OK);
    *memory = *t->model.device->memory;
    memory->available = few_bytes;
    t->model.device->memory = memory;
}

static void plan_close(Trainer *t) {
    model_close(&t->model);
    config_free(t->config);
}

static Status plan(Trainer *t, int64_t batch) {
    settings.loader.batch_size = batch;
    return trainer_plan_memory(t);
}

/* The batch that the refusal names fits: the plan takes it, and so does a true pass. */
static void test_memory_plan(void **state) {
    (void)state;
    int64_t largest[2];
    for (int recompute = 0; recompute < 2; recompute++) {
        Trainer t = {0};
        DeviceMemory memory;
        plan_open(&t, &memory, recompute);
        pretended = (size_t)64 << 20;
        assert_int_equal(plan(&t, 4096), STATUS_MEMORY);
        const char *text = status_message(), *at = strstr(text, "the largest batch that fits is ");
        assert_non_null(at);
        assert_non_null(strstr(text, "--batch-size 4096 does not fit"));
        assert_non_null(strstr(text, "67.1 MB are free"));
        assert_int_equal(strstr(text, "--grad-checkpointing") == NULL, recompute);
        largest[recompute] = strtoll(at + strlen("the largest batch that fits is "), NULL, 10);
        assert_true(largest[recompute] > 4 && largest[recompute] < 4096);
        assert_int_equal(plan(&t, largest[recompute]), STATUS_OK);
        assert_int_equal(t.memory.largest, largest[recompute]);
        /* What is spared for libraries is less than a tenth. */
        assert_int_equal(plan(&t, largest[recompute] * 11 / 10), STATUS_MEMORY);
        pretended = 1000;
        assert_int_equal(plan(&t, 1), STATUS_MEMORY);
        assert_non_null(strstr(status_message(), "not even one sample fits"));
        assert_true(tensor_is_none(t.model.vittt->drop_scale));
        plan_close(&t);
    }
    assert_true(largest[1] > largest[0]);
}

/* The worst of 200 samples, of which every fifth is left out, in batches of 7: in one list as by
 * sorting all. */
static void test_worst(void **state) {
    (void)state;
    enum { SAMPLES = 200, CLASSES = 5, BATCH = 7 };
    static float logits[SAMPLES * CLASSES];
    static int64_t labels[SAMPLES], samples[SAMPLES];
    static uint8_t valid[SAMPLES];
    Rng rng = rng_stream(1, RNG_SHUFFLE, 0, 0);
    Worst w = {.count = 0};
    for (int i = 0; i < SAMPLES * CLASSES; i++) logits[i] = (float)rng_below(&rng, 9);
    for (int i = 0; i < SAMPLES; i++) {
        samples[i] = 1000 + i;
        labels[i] = (int64_t)rng_below(&rng, CLASSES);
        valid[i] = i % 5 != 0;
    }
    for (int i = 0; i < SAMPLES; i += BATCH) {
        const HostBatch b = {.labels = labels + i,
                             .samples = samples + i,
                             .valid = valid + i,
                             .count = SAMPLES - i < BATCH ? SAMPLES - i : BATCH};
        worst_add(&w, &b, logits + i * CLASSES, CLASSES);
    }
    assert_int_equal(w.count, WORST_SHOWN);
    for (int k = 0; k < w.count; k++) {
        const int64_t i = w.items[k].sample - 1000;
        const double loss = loss_row(logits + i * CLASSES, CLASSES, labels[i]);
        assert_true(valid[i] && w.items[k].loss == loss);
        assert_int_equal(w.items[k].label, labels[i]);
        assert_int_equal(label_rank(logits + i * CLASSES, CLASSES, w.items[k].prediction), 0);
        assert_int_not_equal(w.items[k].prediction, labels[i]);
        assert_true(w.items[k].probability > 1.0 / CLASSES && w.items[k].probability < 1);
        int before = 0; /* wrong ones that are worse, or as bad and earlier */
        for (int j = 0; j < SAMPLES; j++) {
            const float *row = logits + j * CLASSES;
            const double other = loss_row(row, CLASSES, labels[j]);
            if (!valid[j] || label_rank(row, CLASSES, labels[j]) == 0) continue;
            before += other > loss || (other == loss && j < i);
        }
        assert_int_equal(before, k);
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_flags_are_unique),
        cmocka_unit_test(test_letters_name_flags),
        cmocka_unit_test(test_sections_by_name),
        cmocka_unit_test(test_overlay),
        cmocka_unit_test(test_memory_plan),
        cmocka_unit_test(test_top_k),
        cmocka_unit_test(test_softmax_and_loss),
        cmocka_unit_test(test_score_counts_valid_rows_only),
        cmocka_unit_test(test_tta_views),
        cmocka_unit_test(test_metrics_trim),
        cmocka_unit_test(test_worst),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
