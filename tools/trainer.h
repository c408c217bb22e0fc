/* One training run: the pieces that cmd_train.c joins. */
#ifndef TTV_TOOLS_TRAINER_H
#define TTV_TOOLS_TRAINER_H

#include "tools/memory_plan.h"
#include "tools/run_folder.h"
#include "tools/train_task.h"

typedef struct Trainer {
    Config *config;
    TrainData data;
    Model model;
    ModelMeta meta;
    AdamW optim;
    Ema ema;         /* in use when optim.ema points to it */
    Teacher teacher; /* of --mesa; see trainer_teacher() */
    Muon muon;       /* in use when optim.muon points to it */
    MemoryPlan memory;
    Tape *tape;
    Comm *comm; /* sums over the ranks; NULL: one */
    TrainerTask task;
    RunFolder run;
    TrainState state;
    TrainOptions options;
    bool resuming, step_memory_told;
    int64_t first_step; /* of this process */
    double loss, lr, images_per_s, wait_share,
        step_ms; /* of the last record, for the progress line */
} Trainer;

static inline Teacher *trainer_teacher(Trainer *t) {
    return t->teacher.vittt ? &t->teacher : NULL;
}

/* ---- train_resume.c ---- */

/* Decides by --resume whether a run is continued; if so, opens (locks) its folder and takes over
 * the values of its config.ini that nobody set now. */
Status trainer_find_run(Trainer *t);
/* Weights, moments and counters of the run's last checkpoint, after comparing class lists. */
Status trainer_resume(Trainer *t);
/* --initial-checkpoint: weights by name; a head of another size keeps its random values, aloud. */
Status trainer_load_initial(Trainer *t);

/* ---- train_plan.c ---- */

/* Steps, schedule and intervals from the settings and the size of the data. */
Status trainer_plan(Trainer *t);
/* STATUS_IO when the disk has no room for one checkpoint. */
Status trainer_check_disk(const Trainer *t);
/* The plan in words, on stderr and in log.txt. */
void trainer_print_plan(const Trainer *t);
/* The same as one JSON object on stdout, for --dry-run. */
Status trainer_plan_json(const Trainer *t);

/* ---- train_memory.c ---- */

/* STATUS_MEMORY, when a step does not fit, names need, free memory and the largest batch. */
Status trainer_plan_memory(Trainer *t);
void trainer_print_memory(const Trainer *t);

/* ---- train_report.c ---- */

extern const RunColumns trainer_columns;
/* TrainListener of the run: metrics files, progress, notes. */
void trainer_event(void *trainer, const TrainEvent *e);
/* TrainerTask.on_micro_step: the progress line, and once the step memory. */
void trainer_micro_step(void *trainer, int64_t step);
/* The result on stdout. */
Status trainer_print_result(const Trainer *t);

#endif
