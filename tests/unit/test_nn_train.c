/* The training loop: learning, the guard, validation and best, saves, steady memory. */
#include <stdarg.h>
#include <stddef.h>
#include <setjmp.h>
#include <stdint.h>
#include <cmocka.h>

#include <signal.h>
#include <sys/resource.h>

#include "core/log.h"
#include "nn_train_fixture.h"

static char log_text[4096];
static void keep_log(void *user, LogLevel level, const char *message) {
    (void)user;
    (void)level;
    snprintf(log_text, sizeof log_text, "%s", message);
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

/* ---- the guard -------------------------------------------------------------------------- */

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

/* The middle one of the norms that a run without the limit has. */
static double middle_norm(void) {
    char *folder = folder_new();
    Toy *toy = toy_new(8);
    Heard *h = calloc(1, sizeof *h);
    const TrainOptions o = options(folder, 4, 1);
    double lower = 0;
    check_ok(go(toy, &o, h));
    for (int i = 0; i < h->count; i++) {
        int below = 0;
        for (int k = 0; k < h->count; k++) below += h->norm[k] < h->norm[i];
        if (below <= h->count / 2 && h->norm[i] > lower) lower = h->norm[i];
    }
    heard_free(h);
    toy_free(toy);
    folder_remove(folder);
    return lower;
}

static void large_norms_are_skipped(void **unused) {
    (void)unused;
    char *folder = folder_new();
    Toy *toy = toy_new(8);
    Heard *h = calloc(1, sizeof *h);
    const TrainOptions o = options(folder, 4, 1);
    const double limit = middle_norm();
    toy->optim.options.skip_norm = (float)limit;
    check_ok(go(toy, &o, h));
    int64_t taken, over = 0;
    check_ok(adamw_taken(&toy->optim, &taken));
    for (int i = 0; i < h->count; i++) {
        if (strcmp(h->kind[i], "skip") == 0) {
            over++;
            assert_true(h->norm[i] > limit && isfinite(h->loss[i]));
            assert_non_null(strstr(h->record[i], "sample-"));
        } else if (strcmp(h->kind[i], "train") == 0 && h->norm[i] <= limit) {
            assert_true(i == 0 || strcmp(h->kind[i - 1], "skip") != 0);
        }
    }
    assert_true(over > 0 && over < 12);
    assert_int_equal(toy->state.step, 12); /* the schedule counts them */
    assert_int_equal(toy->state.skipped, over);
    assert_int_equal(taken, 12 - over);
    heard_free(h);
    toy_free(toy);
    folder_remove(folder);
}

static void a_hundred_large_norms_end_the_run(void **unused) {
    (void)unused;
    char *folder = folder_new();
    Toy *toy = toy_new(8);
    const TrainOptions o = options(folder, 40, 1);
    toy->optim.options.skip_norm = 1e-6f;
    Snapshot before = snapshot_take(toy);
    check_fails(go(toy, &o, NULL), STATUS_NUMERIC, "too large in 100 steps in a row");
    Snapshot after = snapshot_take(toy);
    for (int i = 0; i < 3; i++)
        assert_memory_equal(before.values[i], after.values[i],
                            (size_t)before.count * sizeof(float));
    snapshot_free(&before);
    snapshot_free(&after);
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

/* ---- validation, best, events ----------------------------------------------------------- */

/* The metric falls from the first validation on: four steps later, at step 5 of 12, it is over, and
 * a resumed run knows that, too. */
static void patience_ends_the_run(void **unused) {
    (void)unused;
    char *folder = folder_new();
    Toy *toy = toy_new(8);
    Heard *h = calloc(1, sizeof *h);
    TrainOptions o = options(folder, 4, 1);
    o.validate_interval = 1.0 / 3;
    o.patience_steps = 4;
    toy->metric = 10;
    toy->metric_slope = -1;
    check_ok(go(toy, &o, h));
    assert_int_equal(toy->state.best_step, 1);
    assert_int_equal(toy->state.step, 5);
    assert_int_equal(heard_times(h, "end"), 1);
    check_ok(checkpoint_resume(folder, "last", &toy->params, &toy->optim, &toy->state));
    assert_int_equal(toy->state.step, 5);
    const int trained = heard_times(h, "train");
    check_ok(go(toy, &o, h));
    assert_int_equal(toy->state.step, 5);
    assert_int_equal(heard_times(h, "train"), trained);
    o.patience_steps = 0; /* and without patience it goes on */
    check_ok(go(toy, &o, h));
    assert_int_equal(toy->state.step, 12);
    heard_free(h);
    toy_free(toy);
    folder_remove(folder);
}

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

/* The disk is full from step 2 to step 8, that is also when the best validation happens. */
static void disk_is_full(void *user, const TrainEvent *e) {
    struct rlimit limit = *(const struct rlimit *)user;
    if (strcmp(e->kind, "train") != 0) return;
    if (e->state.step >= 2 && e->state.step < 8) limit.rlim_cur = 0;
    assert_int_equal(setrlimit(RLIMIT_FSIZE, &limit), 0);
}

static void a_full_disk_does_not_end_the_run(void **unused) {
    (void)unused;
    char *folder = folder_new();
    Toy *toy = toy_new(8);
    struct rlimit before;
    TrainOptions o = options(folder, 4, 1);
    TrainTask task = toy_task(toy);
    o.validate_interval = 1;
    o.save_interval = 1;
    toy->metric = 10;
    toy->metric_slope = -1;
    signal(SIGXFSZ, SIG_IGN);
    log_text[0] = '\0';
    log_set_sink(keep_log, NULL);
    assert_int_equal(getrlimit(RLIMIT_FSIZE, &before), 0);
    train_clear_stop();
    check_ok(train_run(&task, &o, toy->tape, &toy->optim, &toy->state, disk_is_full, &before));
    log_set_sink(NULL, NULL);
    assert_non_null(strstr(log_text, "could not be saved, training goes on: "));
    /* Steps 3 and 6 were best, but are on no disk: the next one that could be saved is. */
    Manifest best, last;
    check_ok(manifest_read(folder, "best", &best));
    check_ok(manifest_read(folder, "last", &last));
    assert_int_equal(best.step, 9);
    assert_int_equal(last.step, 12);
    assert_int_equal(toy->state.best_step, 9);
    toy_free(toy);
    folder_remove(folder);
}

/* ---- memory ----------------------------------------------------------------------------- */

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
        cmocka_unit_test(training_learns),
        cmocka_unit_test(bad_batches_are_skipped_and_named),
        cmocka_unit_test(large_norms_are_skipped),
        cmocka_unit_test(a_hundred_large_norms_end_the_run),
        cmocka_unit_test(ten_in_a_row_end_the_run),
        cmocka_unit_test(bad_weights_are_not_saved),
        cmocka_unit_test(best_follows_the_metric),
        cmocka_unit_test(patience_ends_the_run),
        cmocka_unit_test(half_epochs_validate_twice),
        cmocka_unit_test(broken_data_keeps_the_steps_so_far),
        cmocka_unit_test(time_limit_saves),
        cmocka_unit_test(a_full_disk_does_not_end_the_run),
        cmocka_unit_test(memory_is_steady_after_step_one),
        cmocka_unit_test(allocation_failures_lose_nothing),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
