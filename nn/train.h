/* The training loop: knows nothing of models or data; a task hands it losses and batches.
 *
 * One optimiser step = `accumulate` micro-steps (next, push, loss, backward), clip, AdamW. Where
 * the device can, the first step of a process runs call by call and the later ones as recorded
 * graphs; the batch after is fetched and pushed while a step runs. Neither changes a bit.
 * Non-finite gradient norm or loss, or a norm above AdamWOptions.skip_norm: the step is skipped and
 * counted, the batch's sample names are logged, and 10 in a row (100 that were merely too large)
 * end the run with STATUS_NUMERIC; the last good checkpoint stays.
 * SIGTERM/SIGINT (through train_request_stop) save and end with STATUS_STOPPED. Resume continues
 * with the same bits as an uninterrupted run.
 *
 * A checkpoint that the disk refuses in the middle of a run is logged and tried again a minute
 * later; at the end it is an error. When the data fails, what was learnt so far is saved before the
 * error returns.
 */
#ifndef TTV_NN_TRAIN_H
#define TTV_NN_TRAIN_H

#include "core/json.h"
#include "kernels/comm.h"
#include "nn/checkpoint.h"

typedef struct TrainTask {
    void *user;
    /* Positions the data at sample `cursor` of `epoch` (start of an epoch, or a resume). */
    Status (*begin_epoch)(void *user, int64_t epoch, int64_t cursor);
    /* Fetches the next micro-batch: STATUS_END when the epoch has no full batch left. Adds its
     * size. STATUS_STOPPED: it saw a stop request while waiting; the unfinished step then never
     * happened. */
    Status (*next)(void *user, int64_t *samples);
    /* The fetched batch to the device, with device_stage, always to the same addresses: the step
     * before may still be running. step and micro key the random streams. NULL: loss() does it,
     * which rules out graphs and fetching ahead. */
    Status (*push)(void *user, int64_t step, int64_t micro);
    /* Forward pass over the `batch` samples that were pushed, up to a scalar F32 loss: ops on
     * device memory alone, the same ones in every step. Only when a step is recorded or run call by
     * call, and on a dry device with any batch (nn/plan.h), is it called. */
    Var *(*loss)(void *user, Tape *t, int64_t batch);
    /* Which of several kinds the loss of the coming step is: when it changes, a step runs call by
     * call before it is recorded anew. NULL: always the same. */
    int64_t (*loss_form)(void *user);
    /* Metric of the current weights (higher is better); called between steps. May be NULL. The task
     * adds its own named numbers to the record. */
    Status (*validate)(void *user, int64_t step, double *metric, JsonWriter *record);
    /* Names of the samples of the current batch, for messages: i-th name or NULL at the end. */
    const char *(*batch_name)(void *user, int64_t i);
    /* Seconds that next() waited for data since the last call (share of the step is logged). May be
     * NULL. */
    double (*wait_seconds)(void *user);
} TrainTask;

typedef struct TrainOptions {
    const char *run_folder; /* exists already */
    int64_t epochs, accumulate;
    int64_t steps_per_epoch; /* exactly: STATUS_END from next() before that is an error */
    int64_t max_steps;       /* stop (and save) after so many steps in all; 0: epochs decide */
    double time_limit_s;     /* 0: none; save and end with STATUS_OK */
    Schedule schedule;
    int64_t log_interval;     /* steps between records */
    bool validate_ema;        /* validate with the averaged weights (AdamW.ema) */
    double validate_interval; /* epochs between validations; 0: only at the end */
    int64_t patience_steps;   /* so long without a new best validation ends the run; 0: never */
    int64_t save_interval;    /* steps between checkpoints; 0: every epoch */
    double save_minutes;      /* 0: off */
    int keep;
    int give_up_after; /* non-finite steps in a row: 10; too large ones: 10 times as many */
    bool no_graphs;    /* every step call by call */
    int fetch_ahead;   /* 0: where the device is asynchronous; 1: always; -1: never */
    const SafeMeta *meta;
    int64_t meta_count;
    /* Several ranks train one model, each on its own part of every batch (TrainTask.next counts its
     * own samples, equally many on all; cursors count those of all): gradients and losses are
     * averaged over them. Rank 0 saves. Ranks agree on every step before they take it: when one
     * was asked to stop, all stop there; when one fails, all do, with its message. NULL: one. */
    Comm *comm;
} TrainOptions;

/* What the loop tells the outside (progress line, files); called on the training thread. Keys of
 * the records, besides kind, step, epoch and seconds:
 *   train     loss (mean since the last record), step_loss, epoch_loss, lr, grad_norm, skipped,
 *             samples_per_s, wait_share, step_ms, growths, step_memory_bytes
 *   validate  those of the task; metric, best, validate_seconds
 *   save      metric, save_seconds
 *   skip      loss, grad_norm, skipped, skipped_row, names
 *   end       reason, best_metric, best_step, skipped */
typedef struct TrainEvent {
    const char *kind; /* "train", "validate", "save", "skip", "end" */
    TrainState state;
    int64_t total_steps;
    double loss, lr, grad_norm, samples_per_s, wait_share, step_ms, metric, seconds;
    const char *record; /* the same as a JSON object without newline: a line of metrics.jsonl */
} TrainEvent;
typedef void (*TrainListener)(void *user, const TrainEvent *e);

/* What train_run refuses before anything else: STATUS_USAGE where a resumed *state and the options
 * cannot be of one run. */
Status train_check(const TrainOptions *o, const TrainState *s);

/* Trains from *state (zeroed, or resumed) to the end; *state is what was reached. With several
 * ranks weights, moments, average and *state are rank 0's to begin with. */
Status train_run(const TrainTask *task, const TrainOptions *o, Tape *t, AdamW *optim,
                 TrainState *state, TrainListener listener, void *listener_user);

/* Async-signal-safe: the loop saves and stops at the next step edge; next() and validate() may poll
 * it too and return STATUS_STOPPED. */
void train_request_stop(void);
bool train_stop_requested(void);
void train_clear_stop(void);

#endif
