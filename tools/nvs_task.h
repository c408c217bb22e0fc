/* Joins scenes and model for nn/train.h: batches of tokens, MSE, PSNR of held-out scenes. */
#ifndef TTV_TOOLS_NVS_TASK_H
#define TTV_TOOLS_NVS_TASK_H

#include "nn/train.h"
#include "tools/nvs_data.h"

typedef struct NvsTask {
    NvsModel *model;
    NvsData *data;
    ViewBatch batch;
    char name[CONFIG_TEXT]; /* of a sample, for messages */
    /* On the device: tokens [B, V*l, 12 p^2], patches [B, T*l, 3 p^2]; and their host copies. */
    Tensor tokens, patches;
    float *host_tokens, *host_patches;
    const char *pictures; /* folder of the validations' pictures; NULL: none are written */
    double psnr;          /* of the last validation */
    int64_t scored, failed;
} NvsTask;

Status nvs_task_init(NvsTask *t, NvsModel *m, NvsData *d);
void nvs_task_free(NvsTask *t);
/* The callbacks over *t. One epoch is the whole run. */
TrainTask nvs_task_callbacks(NvsTask *t);

/* ---- nvs_validate.c ---- */

/* TrainTask.validate: mean PSNR of the target views of the validation's scenes; 8-bit pixels. */
Status nvs_validate(void *task, int64_t step, double *metric, JsonWriter *record);

#endif
