/* The toy at any step, saved and loaded; shared by the test_nn_checkpoint*.c files. */
#ifndef TTV_TESTS_UNIT_NN_CHECKPOINT_FIXTURE_H
#define TTV_TESTS_UNIT_NN_CHECKPOINT_FIXTURE_H

#include "core/file.h"
#include "nn/checkpoint_files.h"
#include "nn_fixture.h"

/* The toy at a step of its own: every value depends on it. */
static inline void set_step(Toy *toy, int64_t step) {
    check_ok(params_initialise(&toy->params, (uint64_t)step));
    check_ok(toy->d->k->copy(toy->d, grad_set(toy->optim.m), toy->params.master, 0.5f));
    check_ok(toy->d->k->copy(toy->d, grad_set(toy->optim.v), toy->params.master, 0.25f));
    check_ok(adamw_set_taken(&toy->optim, step - 1));
    toy->state = (TrainState){.step = step,
                              .epoch = 2,
                              .cursor = 3 * step,
                              .skipped = 1,
                              .best_metric = 0.1 + 0.2,
                              .best_step = 1,
                              .seed = UINT64_MAX - 1,
                              .loss_sum = 1.0 / 3.0,
                              .loss_count = 7};
}

static inline Status save(Toy *toy, const char *folder, int64_t step, bool best, int keep) {
    set_step(toy, step);
    SafeMeta meta = {"ttv.config", "[model]\nwidth = 5\n"};
    return checkpoint_save(folder, &toy->params, &toy->optim, &toy->state, 0.5 * (double)step, best,
                           keep, &meta, 1);
}

/* Loads `which` and checks that it is exactly the state of its step; returns the step. */
static inline int64_t load(const char *folder, const char *which) {
    Toy *got = toy_new(4), *expected = toy_new(4);
    check_ok(checkpoint_resume(folder, which, &got->params, &got->optim, &got->state));
    set_step(expected, got->state.step);
    Snapshot a = snapshot_take(got), b = snapshot_take(expected);
    assert_true(snapshot_equal(&a, &b));
    assert_memory_equal(&a.state, &b.state, sizeof a.state);
    int64_t step = got->state.step;
    snapshot_free(&a);
    snapshot_free(&b);
    toy_free(got);
    toy_free(expected);
    return step;
}

#endif
