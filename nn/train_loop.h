/* The training loop's own state; for nn/train*.c only. */
#ifndef TTV_NN_TRAIN_LOOP_H
#define TTV_NN_TRAIN_LOOP_H

#include "nn/train.h"

/* Sample names of one optimiser step, NUL-terminated one after the other; grows, is used again. */
typedef struct NameBuffer {
    char *text;
    int64_t used, capacity, count;
} NameBuffer;

/* What was gathered since the last "train" record. */
typedef struct Window {
    double loss_sum, wait_s, start_s;
    int64_t losses, steps, samples;
} Window;

typedef struct Loop {
    const TrainTask *task;
    const TrainOptions *options;
    Tape *tape;
    AdamW *optim;
    TrainState *state;
    TrainListener listener;
    void *listener_user;
    NameBuffer names;
    Window window;
    int64_t total_steps;
    int64_t saved_step;                 /* -1: none */
    double start_s, saved_s, retry_s;   /* seconds of the monotonic clock; no save before retry_s */
    double loss, lr, grad_norm, metric; /* of the last step; of the last validation */
    double older_best_metric;           /* what is_best replaced, should the save fail */
    int64_t older_best_step;
    bool is_best;      /* the weights of this very step are the best, and not saved yet */
    bool save_pending; /* a save is due, but was put off */
    bool epoch_ended;  /* by the last step */
} Loop;

double seconds_now(void);

/* Records (train_record.c): build the JSON line and call the listener. */
void window_reset(Loop *l);
Status record_train(Loop *l);
Status record_skip(Loop *l);
Status record_save(Loop *l, double seconds);
Status record_end(Loop *l, const char *reason);
/* Runs the task's validation in the middle of building its record. */
Status record_validate(Loop *l);

/* One optimiser step (train_step.c). STATUS_END: the epoch's data is used up, nothing was done. */
Status step_run(Loop *l);

#endif
