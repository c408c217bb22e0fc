/* Joins scenes and model for nn/train.h: batches of views, MSE, PSNR of held-out scenes. */
#ifndef TTV_TOOLS_NVS_TASK_H
#define TTV_TOOLS_NVS_TASK_H

#include "nn/train.h"
#include "tools/memory_plan.h"
#include "tools/nvs_data.h"

/* PSNR in dB, a mean over views; NAN: not measured. */
typedef struct NvsScores {
    double psnr, ema_psnr, nearest, mean;
    double loss; /* of the weights, not the averaged ones: mean squared error */
    int64_t scenes, failed;
} NvsScores;

typedef struct NvsTask {
    NvsModel *model;
    NvsData *data;
    ViewBatch batch;
    char name[CONFIG_TEXT]; /* of a sample, for messages */
    int threads;            /* that make patches */
    double waited_s;        /* for scenes and patches */
    /* On the device: cameras F32 [B, V, 16], colours of the input views U8 [B, I, height * width,
     * 3], patches of the targets F32 [B, T*l, 3 p^2]; and their host copies. */
    Tensor cameras, rgb, patches;
    float *host_cameras, *host_patches;
    uint8_t *host_rgb;
    const char *pictures; /* folder of the validations' pictures; NULL: none are written */
    Ema *ema;             /* averaged weights, scored beside the others; NULL: none */
    bool show_average;    /* in pictures: it was the better one in the validation before */
    NvsScores scores;     /* of the last validation */
    char psnr_raw[32], psnr_ema[32]; /* in words; nan: none yet */
} NvsTask;

/* What a step needs, before anything of the batch's size is taken. */
Status nvs_task_plan(NvsModel *m, MemoryPlan *out);
Status nvs_task_init(NvsTask *t, NvsModel *m, NvsData *d);
void nvs_task_free(NvsTask *t);
/* The callbacks over *t. One epoch is the whole run. */
TrainTask nvs_task_callbacks(NvsTask *t);

/* ---- nvs_validate.c ---- */

/* TrainTask.validate: mean PSNR of the target views of the validation's scenes, 8-bit pixels,
 * beside the baselines. With averaged weights the metric is the better of the two. */
Status nvs_validate(void *task, int64_t step, double *metric, JsonWriter *record);

#endif
