/* One run of `ttv nvs train`: the pieces that cmd_nvs_train.c joins. */
#ifndef TTV_TOOLS_NVS_TRAINER_H
#define TTV_TOOLS_NVS_TRAINER_H

#include "tools/nvs_task.h"
#include "tools/run_folder.h"

enum { NVS_META = 6 };

typedef struct NvsTrainer {
    Config *config;
    NvsModel model;
    NvsData data;
    NvsTask task;
    AdamW optim;
    Ema ema; /* in use when optim.ema points to it */
    MemoryPlan memory;
    Tape *tape;
    Comm *comm; /* sums over the ranks; NULL: one */
    RunFolder run;
    TrainState state;
    TrainOptions options;
    SafeMeta meta[NVS_META];
    char *config_text, *pictures;
    bool resuming;
    double wait_share; /* of the last record */
} NvsTrainer;

/* ---- nvs_train_plan.c ---- */

/* Schedule, intervals and metadata of checkpoints from the settings. */
Status nvs_trainer_plan(NvsTrainer *t);
/* STATUS_MEMORY when the batch does not fit, STATUS_IO when no checkpoint does. */
Status nvs_trainer_check_memory(NvsTrainer *t);
Status nvs_trainer_check_disk(const NvsTrainer *t);
/* The plan in words, on stderr and in log.txt. */
void nvs_trainer_print_plan(const NvsTrainer *t);
/* The same as one JSON object on stdout, for --dry-run. */
Status nvs_trainer_plan_json(const NvsTrainer *t);

/* ---- nvs_train_report.c ---- */

extern const RunColumns nvs_trainer_columns;
/* TrainListener of the run: metrics files, progress, notes. */
void nvs_trainer_event(void *trainer, const TrainEvent *e);
/* The result on stdout. */
Status nvs_trainer_print_result(const NvsTrainer *t);

#endif
