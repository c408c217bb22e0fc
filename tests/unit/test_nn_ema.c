/* Averaged weights: the formula, the exchange, checkpoints and an exact resume. */
#include <stdarg.h>
#include <stddef.h>
#include <setjmp.h>
#include <stdint.h>
#include <cmocka.h>

#include "core/file.h"
#include "core/safetensors.h"
#include "nn_train_fixture.h"

static float *pull(Toy *toy, Tensor block) {
    float *values = malloc((size_t)toy->params.flat * sizeof *values);
    check_ok(device_pull(toy->d, values, block));
    return values;
}

static void check_equal(Toy *toy, Tensor block, const float *expected) {
    float *values = pull(toy, block);
    assert_memory_equal(values, expected, (size_t)toy->params.flat * sizeof *values);
    free(values);
}

static Toy *averaging(Ema *e, float decay) {
    Toy *toy = toy_new(8);
    check_ok(ema_init(e, &toy->params, decay));
    toy->optim.ema = e;
    return toy;
}

static void the_average_follows(void **unused) {
    (void)unused;
    char *folder = folder_new();
    Ema e;
    Toy *toy = averaging(&e, 0.75f);
    TrainOptions o = options(folder, 4, 1);
    float *expected = pull(toy, toy->params.master);
    check_equal(toy, e.average, expected);
    for (o.max_steps = 1; o.max_steps <= 3; o.max_steps++) {
        check_ok(go(toy, &o, NULL));
        float *now = pull(toy, toy->params.master), *average = pull(toy, e.average);
        for (int64_t i = 0; i < toy->params.flat; i++) {
            expected[i] = 0.75f * expected[i] + 0.25f * now[i];
            assert_true(fabsf(average[i] - expected[i]) <= 1e-6f);
        }
        free(now);
        free(average);
    }
    free(expected);
    toy_free(toy);
    folder_remove(folder);
}

static void exchanging_twice_changes_nothing(void **unused) {
    (void)unused;
    char *folder = folder_new();
    Ema e;
    Toy *toy = averaging(&e, 0.9f);
    TrainOptions o = options(folder, 1, 1);
    check_ok(go(toy, &o, NULL));
    float *weights = pull(toy, toy->params.master), *average = pull(toy, e.average);
    assert_memory_not_equal(weights, average, (size_t)toy->params.flat * sizeof *weights);
    check_ok(ema_swap(&e));
    check_equal(toy, toy->params.master, average);
    check_equal(toy, e.average, weights);
    check_fails(
        checkpoint_save(folder, &toy->params, &toy->optim, &toy->state, 1, false, 0, NULL, 0),
        STATUS_INTERNAL, "averaged weights stand in");
    check_ok(ema_swap(&e));
    check_equal(toy, toy->params.master, weights);
    check_equal(toy, e.average, average);
    free(weights);
    free(average);
    toy_free(toy);
    folder_remove(folder);
    check_fails(ema_init(&e, &(Params){0}, 1.0f), STATUS_USAGE, "expected 0 <=");
}

/* The file of averaged weights is a checkpoint like any other, and says what it is. */
static void the_average_is_exported(void **unused) {
    (void)unused;
    char *folder = folder_new(), *path;
    SafeFile *file;
    Ema e;
    Toy *toy = averaging(&e, 0.9f);
    TrainOptions o = options(folder, 2, 1);
    o.validate_interval = 1;
    o.validate_ema = true;
    o.keep = 0;
    check_ok(go(toy, &o, NULL));
    float *average = pull(toy, e.average);
    check_ok(checkpoint_find_ema(folder, "last", &path));
    check_ok(safetensors_open(path, &file));
    assert_string_equal(safetensors_meta(file, "ttv.weights"), "ema");
    Toy *other = toy_new(8);
    check_ok(params_load(&other->params, file, NULL));
    check_equal(other, other->params.master, average);
    safetensors_close(file);
    Manifest m;
    check_ok(manifest_read(folder, "last", &m));
    assert_true(m.has_ema && m.ema_bytes > 0);
    FILE *f = fopen(path, "r+b"); /* damage is found */
    fseek(f, -1, SEEK_END);
    fputc(0x55, f);
    fclose(f);
    char *weights, *state;
    check_fails(checkpoint_find(folder, "last", &weights, &state), STATUS_DATA, "damaged");
    mem_free(path);
    free(average);
    toy_free(other);
    toy_free(toy);
    folder_remove(folder);
}

static void old_averages_are_pruned(void **unused) {
    (void)unused;
    char *folder = folder_new(), *path;
    Ema e;
    Toy *toy = averaging(&e, 0.9f);
    TrainOptions o = options(folder, 1, 1);
    o.save_interval = 1;
    o.keep = 0;
    check_ok(go(toy, &o, NULL));
    const char *const names[] = {"checkpoints/step-00000001.ema.safetensors",
                                 "checkpoints/step-00000003.ema.safetensors"};
    for (int i = 0; i < 2; i++) {
        check_ok(path_join(&path, folder, names[i]));
        assert_int_equal(file_exists(path), i);
        mem_free(path);
    }
    toy_free(toy);
    folder_remove(folder);
}

static void a_resume_is_exact(void **unused) {
    (void)unused;
    char *folder = folder_new(), *second = folder_new();
    Ema whole_ema, e;
    Toy *whole = averaging(&whole_ema, 0.9f), *toy = averaging(&e, 0.9f);
    TrainOptions o = options(folder, 4, 1);
    check_ok(go(whole, &o, NULL));
    float *expected = pull(whole, whole_ema.average);
    o.run_folder = second;
    o.max_steps = 5;
    check_ok(go(toy, &o, NULL));
    toy_free(toy);
    toy = averaging(&e, 0.9f);
    check_ok(checkpoint_resume(second, "last", &toy->params, &toy->optim, &toy->state));
    o.max_steps = 0;
    check_ok(go(toy, &o, NULL));
    check_equal(toy, e.average, expected);
    toy_free(toy);
    toy = toy_new(8); /* without averaging */
    check_fails(checkpoint_resume(second, "last", &toy->params, &toy->optim, &toy->state),
                STATUS_USAGE, "averages its weights");
    free(expected);
    toy_free(toy);
    toy_free(whole);
    folder_remove(folder);
    folder_remove(second);
}

static void averaging_may_begin_later(void **unused) {
    (void)unused;
    char *folder = folder_new();
    Ema e;
    Toy *toy = toy_new(8);
    TrainOptions o = options(folder, 1, 1);
    check_ok(go(toy, &o, NULL));
    float *weights = pull(toy, toy->params.master);
    toy_free(toy);
    toy = averaging(&e, 0.9f);
    check_ok(checkpoint_resume(folder, "last", &toy->params, &toy->optim, &toy->state));
    check_equal(toy, e.average, weights);
    char *path;
    check_fails(checkpoint_find_ema(folder, "last", &path), STATUS_DATA, "no averaged weights");
    free(weights);
    toy_free(toy);
    folder_remove(folder);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(the_average_follows),
        cmocka_unit_test(exchanging_twice_changes_nothing),
        cmocka_unit_test(the_average_is_exported),
        cmocka_unit_test(old_averages_are_pruned),
        cmocka_unit_test(a_resume_is_exact),
        cmocka_unit_test(averaging_may_begin_later),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
