/* Joins loader and model for nn/train.h: batches, losses with smoothed targets, exact validation.
 */
#ifndef TTV_TOOLS_TRAIN_TASK_H
#define TTV_TOOLS_TRAIN_TASK_H

#include "nn/train.h"
#include "tools/predict.h"
#include "tools/teacher.h"
#include "tools/train_data.h"

typedef struct TrainerTask {
    Model *model;
    TrainData *data;
    Predictor predictor; /* of the validation */
    HostBatch batch;
    int64_t epoch, batch_index; /* of `batch`: they name its random streams */
    /* On the device, for one micro-step: pictures, targets, and what op_image_prepare does. */
    Tensor pixels, targets, samples, mix;
    float *target_rows;   /* host copy of the targets */
    int32_t *sample_rows; /* and of the samples' draws */
    float *logits;        /* host, one validation batch */
    /* --overfit-batch: a copy of the first batch */
    uint8_t *fixed_pixels;
    int64_t *fixed_labels, *fixed_samples;
    uint8_t *fixed_valid;
    int64_t fixed_served;            /* batches of this epoch handed out */
    Ema *ema;                        /* averaged weights, scored beside the others; NULL: none */
    Teacher *teacher;                /* of self-distillation; NULL: none */
    Score score, ema_score;          /* of the last validation */
    int64_t scored_step;             /* step that `score` belongs to; -1: none */
    char top1_raw[32], top1_ema[32]; /* in words, of the last validation; nan: none yet */
    void (*on_micro_step)(void *user, int64_t step); /* progress; may be NULL */
    void *on_micro_step_user;
} TrainerTask;

Status trainer_task_init(TrainerTask *t, Model *m, TrainData *d);
void trainer_task_free(TrainerTask *t);
/* The callbacks over *t. */
TrainTask trainer_task_callbacks(TrainerTask *t);

/* Scores all samples of a loader; STATUS_STOPPED when a signal came, STATUS_DATA when nothing could
 * be scored. `visit` (may be NULL) sees every batch with its logits. With several ranks rank 0 adds
 * and visits all batches in their order (without pixels), so that numbers and files have the same
 * bits as with one; *score is the same everywhere. */
typedef void (*ScoreVisit)(void *user, const HostBatch *b, const float *logits);
Status score_all(Predictor *p, Loader *l, int64_t images, float *logits, Score *score,
                 ScoreVisit visit, void *visit_user);

#endif
