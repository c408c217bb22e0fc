/* The training loop: exact resume, accumulation, the guard, stop requests, steady memory. */
#include <stdarg.h>
#include <stddef.h>
#include <setjmp.h>
#include <stdint.h>
#include <cmocka.h>

#include "core/log.h"
#include "nn/checkpoint_files.h"
#include "nn_fixture.h"

/* ---- a run and what it told ---------------------------------------------------------------------
 */

#define EVENTS 256

typedef struct Heard {
    int count;
    char kind[EVENTS][12];
    double loss[EVENTS], norm[EVENTS];
    int64_t step[EVENTS];
    char *record[EVENTS];
} Heard;

static void hear(void *user, const TrainEvent *e) {
    Heard *h = user;
    if (h->count == EVENTS) return;
    snprintf(h->kind[h->count], sizeof h->kind[0], "%s", e->kind);
    h->loss[h->count] = e->loss;
    h->norm[h->count] = e->grad_norm;
    h->step[h->count] = e->state.step;
    h->record[h->count++] = strdup(e->record);
}

static void heard_free(Heard *h) {
    for (int i = 0; i < h->count; i++) free(h->record[i]);
    free(h);
}

static int heard_times(const Heard *h, const char *kind) {
    int n = 0;
    for (int i = 0; i < h->count; i++) n += strcmp(h->kind[i], kind) == 0;
    return n;
}

static TrainOptions options(const char *folder, int64_t epochs, int64_t accumulate) {
    /* 26 samples: 3 steps of 8, or 6 micro-batches of 4 */
    return (TrainOptions){.run_folder = folder,
                          .epochs = epochs,
                          .steps_per_epoch = 3,
                          .accumulate = accumulate,
                          .schedule = {0.05, 0.001, 0.0001, 3, 3 * epochs},
                          .log_interval = 1,
                          .save_interval = 1000,
                          .keep = 1,
                          .give_up_after = 10};
}

static Status go(Toy *toy, const TrainOptions *o, Heard *h) {
    TrainTask task = toy_task(toy);
    train_clear_stop();
    return train_run(&task, o, toy->tape, &toy->optim, &toy->state, h ? hear : NULL, h);
}

static char log_text[4096];
static void keep_log(void *user, LogLevel level, const char *message) {
    (void)user;
    (void)level;
    snprintf(log_text, sizeof log_text, "%s", message);
}

/* ---- resume
 * --------------------------------------------------------------------------------------- */

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

/* ---- accumulation
 * --------------------------------------------------------------------------------- */

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

static void training_learns(void **unused) {
    (void)unused;
    char *folder = folder_new();
    Toy *toy = toy_new(8);
    Heard *h = calloc(1, sizeof *h);
    TrainOptions o = options(folder, 40, 1);
    o.log_interval = 3;
    check_ok(go(toy, &o, h));
    double first = h->loss[0], last = NAN;
    for (int i = 0; i < h->count; i++)
        if (strcmp(h->kind[i], "train") == 0) last = h->loss[i];
    assert_true(last < 0.4 * first);
    heard_free(h);
    toy_free(toy);
    folder_remove(folder);
}

/* ---- the guard
 * ------------------------------------------------------------------------------------- */

static void bad_batches_are_skipped_and_named(void **unused) {
    (void)unused;
    char *folder = folder_new();
    Toy *toy = toy_new(8);
    Heard *h = calloc(1, sizeof *h);
    toy->nan_sample = 11; /* in the second batch of every epoch */
    TrainOptions o = options(folder, 4, 1);
    o.save_interval = 1;
    o.validate_interval = 1;
    log_text[0] = '\0';
    log_set_sink(keep_log, NULL);
    check_ok(go(toy, &o, h));
    log_set_sink(NULL, NULL);
    assert_int_equal(toy->state.step, 12);
    assert_int_equal(toy->state.skipped, 4);
    assert_int_equal(toy->state.skipped_row, 0);
    int64_t taken;
    check_ok(adamw_taken(&toy->optim, &taken));
    assert_int_equal(taken, 8);
    check_ok(params_check_finite(&toy->params));
    assert_int_equal(heard_times(h, "skip"), 4);
    for (int i = 0; i < h->count; i++) {
        if (strcmp(h->kind[i], "skip") != 0) continue;
        assert_non_null(strstr(h->record[i], "\"sample-8.png\",\"sample-9.png\""));
        assert_non_null(strstr(h->record[i], "sample-15.png"));
        assert_null(strstr(h->record[i], "sample-16.png"));
        assert_non_null(strstr(h->record[i], "\"loss\":null"));
    }
    assert_non_null(strstr(log_text, "skipped")); /* the last warning */
    assert_non_null(strstr(log_text, "sample-11.png"));
    heard_free(h);
    toy_free(toy);
    folder_remove(folder);
}

static void ten_in_a_row_end_the_run(void **unused) {
    (void)unused;
    char *folder = folder_new();
    Toy *toy = toy_new(8);
    TrainOptions o = options(folder, 20, 1);
    o.save_interval = 1;
    toy->nan_from_call = 5; /* five good steps, then only bad ones */
    check_fails(go(toy, &o, NULL), STATUS_NUMERIC, "10 steps in a row");
    assert_non_null(strstr(status_message(), "sample-"));
    assert_int_equal(toy->state.skipped, 10);
    Snapshot end = snapshot_take(toy);
    toy_free(toy);
    toy = toy_new(8);
    check_ok(checkpoint_resume(folder, "last", &toy->params, &toy->optim, &toy->state));
    assert_int_equal(toy->state.step, 5); /* the last good one */
    assert_int_equal(toy->state.skipped, 0);
    Snapshot saved = snapshot_take(toy);
    for (int i = 0; i < 3; i++) /* the bad steps touched nothing */
        assert_memory_equal(end.values[i], saved.values[i], (size_t)end.count * sizeof(float));
    check_ok(go(toy, &o, NULL)); /* with good data it goes on */
    snapshot_free(&end);
    snapshot_free(&saved);
    toy_free(toy);
    folder_remove(folder);
}

/* An exploded weight is noticed before it replaces the good checkpoint. */
static void bad_weights_are_not_saved(void **unused) {
    (void)unused;
    char *folder = folder_new();
    Toy *toy = toy_new(8);
    TrainOptions o = options(folder, 1, 1);
    check_ok(go(toy, &o, NULL));
    float bad = NAN;
    Tensor first = toy->params.items[0]->master;
    check_ok(device_push(toy->d, tensor_1d(first.data, DTYPE_F32, 1), &bad));
    check_fails(
        checkpoint_save(folder, &toy->params, &toy->optim, &toy->state, 1, true, 0, NULL, 0),
        STATUS_NUMERIC, "fc1.weight");
    check_ok(checkpoint_resume(folder, "last", &toy->params, &toy->optim, &toy->state));
    check_ok(params_check_finite(&toy->params));
    toy_free(toy);
    folder_remove(folder);
}

/* ---- validation, best, events
 * --------------------------------------------------------------------- */

static void best_follows_the_metric(void **unused) {
    (void)unused;
    char *folder = folder_new();
    Toy *toy = toy_new(8);
    Heard *h = calloc(1, sizeof *h);
    TrainOptions o = options(folder, 4, 1);
    o.validate_interval = 1;
    o.save_interval = 0;
    toy->metric = 10;
    toy->metric_slope = -1; /* every later validation is worse */
    check_ok(go(toy, &o, h));
    assert_int_equal(toy->validations, 4);
    assert_int_equal(toy->state.best_step, 3);
    assert_true(toy->state.best_metric == 9);
    Manifest best, last;
    check_ok(manifest_read(folder, "best", &best));
    check_ok(manifest_read(folder, "last", &last));
    assert_int_equal(best.step, 3);
    assert_true(best.metric == 9);
    assert_int_equal(last.step, 12);
    assert_int_equal(heard_times(h, "validate"), 4);
    assert_int_equal(heard_times(h, "save"), 4); /* once an epoch, not twice for best and last */
    assert_int_equal(heard_times(h, "end"), 1);
    assert_int_equal(heard_times(h, "train"), 12);
    for (int i = 0; i < h->count; i++)
        if (strcmp(h->kind[i], "train") == 0) {
            static const char *const keys[] = {"kind",          "step",       "epoch",
                                               "loss",          "lr",         "grad_norm",
                                               "samples_per_s", "wait_share", "step_ms"};
            for (size_t k = 0; k < sizeof keys / sizeof keys[0]; k++) {
                char quoted[32];
                snprintf(quoted, sizeof quoted, "\"%s\":", keys[k]);
                assert_non_null(strstr(h->record[i], quoted));
            }
        }
    heard_free(h);
    toy_free(toy);
    folder_remove(folder);
}

static void half_epochs_validate_twice(void **unused) {
    (void)unused;
    char *folder = folder_new();
    Toy *toy = toy_new(8);
    TrainOptions o = options(folder, 2, 1);
    o.validate_interval = 0.34; /* one step */
    check_ok(go(toy, &o, NULL));
    assert_int_equal(toy->validations, 6);
    o.validate_interval = 0; /* only at the end */
    toy_free(toy);
    toy = toy_new(8);
    check_ok(go(toy, &o, NULL));
    assert_int_equal(toy->validations, 1);
    toy_free(toy);
    folder_remove(folder);
}

static void broken_data_keeps_the_steps_so_far(void **unused) {
    (void)unused;
    char *folder = folder_new();
    Toy *toy = toy_new(8);
    TrainOptions o = options(folder, 4, 1);
    toy->refuse_at_call = 4;
    check_fails(go(toy, &o, NULL), STATUS_DATA, "step 4: sample 17 is broken");
    Manifest last;
    check_ok(manifest_read(folder, "last", &last));
    assert_int_equal(last.step, 4);
    toy_free(toy);
    folder_remove(folder);
}

static void time_limit_saves(void **unused) {
    (void)unused;
    char *folder = folder_new();
    Toy *toy = toy_new(8);
    TrainOptions o = options(folder, 1000000, 1);
    o.time_limit_s = 0.2;
    check_ok(go(toy, &o, NULL));
    Manifest last;
    check_ok(manifest_read(folder, "last", &last));
    assert_int_equal(last.step, toy->state.step);
    assert_int_equal(toy->validations, 1);
    toy_free(toy);
    folder_remove(folder);
}

/* ---- memory
 * ---------------------------------------------------------------------------------------- */

typedef struct Watch {
    Tape *tape;
    int64_t growths, live, checked;
} Watch;

static void watch(void *user, const TrainEvent *e) {
    Watch *w = user;
    if (strcmp(e->kind, "train") != 0) return;
    int64_t growths = tape_growths(w->tape), live = mem_live();
    if (e->state.step > 1) {
        assert_int_equal(growths, w->growths);
        assert_int_equal(live, w->live);
        w->checked++;
    }
    w->growths = growths;
    w->live = live;
}

static void memory_is_steady_after_step_one(void **unused) {
    (void)unused;
    char *folder = folder_new();
    int64_t before = mem_live();
    Toy *toy = toy_new(4);
    TrainOptions o = options(folder, 4, 2);
    Watch w = {.tape = toy->tape};
    TrainTask task = toy_task(toy);
    train_clear_stop();
    check_ok(train_run(&task, &o, toy->tape, &toy->optim, &toy->state, watch, &w));
    assert_int_equal(w.checked, 11);
    toy_free(toy);
    assert_int_equal(mem_live(), before);
    folder_remove(folder);
}

/* Any allocation may fail: the run ends with a status, and a whole checkpoint or none is there. */
static void allocation_failures_lose_nothing(void **unused) {
    (void)unused;
    char *folder = folder_new();
    for (int64_t n = 1; n < 3000; n += 1 + n / 20) {
        Toy *toy = toy_new(8);
        TrainOptions o = options(folder, 1, 1);
        o.save_interval = 1;
        mem_fail_at(n);
        Status s = go(toy, &o, NULL);
        bool pending = mem_fail_pending();
        mem_fail_at(0);
        if (s != STATUS_OK) assert_int_equal(s, STATUS_MEMORY);
        bool exists;
        check_ok(manifest_exists(folder, "last", &exists));
        if (exists)
            check_ok(checkpoint_resume(folder, "last", &toy->params, &toy->optim, &toy->state));
        toy_free(toy);
        if (!pending) continue;
        check_ok(s);
        folder_remove(folder);
        return;
    }
    fail_msg("the failures never end");
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(resume_is_exact),
        cmocka_unit_test(resume_with_accumulation_is_exact),
        cmocka_unit_test(stop_saves_and_resumes_exactly),
        cmocka_unit_test(finished_runs_have_nothing_to_do),
        cmocka_unit_test(other_epoch_lengths_are_refused),
        cmocka_unit_test(two_halves_make_a_batch),
        cmocka_unit_test(training_learns),
        cmocka_unit_test(bad_batches_are_skipped_and_named),
        cmocka_unit_test(ten_in_a_row_end_the_run),
        cmocka_unit_test(bad_weights_are_not_saved),
        cmocka_unit_test(best_follows_the_metric),
        cmocka_unit_test(half_epochs_validate_twice),
        cmocka_unit_test(broken_data_keeps_the_steps_so_far),
        cmocka_unit_test(time_limit_saves),
        cmocka_unit_test(memory_is_steady_after_step_one),
        cmocka_unit_test(allocation_failures_lose_nothing),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
