/* A run that was interrupted anywhere continues with the bits of one that was not. */
#include <stdarg.h>
#include <stddef.h>
#include <setjmp.h>
#include <stdint.h>
#include <cmocka.h>

#include "nn_train_fixture.h"

/* ---- resume ----------------------------------------------------------------------------- */

static Snapshot straight(int64_t batch, int64_t accumulate, int64_t steps, Heard *h) {
    char *folder = folder_new();
    Toy *toy = toy_new(batch);
    TrainOptions o = options(folder, 5, accumulate);
    o.max_steps = steps;
    check_ok(go(toy, &o, h));
    Snapshot s = snapshot_take(toy);
    toy_free(toy);
    folder_remove(folder);
    return s;
}

/* Losses and norms of the steps from `from` on, as told, are the same to the bit. */
static void same_steps(const Heard *a, const Heard *b, int64_t from, int64_t to) {
    for (int64_t step = from; step <= to; step++) {
        const double *found[2] = {NULL, NULL};
        const Heard *both[] = {a, b};
        for (int k = 0; k < 2; k++)
            for (int i = 0; i < both[k]->count; i++)
                if (both[k]->step[i] == step && strcmp(both[k]->kind[i], "train") == 0)
                    found[k] = &both[k]->loss[i];
        assert_non_null(found[0]);
        assert_non_null(found[1]);
        assert_memory_equal(found[0], found[1], sizeof(double));
    }
}

static void check_resume(int64_t batch, int64_t accumulate, int64_t stop_after) {
    char *folder = folder_new();
    Heard *whole = calloc(1, sizeof *whole), *second = calloc(1, sizeof *second);
    Snapshot expected = straight(batch, accumulate, 12, whole);
    TrainOptions o = options(folder, 5, accumulate);
    Toy *first = toy_new(batch);
    o.max_steps = stop_after;
    check_ok(go(first, &o, NULL));
    toy_free(first);
    Toy *resumed = toy_new(batch);
    check_ok(params_initialise(&resumed->params, 1234)); /* whatever was there is replaced */
    check_ok(checkpoint_resume(folder, "last", &resumed->params, &resumed->optim, &resumed->state));
    assert_int_equal(resumed->state.step, stop_after);
    assert_true(resumed->state.seed == 0xfedcba9876543210u);
    o.max_steps = 12;
    check_ok(go(resumed, &o, second));
    Snapshot got = snapshot_take(resumed);
    assert_true(snapshot_equal(&expected, &got));
    same_steps(whole, second, stop_after + 1, 12);
    snapshot_free(&got);
    snapshot_free(&expected);
    heard_free(whole);
    heard_free(second);
    toy_free(resumed);
    folder_remove(folder);
}

static void resume_is_exact(void **unused) {
    (void)unused;
    for (int64_t stop_after = 1; stop_after < 12; stop_after++) check_resume(8, 1, stop_after);
}

static void resume_with_accumulation_is_exact(void **unused) {
    (void)unused;
    for (int64_t stop_after = 1; stop_after < 12; stop_after += 3) check_resume(4, 2, stop_after);
}

/* A stop in the middle of an accumulation: polled by next() the step did not happen, otherwise it
 * ends. */
static void check_stop(bool polled, int64_t call) {
    char *folder = folder_new();
    Snapshot expected = straight(4, 2, 15, NULL);
    Toy *toy = toy_new(4);
    toy->stop_at_call = call;
    toy->stop_is_polled = polled;
    TrainOptions o = options(folder, 5, 2);
    check_fails(go(toy, &o, NULL), STATUS_STOPPED, "stopped at step");
    assert_true(labs((long)(toy->state.step - call / 2)) <= 1);
    int64_t step = toy->state.step;
    toy_free(toy);
    toy = toy_new(4);
    check_ok(checkpoint_resume(folder, "last", &toy->params, &toy->optim, &toy->state));
    assert_int_equal(toy->state.step, step);
    check_ok(go(toy, &o, NULL));
    Snapshot got = snapshot_take(toy);
    assert_true(snapshot_equal(&expected, &got));
    assert_true(toy->validations > 0);
    snapshot_free(&expected);
    snapshot_free(&got);
    toy_free(toy);
    folder_remove(folder);
}

static void stop_saves_and_resumes_exactly(void **unused) {
    (void)unused;
    for (int64_t call = 0; call < 15; call += 1) {
        check_stop(false, call);
        check_stop(true, call);
    }
}

static void finished_runs_have_nothing_to_do(void **unused) {
    (void)unused;
    char *folder = folder_new();
    Toy *toy = toy_new(8);
    TrainOptions o = options(folder, 2, 1);
    check_ok(go(toy, &o, NULL));
    assert_int_equal(toy->state.step, 6);
    assert_int_equal(toy->state.epoch, 2);
    int64_t calls = toy->next_calls, validations = toy->validations;
    check_ok(go(toy, &o, NULL));
    assert_int_equal(toy->next_calls, calls);
    assert_int_equal(toy->validations, validations);
    toy_free(toy);
    folder_remove(folder);
}

static void other_epoch_lengths_are_refused(void **unused) {
    (void)unused;
    char *folder = folder_new();
    Toy *toy = toy_new(8);
    TrainOptions o = options(folder, 2, 1);
    check_ok(go(toy, &o, NULL));
    o.steps_per_epoch = 5;
    o.epochs = 4;
    check_fails(go(toy, &o, NULL), STATUS_USAGE, "5 steps per epoch");
    toy_free(toy);
    toy = toy_new(8);
    check_fails(go(toy, &o, NULL), STATUS_DATA, "ended after 3 of 5 steps");
    o.accumulate = 0;
    check_fails(go(toy, &o, NULL), STATUS_USAGE, "at least 1");
    toy_free(toy);
    folder_remove(folder);
}

/* A validation that a stop cut off is made up for by the resumed run. */
static void a_cut_off_validation_is_repeated(void **unused) {
    (void)unused;
    char *folder = folder_new();
    Toy *toy = toy_new(8);
    TrainOptions o = options(folder, 4, 1);
    o.validate_interval = 1;
    toy->stop_in_validation = 2;
    check_fails(go(toy, &o, NULL), STATUS_STOPPED, "stopped at step 6");
    toy_free(toy);
    toy = toy_new(8);
    check_ok(checkpoint_resume(folder, "last", &toy->params, &toy->optim, &toy->state));
    assert_int_equal(toy->state.validated_step, 3);
    toy->metric = 100;
    toy->metric_slope = -1; /* the repeated one is the best: it must be saved at once */
    check_ok(go(toy, &o, NULL));
    assert_int_equal(toy->validations, 3);
    Manifest best;
    check_ok(manifest_read(folder, "best", &best));
    assert_int_equal(best.step, 6);
    assert_true(best.metric == 99);
    toy_free(toy);
    folder_remove(folder);
}

/* ---- accumulation ----------------------------------------------------------------------- */

static void two_halves_make_a_batch(void **unused) {
    (void)unused;
    Snapshot whole = straight(8, 1, 6, NULL), halves = straight(4, 2, 6, NULL);
    double error = 0, size = 0;
    for (int64_t i = 0; i < whole.count; i++) {
        error = fmax(error, fabs(whole.values[0][i] - halves.values[0][i]));
        size = fmax(size, fabs(whole.values[0][i]));
    }
    assert_true(error < 2e-6 * size);
    assert_true(fabs(whole.state.loss_sum - halves.state.loss_sum) < 1e-5);
    assert_int_equal(whole.state.cursor, halves.state.cursor);
    snapshot_free(&whole);
    snapshot_free(&halves);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(resume_is_exact),
        cmocka_unit_test(resume_with_accumulation_is_exact),
        cmocka_unit_test(stop_saves_and_resumes_exactly),
        cmocka_unit_test(finished_runs_have_nothing_to_do),
        cmocka_unit_test(other_epoch_lengths_are_refused),
        cmocka_unit_test(two_halves_make_a_batch),
        cmocka_unit_test(a_cut_off_validation_is_repeated),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
