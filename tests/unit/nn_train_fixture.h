/* Runs of the toy task and what they told; shared by test_nn_train.c and test_nn_resume.c. */
#ifndef TTV_TESTS_UNIT_NN_TRAIN_FIXTURE_H
#define TTV_TESTS_UNIT_NN_TRAIN_FIXTURE_H

#include "nn/checkpoint_files.h"
#include "nn_fixture.h"

#define EVENTS 256

typedef struct Heard {
    int count;
    char kind[EVENTS][12];
    double loss[EVENTS], norm[EVENTS];
    int64_t step[EVENTS];
    char *record[EVENTS];
} Heard;

static inline void hear(void *user, const TrainEvent *e) {
    Heard *h = user;
    if (h->count == EVENTS) return;
    snprintf(h->kind[h->count], sizeof h->kind[0], "%s", e->kind);
    h->loss[h->count] = e->loss;
    h->norm[h->count] = e->grad_norm;
    h->step[h->count] = e->state.step;
    h->record[h->count++] = strdup(e->record);
}

static inline void heard_free(Heard *h) {
    for (int i = 0; i < h->count; i++) free(h->record[i]);
    free(h);
}

static inline int heard_times(const Heard *h, const char *kind) {
    int n = 0;
    for (int i = 0; i < h->count; i++) n += strcmp(h->kind[i], kind) == 0;
    return n;
}

static inline TrainOptions options(const char *folder, int64_t epochs, int64_t accumulate) {
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

static inline Status go(Toy *toy, const TrainOptions *o, Heard *h) {
    TrainTask task = toy_task(toy);
    train_clear_stop();
    return train_run(&task, o, toy->tape, &toy->optim, &toy->state, h ? hear : NULL, h);
}

#endif
