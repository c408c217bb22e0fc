/* The training loop's own state; for nn/train*.c only. */
#ifndef TTV_NN_TRAIN_LOOP_H
#define TTV_NN_TRAIN_LOOP_H

#include "nn/train.h"

/* Sample names of one optimiser step, NUL-terminated one after the other; grows, is used again. */
typedef struct NameBuffer {
    char *text;
    int64_t used, capacity, count;
} NameBuffer;

/* A micro-batch that was fetched and staged, perhaps while the step before ran. */
typedef struct Batch {
    bool fetched;
    Status status; /* of next() and push(), for the step that wants the batch */
    char message[1024];
    int64_t samples;
    NameBuffer names;
} Batch;

/* A step as graphs: the first micro-step sets the gradients, later ones add to them. */
typedef struct StepGraphs {
    DeviceGraph *first, *later, *finish, *update;
    int64_t batch; /* samples of a micro-step that they were recorded for; 0: not recorded */
    bool refused;
    int64_t form; /* TrainTask.loss_form() of the steps so far */
} StepGraphs;

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
    NameBuffer names; /* of the step's samples */
    Batch batch;
    Tensor micro_loss, losses; /* F32 [1], of the running micro-step; F32 [accumulate] */
    float *host_losses;
    StepGraphs graphs;
    int64_t eager_batch; /* samples of the last micro-step that ran call by call; 0: none yet */
    Window window;
    int64_t total_steps;
    int64_t saved_step;                 /* -1: none */
    double start_s, saved_s, retry_s;   /* seconds of the monotonic clock; no save before retry_s */
    double loss, lr, grad_norm, metric; /* of the last step; of the last validation */
    double older_best_metric;           /* what is_best replaced, should the save fail */
    int64_t older_best_step;
    bool is_best;            /* the weights of this very step are the best, and not saved yet */
    bool save_pending;       /* a save is due, but was put off */
    bool epoch_ended;        /* by the last step */
    bool planned;            /* the step's memory */
    bool all_stop, all_late; /* several ranks: what they agreed on at the last step */
    void *edges;             /* room for what they say */
} Loop;

/* Records (train_record.c): build the JSON line and call the listener. */
void window_reset(Loop *l);
Status record_train(Loop *l);
Status record_skip(Loop *l);
Status record_save(Loop *l, double seconds);
Status record_end(Loop *l, const char *reason);
/* Runs the task's validation in the middle of building its record. */
Status record_validate(Loop *l);

/* Batches (train_batch.c). */
Status names_append(NameBuffer *to, const NameBuffer *from);
void names_text(const NameBuffer *b, char *out, size_t size);
/* The batch of a micro-step on its way to the device; `samples` of it. */
Status batch_take(Loop *l, int64_t micro, int64_t *samples);
/* Fetches a coming one now, when that pays; a failure waits in l->batch. */
void batch_ahead(Loop *l, int64_t step, int64_t micro);
void batch_forget(Loop *l);

/* The passes of a step, recorded or not (train_pass.c). */
Status passes_init(Loop *l);
void passes_free(Loop *l);
/* Takes the memory of a step in one block. STATUS_MEMORY with advice. */
Status passes_plan(Loop *l, int64_t batch);
/* Before the first micro-step. */
void passes_begin(Loop *l);
/* Forward and backward over the pushed batch; its loss goes to l->losses. */
Status pass_micro(Loop *l, int64_t micro, int64_t samples);
/* The optimiser's part. Nothing changes when a loss or the gradient norm is not finite. */
Status pass_update(Loop *l);

/* Several ranks (train_ranks.c); with one these do nothing. */
Status ranks_init(Loop *l);
void ranks_free(Loop *l);
/* Before a validation: what buffers hold may differ between ranks, and rank 0's counts. */
Status ranks_share_buffers(Loop *l);
/* Before the gradients are summed: this rank's part of the step went as `mine` says. OK when all
 * are well; STATUS_END or STATUS_STOPPED when the step shall not happen. */
Status ranks_agree(Loop *l, Status mine);
/* Whether this rank, or with several any at the last step, was asked to stop. */
bool stop_wanted(const Loop *l);
bool time_is_up(const Loop *l);
bool saves_files(const Loop *l); /* rank 0 does */
/* Kernels that were launched wait for other ranks: the process ends when that takes too long. */
void ranks_wait_begin(Loop *l);
void ranks_wait_end(Loop *l);

/* One optimiser step (train_step.c). STATUS_END: the epoch's data is used up, nothing was done. */
Status step_run(Loop *l);

#endif
