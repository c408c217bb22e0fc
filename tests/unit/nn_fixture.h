/* A toy classifier with a data set made of random numbers, and a folder that goes away: shared by
 * the test_nn_*.c files. */
#ifndef TTV_TESTS_UNIT_NN_FIXTURE_H
#define TTV_TESTS_UNIT_NN_FIXTURE_H

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "core/memory.h"
#include "core/rng.h"
#include "nn/ops.h"
#include "nn/train.h"
#include "tape_fixture.h"

#define FEATURES 5
#define HIDDEN   7
#define CLASSES  3
#define SAMPLES  26
#define BATCH    8

static inline void check_fails(Status s, Status expected, const char *message_part) {
    if (s != expected || !strstr(status_message(), message_part))
        print_error("got %s: %s\n", status_name(s), status_message());
    assert_int_equal(s, expected);
    assert_non_null(strstr(status_message(), message_part));
}

static inline char *folder_new(void) {
    /* In memory where possible: a test run syncs some thousand files. */
    bool shm = access("/dev/shm", W_OK) == 0;
    char *path = strdup(shm ? "/dev/shm/ttv-nn-XXXXXX" : "/tmp/ttv-nn-XXXXXX");
    assert_non_null(mkdtemp(path));
    return path;
}

static inline void folder_remove(char *path) {
    char command[256];
    snprintf(command, sizeof command, "rm -rf '%s'", path);
    assert_int_equal(system(command), 0);
    free(path);
}

/* One "process": device, parameters, optimiser, tape. */
typedef struct Toy {
    Device *d;
    Tape *tape;
    Params params;
    AdamW optim;
    TrainState state;
    Var *w1, *b1, *w2, *b2, *w3, *b3;
    Tensor x, targets; /* of one micro-batch, in the state arena */
    /* data */
    int64_t epoch, cursor, batch, current; /* current: first sample of the fetched batch */
    char name[32];
    /* faults, by sample or call; -1: none */
    int64_t nan_sample, next_calls, stop_at_call, refuse_at_call, validations, nan_from_call;
    bool stop_is_polled;        /* next() itself notices the stop and gives up */
    int64_t stop_in_validation; /* the n-th one (from 1) is cut off by a stop; 0: none */
    double metric, metric_slope;
} Toy;

static inline void toy_model(Toy *m) {
    const int64_t w1[] = {HIDDEN, FEATURES}, b1[] = {HIDDEN}, w2[] = {FEATURES, HIDDEN},
                  b2[] = {FEATURES}, w3[] = {CLASSES, FEATURES}, b3[] = {CLASSES};
    Init normal = {INIT_NORMAL, 0.4f}, zero = {INIT_ZERO, 0}, uniform = {INIT_UNIFORM, 0.3f};
    int decay = PARAM_MATMUL | PARAM_DECAY;
    m->w1 = params_add(&m->params, "fc1.weight", 2, w1, normal, decay);
    m->b1 = params_add(&m->params, "fc1.bias", 1, b1, zero, 0);
    m->w2 = params_add(&m->params, "fc2.weight", 2, w2, normal, decay);
    m->b2 = params_add(&m->params, "fc2.bias", 1, b2, uniform, 0);
    m->w3 = params_add(&m->params, "head.weight", 2, w3, normal, decay);
    m->b3 = params_add(&m->params, "head.bias", 1, b3, zero, 0);
}

/* On a device that the caller has opened; toy_free closes it. */
static inline Toy *toy_new_on(Device *d, int64_t batch) {
    Toy *m = calloc(1, sizeof *m);
    m->d = d;
    check_ok(tape_new(m->d, &m->tape));
    params_init(&m->params, m->d);
    toy_model(m);
    check_ok(params_build(&m->params, DTYPE_F32, true));
    check_ok(params_initialise(&m->params, 5));
    AdamWOptions options = {0.9f, 0.99f, 1e-8f, 0.05f, 1.0f, 0.0f};
    check_ok(adamw_init(&m->optim, &m->params, options));
    const int64_t x[] = {batch, FEATURES}, y[] = {batch, CLASSES};
    check_ok(arena_tensor(&m->d->state, DTYPE_F32, 2, x, &m->x));
    check_ok(arena_tensor(&m->d->state, DTYPE_F32, 2, y, &m->targets));
    m->batch = batch;
    m->nan_sample = m->stop_at_call = m->refuse_at_call = m->nan_from_call = -1;
    m->metric_slope = 1;
    m->state.seed = 0xfedcba9876543210u;
    return m;
}

static inline Toy *toy_new(int64_t batch) {
    Device *d;
    check_ok(device_open("cpu", &d));
    return toy_new_on(d, batch);
}

static inline void toy_free(Toy *m) {
    params_free(&m->params);
    tape_free(m->tape);
    device_close(m->d);
    free(m);
}

/* ---- the task --------------------------------------------------------------------------- */

static inline Status toy_begin_epoch(void *user, int64_t epoch, int64_t cursor) {
    Toy *m = user;
    m->epoch = epoch;
    m->cursor = cursor;
    return STATUS_OK;
}

static inline Status toy_next(void *user, int64_t *samples) {
    Toy *m = user;
    int64_t call = m->next_calls++;
    if (call == m->refuse_at_call) return status_set(STATUS_DATA, "sample 17 is broken");
    if (call == m->stop_at_call) train_request_stop();
    if (m->stop_is_polled && train_stop_requested()) return STATUS_STOPPED;
    if (m->cursor + m->batch > SAMPLES) return STATUS_END;
    m->current = m->cursor;
    m->cursor += m->batch;
    *samples += m->batch;
    return STATUS_OK;
}

static inline Status toy_push(void *user, int64_t step, int64_t micro) {
    Toy *m = user;
    (void)step;
    (void)micro;
    float x[BATCH * FEATURES], y[BATCH * CLASSES] = {0};
    for (int64_t i = 0; i < m->batch; i++) {
        Rng r = rng_stream(3, RNG_TEST, (uint64_t)m->epoch, (uint64_t)(m->current + i));
        double sum = 0;
        for (int j = 0; j < FEATURES; j++) sum += x[i * FEATURES + j] = (float)rng_normal(&r);
        y[i * CLASSES + (sum > 1 ? 2 : sum > -0.5 ? 1 : 0)] = 1;
        if (m->current + i == m->nan_sample) x[i * FEATURES] = NAN;
        if (m->nan_from_call >= 0 && m->next_calls > m->nan_from_call) x[i * FEATURES] = INFINITY;
    }
    TRY(device_stage(m->d, m->x, x));
    return device_stage(m->d, m->targets, y);
}

static inline Var *toy_forward(Toy *m, Tape *t, int64_t batch) {
    Tensor x = tensor_2d(m->x.data, DTYPE_F32, batch, FEATURES);
    Var *h = op_mlp(t, tape_input(t, x, "x"), m->w1, m->b1, m->w2, m->b2);
    return op_linear(t, h, m->w3, m->b3);
}

static inline Var *toy_loss(void *user, Tape *t, int64_t batch) {
    Toy *m = user;
    Tensor targets = tensor_2d(m->targets.data, DTYPE_F32, batch, CLASSES);
    return op_cross_entropy(t, toy_forward(m, t, batch), targets);
}

static inline Status toy_validate(void *user, int64_t step, double *metric, JsonWriter *record) {
    Toy *m = user;
    m->validations++;
    if (m->validations == m->stop_in_validation) {
        train_request_stop();
        return status_set(STATUS_STOPPED, "stopped while scoring");
    }
    json_pair_int(record, "validated", step);
    *metric = m->metric += m->metric_slope;
    return STATUS_OK;
}

static inline const char *toy_batch_name(void *user, int64_t i) {
    Toy *m = user;
    if (i >= m->batch) return NULL;
    snprintf(m->name, sizeof m->name, "sample-%lld.png", (long long)(m->current + i));
    return m->name;
}

static inline TrainTask toy_task(Toy *m) {
    return (TrainTask){.user = m,
                       .begin_epoch = toy_begin_epoch,
                       .next = toy_next,
                       .push = toy_push,
                       .loss = toy_loss,
                       .validate = toy_validate,
                       .batch_name = toy_batch_name};
}

/* ---- state to compare ------------------------------------------------------------------- */

typedef struct Snapshot {
    float *values[3]; /* weights and both moments */
    int64_t count, taken;
    TrainState state;
} Snapshot;

static inline Snapshot snapshot_take(Toy *m) {
    Snapshot s = {.count = m->params.flat, .state = m->state};
    Tensor blocks[] = {m->params.master, m->optim.m, m->optim.v};
    for (int i = 0; i < 3; i++) {
        s.values[i] = malloc((size_t)s.count * sizeof(float));
        check_ok(device_pull(m->d, s.values[i], blocks[i]));
    }
    check_ok(adamw_taken(&m->optim, &s.taken));
    return s;
}

static inline void snapshot_free(Snapshot *s) {
    for (int i = 0; i < 3; i++) free(s->values[i]);
}

static inline bool snapshot_equal(const Snapshot *a, const Snapshot *b) {
    for (int i = 0; i < 3; i++)
        if (memcmp(a->values[i], b->values[i], (size_t)a->count * sizeof(float)) != 0) return false;
    const TrainState *x = &a->state, *y = &b->state;
    return a->taken == b->taken && x->step == y->step && x->epoch == y->epoch &&
           x->cursor == y->cursor && x->skipped == y->skipped && x->seed == y->seed &&
           x->loss_count == y->loss_count && memcmp(&x->loss_sum, &y->loss_sum, 8) == 0;
}

#endif
